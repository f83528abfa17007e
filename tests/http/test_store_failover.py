# SPDX-License-Identifier: Apache-2.0
"""A master of --store becomes a replica, or dies, and another takes its role: servers find it, by a
proxy and by Sentinels. And a store that is not ready yet, or tells little."""

import re
import time
from types import SimpleNamespace

import pytest

import harness
from harness import check_error, wait_until
from redis_failover import Pair, Proxy, Sentinels
from redis_store import LEASE, FakeRedis, in_background, position, start_refused, turn
from shared_sessions import Clients, texts_of
from stress_helpers import size
from turn_history import MISMATCH, READ, History

pytestmark = [pytest.mark.builds("dev"), pytest.mark.long]

CLIENTS = size("FAILOVER_CLIENTS", 4, 4, 16)
SESSIONS = size("FAILOVER_SESSIONS", 12, 12, 100)
TURNS = size("FAILOVER_TURNS", 25, 25, 400)  # before, between and after
ROUNDS = size("FAILOVER_ROUNDS", 1, 1, 5)
LONGEST = 5  # seconds that turns may fail after the new master is there


@pytest.fixture
def pair(tmp_path):
    running = Pair(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def proxy(pair):
    running = Proxy(pair.master.port)
    yield running
    running.stop()


# ---- one connection ----

def demote(pair, proxy):
    """Connections to the old master stay."""
    pair.other.ask("REPLICAOF", "NO", "ONE")
    pair.exchange()
    proxy.target = pair.master.port
    pair.follow()
    pair.wait_followed()


def test_a_master_that_became_a_replica_is_left(pair, proxy, server_factory):
    """What is written, what is only read, and what is listed: each by a server that finds it so. The
    new master does not have their scripts."""
    servers = [server_factory(store=f"redis://127.0.0.1:{proxy.port}", lease=LEASE) for _ in range(3)]
    for server in servers:
        assert turn(server, "tale").status_code == 200
        assert position(server, "tale") and server.get("/v1/sessions").status_code == 200
    demote(pair, proxy)
    pair.master.ask("SCRIPT", "FLUSH")
    assert turn(servers[0], "tale", expected_position=21).status_code == 200
    assert position(servers[1], "tale") == 28
    assert [card["position"] for card in servers[2].get("/v1/sessions").json()["data"]] == [28]


def test_a_replica_alone_is_said(pair, server_factory):
    """There is no master behind the address: /ready says what there is."""
    server = server_factory(store=f"redis://127.0.0.1:{pair.master.port}", lease=LEASE)
    assert server.get("/ready").json() == {"status": "ready"}
    pair.master.ask("REPLICAOF", "127.0.0.1", pair.other.port)
    error = check_error(turn(server, "tale"), 503, "store_unavailable")
    assert "READONLY" in error["message"]
    ready = server.get("/ready")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ready", "store": "away", "store_is": "a replica"}
    # Most of these come between two attempts to connect.
    for _ in range(40):
        check_error(server.get("/v1/sessions/tale"), 503, "store_unavailable")
        assert server.get("/ready").json() == ready.json()
    pair.master.ask("REPLICAOF", "NO", "ONE")
    wait_until(lambda: server.get("/ready").json() == {"status": "ready"}, "it is back, and nobody asked it")
    assert turn(server, "tale").status_code == 200


def test_scripts_go_by_their_sums(own_redis, server_factory):
    """But for the first time, and where the store has forgotten them."""
    server = server_factory(store=own_redis.location, lease=LEASE, session_ttl=3600, session_quota="1G")

    def calls(name):
        found = re.search(rb"cmdstat_%s:calls=(\d+)" % name, own_redis.ask("INFO", "commandstats"))
        return int(found[1]) if found else 0

    def use():
        headers = {"Idempotency-Key": str(time.monotonic())}
        assert server.post("/v1/completions", {"session_id": "summed", "prompt": [5], "max_tokens": 4},
                           headers=headers).status_code == 200
        assert server.get("/v1/sessions").status_code == 200

    def goes_by_sums():
        by_text, by_sum = calls(b"eval"), calls(b"evalsha")
        use()
        return calls(b"eval") == by_text and calls(b"evalsha") >= by_sum + 4
    # What the server does by itself, such as to renew a lease, has a first time of its own.
    wait_until(goes_by_sums, lambda: f"{calls(b'eval')} scripts by their text")
    own_redis.ask("SCRIPT", "FLUSH")
    ended = [in_background(lambda i=i: turn(server, f"flushed-{i}")) for i in range(8)]
    assert all(end().status_code == 200 for end in ended)
    assert "away" not in server.whole_log()


# ---- under load ----

def fail_over(clients, pair, change):
    """Clients go on meanwhile. Seconds from when the new master is there until a turn is made."""
    clients.wait_made(clients.made + TURNS)
    change()
    pair.wait_followed()
    there, before = time.monotonic(), clients.made
    wait_until(lambda: clients.made > before or clients.errors, "clients go on")
    return time.monotonic() - there


def under_load(servers, pair, changes):
    clients = Clients(SimpleNamespace(url=servers[0].url, ports=[server.port for server in servers]),
                      CLIENTS, SESSIONS)
    with clients:
        waits = [fail_over(clients, pair, change) for _ in range(ROUNDS) for change in changes]
        clients.wait_made(clients.made + TURNS)
    print(f"\n{dict(clients.statuses)}\nseconds until a turn: {[round(wait, 2) for wait in waits]}")
    assert max(waits) <= LONGEST * harness.SLOWNESS
    for server in servers:
        server.wait_idle()
    texts = texts_of(pair.master)
    # A turn that was not acknowledged may be seen before the failover, and be gone after it.
    kept = {name: [event for event in events if event.kind not in (READ, MISMATCH)]
            for name, events in clients.histories.items()}
    assert [each for name, events in kept.items()
            for each in History(events, texts.get(name, [])).violations()] == []
    assert sum(map(len, texts.values())) >= clients.made * 4


def test_failover_by_a_proxy(pair, proxy, server_factory):
    servers = [server_factory(store=f"redis://127.0.0.1:{proxy.port}", lease=LEASE, store_replicas=1)
               for _ in range(2)]

    def kill():
        pair.master.kill()
        pair.other.ask("REPLICAOF", "NO", "ONE")
        pair.exchange()
        proxy.target = pair.master.port
        pair.start_again()
    under_load(servers, pair, [lambda: demote(pair, proxy), kill])


def test_failover_by_sentinels(tmp_path, pair, server_factory):
    """One of them does not answer."""
    sentinels = Sentinels(tmp_path, pair, size("SENTINELS", 1, 1, 3))
    try:
        hosts = ",".join(f"127.0.0.1:{port}" for port in [harness.unused_port(), *sentinels.ports])
        servers = [server_factory(store=f"redis+sentinel://{hosts}/regla", lease=LEASE, store_replicas=1)
                   for _ in range(2)]

        def promoted():
            wait_until(lambda: sentinels.master_port() == pair.other.port
                       and b"role:master" in pair.other.ask("INFO", "replication"), "the other is master")
            pair.exchange()

        def ordered():
            sentinels.ask("SENTINEL", "FAILOVER", "regla")
            promoted()
            pair.follow()  # as the Sentinel would after ten seconds

        def kill():
            pair.master.kill()
            promoted()
            pair.start_again()
        under_load(servers, pair, [kill, ordered] if ROUNDS > 1 else [kill])
        # The other may have made all turns, while this one has not tried again yet.
        wait_until(lambda: turn(servers[0], "after").status_code == 200, "the first is back, too", LONGEST)
    finally:
        sentinels.stop()


@pytest.mark.parametrize("location, said", [
    ("redis+sentinel://127.0.0.1:1", "name of the master"),
    ("redis+sentinel:///name", "hosts of Sentinels"),
    ("redis+sentinel://127.0.0.1:x/name", "expected a port"),
    ("redis+sentinel://:secret@127.0.0.1:1/name", "no Sentinel says where the master is"),
    ("rediss+sentinel://127.0.0.1:1,[::1]:1/name/x", "number of a database"),
])
def test_sentinels_that_cannot_be_asked(location, said):
    told = start_refused(store=location)
    assert said in told and "secret" not in told


# ---- the start ----

@pytest.fixture
def fake(tmp_path):
    running = FakeRedis(tmp_path)
    yield running
    running.stop()


def test_a_store_that_still_loads_is_waited_for(fake, server_factory):
    replies = {"now": b"-LOADING Redis is loading the dataset in memory\r\n"}
    normal = fake.answer
    fake.answer = lambda words: replies["now"] or normal(words)
    server = server_factory(store=fake.location, wait=False)
    server.wait_logged("the store is loading its data")
    assert server.get("/health").status_code == 200
    error = check_error(server.get("/ready"), 503, "loading")
    assert error["message"] == "the store is loading its data: the start waits for it"
    replies["now"] = b"-MASTERDOWN Link with MASTER is down\r\n"
    wait_until(lambda: "lost its master" in server.get("/ready").text, "it says what it waits for")
    replies["now"] = None
    server.wait_ready()
    assert server.tail(100000).count("the start waits") == 2


@pytest.mark.parametrize("reply", [b"-WRONGPASS invalid username-password pair\r\n", b"-ERR no\r\n",
                                   b"-NOAUTH Authentication required.\r\n"])
def test_what_does_not_pass_ends_the_start(fake, reply):
    fake.answer = lambda words: reply
    assert reply[1:-2].decode() in start_refused(store=fake.location)


def test_a_user_without_dangerous_commands(own_redis, server_factory):
    own_redis.ask("ACL", "SETUSER", "regla", "on", ">pw", "~regla:*", "+@all", "-@dangerous")
    port = harness.unused_port()
    own_redis.ask("CONFIG", "SET", "port", port)
    server = server_factory(store=f"redis://regla:pw@127.0.0.1:{port}", lease=LEASE, share_prefixes=True)
    assert "does not tell its settings" in server.tail(100000)
    assert "version" not in server.tail(100000)  # HELLO tells it
    assert turn(server, "careful").status_code == 200
    assert server.complete(prompt=[9] * 600, max_tokens=1)["choices"]
    assert server.get("/v1/sessions").json()["data"][0]["id"] == "careful"


def test_a_store_that_does_not_tell_its_version(fake, server_factory):
    normal = fake.answer
    fake.answer = lambda words: (b"-NOPERM\r\n" if words[0] in (b"INFO", b"CONFIG", b"HELLO")
                                 else normal(words))
    assert "does not tell its version" in server_factory(store=fake.location).tail(100000)
