# SPDX-License-Identifier: Apache-2.0
"""Where a request ends, and which resource it names: what another server on the way could see
otherwise."""

import pytest

from harness import RawReply

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

BODY = b'{"prompt":"x","max_tokens":1}'
HIDDEN = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


# libmicrohttpd 1.0 refuses some requests before we are asked, with the same status and its own words.
BY_LIBRARY = {
    "white space in the name of a header": b"HTTP request has whi",
    "Host: expected one, got ": b"<title>&quot;Host:&quot; header required</title>",
    "Transfer-Encoding: expected chunked": b"Unsupported Transfer-Encoding",
}


def says(told, message):
    return message.encode() in told or BY_LIBRARY.get(message, message.encode()) in told


def answers_to(server, head, body):
    """What comes until the server closes the connection."""
    with server.connect(timeout=20) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Content-Type: application/json\r\n" + head + b"\r\n" + body)
        told = b""
        while piece := connection.recv(65536):
            told += piece
        return told


@pytest.mark.parametrize("head, status, message", [
    (b"Content-Length: %d\r\nContent-Length: %d\r\n" % (len(BODY), len(BODY + HIDDEN)), 400,
     "Content-Length: expected one, got 2"),
    (b"Content-Length: %d\r\ncontent-length: %d\r\n" % (len(BODY), len(BODY)), 400,
     "Content-Length: expected one, got 2"),
    (b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(BODY), 400,
     "expected Content-Length or Transfer-Encoding, got both"),
    (b"Transfer-Encoding: gzip, chunked\r\n", 501, "Transfer-Encoding: expected chunked"),
    (b"Transfer-Encoding: identity\r\n", 501, "Transfer-Encoding: expected chunked"),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 400,
     "Transfer-Encoding: expected one, got 2"),
    (b"Content-Length : %d\r\n" % len(BODY), 400, "white space in the name of a header"),
    (b"Transfer-Encoding\t: chunked\r\n", 400, "white space in the name of a header"),
])
def test_a_body_whose_end_is_not_clear(server, head, status, message):
    told = answers_to(server, head, BODY + HIDDEN)
    if status == 501 and BY_LIBRARY[message] in told:
        status = 400
    assert told.startswith(b"HTTP/1.1 %d " % status), told
    assert says(told, message)
    assert b"Connection: close" in told
    assert told.count(b"HTTP/1.1") == 1  # what was behind is no request
    server.wait_idle()


def status_of(server, request):
    with server.connect() as connection:
        connection.sendall(request)
        reply = RawReply(connection)
        status, headers = reply.head()
        return status, reply.body(headers)


@pytest.mark.parametrize("request_bytes, status", [
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
     b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY), 400),
    (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", 200),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"GET /health HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
])
def test_a_request_names_one_host(server, request_bytes, status):
    """RFC 9112, section 3.2; before 1.1 there was no such header."""
    got, body = status_of(server, request_bytes)
    assert got == status, body
    if status == 400:
        assert says(body, "Host: expected one, got ")


@pytest.mark.parametrize("target, status", [
    (b"http://somewhere:80/health", 200), (b"HTTP://x/health?a=/b", 200), (b"https://x/health", 200),
    (b"http://x/v1/models", 200), (b"http://x/v1/nothing", 404), (b"http://x", 404),
    (b"http://x?a=/health", 404), (b"http:/health", 404), (b"ftp://x/health", 404),
    (b"//x/health", 404), (b"/http://x/health", 404),
])
def test_a_target_may_be_a_url(server, target, status):
    """RFC 9112, section 3.2.2."""
    got, body = status_of(server, b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert got == status, body


def test_chunked_bodies_are_read(server):
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                           b"Content-Type: application/json\r\nTransfer-Encoding: Chunked\r\n\r\n"
                           b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert RawReply(connection).head()[0] == 200


def test_a_nul_in_a_path_names_nothing(server):
    server.complete(prompt="x", max_tokens=1, session_id="kept")
    for method, path in (("DELETE", "/v1/sessions/kept%00-other"), ("GET", "/v1/sessions/kept%00"),
                         ("GET", f"/v1/models/{server.model_id}%00x"), ("GET", "/health%00zzz")):
        reply = server.http.request(method, server.url + path)
        assert reply.status_code in (400, 404), (path, reply.text)  # 400: no name of a session
    assert server.get("/v1/sessions/kept").status_code == 200
    assert server.get("/v1/sessions/k%65pt").status_code == 200  # other characters may be escaped
