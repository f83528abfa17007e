# SPDX-License-Identifier: Apache-2.0
"""loadtest/replicas.py: that its figures are of what happened."""

import json
import subprocess
import sys

import pytest

from harness import BINARY, ROOT


@pytest.fixture
def measured(tmp_path):
    """measured(part, argument…): what it found of that part"""
    def measure(part, *arguments):
        out = tmp_path / "found.json"
        done = subprocess.run([sys.executable, ROOT / "loadtest" / "replicas.py", "--binary", BINARY,
                               "--parts", part, "--out", out, *map(str, arguments)],
                              capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())[part]
    return measure


def test_a_session_that_moves(measured):
    """Its state comes from the store, unless that has dropped it."""
    row, = measured("move", "--models", "regla-6l@100")
    assert row["cached_after_move"] == 100 and row["cached_if_dropped"] == 0
    assert row["state_mib"] > 0 and row["moved_s"] > 0 and row["computed_s"] > 0


@pytest.mark.parametrize("states", ["on", "off"])
def test_what_a_turn_costs_the_store(measured, states):
    for found in measured("overhead", "--models", "regla-6l@100", "--turns", 40, "--block", 10,
                          "--store-states", states):
        assert [row["side"] for row in found["sides"]] == ["memory", "directory", "always", "everysec"]
        assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in found["sides"])
        for row in found["per_turn"]:
            # scripts take the lease, name the session, and commit
            assert row["evalsha calls"] == pytest.approx(3, abs=0.3)
            assert ("set calls" in row) == ("mget calls" in row) == (states == "on")
            assert (row["bytes_in"] < 10000) == (states == "off")


def test_how_many_turns_servers_take(measured):
    rows = measured("throughput", "--seconds", 0.5)
    assert [row["replicas"] for row in rows] == [1, 2, 3, 1, 2, 3]
    for row in rows:
        assert row["turns_per_s"] > 0 and row["store_cpu_us"] > 0 and row["proxy_cpu_us"] > 0


def test_sessions_that_stay_beside_those_in_turns(measured):
    rows = measured("affinity", "--seconds", 3)
    assert rows[0]["local_%"] > rows[1]["local_%"]
    for row in rows:
        assert sum(row[f"{kind}_%"] for kind in ("local", "moved", "computed")) == pytest.approx(100)
