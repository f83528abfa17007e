# SPDX-License-Identifier: Apache-2.0
"""What a store that servers share is kept to: names, memory, times to live, quotas."""

import contextlib
import re
import resource
import sys
import time

import pytest

import harness
from harness import check_error, wait_until
from redis_store import ENDLESS, LEASE, position, turn, wait_leased

sys.path.insert(0, str(harness.ROOT / "tests" / "scripts"))
import memory_table

DAY = 24 * 3600
TEMPLATE = harness.ROOT / "tests/clients/chat.jinja"


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
def limited_server(*flags):
    """With the least memory that it starts with: how much that is depends on its threads."""
    for mib in range(80, 2000, 20):
        started = memory_table.Server(Limited(mib), harness.BINARY, harness.GOLDEN / "hybrid_regla",
                                      "--log-level", "debug", *flags)
        try:
            if started.ready():
                yield started
                return
        finally:
            started.discard()
    raise AssertionError("it does not start")


@pytest.mark.long
@pytest.mark.builds("dev")  # the sanitizers take many times the memory
def test_copies_of_sessions_make_room(redis):
    """The store holds more sessions than the server has memory for their tokens."""
    tokens = 2000
    with limited_server("--store", redis.location) as server:
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


@pytest.mark.long
@pytest.mark.builds("dev")
def test_copies_of_responses_make_room(redis):
    """Of what their turns take, more than of tokens."""
    with limited_server("--store", redis.location, "--chat-template", TEMPLATE) as server:
        budget = re.search(r"([\d.]+) MiB for tokens of sessions", server.text())[1]
        body = {"input": "a", "max_output_tokens": 2, "metadata": {"a": "x" * 10_000}}
        number = int(2 * (float(budget) + 0.05) * (1 << 20) / 10_000)
        assert [server.post("/v1/responses", body) for _ in range(number)] == [200] * number


@pytest.mark.long
@pytest.mark.builds("dev")
def test_responses_make_room_at_a_start(server_factory, tmp_path):
    """Of a directory with more of them than there is memory for the oldest go, and no session does."""
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder, chat_template=TEMPLATE)
    server.complete(prompt="x", session_id="stays", max_tokens=1)
    body = {"input": "a", "max_output_tokens": 2, "metadata": {"a": "x" * 10_000}}
    names = [server.post("/v1/responses", body).json()["id"] for _ in range(100)]
    server.stop()
    with limited_server("--state-dir", folder, "--chat-template", TEMPLATE) as limited:
        budget = float(re.search(r"([\d.]+) MiB for tokens of sessions", limited.text())[1])
        assert budget < 1
        assert limited.post("/v1/responses", body) == 200
    server = server_factory(state_dir=folder, chat_template=TEMPLATE)
    left = [server.get(f"/v1/responses/{name}").status_code for name in names]
    assert set(left) == {200, 404} and left == sorted(left, reverse=True)
    assert position(server, "stays") == 2


# ---- times to live ----

TTL = 30 * harness.SLOWNESS


@pytest.fixture(scope="module")
def mortal(redis, tmp_path_factory):
    """Two servers whose sessions live for a short time."""
    servers = [harness.Server(tmp_path_factory.mktemp("mortal") / "log", harness.GOLDEN / "hybrid_regla",
                              store=redis.location, lease=LEASE, session_ttl=TTL) for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


def age(redis, name, seconds):
    """As if the session's last use had been so long ago."""
    key, = redis.keys(f"*:{name}}}")
    before = (int(redis.ask("TIME")[0]) - seconds) * 1000
    redis.ask("HSET", key, "used", before)
    names, = redis.keys("*:sessions")
    redis.ask("ZADD", names, before // 1000, name)


def is_there(server, name):
    return server.get(f"/v1/sessions/{name}").status_code == 200


def test_what_is_not_used_is_swept(mortal, redis):
    """Nobody asks for it: it goes, with its parts and its name."""
    turn(mortal[0], "mortal")
    began = time.monotonic()
    turn(mortal[0], "stays")
    age(redis, "mortal", 24 * 3600)
    wait_until(lambda: not redis.keys("*:mortal}*"), "it is swept")
    names, = redis.keys("*:sessions")
    wait_until(lambda: b"mortal" not in redis.ask("ZRANGE", names, 0, -1), "its name is, too")
    assert turn(mortal[1], "mortal", expected_position=0).status_code == 200
    # where the machine stood still it may have lived its time, too
    assert is_there(mortal[1], "stays") or time.monotonic() - began > TTL


def test_its_end_is_that_of_the_store_and_for_all(mortal, redis):
    """Whoever asks finds none, whether it was swept or not; its copies end, too."""
    for server in mortal:
        turn(server, "ends")
    # a name that no sweep finds: only who asks can tell
    age(redis, "ends", 24 * 3600)
    redis.ask("ZADD", redis.keys("*:sessions")[0], int(redis.ask("TIME")[0]) + 3600, "ends")
    for server in mortal:
        check_error(server.get("/v1/sessions/ends"), 404, "session_not_found")
        assert "ends" not in [card["id"] for card in server.get("/v1/sessions").json()["data"]]
    assert turn(mortal[1], "ends", expected_position=0).json()["session"]["position"] == 7
    assert position(mortal[0], "ends") == 7


@pytest.mark.parametrize("use, extends", [
    (lambda server: turn(server, "used", store=False).raise_for_status(), True),
    (lambda server: server.get("/v1/sessions/used/state").raise_for_status(), True),
    (lambda server: server.post("/v1/sessions/used/fork", {"id": "used-2"}).raise_for_status(), True),
    (lambda server: turn(server, "used", expected_position=99), True),
    (lambda server: server.get("/v1/sessions/used").raise_for_status(), False),
    (lambda server: server.get("/v1/sessions/used/tokens").raise_for_status(), False),
    (lambda server: server.get("/v1/sessions").raise_for_status(), False),
], ids=["store-false", "export", "fork", "failed", "get", "tokens", "list"])
def test_what_is_a_use(replicas, redis, use, extends):
    """By servers whose sessions live for good: nothing is swept meanwhile."""
    turn(replicas[0], "used")
    age(redis, "used", 1000)
    before = replicas[0].get("/v1/sessions/used").json()["used"]
    use(replicas[1])
    after = replicas[0].get("/v1/sessions/used").json()["used"]
    assert (after > before + 900) == extends and after >= before
    for name in ("used", "used-2"):
        replicas[0].http.delete(f"/v1/sessions/{name}")


@pytest.mark.builds("dev")
def test_a_session_at_work_does_not_end(mortal, redis):
    with mortal[0].http.stream("POST", "/v1/completions", json={
            "session_id": "works", "prompt": [5], "stream": True, "max_tokens": 1000000,
            "ignore_eos": True, "temperature": 0}):
        wait_leased(redis, "works")
        age(redis, "works", 24 * 3600)
        turn(mortal[1], "beside")
        age(redis, "beside", 24 * 3600)
        wait_until(lambda: not redis.keys("*:beside}*"), "a sweep has been")
        check_error(turn(mortal[1], "works"), 409, "session_busy")
    wait_until(lambda: is_there(mortal[1], "works"), "its turn is committed")
    assert position(mortal[1], "works") > 1


# ---- quotas ----

@pytest.fixture
def page(server):
    """Bytes of a session of up to 64 tokens."""
    turn(server, "page")
    return server.get("/v1/sessions/page").json()["bytes"]


@pytest.fixture
def bounded(own_redis, server_factory, page):
    """Two servers whose sessions may take the place of two short ones and a half."""
    return [server_factory(store=own_redis.location, lease=LEASE, session_quota=5 * page // 2)
            for _ in range(2)]


def test_a_quota_is_that_of_all_servers(bounded):
    one, other = bounded
    assert turn(one, "first").status_code == turn(other, "second").status_code == 200
    for server in bounded:
        error = check_error(turn(server, "third"), 429, "session_quota")
        assert "--session-quota allows" in error["message"]
        check_error(server.post("/v1/sessions/first/fork", {"id": "fork"}), 429, "session_quota")
    blob = one.get("/v1/sessions/first/state").content
    check_error(other.http.put("/v1/sessions/imported/state", content=blob, headers={
        "Content-Type": "application/octet-stream"}), 429, "session_quota")
    assert {card["id"] for card in other.get("/v1/sessions").json()["data"]} == {"first", "second"}
    assert turn(other, "first", expected_position=7).status_code == 200  # it counts already
    assert one.http.delete("/v1/sessions/second").status_code == 204
    assert other.post("/v1/sessions/first/fork", {"id": "fork"}).status_code == 201
    check_error(turn(one, "third"), 429, "session_quota")
    assert other.http.delete("/v1/sessions/fork").status_code == 204
    assert turn(one, "third").status_code == 200


def test_what_a_request_may_need_counts(bounded, own_redis):
    """While it is at work, and no longer."""
    one, other = bounded
    check_error(turn(one, "wants", max_tokens=400), 429, "session_quota")
    with one.http.stream("POST", "/v1/completions", json={
            **ENDLESS, "session_id": "works", "prompt": [5], "stream": True, "max_tokens": 120}):
        pass
    with one.http.stream("POST", "/v1/completions", json={
            "session_id": "failed", "prompt": [5], "max_tokens": 10, "expected_position": 3}):
        pass
    wait_until(lambda: int(own_redis.ask("HGET", own_redis.keys("*:quota")[0], "")) == sum(
        card["bytes"] for card in other.get("/v1/sessions").json()["data"]), "nothing is promised any more")


@pytest.mark.builds("dev")
def test_a_dead_server_keeps_no_quota(own_redis, server_factory, page):
    quota = 100 * page
    flags = {"store": own_redis.location, "lease": LEASE, "session_quota": quota}
    victim, other = (server_factory(**flags) for _ in range(2))
    assert turn(other, "small").status_code == 200
    with contextlib.suppress(Exception), victim.http.stream("POST", "/v1/completions", json={
            **ENDLESS, "session_id": "large", "prompt": [5], "stream": True,
            "max_tokens": 98 * 64 - 10}) as stream:
        wait_leased(own_redis, "large")
        next(stream.iter_bytes())
        check_error(turn(other, "beside", max_tokens=100), 429, "session_quota")
        victim.ends_clean = False
        victim.process.kill()
        for _ in stream.iter_bytes():
            pass
    wait_until(lambda: turn(other, "beside", max_tokens=100).status_code == 200,
               "what the dead server was promised is free")


def test_sessions_of_before_count(own_redis, server_factory, page):
    """Made by servers that had no quota."""
    before = server_factory(store=own_redis.location, lease=LEASE)
    for name in ("first", "second"):
        assert turn(before, name).status_code == 200
    after = server_factory(store=own_redis.location, lease=LEASE, session_quota=5 * page // 2)
    check_error(turn(after, "third"), 429, "session_quota")
    assert after.http.delete("/v1/sessions/first").status_code == 204
    assert turn(after, "third").status_code == 200


def test_counting_anew_writes_what_has_changed(own_redis, server_factory, page):
    """Of 20 sessions one has another size than it counts."""
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=41 * page // 2)
    for i in range(20):
        assert turn(server, f"same-{i}").status_code == 200
    quota, = own_redis.keys("*:quota")
    own_redis.ask("HSET", quota, "same-7", page + 1, "", 20 * page + 1)
    own_redis.ask("CONFIG", "RESETSTAT")
    check_error(turn(server, "new"), 429, "session_quota")
    assert own_redis.ask("HMGET", quota, "same-7", "") == [str(page).encode(), str(20 * page).encode()]
    calls = int(re.search(rb"cmdstat_hset:calls=(\d+)", own_redis.ask("INFO", "commandstats"))[1])
    assert calls <= 4  # these two, and the lease


def test_what_was_swept_does_not_count(own_redis, server_factory, page):
    server = server_factory(store=own_redis.location, lease=LEASE, session_ttl=TTL,
                            session_quota=3 * page // 2)
    turn(server, "old")
    check_error(turn(server, "new"), 429, "session_quota")
    age(own_redis, "old", 24 * 3600)
    wait_until(lambda: turn(server, "new").status_code == 200, "it is swept, or counted anew")


def test_what_may_have_been_made_counts(own_redis, server_factory, page):
    """Turns whose replicas lack are in the store, though their clients are told that they may not."""
    server = server_factory(store=own_redis.location, lease=LEASE, session_quota=5 * page // 2,
                            store_replicas=1)
    for name in ("first", "second"):
        check_error(turn(server, name), 503, "store_unavailable")
    check_error(turn(server, "third"), 429, "session_quota")
    assert {card["id"] for card in server.get("/v1/sessions").json()["data"]} == {"first", "second"}
