# SPDX-License-Identifier: Apache-2.0
"""The golden cases through HTTP: echo + logprobs within each case's tolerance, and the same digits
whatever the chunks, the company and the threads."""

import json
import threading

import pytest

from harness import GOLDEN

CUTS = ((1, 1), (3, 2), (7, 3))  # (tokens of a chunk, threads)
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


def expected_of(case):
    return json.loads((GOLDEN / case / "expected.json").read_text())


def ask(server, expected):
    return server.complete(
        prompt=expected["prompt"], max_tokens=len(expected["greedy"]), temperature=0, echo=True,
        logprobs=5, ignore_eos=True, return_token_ids=True, return_tokens_as_token_ids=True,
        add_special_tokens=False)["choices"][0]


@pytest.mark.builds("dev")  # `regla check` of the same cases is a stage of asan
@pytest.mark.parametrize("case", CASES)
def test_values(server_factory, case):
    expected = expected_of(case)
    tolerance = expected["tolerance"]
    choice = ask(server_factory(model=GOLDEN / case, activations="f32"), expected)
    prompt = expected["prompt"]
    assert choice["prompt_token_ids"] == prompt
    got = choice["logprobs"]["token_logprobs"][1:len(prompt)]
    assert len(got) == len(expected["prompt_logprobs"])
    for place, (value, wanted) in enumerate(zip(got, expected["prompt_logprobs"])):
        assert abs(value - wanted) <= tolerance, f"prompt position {place + 1}"
    for place, best in enumerate(expected["top5"]):
        top = choice["logprobs"]["top_logprobs"][place + 1]
        for token, wanted in best:
            # A token that is as good as the fifth may have lost its place to it. A sixth is the
            # prompt's own.
            fifth = sorted(top.values(), reverse=True)[:5][-1]
            value = top.get(f"token_id:{token}", fifth)
            assert abs(value - wanted) <= tolerance, f"after position {place}, token {token}"
    sure = 0
    while sure < len(expected["greedy"]) and expected["greedy_margin"][sure] >= 1e-3:
        sure += 1
    assert choice["token_ids"][:sure] == expected["greedy"][:sure]


def company(server, expected, count):
    """Other texts that run beside; returns their threads."""
    def other(number):
        prompt = expected["prompt"][number:] + expected["prompt"][:number]
        server.complete(prompt=prompt[:7 + 5 * number], max_tokens=24, seed=number,
                        ignore_eos=True)
    threads = [threading.Thread(target=other, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def check_digits(server, expected, plain):
    """Asked alone and asked beside others it says what it said."""
    assert ask(server, expected) == plain, server.process.args
    others = company(server, expected, 7)
    try:
        assert ask(server, expected) == plain, f"beside 7 others: {server.process.args}"
    finally:
        for thread in others:
            thread.join()


@pytest.mark.builds("dev")
@pytest.mark.parametrize("case", CASES)
def test_same_digits(server_factory, case):
    expected = expected_of(case)
    plain = ask(server_factory(model=GOLDEN / case), expected)
    for chunk, threads in CUTS:
        server = server_factory(model=GOLDEN / case, prefill_chunk=chunk, threads=threads)
        check_digits(server, expected, plain)
        server.stop()


@pytest.mark.builds("tsan")
@pytest.mark.parametrize("case", CASES)
def test_threads_of_every_mixer(server_factory, case):
    expected = expected_of(case)
    server = server_factory(model=GOLDEN / case, prefill_chunk=3, threads=2)
    check_digits(server, expected, ask(server, expected))
