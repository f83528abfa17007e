# SPDX-License-Identifier: Apache-2.0
"""Drafts of a reply (draft_token_ids, a field of tests alone): whatever they guess, tokens,
log-probabilities and states are those of a text without them, to the bit."""

import random
import threading

import pytest

import harness
from harness import check_error
from session_helpers import Session, same

pytestmark = pytest.mark.builds("dev", "asan")

DRAFTS = {"REGLA_TEST_DRAFTS": "1"}
HEAD = 72  # bytes of an export before its list of sections, which has their checksums
# Of each kind of state: recurrent with running maxima, ring, segments, convolutions, pages alone.
CASES = ["hybrid_regla", "mamba2", "rwkv7", "lfm2", "dense_gemma3_text", "long_short_rank3_alibi",
         "gate_rwkv7"]
FIELDS = [{"temperature": 0}, {"temperature": 1.3, "seed": 5},
          {"temperature": 0.7, "seed": 1, "top_k": 9, "n": 3},
          {"temperature": 0, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
          {"temperature": 0.9, "seed": 2, "stop": ["e", "t "], "min_tokens": 3},
          {"temperature": 1, "seed": 3, "logit_bias": {"17": 5, "20": -3}, "best_of": 4, "n": 2}]
COMMON = {"prompt": "Once there was a town", "max_tokens": 40, "ignore_eos": True, "logprobs": 2,
          "return_token_ids": True}


def guesses(ids, dice, wrong):
    """The tokens, with a share of them wrong, and more than there will be."""
    return [(token + 1) % 200 if dice.random() < wrong else token for token in ids] + ids[:7]


@pytest.mark.parametrize("case", CASES)
def test_replies_are_those_without_drafts(server_factory, case):
    server = server_factory(model=harness.GOLDEN / case, environment=DRAFTS, max_step_tokens=64,
                            checkpoint_interval=16)
    dice = random.Random(f"drafts {case}")
    for fields in FIELDS:
        expected = server.complete(**COMMON, **fields)["choices"]
        for wrong in (0, 0.2, 1):
            drafts = guesses(expected[0]["token_ids"], dice, wrong)
            before = server.metric("regla_engine_steps_total")
            got = server.complete(**COMMON, **fields, draft_token_ids=drafts)["choices"]
            steps = server.metric("regla_engine_steps_total") - before
            for choice, known in zip(got, expected, strict=True):
                same(choice, known)
            if wrong == 0 and len(got) == 1 and not fields.get("best_of"):
                assert steps <= 2 + len(got[0]["token_ids"]) / 8
    # beside each other, with others that have none
    expected = server.complete(**COMMON, temperature=0)["choices"][0]
    drafts = [guesses(expected["token_ids"], dice, share) if share is not None else None
              for share in (0, 0.1, 0.5, None, 1, None, 0.3, 0)]
    results = [None] * len(drafts)

    def run(i):
        results[i] = server.complete(**COMMON, temperature=0, cache_salt=f"{i}",
                                     draft_token_ids=drafts[i])["choices"][0]
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(drafts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        same(result, expected)


def test_constrained_replies_are_those_without_drafts(server_factory):
    server = server_factory(environment=DRAFTS)
    schema = {"type": "object", "required": ["a", "b"], "additionalProperties": False,
              "properties": {"a": {"type": "integer"}, "b": {"enum": ["c", "d"]}}}
    for fields in ({"regex": "[a-f]{3,30}(x|yz)*"}, {"json_schema": schema}):
        fields = {**COMMON, **fields, "ignore_eos": False, "temperature": 1, "seed": 4}
        expected = server.complete(**fields)["choices"][0]
        for wrong in (0, 0.3):
            drafts = guesses(expected["token_ids"], random.Random("constrained"), wrong)
            same(server.complete(**fields, draft_token_ids=drafts)["choices"][0], expected)


@pytest.mark.parametrize("case", CASES)
def test_states_are_those_without_drafts(server_factory, case):
    """Two sessions of the same turns: their exports have the same bytes but for their heads' times."""
    server = server_factory(model=harness.GOLDEN / case, environment=DRAFTS)
    dice = random.Random(f"states {case}")
    plain, drafted = Session(server, "plain"), Session(server, "drafted")
    for turn in range(4):
        prompt = f" Turn {turn}: what came next?"
        fields = {"session_id": "plain", "prompt": prompt, "max_tokens": 9 + turn, "temperature": 0,
                  "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
        expected = server.complete(**fields)["choices"][0]
        drafts = guesses(expected["token_ids"], dice, 0.3)
        fields["session_id"] = "drafted"
        same(server.complete(**fields, draft_token_ids=drafts)["choices"][0], expected)
    states = [session.export() for session in (plain, drafted)]
    assert len(states[0]) == len(states[1])
    other = [at for at, (a, b) in enumerate(zip(*states, strict=True)) if a != b]
    assert all(at < HEAD for at in other), other[:20]


def test_a_stream_that_is_cancelled_leaves_a_sound_state(server_factory):
    server = server_factory(environment=DRAFTS)
    fields = {**COMMON, "temperature": 0, "max_tokens": 400}
    expected = server.complete(**fields)["choices"][0]
    wrong = guesses(expected["token_ids"], random.Random("cancelled"), 0.5)
    for size in (1, 300, 3000):
        with server.http.stream("POST", server.url + "/v1/completions",
                                json={**fields, "stream": True, "draft_token_ids": wrong}) as reply:
            next(reply.iter_bytes(size))
        same(server.complete(**fields)["choices"][0], expected)


def test_drafts_are_for_tests(server, server_factory):
    refusal = {"prompt": "x", "max_tokens": 1, "draft_token_ids": [1]}
    check_error(server.post("/v1/completions", refusal), 400, None, "draft_token_ids")
    other = server_factory(environment=DRAFTS)
    for bad in ("1", [1.5], [-1], [1 << 30], [None]):
        reply = other.post("/v1/completions", {**refusal, "draft_token_ids": bad})
        check_error(reply, 400, None, "draft_token_ids")
    assert other.complete(**{**refusal, "draft_token_ids": []})["choices"]
