# SPDX-License-Identifier: Apache-2.0
"""--max-connections: who goes when all places are taken, and who is answered when all are at work."""

import contextlib
import select
import time

import pytest

from harness import HEALTH, SLOWNESS, RawReply, ask, begin_stream, request_bytes, wait_until

pytestmark = pytest.mark.builds("dev", "tsan")

HALF = {"half a head": b"GET /health HTTP/1.1\r\nHost: x\r\nX-",
        "half a body": b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Content-Length: 1000\r\n\r\n{"}


def is_closed(connection):
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1000) == b""
    except ConnectionError:
        return True


def closed(connections):
    return [connection for connection in connections if is_closed(connection)]


def wait_for_few(connections, most):
    """Until no more are open."""
    open_ones = list(connections)

    def few():
        for connection in closed(open_ones):
            open_ones.remove(connection)
        return len(open_ones) <= most
    wait_until(few, lambda: f"{len(open_ones)} are open")
    return open_ones


@pytest.fixture
def crowd():
    with contextlib.ExitStack() as stack:
        yield lambda server, count: [stack.enter_context(server.connect()) for _ in range(count)]


@pytest.mark.parametrize("how", ["silent", "served once", *HALF])
def test_who_has_nothing_at_work_makes_room(server_factory, crowd, how):
    server = server_factory(max_connections=16)
    with server.connect() as busy:
        reply = begin_stream(busy)
        others = crowd(server, 40)
        for connection in others:
            with contextlib.suppress(ConnectionError):  # it had to go already
                connection.sendall({"silent": b"", "served once": HEALTH, **HALF}[how])
        # All have begun by then: threads begin them, so one may begin behind one that came later.
        wait_for_few(others, 15)
        began = time.monotonic()
        with server.connect() as late:
            assert ask(late) == 200
            assert time.monotonic() - began < 20 * SLOWNESS  # idle ones stay for 75 s, half requests for 30 s
            assert wait_for_few([*others, late], 15)
        assert next(reply.chunks())  # what is at work goes on
    server.wait_logged("all 16 connections that --max-connections allows are taken")


def test_the_longest_goes_first(server_factory, crowd):
    server = server_factory(max_connections=5)
    server.http.headers["Connection"] = "close"
    assert server.get("/health").status_code == 200
    second, half, third, last, first = crowd(server, 5)
    half.sendall(HALF["half a head"])
    time.sleep(1)  # the watcher looks every 200 ms
    for connection in (third, last, first):
        assert ask(connection) == 200
        time.sleep(0.3 * SLOWNESS)  # a thread notes that it is idle when the client has its reply already
    newer = []
    for place, longest in enumerate([second, half, third]):
        newer += crowd(server, 1)
        assert ask(newer[-1]) == 200
        wait_until(lambda longest=longest: is_closed(longest), "who was idle or sent half of it for longest")
        assert not closed([half, third, last, first][place:])
    assert ask(last, first, *newer) == 200


def test_all_at_work(server_factory, crowd):
    """Then only /health and /ready are answered, however many others come beside them."""
    server = server_factory(max_connections=4)
    server.http.headers["Connection"] = "close"
    assert server.get("/health").status_code == 200
    busy = crowd(server, 4)
    replies = [begin_stream(connection) for connection in busy]
    idle = crowd(server, 40)
    wait_for_few(idle, 8)
    for path in (b"/health", b"/ready", b"/health"):
        with server.connect() as late:
            late.sendall(HEALTH.replace(b"/health", path))
            assert RawReply(late).head()[0] == 200
    for request in (request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 1}),
                    HEALTH.replace(b"/health", b"/v1/models")):
        with server.connect() as late:
            late.sendall(request)
            reply = RawReply(late)
            status, headers = reply.head()
            assert status == 429 and headers["connection"] == "close" and headers["retry-after"]
            assert b"--max-connections" in reply.body(headers)
            assert is_closed(late) or wait_until(lambda late=late: is_closed(late), "it closes")
    for reply in replies:
        assert next(reply.chunks())
    busy[0].close()

    def answered():
        with server.connect() as late:
            late.sendall(request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 1}))
            return RawReply(late).head()[0] == 200
    wait_until(answered, "a place is free")
    for connection in busy[1:] + idle:
        connection.close()
    server.wait_idle()
