# SPDX-License-Identifier: Apache-2.0
"""Sessions in a cluster of Redis, and in a Redis with replicas of its own (--store-replicas)."""

import ast
import contextlib
import re
import socket
import time

import pytest

import harness
from harness import check_error, wait_until
from redis_store import (LEASE, LONG, Cluster, FakeRedis, Redis, in_background, position, start_refused,
                         turn, wait_leased)
from session_helpers import Session, cached

pytestmark = [pytest.mark.builds("dev", "asan"), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


@pytest.fixture
def clustered(cluster, server_factory):
    return [server_factory(store=cluster.location, lease=LEASE) for _ in range(2)]


def key_of(cluster, name):
    key, = cluster.keys(f"*:{name}}}")
    return key


def test_sessions_are_everywhere(clustered, cluster):
    sessions = [Session(clustered[0], f"spread-{i}") for i in range(12)]
    for round in range(3):
        for i, session in enumerate(sessions):
            session.server = clustered[(i + round) % 2]
            session.append([10 + round, 11, 12], max_tokens=4)
    holders = {cluster.holder(cluster.slot(key)) for key in cluster.keys("*:spread-*}")}
    assert holders == {0, 1, 2}
    for server in clustered:
        listed = {card["id"]: card["position"] for card in server.get("/v1/sessions").json()["data"]}
        assert all(listed[session.name] == len(session.ids) for session in sessions)
    assert clustered[1].post("/v1/sessions/spread-0/fork", {"id": "spread-x"}).status_code == 201
    for session in sessions:
        assert clustered[0].http.delete(f"/v1/sessions/{session.name}").status_code == 204
    assert all(b":spread-x}" in key for key in cluster.keys("*:spread-*}*"))


def test_many_at_once(clustered):
    """What goes to several nodes at the same time comes back to whom it belongs."""
    def client(number):
        for at in range(0, 28, 7):
            reply = turn(clustered[number % 2], f"many-{number}", expected_position=at)
            assert reply.status_code == 200 and reply.json()["session"]["position"] == at + 7
        return True
    assert all([result() for result in [in_background(lambda number=number: client(number))
                                        for number in range(12)]])


def test_a_state_moves_in_a_cluster(clustered, cluster):
    held = turn(clustered[0], "moves", max_tokens=20).json()["session"]["position"]
    wait_until(lambda: cluster.keys("*:state"), "the state is in the store")
    assert cached(turn(clustered[1], "moves").json()) == held - 1


def test_a_list_is_asked_for_where_it_goes(clustered, cluster):
    """ASK while its slot moves, MOVED afterwards."""
    turn(clustered[0], "listed")
    names, = cluster.keys("*:sessions")
    end = cluster.begin_to_move(cluster.slot(names))
    for server in clustered:
        assert "listed" in [card["id"] for card in server.get("/v1/sessions").json()["data"]]
    end()
    for server in clustered:
        assert "listed" in [card["id"] for card in server.get("/v1/sessions").json()["data"]]
    assert turn(clustered[1], "listed-2").status_code == 200
    assert "listed-2" in [card["id"] for card in clustered[0].get("/v1/sessions").json()["data"]]


def test_a_turn_outlives_the_move_of_its_slot(clustered, cluster):
    """The lease was taken from one node, and the commit finds the other."""
    result = in_background(lambda: turn(clustered[0], "travels", **LONG))
    wait_leased(cluster, "travels")
    cluster.begin_to_move(cluster.slot(key_of(cluster, "travels")))()
    wait_leased(cluster, "travels")  # as it still is: the turn goes on
    reply = result()
    assert reply.status_code == 200, reply.text
    held = reply.json()["session"]["position"]
    assert position(clustered[0], "travels") == position(clustered[1], "travels") == held


def test_a_session_whose_slot_is_on_the_move(clustered, cluster):
    """Half of its keys would be here and half there: it waits, and nothing is lost."""
    turn(clustered[0], "between")
    end = cluster.begin_to_move(cluster.slot(key_of(cluster, "between")))
    check_error(turn(clustered[0], "between"), 503, "store_unavailable")
    end()
    wait_until(lambda: turn(clustered[1], "between", expected_position=7).status_code == 200,
               "it is in one place")
    assert position(clustered[0], "between") == 14


def test_a_node_that_is_away(clustered, cluster):
    """Sessions of other nodes go on."""
    for i in range(12):
        turn(clustered[0], f"node-{i}")
    where = {i: cluster.holder(cluster.slot(key_of(cluster, f"node-{i}"))) for i in range(12)}
    away = where[0]
    cluster.nodes[away].kill()
    for i in range(12):
        reply = turn(clustered[i % 2], f"node-{i}", expected_position=7)
        if where[i] == away:
            check_error(reply, 503, "store_unavailable")
        else:
            assert reply.status_code == 200, reply.text
    cluster.nodes[away].start()
    wait_until(cluster.is_whole, "the node is back")
    for i in range(12):
        at = 7 if where[i] == away else 14
        wait_until(lambda: turn(clustered[i % 2], f"node-{i}", expected_position=at).status_code
                   == 200, "its sessions are back")


def seconds_of(function):
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


# A command waits for so long, with leases of twice as long and more.
SILENCE = 5


def test_a_node_that_hangs(cluster, server_factory):
    """It is waited for once. Then its sessions are refused at once, and those of others go on."""
    server = server_factory(store=cluster.location, lease=2 * SILENCE)
    for i in range(12):  # each with a state of its own: some are where no session of ours goes on
        turn(server, f"hang-{i}", prompt=[5, 6, 7 + i]).raise_for_status()
    others = [i for i in range(12) if cluster.holder(cluster.slot(key_of(cluster, f"hang-{i}"))) != 0]
    stuck = next(i for i in range(12) if i not in others)
    cluster.nodes[0].pause()
    check_error(turn(server, f"hang-{stuck}"), 503, "store_unavailable")
    assert server.metric("regla_store_away") == 1

    def go_on():
        for i in others:
            assert turn(server, f"hang-{i}", expected_position=7).status_code == 200
            check_error(turn(server, f"hang-{stuck}"), 503, "store_unavailable")
            check_error(server.get(f"/v1/sessions/hang-{stuck}"), 503, "store_unavailable")
    assert len(others) > 1 and seconds_of(go_on) < SILENCE / 2
    wait_until(lambda: server.metric("regla_store_operations_total", kind="checkpoint", result="away") > 0,
               "states that are there are neither written nor removed")
    assert server.metric("regla_store_operations_total", kind="checkpoint", result="failed") == 0
    assert server.metric("regla_store_states_total", event="gone") == 0
    cluster.nodes[0].resume()
    wait_until(lambda: turn(server, f"hang-{stuck}", expected_position=7).status_code == 200, "it is back")
    wait_until(lambda: server.metric("regla_store_away") == 0, "all of it is back")


def test_a_commit_to_a_node_that_hangs(cluster, server_factory):
    """It is sent again for as long as its lease lasts; others do not wait for it."""
    server = server_factory(store=cluster.location, lease=2 * SILENCE)
    for i in range(12):
        turn(server, f"commit-{i}").raise_for_status()
    where = {i: cluster.holder(cluster.slot(key_of(cluster, f"commit-{i}"))) for i in range(12)}
    stuck, other = (next(i for i in where if (where[i] == 0) == hangs) for hangs in (True, False))
    result = in_background(lambda: turn(server, f"commit-{stuck}", **LONG))
    wait_until(lambda: cluster.nodes[0].ask("HGET", key_of(cluster, f"commit-{stuck}"), "holder"),
               "the lease is taken")
    cluster.nodes[0].pause()
    begun, waits = time.monotonic(), []
    while time.monotonic() - begun < 2.5 * SILENCE:
        waits.append(seconds_of(lambda: turn(server, f"commit-{other}").raise_for_status()))
    cluster.nodes[0].resume()
    assert sum(wait > SILENCE / 2 for wait in waits) <= 1, waits
    assert result().status_code in (200, 503)
    wait_until(lambda: server.get(f"/v1/sessions/commit-{stuck}").status_code == 200, "it is back")


@pytest.mark.builds("dev")
def test_a_cluster_that_leaves_ports_out(tmp_path, own_redis, server_factory):
    """As Redis 8 does in CLUSTER SLOTS, asked by another kind of connection. The node is no cluster,
    so it takes all that is sent there."""
    port = harness.unused_port()
    own_redis.ask("CONFIG", "SET", "port", port)
    (tmp_path / "asked").mkdir()
    fake = FakeRedis(tmp_path / "asked")
    normal = fake.answer
    node = (b"*8\r\n$4\r\nport\r\n:%d\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
            b"$6\r\nhealth\r\n$6\r\nonline\r\n" % port)
    told = {b"SLOTS": b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:0\r\n",
            b"SHARDS": b"*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n" + node}
    fake.answer = lambda words: told[words[1]] if words[0] == b"CLUSTER" else normal(words)
    try:
        server = server_factory(store=fake.location, lease=LEASE)
        assert turn(server, "found").status_code == 200
        assert own_redis.keys("*:found}")
        told[b"SHARDS"] = told[b"SHARDS"].replace(b"$4\r\nport", b"$8\r\ntls-port")
        assert "expected rediss://" in start_refused(store=fake.location)
    finally:
        fake.stop()


# ---- replicas of the store ----

@pytest.fixture
def replicated(tmp_path):
    """A Redis, and one that follows it."""
    (tmp_path / "follower").mkdir()
    (tmp_path / "leader").mkdir()
    port = harness.unused_port()
    leader = Redis(tmp_path / "leader", port=port, repl_diskless_sync_delay=0)
    follower = Redis(tmp_path / "follower", replicaof=f"127.0.0.1 {port}")
    wait_until(lambda: b"state=online" in leader.ask("INFO", "replication"), "it follows")
    wait_until(lambda: leader.ask("WAIT", 1, 100) == 1, "it has all")
    yield leader, follower
    follower.stop()
    leader.stop()


def test_what_is_acknowledged_is_with_the_replicas(replicated, server_factory):
    leader, follower = replicated
    # A quarter of a lease is what a commit waits for replicas, whose disks take their time.
    server = server_factory(store=leader.location, lease=4 * LEASE, store_replicas=1)
    assert turn(server, "kept").status_code == 200
    assert [key for key in follower.keys("*:kept}") if follower.ask("HGET", key, "count") == b"7"]
    follower.pause()
    error = check_error(turn(server, "kept"), 503, "store_unavailable")
    assert "0 of 1 replicas" in error["message"] and "may or may not" in error["message"]
    check_error(server.http.delete("/v1/sessions/kept"), 503, "store_unavailable")
    follower.resume()
    wait_until(lambda: turn(server, "kept-2").status_code == 200, "the replica is back")


@pytest.mark.builds("dev")
def test_a_turn_is_claimed_where_replicas_have_it(replicated, server_factory):
    """Its request comes again, with its Idempotency-Key, and the replica lacks it: nobody is told that
    it was made."""
    leader, follower = replicated
    servers = [server_factory(store=leader.location, lease=4 * LEASE, store_replicas=1) for _ in range(2)]

    def ask(server):
        return server.post("/v1/completions", {"session_id": "claimed", "prompt": [5], "max_tokens": 2},
                           headers={"Idempotency-Key": "doubtful"})
    follower.pause()
    for server in servers:
        check_error(ask(server), 503, "store_unavailable")
    follower.resume()
    wait_until(lambda: "idempotency_reply_lost" in ask(servers[1]).text, "the replica is back")


def written(info):
    """Bytes for replicas."""
    return int(re.search(rb"master_repl_offset:(\d+)", info)[1])


@contextlib.contextmanager
def evaluated(redis):
    """A list, which gets the words of each script that is run meanwhile, by its text."""
    found = []
    redis.ask("SCRIPT", "FLUSH")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10 * harness.SLOWNESS)
        connection.connect(str(redis.socket))
        connection.sendall(b"MONITOR\r\n")
        lines = connection.makefile("rb")
        assert lines.readline() == b"+OK\r\n"
        yield found
        redis.ask("ECHO", "the end")
        for line in lines:
            words = [ast.literal_eval(f"b{word}") for word in re.findall(r'"(?:[^"\\]|\\.)*"', line.decode())]
            if words[-1] == b"the end":
                return
            if words[0].upper() == b"EVAL" and b" lua]" not in line:
                found.append(words)


def test_what_is_sent_again_is_waited_for(replicated, server_factory):
    """A commit or a deletion whose reply was lost is sent again, and changes nothing. WAIT of Valkey
    and of Redis 7.2 looks to what was written over its own connection: so it must write."""
    leader, _ = replicated
    server = server_factory(store=leader.location, lease=4 * LEASE, store_replicas=1)
    for change, mark in ((lambda: turn(server, "again"), b"SETRANGE"),
                         (lambda: server.http.delete("/v1/sessions/again"), b"'gone', '1'")):
        with evaluated(leader) as scripts:
            assert change().is_success
        script, = [words for words in scripts if mark in words[1]]
        before = leader.ask("INFO", "replication")
        assert leader.ask(*script) == [b"done"]
        assert written(leader.ask("INFO", "replication")) > written(before)


def test_without_replicas_nothing_is_acknowledged(own_redis, server_factory):
    server = server_factory(store=own_redis.location, lease=LEASE, store_replicas=1)
    check_error(turn(server, "alone"), 503, "store_unavailable")
    assert position(server, "alone") == 7  # it was made, as the error said it might


def test_changes_wait_for_replicas_together(own_redis, server_factory):
    """A replica that is away holds up eight turns no longer than a few: one after the other they
    would wait twice as long as is allowed here."""
    wait = 2.5  # the most that there is
    server = server_factory(store=own_redis.location, lease=10, store_replicas=1)
    begun = time.monotonic()
    turns = [in_background(lambda name=f"together-{i}": turn(server, name)) for i in range(8)]
    for reply in [ended() for ended in turns]:
        assert "0 of 1 replicas" in check_error(reply, 503, "store_unavailable")["message"]
    assert time.monotonic() - begun < 5 * wait


def test_what_was_refused_is_not_in_doubt_without_replicas(own_redis, server_factory):
    """Another has taken the session: that is certain, whatever replicas have."""
    server = server_factory(store=own_redis.location, lease=LEASE, store_replicas=1)
    result = in_background(lambda: turn(server, "taken", **LONG))
    wait_until(lambda: own_redis.keys("*:taken}"), "the lease is taken")
    key, = own_redis.keys("*:taken}")
    own_redis.ask("HSET", key, "fence", 1)
    check_error(result(), 409, "session_conflict")
