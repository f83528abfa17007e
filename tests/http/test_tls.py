# SPDX-License-Identifier: Apache-2.0
"""TLS: versions, clients, renewal while connections are open, and what SIGHUP reads again. A client
that leaves, is slow or hostile is dealt with as without TLS."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from certificates import Certificate, needs_openssl
from harness import (BINARY, ENDLESS, GOLDEN, SLOWNESS, RawReply, ask, begin_stream, check_error,
                     read_frames, request_bytes, wait_until)

pytestmark = [pytest.mark.builds("dev"), needs_openssl]
sanitized = pytest.mark.builds("dev", "asan", "tsan")

HYBRID = GOLDEN / "hybrid_regla"
HANG_UP = 1 << signal.SIGHUP - 1  # in a mask of /proc


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("second"), "renewed")


@pytest.fixture
def certificate(tmp_path, first):
    """Whose files a test may change."""
    for source in (first.path, first.key):
        shutil.copy(source, tmp_path)
    copied = object.__new__(Certificate)
    copied.path, copied.key = tmp_path / first.path.name, tmp_path / first.key.name
    return copied


def connect(server, context):
    connection = socket.create_connection(("127.0.0.1", server.port), 60 * SLOWNESS)
    return context.wrap_socket(connection, server_hostname="localhost")


def served(server):
    """The certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(server, context) as connection:
        assert ask(connection) == 200
        return connection.getpeercert(binary_form=True)


def log_of(server):
    return server.log_path.read_text(errors="replace")


def hang_up(server, words):
    """SIGHUP; waits for what it makes the server say."""
    before = log_of(server).count(words)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: log_of(server).count(words) > before, lambda: f"{words}: {server.tail()}")


@sanitized
def test_requests_and_replies(server_factory, certificate):
    """Long ones, several at once on a connection, and one that is refused before its body came."""
    server = server_factory(max_body_bytes="1M", **certificate.flags())
    server.complete(prompt="x", max_tokens=2, user="u" * 500_000)
    choices = server.complete(prompt="abc", max_tokens=60, n=8, logprobs=5, ignore_eos=True)["choices"]
    assert len(choices) == 8
    assert len(server.stream(prompt="abc", max_tokens=20, ignore_eos=True)) > 10
    with connect(server, certificate.context()) as connection:
        connection.sendall(3 * request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 2}))
        reply = RawReply(connection)
        for _ in range(3):
            status, headers = reply.head()
            assert status == 200 and reply.body(headers)
        connection.sendall(request_bytes("/v1/completions", b"")[:-4].replace(
            b"Content-Length: 0", b"Content-Length: 9000000") + b"\r\n\r\n" + b" " * 100_000)
        assert reply.head()[0] == 413


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
def test_versions(server_factory, certificate):
    server = server_factory(**certificate.flags())
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = certificate.context()
        context.minimum_version = context.maximum_version = version
        with connect(server, context) as connection:
            assert connection.version() == version.name.replace("_", ".") and ask(connection) == 200
    for maximum, ciphers in ((ssl.TLSVersion.TLSv1_1, "ALL"), (ssl.TLSVersion.TLSv1, "ALL"),
                             (ssl.TLSVersion.TLSv1_2, "kRSA")):
        context = certificate.context()
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, maximum
        with pytest.raises(OSError):
            connect(server, context)


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_curl(server_factory, certificate):
    server = server_factory(**certificate.flags())
    for more in ([], ["--tls-max", "1.2"], ["--http1.0"], ["--http2"]):
        done = subprocess.run(
            ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--cacert",
             certificate.path, *more, f"https://localhost:{server.port}/v1/completions",
             "--json", '{"prompt": "x", "max_tokens": 5, "stream": true, "ignore_eos": true}'],
            capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert len(read_frames(done.stdout)) > 1
    untrusted = subprocess.run(["curl", "--silent", "--noproxy", "*", f"https://localhost:{server.port}/"],
                               timeout=60)
    assert untrusted.returncode == 60


def test_the_openai_client(server_factory, certificate):
    server = server_factory(**certificate.flags())
    with httpx.Client(verify=certificate.context(), trust_env=False) as http:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http,
                               max_retries=0)
        fields = {"model": server.model_id, "prompt": "x", "max_tokens": 8, "temperature": 0}
        whole = client.completions.create(**fields).choices[0].text
        chunks = client.completions.create(**fields, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole
        assert [model.id for model in client.models.list()] == [server.model_id]


@sanitized
def test_a_renewed_certificate_drops_no_connection(server_factory, certificate, first, second):
    server = server_factory(**certificate.flags())
    assert served(server) == first.der()
    with connect(server, first.context()) as streaming, connect(server, first.context()) as idle:
        assert ask(idle) == 200
        reply = begin_stream(streaming, max_tokens=3000 if SLOWNESS == 1 else 400)
        chunks = reply.chunks()
        body = next(chunks)
        second.copy_over(certificate)
        hang_up(server, "certificate of")
        assert served(server) == second.der()
        assert server.metric("regla_requests_running") == 1
        assert ask(idle) == 200
        body += b"".join(chunks)
        assert body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in body[-2000:]
    with connect(server, second.context()) as connection:
        assert ask(connection) == 200
    with pytest.raises(ssl.SSLError):
        connect(server, first.context())
    assert "cancelled" not in server.wait_logged("outcome=")


def test_a_bad_certificate_keeps_the_old_one(server_factory, certificate, first, second, tmp_path):
    server = server_factory(**certificate.flags())
    (tmp_path / "old").mkdir()
    expired = Certificate(tmp_path / "old", "expired", days=-1)

    def other_key():
        shutil.copy(second.path, certificate.path)

    for spoil, words in ((lambda: certificate.path.write_text("nonsense"), "--tls-cert"),
                         (other_key, "do not match"), (certificate.path.unlink, "No such file"),
                         (certificate.key.unlink, "--tls-key"),
                         (lambda: expired.copy_over(certificate), "not valid now"),
                         (lambda: certificate.path.write_bytes(b"\0" * (2 << 20)), "--tls-cert")):
        first.copy_over(certificate)
        spoil()
        hang_up(server, "certificate stays as it was")
        line = log_of(server).splitlines()[-1]
        assert "error" in line and words in line, line
        assert served(server) == first.der()
    second.copy_over(certificate)
    hang_up(server, "certificate of")
    assert served(server) == second.der()


def test_a_certificate_that_is_no_use_at_the_start(certificate, second, tmp_path, server_factory):
    missing = tmp_path / "none"
    for flags, words in ((["--tls-cert", certificate.path], "expected both"),
                         (["--tls-key", certificate.key], "expected both"),
                         (["--tls-cert", missing, "--tls-key", certificate.key], str(missing)),
                         (["--tls-cert", certificate.path, "--tls-key", missing], str(missing)),
                         (["--tls-cert", certificate.path, "--tls-key", second.key], "match"),
                         (["--tls-cert", certificate.key, "--tls-key", certificate.key], "--tls-cert")):
        done = subprocess.run([BINARY, "serve", "--model", HYBRID, "--port", "0", *flags],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert "listening" not in done.stderr
    (tmp_path / "old").mkdir()
    expired = Certificate(tmp_path / "old", "expired", days=-1)
    server = server_factory(**expired.flags())  # the clock may be wrong, too
    assert "warn  certificate of localhost" in server.tail() and "will refuse it" in server.tail()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@sanitized
def test_keys_are_read_again(server_factory, tmp_path, certificate):
    """A key that is taken away ends no request, and its sessions are there when it is back."""
    keys = tmp_path / "keys"
    keys.write_text("# of us\nold\nboth\n")
    server = server_factory(api_key_file=keys, state_dir=tmp_path / "states", **certificate.flags())
    server.http.headers.update(bearer("both"))

    def status(key):
        return server.get("/v1/models", headers=bearer(key)).status_code

    assert [status(key) for key in ("old", "both", "new")] == [200, 200, 401]
    made = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "session_id": "mine"},
                       headers=bearer("old"))
    assert made.status_code == 200, made.text
    with connect(server, certificate.context()) as connection:
        connection.sendall(request_bytes("/v1/completions", {
            "prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True},
            ["Authorization: Bearer old"]))
        reply = RawReply(connection)
        assert reply.head()[0] == 200
        keys.write_text("both\nnew\n")
        hang_up(server, "2 API keys")
        assert [status(key) for key in ("old", "both", "new")] == [401, 200, 200]
        assert b"".join(reply.chunks()).endswith(b"data: [DONE]\n\n")
    assert server.get("/v1/sessions/mine", headers=bearer("new")).status_code == 404
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2, "session_id": "mine"},
                       headers=bearer("new")).status_code == 200
    for bad in ("# none\n", None):
        keys.write_text(bad) if bad else keys.unlink()
        hang_up(server, "API keys stay as they were")
        assert [status(key) for key in ("old", "both", "new")] == [401, 200, 200]
    keys.write_text("old\nboth\n")
    hang_up(server, "2 API keys")
    assert [status(key) for key in ("old", "both", "new")] == [200, 200, 401]
    assert server.get("/v1/sessions/mine", headers=bearer("old")).json()["position"] == \
        made.json()["session"]["position"]


@sanitized
def test_who_leaves_is_noticed(server_factory, certificate):
    server = server_factory(**certificate.flags())
    for stream in (False, True):
        for politely in (True, False):
            connection = connect(server, certificate.context())
            connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": stream}))
            wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
            if politely:
                connection.settimeout(0.1)
                with contextlib.suppress(OSError, ssl.SSLError):
                    connection.unwrap()
            connection.close()
            server.wait_idle()


@sanitized
def test_what_is_malformed_is_refused(server_factory, certificate):
    """As without TLS (test_framing.py)."""
    server = server_factory(**certificate.flags())
    for head in (b"Content-Length: +5\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                 b"X: a\r\n b\r\n", b": v\r\n", b"X\0: a\r\n"):
        with connect(server, certificate.context()) as connection:
            assert ask(connection) == 200
            connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n12345")
            reply = RawReply(connection)
            status, headers = reply.head()
            assert status == 400 and b"invalid_request_error" in reply.body(headers)
            with contextlib.suppress(OSError):
                assert connection.recv(1) == b""
    assert server.get("/health").status_code == 200


@sanitized
def test_one_that_sends_nothing_more_is_answered(server_factory, certificate):
    """It says so in TLS, and closes its half of the connection. An interim reply shows regla that it is
    still there. (Of a stream Python's ssl would throw away what comes after that.)"""
    server = server_factory(**certificate.flags())
    with connect(server, certificate.context()) as connection:
        connection.sendall(request_bytes("/v1/completions", {
            "prompt": "x", "max_tokens": 3000 // SLOWNESS, "ignore_eos": True}))
        wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        connection.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            connection.unwrap()
        connection.settimeout(60 * SLOWNESS)
        socket.socket.shutdown(connection, socket.SHUT_WR)
        reply = RawReply(connection)
        status, headers = reply.head()
        if status == 100:
            status, headers = reply.head()
        assert status == 200 and reply.body(headers)
    assert "cancelled" not in server.wait_logged("outcome=")


def test_time_limits(server_factory, certificate):
    """Of a handshake as of a request; who has shaken hands and asks for nothing is idle."""
    server = server_factory(request_timeout=1, **certificate.flags())
    began = time.monotonic()
    slow = server.connect(timeout=20)
    slow.sendall(b"\x16\x03\x01\x02\x00\x01")  # of a hello, and no more
    halfway = connect(server, certificate.context())
    halfway.sendall(b"GET /health HTTP/1.1\r\nHos")
    idle = connect(server, certificate.context())
    for connection in (slow, halfway):
        with contextlib.suppress(OSError):  # a reset
            assert connection.recv(1) == b""
        assert 0.8 < time.monotonic() - began < 10
    time.sleep(max(0, began + 2 - time.monotonic()))
    assert ask(idle) == 200
    time.sleep(1.5)
    assert ask(idle) == 200
    idle.sendall(b"G")
    assert idle.recv(1) == b""
    for connection in (slow, halfway, idle):
        connection.close()


@sanitized
def test_what_is_no_tls_is_closed(server_factory, certificate):
    server = server_factory(**certificate.flags())
    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(2000),
                 b"\x16\x03\x01\xff\xff" + b"\0" * 70000, b"\x15\x03\x01\0\2\2\0",
                 b"\x80\x2e\1\3\1"):
        with server.connect(timeout=30 * SLOWNESS) as connection, contextlib.suppress(OSError):
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1000):
                pass
    assert server.get("/health").status_code == 200


def test_a_unix_socket_speaks_plain_http(server_factory, certificate, tmp_path_factory):
    path = tmp_path_factory.mktemp("s") / "s"
    server = server_factory(host=["127.0.0.1", f"unix:{path}"], **certificate.flags())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        assert ask(connection) == 200
    assert server.get("/health").status_code == 200


def signals_held(process):
    mask = Path(f"/proc/{process.pid}/status").read_text().split("SigBlk:")[1].split()[0]
    return int(mask, 16) & HANG_UP


def test_signals_that_end_nothing(server_factory, big_model):
    """At no time: while it reads, loads, serves, drains."""
    server = server_factory(model=big_model, wait=False, drain_timeout=20)
    for _ in range(3):
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)
    server.wait_ready()
    server.wait_logged("there is neither")
    with server.connect() as connection:
        reply = begin_stream(connection, max_tokens=20)
        server.process.send_signal(signal.SIGTERM)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            server.process.send_signal(number)
        assert b"".join(reply.chunks()).endswith(b"data: [DONE]\n\n")
    assert server.process.wait(30) == 0


def test_signals_before_anything_is_read():
    process = subprocess.Popen([BINARY, "serve", "--model", HYBRID, "--port", "0"],
                               stderr=subprocess.PIPE, text=True)
    wait_until(lambda: signals_held(process), "it holds SIGHUP back")
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    assert any("ready: " in line for line in process.stderr)
    process.terminate()
    process.communicate()
    assert process.returncode == 0


@sanitized
def test_many_renewals_under_load(server_factory, certificate, first, second, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    server = server_factory(api_key_file=keys, **certificate.flags())
    server.http.headers.update({**bearer("k"), "Connection": "close"})
    statuses, over = set(), threading.Event()

    def post():
        while not over.is_set():
            statuses.add(server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code)

    load = threading.Thread(target=post)
    load.start()
    try:
        for turn in range(20):
            (second if turn % 2 else first).copy_over(certificate)
            hang_up(server, "certificate of")  # before the next: the two files do not change at once
    finally:
        over.set()
        load.join()
    assert statuses == {200}
    assert served(server) == second.der()
    log = server.whole_log()
    assert "as it was" not in log and "as they were" not in log


def test_a_file_that_never_comes_holds_nobody_up(server_factory, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    server = server_factory(api_key_file=keys)
    server.http.headers.update(bearer("k"))
    keys.unlink()
    os.mkfifo(keys)
    server.process.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGHUP)
    assert server.complete(prompt="x", max_tokens=1)
    check_error(server.get("/v1/models", headers=bearer("other")), 401)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5
