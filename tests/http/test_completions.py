# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions without stream: every field of api.md's table.

Random weights write random bytes, so where a test needs readable text it allows only some letters:
`LETTERS` is a logit_bias that leaves the model a choice among nine of them.
"""

import json
import math
import re
import time

import pytest

from harness import GOLDEN

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

EOS = 0


def byte(value):
    """The golden tokenizers' id of the token of one byte."""
    return value + 1


LETTERS = {str(byte(ord(letter))): 100 for letter in "abcdefgh "}
PROMPT = "The quick brown fox"


def letters(server, **fields):
    fields = {"prompt": PROMPT, "max_tokens": 40, "seed": 7, "logit_bias": LETTERS, **fields}
    return server.complete(**fields)["choices"][0]


def score(server, sequences):
    """Log-probabilities of the last token of each sequence of ids."""
    reply = server.complete(prompt=sequences, max_tokens=0, echo=True, logprobs=0)
    return [choice["logprobs"]["token_logprobs"][-1] for choice in reply["choices"]]


def tokenize(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


# The reply


def test_reply_shape(server):
    before = int(time.time())
    reply = server.complete(prompt=PROMPT, max_tokens=5, temperature=0)
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert before - 1 <= reply["created"] <= time.time() + 1
    assert reply["model"] == server.model_id
    assert isinstance(reply["system_fingerprint"], str) and reply["system_fingerprint"]
    choice, = reply["choices"]
    assert {"index", "text", "finish_reason", "stop_reason", "logprobs"} <= set(choice)
    assert choice["index"] == 0 and choice["logprobs"] is None
    usage = reply["usage"]
    assert usage["prompt_tokens"] == len(tokenize(server, PROMPT))
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] >= 0
    assert details["cache_miss_reason"] in (
        "none", "no_checkpoint", "diverged", "evicted", "disabled")
    timings = reply["timings"]
    assert set(timings) == {"queue_ms", "prefill_ms", "prefill_tokens_per_second", "decode_ms",
                            "decode_tokens_per_second"}
    assert timings["prefill_ms"] > 0 and timings["decode_ms"] > 0


def test_ids_differ(server):
    assert len({server.complete(prompt="x", max_tokens=1)["id"] for _ in range(4)}) == 4


def test_defaults(server):
    reply = server.complete(prompt=PROMPT, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 16
    assert reply["choices"][0]["finish_reason"] == "length"
    assert len(reply["choices"]) == 1


def test_request_id_is_echoed(server):
    reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1},
                        headers={"X-Request-Id": "my-request.7"})
    assert reply.headers["x-request-id"] == "my-request.7"
    refused = server.post("/v1/completions", {"prompt": 3}, headers={"X-Request-Id": "other"})
    assert refused.headers["x-request-id"] == "other"


def test_request_id_field_is_echoed(server):
    reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "someone",
                                            "request_id": "mine", "priority": 3})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("path", ["/v1/completions", "/health"])
def test_every_reply_has_a_request_id(server, path):
    reply = server.post(path, {"prompt": "x", "max_tokens": 1})
    assert reply.headers["x-request-id"]


# Prompts


def test_four_prompt_shapes_agree(server):
    ids = tokenize(server, PROMPT)
    texts = [server.complete(prompt=prompt, max_tokens=8, temperature=0)["choices"][0]["text"]
             for prompt in (PROMPT, [PROMPT], ids, [ids])]
    assert texts == [texts[0]] * 4


def test_batch_order(server):
    prompts = ["One", "Two two", "Three three three"]
    alone = [server.complete(prompt=prompt, n=2, seed=11, max_tokens=6)["choices"]
             for prompt in prompts]
    reply = server.complete(prompt=prompts, n=2, seed=11, max_tokens=6)
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    expected = [choice["text"] for choices in alone for choice in choices]
    assert [choice["text"] for choice in reply["choices"]] == expected
    assert reply["usage"]["prompt_tokens"] == sum(len(tokenize(server, p)) for p in prompts)


def test_batch_of_ids(server):
    batch = [[40, 41, 42], [50], [60, 61]]
    reply = server.complete(prompt=batch, max_tokens=4, temperature=0, echo=True,
                            return_token_ids=True)
    for ids, choice in zip(batch, reply["choices"], strict=True):
        assert choice["prompt_token_ids"] == ids
        assert len(choice["token_ids"]) == 4


def test_empty_string_starts_from_bos(server):
    reply = server.complete(prompt="", max_tokens=4, temperature=0, return_token_ids=True)
    assert reply["choices"][0]["prompt_token_ids"] == [0]
    assert reply["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("prompt", [
    [], [[]], [[40], []], ["a", 40], [40, "a"], [[40], "a"], [[40], 40], [-1], [275], [[40, 275]],
    [1.5], [True], {"a": 1}, 7, True, [["a"]], [[[40]]], [None]])
def test_bad_prompts(server, prompt):
    error = server.refuse(400, prompt=prompt, max_tokens=1)
    assert error["param"] == "prompt"


def test_missing_prompt(server):
    for fields in ({"max_tokens": 1}, {"prompt": None, "max_tokens": 1}):
        assert server.refuse(400, **fields)["param"] == "prompt"


def test_prompt_of_every_character_kind(server):
    prompt = "tab\t nul\0 é e\u0301 漢字 🙂 \u2028 end"
    reply = server.complete(prompt=prompt, max_tokens=0, echo=True)
    assert reply["choices"][0]["text"] == prompt


def test_truncate_prompt_tokens(server):
    ids = tokenize(server, PROMPT)
    whole = server.complete(prompt=ids[-3:], max_tokens=8, temperature=0)
    cut = server.complete(prompt=PROMPT, max_tokens=8, temperature=0, truncate_prompt_tokens=3,
                          return_token_ids=True)
    assert cut["usage"]["prompt_tokens"] == 3
    assert cut["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert cut["choices"][0]["text"] == whole["choices"][0]["text"]


def test_return_token_ids(server):
    choice = server.complete(prompt=PROMPT, max_tokens=6, temperature=0, ignore_eos=True,
                             return_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == tokenize(server, PROMPT)
    assert len(choice["token_ids"]) == 6
    decoded = server.post("/detokenize", {"tokens": choice["token_ids"]}).json()["prompt"]
    assert decoded == choice["text"]


# Sampling


def test_greedy_is_the_best_token(server):
    choice = server.complete(prompt=PROMPT, max_tokens=12, temperature=0, logprobs=5,
                             ignore_eos=True)["choices"][0]
    logprobs = choice["logprobs"]
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"],
                                   logprobs["top_logprobs"], strict=True):
        assert logprob == max(top.values()) and top[token] == logprob


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_settings_that_leave_one_token(server, setting):
    greedy = server.complete(prompt=PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"]
    only = server.complete(prompt=PROMPT, max_tokens=12, temperature=1, seed=3, **setting)
    assert only["choices"][0]["text"] == greedy


def test_top_k_bounds_the_rank(server):
    logprobs = server.complete(prompt=PROMPT, max_tokens=40, temperature=2, top_k=3, seed=5,
                               logprobs=3, ignore_eos=True)["choices"][0]["logprobs"]
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])
    ranks = {sorted(top.values(), reverse=True).index(logprob) for logprob, top in
             zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)}
    assert ranks == {0, 1, 2}


def test_top_k_off(server):
    texts = {server.complete(prompt=PROMPT, max_tokens=12, seed=5, top_k=top_k)["choices"][0]["text"]
             for top_k in (0, -1, 275, 100000)}
    assert len(texts) == 1


def test_min_p_bounds_the_probability(server):
    logprobs = server.complete(prompt=PROMPT, max_tokens=40, temperature=1, min_p=0.5, seed=5,
                               logprobs=1, ignore_eos=True)["choices"][0]["logprobs"]
    for logprob, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert logprob >= max(top.values()) - 0.6932  # ln 2, and a digit of rounding


def test_same_seed_same_tokens(server):
    texts = [letters(server)["text"] for _ in range(3)]
    assert texts == [texts[0]] * 3
    assert letters(server, seed=8)["text"] != texts[0]
    assert letters(server, seed=-(2 ** 63))["text"] != letters(server, seed=2 ** 63 - 1)["text"]


def test_no_seed_is_random(server):
    assert letters(server, seed=None)["text"] != letters(server, seed=None)["text"]


def test_seed_is_keyed_by_choice(server):
    three = server.complete(prompt=PROMPT, n=3, seed=7, max_tokens=20, logit_bias=LETTERS)
    texts = [choice["text"] for choice in three["choices"]]
    assert len(set(texts)) == 3
    assert texts[0] == letters(server, max_tokens=20)["text"]


def test_temperature_flattens(server):
    cold = letters(server, temperature=0.05, max_tokens=60)["text"]
    hot = letters(server, temperature=2, max_tokens=60)["text"]
    assert len(set(hot)) > len(set(cold))


def test_logit_bias_forces_and_bans(server):
    forced = server.complete(prompt=PROMPT, max_tokens=6, logit_bias={str(byte(ord("z"))): 100})
    assert forced["choices"][0]["text"] == "zzzzzz"
    greedy = server.complete(prompt=PROMPT, max_tokens=1, temperature=0, ignore_eos=True,
                             return_token_ids=True)["choices"][0]["token_ids"][0]
    other = server.complete(prompt=PROMPT, max_tokens=1, temperature=0, ignore_eos=True,
                            return_token_ids=True, logit_bias={str(greedy): -100})
    assert other["choices"][0]["token_ids"][0] != greedy


def test_reported_logprobs_are_of_the_untouched_logits(server):
    ids = tokenize(server, PROMPT)
    choice = server.complete(
        prompt=ids, max_tokens=1, temperature=0.3, top_k=5, logprobs=0, return_token_ids=True,
        logit_bias={str(byte(ord("z"))): 100}, repetition_penalty=1.5)["choices"][0]
    assert choice["token_ids"] == [byte(ord("z"))]
    assert choice["logprobs"]["token_logprobs"] == score(server, [ids + [byte(ord("z"))]])


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_additive_penalties_exactly(server, penalty):
    """Two tokens compete; each pick must be the better one after 2 per token (or per occurrence)."""
    ids = tokenize(server, PROMPT)
    pair = [byte(ord("d")), byte(ord("i"))]
    picked = server.complete(prompt=ids, max_tokens=16, temperature=0, return_token_ids=True,
                             logit_bias={str(i): 100 for i in pair}, **{penalty: 2.0}
                             )["choices"][0]["token_ids"]
    plain = server.complete(prompt=ids, max_tokens=16, temperature=0, return_token_ids=True,
                            logit_bias={str(i): 100 for i in pair})["choices"][0]["token_ids"]
    assert picked != plain, "a pair for which the penalty matters, please"
    sequences = [ids + picked[:step] + [token] for step in range(16) for token in pair]
    logprobs = score(server, sequences)
    for step, token in enumerate(picked):
        values = []
        for place, candidate in enumerate(pair):
            count = picked[:step].count(candidate)
            weight = count if penalty == "frequency_penalty" else min(count, 1)
            values.append(logprobs[2 * step + place] - 2.0 * weight)
        best = max(values)
        # Where the two are as good as equal, either may come.
        assert best - values[pair.index(token)] < 1e-4, (step, values)


def test_repetition_penalty_covers_prompt_and_generated(server):
    bias = {str(byte(ord(letter))): 100 for letter in "xyz"}
    fields = {"temperature": 0, "logit_bias": bias, "repetition_penalty": 1000}
    fresh = server.complete(prompt=[byte(ord("q"))], max_tokens=3, **fields)["choices"][0]["text"]
    assert sorted(fresh) == ["x", "y", "z"]
    seen = server.complete(prompt=[byte(ord("x"))], max_tokens=2, **fields)["choices"][0]["text"]
    assert sorted(seen) == ["y", "z"]


# n, best_of


def test_n_of_greedy_are_equal(server):
    reply = server.complete(prompt=PROMPT, n=4, temperature=0, max_tokens=5)
    assert len({choice["text"] for choice in reply["choices"]}) == 1
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]


def test_best_of_ranks_by_mean_logprob(server):
    fields = {"prompt": PROMPT, "seed": 21, "max_tokens": 10, "logprobs": 0, "ignore_eos": True}
    every = server.complete(n=5, **fields)["choices"]

    def mean(choice):
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    ranked = sorted(every, key=mean, reverse=True)
    best = server.complete(n=2, best_of=5, **fields)["choices"]
    assert [choice["text"] for choice in best] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best] == [0, 1]


def test_n_of_128(server):
    reply = server.complete(prompt="x", n=128, max_tokens=2, seed=1)
    assert [choice["index"] for choice in reply["choices"]] == list(range(128))


# Ends


def test_eos_ends_without_text(server):
    reply = server.complete(prompt=PROMPT, max_tokens=8, logit_bias={"0": 100}, logprobs=0)
    choice = reply["choices"][0]
    assert choice["text"] == "" and choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    assert reply["usage"]["completion_tokens"] == 1
    assert len(choice["logprobs"]["tokens"]) == 1


def test_ignore_eos(server):
    fields = {"prompt": PROMPT, "max_tokens": 4, "logit_bias": {"0": 100}, "ignore_eos": True}
    reply = server.complete(**fields)
    assert reply["usage"]["completion_tokens"] == 4
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["text"] == ""
    shown = server.complete(skip_special_tokens=False, **fields)
    assert shown["choices"][0]["text"] == "<|endoftext|>" * 4


def test_min_tokens_bans_eos(server):
    reply = server.complete(prompt=PROMPT, max_tokens=20, min_tokens=6, temperature=0,
                            logit_bias={"0": 100}, return_token_ids=True)
    choice = reply["choices"][0]
    assert EOS not in choice["token_ids"][:6]
    assert reply["usage"]["completion_tokens"] == 7
    assert choice["finish_reason"] == "stop"


def test_stop_token_ids(server):
    stop = byte(ord("d"))
    whole = letters(server)["text"]
    assert "d" in whole
    choice = letters(server, stop_token_ids=[stop], logprobs=0)
    assert choice["text"] == whole[:whole.index("d")]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert len(choice["logprobs"]["tokens"]) == len(choice["text"]) + 1


def test_stop_string_across_tokens(server):
    whole = letters(server)["text"]
    stop = whole[11:15]
    first = whole.index(stop)
    choice = letters(server, stop=stop)
    assert choice["text"] == whole[:first]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    included = letters(server, stop=[stop], include_stop_str_in_output=True)
    assert included["text"] == whole[:first + len(stop)]
    reply = server.complete(prompt=PROMPT, max_tokens=40, seed=7, logit_bias=LETTERS, stop=stop)
    assert reply["usage"]["completion_tokens"] == first + len(stop)


def test_first_of_many_stop_strings(server):
    whole = letters(server)["text"]
    stops = ["never here"] * 40 + [whole[20:24], whole[9:12], whole[30:]]
    choice = letters(server, stop=stops)
    ends = [(whole.index(stop) + len(stop), stop) for stop in stops if stop in whole]
    end, stop = min(ends)
    assert choice["text"] == whole[:end - len(stop)] and choice["stop_reason"] == stop


def test_stop_string_that_overlaps_itself(server):
    """Forced "zzzz…": "zzz" is complete at the third token."""
    choice = server.complete(prompt=PROMPT, max_tokens=9, stop="zzz",
                             logit_bias={str(byte(ord("z"))): 100})["choices"][0]
    assert choice["text"] == "" and choice["stop_reason"] == "zzz"


def test_stop_string_unfinished_at_the_end_is_given(server):
    whole = letters(server, max_tokens=12)["text"]
    choice = letters(server, max_tokens=12, stop=whole[-3:] + "never")
    assert choice["text"] == whole and choice["finish_reason"] == "length"


def test_stop_string_in_the_prompt_does_not_stop(server):
    choice = letters(server, prompt="quick abc", stop="quick", echo=True)
    assert choice["text"].startswith("quick abc") and choice["finish_reason"] == "length"


def test_max_tokens_0_needs_echo(server):
    assert server.refuse(400, prompt="x", max_tokens=0)["param"] == "max_tokens"
    reply = server.complete(prompt="x y", max_tokens=0, echo=True)
    assert reply["choices"][0]["text"] == "x y"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0


# echo and logprobs


def test_echo_gives_strings_verbatim_and_ids_decoded(server):
    choice = letters(server, echo=True)
    assert choice["text"] == PROMPT + letters(server)["text"]
    ids = [byte(0xE2), byte(ord("a"))]
    decoded = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
    echoed = server.complete(prompt=ids, max_tokens=0, echo=True)["choices"][0]["text"]
    assert echoed == decoded == "\ufffda"


def test_echo_with_logprobs_covers_prompt_and_generated(server):
    ids = tokenize(server, PROMPT)
    choice = server.complete(prompt=PROMPT, max_tokens=5, temperature=0, echo=True, logprobs=2,
                             ignore_eos=True, return_token_ids=True)["choices"][0]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(values) for values in logprobs.values()} == {len(ids) + 5}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert isinstance(logprobs["tokens"][0], str) and logprobs["text_offset"][0] == 0
    assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
    again = server.complete(prompt=ids + choice["token_ids"], max_tokens=0, echo=True, logprobs=2)
    assert again["choices"][0]["logprobs"]["token_logprobs"] == logprobs["token_logprobs"]


def test_text_offset_counts_characters(server):
    prompt = "é漢 ab"
    for fields in ({}, {"echo": True}):
        choice = letters(server, prompt=prompt, max_tokens=6, logprobs=0, **fields)
        offsets = choice["logprobs"]["text_offset"]
        assert offsets[0] == 0 and offsets == sorted(offsets)
        assert offsets[-6:] == list(range(len(choice["text"]) - 6, len(choice["text"])))


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_chosen_token_is_in_top_logprobs(server, count):
    logprobs = server.complete(prompt=PROMPT, max_tokens=30, seed=4, temperature=2,
                               logprobs=count, ignore_eos=True)["choices"][0]["logprobs"]
    lengths = set()
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"],
                                   logprobs["top_logprobs"], strict=True):
        assert top[token] == logprob
        lengths.add(len(top))
    assert lengths <= {max(count, 1), count + 1}


def test_digits_are_the_same_in_both_places(server):
    """Not after parsing, but as printed."""
    reply = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0,
                                            "logprobs": 0, "ignore_eos": True}).text
    logprob, = re.findall(r'"token_logprobs": ?\[([^\]]+)\]', reply)
    top, = re.findall(r'"top_logprobs": ?\[\{"(?:\\.|[^"\\])*": ?([^}]+)\}\]', reply)
    assert logprob == top


def test_part_of_a_character_prints_as_bytes(server):
    choice = server.complete(prompt=PROMPT, max_tokens=2, logprobs=0,
                             logit_bias={str(byte(0xE2)): 100})["choices"][0]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe2"] * 2
    assert choice["text"] == "\ufffd\ufffd"


def test_tokens_as_token_ids(server):
    choice = letters(server, max_tokens=5, logprobs=3, return_tokens_as_token_ids=True,
                     return_token_ids=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
    for top in choice["logprobs"]["top_logprobs"]:
        assert all(name.startswith("token_id:") for name in top)


def test_logprobs_sum_to_one(server_factory):
    """With a vocabulary of 275 the 20 best and the sum of the rest: scored one by one."""
    small = server_factory()
    prompts = [[40, 41, token] for token in range(275)]
    total = sum(math.exp(value) for value in score(small, prompts))
    assert abs(total - 1) < 1e-4  # 275 values of f32


# Fields that are absent or unknown; those that are refused: test_parameters.py

def test_null_is_absent_for_every_optional_field(server):
    fields = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "best_of", "stream",
              "stream_options", "logprobs", "echo", "stop", "stop_token_ids",
              "include_stop_str_in_output", "seed", "presence_penalty", "frequency_penalty",
              "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos",
              "add_special_tokens", "skip_special_tokens", "return_token_ids",
              "return_tokens_as_token_ids", "truncate_prompt_tokens", "user", "request_id",
              "priority", "cache_salt", "model", "suffix", "guided_json",
              "prompt_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words", "typical_p",
              "samplers", "n_predict", "max_completion_tokens", "truncation_side"]
    reply = server.complete(prompt="x", **dict.fromkeys(fields))
    assert reply["usage"]["completion_tokens"] >= 1


def test_unknown_fields_are_ignored(server):
    server.complete(prompt="x", max_tokens=1, no_such_field={"deep": [1, 2, {"er": None}]})


@pytest.mark.parametrize("field, value", [
    ("max_tokens", -2), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_tokens", True),
    ("max_tokens", 2 ** 70), ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"),
    ("top_p", -0.1), ("top_p", 1.01), ("top_p", -1), ("top_k", -2), ("top_k", 1.5), ("min_p", -0.1),
    ("min_p", 1.1), ("n", 0), ("n", 129), ("n", "2"), ("best_of", 0), ("best_of", 129),
    ("stream", "yes"), ("stream", 1), ("logprobs", -1), ("logprobs", 21), ("logprobs", "3"),
    ("echo", 1), ("stop", ""), ("stop", [""]), ("stop", 5), ("stop", [5]),
    ("stop_token_ids", [-1]), ("stop_token_ids", [275]), ("stop_token_ids", ["a"]),
    ("stop_token_ids", 5), ("include_stop_str_in_output", 1), ("seed", 1.5), ("seed", "x"),
    ("seed", 2 ** 63), ("presence_penalty", 2.1), ("presence_penalty", -2.1),
    ("frequency_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
    ("repetition_penalty", -1), ("logit_bias", {"275": 1}), ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": -101}), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1": "x"}), ("logit_bias", [1]), ("min_tokens", -1), ("min_tokens", "x"),
    ("ignore_eos", "no"), ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", "x"),
    ("return_token_ids", 1), ("user", 5), ("priority", "high"), ("cache_salt", 5), ("model", 5),
])
def test_out_of_range_or_wrong_type(server, field, value):
    error = server.refuse(400, **{"prompt": "x", "max_tokens": 4, field: value})
    assert error["param"] == field and field in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields, param", [
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    ({"stream": True, "stream_options": 5}, "stream_options"),
])
def test_fields_that_contradict(server, fields, param):
    assert server.refuse(400, prompt="x", **fields)["param"].startswith(param)


def test_context_length(server_factory):
    small = server_factory(max_model_len=32)
    reply = small.complete(prompt=[40] * 20, max_tokens=12, ignore_eos=True)
    assert reply["usage"]["total_tokens"] == 32
    error = small.refuse(400, prompt=[40] * 20, max_tokens=13)
    assert error["code"] == "context_length_exceeded"
    for number in ("20", "13", "32"):
        assert number in error["message"]
    small.refuse(400, prompt="a" * 5000, max_tokens=1)
    cut = small.complete(prompt=[40] * 50, max_tokens=12, truncate_prompt_tokens=20,
                         ignore_eos=True)
    assert cut["usage"]["total_tokens"] == 32
    assert small.get(f"/v1/models/{small.model_id}").json()["max_model_len"] == 32


def test_context_length_of_learned_positions(server_factory):
    learned = server_factory(model=GOLDEN / "sliding_parallel_learned")
    limit = json.loads((learned.model / "config.json").read_text())["max_position_embeddings"]
    learned.complete(prompt=[40] * (limit - 4), max_tokens=4, ignore_eos=True)
    error = learned.refuse(400, prompt=[40] * (limit - 4), max_tokens=5)
    assert error["code"] == "context_length_exceeded" and str(limit) in error["message"]


def test_a_gguf_file_answers_as_its_folder(server_factory):
    servers = [server_factory(model=GOLDEN / "gpt_neox_tf4" / name) for name in ("", "model.gguf")]
    replies = [server.complete(prompt="It was", max_tokens=12, temperature=0, logprobs=2)["choices"]
               for server in servers]
    assert replies[0] == replies[1]
    card = servers[1].get("/v1/models/model").json()
    assert card["dtype"] == "F16" and card["root"] == str(GOLDEN / "gpt_neox_tf4")


def test_real_text(text_server):
    reply = text_server.complete(prompt="It was a dark night, and", max_tokens=40, temperature=0)
    text = reply["choices"][0]["text"]
    words = text.split()
    assert len(words) >= 10 and sum(word.isascii() for word in words) >= len(words) - 2
