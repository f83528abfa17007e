# SPDX-License-Identifier: Apache-2.0
"""A Redis with one that follows it, and what leads to whichever of them is the master: a proxy, or
Sentinels."""

import contextlib
import socket
import subprocess
import threading

import harness
from harness import unused_port, wait_until
from redis_store import Redis, program, read_reply
from unpacked import REDIS


class Pair:
    """By TCP on loopback. master, other: which is which now."""

    def __init__(self, folder, **settings):
        self.nodes = []
        for name in ("first", "second"):
            (folder / name).mkdir()
            follows = {"replicaof": f"127.0.0.1 {self.nodes[0].port}"} if self.nodes else {}
            port = unused_port()
            node = Redis(folder / name, port=port, repl_diskless_sync_delay=0, **follows, **settings)
            node.port = port
            self.nodes.append(node)
        self.master, self.other = self.nodes
        self.wait_followed()

    def wait_followed(self):
        """The new master is there, and has its replica."""
        wait_until(lambda: b"state=online" in self.master.ask("INFO", "replication"), "it is followed")
        wait_until(lambda: self.master.ask("WAIT", 1, 100) == 1, "its replica has all")

    def follow(self):
        self.other.ask("REPLICAOF", "127.0.0.1", self.master.port)

    def exchange(self):
        """They have changed their roles."""
        self.master, self.other = self.other, self.master

    def start_again(self):
        """The one that was killed, as a replica."""
        self.other.settings["replicaof"] = f"127.0.0.1 {self.master.port}"
        self.other.start()

    def stop(self):
        for node in self.nodes:
            node.stop()


class Proxy:
    """Leads each new connection to the port that it is set to; those that are there stay."""

    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    @staticmethod
    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stop(self):
        self.listener.close()


class Sentinels:
    """That watch a pair. settings: lines of their files."""

    def __init__(self, folder, pair, count, *settings):
        self.ports, self.processes = [], []
        for i in range(count):
            port, config = unused_port(), folder / f"sentinel-{i}.conf"
            config.write_text("\n".join([
                f"port {port}", "bind 127.0.0.1", f"dir {folder}",
                f"sentinel monitor regla 127.0.0.1 {pair.master.port} {count // 2 + 1}",
                "sentinel down-after-milliseconds regla 2000", "sentinel failover-timeout regla 5000",
                *settings]) + "\n")
            with open(folder / f"sentinel-{i}.log", "wb") as log:
                self.processes.append(subprocess.Popen([program(), config, "--sentinel"], stdout=log,
                                                       stderr=log, env=REDIS.environment()))
            self.ports.append(port)
        # Redis before 7 says "+sentinel" of others every two seconds.
        wait_until(self.are_ready, "the Sentinels know the pair and each other")

    def ask(self, *words, port=None):
        with socket.create_connection(("127.0.0.1", port or self.ports[0])) as connection:
            connection.settimeout(10 * harness.SLOWNESS)
            connection.sendall(b"*%d\r\n" % len(words) + b"".join(
                b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words)))
            return read_reply(connection.makefile("rb"))

    def are_ready(self):
        try:
            return all(len(self.ask("SENTINEL", "REPLICAS", "regla", port=port)) == 1
                       and str(self.ask("SENTINEL", "CKQUORUM", "regla", port=port)).startswith("OK")
                       for port in self.ports)
        except (OSError, TypeError):
            return False

    def master_port(self):
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "regla")[1])

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
