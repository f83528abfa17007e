# SPDX-License-Identifier: Apache-2.0
"""Every row of api.md's error table, but those of sessions."""

import contextlib
import gzip
import json
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from harness import SLOWNESS, RawReply, check_error, request_bytes, wait_until

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

GOOD = {"prompt": "x", "max_tokens": 1}
LIMIT = 8 * 1024 * 1024
LONG = {"prompt": "x", "max_tokens": 100000, "ignore_eos": True, "stream": True}


def post_bytes(server, body, content_type="application/json", path="/v1/completions"):
    return server.http.post(path, content=body, headers={"Content-Type": content_type})


def start_stream(server, **fields):
    """A stream that runs until its connection is closed; returns the connection."""
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", {**LONG, **fields}))
    return connection


# 400


@pytest.mark.parametrize("body, offset", [
    (b'{"prompt": "x",}', 15), (b'{"prompt" "x"}', 10), (b"", 0), (b"[1, 2", 5),
    (b'{"prompt": "x"} trailing', 24), (b'{"prompt": "x", "prompt": "y"}', None),
    (b'{"prompt": "\\ud800"}', None), (b'{"prompt": "a\nb"}', None), (b'{"prompt": tru}', 11),
])
def test_malformed_json(server, body, offset):
    error = check_error(post_bytes(server, body), 400)
    assert error["type"] == "invalid_request_error"
    if offset is not None:
        named = [int(word.strip(".,:;")) for word in error["message"].split()
                 if word.strip(".,:;").isdigit()]
        # The byte at fault, or the one after the token at fault.
        assert any(abs(number - offset) <= 4 for number in named), error["message"]


def test_no_body(server):
    assert "got nothing" in check_error(post_bytes(server, b""), 400)["message"]


@pytest.mark.parametrize("body", [b"5", b'"text"', b"null", b"[]", b"true"])
def test_not_an_object(server, body):
    check_error(post_bytes(server, body), 400)


@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82", b"\xf5\x80"])
def test_invalid_utf8(server, bad):
    error = check_error(post_bytes(server, b'{"prompt": "' + bad + b'"}'), 400)
    assert "UTF-8" in error["message"]


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting(server, opening, closing):
    def nested(depth):
        inner = opening * depth + b"1" + closing * depth
        return b'{"prompt": "x", "max_tokens": 1, "unknown": ' + inner + b"}"
    assert post_bytes(server, nested(60)).status_code == 200
    check_error(post_bytes(server, nested(64)), 400)
    check_error(post_bytes(server, nested(100000)), 400)


# 401


def test_api_key(server_factory):
    keyed = server_factory(api_key="sesame")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"},
                    {"Authorization": "Bearer sesame2"}, {"Authorization": "Bearer sesam"},
                    {"Authorization": "Bearer"}):
        reply = keyed.post("/v1/completions", GOOD, headers=headers)
        check_error(reply, 401, code="invalid_api_key")
        check_error(keyed.get("/v1/models", headers=headers), 401)
    right = {"Authorization": "Bearer sesame"}
    with keyed.connect() as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer  sesame \t\r\n\r\n")
        assert RawReply(connection).head()[0] == 200
    assert keyed.post("/v1/completions", GOOD, headers=right).status_code == 200
    assert keyed.get("/v1/models", headers=right).status_code == 200
    for path in ("/health", "/ready", "/load", "/version"):
        assert keyed.get(path).status_code == 200
    assert "sesame" not in keyed.whole_log()
    keyed.http.headers["Authorization"] = "Bearer sesame"  # for the metrics read at the end


def test_without_api_key_any_authorization_will_do(server):
    for value in ("Bearer x", "Basic eDp5", "nonsense"):
        reply = server.post("/v1/completions", GOOD, headers={"Authorization": value})
        assert reply.status_code == 200


# 404, 405, 501


@pytest.mark.parametrize("path", ["/v1", "/v1/completion", "/v2/models",
                                  "/%00", "/v1/requests/cancel", "/metrics/x"])
def test_unknown_path(server, path):
    check_error(server.get(path), 404)


def test_unknown_model(server):
    error = server.refuse(404, prompt="x", max_tokens=1, model="gpt-9")
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert "gpt-9" in error["message"]
    check_error(server.get("/v1/models/gpt-9"), 404, code="model_not_found")
    assert server.complete(prompt="x", max_tokens=1, model=server.model_id)


@pytest.mark.parametrize("method, path, allow", [
    ("GET", "/v1/completions", {"POST"}), ("DELETE", "/v1/completions", {"POST"}),
    ("PUT", "/tokenize", {"POST"}), ("POST", "/v1/models", {"GET"}), ("POST", "/health", {"GET"}),
    ("PATCH", "/metrics", {"GET"}), ("GET", "/v1/requests/abc/cancel", {"POST"})])
def test_wrong_method(server, method, path, allow):
    reply = server.http.request(method, path)
    check_error(reply, 405)
    allowed = {word.strip() for word in reply.headers["allow"].split(",")}
    assert allow <= allowed <= allow | {"HEAD", "OPTIONS"}


@pytest.mark.parametrize("method, path", [
    ("POST", "/v1/messages/batches"), ("POST", "/v1/embeddings"), ("POST", "/v1/responses/compact"),
    ("GET", "/v1/files"), ("GET", "/v1/files/a"), ("POST", "/v1/batches"),
    ("GET", "/v1/responses/a/b"), ("POST", "/completion"), ("POST", "/infill"), ("POST", "/embedding"),
    ("GET", "/lora-adapters"), ("POST", "/slots/0"), ("POST", "/v1/chat/completions/input_tokens"),
    ("POST", "/audio/transcriptions"), ("GET", "/v1/streams"), ("POST", "/api/chat")])
def test_known_endpoints_that_we_lack(server, method, path):
    reply = server.http.request(method, path, json={} if method == "POST" else None)
    check_error(reply, 501)


def test_cancel_of_an_unknown_request(server):
    check_error(server.post("/v1/requests/cmpl-none/cancel"), 404)


# 413, 415


@pytest.mark.parametrize("length", [LIMIT + 1, 2**31, 2**32 + 2, 2**63 - 1])
def test_body_over_the_limit_by_its_length_at_once(server, length):
    """Refused on the headers alone: not one byte of the body is sent."""
    with server.connect(timeout=10 * SLOWNESS) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % length)
        reply = RawReply(connection)
        status, headers = reply.head()
        assert status == 413 and "x-request-id" in headers
        assert json.loads(reply.body(headers))["error"]["message"]


def test_body_at_the_limit_is_read(server):
    body = json.dumps({**GOOD, "user": ""}).encode()
    body = body.replace(b'"user": ""', b'"user": "' + b"u" * (LIMIT - len(body)) + b'"')
    assert len(body) == LIMIT
    assert post_bytes(server, body).status_code in (200, 400)  # 400: a bound of `user` itself
    check_error(post_bytes(server, body + b" "), 413)


def ended(server, status, finish_reason):
    return server.metric("regla_requests_total", status=str(status), finish_reason=finish_reason)


@pytest.mark.parametrize("path, content_type", [
    (b"/v1/completions", b"application/json"), (b"/v1/completions", b"text/plain"),
    (b"/health", b"application/json"), (b"/nowhere", b"application/json")])
@threads
def test_chunked_body_over_the_limit_closes_the_connection(server, path, content_type):
    """Also one that would be thrown away."""
    before = ended(server, 413, "error")
    with server.connect(timeout=20 * SLOWNESS) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\n"
                           b"Transfer-Encoding: chunked\r\n\r\n" % (path, content_type))
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        received = b""
        try:
            for _ in range(4 * LIMIT // 65536):
                connection.sendall(piece)
            while data := connection.recv(65536):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            pass
        else:
            assert received == b"" or received.startswith(b"HTTP/1.1 413"), received[:200]
    assert server.get("/health").status_code == 200
    server.wait_logged(f"path={path.decode()} status=413 ", "error=request_too_large")
    wait_until(lambda: ended(server, 413, "error") == before + (path == b"/v1/completions"), "it is counted")


def test_chunked_body_under_the_limit(server):
    body = json.dumps(GOOD).encode()
    reply = server.http.post("/v1/completions", content=(bytes([b]) for b in body),
                             headers={"Content-Type": "application/json"})
    assert reply.status_code == 200 and "choices" in reply.json()


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "",
                                          "application/jsonx"])
def test_not_json(server, content_type):
    body = json.dumps(GOOD).encode()
    check_error(post_bytes(server, body, content_type), 415)


def test_encoded_body(server):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    reply = server.http.post("/v1/completions", content=gzip.compress(json.dumps(GOOD).encode()),
                             headers=headers)
    check_error(reply, 415)
    assert reply.json()["error"]["message"] == 'Content-Encoding: expected none, got "gzip"'
    headers["Content-Encoding"] = "identity"
    reply = server.http.post("/v1/completions", content=json.dumps(GOOD).encode(), headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON",
                                          "application/json;charset=UTF-8"])
def test_json_by_other_names(server, content_type):
    assert post_bytes(server, json.dumps(GOOD).encode(), content_type).status_code == 200


# 429


def load_of(server):
    load = server.get("/load").json()
    return load["running"], load["waiting"]


def refused(server):
    return tuple(server.metric("vllm:admission_rejections_total", reason=reason)
                 for reason in ("max_num_queued_reqs", "max_num_queued_tokens"))


@threads
def test_queue_full_by_requests(server_factory):
    small = server_factory(max_queue=2, max_running=1, metrics_compat="vllm")
    held = [start_stream(small) for _ in range(3)]
    wait_until(lambda: load_of(small) == (1, 2), "two wait")
    reply = small.post("/v1/completions", GOOD)
    check_error(reply, 429)
    assert int(reply.headers["retry-after"]) >= 1
    assert load_of(small) == (1, 2)
    assert refused(small) == (1, 0)
    assert small.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    for connection in held:
        connection.close()
    small.wait_idle()
    assert small.complete(**GOOD)


@threads
def test_queue_full_by_tokens(server_factory):
    """By their estimate: so much does not fit behind one who waits already."""
    small = server_factory(max_queue_tokens=1000, max_running=1, metrics_compat="vllm")
    prompt = "word " * 500
    held = []
    for running, waiting in ((1, 0), (1, 1)):
        held.append(start_stream(small, prompt=prompt))
        wait_until(lambda: load_of(small) == (running, waiting),
                   "one runs, one waits")
    for attempt in range(2):
        reply = small.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        check_error(reply, 429)
        assert int(reply.headers["retry-after"]) >= 1
        assert refused(small) == (0, attempt + 1)
    for connection in held:
        connection.close()
    small.wait_idle()


def test_what_no_queue_would_hold_is_not_to_be_tried_again(server_factory):
    small = server_factory(max_queue_tokens=1000)
    reply = small.post("/v1/completions", {"prompt": "word " * 1000, "max_tokens": 1})
    check_error(reply, 400, code="context_length_exceeded")
    assert "--max-queue-tokens is 1000" in reply.json()["error"]["message"]
    assert "retry-after" not in reply.headers


def test_no_queue_and_nothing_to_do(server_factory):
    """Who is alone needs no place in a queue, however long the server has slept."""
    server = server_factory(max_queue=0, max_running=1, state_memory="16M")
    for _ in range(3):
        assert server.complete(prompt="x", max_tokens=20, ignore_eos=True)
        server.wait_idle()
        time.sleep(0.5)


# 503


@threads
def test_draining(server_factory):
    server = server_factory()
    connection = start_stream(server, max_tokens=2000 if SLOWNESS == 1 else 600)
    reply = RawReply(connection)
    assert reply.head()[0] == 200
    chunks = reply.chunks()
    body = next(chunks)
    idle = server.connect()
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.get("/ready").status_code == 503, "draining shows in /ready")
    refused = server.post("/v1/completions", GOOD)
    check_error(refused, 503, code="draining")
    assert int(refused.headers["retry-after"]) >= 1
    assert server.get("/health").status_code == 200
    body += b"".join(chunks)
    assert body.endswith(b"data: [DONE]\n\n")
    server.process.wait(10 * SLOWNESS)
    assert server.process.returncode == 0
    connection.close()
    idle.close()


@threads
def test_loading(server_factory, big_model):
    server = server_factory(model=big_model, wait=False)
    seen = set()

    def look():
        try:
            status = server.get("/ready").status_code
            if status == 503 and 503 not in seen:
                seen.add(503)
                assert server.get("/health").status_code == 200
                refused = server.post("/v1/completions", GOOD)
                if refused.status_code != 200:  # it may be loaded by now
                    check_error(refused, 503, code="loading")
                    assert int(refused.headers["retry-after"]) >= 1
                    seen.add("refused")
            return status == 200
        except httpx.TransportError:
            return False
    wait_until(look, "the model is loaded", 60)
    assert {503, "refused"} <= seen


# The deadline


@threads
def test_trickled_request_is_closed(server_factory):
    server = server_factory(request_timeout=1)
    began = time.monotonic()
    with server.connect(timeout=15 * SLOWNESS) as connection:
        payload = request_bytes("/v1/completions", {"prompt": "x" * 200 * SLOWNESS})
        closed = False
        for place in range(len(payload)):  # would take much longer than the limit
            try:
                connection.sendall(payload[place:place + 1])
                connection.settimeout(0.05)
                if connection.recv(1000) == b"":
                    closed = True
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                closed = True
            if closed:
                break
    assert closed
    assert time.monotonic() - began > 0.5
    assert server.complete(**GOOD)


@threads
def test_a_body_that_does_not_come_and_a_client_that_leaves(server_factory):
    server = server_factory(request_timeout=1)
    half = request_bytes("/v1/completions", {"prompt": "x" * 200})[:-100]
    with server.connect(timeout=15 * SLOWNESS) as connection:
        connection.sendall(half)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
    wait_until(lambda: ended(server, 408, "error") == 1, "the server has ended it")
    server.wait_logged("status=408", "error=request_timeout")
    patient = server_factory(request_timeout=3600)
    with patient.connect() as connection:
        connection.sendall(half)
        wait_until(lambda: patient.metric("regla_request_body_bytes") > 0, "it is being received")
    wait_until(lambda: ended(patient, 499, "cancelled") == 1, "the client has")
    assert "request_timeout" not in patient.wait_logged("status=499")


@threads
def test_trickled_headers_are_closed(server_factory):
    server = server_factory(request_timeout=1)
    with server.connect(timeout=10 * SLOWNESS) as connection:
        connection.sendall(b"POST /v1/comp")
        try:
            assert connection.recv(1000) == b""
        except ConnectionResetError:
            pass
    assert server.complete(**GOOD)


# Garbage


@pytest.mark.parametrize("payload", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 200000 + b"\r\n\r\n",
    b"\r\n" * 1000, b"\0" * 1000, b"GET /health HTTP/1.1\nHost: x\n\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 10\r\nContent-Length: 20\r\n\r\n{}",
])
def test_garbage_on_the_wire(server, payload):
    with server.connect(timeout=10 * SLOWNESS) as connection:
        try:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
            assert answer == b"" or answer.startswith(b"HTTP/1.")
        except TimeoutError:
            raise AssertionError("neither answered nor closed") from None
        except OSError:  # closed, perhaps before all was sent
            pass
    assert server.get("/health").status_code == 200


def damage(good, dice):
    """Bytes flipped, cut, doubled, put in."""
    damaged = bytearray(good)
    for _ in range(dice.randint(1, 6)):
        place = dice.randrange(len(damaged))
        kind = dice.randrange(4)
        if kind == 0:
            damaged[place] = dice.randrange(256)
        elif kind == 1:
            del damaged[place:place + dice.randint(1, 20)]
        elif kind == 2:
            damaged[place:place] = damaged[place:place + dice.randint(1, 20)]
        else:
            damaged[place:place] = bytes(dice.choices(b'"{}[],:0e-\\\xff', k=3))
        if not damaged:
            damaged = bytearray(b"\r\n\r\n")
    return bytes(damaged)


def test_random_damage_to_a_request(server):
    """An HTTP answer or a closed connection. Half a request, and half a connection, wait a second
    for the rest: many at once."""
    good = request_bytes("/v1/completions", {
        "prompt": ["ab", "é"], "max_tokens": 1, "logit_bias": {"5": 1}, "stop": ["x"]})

    def send(number):
        damaged = damage(good, random.Random(number))
        with server.connect(timeout=10 * SLOWNESS) as connection:
            try:
                connection.sendall(damaged)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(65536)
                assert answer == b"" or answer.startswith(b"HTTP/1."), (damaged, answer)
            except TimeoutError as error:
                raise AssertionError(f"no answer to {damaged}") from error
            except OSError:
                pass
    with ThreadPoolExecutor(30) as pool:
        list(pool.map(send, range(150)))
    server.wait_idle()
    assert server.complete(**GOOD)


# Connections


def test_pipelined_requests_are_answered_in_order(server):
    with server.connect() as connection:
        requests = [request_bytes("/v1/completions", {"prompt": "x" * size, "max_tokens": 0,
                                                      "echo": True}) for size in (3, 1, 2)]
        connection.sendall(b"".join(requests) + request_bytes("/health", b"", method="GET"))
        reply = RawReply(connection)
        for size in (3, 1, 2):
            status, headers = reply.head()
            assert status == 200
            assert json.loads(reply.body(headers))["choices"][0]["text"] == "x" * size
        assert reply.head()[0] == 200


def test_expect_100_continue(server):
    body = json.dumps(GOOD).encode()
    with server.connect() as connection:
        head = request_bytes("/v1/completions", body, ["Expect: 100-continue"])[:-len(body)]
        connection.sendall(head)
        reply = RawReply(connection)
        assert reply.head()[0] == 100
        connection.sendall(body)
        assert reply.head()[0] == 200


@threads
def test_errors_under_load_do_not_disturb(server):
    """Refusals and good requests at once; each gets its own answer."""
    wrong = []

    def ask(number):
        for _ in range(10):
            if number % 2:
                reply = server.post("/v1/completions", {"prompt": "x", "temperature": 5})
                if reply.status_code != 400:
                    wrong.append(reply.text)
            else:
                reply = server.post("/v1/completions", {"prompt": [40 + number], "max_tokens": 0,
                                                        "echo": True, "return_token_ids": True})
                if reply.json()["choices"][0]["prompt_token_ids"] != [40 + number]:
                    wrong.append(reply.text)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
