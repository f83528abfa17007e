# SPDX-License-Identifier: Apache-2.0
"""Clients that continue sessions on servers that share them, and write down what they saw."""

import random
import struct
import threading
import time
from collections import Counter, defaultdict

import httpx

from harness import SLOWNESS, read_frames, wait_until
from session_helpers import GREEDY
from stress_helpers import in_pool
from turn_history import CLAIMED, MADE, MISMATCH, READ, REFUSED, UNKNOWN, Event, History

HOT = 6  # sessions that take a quarter of the turns: there clients meet
PROMPT = 3
SHORT, LONG = 4, 150  # tokens of a turn: some last until something happens
# A connection cut off is "cut"; 412 is judged by the history.
EXPECTED = {(200, None), (412, "position_mismatch"), (409, "session_busy"), (409, "session_conflict"),
            (409, "idempotency_reply_lost"), (409, "idempotency_in_flight"),
            (503, "store_unavailable"), (503, "draining"), (503, "loading"),
            (503, "proxy"), (502, "proxy"), "cut",
            (200, "session_conflict"), (200, "store_unavailable")}  # in a stream


def body(name, prompt, **fields):
    return {"session_id": name, "prompt": prompt, "max_tokens": SHORT, **GREEDY, **fields}


def read_body(reply):
    """What it says, as a reply without stream does: a choice with all tokens, and the session; or an
    error. The proxy's own errors are no JSON."""
    kind = reply.headers.get("content-type", "").split(";")[0]
    if kind != "text/event-stream":
        return reply.json() if kind == "application/json" else {"error": {"code": "proxy"}}
    frames = read_frames(reply.content)
    errors = [frame for frame in frames if "error" in frame]
    choices = [choice for frame in frames for choice in frame.get("choices", [])]
    return errors[0] if errors else {
        "choices": [{"text": "".join(choice["text"] for choice in choices),
                     "token_ids": [token for choice in choices for token in choice["token_ids"]]}],
        "session": frames[-1]["session"]}


def code_of(reply):
    """(status, code of its error); that of a stream may come after the status 200."""
    return reply.status_code, read_body(reply).get("error", {}).get("code")


def learn(event, reply):
    """What a reply says of the turn that it answers."""
    said, code = read_body(reply), code_of(reply)[1]
    if code is None:
        choice = said["choices"][0]
        again = reply.headers.get("Idempotent-Replayed") == "true"
        event.kind, event.text = CLAIMED if again else MADE, choice["text"]
        event.tokens = event.tokens + choice["token_ids"]
        assert said["session"]["position"] == event.end, reply.text
        assert len(event.tokens) == event.length, reply.text
    elif code == "position_mismatch":
        event.kind = MISMATCH
    elif code == "idempotency_reply_lost":
        event.kind = CLAIMED
    elif code in ("session_busy", "session_conflict"):
        event.kind = REFUSED


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
        fields = body(name, prompt, max_tokens=LONG if dice.random() < 1 / 20 else SHORT,
                      expected_position=at)
        if dice.random() < 1 / 4:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        headers = {"Idempotency-Key": str(dice.random())} if dice.random() < 1 / 2 else {}
        while self._turn(client, dice, fields, headers) == UNKNOWN and dice.random() < 1 / 2:
            pass  # the same again, at once, perhaps elsewhere: it may not be made twice

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
        if status == (200, None) or status == (404, "session_not_found"):
            at = reply.json()["position"] if status[1] is None else 0
            self._note(name, "read", Event(READ, asked, time.monotonic(), at))
            return at
        assert status in EXPECTED, reply.text
        return None

    def _turn(self, client, dice, fields, headers):
        name, prompt = fields["session_id"], fields["prompt"]
        event = Event(UNKNOWN, time.monotonic(), 0, fields["expected_position"],
                      PROMPT + fields["max_tokens"], prompt)
        try:
            reply = client.post(f"{self._address(dice)}/v1/completions", json=fields, headers=headers)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            return self._note(name, "cut", event)
        event.answered = time.monotonic()
        assert code_of(reply) in EXPECTED, reply.text
        learn(event, reply)
        return self._note(name, code_of(reply), event)


def texts_of(redis):
    """The tokens of each session, by its name, as the store has them."""
    found = {}
    for key in redis.keys("regla:*:t"):
        raw = redis.ask("GET", key)
        name = key.decode().rpartition("}")[0].rpartition(":")[2]
        found[name] = list(struct.unpack(f"<{len(raw) // 4}i", raw))
    return found


def leased(redis):
    """The sessions that are busy by the store's clock."""
    seconds, micros = map(int, redis.ask("TIME"))
    ends = {key: redis.ask("HGET", key, "until") for key in redis.keys("regla:*}")}
    assert ends, "no rows"
    return [key for key, end in ends.items() if end and int(end) > seconds * 1000 + micros // 1000]


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
            told = turn.text if turn.kind == MADE else choice["text"]
            if choice["token_ids"] != tokens[PROMPT:] or choice["text"] != told:
                found.append(f"{name}: the turn at {turn.start} is another than on a server alone")
    in_pool(8, len(texts), lambda number: compare(sorted(texts)[number]))
    return found


def listed(server):
    """The position of each session, by its name, as a server tells them."""
    reply = server.get("/v1/sessions")
    assert reply.status_code == 200, reply.text
    return {card["id"]: card["position"] for card in reply.json()["data"]}
