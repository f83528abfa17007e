# SPDX-License-Identifier: Apache-2.0
"""Sessions in a store that servers share: --store (server/store/protocol.md)."""

import contextlib
import threading
import time

import pytest

import harness
from harness import check_error, wait_until
from redis_store import (ENDLESS, LEASE, LONG, FakeRedis, answers_of_a_busy_session, bulk, in_background,
                         position, start_refused, turn, wait_leased)
from session_helpers import GREEDY, Session, cached


# ---- one session, several servers ----

def test_a_session_goes_on_anywhere(replicas):
    """Each turn has the tokens and log-probabilities of a run from the beginning."""
    session = Session(replicas[0], "wanders", [])
    for i in range(6):
        session.server = replicas[i % 2]
        session.append([10 + i, 11, 12], max_tokens=6)
    assert position(replicas[0], "wanders") == position(replicas[1], "wanders") == len(session.ids)


@pytest.fixture
def two(own_redis, server_factory):
    """Servers with a store in which are no other states than the test's."""
    return [server_factory(store=own_redis.location, lease=LEASE) for _ in range(2)]


def test_a_state_moves_with_its_session(two, own_redis):
    first = turn(two[0], "moves", max_tokens=20).json()
    held = first["session"]["position"]
    wait_until(lambda: own_redis.keys("*:state"), "the state is in the store")
    reply = turn(two[1], "moves").json()
    assert cached(reply) == held - 1  # all but the last token, which no step has taken yet


def test_states_may_stay_where_they_are(own_redis, server_factory):
    """Another server computes the session again, with the same bits."""
    servers = [server_factory(store=own_redis.location, lease=LEASE, store_states="off")
               for _ in range(2)]
    session = Session(servers[0], "stays-put", [])
    session.append([3, 4, 5], max_tokens=20)
    reply = turn(servers[0], "stays-put").json()
    assert cached(reply) == len(session.ids) - 1  # its own states it has
    session.ids += [5, 6, 7, *reply["choices"][0]["token_ids"]]
    assert cached(turn(servers[1], "stays-put", store=False).json()) == 0
    session.server = servers[1]
    session.append([6], max_tokens=6)
    assert not own_redis.keys("*:state*")
    assert servers[1].post("/v1/sessions/stays-put/rewind", {"position": 5}).status_code == 200
    assert servers[0].http.delete("/v1/sessions/stays-put").status_code == 204


def test_what_was_dropped_is_computed_again(two, own_redis):
    session = Session(two[0], "dropped", [])
    session.append([3, 4, 5], max_tokens=20)
    wait_until(lambda: own_redis.keys("*:state"), "the state is in the store")
    for key in own_redis.keys("*:state*"):
        own_redis.ask("DEL", key)
    session.server = two[1]
    session.append([6], max_tokens=6)
    assert " warn " not in two[1].whole_log()  # the store may do that
    wait_until(lambda: own_redis.keys("*:state:0"), "the state is in the store")
    for key in own_redis.keys("*:state:0"):  # torn
        own_redis.ask("SETRANGE", key, 300, b"damage")
    session.server = two[0]
    session.append([7], max_tokens=6)
    assert "cannot be read" in two[0].whole_log()


def test_changes_are_seen_everywhere(replicas):
    one, other = replicas
    turn(one, "seen", max_tokens=8)
    assert other.post("/v1/sessions/seen/fork", {"id": "seen-2"}).status_code == 201
    check_error(one.post("/v1/sessions/seen/fork", {"id": "seen-2"}), 409, "session_exists")
    assert one.post("/v1/sessions/seen-2/rewind", {"position": 5}).status_code == 200
    assert position(other, "seen-2") == 5 and position(other, "seen") == 11
    for server in replicas:
        listed = {card["id"]: card["position"] for card in server.get("/v1/sessions").json()["data"]}
        assert listed["seen-2"] == 5 and listed["seen"] == 11
    blob = one.get("/v1/sessions/seen/state").content
    assert other.http.put("/v1/sessions/imported/state", content=blob, headers={
        "Content-Type": "application/octet-stream"}).status_code == 201
    assert position(one, "imported") == 11
    assert other.http.delete("/v1/sessions/seen").status_code == 204
    check_error(one.get("/v1/sessions/seen"), 404, "session_not_found")
    check_error(one.http.delete("/v1/sessions/seen"), 404, "session_not_found")
    check_error(one.post("/v1/sessions/seen/rewind", {"position": 0}), 404, "session_not_found")
    assert "seen" not in {card["id"] for card in one.get("/v1/sessions").json()["data"]}
    assert turn(one, "seen").json()["session"]["position"] == 7


def test_a_rewound_session_goes_on_otherwise(replicas):
    session = Session(replicas[0], "rewound", [])
    session.append([3, 4, 5], max_tokens=12)
    session.server = replicas[1]
    assert replicas[1].post("/v1/sessions/rewound/rewind", {"position": 6}).status_code == 200
    session.ids = session.ids[:6]
    session.append([9, 9], max_tokens=5)
    session.server = replicas[0]
    session.append([8], max_tokens=5)


def test_nothing_is_kept_of_a_failed_turn(replicas, redis):
    check_error(turn(replicas[0], "none", expected_position=3), 412, "position_mismatch")
    check_error(replicas[1].get("/v1/sessions/none"), 404, "session_not_found")
    assert not redis.keys("*:none}*")
    turn(replicas[0], "none")
    check_error(turn(replicas[1], "none", expected_position=3), 412, "position_mismatch")
    assert turn(replicas[0], "none", expected_position=7).status_code == 200


def test_store_false_leaves_the_session(replicas):
    turn(replicas[0], "peeked")
    reply = turn(replicas[1], "peeked", store=False)
    assert reply.status_code == 200 and position(replicas[0], "peeked") == 7


# ---- one writer ----

def test_of_two_that_race_one_wins(replicas):
    at = 0
    for round in range(20):
        start = threading.Barrier(2)

        def race(server):
            start.wait()
            return turn(server, "raced", expected_position=at)
        others = [in_background(lambda server=server: race(server)) for server in replicas]
        replies = [other() for other in others]
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses[0] == 200 and statuses[1] in (409, 412), [reply.text for reply in replies]
        at += 7
        assert position(replicas[round % 2], "raced") == at


def test_a_deletion_beside_a_turn_leaves_no_lease(replicas):
    """On one server, which asks the store for both at once."""
    for round in range(30):
        name = f"beside-{round}"
        assert turn(replicas[0], name).status_code == 200
        start = threading.Barrier(2)

        def both(ask):
            start.wait()
            return ask()
        asked = [in_background(lambda ask=ask: both(ask)) for ask in (
            lambda: turn(replicas[0], name),
            lambda: replicas[0].http.delete(f"/v1/sessions/{name}"))]
        assert {ask().status_code for ask in asked} <= {200, 204, 404, 409}
        wait_until(lambda: turn(replicas[1], name).status_code == 200, "the lease is back")


@pytest.mark.builds("dev")
def test_a_busy_session_says_for_how_long(replicas, redis):
    with contextlib.ExitStack() as stack:
        stack.enter_context(replicas[0].http.stream("POST", "/v1/completions", json={
            "session_id": "busy", "prompt": [5], "stream": True, **ENDLESS}))
        wait_leased(redis, "busy")
        reply = turn(replicas[1], "busy")
        check_error(reply, 409, "session_busy")
        assert 1 <= int(reply.headers["Retry-After"]) <= LEASE
        over = time.monotonic() + 1.5 * LEASE
        wait_until(lambda: time.monotonic() > over, "a lease's time passes: it is renewed meanwhile")
        check_error(turn(replicas[1], "busy"), 409, "session_busy")
        check_error(replicas[1].http.delete("/v1/sessions/busy"), 404, "session_not_found")
    # the client has left: what was generated until then is the turn
    wait_until(lambda: turn(replicas[1], "busy").status_code == 200, "the session is free")


@pytest.mark.builds("dev", "asan")
def test_a_dead_server_leaves_the_session_as_it_was(redis, server_factory):
    victim, other = (server_factory(store=redis.location, lease=LEASE) for _ in range(2))
    turn(other, "survives")
    with contextlib.suppress(Exception), victim.http.stream("POST", "/v1/completions", json={
            "session_id": "survives", "prompt": [5], "stream": True, **ENDLESS}) as stream:
        wait_leased(redis, "survives")
        victim.ends_clean = False
        victim.process.kill()
        died = time.monotonic()
        for _ in stream.iter_bytes():
            pass
    assert position(other, "survives") == 7
    wait_until(lambda: turn(other, "survives").status_code == 200, "the session is free", 2 * LEASE)
    assert time.monotonic() - died < 2 * LEASE
    assert position(other, "survives") == 14


@pytest.mark.long
@pytest.mark.builds("dev")
def test_who_has_lost_the_lease_cannot_commit(replicas, redis):
    slow, quick = replicas
    turn(quick, "split")
    result = in_background(lambda: turn(slow, "split", **LONG))
    wait_leased(redis, "split")
    wait_until(lambda: slow.get("/load").json()["running"], "the turn runs")
    with harness.stopped(slow):
        wait_until(lambda: turn(quick, "split").status_code == 200, "the lease ends", 5 * LEASE)
        held = position(quick, "split")
    check_error(result(), 409, "session_conflict")
    assert position(quick, "split") == position(slow, "split") == held == 14
    assert turn(slow, "split").json()["session"]["position"] == 21


def test_a_key_is_done_once(replicas):
    key = {"Idempotency-Key": "once"}
    body = {"session_id": "keyed", "prompt": [5, 6, 7], "max_tokens": 4, **GREEDY}
    first = replicas[0].post("/v1/completions", body, headers=key)
    assert first.status_code == 200
    again = replicas[0].post("/v1/completions", body, headers=key)
    assert again.headers["Idempotent-Replayed"] == "true" and again.json() == first.json()
    again = replicas[1].post("/v1/completions", body, headers=key)
    assert again.headers["Idempotent-Replayed"] == "true" and again.json() == first.json()
    check_error(replicas[1].post("/v1/completions", {**body, "prompt": [8]}, headers=key), 422,
                "idempotency_mismatch")
    assert position(replicas[1], "keyed") == 7
    assert turn(replicas[1], "keyed").status_code == 200


def test_a_turn_is_made_once_though_its_reply_is_lost(replicas, redis, server_factory):
    """The store may drop replies: the row says whose turns it has."""
    key = {"Idempotency-Key": "dropped"}
    body = {"session_id": "dropped-reply", "prompt": [5, 6, 7], "max_tokens": 4, **GREEDY}
    assert replicas[0].post("/v1/completions", body, headers=key).status_code == 200
    for name in redis.keys("*:idem"):
        redis.ask("DEL", name)
    check_error(replicas[1].post("/v1/completions", body, headers=key), 409,
                "idempotency_reply_lost")
    third = server_factory(store=redis.location, lease=LEASE)
    check_error(third.post("/v1/completions", {**body, "prompt": [8]}, headers=key), 422,
                "idempotency_mismatch")
    assert position(replicas[1], "dropped-reply") == 7
    assert turn(replicas[1], "dropped-reply").status_code == 200  # the lease was given back


# ---- the store fails ----

def test_a_store_that_is_away(own_redis, own_replicas):
    one, other = own_replicas
    turn(one, "stays")
    own_redis.kill()
    reply = turn(one, "stays")
    check_error(reply, 503, "store_unavailable")
    assert int(reply.headers["Retry-After"]) >= 1
    check_error(one.get("/v1/sessions/stays"), 503, "store_unavailable")
    check_error(one.get("/v1/sessions"), 503, "store_unavailable")
    check_error(other.http.delete("/v1/sessions/stays"), 503, "store_unavailable")
    assert one.complete(prompt=[5], max_tokens=4)["choices"]
    assert one.get("/ready").status_code == 200
    own_redis.start()
    wait_until(lambda: turn(one, "stays", expected_position=7).status_code == 200, "it is back", 20)
    wait_until(lambda: other.get("/v1/sessions").status_code == 200, "it is back for the other")
    assert position(other, "stays") == 14
    assert other.whole_log().count("the store is away") == 1


@pytest.mark.builds("dev")
def test_who_waits_for_the_store_does_not_wait_for_room(own_redis, server_factory):
    """As vLLM says why requests wait."""
    server = server_factory(store=own_redis.location, lease=LEASE, metrics_compat="vllm")

    def waiting(reason):
        return server.metric("vllm:num_requests_waiting_by_reason", reason=reason)
    own_redis.pause()
    try:
        reply = in_background(lambda: turn(server, "new"))
        wait_until(lambda: waiting("deferred") == 1, "it asks for the session")
        assert waiting("capacity") == 0
    finally:
        own_redis.resume()
    assert reply().status_code in (200, 503)
    assert waiting("deferred") == 0


@pytest.mark.long
@pytest.mark.builds("dev")
def test_a_turn_outlives_a_restart_of_the_store(own_redis, own_replicas):
    """The turn begins before, and is committed after it: the lease is in the store's file."""
    one, other = own_replicas
    result = in_background(lambda: turn(one, "lasts", **LONG))
    wait_leased(own_redis, "lasts")
    own_redis.kill()
    own_redis.start()
    assert one.get("/load").json()["running"]
    wait_leased(own_redis, "lasts")  # as it still is: the turn goes on
    reply = result()
    assert reply.status_code == 200, reply.text
    assert position(other, "lasts") == reply.json()["session"]["position"] == 3 + LONG["max_tokens"]


@pytest.mark.builds("dev")
def test_every_turn_that_was_acknowledged_is_there(own_redis, own_replicas):
    """The store is killed and comes back, again and again, under clients who go on."""
    stop = threading.Event()
    histories = [[] for _ in range(4)]

    def client(number):
        at = 0
        while not stop.is_set():
            server = own_replicas[(number + at) % 2]
            try:
                reply = turn(server, f"client-{number}", expected_position=at)
            except Exception as error:
                histories[number].append(error)
                continue
            if reply.status_code == 200:
                at += 7
                assert reply.json()["session"]["position"] == at
                histories[number].append(at)
            elif reply.status_code in (412, 409, 503):
                held = server.get(f"/v1/sessions/client-{number}")
                if held.status_code == 200 and reply.status_code in (412, 503):
                    assert held.json()["position"] in (at, at + 7)
                    at = held.json()["position"]
            else:
                raise AssertionError(reply.text)
    results = [in_background(lambda number=number: client(number)) for number in range(4)]
    for _ in range(5):
        made = sum(map(len, histories))
        wait_until(lambda made=made: sum(map(len, histories)) > made + 8, "clients go on")
        own_redis.kill()
        own_redis.start()
    wait_until(lambda: min(map(len, histories)) > 3, "each client goes on")
    stop.set()
    for result in results:
        result()
    wait_until(lambda: own_replicas[0].get("/v1/sessions").status_code == 200, "the store is back")
    for number, history in enumerate(histories):
        assert not [each for each in history if not isinstance(each, int)]
        assert position(own_replicas[0], f"client-{number}") >= history[-1]


def test_a_full_store(own_redis, own_replicas):
    one, other = own_replicas
    turn(one, "full", max_tokens=8)
    own_redis.ask("CONFIG", "SET", "maxmemory", 1)
    error = check_error(turn(one, "full"), 503, "store_failed")
    assert "is full" in error["message"]
    assert position(other, "full") == 11
    assert one.get("/ready").status_code == 200
    assert one.http.delete("/v1/sessions/full").status_code == 204  # which makes room
    own_redis.ask("CONFIG", "SET", "maxmemory", 0)
    assert turn(other, "full").json()["session"]["position"] == 7


def test_a_damaged_session(replicas, redis):
    turn(replicas[0], "damaged")
    tokens, = redis.keys("*:damaged}:t")
    redis.ask("SETRANGE", tokens, 4, b"\x09\x00\x00\x00")
    error = check_error(turn(replicas[1], "damaged"), 503, "store_failed")
    assert "damaged" in error["message"]
    redis.ask("APPEND", tokens, b"more")
    check_error(replicas[1].get("/v1/sessions/damaged"), 503, "store_failed")
    redis.ask("DEL", tokens)
    redis.ask("LPUSH", tokens, b"of another type")
    check_error(turn(replicas[1], "damaged"), 503, "store_failed")
    assert replicas[0].http.delete("/v1/sessions/damaged").status_code == 204


def test_an_older_copy_is_told_of(replicas, redis):
    turn(replicas[0], "older")
    rows = {key: redis.ask("DUMP", key) for key in redis.keys("*:older}*")}
    turn(replicas[0], "older")
    for key, value in rows.items():
        redis.ask("RESTORE", key, 0, value, "REPLACE")
    keyed = {"session_id": "older", "prompt": [5], "max_tokens": 4, **GREEDY}
    headers = {"Idempotency-Key": "of an older copy"}
    error = check_error(replicas[0].post("/v1/completions", keyed, headers=headers), 409,
                        "session_conflict")
    assert "older copy" in error["message"]
    # Nothing was made, so the key is free for the next attempt.
    assert replicas[0].post("/v1/completions", keyed, headers=headers).status_code == 200
    for key, value in rows.items():
        redis.ask("RESTORE", key, 0, value, "REPLACE")
    check_error(turn(replicas[0], "older"), 409, "session_conflict")
    assert turn(replicas[0], "older", expected_position=7).status_code == 200


# ---- the start ----


@pytest.mark.parametrize("location, said", [
    ("unix:/nowhere/at/all", "/nowhere/at/all"),
    ("redis://127.0.0.1:1", "redis://127.0.0.1:1/0: Connection refused"),
    ("redis://:secret@127.0.0.1:1/x", "expected the number of a database"),
    ("redis://127.0.0.1:99999", "expected a port"),
    ("redis://", "expected a host"),
    ("redis://a%zz@host", "user and password"),
    ("rediss://:secret@127.0.0.1:1", "rediss://127.0.0.1:1/0: Connection refused"),
    ("/tmp", "--state-dir"),
])
@pytest.mark.builds("dev", "asan")
def test_a_store_that_cannot_be_opened(location, said):
    told = start_refused(store=location)
    assert said in told and "--store" in told
    assert "secret" not in told


def test_settings_that_would_lose_sessions(own_redis):
    own_redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "may drop sessions" in start_refused(store=own_redis.location)


@pytest.mark.builds("dev", "asan")
@pytest.mark.parametrize("location", ["redis://127.0.0.1:6379", "unix:/tmp/redis"])
def test_a_shared_store_is_no_directory(location):
    assert "--state-dir: expected a directory" in start_refused(state_dir=location)


@pytest.mark.parametrize("flags, named", [
    ({"session_durability": "memory"}, "--session-durability memory"),
    ({"state_dir": "/tmp/none"}, "--state-dir"),
])
@pytest.mark.builds("dev", "asan")
def test_what_a_shared_store_does_not_do(redis, flags, named):
    assert f"{named} is not supported with --store" in start_refused(store=redis.location, **flags)


def test_what_may_be_lost_is_said(own_redis, server_factory):
    own_redis.ask("CONFIG", "SET", "appendfsync", "everysec")
    server = server_factory(store=own_redis.location)
    assert "appendfsync everysec" in server.tail(100000)


# ---- hostile replies ----

@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    running = FakeRedis(tmp_path_factory.mktemp("fake"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def fooled(fake, tmp_path_factory):
    server = harness.Server(tmp_path_factory.mktemp("fooled") / "log",
                            harness.GOLDEN / "hybrid_regla", store=fake.location, lease=1)
    yield server
    server.stop()


ROW = [b"7", b"", b"0", b"row", b"5", b"meta", b"1", b"0", b"0", b"0" * 16, b"\0\0\0\0", b""]


def row(**changes):
    names = ["fence", "key", "used", "kind", "version", "meta", "count", "turns", "state", "sum", "tokens",
             "talk"]
    return bulk(*[changes.get(name, value) for name, value in zip(names, ROW, strict=True)])


@pytest.mark.parametrize("hostile, code", [
    (b":1\r\n", "store_failed"),
    (b"+OK\r\n", "store_failed"),
    (b"$-1\r\n", "store_failed"),
    (b"*-1\r\n", "store_failed"),
    (b"*0\r\n", "store_failed"),
    (b"*3\r\n:1\r\n:2\r\n:3\r\n", "store_failed"),
    (b"*3\r\n*1\r\n*1\r\n*0\r\n$0\r\n\r\n$3\r\nrow\r\n", "store_failed"),
    (b"*1\r\n" * 40 + b":1\r\n", "store_unavailable"),
    (b"*2147483647\r\n", "store_unavailable"),
    (b"*9223372036854775807\r\n", "store_unavailable"),
    (b"*4294967297\r\n", "store_unavailable"),
    (b"$9223372036854775807\r\n", "store_unavailable"),
    (b"$-7\r\n", "store_unavailable"),
    (b"$99999999999999999999999\r\n", "store_unavailable"),
    (b"$1000000\r\nshort", "store_unavailable"),
    (b"?what\r\n", "store_unavailable"),
    (b"\r\n\r\n", "store_unavailable"),
    (b"*3\r\n$1\r\n7\r\n", "store_unavailable"),
    (None, "store_unavailable"),
    (b"-ERR no\r\n", "store_failed"),
    (b"-\r\n", "store_failed"),
    (b"-MOVED 3999 127.0.0.1:6381\r\n", "store_failed"),
    (b"-LOADING it comes\r\n", "store_unavailable"),
    (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", "store_failed"),
    (bulk(b"busy", b"many"), "session_busy"),
    (bulk(b"busy"), "session_busy"),
    (bulk(b"7", b"", b"0", b"odd"), "store_failed"),
    (bulk(b"7", b"", b"none"), "store_failed"),
    (bulk(b"7", b"", b"soon", b"none"), "store_failed"),
    (bulk(b"x", b"", b"0", b"none"), "store_failed"),
    (bulk(b"99999999999999999999", b"", b"0", b"none"), "store_failed"),
    (row(), "store_failed"),
    (row(count=b"99999999999"), "store_failed"),
    (row(count=b"-1"), "store_failed"),
    (row(turns=b"5"), "store_failed"),
    (row(state=b"2"), "store_failed"),
    (row(tokens=b"\xff\xff\xff\x7f"), "store_failed"),
    (row(meta=b"m" * 100000), "store_failed"),
])
@pytest.mark.builds("dev", "asan")
def test_hostile_replies(fake, fooled, hostile, code):
    fake.hostile = hostile
    asked = fake.asked
    reply = turn(fooled, "fooled")
    while fake.asked == asked:  # in a pause, after the reply before
        check_error(reply, 503, "store_unavailable")
        reply = turn(fooled, "fooled")
    check_error(reply, 409 if code == "session_busy" else 503, code)
    if hostile and b"MOVED" in hostile:
        assert "cluster" in reply.json()["error"]["message"]
    assert fooled.complete(prompt=[5], max_tokens=2)["choices"]


@contextlib.contextmanager
def answering(fake, name, *replies):
    """Who takes the session's lease or commits gets these replies. None: the store hangs up.
    All else, as a lease of an earlier test that comes back, is "done"."""
    left, normal = iter(replies), fake.answer

    def answer(words):
        if words[0].upper() != b"EVAL":
            return normal(words)
        asks = b"'fence'" in words[1] and name.encode() in words[3]
        return next(left) if asks else bulk(b"done")
    fake.answer = answer
    try:
        yield
    finally:
        fake.answer = normal


@pytest.mark.builds("dev", "asan")
@pytest.mark.parametrize("reply", [b"lost", b"other", b"short"])
def test_a_commit_that_was_cut_off_may_have_been_made(fake, fooled, reply):
    """The store hangs up on the commit, and then knows another version: perhaps behind this turn."""
    none = bulk(b"7", b"", b"0", b"none")
    name = f"cut-{reply.decode()}"
    with answering(fake, name, none, None, bulk(reply)):
        cut = turn(fooled, name).json()["error"]
    assert "may or may not" in cut["message"]
    name = f"known-{reply.decode()}"
    with answering(fake, name, none, bulk(reply)):
        known = turn(fooled, name).json()["error"]
    assert known["code"] == "session_conflict"


def test_a_commit_that_is_never_confirmed(fake, fooled):
    """The lease is given, and what follows makes no sense: no turn is acknowledged."""
    with answering(fake, "unconfirmed", bulk(b"7", b"", b"0", b"none"), bulk(b"what")):
        assert turn(fooled, "unconfirmed").json()["error"]["code"] == "store_failed"


def test_a_key_is_free_before_its_client_knows(fake, fooled):
    """Who asks again at once does not find its own first request at work."""
    normal, over, told = fake.answer, threading.Event(), []

    def given_back(words):
        time.sleep(0.3)
        told.append(over.is_set())
        return bulk(b"done")

    def ask():
        reply = fooled.post("/v1/completions", {"session_id": "taken", "prompt": [5], "max_tokens": 1},
                            headers={"Idempotency-Key": "of a busy session"})
        over.set()
        return reply
    fake.answer = answers_of_a_busy_session(normal, b"'DEL'", given_back)
    try:
        reply = in_background(ask)()
    finally:
        fake.answer = normal
    check_error(reply, 409, "session_busy")
    assert told == [False]


def test_a_lease_whose_giving_was_not_heard_of_goes_back(fake, fooled):
    """The store hangs up on who takes it, twice."""
    normal, taken, given = fake.answer, [], []

    def answer(words):
        text = words[1] if words[0].upper() == b"EVAL" else b""
        if b"'fence'" in text and b"unheard" in words[3]:
            taken.append(words[8])
            return None
        if text and b"unheard" in words[3]:
            given.append(words[6])
        return bulk(b"done") if text else normal(words)
    fake.answer = answer
    try:
        check_error(turn(fooled, "unheard"), 503, "store_unavailable")
        wait_until(lambda: given, "it is given back")
    finally:
        fake.answer = normal
    assert taken == 2 * given
