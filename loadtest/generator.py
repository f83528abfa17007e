# SPDX-License-Identifier: Apache-2.0
"""Open-loop load: every request is sent when it arrives, however many are still being answered."""

import asyncio
import time
from dataclasses import dataclass

import aiohttp

from client import complete
from measure import Failure

PERCENTILES = (50, 90, 95, 99)
# A session that holds as much is deleted, and another takes its place.
SESSION_TOKENS = 4096


@dataclass
class Target:
    name: str
    url: str
    model: str = ""
    extensions: bool = True  # sessions: ours only
    pid: int | None = None

    async def learn(self, http):
        try:
            async with http.get(self.url + "/v1/models") as response:
                served = (await response.json())["data"][0]
            self.model = served["id"]
        except (TimeoutError, aiohttp.ClientError, ValueError, LookupError) as error:
            raise Failure(f"{self.name}: GET {self.url}/v1/models: {error!r}") from None
        self.extensions = served.get("owned_by") == "regla"


class Sessions:
    """Names of sessions, each used by one request at a time; there are as many as are needed."""

    def __init__(self, http, target, prefix):
        self.http, self.target, self.prefix = http, target, prefix
        self.idle = []  # (name, position)
        self.made = 0

    def take(self):
        if self.idle:
            return self.idle.pop()
        self.made += 1
        return f"{self.prefix}-{self.made}", 0

    async def give_back(self, name, outcome):
        whole = outcome.kind == "ok" and outcome.position is not None
        if whole and outcome.position < SESSION_TOKENS:
            self.idle.append((name, outcome.position))
        else:
            await self.delete(name)

    async def delete(self, name):
        """It may be busy for a moment after its client has left, and not exist after an error."""
        for _ in range(200):
            try:
                async with self.http.delete(f"{self.target.url}/v1/sessions/{name}") as response:
                    if response.status != 409:
                        return
            except (TimeoutError, aiohttp.ClientError):
                return  # a server that is gone is told by its completions
            await asyncio.sleep(0.05)

    async def close(self):
        while self.idle:
            await self.delete(self.idle.pop()[0])


async def send(http, target, sessions, arrival, start, outcomes):
    await asyncio.sleep(max(0, start + arrival.at - time.perf_counter()))
    body = {"model": target.model, "prompt": arrival.prompt, "max_tokens": arrival.max_tokens,
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    name = None
    if arrival.in_session and target.extensions:
        name, position = sessions.take()
        body |= {"session_id": name, "expected_position": position}
    outcome = await complete(http, target.url, body, arrival, start + arrival.at)
    outcomes.append(outcome)
    if name:
        await sessions.give_back(name, outcome)


async def run_load(target, arrivals, timeout, label):
    """All outcomes, and the seconds from the start to the last of them."""
    limits = aiohttp.ClientTimeout(total=timeout)
    connector = aiohttp.TCPConnector(limit=0)
    outcomes = []
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as http:
        if not target.model:
            await target.learn(http)
        sessions = Sessions(http, target, f"load-{label}")
        start = time.perf_counter()
        await asyncio.gather(*(send(http, target, sessions, arrival, start, outcomes)
                               for arrival in arrivals))
        seconds = time.perf_counter() - start
        await sessions.close()
    return outcomes, seconds


def percentiles(values):
    """{"p50": …} in milliseconds, by nearest rank; None without values."""
    ordered = sorted(values)
    return {f"p{p}": ordered[max(0, -(-len(ordered) * p // 100) - 1)] * 1e3 if ordered else None
            for p in PERCENTILES}


def holds(outcome, limits):
    """Whether a request that ended well held the limits: its first token, the mean of the rest."""
    mean = sum(outcome.between) / len(outcome.between) if outcome.between else 0
    return outcome.first * 1e3 <= limits.first_ms and mean * 1e3 <= limits.between_ms


@dataclass
class Limits:
    first_ms: float
    between_ms: float
    share: float  # of the requests that must hold both


def summarize(target, rate, arrivals, outcomes, seconds, limits):
    """What one run has shown. Latencies are of clients that read as fast as they can, to the end."""
    plain = [outcome for outcome in outcomes if outcome.kind == "ok" and not outcome.slow]
    errors = {}
    for outcome in outcomes:
        if outcome.is_error:
            errors[outcome.kind] = errors.get(outcome.kind, 0) + 1
    good = sum(holds(outcome, limits) for outcome in plain)
    judged = len(plain) + sum(errors.values())
    return {"target": target.name, "model": target.model, "rate": rate, "seconds": seconds,
            "requests": len(outcomes), "ok": sum(o.kind == "ok" for o in outcomes),
            "left": sum(o.kind == "left" for o in outcomes),
            "slow": sum(o.slow for o in outcomes), "errors": errors,
            "details": sorted({f"{o.kind}: {o.detail}" for o in outcomes if o.is_error})[:5],
            "tokens_per_second": sum(o.tokens for o in outcomes) / seconds,
            "prompt_tokens": sum(len(arrival.prompt) for arrival in arrivals),
            "cached_tokens": sum(o.cached_tokens for o in outcomes),
            "first_ms": percentiles([o.first for o in plain]),
            "between_ms": percentiles([gap for o in plain for gap in o.between]),
            "late_ms": percentiles([o.late for o in outcomes]),
            "good_share": good / judged if judged else 0.0, "goodput": good / seconds,
            "holds": judged > 0 and good / judged >= limits.share}
