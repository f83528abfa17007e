# SPDX-License-Identifier: Apache-2.0
"""Replies to requests with an Idempotency-Key in a store that servers share."""

import contextlib
import itertools
import threading
import time

import pytest

from harness import check_error, wait_until
from redis_store import (ENDLESS, LEASE, LONG, TURN_SECONDS, FakeRedis, answers_of_a_busy_session, bulk,
                         in_background)
from responses_helpers import RESPONSES, TEMPLATE

numbers = itertools.count()
BODY = {"prompt": [5, 6, 7], "max_tokens": 6, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture
def key():
    return {"Idempotency-Key": f"key-{next(numbers)}"}


def ask(server, key, **fields):
    return server.post("/v1/completions", {**BODY, **fields}, headers=key, timeout=TURN_SECONDS)


def entry(redis):
    """The fields of the only one that says who is at work."""
    for name in redis.keys("*:idem"):
        if redis.ask("HEXISTS", name, "holder"):
            return name
    return None


def test_a_reply_is_that_of_all_servers(replicas, key):
    """Drawn at random: no other server would make the same by chance."""
    first = ask(replicas[0], key)
    assert first.status_code == 200 and "Idempotent-Replayed" not in first.headers
    for server in (*replicas, *replicas):
        again = ask(server, key)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.content == first.content
    check_error(ask(replicas[1], key, prompt=[8]), 422, "idempotency_mismatch")


def test_a_stream_too(replicas, key):
    first = ask(replicas[0], key, stream=True)
    wait_until(lambda: "Idempotent-Replayed" in ask(replicas[1], key, stream=True).headers,
               "it is kept, soon after its end")
    again = ask(replicas[1], key, stream=True)
    assert again.content == first.content
    assert again.headers["Content-Type"] == first.headers["Content-Type"]


def test_errors_that_would_come_again(replicas, key):
    first = ask(replicas[0], key, max_tokens=-2)
    again = ask(replicas[1], key, max_tokens=-2)
    assert first.status_code == again.status_code == 400
    assert again.headers["Idempotent-Replayed"] == "true" and again.json() == first.json()


def test_chats_and_their_keys_are_apart(replicas, key):
    """The same key of another path is another."""
    assert ask(replicas[0], key).status_code == 200
    reply = replicas[1].post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, headers=key)
    assert "Idempotent-Replayed" not in reply.headers


@pytest.mark.long
@pytest.mark.builds("dev")
def test_one_server_is_at_work(replicas, redis, key):
    result = in_background(lambda: ask(replicas[0], key, **LONG))
    wait_until(lambda: entry(redis), "it is at work")
    check_error(ask(replicas[1], key, **LONG), 409, "idempotency_in_flight")
    first = result()
    assert first.status_code == 200
    assert ask(replicas[1], key, **LONG).content == first.content
    assert not entry(redis)


@pytest.mark.builds("dev")
def test_work_is_held_for_longer_than_a_lease(replicas, redis, key):
    """Its end is moved on, as a session's is."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replicas[0].http.stream("POST", "/v1/completions", headers=key, json={
            "prompt": [5], "stream": True, **ENDLESS, "max_tokens": 12000}))
        wait_until(lambda: entry(redis), "it is at work")
        name, lefts = entry(redis), []

        def renewed():
            lefts.append(redis.ask("PTTL", name))
            return any(later > before for before, later in zip(lefts, lefts[1:]))
        wait_until(renewed, "it is renewed", 2 * LEASE)
        assert 0 < lefts[-1] <= 1000 * LEASE
    wait_until(lambda: not redis.ask("HEXISTS", name, "holder"), "it ends, though nobody reads it")


@pytest.mark.builds("dev")
def test_a_dead_server_leaves_its_request_to_others(redis, server_factory, key):
    victim, other = (server_factory(store=redis.location, lease=LEASE) for _ in range(2))
    body = {**BODY, "stream": True, **ENDLESS}
    with contextlib.suppress(Exception), victim.http.stream("POST", "/v1/completions", headers=key,
                                                            json=body) as stream:
        wait_until(lambda: entry(redis), "it is at work")
        check_error(ask(other, key, stream=True, **ENDLESS), 409, "idempotency_in_flight")
        victim.ends_clean = False
        victim.process.kill()
        for _ in stream.iter_bytes():
            pass
    wait_until(lambda: not entry(redis), "its lease has ended", 2 * LEASE)
    assert ask(other, key).status_code == 200


def test_without_the_store_keys_are_known_here(own_redis, own_replicas, key):
    """Requests without a session go on as ever."""
    own_redis.kill()
    first = ask(own_replicas[0], key)
    assert first.status_code == 200
    assert ask(own_replicas[0], key).content == first.content
    own_redis.start()
    wait_until(lambda: own_replicas[1].get("/v1/sessions").status_code == 200, "it is back")
    assert "Idempotent-Replayed" not in ask(own_replicas[1], key).headers


@pytest.mark.long
@pytest.mark.builds("dev")
def test_a_claim_that_the_store_answers_too_late(own_redis, own_replicas, key):
    """It carries it out when it wakes: the reply is then kept there, though nobody knew."""
    ask(own_replicas[0], {"Idempotency-Key": "first"})  # with which the store gets the script
    own_redis.pause()
    result = in_background(lambda: ask(own_replicas[0], key, **LONG))
    wait_until(lambda: own_replicas[0].get("/load").json()["running"], "it goes on without the store")
    own_redis.resume()
    wait_until(lambda: entry(own_redis), "the store has woken")
    first = result()
    assert first.status_code == 200
    again = ask(own_replicas[1], key, **LONG)
    assert again.headers["Idempotent-Replayed"] == "true" and again.content == first.content


@pytest.mark.builds("dev")
def test_a_reply_is_kept_once_the_store_is_back(own_redis, server_factory, key):
    """Its client does not wait for that, nor does anybody else."""
    lease = 30  # for hangs: the claim is to outlive what follows
    one, other = (server_factory(store=own_redis.location, lease=lease) for _ in range(2))
    body = {"max_tokens": LONG["max_tokens"] // 8}
    result = in_background(lambda: ask(one, key, **body))
    wait_until(lambda: entry(own_redis), "it is at work")
    own_redis.kill()
    first, killed = result(), time.monotonic()
    assert first.status_code == 200
    assert ask(one, {"Idempotency-Key": "behind"}).status_code == 200
    assert time.monotonic() - killed < lease / 2
    own_redis.start()
    wait_until(lambda: not entry(own_redis), "it is kept")
    again = ask(other, key, **body)
    assert again.headers["Idempotent-Replayed"] == "true" and again.content == first.content


def test_a_stream_that_ends_with_an_error_leaves_its_key(redis, server_factory, key):
    """The same request may go well later: nothing of it is kept, nor is it at work."""
    one, other = (server_factory(store=redis.location, lease=LEASE, max_model_len=64, chat_template=TEMPLATE)
                  for _ in range(2))
    body = {"input": "x" * 400, "stream": True}
    for server in (one, other, one):
        failed = server.post(RESPONSES, body, headers=key)
        assert failed.status_code == 200 and "Idempotent-Replayed" not in failed.headers
        assert b"context_length_exceeded" in failed.content
        wait_until(lambda: not entry(redis), "it is given back, soon after its end")


@pytest.fixture
def fake(tmp_path):
    running = FakeRedis(tmp_path)
    yield running
    running.stop()


@pytest.mark.builds("dev", "asan")
@pytest.mark.parametrize("what, status", [("keep", 200), ("drop", 409)])
def test_the_end_of_a_request_is_sent_again(fake, server_factory, key, what, status):
    """The store hangs up on it for longer than its client waits."""
    server = server_factory(store=fake.location, lease=LEASE)
    normal, told, ends = fake.answer, threading.Event(), []
    mark = {"keep": b"'status', ARGV", "drop": b"redis.call('DEL', KEYS[1])"}[what]

    def at_end(words):
        ends.append((told.is_set(), words[4]))
        return bulk(b"done") if told.is_set() else None
    fake.answer = answers_of_a_busy_session(normal, mark, at_end)
    reply = ask(server, key, **({"session_id": "taken"} if what == "drop" else {}))
    assert reply.status_code == status and ends
    told.set()
    wait_until(lambda: ends[-1][0], "it is sent again")
    server.stop()
    assert [late for late, _ in ends].count(True) == 1 and len({holder for _, holder in ends}) == 1


@pytest.mark.parametrize("field, wrong", [
    ("status", "99999"), ("status", "x"), ("error", "e" * 1000), ("status", "")])
def test_replies_that_make_no_sense(replicas, redis, key, field, wrong):
    """Are not given to anybody: the request is carried out."""
    before = set(redis.keys("*:idem"))
    ask(replicas[0], key)
    name, = set(redis.keys("*:idem")) - before
    redis.ask("HSET", name, field, wrong)
    reply = ask(replicas[1], key)
    assert reply.status_code == 200 and "Idempotent-Replayed" not in reply.headers
