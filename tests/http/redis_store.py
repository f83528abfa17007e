# SPDX-License-Identifier: Apache-2.0
"""A Redis of Debian's package, unpacked, for the tests of --store; and one that answers what a test
says. And what these tests share."""

import hashlib
import signal
import socket
import subprocess
import threading
from pathlib import Path

import harness
from harness import wait_until
from session_helpers import GREEDY
from unpacked import REDIS

LEASE = 2 * harness.SLOWNESS
TURN_SECONDS = 200 * harness.SLOWNESS  # for hangs: what LONG takes is longer where others compute, too
# A turn that lasts until it is cut off, and one of some seconds.
ENDLESS = {"max_tokens": 1000000, "ignore_eos": True, "temperature": 0}
LONG = {"max_tokens": 20000 // harness.SLOWNESS, "logprobs": None, "return_token_ids": False,
        "ignore_eos": True, "temperature": 0}


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


def tls_settings(certificate, port, clients="no"):
    """Of a Redis that speaks TLS. clients: whether they must show a certificate."""
    return {"tls_port": port, "tls_cert_file": certificate.path, "tls_key_file": certificate.key,
            "tls_ca_cert_file": certificate.path, "tls_auth_clients": clients,
            "tls_replication": "yes", "tls_cluster": "yes"}


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


class Cluster:
    """Three nodes on loopback, each with a third of the slots. certificate: they speak TLS with it."""

    SLOTS = 16384

    def __init__(self, folder, certificate=None):
        self.nodes = []
        for i in range(3):
            place = Path(folder) / f"node-{i}"
            place.mkdir()
            port = harness.unused_port()
            ports = tls_settings(certificate, port) if certificate else {"port": port}
            node = Redis(place, **ports, cluster_port=harness.unused_port(), cluster_enabled="yes",
                         cluster_require_full_coverage="no", cluster_node_timeout=2000)
            node.port, node.id = port, node.ask("CLUSTER", "MYID").decode()
            self.nodes.append(node)
        self.location = f"redis{'s' if certificate else ''}://127.0.0.1:{self.nodes[0].port}"
        bounds = [self.SLOTS * i // 3 for i in range(4)]
        for epoch, node, first, behind in zip((1, 2, 3), self.nodes, bounds, bounds[1:]):
            # One of its own, as redis-cli gives: else two may begin with one, and a node that takes a
            # newer one while its slot is moved gets the slot back, and all keys that were moved are gone.
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.settings["cluster_port"])
        wait_until(self.is_whole, "the nodes know each other")

    def is_whole(self):
        return all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
                   and len(node.ask("CLUSTER", "SLOTS")) >= 3 for node in self.nodes)

    def keys(self, pattern):
        return [key for node in self.nodes for key in node.keys(pattern)]

    def ask(self, command, key, *rest):
        """Of the node that has the key."""
        return self.nodes[self.holder(self.slot(key))].ask(command, key, *rest)

    def slot(self, key):
        return self.nodes[0].ask("CLUSTER", "KEYSLOT", key)

    def holder(self, slot):
        """Index of the node that has it, by its id: newer ones tell a port for connections like the
        one that asks alone, and these nodes have none."""
        ids = [node.id.encode() for node in self.nodes]
        return next(ids.index(where[2]) for first, last, where, *_ in self.nodes[0].ask("CLUSTER", "SLOTS")
                    if first <= slot <= last)

    def begin_to_move(self, slot):
        """And its keys: who asks is sent on for one question (ASK). What ends it (then: MOVED)."""
        at = self.holder(slot)
        source, target = self.nodes[at], self.nodes[(at + 1) % 3]
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

        def move_keys():
            keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10000)
            if keys:
                source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            return target.ask("CLUSTER", "COUNTKEYSINSLOT", slot)
        moved = move_keys()

        def end():
            move_keys()
            for node in (target, source, *self.nodes):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
            assert target.ask("CLUSTER", "COUNTKEYSINSLOT", slot) >= moved, "the cluster has lost keys"
        return end

    def stop(self):
        for node in self.nodes:
            node.stop()


def bulk(*words):
    """A reply of these."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def answers_of_a_busy_session(normal, mark, at_end):
    """FakeRedis.answer: a key is new, its session is busy, and at_end(words) answers what ends the key,
    by a script with the mark."""
    def answer(words):
        text = words[1] if words[0].upper() == b"EVAL" else b""
        if b"'PTTL'" in text:  # it claims the key
            return bulk(b"new")
        if b"'fence'" in text:
            return bulk(b"busy", b"1000")
        if b"{'lost'}" in text and mark in text:
            return at_end(words)
        return bulk(b"done") if text else normal(words)
    return answer


class FakeRedis:
    """Answers as Redis does until `hostile` is set: then with those bytes, whatever is asked that is
    a script. None: it closes the connection."""

    def __init__(self, folder):
        self.path = Path(folder) / "fake"
        self.location = f"unix:{self.path}"
        self.hostile = b""
        self.asked = 0
        self.scripts = {}
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
                reply = self.run(words)
                if reply is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(reply)
        except (OSError, AssertionError, ValueError):
            connection.close()

    def run(self, words):
        """Scripts by their SHA-1 as if they came by their text, once that has come."""
        name = words[0].upper()
        if name == b"EVAL":
            self.scripts[hashlib.sha1(words[1]).hexdigest().encode()] = words[1]
        elif name == b"EVALSHA":
            if words[1] not in self.scripts:
                return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
            words = [b"EVAL", self.scripts[words[1]], *words[2:]]
        return self.answer(words)  # looked up now: a test may have put another there

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


def turn(server, name, **fields):
    return server.post("/v1/completions", {"session_id": name, "prompt": [5, 6, 7],
                                           "max_tokens": 4, **GREEDY, **fields}, timeout=TURN_SECONDS)


def position(server, name):
    reply = server.get(f"/v1/sessions/{name}")
    assert reply.status_code == 200, reply.text
    return reply.json()["position"]


def in_background(function):
    """Runs it in a thread; gives what waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()

    def result():
        thread.join(TURN_SECONDS)
        assert results, "it has not ended"
        return results[0]
    return result


def wait_leased(redis, name):
    wait_until(lambda: [key for key in redis.keys(f"*:{name}}}") if redis.ask("HGET", key, "holder")],
               "the lease is taken")


def start_refused(**flags):
    """`regla serve` with these flags ends with status 1; what it says."""
    arguments = [str(harness.BINARY), "serve", "--model", str(harness.GOLDEN / "hybrid_regla"),
                 "--port", "0"]
    for name, value in flags.items():
        arguments += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False,
                           timeout=60 * harness.SLOWNESS)
    assert ended.returncode == 1, ended.stderr
    return ended.stdout + ended.stderr
