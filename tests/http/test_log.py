# SPDX-License-Identifier: Apache-2.0
"""Whoever does not read the log stops nobody: requests, probes and the drain go on, and what was
dropped is counted."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from harness import BINARY, GOLDEN, REQUEST_SECONDS, SLOWNESS, unused_port, wait_until

MODEL = GOLDEN / "hybrid_regla"
STRESS = "REGLA_STRESS" in os.environ


@contextmanager
def serving(log, *flags):
    """A server whose log goes to the file descriptor `log`; (process, client)."""
    port = unused_port()
    process = subprocess.Popen(
        [BINARY, "serve", "--model", MODEL, "--port", str(port), "--drain-timeout", "3", *flags],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=REQUEST_SECONDS,
                          trust_env=False, verify=False)
    try:
        def ready():
            try:
                return client.get("/ready").status_code == 200
            except httpx.TransportError:
                assert process.poll() is None
        wait_until(ready, "ready")
        yield process, client
    finally:
        client.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def dropped(client):
    return int(re.search(r"^regla_log_lines_dropped_total(?:\{.*\})? (\d+)$",
                         client.get("/metrics").text, re.M).group(1))


def ask(client, count):
    for _ in range(count):
        reply = client.post("/v1/completions", json={"prompt": [5], "max_tokens": 1})
        assert reply.status_code == 200


def fill(client):
    """Probes, whose lines hold what the client sends, until the pipe and then the ring are full."""
    for _ in range(200):
        for _ in range(100):
            client.get("/health", headers={"X-Request-Id": "x" * 120})
        if dropped(client) > 0:
            return
    raise AssertionError("the pipe and the ring hold more than 20,000 lines")


def end(process):
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20 * SLOWNESS) == 0
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_pipe_that_nobody_reads(form):
    reader, writer = os.pipe()
    with serving(writer, "--log-format", form, "--log-level", "debug") as (process, client):
        os.close(writer)
        fill(client)
        ask(client, 20)
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        assert dropped(client) > 20
        assert end(process) < 10 * SLOWNESS
    os.close(reader)


def read_lines(reader, lines, slow):
    """Reads all lines, each after two milliseconds as long as `slow` is set."""
    with os.fdopen(reader, "rb") as source:
        for line in source:
            lines.append(json.loads(line))
            if slow.is_set():
                time.sleep(0.002)


def caught_up(client, lines):
    """The reader has read all that was written before this: nothing is lost from here on."""
    for i in range(2000 * SLOWNESS):
        client.get("/health", headers={"X-Request-Id": f"late-{i}"})
        time.sleep(0.01)
        if any(line.get("id") == f"late-{i}" for line in lines[-20:]):
            return
    raise AssertionError("no line of 2,000 requests came")


@pytest.mark.long
@pytest.mark.parametrize("requests", [20] + [100_000] * STRESS)
def test_a_slow_reader_is_told_what_is_missing(requests):
    """Each completion has a line, or is counted by the line that says how many are missing."""
    reader, writer = os.pipe()
    lines, slow = [], threading.Event()
    slow.set()
    thread = threading.Thread(target=read_lines, args=(reader, lines, slow))
    with serving(writer, "--log-format", "json", "--log-level", "debug") as (process, client):
        os.close(writer)
        fill(client)
        thread.start()
        ask(client, requests)
        slow.clear()
        caught_up(client, lines)
        lost = dropped(client)
        assert end(process) < 30 * SLOWNESS
    thread.join(60)
    told = [line["total"] for line in lines if line["event"] == "log_lines_dropped"]
    logged = sum(line["event"] == "completion" for line in lines)
    print(f"{requests} completions, {logged} logged, {lost} lines dropped, told {len(told)} times")
    assert told == sorted(told) and 0 < lost == told[-1]
    assert logged + lost >= requests
    assert lines[-1]["text"] == "bye"


def test_a_log_that_cannot_be_written():
    full = os.open("/dev/full", os.O_WRONLY)
    with serving(full) as (process, client):
        os.close(full)
        ask(client, 5)
        assert dropped(client) > 5
        assert end(process) < 10 * SLOWNESS
