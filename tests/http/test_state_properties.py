# SPDX-License-Identifier: Apache-2.0
"""A state is a state, however it came to be: at random cut points, on every mixer, the same digits;
a growing conversation computes what is new; a file that is not whole is refused."""

import itertools
import json
import random
import statistics
import time

import pytest

from harness import BUILD, GOLDEN, check_error, shipped_model
from session_helpers import GREEDY, cached, imported, put, reason, same
from stress_helpers import (Oracle, bytes_of_texts, check_rest, kill, model_of, press_out, size,
                            some_ids)

ALL = sorted(path.parent for path in GOLDEN.glob("*/expected.json"))
FEW = [GOLDEN / name for name in ("hybrid_regla", "transnormer_t1", "sliding_t5", "lfm2", "gla", "t5")]
MODELS = ALL[:size("MODELS", 0, 0, len(ALL))] or FEW[:size("FEW_MODELS", 4, 1, 6)]
MODELS += [shipped_model()] if shipped_model() and BUILD != "tsan" else []
# Together 1,000 in full.
CASES = size("CASES", 3, 1, 1000 // len(MODELS) + 1)
INTERVAL = 16  # of checkpoints


def sampled(ids, seed, **more):
    """A request whose draws depend on all logits."""
    return {"prompt": ids, "max_tokens": 5, "seed": seed, "temperature": 0.8, "ignore_eos": True,
            "logprobs": 3, "return_token_ids": True, **more}


class Case:
    """Tokens, a cut, what a run from the beginning says; and the sessions that must say the same."""

    def __init__(self, number, dice, cold, vocabulary, limit):
        self.number = number
        self.ids = some_ids(dice, dice.randrange(2, min(limit - 12, 150)), vocabulary)
        self.cut = dice.randrange(1, len(self.ids))
        self.rewound = dice.randrange(len(self.ids) + 1)
        self.expected = cold.complete(**sampled(self.ids, number))["choices"][0]
        self.file = None

    def name(self, kind):
        return f"case-{self.number}-{kind}"

    def check(self, server, where, kind=None, held=0, least=0):
        """From a session that holds the first `held` tokens, or from whatever the tree offers: of
        `least` tokens, unless it says that what it had is lost (there is little memory, and a
        state that no file could be written of in time is dropped)."""
        more = {"session_id": self.name(kind), "store": False} if kind else {}
        rest = self.ids[held:] or ""  # an empty text: a list of ids may not be empty
        reply = server.complete(**sampled(rest, self.number, **more))
        assert reply["usage"]["prompt_tokens"] == len(self.ids)
        try:
            same(reply["choices"][0], self.expected)
        except AssertionError as error:
            raise AssertionError(f"case {self.number}, {where}, {len(self.ids)} tokens, cut at "
                                 f"{self.cut}, rewound to {self.rewound}") from error
        assert cached(reply) >= least or reason(reply) == "evicted", (where, reply["usage"])

    def hold(self, server, kind, ids):
        reply = server.complete(prompt=ids, session_id=self.name(kind), max_tokens=0)
        assert reply["session"]["position"] == len(ids)

    def live(self, server):
        """Cached, continued, forked, rewound; leaves three sessions and a file."""
        server.complete(**sampled(self.ids[:self.cut], self.number))
        sharing = 16  # fewer tokens have no checkpoint
        self.check(server, "cached prefix", least=self.cut if self.cut >= sharing else 0)
        self.check(server, "cached whole", least=(len(self.ids) - 1) // INTERVAL * INTERVAL)
        self.hold(server, "cut", self.ids[:self.cut])
        self.check(server, "continued", "cut", self.cut)
        server.post(f"/v1/sessions/{self.name('cut')}/fork", {"id": self.name("fork")})
        self.check(server, "forked", "fork", self.cut)
        # Goes on, with tokens of its own, and comes back.
        self.hold(server, "long", self.ids)
        server.complete(**sampled([], self.number, session_id=self.name("long"), prompt=""))
        reply = server.post(f"/v1/sessions/{self.name('long')}/rewind",
                            {"position": self.rewound})
        assert reply.status_code == 200, reply.text
        self.check(server, "rewound", "long", self.rewound)
        self.file = server.get(f"/v1/sessions/{self.name('cut')}/state").content

    def again(self, server, where):
        self.check(server, f"{where}, continued", "cut", self.cut)
        self.check(server, f"{where}, forked", "fork", self.cut)
        self.check(server, f"{where}, rewound", "long", self.rewound)


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_the_same_digits_wherever_a_state_comes_from(server_factory, tmp_path, model):
    dice = random.Random(f"digits {model.name}")
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    cold = server_factory(model=model, no_prefix_cache=True, threads=1)
    limit = model_of(cold)["max_model_len"] or 10 ** 9
    cases = [Case(number, dice, cold, vocabulary, limit) for number in range(CASES)]
    tokens = min(limit, 160)
    flags = {"model": model, "state_dir": tmp_path / "state", "checkpoint_interval": INTERVAL,
             "state_memory": bytes_of_texts(cold, 4, tokens),
             "host_state_memory": dice.choice([0, bytes_of_texts(cold, 3, tokens)])}
    server = server_factory(**flags)
    for case in cases:
        case.live(server)
    names = [case.name("cut") for case in cases]
    tiers = press_out(server, names, 60, vocabulary, min(tokens, 64))
    for case in cases:
        case.again(server, "evicted")
    check_rest(server)
    server.stop()
    server = server_factory(**flags)
    for case in cases:
        case.again(server, "restarted")
        imported(server, case.name("file"), case.file, case.ids[:case.cut])
        case.check(server, "imported", "file", case.cut)
    moved = server_factory(model=model)
    for case in cases:
        imported(moved, case.name("file"), case.file, case.ids[:case.cut])
        case.check(moved, "moved", "file", case.cut)
    print(f"{model.name}: {len(cases)} cases, cut states evicted to {sorted(set(tiers))}")


# A growing conversation

LONG_INTERVAL = 64
TURNS = size("TURNS", 8, 5, 30)
CONVERSATIONS = [GOLDEN / name for name in ("regla", "hybrid_regla", "lfm2", "delta_qwen3_5_text", "mamba2",
                                             "rwkv7", "granitemoehybrid", "falcon_h1")]
if size("TALK", 0, 0, 1) and shipped_model():
    CONVERSATIONS.append(shipped_model())


class Conversation:
    """Resent whole each turn; edited: the last message once more, with another end."""

    def __init__(self, edited, vocabulary):
        self.dice = random.Random("conversation")
        self.edited = edited
        self.vocabulary = vocabulary
        self.ids = []
        self.seconds = []

    def turn(self, server):
        message = some_ids(self.dice, 40, self.vocabulary)
        if self.edited and self.ids:
            self.ask(server, message[:25] + some_ids(self.dice, 15, self.vocabulary))
        start = time.perf_counter()
        choice = self.ask(server, message)
        self.seconds.append(time.perf_counter() - start)
        self.ids += message + choice["token_ids"]

    def ask(self, server, message):
        reply = server.complete(prompt=self.ids + message, max_tokens=10, **GREEDY)
        computed = reply["usage"]["prompt_tokens"] - cached(reply)
        # The last token that was generated has not been computed before.
        assert computed <= len(message) + 1 + LONG_INTERVAL, (len(self.ids), reply["usage"])
        return reply["choices"][0]


@pytest.mark.parametrize("edited", [False, True], ids=["resent", "edited"])
@pytest.mark.parametrize("model", CONVERSATIONS, ids=lambda path: path.name)
def test_a_conversation_computes_what_is_new(server_factory, tmp_path, model, edited):
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    flags = {"model": model, "state_dir": tmp_path / "state", "checkpoint_interval": LONG_INTERVAL}
    talk = Conversation(edited, vocabulary)
    server = server_factory(**flags)
    for _ in range(TURNS):
        talk.turn(server)
    late = [talk.seconds[1], talk.seconds[-1]]
    server.stop()
    server = server_factory(**flags)
    for _ in range(3):
        talk.turn(server)
    reply = server.complete(prompt=talk.ids, max_tokens=5, **GREEDY)
    cold = server_factory(model=model, no_prefix_cache=True)
    same(reply["choices"][0], Oracle(cold).after(talk.ids, 5))
    print(f"{model.name}: turn 2 {late[0] * 1e3:.1f} ms, turn {TURNS} {late[1] * 1e3:.1f} ms, then "
          + ", ".join(f"{s * 1e3:.1f}" for s in talk.seconds[TURNS:]) + " ms after a restart")


# A question of time, so only in make test-stress.
@pytest.mark.parametrize("restarted", [False, True], ids=["cold", "restarted"])
def turn_30_takes_as_long_as_turn_2(server_factory, tmp_path, restarted):
    """On a model without KV. Medians over several conversations, since others use the machine."""
    flags = {"preset": "regla-6l", "state_dir": tmp_path / "state",
             "checkpoint_interval": LONG_INTERVAL}
    server = server_factory(**flags)
    talks = [Conversation(False, 250) for _ in range(5)]
    for number, talk in enumerate(talks):
        talk.dice = random.Random(number)
    for turn in range(30):
        if restarted and turn == 29:
            server.stop()
            server = server_factory(**flags)
            # Its first steps touch weights and code for the first time.
            server.complete(prompt=[1] * 40, max_tokens=10, **GREEDY)
        for talk in talks:
            talk.turn(server)
    second = statistics.median(talk.seconds[1] for talk in talks)
    last = statistics.median(talk.seconds[29] for talk in talks)
    print(f"turn 2: {second * 1e3:.1f} ms, turn 30: {last * 1e3:.1f} ms, ratio {last / second:.3f}")
    assert last <= 1.2 * second


if size("TIMES", 0, 0, 1):
    test_turn_30_takes_as_long_as_turn_2 = turn_30_takes_as_long_as_turn_2


# Files that are not what they should be

LENGTHS = size("LENGTHS", 40, 10, 10 ** 9)
FLIPS = size("FLIPS", 40, 10, 5000)
FOREIGN = size("FOREIGN", 1, 1, len(ALL))


def refused(server, file, words):
    error = check_error(put(server, "refused", file), 400, "invalid_state_file")
    assert any(word in error["message"] for word in words), error["message"]


def test_a_file_that_is_cut_or_changed_is_refused(server_factory):
    """Each kind of part: recurrent states, KV pages and rows of convolutions."""
    dice = random.Random("damage")
    for case in ("regla", "hybrid_regla", "lfm2"):
        server = server_factory(model=GOLDEN / case)
        server.complete(prompt=some_ids(dice, 5, 200), session_id="whole", max_tokens=2)
        file = server.get("/v1/sessions/whole/state").content
        before = [server.get(path).json() for path in ("/v1/sessions", "/v1/state")]
        lengths = dice.sample(range(len(file)), min(LENGTHS, len(file)))
        for length in lengths:
            refused(server, file[:length], ("truncated", "not a state file", "state file"))
        for _ in range(FLIPS):
            place = dice.randrange(len(file))
            wrong = file[place] ^ dice.randrange(1, 256)
            refused(server, file[:place] + bytes([wrong]) + file[place + 1:], ("state file",))
        assert before == [server.get(path).json() for path in ("/v1/sessions", "/v1/state")]
        assert put(server, "again", file).status_code == 201
        print(f"{case}: {len(lengths)} of {len(file)} lengths, {FLIPS} bytes changed")


def test_files_of_other_models_are_refused(server_factory):
    server = server_factory(model=GOLDEN / "hybrid_regla")
    others = itertools.islice((path for path in ALL if path.name != "hybrid_regla"), FOREIGN)
    for model in others:
        other = server_factory(model=model)
        other.complete(prompt=[1, 2, 3], session_id="foreign", max_tokens=2)
        refused(server, other.get("/v1/sessions/foreign/state").content, ("another model",))
        kill(other)
    assert server.get("/v1/sessions").json()["data"] == []
