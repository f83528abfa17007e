# SPDX-License-Identifier: Apache-2.0
"""Where a request ends, and which resource it names: what another server on the way could see
otherwise."""

import time

import pytest

from harness import RawReply

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

BODY = b'{"prompt":"x","max_tokens":1}'
HIDDEN = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


def answers_to(server, head, body):
    return answers_to_bytes(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                    b"Content-Type: application/json\r\n" + head + b"\r\n" + body)


def answers_to_bytes(server, sent):
    """What comes until the server closes the connection."""
    with server.connect(timeout=20) as connection:
        connection.sendall(sent)
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
    (b"Content-Length:\r\n %d\r\n" % len(BODY), 400, "expected digits, got nothing"),
    (b"Transfer-Encoding:\r\n chunked\r\n", 400, "Transfer-Encoding: expected chunked"),
    (b"X-A: b\r\n folded\r\nContent-Length: %d\r\n" % len(BODY), 400, "goes on in another line"),
    (b"Content-Length: +%d\r\n" % len(BODY), 400, "expected digits, got"),
    (b"Content-Length: 0x1d\r\n", 400, "expected digits, got"),
    (b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY)), 400, "expected digits, got"),
    (b"Content-Length: 0\0%d\r\n" % len(BODY), 400, "got byte 0x00"),
    (b"X: a\0Transfer-Encoding: chunked\r\nContent-Length: %d\r\n" % len(BODY), 400, "got byte 0x00"),
    (b": v\r\nContent-Length: %d\r\n" % len(BODY), 400, "header: expected a name"),
    (b":\r\nContent-Length: %d\r\n" % len(BODY), 400, "header: expected a name"),
    (b"X-A: b\rContent-Length: 0\r\nContent-Length: %d\r\n" % len(BODY), 400, "end with CR LF"),
    (b"X-A: b\nContent-Length: %d\r\n" % len(BODY), 400, "no control character"),
    (b"no colon\r\nContent-Length: %d\r\n" % len(BODY), 400, "white space in the name"),
])
def test_a_body_whose_end_is_not_clear(server, head, status, message):
    """The status line comes once: libmicrohttpd 0.9.75 sends that of its own errors twice."""
    told = answers_to(server, head, BODY + HIDDEN)
    assert told.startswith(b"HTTP/1.1 %d " % status), told
    assert message.encode() in told
    assert b"Connection: close" in told
    assert told.count(b"HTTP/1.1 ") == 1  # what was behind is no request
    server.wait_idle()


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("body", [
    b"%x\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), b"%x\r\n%s\n0\r\n\r\n" % (len(BODY), BODY),
    b"%x\r\n%s\r\n0\n\r\n" % (len(BODY), BODY), b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    b"%x \r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), b"\r\n\r\n", b"-1\r\n", b"0x1\r\n",
    b"11111111111111111\r\n", b"%x\r\n%sxx\r\n0\r\n\r\n" % (len(BODY), BODY),
    b"0\r\nX : y\r\n\r\n", b"0\r\nX: y\n\r\n",
])
def test_a_chunked_body_that_is_malformed(server, body):
    told = answers_to(server, CHUNKED, body + HIDDEN)
    assert told.startswith(b"HTTP/1.1 400 "), told
    assert b'"malformed_request"' in told and b"Connection: close" in told
    assert told.count(b"HTTP/1.1 ") == 1
    server.wait_logged("error=malformed_request")


@pytest.mark.parametrize("line", [
    b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1", b"GET\t/health\tHTTP/1.1", b"GET /health",
    b"GET /hea lth HTTP/1.1", b"GET /health HTTP/1.1 ", b"GET /health HTTP/2.0", b"GET /health http/1.1",
    b" GET /health HTTP/1.1", b"GET /health\0 HTTP/1.1", b"GET /health HTTP/1.1\n",
])
def test_a_request_line_that_is_malformed(server, line):
    told = answers_to_bytes(server, line + b"\r\nHost: x\r\n\r\n" + HIDDEN)
    assert told.startswith(b"HTTP/1.1 400 ") and told.count(b"HTTP/1.1 ") == 1, told
    assert b'"malformed_request"' in told


def test_transfer_encoding_was_not_there_before_http_1_1(server):
    told = answers_to_bytes(server, b"POST /tokenize HTTP/1.0\r\nContent-Type: application/json\r\n"
                                    + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN)
    assert told.startswith(b"HTTP/1.1 400 ") and told.count(b"HTTP/1.1 ") == 1, told


def test_white_space_at_the_end_of_a_header_is_none_of_its_value(server):
    with server.connect() as connection:
        for _ in range(2):
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x \r\n"
                               b"Content-Type: application/json\t\r\nContent-Length: %d \t\r\n\r\n%s"
                               % (len(BODY), BODY))
            reply = RawReply(connection)
            status, headers = reply.head()
            assert status == 200, reply.body(headers)
            reply.body(headers)


def test_requests_before_a_malformed_one_are_answered(server):
    good = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY))
    told = answers_to_bytes(server, good + HIDDEN + b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n")
    assert [line[:3] for line in told.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"400"], told
    assert told.endswith(b'"malformed_request"}}')


def test_the_reply_reaches_one_that_goes_on_sending(server):
    """Behind a request that is answered; a socket that is closed would answer with a reset."""
    with server.connect(timeout=20) as connection:
        connection.sendall(HIDDEN + b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n")
        for _ in range(20):
            connection.sendall(b"x" * 1000)
            time.sleep(0.01)
        told = b""
        while piece := connection.recv(65536):
            told += piece
    assert told.count(b"HTTP/1.1 ") == 2 and told.endswith(b'"malformed_request"}}'), told


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
        assert b"Host: expected one, got " in body


@pytest.mark.parametrize("target, status", [
    (b"HTTP://x/health?a=/b", 200), (b"https://X/health", 200),
    (b"http://x/v1/models", 200), (b"http://x/v1/nothing", 404), (b"http://x", 200),
    (b"http://x?a=/health", 200), (b"http:/health", 404), (b"ftp://x/health", 404),
    (b"//x/health", 404), (b"/http://x/health", 404), (b"http:%2F%2Fx/health", 404),
    (b"http://somewhere:80/health", 400), (b"http://x:80/health", 400), (b"http:///health", 400),
    (b"http://a@x/health", 400), (b"http://x@a/health", 400), (b"http://x#/health", 400),
    (b"http://x%2Fhealth", 400), (b"http://" + b"x" * 300 + b"/health", 400),
])
def test_a_target_may_be_a_url(server, target, status):
    """RFC 9112, section 3.2.2."""
    got, body = status_of(server, b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % target)
    assert got == status, body


@pytest.mark.parametrize("host, status", [
    (b"x", 200), (b"X:", 200), (b"x:8000", 200), (b"x_1-2", 200), (b"[::1]:8000", 200), (b"127.0.0.1", 200),
    (b"x:65536", 400), (b"x:a", 400), (b"x:1:2", 400), (b":80", 400), (b"a@x", 400), (b"127.0.0.1:80@x", 400),
    (b"x/", 400), (b"x#y", 400), (b"x?y", 400), (b"x y", 400), (b"x%2e", 400), (b"http://x", 400),
    (b"[::1", 400), (b"[x]", 400), (b"[::1]x", 400), (b"::1", 400), (b"\xc3\xa9", 400), (b"x,y", 400),
])
def test_a_host_is_a_name_or_an_address(server, host, status):
    got, body = status_of(server, b"GET /health HTTP/1.1\r\nHost: %s\r\n\r\n" % host)
    assert got == status and (status == 200 or b"Host: expected a name or an address" in body), body


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
