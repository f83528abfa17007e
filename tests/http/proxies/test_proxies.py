# SPDX-License-Identifier: Apache-2.0
"""Behind nginx, HAProxy and Caddy, configured as deploy/proxy/ has it: TLS ends in the proxy, and behind
it regla is reached by TCP, by a Unix socket, or by TLS again. `deploy/deps.sh proxies` unpacks them."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import openai
import pytest

from certificates import Certificate, needs_openssl
from harness import (ENDLESS, ROOT, RawReply, ask, begin_stream, request_bytes, unused_port,
                     wait_until)
from unpacked import PROXIES as PROXY_PROGRAMS

pytestmark = needs_openssl

HOST = "llm.example"
DONE = b"data: [DONE]\n\n"


def program(name):
    found = PROXY_PROGRAMS.find(name)
    if not found:
        pytest.skip(f"no {name} here: deploy/deps.sh proxies")
    return found


class Proxy:
    """One of the three, as its file in deploy/proxy/ says, but for addresses and certificates."""

    tries = 1  # of a stream

    def __init__(self, folder, name, behind, server, front):
        self.port, self.front = unused_port(), front
        self.behind = behind
        text = (ROOT / "deploy" / "proxy" / self.file).read_text()
        text = self.configure(self.secure(text) if behind == "tls" else text, folder)
        address = f"unix:{server.unix}" if behind == "unix" else f"127.0.0.1:{server.port}"
        text = text.replace("127.0.0.1:8000", self.unix(address))
        for path, real in (("certificate", front.path), ("key", front.key), ("both", folder / "both.pem"),
                           ("authority", server.certificate.path)):
            text = text.replace(f"/etc/ssl/regla/{path}.pem", str(real))
        (folder / "both.pem").write_text(front.path.read_text() + front.key.read_text())
        assert "/etc/ssl" not in text and "8000" not in text
        config = folder / self.file
        config.write_text(text)
        self.log = open(folder / "proxy.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [program(name), *self.arguments(config, folder)], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log,
            env={**PROXY_PROGRAMS.environment(), "HOME": str(folder)})
        self.log_path = folder / "proxy.log"
        self.context = front.context()
        wait_until(self.answers, lambda: f"{name} answers: {self.log_path.read_text()}")

    def secure(self, text):
        return text.replace("#tls ", "")

    def unix(self, address):
        return address

    def answers(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            with self.connect() as connection:
                connection.sendall(b"GET /ready HTTP/1.1\r\nHost: llm.example\r\n\r\n")
                return RawReply(connection).head()[0] == 200
        except OSError:
            return False

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), 60)
        return self.context.wrap_socket(connection, server_hostname="localhost")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.log.close()


class Nginx(Proxy):
    file = "nginx.conf"

    def secure(self, text):
        return super().secure(text).replace("http://regla", "https://regla")

    def configure(self, text, folder):
        text = text.replace("listen 443", f"listen 127.0.0.1:{self.port}")
        (folder / "all.conf").write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log stderr;\n"
            "events { worker_connections 600; }\nhttp {\naccess_log off;\n" + "".join(
                f"{kind}_temp_path {folder}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
            + f"include {folder}/{self.file};\n}}\n")
        return text

    def arguments(self, config, folder):
        return ["-p", folder, "-e", "stderr", "-c", folder / "all.conf"]


class Haproxy(Proxy):
    file = "haproxy.cfg"

    def secure(self, text):
        return re.sub(r".*\n *#tls (.*)", r"    \1", text)

    def configure(self, text, folder):
        return text.replace("bind :443", f"bind 127.0.0.1:{self.port}")

    def unix(self, address):
        return address.replace("unix:", "unix@")

    def arguments(self, config, folder):
        return ["-db", "-f", config]


class Caddy(Proxy):
    file = "Caddyfile"
    tries = 3  # Debian's 2.6.2 cuts one in 40, whatever is behind it ("use of closed network connection")

    def configure(self, text, folder):
        options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
        return options + text.replace("llm.example {", f"https://:{self.port} {{")

    def unix(self, address):
        return address.replace("unix:", "unix/")

    def arguments(self, config, folder):
        return ["run", "--config", config, "--adapter", "caddyfile"]


PROXIES = {"nginx": Nginx, "haproxy": Haproxy, "caddy": Caddy}


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("front"))


@pytest.fixture(params=[(name, behind) for name in PROXIES for behind in ("tcp", "unix", "tls")],
                ids="-".join)
def proxied(request, server_factory, tmp_path, tmp_path_factory, front):
    """(proxy, regla behind it)"""
    name, behind = request.param
    program(name)
    server = begin(server_factory, tmp_path, tmp_path_factory, behind)
    proxy = PROXIES[name](tmp_path_factory.mktemp("p"), name, behind, server, front)
    yield proxy, server
    proxy.stop()


def begin(server_factory, tmp_path, tmp_path_factory, behind):
    certificate = Certificate(tmp_path)
    path = tmp_path_factory.mktemp("s") / "s"
    flags = certificate.flags() if behind == "tls" else {}
    server = server_factory(host=["127.0.0.1", f"unix:{path}"], allowed_hosts="llm.example",
                            socket_mode="666", max_body_bytes="1M", idle_timeout=75, **flags)
    server.unix, server.certificate = path, certificate
    return server


def status(connection, path, body=b"", method="GET", host=b"llm.example", more=()):
    connection.sendall(request_bytes(path, body, more, method).replace(b"localhost", host))
    reply = RawReply(connection)
    code, headers = reply.head()
    return code, reply.body(headers), headers


def test_behind_a_proxy(proxied):
    """In one test, since each start costs: what clients see, and what regla sees of them."""
    proxy, server = proxied
    replies(proxy)
    connections_are_kept(proxy, server)
    repeat(streams, proxy, server)
    repeat(who_leaves, proxy, server)
    repeat(the_openai_client, proxy, server)
    if proxy.behind == "tls":
        repeat(a_renewal, proxy, server)
    nothing_is_smuggled(proxy, server)


def repeat(check, proxy, server):
    """Again where a reply ended early, as its bytes ("closed ...") or a library say."""
    for left in reversed(range(proxy.tries)):
        try:
            return check(proxy, server)
        except (AssertionError, httpx.NetworkError, httpx.RemoteProtocolError,
                openai.APIConnectionError) as error:
            is_cut = not isinstance(error, (AssertionError, openai.APITimeoutError))
            if left == 0 or not (is_cut or str(error).startswith("closed")):
                raise


def replies(proxy):
    with proxy.connect() as connection:
        code, _, headers = status(connection, "/health", more=["X-Request-Id: mine"])
        assert code == 200 and headers["x-request-id"] == "mine"
        assert status(connection, "/v1/nothing")[0] == 404
        code, body, headers = status(connection, "/v1/completions", {"prompt": 3}, "POST")
        assert code == 400 and b"prompt" in body and headers["x-request-id"].startswith("req-")
        code, body, _ = status(connection, "/v1/completions", {"prompt": "x", "max_tokens": 60, "n": 16,
                                                               "logprobs": 5}, "POST")
        assert code == 200 and len(body) > 50_000
    with proxy.connect() as connection:  # a name that regla was not told of
        assert status(connection, "/v1/models", host=b"evil.example")[0] in (403, 421)
    with proxy.connect() as connection:
        code, body, _ = status(connection, "/v1/completions", b" " * 2_000_000, "POST")
        assert code == 413 and b"1048576 bytes" in body


def sockets_of(server):
    """Those that regla has open now."""
    found = set()
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed meanwhile
            found.add(os.readlink(file))
    return {name for name in found if name.startswith("socket:")}


def connections_are_kept(proxy, server):
    """The one to the proxy, and what the first request took to regla: no other comes."""
    with proxy.connect() as connection:
        assert status(connection, "/health")[0] == 200
        first = sockets_of(server)
        for _ in range(19):
            assert status(connection, "/health")[0] == 200
        assert sockets_of(server) <= first


def stream(connection, **fields):
    """Its chunks. Caddy ends those that it cuts like whole ones."""
    end = b""
    for chunk in begin_stream(connection, HOST, **fields).chunks():
        end = (end + chunk)[-len(DONE):]
        yield chunk
    assert end == DONE, f"closed before {DONE!r}: {end!r}"


def streams(proxy, server):
    """Each token as it comes: the first is here while the text goes on."""
    with proxy.connect() as connection:
        chunks = stream(connection, max_tokens=4000)
        next(chunks)
        running = server.metric("regla_requests_running")
        assert all(chunks)
    assert running == 1


def who_leaves(proxy, server):
    for streamed in (True, False):
        with proxy.connect() as connection:
            if streamed:
                for _ in zip(range(100), stream(connection)):  # cut ones end within a few
                    pass
            else:
                connection.sendall(request_bytes("/v1/completions", ENDLESS).replace(
                    b"localhost", b"llm.example"))
            wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        server.wait_idle(20)


def the_openai_client(proxy, server):
    with httpx.Client(verify=proxy.context, trust_env=False) as http:
        client = openai.OpenAI(base_url=f"https://localhost:{proxy.port}/v1", api_key="none",
                               http_client=http, max_retries=0)
        fields = {"model": server.model_id, "prompt": "x", "max_tokens": 8, "temperature": 0}
        whole = client.completions.create(**fields).choices[0].text
        choices = [chunk.choices[0] for chunk in client.completions.create(**fields, stream=True)]
        assert choices and choices[-1].finish_reason, "closed early"
        assert "".join(choice.text for choice in choices) == whole


def a_renewal(proxy, server):
    """Of regla's own certificate, with the same key, while a stream runs."""
    log = server.log_path
    renewals = log.read_text().count("certificate of")
    with proxy.connect() as connection:
        chunks = stream(connection, max_tokens=4000)
        next(chunks)
        server.process.send_signal(1)
        wait_until(lambda: log.read_text().count("certificate of") > renewals, server.tail)
        running = server.metric("regla_requests_running")
        assert all(chunks)
    assert running == 1
    with proxy.connect() as connection:
        assert status(connection, "/health")[0] == 200


SMUGGLED = b"GET /v1/sessions?SMUGGLED HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(SMUGGLED)
AMBIGUOUS = [
    b"Content-Length:\r\n %d\r\n" % len(SMUGGLED), b"Content-Length: 0\0%d\r\n" % len(SMUGGLED),
    b"X: a\0b\r\n" + LENGTH, b": v\r\n" + LENGTH, b"X-A: b\r\n c\r\n" + LENGTH,
    b"X-A: b\rContent-Length: 0\r\n" + LENGTH]
CHUNKED = [
    b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % (len(SMUGGLED) + 5),
    b"Transfer-Encoding:\r\n chunked\r\nContent-Length: %d\r\n" % (len(SMUGGLED) + 5)]


def nothing_is_smuggled(proxy, server):
    """A body is never taken for a request. (Two requests that the proxy itself sees are two.)"""
    head = (b"POST /tokenize HTTP/1.1\r\nHost: llm.example\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\n")
    for sent in [head + more + b"\r\n" + SMUGGLED for more in [LENGTH, *AMBIGUOUS]] + [
            head + more + b"\r\n0\r\n\r\n" + SMUGGLED for more in CHUNKED]:
        with proxy.connect() as connection:
            connection.settimeout(5)
            connection.sendall(sent)
            try:
                while connection.recv(65536):
                    pass
            except (TimeoutError, ConnectionError, ssl.SSLError):
                pass
    with proxy.connect() as connection:
        assert status(connection, "/health")[0] == 200
    assert ask_regla(server) == 200
    assert "/v1/sessions" not in server.whole_log()


def ask_regla(server):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.unix))
        return ask(connection)
