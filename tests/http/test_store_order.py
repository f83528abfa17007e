# SPDX-License-Identifier: Apache-2.0
"""What a server asks its store at about the same time: it goes out together, in its order."""

import itertools
import threading

import pytest

from harness import wait_until
from redis_store import ENDLESS, FakeRedis, bulk, in_background, position, turn

pytestmark = pytest.mark.builds("dev", "asan")

PATIENT = 20  # a lease: the store is waited for 5 s


def wait_asked(server, kind, count):
    name = "regla_store_operations_waiting"
    wait_until(lambda: server.metric(name, kind=kind) == count, f"{count} are asked")


def test_a_session_is_read_that_is_taken_at_the_same_time(own_redis, server_factory):
    """Both learn its version from the store: it is the same, so nobody else has changed it."""
    one, other = (server_factory(store=own_redis.location, lease=PATIENT) for _ in range(2))
    assert turn(one, "s").status_code == 200
    held = position(one, "s")
    own_redis.pause()
    results = []
    for number, ask in enumerate((lambda: turn(other, "before"), lambda: turn(other, "s"),
                                  lambda: other.get("/v1/sessions/s"))):
        results.append(in_background(ask))
        wait_asked(other, "session", number + 1)
    own_redis.resume()
    before, taken, read = (result() for result in results)
    assert (before.status_code, taken.status_code) == (200, 200)
    assert read.status_code == 200, read.text
    assert read.json()["position"] in (held, position(one, "s"))


@pytest.mark.parametrize("forbidden", [b"", b"EVALSHA"], ids=["all may be used", "without EVALSHA"])
def test_the_store_carries_out_what_it_is_told_in_its_order(tmp_path, server_factory, forbidden):
    """Also where it does not know the script of what comes first."""
    fake, gate, order = FakeRedis(tmp_path), threading.Event(), []
    normal = fake.answer

    def answer(words):
        if words[0].upper() == forbidden:
            return b"-NOPERM User default has no permissions to run the 'evalsha' command\r\n"
        text = words[1] if words[0].upper() == b"EVAL" else b""
        if b"'PTTL'" in text:
            order.append("claim")
            if len(order) == 2:
                gate.wait(4)
            return bulk(b"new")
        if b"'status', ARGV" in text:
            order.append("keep")
        return bulk(b"done") if text else normal(words)
    fake.answer = answer
    server = server_factory(store=fake.location, lease=PATIENT)
    numbers = itertools.count()

    def ask(**fields):
        number = next(numbers)
        headers = {"Idempotency-Key": f"key {number}", "X-Request-Id": f"request-{number}"}
        return in_background(lambda: server.post("/v1/completions", {
            "prompt": [5], "max_tokens": 1, **fields}, headers=headers))
    results = [ask(**ENDLESS)]
    wait_until(lambda: server.get("/load").json()["running"], "it runs")
    results.append(ask())
    wait_until(lambda: len(order) == 2, "the store is busy")
    assert server.post("/v1/requests/request-0/cancel").status_code == 200
    wait_asked(server, "reply", 2)
    results.append(ask())
    wait_asked(server, "reply", 3)
    gate.set()
    assert [result().status_code for result in results] == [409, 200, 200]
    assert order[:4] == ["claim", "claim", "keep", "claim"]
    fake.stop()
