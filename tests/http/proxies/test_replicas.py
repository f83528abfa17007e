# SPDX-License-Identifier: Apache-2.0
"""Three servers with one store behind HAProxy, as deploy/proxy/haproxy-replicas.cfg has it, while some of
them are killed. `deploy/deps.sh proxies` unpacks HAProxy and Redis."""

import os
import random
import struct
import subprocess
import threading
import time

import httpx
import pytest

import harness
from harness import GOLDEN, ROOT, unused_port, wait_until
from redis_store import Redis
from session_helpers import GREEDY, cold
from test_proxies import FOLDER, program
from turn_history import Event, violations

LEASE = 1
CLIENTS, SESSIONS, KILLS = 6, 3, 10
NAMES = [f"shared-{i}" for i in range(SESSIONS)]


class Replicas:
    """The servers at their ports, the store and the proxy."""

    def __init__(self, folder):
        self.folder = folder
        self.redis = Redis(folder)
        self.ports = [unused_port() for _ in range(3)]
        self.servers = [self.start(port) for port in self.ports]
        self.port = unused_port()
        text = (ROOT / "deploy" / "proxy" / "haproxy-replicas.cfg").read_text()
        text = text.replace("bind :443 ssl crt /etc/ssl/regla/both.pem", f"bind 127.0.0.1:{self.port}")
        for i, port in enumerate(self.ports):
            text = text.replace(f"127.0.0.1:{8001 + i}", f"127.0.0.1:{port}")
        config = folder / "haproxy.cfg"
        config.write_text(text)
        libraries = ":".join(str(path) for path in FOLDER.glob("usr/lib/*-linux-gnu"))
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        checked = subprocess.run([program("haproxy"), "-c", "-f", config], env=environment,
                                 capture_output=True, text=True, check=False)
        assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
        self.log = open(folder / "haproxy.log", "wb")  # noqa: SIM115
        self.proxy = subprocess.Popen([program("haproxy"), "-db", "-f", config], env=environment,
                                      stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.url = f"http://127.0.0.1:{self.port}"
        wait_until(lambda: self.get("/ready") == 200, "the proxy answers")

    def start(self, port):
        server = harness.Server(self.folder / f"server-{port}-{time.monotonic_ns()}.log",
                                GOLDEN / "hybrid_regla", store=self.redis.location, lease=LEASE,
                                port=port, threads=1)
        server.ends_clean = False  # its port may be another's while it is dead
        return server

    def get(self, path):
        try:
            return httpx.get(self.url + path, trust_env=False).status_code
        except httpx.TransportError:
            return 0

    def kill(self, index):
        self.servers[index].process.kill()
        self.servers[index].process.wait()
        self.servers[index] = self.start(self.ports[index])

    def log_of(self, port):
        return "".join(path.read_text() for path in self.folder.glob(f"server-{port}-*.log"))

    def stop(self):
        self.proxy.kill()
        self.proxy.wait()
        for server in self.servers:
            server.stop()
        self.redis.stop()


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    running = Replicas(tmp_path_factory.mktemp("replicas"))
    yield running
    running.stop()


def body(name, prompt, **fields):
    return {"session_id": name, "prompt": prompt, "max_tokens": 4, **GREEDY, **fields}


def test_a_session_stays_with_a_server(replicas):
    """By its name in the body, in the header, or in the path; those of many are spread."""
    used = set()
    with httpx.Client(base_url=replicas.url, trust_env=False) as client:
        for i in range(12):
            name = f"stays-{i}"
            assert client.post("/v1/completions", json=body(name, [5])).status_code == 200
            without = {key: value for key, value in body(name, [6]).items() if key != "session_id"}
            reply = client.post("/v1/completions", json=without, headers={"X-Session-Id": name})
            assert reply.json()["session"]["position"] == 10
            assert client.get(f"/v1/sessions/{name}").status_code == 200
            homes = wait_until(lambda name=name: [
                port for port in replicas.ports
                if replicas.log_of(port).count(f"session={name} ") == 2], "its turns are in a log")
            wait_until(lambda name=name, home=homes[0]:
                       f"path=/v1/sessions/{name} " in replicas.log_of(home), "it is in the log")
            used.update(homes)
    assert len(used) == 3


def read(client, name, events):
    asked = time.monotonic()
    reply = client.get(f"/v1/sessions/{name}")
    if reply.status_code == 404:
        return 0
    if reply.status_code != 200:
        return None
    at = reply.json()["position"]
    events.append(Event(asked, time.monotonic(), at, read=True))
    return at


def take_turn(client, name, at, dice, events, statuses):
    prompt = [dice.randrange(1, 200) for _ in range(3)]
    asked = time.monotonic()
    event = Event(asked, 0, at)
    try:
        reply = client.post("/v1/completions", json=body(name, prompt, expected_position=at))
    except httpx.TransportError:
        statuses.append("cut")
        events.append(event)
        return
    statuses.append(reply.status_code)
    event.answered = time.monotonic()
    if reply.status_code == 200:
        choice = reply.json()["choices"][0]
        event.tokens = prompt + choice["token_ids"]
        event.end = reply.json()["session"]["position"]
        assert event.end == at + len(event.tokens)
    events.append(event)


def work(replicas, number, stop, histories, statuses):
    dice = random.Random(number)
    with httpx.Client(base_url=replicas.url, trust_env=False, timeout=60) as client:
        while not stop.is_set():
            name = dice.choice(NAMES)
            try:
                at = read(client, name, histories[name])
            except httpx.TransportError:
                continue
            if at is not None:
                take_turn(client, name, at, dice, histories[name], statuses)


def tokens_of(redis, name):
    key, = redis.keys(f"*:{name}}}:t")
    raw = redis.ask("GET", key)
    return list(struct.unpack(f"<{len(raw) // 4}i", raw))


def check_texts(server, tokens, events):
    """A sample of turns has the tokens of a run from the beginning."""
    turns = [event for event in events if event.end is not None and not event.read]
    for turn in random.Random(1).sample(turns, min(4, len(turns))):
        choice = cold(server, tokens[:turn.start + 3], 4)
        assert choice["token_ids"] == turn.tokens[3:]


def test_kills_lose_and_double_nothing(replicas):
    """Clients contend for sessions while servers are killed, and once the store is."""
    stop, dice = threading.Event(), random.Random(7)
    histories, statuses = {name: [] for name in NAMES}, []
    clients = [threading.Thread(target=work, args=(replicas, i, stop, histories, statuses))
               for i in range(CLIENTS)]
    for client in clients:
        client.start()
    for kill in range(KILLS):
        done = len(statuses)
        wait_until(lambda done=done: len(statuses) > done + 20, "clients go on")
        replicas.kill(dice.randrange(3))
        if kill == KILLS // 2:
            replicas.redis.kill()
            replicas.redis.start()
    stop.set()
    for client in clients:
        client.join(120)
        assert not client.is_alive()
    assert set(statuses) <= {200, 409, 412, 502, 503, "cut"}, set(statuses)
    assert statuses.count(200) > 50
    for name in NAMES:
        tokens = tokens_of(replicas.redis, name)
        assert violations(histories[name], tokens) == []
        check_texts(replicas.servers[0], tokens, histories[name])


def test_the_check_finds_what_is_planted():
    tokens = list(range(20))
    good = [Event(0, 1, 0, 5, tokens[:5]), Event(2, 3, 5, read=True),
            Event(4, 5, 5, 9, tokens[5:9]), Event(4, 6, 9)]
    assert violations(good, tokens) == []
    lost = [*good, Event(7, 8, 9, 12, [1, 2, 3])]
    assert "is not there" in violations(lost, tokens)[0]
    twice = [*good, Event(4, 5, 5, 8, tokens[5:8])]
    assert any("both acknowledged" in each for each in violations(twice, tokens))
    stale = [*good, Event(7, 8, 5, read=True)]
    assert any("9 was seen before a read at 5" in each for each in violations(stale, tokens))
