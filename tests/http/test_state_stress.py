# SPDX-License-Identifier: Apache-2.0
"""Many sessions and many clients on few states: every text is what it would be alone, budgets hold
at every sample, nothing is left, and a key sees nothing of another's."""

import itertools
import json
import random

import pytest

from harness import GOLDEN, RawReply, check_error, request_bytes, shipped_model, wait_until
from session_helpers import GREEDY, cached, cold, frames_of, put, same
from stress_helpers import (Oracle, Sampler, bytes_of_texts, check_rest, in_pool,
                            session_rows, size, some_ids)

pytestmark = pytest.mark.long

SESSIONS = size("SESSIONS", 120, 30, 10000)
STATES = size("STATES", 12, 6, 200)  # that fit the device
CLIENTS = size("CLIENTS", 8, 4, 32)
ROUNDS = size("ROUNDS", 16, 6, 500)
OPERATIONS = 20


@pytest.mark.builds("dev", "asan")  # TSan: the interleavings, of small models
@pytest.mark.skipif(not shipped_model(), reason="models/ holds no model yet")
def test_more_sessions_than_states_fit(server_factory, tmp_path):
    model = shipped_model()
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    oracle = Oracle(server_factory(model=model, no_prefix_cache=True))
    one = bytes_of_texts(oracle.server, 1, 64)
    server = server_factory(model=model, state_memory=STATES * one,
                            host_state_memory=STATES * one, state_dir=tmp_path / "state",
                            disk_state=2 * STATES * one + SESSIONS * 4096)
    held = [None] * SESSIONS

    def ids_of(choice):
        return choice["prompt_token_ids"] + choice["token_ids"]

    def create(number):
        prompt = some_ids(random.Random(number), 12, vocabulary)
        reply = server.complete(prompt=prompt, session_id=f"s{number}", max_tokens=4, **GREEDY)
        held[number] = ids_of(reply["choices"][0])

    def go_on(number):
        prompt = some_ids(random.Random(-number), 6, vocabulary)
        reply = server.complete(prompt=prompt, session_id=f"s{number}", max_tokens=4,
                                expected_position=len(held[number]), **GREEDY)
        context = held[number] + prompt
        assert reply["usage"]["prompt_tokens"] == len(context)
        held[number] = context + reply["choices"][0]["token_ids"]
        assert reply["session"]["position"] == len(held[number])
        if number in sample:
            same(reply["choices"][0], oracle.after(context, 4))

    sample = set(random.Random("sample").sample(range(SESSIONS), min(SESSIONS, 60)))
    order = random.Random("order").sample(range(SESSIONS), SESSIONS)
    with Sampler(server) as sampler:
        in_pool(CLIENTS, SESSIONS, create)
        in_pool(CLIENTS, SESSIONS, lambda index: go_on(order[index]))
    assert sampler.samples > 0
    state = check_rest(server)
    assert sum(state["sessions"].values()) == SESSIONS
    assert state["store"]["session_files"] == SESSIONS, state["store"]
    # There is always room for a session: files of checkpoints make it.
    assert state["store"]["failures"] == 0 and "cannot be written" not in server.tail(1 << 30)
    listed = {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}
    assert listed == {f"s{number}": len(ids) for number, ids in enumerate(held)}
    print(f"{SESSIONS} sessions, {STATES} states of {one} bytes: {sampler.samples} samples, "
          f"sessions by tier {state['sessions']}, store {state['store']}, "
          f"evictions {server.metric('regla_state_evictions_total'):.0f}, "
          f"dropped {server.metric('regla_state_dropped_total'):.0f}")

    def delete(number):
        assert server.http.delete(f"/v1/sessions/s{number}").status_code == 204
    in_pool(CLIENTS, SESSIONS, delete)
    nothing_left(server, tmp_path / "state")
    # There was nothing but sessions: with them goes all that was kept for them.
    wait_until(lambda: server.get("/v1/state").json()["store"]["checkpoint_files"] == 0, "removal")
    assert check_rest(server)["tree"]["checkpoints"] == 0
    assert [path.name for path in (tmp_path / "state").rglob("*")
            if path.is_file() and path.name not in ("lock", "secret")
            and not path.name.startswith("sessions.db")] == []


def nothing_left(server, folder):
    state = check_rest(server)
    assert sum(state["sessions"].values()) == 0
    assert state["store"]["session_files"] == 0
    assert session_rows(folder) == []
    assert not list(folder.rglob("*.rejected"))


class Life:
    """One interleaving: a client's sessions, changed at random; each text is checked as it comes.
    Names are those of every other interleaving with this key's number, so that a key that saw
    another's sessions would notice."""

    def __init__(self, server, oracle, number, key, vocabulary):
        self.dice = random.Random(number)
        self.server = server
        self.oracle = oracle
        self.number = number
        self.headers = {"Authorization": f"Bearer {key}"}
        self.vocabulary = vocabulary
        self.held = {}
        self.files = []
        self.names = (f"life-{number}-{n}" for n in itertools.count())

    def request(self, method, path, status, **options):
        headers = {**self.headers, **options.pop("headers", {})}
        reply = self.server.http.request(method, path, headers=headers, **options)
        assert reply.status_code == status, (reply.status_code, reply.text, self.number)
        return reply

    def prompt(self):
        return some_ids(self.dice, self.dice.randint(1, 24), self.vocabulary)

    def complete(self, name, prompt, max_tokens, **more):
        """Appends to the session (None: there is none); the reply is what a run alone says."""
        body = {**GREEDY, "prompt": prompt, "max_tokens": max_tokens, **more}
        held = self.held.get(name, [])
        if name:
            body.update(session_id=name, expected_position=len(held))
        reply = self.request("POST", "/v1/completions", 200, json=body).json()
        assert reply["usage"]["prompt_tokens"] == len(held + prompt)
        choice = reply["choices"][0]
        if max_tokens:
            same(choice, self.oracle.after(held + prompt, max_tokens))
        if name and more.get("store", True):
            self.held[name] = held + prompt + choice["token_ids"]
            assert reply["session"]["position"] == len(self.held[name])
        return reply

    def any(self):
        """A session that is there; makes one where there is none."""
        if not self.held:
            self.create()
        return self.dice.choice(sorted(self.held))

    def begin(self):
        """Nobody with this key has said this before, whatever the other key's twin has."""
        reply = self.complete(next(self.names), some_ids(random.Random(f"own {self.number}"), 40,
                                                         self.vocabulary), 3)
        assert cached(reply) == 0

    def create(self):
        root = some_ids(random.Random(f"root {self.dice.randrange(3)}"), 30, self.vocabulary)
        self.complete(next(self.names), root[:self.dice.randint(1, 30)] + self.prompt(), 4)

    def go_on(self):
        name = self.any()
        if len(self.held[name]) < 400:
            self.complete(name, self.prompt(), self.dice.randint(0, 6))

    def look(self):
        self.complete(self.any(), self.prompt(), 3, store=False)

    def resend(self):
        self.complete(None, self.held[self.any()] + self.prompt(), 3)

    def fork(self):
        name, copy = self.any(), next(self.names)
        reply = self.request("POST", f"/v1/sessions/{name}/fork", 201, json={"id": copy}).json()
        self.held[copy] = list(self.held[name])
        assert reply["position"] == len(self.held[copy])

    def rewind(self):
        name = self.any()
        place = self.dice.randint(1, len(self.held[name]))
        self.request("POST", f"/v1/sessions/{name}/rewind", 200, json={"position": place})
        self.held[name] = self.held[name][:place]

    def delete(self):
        name = self.any()
        self.request("DELETE", f"/v1/sessions/{name}", 204)
        del self.held[name]
        self.request("GET", f"/v1/sessions/{name}", 404)

    def export(self):
        name = self.any()
        file = self.request("GET", f"/v1/sessions/{name}/state", 200).content
        self.files.append((file, list(self.held[name])))

    def move(self):
        if not self.files:
            self.export()
        file, ids = self.dice.choice(self.files)
        name = next(self.names)
        self.request("PUT", f"/v1/sessions/{name}/state", 201, content=file,
                     headers={"Content-Type": "application/octet-stream"})
        self.held[name] = list(ids)

    def leave(self):
        """A stream whose client goes in the middle: the session keeps a beginning of what a run
        alone says, with all that the client has seen; while it runs nobody else changes it."""
        name, prompt, most = self.any(), self.prompt(), 150
        held, seen = self.held[name], self.dice.randint(1, 5)
        body = {**GREEDY, "prompt": prompt, "max_tokens": most, "stream": True, "session_id": name}
        with self.server.connect(receive_buffer=4096) as connection:
            connection.sendall(request_bytes("/v1/completions", body, headers=[
                f"Authorization: {self.headers['Authorization']}"]))
            reply = RawReply(connection)
            assert reply.head()[0] == 200
            got = [token for frame in itertools.islice(frames_of(reply), seen)
                   for choice in frame["choices"] for token in choice["token_ids"]]
            other = self.server.post(f"/v1/sessions/{name}/rewind", {"position": 0},
                                     headers=self.headers)
            if other.status_code == 200:  # it had ended
                del self.held[name]
                self.request("DELETE", f"/v1/sessions/{name}", 204)
                return
            check_error(other, 409, "session_busy")
        expected = self.oracle.after(held + prompt, most)["token_ids"]
        assert got == expected[:len(got)]
        wait_until(lambda: self.free(name), "the stream's end")
        count = self.request("GET", f"/v1/sessions/{name}", 200).json()["position"]
        count -= len(held + prompt)
        assert len(got) <= count <= most
        self.held[name] = held + prompt + expected[:count]
        self.look_at(name)

    def look_at(self, name):
        self.complete(name, self.prompt(), 3, store=False)

    def free(self, name):
        body = {"prompt": [1], "session_id": name, "store": False, "max_tokens": 1}
        reply = self.server.post("/v1/completions", body, headers=self.headers)
        assert reply.status_code in (200, 409), reply.text
        return reply.status_code == 200

    def live(self):
        self.begin()
        for _ in range(OPERATIONS):
            self.dice.choice((self.create, self.go_on, self.go_on, self.go_on, self.look,
                              self.resend, self.fork, self.fork, self.rewind, self.rewind,
                              self.delete, self.export, self.move, self.leave))()
        for name in sorted(self.held):
            self.look_at(name)
        for name in list(self.held):
            self.request("DELETE", f"/v1/sessions/{name}", 204)


@pytest.mark.parametrize("case", ["hybrid_regla", "transnormer_t1"])
def test_interleavings(server_factory, tmp_path, case):
    """Two clients with different keys live each life, names and tokens the same."""
    model = GOLDEN / case
    oracle = Oracle(server_factory(model=model, no_prefix_cache=True))
    server = server_factory(
        model=model, api_key="alice,bob", wait=False, checkpoint_interval=64,
        state_dir=tmp_path / "state", state_memory=bytes_of_texts(oracle.server, 10, 640),
        host_state_memory=bytes_of_texts(oracle.server, 6, 640),
        disk_state=bytes_of_texts(oracle.server, 40, 640) + 200 * CLIENTS * 4096)
    server.http.headers["Authorization"] = "Bearer alice"
    server.wait_ready()

    def live(number):
        Life(server, oracle, number // 2, ("alice", "bob")[number % 2], 200).live()
    with Sampler(server) as sampler:
        in_pool(CLIENTS, ROUNDS, live)
    nothing_left(server, tmp_path / "state")
    server.http.headers["Authorization"] = "Bearer bob"
    assert server.get("/v1/sessions").json()["data"] == []
    print(f"{case}: {ROUNDS} interleavings, {CLIENTS} clients, {sampler.samples} samples, "
          f"evictions {server.metric('regla_state_evictions_total'):.0f}, "
          f"dropped {server.metric('regla_state_dropped_total'):.0f}")


def test_many_clients_append_to_one_session(server_factory):
    """Each where it believes the end to be: what is not refused is appended, once, one by one."""
    server = server_factory()
    appended = []

    def append(number):
        prompt = some_ids(random.Random(number), 1 + number % 7, 200)
        while True:
            session = server.get("/v1/sessions/one")
            place = session.json()["position"] if session.status_code == 200 else 0
            reply = server.post("/v1/completions", {
                **GREEDY, "prompt": prompt, "max_tokens": 2, "session_id": "one",
                "expected_position": place})
            if reply.status_code == 200:
                appended.append((place, prompt + reply.json()["choices"][0]["token_ids"]))
                return
            check_error(reply, reply.status_code,
                        {409: "session_busy", 412: "position_mismatch"}[reply.status_code])
    in_pool(CLIENTS, size("APPENDS", 40, 16, 500), append)
    held = []
    for place, ids in sorted(appended):
        assert place == len(held)
        held += ids
    choice = server.complete(prompt=[7], session_id="one", max_tokens=3, **GREEDY)["choices"][0]
    same(choice, cold(server, held + [7], 3))


def test_keys_see_nothing_of_each_other(server_factory):
    """The same texts, under the same names, from two keys in turn."""
    server = server_factory(api_key="alice,bob", wait=False)
    server.http.headers["Authorization"] = "Bearer alice"
    server.wait_ready()
    dice = random.Random("keys")
    known = {"alice": {}, "bob": {}}
    said = {"alice": set(), "bob": set()}
    texts = [some_ids(dice, 40, 200) for _ in range(12)]
    for _ in range(size("KEYS", 80, 40, 2000)):
        key = dice.choice(("alice", "bob"))
        number = dice.randrange(len(texts))
        headers = {"Authorization": f"Bearer {key}"}
        name = f"s{number}"
        what = dice.choice(("say", "say", "delete", "list", "move"))
        if what == "say":
            reply = server.post("/v1/completions", {
                "prompt": texts[number], "session_id": name, "max_tokens": 2,
                "truncate_prompt_tokens": 40, **GREEDY}, headers=headers).json()
            if number not in said[key]:
                assert cached(reply) == 0, (key, number)
            said[key].add(number)
            before = known[key].get(number, 0)
            assert reply["usage"]["prompt_tokens"] == before + 40
            known[key][number] = before + 42
        elif what == "delete":
            status = server.http.delete(f"/v1/sessions/{name}", headers=headers).status_code
            assert status == (204 if number in known[key] else 404)
            known[key].pop(number, None)
        elif what == "move" and number in known[key]:
            file = server.get(f"/v1/sessions/{name}/state", headers=headers).content
            server.http.headers.update(headers)
            assert put(server, name, file).status_code == 409
        listed = server.get("/v1/sessions", headers=headers).json()["data"]
        assert {s["id"]: s["position"] for s in listed} == {
            f"s{n}": position for n, position in known[key].items()}
