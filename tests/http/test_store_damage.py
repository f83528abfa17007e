# SPDX-License-Identifier: Apache-2.0
"""Keys in a store that none of ours has: whoever meets one says so, and goes on with the rest."""

import json

import pytest

import harness
from harness import check_error, wait_until
from redis_store import LEASE, turn
from test_sessions_command import MODEL, listed, moved, regla

pytestmark = pytest.mark.builds("dev", "asan")

TTL = 30 * harness.SLOWNESS
DAY = 24 * 3600


@pytest.fixture
def server(own_redis, server_factory):
    return server_factory(store=own_redis.location, lease=LEASE)


def row_of(redis, name):
    row, = redis.keys(f"*:{name}}}")
    return row


def replace(redis, name):
    """By a key of another type."""
    row = row_of(redis, name)
    redis.ask("SET", row, "none of ours")
    return row


def names_of(redis):
    names, = redis.keys("regla:{*}:sessions")
    return names


def told(server, name):
    return [line for line in server.tail(100_000).splitlines()
            if "damage in the store is stepped over" in line and name in line]


# ---- servers ----

def test_a_list_tells_the_others(own_redis, server):
    for name in ("first", "second", "third"):
        turn(server, name)
    replace(own_redis, "second")
    for _ in range(3):
        assert {card["id"] for card in server.get("/v1/sessions").json()["data"]} == {"first", "third"}
    assert len(told(server, "second")) == 1 and "WRONGTYPE" in told(server, "second")[0]
    error = check_error(turn(server, "second"), 503, "store_failed")
    assert "WRONGTYPE" in error["message"]


@pytest.mark.parametrize("break_it", [
    lambda redis: replace(redis, "broken"),
    lambda redis: redis.ask("HSET", row_of(redis, "broken"), "used", "yesterday"),
], ids=["type", "number"])
def test_a_sweep_goes_on(own_redis, server_factory, break_it):
    server = server_factory(store=own_redis.location, lease=LEASE, session_ttl=TTL)
    turn(server, "broken")
    turn(server, "old")
    break_it(own_redis)
    now = int(own_redis.ask("TIME")[0])
    own_redis.ask("HSET", row_of(own_redis, "old"), "used", 1000 * (now - DAY))
    own_redis.ask("ZADD", names_of(own_redis), now - DAY, "old", now - 2 * DAY, "broken")
    wait_until(lambda: not own_redis.keys("*:old}*"), "it is swept")
    wait_until(lambda: told(server, "broken"), "the other is told")
    wait_until(lambda: int(own_redis.ask("ZSCORE", names_of(own_redis), "broken")) >= now,
               "it waits until it would have lived its time")


def test_a_sweep_goes_on_with_other_owners(own_redis, server_factory):
    """Where the list of one is none."""
    server = server_factory(store=own_redis.location, lease=LEASE, session_ttl=TTL)
    turn(server, "old")
    names, owners = names_of(own_redis), own_redis.keys("*:owners")[0]
    now = int(own_redis.ask("TIME")[0])
    for digit in "0123456789abcdef":  # whatever the order of the set is
        other = digit * 32
        own_redis.ask("SADD", owners, other)
        own_redis.ask("SET", names.split(b":{")[0] + b":{" + owners[7:39] + b":" + other.encode()
                      + b"}:sessions", "none of ours")
    own_redis.ask("HSET", row_of(own_redis, "old"), "used", 1000 * (now - DAY))
    own_redis.ask("ZADD", names, now - DAY, "old")
    wait_until(lambda: not own_redis.keys("*:old}*"), "it is swept")
    assert told(server, "the list of owner " + 32 * "a")


def test_a_quota_is_counted_without_it(own_redis, server_factory):
    server = server_factory(store=own_redis.location, lease=LEASE)
    turn(server, "first")
    page = server.get("/v1/sessions/first").json()["bytes"]
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=5 * page // 2)
    turn(server, "second").raise_for_status()
    replace(own_redis, "second")
    check_error(turn(server, "third"), 429, "session_quota")
    quota, = own_redis.keys("*:quota")
    own_redis.ask("DEL", quota)  # now it is not known what anybody counts
    turn(server, "third").raise_for_status()
    assert told(server, "second")
    assert int(own_redis.ask("HGET", quota, "")) == 2 * page


def test_a_first_count_that_was_broken_off_is_made_whole(own_redis, server_factory):
    """A server that died has counted one of two."""
    server = server_factory(store=own_redis.location, lease=LEASE)
    for name in ("first", "second"):
        turn(server, name)
    page = server.get("/v1/sessions/first").json()["bytes"]
    own_redis.ask("HSET", names_of(own_redis).replace(b":sessions", b":quota"), "first", page)
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=5 * page // 2)
    check_error(turn(server, "third"), 429, "session_quota")


def test_a_list_of_another_type_is_told(own_redis, server):
    turn(server, "first")
    own_redis.ask("SET", names_of(own_redis), "none of ours")
    assert turn(server, "second").status_code == 200
    assert "WRONGTYPE" in told(server, "the list")[0]
    assert "WRONGTYPE" in check_error(server.get("/v1/sessions"), 503, "store_failed")["message"]
