# SPDX-License-Identifier: Apache-2.0
"""What a store that servers share is kept to: names, memory, times to live, quotas."""

import contextlib
import re
import resource
import sys

import pytest

import harness
from redis_store import turn

sys.path.insert(0, str(harness.ROOT / "tests" / "scripts"))
import memory_table

DAY = 24 * 3600


# ---- names ----

def test_old_names_without_a_session_go(replicas, redis):
    """A deletion, and a server that dies, leave names in the owner's set."""
    turn(replicas[0], "named")
    names, = redis.keys("*:sessions")
    now = int(redis.ask("TIME")[0])
    redis.ask("ZADD", names, now - DAY - 60, "long-gone", now - 60, "being-made")
    redis.ask("ZADD", names, now - DAY - 60, "named")
    listed = [card["id"] for card in replicas[1].get("/v1/sessions").json()["data"]]
    assert listed == ["named"]
    assert sorted(redis.ask("ZRANGE", names, 0, -1)) == [b"being-made", b"named"]


# ---- memory ----

class Limited:
    """A process with at most so much data (ulimit -d)."""

    def __init__(self, mib):
        self.mib = mib

    def start(self, command, **options):
        return memory_table.subprocess.Popen(
            list(map(str, command)), **options, preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_DATA, (self.mib << 20, self.mib << 20)))


@contextlib.contextmanager
def limited_server(redis):
    """With the least memory that it starts with: how much that is depends on its threads."""
    for mib in range(80, 2000, 20):
        started = memory_table.Server(Limited(mib), harness.BINARY, harness.GOLDEN / "hybrid_regla",
                                      "--store", redis.location)
        try:
            if started.ready():
                yield started
                return
        finally:
            started.discard()
    raise AssertionError("it does not start")


@pytest.mark.builds("dev")  # the sanitizers take many times the memory
def test_copies_of_sessions_make_room(redis):
    """The store holds more sessions than the server has memory for their tokens."""
    tokens = 2000
    with limited_server(redis) as server:
        budget = re.search(r"([\d.]+) MiB for tokens of sessions", server.text())[1]
        number = int(2 * (float(budget) + 0.05) * (1 << 20) / (8 * tokens))
        statuses = [server.post("/v1/completions", {
            "session_id": f"copy-{i}", "prompt": [5 + i % 7] * (tokens - 1), "max_tokens": 1,
            "ignore_eos": True, "expected_position": 0}) for i in range(number)]
        assert statuses == [200] * number
        for i in range(number):  # each is there, and comes again
            assert server.post("/v1/completions", {
                "session_id": f"copy-{i}", "prompt": [5], "max_tokens": 1, "ignore_eos": True,
                "expected_position": tokens}) == 200, i
        assert server.end() == 0
