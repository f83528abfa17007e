# SPDX-License-Identifier: Apache-2.0
"""Starts `regla serve`, talks to it, and stops it: what every test in this folder builds on."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
BINARY = Path(os.environ.get("REGLA_BINARY", ROOT / "build" / "dev" / "regla"))
if not BINARY.is_absolute():
    BINARY = ROOT / BINARY
# How much slower than a plain build the binary under test may be: scales waits, never tolerances.
BUILD = next((name for name in ("asan", "tsan") if name in BINARY.parts), "dev")
SLOWNESS = {"dev": 1, "asan": 4, "tsan": 8}[BUILD]
START_SECONDS = 30 * SLOWNESS
REQUEST_SECONDS = 60 * SLOWNESS
# The module that holds replies against api/openapi.json, where it is wanted (conftest.py). loadtest/
# runs on machines that do not have what it imports.
CONTRACT = None
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDLESS = {"prompt": "x", "max_tokens": 200000, "ignore_eos": True}
SANITIZER = re.compile(r"Sanitizer|runtime error:")


def wait_until(condition, what, seconds=60):
    """What condition() gives once it gives something; `what` for the message, or what makes it.
    Only time in which something could be seen counts: a machine that stood still has shown nothing."""
    left = seconds * SLOWNESS
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        assert left > 0, f"not after {seconds * SLOWNESS} s: {what() if callable(what) else what}"
        time.sleep(0.01)
        left -= min(time.monotonic() - began, 1)


def shipped_model():
    """The model that `make serve` serves, or None before there is one."""
    found = sorted((ROOT / "models").glob("*/model.safetensors"))
    return found[0].parent if found else None


class Server:
    """One `regla serve` on a free loopback port. Flags as keywords: max_queue=2 is --max-queue 2, and
    a list is the flag several times; preset=… takes the place of the model."""

    def __init__(self, log_path, model, environment=None, wait=True, **flags):
        self.log_path = Path(log_path)
        self.model = Path(model)
        self.model_id = flags.get("preset", self.model.name.removesuffix(".gguf"))
        self.ends_clean = True  # False: a test that has it killed
        flags = {"host": "127.0.0.1", "port": 0, "threads": 2, **flags}
        arguments = [str(BINARY), "serve"]
        if "preset" not in flags:
            arguments += ["--model", str(self.model)]
        for name, value in flags.items():
            flag = "--" + name.replace("_", "-")
            for each in value if isinstance(value, list) else [value]:
                arguments += [flag] if each is True else [flag, str(each)]
        self.log = open(self.log_path, "wb")  # noqa: SIM115
        level = (environment or {}).get("REGLA_LOG_LEVEL", flags.get("log_level", "info"))
        self.tells_start = level in ("debug", "info")
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})})
        try:
            self._reach(flags, wait)
        except BaseException:  # nobody else has it yet
            self.process.kill()
            self.process.wait()
            self.log.close()
            raise

    def _reach(self, flags, wait):
        self.port = flags["port"] or self.listening_port()
        self.url = f"http{'s' if 'tls_cert' in flags else ''}://127.0.0.1:{self.port}"
        client = CONTRACT.Client if CONTRACT else httpx.Client
        self.http = client(  # reads no certificates: that takes longer than our server's start
            base_url=self.url, timeout=REQUEST_SECONDS, trust_env=False, verify=False,
            limits=httpx.Limits(max_connections=512, max_keepalive_connections=64))
        if wait:
            self.wait_ready()

    def wait_for(self, what, look):
        """What look() gives once it gives something; the process may not end before."""
        def looked():
            found = look()
            if not found and self.process.poll() is not None:
                raise AssertionError(f"regla serve exited {self.process.returncode}: {self.tail()}")
            return found
        return wait_until(looked, lambda: f"{what}: {self.tail()}", START_SECONDS / SLOWNESS)

    def listening_port(self):
        """Of --port 0, which no other server can take before this one does."""
        said = re.compile(r"listening on https?://[^/ ]*:(\d+)\b")
        found = self.wait_for(
            "listening", lambda: said.search(self.log_path.read_text(errors="replace")))
        return int(found.group(1))

    def is_ready(self):
        try:
            return self.http.get("/ready", timeout=5 * SLOWNESS).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self):
        """Until it answers, and has logged what it has to say of its start."""
        self.wait_for("ready", self.is_ready)
        if self.tells_start:
            self.wait_for("ready, in the log", lambda: "ready: " in self.tail(1_000_000))

    def tail(self, characters=4000):
        return self.log_path.read_text(errors="replace")[-characters:]

    def whole_log(self):
        """The log, once all is in it that was said before: a thread of its own writes it. But the
        line of a request is said once its reply is out (wait_logged)."""
        if self.process.poll() is None:
            assert self.tells_start, "requests are not logged"
            mark = f"mark-{time.monotonic_ns()}"
            self.get("/nothing", headers={"X-Request-Id": mark})
            self.wait_logged(mark)
        return self.tail(1 << 30)

    def wait_logged(self, *words):
        """The first line of the log that has all of them, once it is there."""
        def line():
            return next((line for line in self.tail(1 << 30).splitlines()
                         if all(word in line for word in words)), None)
        return wait_until(line, lambda: f"{words} in a line of the log: {self.tail()}")

    def get(self, path, **options):
        return self.http.get(path, **options)

    def post(self, path, body=None, **options):
        return self.http.post(path, json=body, **options)

    def complete(self, **fields):
        """POST /v1/completions that must succeed; the reply's JSON."""
        reply = self.post("/v1/completions", fields)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def refuse(self, status, **fields):
        """POST /v1/completions that must be refused with this status; the error object."""
        reply = self.post("/v1/completions", fields)
        return check_error(reply, status)

    def stream(self, **fields):
        """POST /v1/completions with stream; the list of frames without [DONE]."""
        return read_frames(self.stream_bytes(**fields))

    def stream_bytes(self, **fields):
        reply = self.post("/v1/completions", {**fields, "stream": True})
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
        return reply.content

    def metrics(self):
        """{(name, frozenset of labels without model): value}"""
        values = {}
        for line in self.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, labels, value = re.fullmatch(
                    r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", line).groups()
                pairs = re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', labels or "")
                values[name, frozenset(p for p in pairs if p[0] != "model")] = float(value)
        return values

    def metric(self, metric_name, **labels):
        """The sum over all series of a metric that carry these labels."""
        wanted = set(labels.items())
        return sum(value for (name, pairs), value in self.metrics().items()
                   if name == metric_name and wanted <= pairs)

    def wait_metric(self, value, metric_name, **labels):
        """Until it has this value: a request is counted once its reply is out."""
        wait_until(lambda: self.metric(metric_name, **labels) == value,
                   lambda: f"{metric_name} {labels}: expected {value}, "
                           f"got {self.metric(metric_name, **labels)}")

    def busy(self):
        """What is not at rest: running and waiting requests, and bytes of texts in use."""
        requests = ("regla_requests_running", "regla_requests_waiting")
        memory = ("regla_memory_bytes", "regla_memory_reserved_bytes")
        texts = {("component", "recurrent_state"), ("component", "kv_cache")}
        return {key: value for key, value in self.metrics().items() if value != 0
                and (key[0] in requests or key[0] in memory and key[1] & texts)}

    def wait_idle(self, seconds=10):
        busy = {}

        def at_rest():
            nonlocal busy
            busy = self.busy()
            return not busy
        wait_until(at_rest, lambda: f"at rest: {busy}", seconds)

    def connect(self, timeout=REQUEST_SECONDS, receive_buffer=None):
        """A plain TCP connection."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(timeout)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def stop(self):
        """SIGTERM: exit 0, nothing left in the pools, no sanitizer report."""
        check = self.ends_clean
        if self.process.poll() is None:
            try:
                if check:
                    self.wait_idle()
            finally:
                self.http.close()
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(40 * SLOWNESS)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
        self.log.close()
        if check:
            assert self.process.returncode == 0, self.tail()
        log = self.log_path.read_text(errors="replace")
        assert not SANITIZER.search(log), log[-20000:]


def unused_port():
    """For what cannot say which port it was given: of those that nobody is given unasked."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [port for port in range(10000, 65536) if not low <= port <= high] or [0]
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return probe.getsockname()[1]
            except OSError:
                pass
    raise AssertionError("every port is in use")


def check_error(reply, status, code=None, param=None):
    """An error reply in OpenAI's shape; returns the error object."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"].split(";")[0] == "application/json"
    assert "x-request-id" in reply.headers
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param
    return error


def read_frames(body):
    """Server-sent events to the letter (api.md): `data: {json}\\n\\n` …, then `data: [DONE]\\n\\n`; on
    a slow machine perhaps comments among them."""
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    assert b"\r" not in body
    frames = body.split(b"\n\n")
    assert frames[-1] == b"" and frames[-2] == b"data: [DONE]"
    parsed = []
    for frame in frames[:-2]:
        if frame == b":":
            continue
        assert frame.startswith(b"data: {") and b"\n" not in frame, frame
        parsed.append(json.loads(frame[len(b"data: "):].decode("utf-8")))
    if CONTRACT:
        CONTRACT.check_frames(parsed)
    return parsed


def text_of(frames, index=0):
    return "".join(choice["text"] for frame in frames for choice in frame["choices"]
                   if choice["index"] == index)


def request_bytes(path, body, headers=(), method="POST"):
    """An HTTP/1.1 request as bytes, for tests that use plain sockets."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
            f"Content-Length: {len(payload)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + payload


def check_cut_short(server, path, body):
    """A client that leaves within its body, or sends no more: nobody is there for an error, and
    nothing is done."""
    request = request_bytes(path, body)
    for sent in (request.split(b"{")[0], request[:-20], request[:-1]):
        with server.connect() as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    server.wait_idle()


class RawReply:
    """Reads HTTP replies from a socket byte by byte, keeping what comes after each."""

    def __init__(self, connection):
        self.connection = connection
        self.rest = b""

    def _fill(self):
        data = self.connection.recv(65536)
        self.rest += data
        return bool(data)

    def _until(self, mark):
        while mark not in self.rest:
            assert self._fill(), f"closed before {mark!r}: {self.rest[-200:]!r}"
        found, self.rest = self.rest.split(mark, 1)
        return found

    def _exactly(self, length):
        while len(self.rest) < length:
            assert self._fill(), f"closed {length - len(self.rest)} bytes early"
        found, self.rest = self.rest[:length], self.rest[length:]
        return found

    def head(self):
        """(status, headers in lower case) of the next reply."""
        lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    def chunks(self):
        """The chunks of a chunked body, one by one."""
        while True:
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            data = self._exactly(size)
            assert self._exactly(2) == b"\r\n"
            if size == 0:
                return
            yield data

    def body(self, headers):
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(self.chunks())
        return self._exactly(int(headers["content-length"]))


def ask(*connections):
    """On connections that stay open; the status they all give. All ask before any is read: beside
    busy processes each turn from one to another waits for a processor."""
    for connection in connections:
        connection.sendall(HEALTH)
    statuses = set()
    for connection in connections:
        reply = RawReply(connection)
        status, headers = reply.head()
        reply.body(headers)
        statuses.add(status)
    status, = statuses
    return status


def begin_stream(connection, host="localhost", **fields):
    """Asks for a completion, without end unless fields say so; the reply, whose head has come."""
    connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True, **fields}).replace(
        b"localhost", host.encode(), 1))
    reply = RawReply(connection)
    assert reply.head()[0] == 200
    return reply


def is_stopped(server):
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T"
               for stat in Path(f"/proc/{server.process.pid}/task").glob("*/stat"))


@contextlib.contextmanager
def stopped(server):
    """In here none of the server's threads has a processor."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(server), "its threads stop")
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


def check_a_full_look(server, crowd):
    """libmicrohttpd takes 128 events at a time, and where there are as many looks again, and waits
    there, before it answers any. crowd: as many connections, which are closed at the end."""
    assert ask(*crowd[:100]) == ask(*crowd[100:]) == 200  # they are in; not by 128
    with stopped(server):
        for connection in crowd:
            connection.sendall(HEALTH)
    start = time.monotonic()
    for connection in crowd:
        assert RawReply(connection).head()[0] == 200
    assert time.monotonic() - start < 20 * SLOWNESS  # on a busy machine, too
    for connection in crowd:
        connection.close()
