# SPDX-License-Identifier: Apache-2.0
"""What the property and stress tests of states share: their sizes, an oracle, a server's accounts."""

import contextlib
import os
import random
import signal
import sqlite3
import threading

from harness import SLOWNESS, START_SECONDS, wait_until
from session_helpers import GREEDY, cached


def size(name, small, sanitized, full):
    """How many of something: REGLA_STRESS=1 (`make test-stress`) takes the full size, and
    REGLA_STRESS_NAME=n any other."""
    given = os.environ.get("REGLA_STRESS_" + name)
    if given:
        return int(given)
    if os.environ.get("REGLA_STRESS"):
        return full
    return small if SLOWNESS == 1 else sanitized


def some_ids(dice, count, vocabulary):
    return [dice.randrange(1, vocabulary) for _ in range(count)]


def model_of(server):
    return server.get("/v1/models").json()["data"][0]


def bytes_of_texts(server, count, tokens):
    """What so many texts of so many tokens need of --state-memory."""
    model = model_of(server)
    return int(count * (model["state_bytes_per_text"]
                        + (tokens + 64) * model["kv_bytes_per_token"]))


class Oracle:
    """What comes after some tokens, on a server that reuses nothing; one answer per question."""

    def __init__(self, server):
        self.server = server
        self.answers = {}

    def after(self, ids, max_tokens):
        """The greedy choice of max_tokens tokens after ids."""
        question = (tuple(ids), max_tokens)
        if question not in self.answers:
            reply = self.server.complete(prompt=list(ids), max_tokens=max_tokens, **GREEDY)
            assert cached(reply) == 0
            self.answers[question] = reply["choices"][0]
        return self.answers[question]


def value_of(metrics, metric, **labels):
    wanted = set(labels.items())
    return sum(value for (name, pairs), value in metrics.items()
               if name == metric and wanted <= pairs)


def check_budgets(server):
    """One sample of /metrics and one of GET /v1/state: no tier holds more than its budget."""
    metrics = server.metrics()
    budget = value_of(metrics, "regla_state_memory_budget_bytes")
    used = value_of(metrics, "regla_memory_reserved_bytes")
    held = value_of(metrics, "regla_state_bytes", tier="device")
    assert used + held <= budget, (used, held, budget)
    assert value_of(metrics, "regla_state_memory_free_bytes") >= 0
    for tier in ("host", "disk"):
        bytes_, most = (value_of(metrics, f"regla_state_{what}", tier=tier)
                        for what in ("bytes", "budget_bytes"))
        assert bytes_ <= most, (tier, bytes_, most)
    state = server.get("/v1/state").json()
    device = state["device"]
    assert device["total"] == device["used"] + device["cached"] + device["free"], device
    for name, tier in state["tiers"].items():
        assert 0 <= tier["bytes"] <= tier["budget_bytes"], (name, tier)
    if state["store"]:
        assert state["store"]["bytes"] <= state["store"]["budget_bytes"], state["store"]
    return state


def check_rest(server):
    """Nothing runs: nothing is used, and free + cached is all there is."""
    server.wait_idle(60)
    state = check_budgets(server)
    assert state["device"]["used"] == 0, state
    assert state["device"]["free"] + state["device"]["cached"] == state["device"]["total"]
    return state


class Sampler:
    """Checks the budgets again and again while the block runs."""

    def __init__(self, server):
        self.server = server
        self.samples = 0
        self.error = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.done.wait(0.05):
            try:
                check_budgets(self.server)
                self.samples += 1
            except BaseException as error:
                self.error = error
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *raised):
        self.done.set()
        self.thread.join()
        if self.error and not raised[0]:
            raise self.error


def in_pool(clients, count, work):
    """work(0) … work(count - 1), `clients` of them at a time; raises the first error, after which
    no more begin."""
    numbers, errors, lock = iter(range(count)), [], threading.Lock()

    def run():
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:
                errors.append(error)
    threads = [threading.Thread(target=run) for _ in range(min(clients, count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def kill(server):
    server.ends_clean = False
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(START_SECONDS)


def session_rows(folder):
    """The rows of sessions in the database of a --state-dir."""
    with contextlib.closing(sqlite3.connect(folder / "sessions.db", timeout=30)) as database:
        return [name for name, in database.execute("SELECT name FROM session")]


def press_out(server, names, rounds, vocabulary, tokens=64):
    """Other sessions push the states of these off the device; returns the tiers they are in."""
    dice = random.Random("press")

    def tiers():
        listed = {s["id"]: s["tier"] for s in server.get("/v1/sessions").json()["data"]}
        return [listed[name] for name in names]

    def pressed():
        nonlocal rounds
        rounds -= 1
        if rounds >= 0:
            server.complete(prompt=some_ids(dice, tokens, vocabulary), max_tokens=1,
                            session_id=f"press-{rounds}")
        return rounds < 0 or "device" not in tiers()
    wait_until(pressed, "eviction")
    return tiers()
