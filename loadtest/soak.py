# SPDX-License-Identifier: Apache-2.0
"""The soak: rounds of load, and between them, when nothing runs, a look at the server's process. What
is never given back shows as growth from round to round."""

import asyncio
import os
import statistics
import time
from pathlib import Path

from generator import run_load
from measure import Failure, status_bytes

# What comes first fills caches and pools, and is no growth.
WARM_UP_SHARE = 0.2
LEAST_ROUNDS = 5
SETTLE_LOOKS, SETTLE_PAUSE_SECONDS = 20, 0.05  # not a time: a machine may stand still in it
# Connections whose clients left may be noticed later than that; a leak passes this soon.
TOLERATED_DESCRIPTORS = 4


def look(pid):
    process = Path(f"/proc/{pid}")
    return {"rss_bytes": status_bytes(pid, "VmRSS"),
            "threads": len(list((process / "task").iterdir())),
            "descriptors": len(os.listdir(process / "fd"))}


async def look_when_idle(pid, allowed):
    """The least of each within SETTLE_LOOKS: connections and files close a moment after their last
    byte. Stops looking when there is no more than `allowed` of each."""
    least = look(pid)
    for _ in range(SETTLE_LOOKS):
        if allowed and all(least[name] <= allowed[name] for name in ("threads", "descriptors")):
            break
        await asyncio.sleep(SETTLE_PAUSE_SECONDS)
        now = look(pid)
        least = {name: min(least[name], now[name]) for name in least}
    return least


async def soak(target, workload, rate, duration, round_seconds, timeout):
    """(arrivals and outcomes of all rounds, a sample for each of them)."""
    if target.pid is None:
        raise Failure("--soak watches the server's process: let it be started here, or give --pid")
    arrivals, outcomes, samples = [], [], []
    began = time.monotonic()
    while time.monotonic() - began < duration or len(samples) < LEAST_ROUNDS:
        arriving = workload.arrivals(rate, round_seconds, part=len(samples))
        found, _ = await run_load(target, arriving, timeout, f"soak-{len(samples)}")
        arrivals += arriving
        outcomes += found
        try:
            sample = await look_when_idle(target.pid, samples[-1] if samples else None)
        except OSError as error:
            raise Failure(f"the server is gone: {error}") from None
        samples.append({"seconds": time.monotonic() - began, "requests": len(outcomes), **sample})
    return arrivals, outcomes, samples


def growth(samples, tolerated_bytes):
    """Per quantity: the medians of the first and the last third after the warm-up, and whether the
    difference is more than is tolerated (threads: none; descriptors: a few)."""
    counted = samples[int(len(samples) * WARM_UP_SHARE):]
    third = max(1, len(counted) // 3)
    found = {}
    for name, tolerated in (("rss_bytes", tolerated_bytes), ("threads", 0),
                            ("descriptors", TOLERATED_DESCRIPTORS)):
        before = statistics.median(sample[name] for sample in counted[:third])
        after = statistics.median(sample[name] for sample in counted[-third:])
        found[name] = {"before": before, "after": after, "grown": after - before > tolerated}
    return found
