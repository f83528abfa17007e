# SPDX-License-Identifier: Apache-2.0
"""Kept responses that a restart, another server or a full disk meets: none that was acknowledged is lost, and
none outlives its time or its quota."""

import contextlib
import itertools
import random
import sqlite3
import threading
import time

import httpx
import pytest
from faults import Faults
from harness import SLOWNESS, check_error, wait_until
from redis_store import turn
from responses_helpers import (RESPONSES, TEMPLATE, TURN, check_goes_on, events, gathered, get, path, said,
                               streamed, unknown)
from stress_helpers import in_pool, kill, session_rows, size


def forget_replies(folder):
    """As if the server had ended after the turn and before its reply was kept."""
    with contextlib.closing(sqlite3.connect(folder / "sessions.db", timeout=30)) as database, database:
        database.execute("UPDATE reply SET status = 0, length = 0, error = ''")


def check_repeats(server, before):
    """What was asked of the server before it ended is told again; what was deleted is not made again."""
    kept, deleted = before
    for (headers, body), response in kept:
        for _ in range(2):  # made of the response, then kept as any reply
            again = server.post(RESPONSES, body, headers=headers)
            assert again.status_code == 200 and again.headers["idempotent-replayed"] == "true"
            told = gathered(events(again.content)) if body["stream"] else again.json()
            assert told == response
        other = server.post(RESPONSES, {**body, "input": "other"}, headers=headers)
        check_error(other, 422, "idempotency_mismatch")
    for headers, body in deleted:
        check_error(server.post(RESPONSES, body, headers=headers), 409, "idempotency_reply_lost")


def ask_with_keys(server):
    """Requests with a key, and their responses; and those whose responses were deleted."""
    kept, deleted = [], []
    for number in range(6):
        body = {**TURN, "input": f"key {number}", "stream": number % 2 == 1, "previous_response_id":
                kept[0][1]["id"] if number > 1 else None}
        request = {"Idempotency-Key": f"key {number}"}, body
        reply = server.post(RESPONSES, body, headers=request[0])
        response = gathered(events(reply.content)) if body["stream"] else reply.json()
        kept.append((request, response))
    for request, response in kept[4:]:
        assert server.http.delete(path(response)).status_code == 200
        deleted.append(request)
    assert server.http.delete(path(kept[0][1])).status_code == 200  # of which two go on
    deleted.append(kept[0][0])
    return kept[1:4], deleted


@pytest.mark.builds("dev", "asan")
def test_a_lost_reply_is_made_of_the_response(server_factory, tmp_path):
    folder = tmp_path / "state"
    flags = {"state_dir": folder, "chat_template": TEMPLATE}
    server = server_factory(**flags)
    before = ask_with_keys(server)
    kill(server)
    forget_replies(folder)
    server = server_factory(**flags)
    rows = len(session_rows(folder))
    check_repeats(server, before)
    assert len(session_rows(folder)) == rows


def test_a_lost_reply_in_a_store(own_redis, server_factory):
    """On another server, too. What was deleted there is made anew, by the same name."""
    flags = {"store": own_redis.location, "chat_template": TEMPLATE}
    one, other = (server_factory(**flags) for _ in range(2))
    kept, deleted = ask_with_keys(one)
    for key in own_redis.keys("*:idem"):
        own_redis.ask("DEL", key)
    check_repeats(other, (kept, []))
    headers, body = deleted[-1]
    anew = other.post(RESPONSES, body, headers=headers)
    assert anew.status_code == 200 and "idempotent-replayed" not in anew.headers
    assert is_kept(one, anew.json())


# What is kept for how long


def is_kept(server, response):
    return server.get(path(response)).status_code == 200


def test_time_to_live(server_factory):
    """Of responses one of their own: looking at one keeps it no longer alive."""
    server = server_factory(response_ttl="1s", chat_template=TEMPLATE)
    server.complete(prompt="stays", session_id="stays", max_tokens=1)
    response = said(server, **TURN)
    wait_until(lambda: not is_kept(server, response), "it dies")
    unknown(server, response)
    assert server.get("/v1/sessions/stays").status_code == 200
    other = server_factory(session_ttl="1s", response_ttl=0, chat_template=TEMPLATE)
    other.complete(prompt="goes", session_id="goes", max_tokens=1)
    response = said(other, **TURN)
    wait_until(lambda: other.get("/v1/sessions/goes").status_code == 404, "it dies")
    assert get(other, response) == response


def test_time_to_live_in_a_store(own_redis, server_factory):
    """By the store's clock: it is none for who asks, and is swept with its name."""
    flags = {"store": own_redis.location, "chat_template": TEMPLATE, "session_ttl": 24 * 3600}
    server = server_factory(**flags, response_ttl=30 * SLOWNESS)
    turn(server, "stays")
    response = said(server, **TURN)
    row, = own_redis.keys(f"regla:{{*:{response['id']}}}")
    names, = own_redis.keys("*:responses")
    assert get(server, response) == response
    hour_ago = int(own_redis.ask("TIME")[0]) - 3600
    for key in (row, *own_redis.keys("regla:*:stays}")):
        own_redis.ask("HSET", key, "used", hour_ago * 1000)
    own_redis.ask("ZADD", names, hour_ago, response["id"])
    unknown(server, response)
    wait_until(lambda: not own_redis.keys(row.decode() + "*"), "it is swept")
    wait_until(lambda: not own_redis.keys("*:responses"), "its name is, too: a set without names is none")
    assert [card["id"] for card in server.get("/v1/sessions").json()["data"]] == ["stays"]


def one_page(server_factory):
    """What a session of few tokens counts."""
    probe = server_factory(chat_template=TEMPLATE)
    probe.complete(prompt=[1] * 10, session_id="s", max_tokens=4)
    return probe.get("/v1/sessions/s").json()["bytes"]


def check_quota(server, other, tick, slow=contextlib.nullcontext):
    """Four responses fit, or what leaves as much room; those go first that were unused for longest, and
    no session goes."""
    made = []
    for number in range(4):
        made.append(said(server, **TURN, input=str(number)))
        tick()
    assert all(is_kept(other, each) for each in made)
    # A use, though nothing of it is kept.
    said(server, **TURN, input="b", store=False, previous_response_id=made[0]["id"])
    tick()
    with slow():  # whatever it takes, there is room
        made.append(said(server, **TURN, input="4"))
    assert [is_kept(other, each) for each in made] == [True, False, True, True, True]
    server.complete(prompt=[2] * 10, session_id="s0", max_tokens=4)
    assert [is_kept(other, each) for each in made] == [True, False, False, True, True]
    for number in range(1, 4):
        server.complete(prompt=[2] * 10, session_id=f"s{number}", max_tokens=4)
    assert not any(is_kept(other, each) for each in made)
    # Sessions do not go for a response.
    error = check_error(server.post(RESPONSES, {"input": "x", **TURN}), 429, "session_quota")
    assert "session-quota allows" in error["message"]
    assert len(server.get("/v1/sessions").json()["data"]) == 4
    assert said(server, **TURN, store=False)["store"] is False


@pytest.mark.parametrize("flags", [{}, {"state_dir": "state"}], ids=["memory", "state-dir"])
def test_quota(server_factory, tmp_path, flags):
    page = one_page(server_factory)
    flags = {name: tmp_path / folder for name, folder in flags.items()}
    server = server_factory(**flags, session_quota=9 * page // 2, chat_template=TEMPLATE)
    check_quota(server, server, lambda: None)


@contextlib.contextmanager
def slow_answers(store):
    """Most of the time it lets everybody wait for 60 ms."""
    over = threading.Event()

    def pause():
        while not over.is_set():
            store.ask("CLIENT", "PAUSE", "60")
            over.wait(0.07)
    pausing = threading.Thread(target=pause)
    pausing.start()
    try:
        yield
    finally:
        over.set()
        pausing.join()


def test_quota_in_a_store(own_redis, server_factory):
    page = one_page(server_factory)
    flags = {"store": own_redis.location, "session_quota": 9 * page // 2, "chat_template": TEMPLATE}
    server, other = (server_factory(**flags) for _ in range(2))

    def tick():
        """The store notes uses by the second."""
        now = own_redis.ask("TIME")[0]
        wait_until(lambda: own_redis.ask("TIME")[0] != now, "a second is over")
    check_quota(server, other, tick, lambda: slow_answers(own_redis))


# What was acknowledged


@pytest.mark.builds("dev")
def test_what_the_disk_refuses_is_not_kept(server_factory, tmp_path):
    """And is not acknowledged: a stream tells so in its last event."""
    faults = Faults(tmp_path)
    server = server_factory(state_dir=tmp_path / "state", chat_template=TEMPLATE,
                            environment=faults.environment)
    first = said(server, **TURN)
    with faults.during("fsync"):
        body = {**TURN, "input": "b", "previous_response_id": first["id"]}
        check_error(server.post(RESPONSES, body), 503, "store_failed")
        failed = streamed(server, **body)
        assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
        check_error(server.http.delete(path(first)), 503, "store_failed")
    unknown(server, failed)
    wait_until(lambda: server.get("/ready").status_code == 200, "it is tried again")
    assert get(server, first) == first
    check_goes_on(server, first, "hi")


class Conversations:
    """Clients that go on from responses, with a key for each request, until the server is gone."""

    def __init__(self):
        self.dice, self.numbers = random.Random(7), itertools.count()
        self.told, self.open = {}, []  # what was acknowledged; requests that were not
        self.stop, self.again = False, 0

    def learn(self, reply):
        stream = reply.headers["content-type"].startswith("text/event-stream")
        response = gathered(events(reply.content)) if stream else reply.json()
        assert self.told.setdefault(response["id"], response) == response

    def talk(self, server):
        while not self.stop:
            number = next(self.numbers)
            previous = self.dice.choice([None, *self.told]) if self.dice.random() < 0.9 else None
            request = ({"Idempotency-Key": str(number)},
                       {**TURN, "input": str(number % 5), "stream": number % 2 == 0,
                        "previous_response_id": previous})
            self.open.append(request)
            try:
                reply = server.post(RESPONSES, request[1], headers=request[0])
            except httpx.TransportError:
                return
            assert reply.status_code == 200, reply.text
            self.learn(reply)
            self.open.remove(request)

    def repeat(self, server):
        """What was not acknowledged: it was made, and is told again, or it is made now."""
        for headers, body in self.open:
            reply = server.post(RESPONSES, body, headers=headers)
            while reply.status_code == 409:  # of a store: until the lease of the server that died ends
                assert check_error(reply, 409)["code"] in ("idempotency_in_flight", "session_busy")
                time.sleep(0.2)
                reply = server.post(RESPONSES, body, headers=headers)
            assert reply.status_code == 200, reply.text
            self.again += reply.headers.get("idempotent-replayed") == "true"
            self.learn(reply)
        self.open = []


def kill_soon(server, clients, faults, within):
    """At any time, or while a commit is under way, which takes long then."""
    time.sleep(clients.dice.uniform(0.05, 0.4))
    if within:
        wait_until(faults.syncs, "a commit")
    kill(server)


@pytest.mark.long
@pytest.mark.builds("dev")
def test_killed_at_any_time(server_factory, tmp_path):
    """None that was acknowledged is lost, and none is there twice, whatever key comes again."""
    folder, faults = tmp_path / "state", Faults(tmp_path)
    clients, within, kills = Conversations(), 0, size("RESPONSE_KILLS", 6, 6, 100)
    flags = {"state_dir": folder, "chat_template": TEMPLATE, "environment": faults.environment}
    for number in range(kills):
        server = server_factory(**flags)
        before = clients.dice.sample(sorted(clients.told), min(30, len(clients.told)))
        clients.repeat(server)
        for name in before:
            assert get(server, name) == clients.told[name]
        assert len(session_rows(folder)) == len(clients.told)
        slow = number % 2 == 1
        faults.slow(slow * 0.1)
        killer = threading.Thread(target=kill_soon, args=(server, clients, faults, slow))
        killer.start()
        in_pool(6, 6, lambda _, server=server: clients.talk(server))
        killer.join()
        faults.slow(0)
        within += faults.syncs() > 0
        faults.forget_syncs()
    assert 10 * within >= 3 * kills, f"{within} of {kills} kills were within a commit"
    server = server_factory(**flags)
    clients.repeat(server)
    assert clients.told and len(session_rows(folder)) == len(clients.told)
    for name, response in clients.told.items():
        assert get(server, name) == response
    print(f"\n{kills} kills, {within} within a commit; {len(clients.told)} responses, "
          f"{clients.again} of them told again to a key that came again")


@pytest.mark.long
@pytest.mark.builds("dev")
def test_killed_at_any_time_in_a_store(own_redis, server_factory):
    """The same where another server is asked again, once the lease of the dead one has ended."""
    clients, kills = Conversations(), size("RESPONSE_KILLS", 6, 6, 100)
    flags = {"store": own_redis.location, "chat_template": TEMPLATE, "lease": 1}
    server = server_factory(**flags)
    for _ in range(kills):
        killer = threading.Thread(target=lambda server=server: (
            time.sleep(clients.dice.uniform(0.05, 0.4)), kill(server)))
        killer.start()
        in_pool(6, 6, lambda _, server=server: clients.talk(server))
        killer.join()
        server = server_factory(**flags)
        clients.repeat(server)
        rows = [key for key in own_redis.keys("regla:{*:resp_*}") if own_redis.ask("HEXISTS", key, "version")]
        assert len(rows) == len(clients.told)
    for name, response in clients.told.items():
        assert get(server, name) == response
    print(f"\n{kills} kills; {len(clients.told)} responses, {clients.again} of them told again to a key "
          "that came again")
