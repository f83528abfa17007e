# SPDX-License-Identifier: Apache-2.0
"""A client may close its half of the connection once its request is out (RFC 9112, section 9.6): it
waits for its reply. TCP tells the server no more of one that has left."""

import json
import re
import socket
import time

import pytest

from harness import ENDLESS, SLOWNESS, RawReply, request_bytes, stopped, wait_until

LONG = {**ENDLESS, "max_tokens": 3000 // SLOWNESS}


def last_reply(connection):
    """(status, body) after what is only interim, which is at most one."""
    reply = RawReply(connection)
    status, headers = reply.head()
    interim = status == 100
    if interim:
        status, headers = reply.head()
    body = reply.body(headers)
    assert connection.recv(1) == b""  # nothing can be asked of it any more
    return status, body, interim


@pytest.mark.parametrize("when", ["at once", "while it runs"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_request_is_answered(server, stream, when):
    with server.connect() as connection:
        name = f"whole-{stream}-{len(when)}"
        connection.sendall(request_bytes("/v1/completions", {**LONG, "stream": stream, "request_id": name}))
        if when == "while it runs":
            wait_until(lambda: server.metric("regla_requests_running") > 0, "it runs")
        connection.shutdown(socket.SHUT_WR)
        status, body, _ = last_reply(connection)
    assert status == 200
    if stream:
        assert body.endswith(b"data: [DONE]\n\n")
        frames = [line for line in body.split(b"\n\n") if line.startswith(b"data: {")]
        assert len(frames) > 100 // SLOWNESS
    else:
        assert json.loads(body)["usage"]["completion_tokens"] == LONG["max_tokens"]
    server.wait_logged(f"id={name} ", "outcome=length")


@pytest.mark.parametrize("path, body, method", [
    ("/health", b"", "GET"), ("/v1/models", b"", "GET"), ("/tokenize", {"prompt": "x"}, "POST"),
    ("/v1/sessions", b"", "GET"), ("/v1/completions", {"prompt": 3}, "POST")])
def test_every_endpoint_answers(server, path, body, method):
    with server.connect() as connection:
        connection.sendall(request_bytes(path, body, method=method))
        connection.shutdown(socket.SHUT_WR)
        status, _, _ = last_reply(connection)
        assert status == (400 if body == {"prompt": 3} else 200)


def test_a_request_that_takes_its_time_is_answered(server_factory):
    """Its end and the half-close come at once, while the server has no processor: it has a second
    from then on, not from the request's first byte."""
    server = server_factory()
    request = request_bytes("/v1/completions", {"prompt": "x" * 100, "max_tokens": 1})
    crowd = [server.connect() for _ in range(5)]
    for connection in crowd:
        connection.sendall(request[:-50])
    time.sleep(1.5)
    with stopped(server):
        for connection in crowd:
            connection.sendall(request[-50:])
            connection.shutdown(socket.SHUT_WR)
    for connection in crowd:
        assert last_reply(connection)[0] == 200
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_one_that_has_left_is_noticed(server, version, stream):
    """Before HTTP/1.1 there were no interim replies, so who closes its half is gone."""
    connection = server.connect()
    name = f"left-{stream}-{version}"
    request = request_bytes("/v1/completions", {**ENDLESS, "stream": stream, "request_id": name})
    connection.sendall(request.replace(b"HTTP/1.1", b"HTTP/" + version.encode(), 1))
    wait_until(lambda: server.metric("regla_requests_running") > 0, "it runs")
    connection.close()
    wait_until(lambda: server.metric("regla_requests_running") == 0, "it is cancelled", 2)
    server.wait_logged(f"id={name} ", "outcome=cancelled")


def test_one_that_closes_its_half_and_then_leaves(server):
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", ENDLESS))
    connection.shutdown(socket.SHUT_WR)
    reply = RawReply(connection)
    assert reply.head()[0] == 100
    time.sleep(0.1)
    assert server.metric("regla_requests_running") > 0
    # What it leaves unread would tell by itself; nothing is unread here.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    wait_until(lambda: server.metric("regla_requests_running") == 0, "it is cancelled", 5)


def test_a_queued_stream_of_one_that_has_left_is_noticed(server_factory):
    """Its head is out, and no token comes: a comment is sent, which clients ignore."""
    server = server_factory(max_running=1)
    with server.connect() as first:
        first.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
        first.recv(100)
        with server.connect() as waits, server.connect() as leaves:
            for each in (waits, leaves):
                each.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
            wait_until(lambda: server.metric("regla_requests_waiting") == 2, "they wait")
            waits.shutdown(socket.SHUT_WR)
            leaves.close()
            wait_until(lambda: server.metric("regla_requests_waiting") == 1, "one has left", 10)
            time.sleep(0.3)
            assert server.metric("regla_requests_waiting") == 1
            text = server.get("/metrics").text
            assert re.search(r"regla_requests_running(\{[^}]*\})? 1\b", text)
