# SPDX-License-Identifier: Apache-2.0
"""What happens around the server rather than in a request: no more descriptors, a crowd of idle
connections, signals at the worst moment."""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

import harness
from harness import (REQUEST_SECONDS, SLOWNESS, START_SECONDS, RawReply, ask, check_a_full_look,
                     read_frames, request_bytes, stopped, wait_until)
from session_helpers import GREEDY, position
from stress_helpers import session_rows


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def cpu_seconds(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


NO_MEMORY = r"""
#include <stdlib.h>
void *__libc_malloc(size_t size);
void *malloc(size_t size)
{
    return size == NO_MALLOC_OF ? NULL : __libc_malloc(size);
}
"""


@pytest.mark.builds("dev")  # the sanitizers bring an allocator of theirs
@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
def test_a_session_without_memory_for_its_tokens_is_told_and_stays(
        server_factory, tmp_path, monkeypatch, stream):
    """They are allocated when the completion has ended: 4 bytes for each, and one more."""
    before, prompt, generated = 700, 800, 3
    size = 4 * (before + prompt + generated + 1)
    library = tmp_path / "no_memory.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DNO_MALLOC_OF={size}", "-o", library, "-xc", "-"],
                   input=NO_MEMORY, text=True, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    server = server_factory()
    monkeypatch.delenv("LD_PRELOAD")
    server.complete(prompt=[5] * before, session_id="s", max_tokens=0)
    body = {"prompt": [6] * prompt, "session_id": "s", "max_tokens": generated, **GREEDY}
    if stream:
        with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            frames = read_frames(reply.read())
        assert frames[-1]["error"]["code"] == "out_of_memory"
    else:
        harness.check_error(server.post("/v1/completions", body), 503, "out_of_memory")
    assert position(server, "s") == before
    again = server.complete(**{**body, "max_tokens": generated + 1})
    assert again["session"]["position"] == before + prompt + generated + 1


def test_fewer_files_than_connections(server_factory, tmp_path, monkeypatch):
    """As many come in as leave some for other things; who is idle makes room; and nothing spins."""
    most = 120
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -n {most}\nexec "{harness.BINARY}" "$@"\n')
    limited.chmod(0o700)
    monkeypatch.setattr(harness, "BINARY", limited)
    server = server_factory(state_dir=tmp_path / "state")
    assert f"60 at most, as this process may open only {most} files" in server.tail()
    there = server.connect()
    assert ask(there) == 200
    crowd = [server.connect() for _ in range(200)]
    wait_until(lambda: open_files(server) >= 60, "they come in")
    before = cpu_seconds(server)
    time.sleep(0.5)  # in which a loop that accepts and fails would take as much
    assert cpu_seconds(server) - before < 0.25 * SLOWNESS
    assert open_files(server) < most
    there.close()  # it was idle longest, and had to go
    there = server.connect()
    there.sendall(request_bytes("/v1/completions", {"prompt": "x", "session_id": "kept",
                                                    "max_tokens": 1}))
    assert RawReply(there).head()[0] == 200
    assert len(session_rows(tmp_path / "state")) == 1
    for connection in [there, *crowd]:
        connection.close()
    assert server.complete(prompt="x", max_tokens=1)


def test_a_crowd_of_idle_connections_disturbs_nobody(server_factory):
    server = server_factory()
    crowd = [server.connect() for _ in range(600 // SLOWNESS)]
    assert ask(*crowd[::7]) == 200
    assert server.complete(prompt="x", max_tokens=30, ignore_eos=True)["usage"]["completion_tokens"] == 30
    assert ask(*crowd) == 200
    for connection in crowd:
        connection.close()


@pytest.mark.parametrize("leaves", ["early", "while it runs", "half", "by reset"])
def test_clients_that_leave_their_streams_leave_no_sockets(server_factory, leaves):
    """libmicrohttpd forgets a connection whose reply ends with an error, where older ones idle."""
    server = server_factory()
    crowd = [server.connect() for _ in range(6)]
    assert ask(*crowd) == 200
    wait_until(lambda: server.get("/health").status_code == 200, "answers")
    before = open_files(server)
    for _ in range(20):
        with server.connect() as connection:
            if leaves == "by reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request_bytes("/v1/completions", {
                "prompt": "x", "max_tokens": 50 if leaves == "early" else 3000, "ignore_eos": True,
                "stream": True}))
            if leaves != "by reset":
                connection.recv(100)
            if leaves in ("while it runs", "half"):
                time.sleep(0.02)
            if leaves == "half":
                connection.shutdown(socket.SHUT_WR)
                time.sleep(0.02)
    wait_until(lambda: open_files(server) <= before,
               lambda: f"{open_files(server) - before} of 20 sockets are left", 10)
    for connection in crowd:
        connection.close()


def test_a_full_look_at_the_sockets_is_answered_at_once(server_factory):
    server = server_factory(http_threads=1)
    check_a_full_look(server, [server.connect() for _ in range(128)])


def test_who_comes_while_the_server_has_no_processor_waits_in_line(server_factory):
    """Where the kernel has no room for one more it drops the SYN, and a second is lost or more."""
    room = int(Path("/proc/sys/net/core/somaxconn").read_text())
    server = server_factory()
    with stopped(server):
        crowd = [server.connect(timeout=10) for _ in range(min(600, room))]
    for connection in crowd:
        connection.settimeout(REQUEST_SECONDS)
    assert ask(*crowd) == 200
    for connection in crowd:
        connection.close()


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(server_factory):
    server = server_factory(idle_timeout=1)
    server.http.headers["Connection"] = "close"  # or one may be closed as it is used again
    assert server.get("/health").status_code == 200
    idle, busy = server.connect(), server.connect()
    assert ask(idle) == 200
    busy.sendall(request_bytes("/v1/completions", {
        "prompt": "x", "max_tokens": 200000, "ignore_eos": True, "stream": True}))
    reply = RawReply(busy)
    assert reply.head()[0] == 200
    assert idle.recv(1) == b""
    assert next(reply.chunks())
    idle.close()
    busy.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded(server_factory, big_model, number):
    server = server_factory(model=big_model, wait=False)
    server.process.send_signal(number)
    assert server.process.wait(START_SECONDS) == 0


def received(connection):
    """Everything until the server closes."""
    whole = b""
    try:
        while data := connection.recv(65536):
            whole += data
    except ConnectionResetError:
        pass
    return whole


def test_sigterm_while_a_state_is_read(server_factory, tmp_path):
    """At whatever moment of a request that goes on from a file: it is answered whole, or refused, or
    was not seen any more; and the session is what the answer says."""
    dice = random.Random(4)
    flags = {"state_dir": tmp_path / "state", "checkpoint_interval": 64}
    server = server_factory(**flags)
    held = server.complete(prompt=[dice.randrange(1, 200) for _ in range(1500)], session_id="long",
                           max_tokens=2, **GREEDY)["session"]["position"]
    server.stop()
    for attempt in range(6):
        server = server_factory(**flags)
        assert position(server, "long") == held
        with server.connect() as connection:
            connection.sendall(request_bytes("/v1/completions", {
                "prompt": [5, 6], "session_id": "long", "max_tokens": 2, **GREEDY}))
            time.sleep(0.002 * attempt)  # any moment will do
            server.process.send_signal(signal.SIGTERM)
            head, _, body = received(connection).partition(b"\r\n\r\n")
        assert server.process.wait(START_SECONDS) == 0
        if head.startswith(b"HTTP/1.1 200 "):
            held += 4
            assert json.loads(body)["session"]["position"] == held
        else:
            assert head == b"" or head.startswith(b"HTTP/1.1 503 "), head
