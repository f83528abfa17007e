# SPDX-License-Identifier: Apache-2.0
"""Servers with one store behind HAProxy, as deploy/proxy/haproxy-replicas.cfg has it; and what can
happen to them."""

import os
import signal
import subprocess
import time

import httpx

import harness
from harness import ROOT, unused_port, wait_until
from redis_store import Redis
from unpacked import PROXIES


class Cables:
    """A network of its own for the store, with a cable to each server. In one that is pulled, packets
    vanish: nobody is told, as when a switch fails. Needs root."""

    def __init__(self, count):
        # It lasts as long as a process in it, and that until we end.
        self.holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
        self.inside = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]
        self.addresses = []
        try:
            self._wait_apart()
            for index in range(count):
                self._lay(index)
        except BaseException:
            self.remove()
            raise

    def _wait_apart(self):
        ours = os.readlink("/proc/self/ns/net")
        def apart():
            if self.holder.poll() is not None:
                raise PermissionError("no network of its own: unshare --net ended")
            return os.readlink(f"/proc/{self.holder.pid}/ns/net") != ours
        wait_until(apart, "a network of its own")

    def _lay(self, index):
        # Of 198.18.0.0/15, which is for tests (RFC 2544), four addresses.
        first = ((self.holder.pid * 8 + index) % 2**15) * 4
        near, far = (f"198.{18 + (first >> 16)}.{first >> 8 & 255}.{(first & 255) + end}" for end in (1, 2))
        name = f"regla{self.holder.pid}-{index}"
        self._ip("link", "add", name, "type", "veth", "peer", "name", f"cable{index}", "netns",
                 str(self.holder.pid))
        self._ip("address", "add", f"{near}/30", "dev", name)
        self._ip("link", "set", name, "up")
        self._ip("address", "add", f"{far}/30", "dev", f"cable{index}", inside=True)
        self.plug(index)
        self.addresses.append(far)

    def _ip(self, *words, inside=False):
        done = subprocess.run([*(self.inside if inside else []), "ip", *words], capture_output=True,
                              text=True, check=False)
        if done.returncode:
            raise PermissionError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def plug(self, index):
        self._ip("link", "set", f"cable{index}", "up", inside=True)

    def pull(self, index):
        self._ip("link", "set", f"cable{index}", "down", inside=True)

    def remove(self):
        self.holder.stdin.close()
        self.holder.wait()


class ReplicaSet:
    """cables: between the servers and the store; else they are where it is. edit: what becomes of the
    proxy's file. settings: of the store."""

    def __init__(self, folder, model, count=3, cables=None, edit=lambda text: text, settings=None, **flags):
        self.folder, self.model, self.cables, self.flags = folder, model, cables, {"threads": 1, **flags}
        self.proxy, self.servers = None, []
        port = unused_port()
        near = {"before": cables.inside, "port": port, "bind": "0.0.0.0",
                "protected_mode": "no"} if cables else {}
        self.redis = Redis(folder, **near, **(settings or {}))
        self.stores = [f"redis://{cables.addresses[i]}:{port}" if cables else self.redis.location
                       for i in range(count)]
        self.ports = [unused_port() for _ in range(count)]
        try:
            self.servers = [self.start(index) for index in range(count)]
            self._start_proxy(edit)
        except BaseException:
            self.stop()
            raise

    def _start_proxy(self, edit):
        self.port = unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        text = (ROOT / "deploy" / "proxy" / "haproxy-replicas.cfg").read_text()
        text = text.replace("bind :443 ssl crt /etc/ssl/regla/both.pem", f"bind 127.0.0.1:{self.port}")
        lines = [line for line in text.splitlines() if not line.startswith("    server regla-")]
        lines += [f"    server regla-{i + 1} 127.0.0.1:{port}" for i, port in enumerate(self.ports)]
        config = self.folder / "haproxy.cfg"
        config.write_text(edit("\n".join(lines) + "\n"))
        program, environment = PROXIES.find("haproxy"), PROXIES.environment()
        assert program, "no haproxy: deploy/deps.sh proxies unpacks it into tests/.proxies"
        checked = subprocess.run([program, "-c", "-f", config], env=environment, capture_output=True,
                                 text=True, check=False)
        assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
        with open(self.folder / "haproxy.log", "wb") as log:
            self.proxy = subprocess.Popen([program, "-db", "-f", config], env=environment,
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: self.status("/ready") == 200, "the proxy answers")

    def start(self, index):
        port = self.ports[index]
        server = harness.Server(self.folder / f"server-{port}-{time.monotonic_ns()}.log", self.model,
                                store=self.stores[index], port=port, **self.flags)
        server.ends_clean = False  # its port may be another's while it is dead
        return server

    def status(self, path):
        """What the proxy answers; 0: it does not."""
        try:
            return httpx.get(self.url + path, trust_env=False).status_code
        except httpx.TransportError:
            return 0

    def kill(self, index):
        self.servers[index].process.kill()
        self._begin_again(index)

    def restart(self, index):
        """As an update does it: what the server works on is done first."""
        self.servers[index].process.send_signal(signal.SIGTERM)
        self.servers[index].process.wait(60)
        assert self.servers[index].process.returncode == 0, self.servers[index].tail()
        self._begin_again(index)

    def _begin_again(self, index):
        self.servers[index].process.wait()
        self.servers[index].stop()
        self.servers[index] = self.start(index)

    def log_of(self, port):
        return "".join(path.read_text() for path in self.folder.glob(f"server-{port}-*.log"))

    def stop(self):
        if self.proxy:
            self.proxy.kill()
            self.proxy.wait()
        for server in self.servers:
            server.stop()
        self.redis.stop()
