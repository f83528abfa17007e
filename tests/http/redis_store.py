# SPDX-License-Identifier: Apache-2.0
"""A Redis of Debian's package, unpacked, for the tests of --store; and one that answers what a test
says."""

import signal
import socket
import subprocess
import threading
from pathlib import Path

import harness
from unpacked import REDIS


def program():
    found = REDIS.find("redis-server")
    assert found, "no redis-server: deploy/deps.sh test unpacks it into tests/.redis"
    return str(found)


def read_reply(stream):
    """A reply of RESP 2: text, number, None, list, or an exception that is not raised."""
    line = stream.readline()
    assert line.endswith(b"\r\n"), "the store closed the connection"
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest.decode()
    if kind == b"-":
        return RuntimeError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
    assert kind == b"*", line
    return [read_reply(stream) for _ in range(int(rest))]


class Redis:
    """On a Unix socket, with every write on the disk before it is answered. before: the beginning of
    its command line."""

    def __init__(self, folder, before=(), **settings):
        self.folder, self.before = Path(folder), before
        self.socket = self.folder / "store"
        self.location = f"unix:{self.socket}"
        self.settings = {"appendonly": "yes", "appendfsync": "always", **settings}
        self.start()

    def start(self):
        arguments = [*self.before, program(), "--port", "0", "--unixsocket", str(self.socket), "--save", "",
                     "--dir", str(self.folder)]
        for name, value in self.settings.items():
            arguments += [f"--{name.replace('_', '-')}", str(value)]
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=REDIS.environment())
        harness.wait_until(self.answers, "redis-server answers")

    def answers(self):
        assert self.process.poll() is None, (self.folder / "redis.log").read_text()
        try:
            return self.ask("PING") == "PONG"
        except (OSError, RuntimeError):  # LOADING
            return False

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        command = b"*%d\r\n" % len(words) + b"".join(
            b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10 * harness.SLOWNESS)
            connection.connect(str(self.socket))
            connection.sendall(command)
            reply = read_reply(connection.makefile("rb"))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def keys(self, pattern):
        return self.ask("KEYS", pattern)

    def kill(self):
        """As a crash would."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.resume()
        self.kill()


class FakeRedis:
    """Answers as Redis does until `hostile` is set: then with those bytes, whatever is asked that is
    a script. None: it closes the connection."""

    def __init__(self, folder):
        self.path = Path(folder) / "fake"
        self.location = f"unix:{self.path}"
        self.hostile = b""
        self.asked = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen(16)
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            stream = connection.makefile("rb")
            while True:
                words = list(read_reply(stream))
                reply = self.answer(words)  # looked up now: a test may have put another there
                if reply is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(reply)
        except (OSError, AssertionError, ValueError):
            connection.close()

    def answer(self, words):
        name = words[0].upper()
        if name == b"PING":
            return b"+PONG\r\n"
        if name == b"INFO":
            return b"$21\r\nredis_version:7.0.15\n\r\n"
        if name == b"CONFIG":
            value = {b"maxmemory-policy": b"noeviction", b"appendonly": b"yes",
                     b"appendfsync": b"always"}[words[2]]
            return b"*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(words[2]), words[2], len(value), value)
        if name == b"SETNX":
            return b":1\r\n"
        if name == b"GET":
            return b"$32\r\n" + b"0123456789abcdef" * 2 + b"\r\n"
        if name != b"EVAL":
            return b":1\r\n"
        self.asked += 1
        return self.hostile

    def stop(self):
        self.listener.close()
        for connection in self.connections:
            connection.close()
