# SPDX-License-Identifier: Apache-2.0
"""What /metrics says of a store that servers share, and of a directory."""

import pytest

from harness import check_error, wait_until
from redis_store import LEASE, Redis
from session_helpers import GREEDY

pytestmark = pytest.mark.builds("dev", "tsan")


@pytest.fixture
def redis(tmp_path):
    running = Redis(tmp_path)
    yield running
    running.stop()


def turn(server, name, **fields):
    return server.post("/v1/completions", {"session_id": name, "prompt": [5, 6, 7], "max_tokens": 4,
                                           **GREEDY, **fields})


def ended(server, result, kind="session"):
    return server.metric("regla_store_operations_total", kind=kind, result=result)


def states(server, event):
    return server.metric("regla_store_states_total", event=event)


def test_operations_and_states_are_counted(redis, server_factory):
    one, other = (server_factory(store=redis.location, lease=LEASE) for _ in range(2))
    assert ended(one, "done") == 0
    turn(one, "counted").raise_for_status()
    # It was taken and written.
    assert ended(one, "done") == 2
    assert one.metric("regla_store_operation_seconds_total", kind="session") > 0
    wait_until(lambda: states(one, "written") == 1, "its state is written")
    assert ended(one, "done", kind="checkpoint") >= 1
    turn(other, "counted").raise_for_status()
    assert states(other, "read") == 1 and states(other, "gone") == 0
    # Whoever finds it taken is told, and the other is counted for it.
    row, = redis.keys("*:counted}")
    redis.ask("HSET", row, "holder", "another", "until", "9" * 13)
    check_error(turn(one, "counted"), 409, "session_busy")
    assert ended(one, "busy") == 1
    redis.ask("HDEL", row, "holder", "until")
    # What the store has dropped is gone when it is wanted.
    turn(other, "counted").raise_for_status()
    wait_until(lambda: states(other, "written") >= 2, "its state is written")
    redis.ask("DEL", *redis.keys("*:state*"))
    turn(one, "counted").raise_for_status()
    assert states(one, "gone") == 1
    wait_until(lambda: all(one.metric("regla_store_operations_waiting", kind=kind) == 0
                           for kind in ("session", "checkpoint", "reply")), "nothing waits")


def test_leases_and_older_copies_are_counted(redis, server_factory):
    server = server_factory(store=redis.location, lease=LEASE)
    turn(server, "older").raise_for_status()
    assert server.metric("regla_store_leases") == 0
    rows = {key: redis.ask("DUMP", key) for key in redis.keys("*:older}*")}
    turn(server, "older").raise_for_status()
    for key, value in rows.items():
        redis.ask("RESTORE", key, 0, value, "REPLACE")
    check_error(turn(server, "older"), 409, "session_conflict")
    assert server.metric("regla_store_older_copies_total") == 1
    with server.http.stream("POST", "/v1/completions", json={
            "session_id": "long", "prompt": [5], "max_tokens": 1000000, "ignore_eos": True,
            "stream": True}) as stream:
        chunks = stream.iter_raw()  # which would end the request if it went
        next(chunks)
        wait_until(lambda: server.metric("regla_store_leases") == 1, "it is taken")
        # Another server takes it, since its lease has ended.
        row, = redis.keys("*:long}")
        redis.ask("HSET", row, "holder", "another", "until", "9" * 13)
        wait_until(lambda: server.metric("regla_store_leases_lost_total") == 1, "it is lost")
        wait_until(lambda: server.metric("regla_store_leases") == 0, "it holds none")


def test_a_store_that_is_away_is_told(redis, server_factory):
    server = server_factory(store=redis.location, lease=LEASE)
    turn(server, "kept").raise_for_status()
    assert server.metric("regla_store_away") == 0
    redis.kill()
    check_error(turn(server, "kept"), 503, "store_unavailable")
    assert server.metric("regla_store_away") == 1 and ended(server, "away") >= 1
    server.post("/v1/completions", {"prompt": [5], "max_tokens": 1},
                headers={"Idempotency-Key": "key"}).raise_for_status()
    assert ended(server, "away", kind="reply") >= 1 and ended(server, "failed", kind="reply") == 0
    redis.start()
    # Nobody asks for anything meanwhile.
    wait_until(lambda: server.metric("regla_store_away") == 0, "it is back")
    assert server.metric("regla_store_returns_total") == 1
    turn(server, "kept").raise_for_status()


def test_a_directory_is_counted_too(tmp_path, server_factory):
    server = server_factory(state_dir=tmp_path / "state")
    turn(server, "counted").raise_for_status()
    assert ended(server, "done") == 1 and server.metric("regla_store_away") == 0
    wait_until(lambda: states(server, "written") == 1, "its state is written")
