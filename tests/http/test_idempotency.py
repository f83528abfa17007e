# SPDX-License-Identifier: Apache-2.0
"""Idempotency-Key, and retries of an append whose replies get lost: it is applied once."""

import contextlib
import json
import socket
import threading

import httpx
import openai
import pytest

from harness import REQUEST_SECONDS, SLOWNESS, RawReply, check_error, request_bytes, wait_until
from session_helpers import busy_session, frames_of, is_free, position

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

APPEND = {"prompt": "append me", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
MORE = {"prompt": " more", "max_tokens": 6, "temperature": 0}  # what the openai client knows of it


def post(server, body, key, path="/v1/completions", **headers):
    """The same bytes as harness.request_bytes sends."""
    return server.http.post(path, content=json.dumps(body).encode(), headers={
        "Content-Type": "application/json", "Idempotency-Key": key, **headers})


def completions(server):
    """How many completions have been answered with 200, whoever got the answer."""
    return server.metric("regla_generated_tokens_total")


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_reply_again(server, stream):
    name = f"again-{stream}"
    body = {**APPEND, "session_id": name, "stream": stream, "logprobs": 2}
    if stream:
        body["stream_options"] = {"include_usage": True}
    first = post(server, body, name)
    assert first.status_code == 200 and "idempotent-replayed" not in first.headers
    held, made = position(server, name), completions(server)
    for _ in range(3):
        again = post(server, body, name)
        assert again.status_code == 200
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert again.content == first.content
    assert position(server, name) == held
    assert completions(server) == made
    other = post(server, body, name + "-other")
    assert other.status_code == 200 and other.content != first.content
    assert position(server, name) > held


def test_without_a_session(server):
    body = {"prompt": "drawn at random", "max_tokens": 8}
    first = post(server, body, "no-session")
    assert post(server, body, "no-session").content == first.content


@threads
@pytest.mark.parametrize("stream", [False, True])
def test_a_body_that_a_worker_parses(server, stream):
    padding = {"user": "u" * 100_000}
    for name, more, status in (("good", {}, 200), ("bad", {"temperature": "hot"}, 400)):
        key = f"long-{stream}-{name}"
        body = {**APPEND, **padding, **more, "stream": stream, "request_id": key}
        first, again = (post(server, body, key) for _ in range(2))
        assert first.status_code == again.status_code == status, first.text
        assert first.content == again.content
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        # what has been parsed says so
        assert (first.headers["x-request-id"] == key) == (status == 200)


def test_another_body(server):
    body = {**APPEND, "session_id": "bodies"}
    assert post(server, body, "bodies").status_code == 200
    held = position(server, "bodies")
    reply = post(server, {**body, "max_tokens": 7}, "bodies")
    check_error(reply, 422, "idempotency_mismatch", "Idempotency-Key")
    assert position(server, "bodies") == held


def test_paths_are_told_apart(server):
    server.complete(**APPEND, session_id="paths")
    whole = position(server, "paths")
    assert post(server, {"id": "paths-2"}, "one", "/v1/sessions/paths/fork").status_code == 201
    first = post(server, {"position": 3}, "one", "/v1/sessions/paths/rewind")
    assert first.status_code == 200
    server.complete(**APPEND, session_id="paths")
    again = post(server, {"position": 3}, "one", "/v1/sessions/paths/rewind")
    assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
    assert position(server, "paths") > 3
    assert position(server, "paths-2") == whole
    again = post(server, {"id": "paths-2"}, "one", "/v1/sessions/paths/fork")
    assert again.status_code == 201 and again.headers["idempotent-replayed"] == "true"
    # It is for what changes something; a GET does not look at it.
    for path in ("/v1/sessions", "/v1/sessions/paths"):
        reply = server.get(path, headers={"Idempotency-Key": "one"})
        assert reply.status_code == 200 and "idempotent-replayed" not in reply.headers


def test_lasting_errors_are_kept_and_passing_ones_are_not(server):
    body = {**APPEND, "session_id": "errors", "expected_position": 5}
    first = post(server, body, "errors-412")
    check_error(first, 412, "position_mismatch")
    server.complete(prompt=[1, 2, 3, 4, 5], max_tokens=0, session_id="errors")
    again = post(server, body, "errors-412")
    check_error(again, 412)
    assert again.content == first.content and again.headers["idempotent-replayed"] == "true"
    wrong = {**APPEND, "n": 0}
    assert post(server, wrong, "errors-400").content == post(server, wrong, "errors-400").content
    with busy_session(server, "errors"):
        check_error(post(server, {**APPEND, "session_id": "errors"}, "errors-409"), 409,
                    "session_busy")
    reply = post(server, {**APPEND, "session_id": "errors"}, "errors-409")
    assert reply.status_code == 200 and "idempotent-replayed" not in reply.headers


def test_a_reply_that_was_kept_is_no_error(server):
    def ended(finish_reason):
        return server.metric("regla_requests_total", status="200", finish_reason=finish_reason)
    failed, replayed = ended("error"), ended("replayed")
    assert post(server, APPEND, "counted").status_code == 200
    assert "idempotent-replayed" in post(server, APPEND, "counted").headers
    wait_until(lambda: ended("replayed") == replayed + 1, "it is counted")
    assert ended("error") == failed
    server.wait_logged("replayed=1")


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "caf\u00e9"])
def test_keys_that_are_none(server, key):
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", APPEND, headers=(
            f"Idempotency-Key: {key}",)).replace("\u00e9".encode(), b"\xe9"))
        raw = RawReply(connection)
        status, headers = raw.head()
        error = json.loads(raw.body(headers))["error"]
    assert status == 400 and error["param"] == "Idempotency-Key"


def test_the_longest_key(server):
    assert post(server, APPEND, "x" * 255).status_code == 200
    assert "idempotent-replayed" in post(server, APPEND, "x" * 255).headers


@threads
def test_in_flight(server_factory):
    server = server_factory(max_running=1)
    body = {**APPEND, "session_id": "flying"}
    with busy_session(server, "runs"):
        with server.connect() as first, server.connect() as second:
            first.sendall(request_bytes("/v1/completions", body, ("Idempotency-Key: fly",)))
            wait_until(lambda: server.metric("regla_requests_waiting") == 1, "it waits")
            second.sendall(request_bytes("/v1/completions", body, ("Idempotency-Key: fly",)))
            reply = RawReply(second)
            status, headers = reply.head()
            assert status == 409 and headers["x-should-retry"] == "false"
            assert json.loads(reply.body(headers))["error"]["code"] == "idempotency_in_flight"
            reply = post(server, {**body, "max_tokens": 1}, "fly")
            check_error(reply, 422, "idempotency_mismatch")
    # The first one's client has left meanwhile: it has run all the same.
    again = wait_until(lambda: (reply := post(server, body, "fly")).status_code == 200 and reply,
                       "it runs on")
    assert again.headers["idempotent-replayed"] == "true"
    assert position(server, "flying") == again.json()["session"]["position"]


@threads
def test_a_stream_runs_on_without_its_client(server):
    tokens = 2000 if SLOWNESS == 1 else 600
    body = {**APPEND, "session_id": "alone", "stream": True, "max_tokens": tokens}
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request_bytes("/v1/completions", body, ("Idempotency-Key: alone",)))
        reply = RawReply(connection)
        reply.head()
        first = next(frames_of(reply))
    again = wait_until(lambda: (reply := post(server, body, "alone")).status_code == 200 and reply,
                       "it runs on")
    assert again.headers["idempotent-replayed"] == "true"
    frames = again.content.split(b"\n\n")
    assert json.loads(frames[0][len(b"data: "):]) == first
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert len(frames) > tokens / 2
    plain = server.complete(**{**body, "session_id": "not-alone", "stream": False})
    assert position(server, "alone") == plain["session"]["position"]


@threads
def test_cancelled_by_request_is_kept(server):
    body = {**APPEND, "session_id": "stopped", "stream": True, "max_tokens": 200000}
    headers = ("Idempotency-Key: stopped", "X-Request-Id: stop-me")
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", body, headers))
        reply = RawReply(connection)
        reply.head()
        next(frames_of(reply))
    wait_until(lambda: server.post("/v1/requests/stop-me/cancel").status_code == 200, "cancelled")
    wait_until(lambda: is_free(server, "stopped"), "it ends")
    held = position(server, "stopped")
    reply = wait_until(lambda: (r := post(server, body, "stopped")).status_code != 409 and r, "kept")
    assert b'"cancelled"' in reply.content and reply.content.endswith(b"data: [DONE]\n\n")
    assert position(server, "stopped") == held


@threads
def test_bounded_memory(server_factory):
    server = server_factory(idempotency_memory=100000)
    body = {"prompt": "x", "max_tokens": 60, "logprobs": 5}
    first = post(server, body, "key 0")
    for number in range(1, 40):
        assert post(server, body, f"key {number}").status_code == 200
    assert post(server, body, "key 39").headers["idempotent-replayed"] == "true"
    again = post(server, body, "key 0")
    assert "idempotent-replayed" not in again.headers and again.content != first.content


def test_two_api_keys(server_factory):
    server = server_factory(api_key="alice,bob")
    alice = {"Authorization": "Bearer alice"}
    bob = {"Authorization": "Bearer bob"}
    body = {"prompt": "the same", "max_tokens": 4, "session_id": "mine"}
    first = post(server, body, "shared", **alice)
    other = post(server, body, "shared", **bob)
    assert "idempotent-replayed" not in other.headers and other.content != first.content
    assert post(server, body, "shared", **alice).content == first.content
    server.ends_clean = False  # /metrics wants a key


# A proxy that loses replies

class Proxy:
    """Forwards each request on a connection of its own and loses the replies to the first `losses`:
    the server has answered (whole, or to the first bytes of a stream), the client never hears it."""

    def __init__(self, server, losses, whole):
        self.server, self.losses, self.whole = server, losses, whole
        self.requests = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            with client:
                client.settimeout(REQUEST_SECONDS)
                request = read_request(client)
                if not request:
                    return
                self.requests += 1
                with self.server.connect() as upstream:
                    upstream.sendall(request)
                    if self.requests <= self.losses:
                        self.lose(upstream)
                    else:
                        forward(upstream, client)

    def lose(self, upstream):
        if not self.whole:
            upstream.recv(16)
            return
        reply = RawReply(upstream)
        _, headers = reply.head()
        reply.body(headers)

    def stop(self):
        with socket.create_connection(self.listener.getsockname()):
            pass
        self.thread.join()
        self.listener.close()


def read_request(client):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(65536)
        if not piece:
            return b""
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(next(line.split(b":")[1] for line in head.split(b"\r\n")
                      if line.lower().startswith(b"content-length:")))
    while len(body) < length:
        body += client.recv(65536)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join(lines + [b"Connection: close"]) + b"\r\n\r\n" + body


def forward(upstream, client):
    with contextlib.suppress(ConnectionError):
        while data := upstream.recv(65536):
            client.sendall(data)


@pytest.fixture(params=[True, False], ids=["answered", "begun"])
def lossy(server, request):
    proxies = []

    def create(losses):
        proxies.append(Proxy(server, losses, request.param))
        return proxies[-1]
    yield create
    for proxy in proxies:
        proxy.stop()


def client_of(proxy, retries=0):
    return openai.OpenAI(base_url=proxy.url + "/v1", api_key="x", max_retries=retries,
                         http_client=httpx.Client(trust_env=False))


@threads
def test_retries_with_expected_position_append_once(server, lossy):
    """The third attempt gets through; the first or the second may have been applied, none twice."""
    proxy = lossy(2)
    client = client_of(proxy)
    name = f"retried-{proxy.whole}"
    start = server.complete(prompt="start", session_id=name, max_tokens=2)["session"]["position"]
    outcomes = []
    for _ in range(3):
        try:
            client.completions.create(model=server.model_id, **MORE,
                                      extra_body={"session_id": name, "expected_position": start,
                                                  "ignore_eos": True})
            outcomes.append(200)
        except openai.APIConnectionError:
            outcomes.append("lost")
            wait_until(lambda: is_free(server, name), "the first one ends")
        except openai.APIStatusError as error:
            outcomes.append(error.status_code)
    assert outcomes[:2] == ["lost", "lost"] and outcomes[2] in (200, 412)
    if proxy.whole:
        assert outcomes[2] == 412
    once = server.complete(prompt=" more", session_id=name, store=False, max_tokens=0)
    appended = once["usage"]["prompt_tokens"] - position(server, name)
    assert position(server, name) == start + appended + 6


@threads
@pytest.mark.parametrize("stream", [False, True])
def test_retries_with_a_key_append_once(server, lossy, stream):
    proxy = lossy(2)
    client = client_of(proxy)
    name = f"keyed-{proxy.whole}-{stream}"
    start = server.complete(prompt="start", session_id=name, max_tokens=2)["session"]["position"]

    def attempt():
        reply = client.completions.create(
            model=server.model_id, stream=stream, **MORE,
            extra_headers={"Idempotency-Key": name}, extra_body={"session_id": name,
                                                                 "ignore_eos": True})
        return "".join(chunk.choices[0].text for chunk in reply) if stream else reply.choices[0].text
    for _ in range(2):
        with pytest.raises((openai.APIConnectionError, httpx.TransportError)):
            attempt()
        wait_until(lambda: is_free(server, name), "it runs on")
    text = attempt()
    once = server.complete(prompt=" more", session_id=name, store=False, max_tokens=0)
    appended = once["usage"]["prompt_tokens"] - position(server, name)
    assert position(server, name) == start + appended + 6
    server.post(f"/v1/sessions/{name}/rewind", {"position": start})
    again = server.complete(**{**APPEND, "prompt": " more"}, session_id=name)
    assert again["choices"][0]["text"] == text


def test_the_clients_own_retries(server):
    """max_retries of the openai client with a key: one append, and the client gets its reply."""
    proxy = Proxy(server, losses=2, whole=True)
    try:
        reply = client_of(proxy, retries=3).completions.create(
            model=server.model_id, **MORE, extra_headers={"Idempotency-Key": "own"},
            extra_body={"session_id": "own", "ignore_eos": True})
        assert proxy.requests == 3
    finally:
        proxy.stop()
    assert position(server, "own") == reply.session["position"]
