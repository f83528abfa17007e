# SPDX-License-Identifier: Apache-2.0
"""Keys in a store that none of ours has: whoever meets one says so, and goes on with the rest."""

import json

import pytest

import harness
from harness import check_error, wait_until
from redis_store import LEASE, turn
from test_sessions_command import listed, moved, regla

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
    return [line for line in server.whole_log().splitlines()
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
    server.wait_logged("damage in the store is stepped over", "broken")
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
    server.wait_logged("damage in the store is stepped over", "the list of owner " + 32 * "a")


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


def test_what_a_new_session_finds_goes(own_redis, server):
    turn(server, "first")
    own_redis.ask("RPUSH", row_of(own_redis, "first").replace(b":first}", b":new}") + b":t", "none of ours")
    assert turn(server, "new").json()["session"]["position"] == 7


# ---- `regla sessions` ----

@pytest.fixture
def three(own_redis, server):
    """Sessions, of which the second is replaced by a key of another type. Its row."""
    for name in ("first", "second", "third"):
        turn(server, name)
    server.stop()
    return replace(own_redis, "second")


def test_a_store_is_listed_with_it(three, own_redis):
    found = listed(own_redis.location)
    assert set(found) == {"first", "second", "third"}
    assert "WRONGTYPE" in found["second"]["damage"]
    assert not found["first"]["damage"] and not found["third"]["damage"]
    assert "1 damaged" in regla("list", own_redis.location)
    assert "WRONGTYPE" in regla("show", own_redis.location, "second")
    assert "tokens       7" in regla("show", own_redis.location, "third")
    assert "WRONGTYPE" in regla("delete", own_redis.location, "second", ok=False)


@pytest.mark.parametrize("verb", ["copy", "move", "backup"])
def test_the_others_are_copied(three, own_redis, tmp_path, verb):
    where = tmp_path / "copies"
    words = [verb, own_redis.location, *([] if verb == "backup" else ["--to"]), where]
    assert "1 are damaged" in regla(*words, ok=False)
    assert set(listed(where)) == {"first", "third"}


def test_others_are_copied_to_where_it_is(three, own_redis, tmp_path, server_factory):
    where = tmp_path / "from"
    server = server_factory(state_dir=where)
    for name in ("a", "second", "z"):
        turn(server, name)
    server.stop()
    assert "1 are damaged" in moved("copy", where, "--to", own_redis.location, "--replace", ok=False)
    assert set(listed(own_redis.location)) == {"first", "second", "third", "a", "z"}
    assert own_redis.ask("GET", three) == b"none of ours"


def test_it_is_set_aside(three, own_redis, server_factory):
    """The list and the set of owners, too; their names come again."""
    names, owners = names_of(own_redis), own_redis.keys("*:owners")[0]
    quota = names.replace(b":sessions", b":quota")
    for key in (names, owners, quota):
        own_redis.ask("SET", key, "none of ours")
    done = json.loads(regla("repair", own_redis.location, "--json"))
    assert done == {"whole": 2, "set_aside": 3, "leftovers": 0, "names": 2, "busy": 0}
    for key in (three, names, owners):
        assert own_redis.ask("GET", key.replace(b"regla:", b"regla:rejected:", 1)) == b"none of ours"
    assert sorted(own_redis.ask("ZRANGE", names, 0, -1)) == [b"first", b"third"]
    assert own_redis.ask("SMEMBERS", owners) == [names[7:].split(b"}")[0].split(b":")[1]]
    assert json.loads(regla("repair", own_redis.location, "--json")) == {
        "whole": 2, "set_aside": 0, "leftovers": 0, "names": 0, "busy": 0}
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=1 << 20)
    assert turn(server, "second", expected_position=0).status_code == 200
    assert turn(server, "third", expected_position=7).status_code == 200


def test_a_repair_is_no_use(own_redis, server):
    turn(server, "first")
    row = row_of(own_redis, "first")
    own_redis.ask("HSET", row, "used", 1234567)
    version = own_redis.ask("HGET", row, "version")
    assert json.loads(regla("repair", own_redis.location, "--json"))["whole"] == 1
    assert own_redis.ask("HGET", row, "used") == b"1234567"
    assert int(own_redis.ask("HGET", row, "version")) > int(version)


def test_a_repair_leaves_what_a_server_works_on(own_redis, server):
    """It is told, and so is what has changed meanwhile."""
    for name in ("first", "second"):
        turn(server, name)
    row = row_of(own_redis, "second")
    version = own_redis.ask("HGET", row, "version")
    own_redis.ask("HSET", row, "holder", "another", "until", 9 * 10**12)
    assert json.loads(regla("repair", own_redis.location, "--json")) == {
        "whole": 1, "set_aside": 0, "leftovers": 0, "names": 0, "busy": 1}
    assert own_redis.ask("HMGET", row, "holder", "version") == [b"another", version]


def test_a_repair_keeps_names_that_may_be_live(own_redis, server):
    """Put there in this second, or later: the session may have been made since it was looked for."""
    turn(server, "first")
    names = names_of(own_redis)
    now = int(own_redis.ask("TIME")[0])
    own_redis.ask("ZADD", names, now + 1000, "made-anew", now - 1000, "gone")
    assert json.loads(regla("repair", own_redis.location, "--json"))["names"] == 1
    assert sorted(own_redis.ask("ZRANGE", names, 0, -1)) == [b"first", b"made-anew"]


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_copies_count_in_the_quota(own_redis, tmp_path, server_factory, verb):
    """And what went counts no more."""
    where = tmp_path / "there"
    from_there = server_factory(state_dir=where)
    for name in ("first", "second"):
        turn(from_there, name)
    page = from_there.get("/v1/sessions/first").json()["bytes"]
    from_there.stop()
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=7 * page // 2)
    turn(server, "own").raise_for_status()
    assert moved(verb, where, "--to", own_redis.location)["written"] == 2
    check_error(turn(server, "new"), 429, "session_quota")
    assert moved("move", own_redis.location, "--to", tmp_path / "back")["written"] == 3
    for name in ("new", "new-2", "new-3"):
        assert turn(server, name).status_code == 200
