# SPDX-License-Identifier: Apache-2.0
"""Clients that continue sessions on servers that share them, and write down what they saw."""

import random
import struct
import threading
import time
from collections import Counter, defaultdict

import httpx

from harness import SLOWNESS, wait_until
from session_helpers import GREEDY
from stress_helpers import in_pool
from turn_history import MADE, MISMATCH, READ, REFUSED, UNKNOWN, Event, History

HOT = 6  # sessions that take a quarter of the turns: there clients meet
PROMPT = 3
SHORT, LONG = 4, 150  # tokens of a turn: some last until something happens
# A connection cut off is "cut"; 412 is judged by the history.
EXPECTED = {(200, None), (412, "position_mismatch"), (409, "session_busy"), (409, "session_conflict"),
            (503, "store_unavailable"), (503, "draining"), (503, "loading"),
            (503, "proxy"), (502, "proxy"), "cut"}


def body(name, prompt, **fields):
    return {"session_id": name, "prompt": prompt, "max_tokens": SHORT, **GREEDY, **fields}


def code_of(reply):
    """(status, code of its error); the proxy's own errors are no JSON."""
    if reply.status_code == 200:
        return 200, None
    if reply.headers.get("content-type") != "application/json":
        return reply.status_code, "proxy"
    return reply.status_code, reply.json()["error"]["code"]


class Clients:
    """Run inside `with`. Two thirds of what they ask goes through the proxy, the rest to any server."""

    def __init__(self, replicas, clients, sessions):
        self.replicas = replicas
        self.names = [f"shared-{i}" for i in range(sessions)]
        self.histories = defaultdict(list)
        self.lock = threading.Lock()
        self.statuses, self.made, self.errors = Counter(), 0, []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(i,)) for i in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised):
        self.stop.set()
        for thread in self.threads:
            thread.join(120 * SLOWNESS)
        assert not any(thread.is_alive() for thread in self.threads), "a client hangs"
        if self.errors and not raised[0]:
            raise self.errors[0]

    def wait_made(self, turns):
        """Until so many turns were acknowledged. There is a limit of time for each."""
        while self.made < turns and not self.errors:
            before = self.made
            wait_until(lambda before=before: self.errors or self.made > before,
                       lambda: f"{turns} turns: {self.made}")
        if self.errors:
            raise self.errors[0]

    def _work(self, number):
        dice = random.Random(number)
        try:
            with httpx.Client(timeout=60 * SLOWNESS, trust_env=False) as client:
                while not self.stop.is_set():
                    self._take_turns(client, dice)
        except BaseException as error:  # raised in the test's thread
            self.errors.append(error)

    def _address(self, dice):
        return self.replicas.url if dice.random() < 2 / 3 else \
            f"http://127.0.0.1:{dice.choice(self.replicas.ports)}"

    def _take_turns(self, client, dice):
        name = dice.choice(self.names[:HOT] if dice.random() < 1 / 4 else self.names)
        at = self._read(client, dice, name)
        if at is None:
            return
        prompt = [dice.randrange(1, 200) for _ in range(PROMPT)]
        tokens = LONG if dice.random() < 1 / 20 else SHORT
        while self._turn(client, dice, name, at, prompt, tokens) == UNKNOWN and dice.random() < 1 / 2:
            pass  # the same again, at once: it may not be made twice

    def _note(self, name, status, event):
        with self.lock:
            self.statuses[status] += 1
            self.made += event.kind == MADE
            self.histories[name].append(event)
        return event.kind

    def _read(self, client, dice, name):
        asked = time.monotonic()
        try:
            reply = client.get(f"{self._address(dice)}/v1/sessions/{name}")
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            return None
        status = code_of(reply)
        if status[0] == 200 or status == (404, "session_not_found"):
            at = reply.json()["position"] if status[0] == 200 else 0
            self._note(name, "read", Event(READ, asked, time.monotonic(), at))
            return at
        assert status in EXPECTED, reply.text
        return None

    def _turn(self, client, dice, name, at, prompt, tokens):
        event = Event(UNKNOWN, time.monotonic(), 0, at, PROMPT + tokens, prompt)
        try:
            reply = client.post(f"{self._address(dice)}/v1/completions", json=body(
                name, prompt, max_tokens=tokens, expected_position=at))
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            return self._note(name, "cut", event)
        event.answered, status = time.monotonic(), code_of(reply)
        assert status in EXPECTED, reply.text
        if status[0] == 200:
            choice = reply.json()["choices"][0]
            event.kind, event.tokens, event.text = MADE, prompt + choice["token_ids"], choice["text"]
            assert reply.json()["session"]["position"] == event.end == at + len(event.tokens), reply.text
        elif status[0] in (409, 412):
            event.kind = MISMATCH if status[0] == 412 else REFUSED
        return self._note(name, status, event)


def texts_of(redis):
    """The tokens of each session, by its name, as the store has them."""
    found = {}
    for key in redis.keys("regla:*:t"):
        raw = redis.ask("GET", key)
        name = key.decode().rpartition("}")[0].rpartition(":")[2]
        found[name] = list(struct.unpack(f"<{len(raw) // 4}i", raw))
    return found


def violations(clients, texts):
    """What the clients saw that one session could not have shown them."""
    return [f"{name}: {each}" for name, events in clients.histories.items()
            for each in History(events, texts.get(name, [])).violations()]


def differences(server, clients, texts):
    """Turns whose tokens or text are others than those of a server alone, which makes them all again."""
    found = []

    def compare(name):
        for turn in History(clients.histories[name], texts[name]).turns:
            tokens = texts[name][turn.start:turn.end]
            choice = server.complete(**body(name, tokens[:PROMPT], max_tokens=turn.length - PROMPT,
                                            expected_position=turn.start))["choices"][0]
            if choice["token_ids"] != tokens[PROMPT:] or turn.kind == MADE and choice["text"] != turn.text:
                found.append(f"{name}: the turn at {turn.start} is another than on a server alone")
    in_pool(8, len(texts), lambda number: compare(sorted(texts)[number]))
    return found


def listed(server):
    """The position of each session, by its name, as a server tells them."""
    reply = server.get("/v1/sessions")
    assert reply.status_code == 200, reply.text
    return {card["id"]: card["position"] for card in reply.json()["data"]}
