# SPDX-License-Identifier: Apache-2.0
"""What users of recurrent and hybrid models complain about elsewhere, asked of this server: Qwen 3.5
(Gated DeltaNet), Mamba-2 without KV, Granite 4 H and Falcon-H1 (Mamba-2 with attention), LFM 2.

llama.cpp #20225: the whole prompt is computed again each turn; and #19794: checkpoints are invalidated.
    test_state_properties.py: test_a_conversation_computes_what_is_new, resent and edited
llama.cpp #25913: a saved state is put back, and gives no reuse.
    test_a_state_that_is_put_back_is_reused
vLLM #53912: prefix caching changes what is said.
    test_prefix_reuse.py: test_cold_cached_evicted_and_dropped_are_the_same
vLLM #51198: a prefix is reused at its third sighting, or never.
    test_a_prefix_is_reused_at_its_second_sighting
vLLM #42960: decoding differs from reading, and so do chunks; #41292: chunks read a state in a wrong layout.
    test_reading_gives_the_digits_of_writing
vLLM #57267: the same batch says other things each time; #57720: prompts of one token give garbage.
    test_a_batch_says_the_same_each_time
SGLang #23975, #24717: a convolution sees another request's rows.
    test_concurrency.py: test_convolutions_see_their_own_text_alone
"""

import random

import pytest

from harness import GOLDEN
from session_helpers import GREEDY, cached, put, same
from stress_helpers import Oracle, some_ids
from test_concurrency import in_threads

pytestmark = pytest.mark.builds("dev", "asan")  # TSan: test_golden.py

MODELS = [GOLDEN / name for name in ("delta_qwen3_5_text", "mamba2", "rwkv7", "granitemoehybrid",
                                      "falcon_h1", "lfm2")]
INTERVAL = 16
VOCABULARY = 270

each_model = pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)


@each_model
def test_a_state_that_is_put_back_is_reused(server_factory, model):
    dice = random.Random(model.name)
    first, then = some_ids(dice, 100, VOCABULARY), some_ids(dice, 9, VOCABULARY)
    server = server_factory(model=model)
    said = server.complete(prompt=first, session_id="talk", max_tokens=12, **GREEDY)["choices"][0]
    file = server.get("/v1/sessions/talk/state").content
    other = server_factory(model=model)
    assert put(other, "again", file).status_code == 201
    reply = other.complete(prompt=then, session_id="again", max_tokens=12, **GREEDY)
    held = len(first) + len(said["token_ids"])
    assert reply["usage"]["prompt_tokens"] - cached(reply) <= len(then) + 1
    assert cached(reply) >= held - 1
    cold = server_factory(model=model, no_prefix_cache=True)
    same(reply["choices"][0], Oracle(cold).after(first + said["token_ids"] + then, 12))


@each_model
def test_a_prefix_is_reused_at_its_second_sighting(server_factory, model):
    dice = random.Random(model.name)
    server = server_factory(model=model, checkpoint_interval=INTERVAL)
    shared = some_ids(dice, 100, VOCABULARY)
    for sighting in range(3):
        reply = server.complete(prompt=shared + some_ids(dice, 20, VOCABULARY), max_tokens=4, **GREEDY)
        if sighting == 0:
            assert cached(reply) == 0
        else:
            assert cached(reply) >= len(shared) - INTERVAL, sighting


@each_model
def test_reading_gives_the_digits_of_writing(server_factory, model):
    """A text that was written token by token, read again whole and in chunks of 16."""
    dice = random.Random(model.name)
    prompt = some_ids(dice, 70, VOCABULARY)
    server = server_factory(model=model, no_prefix_cache=True)
    written = server.complete(prompt=prompt, max_tokens=80, **GREEDY)["choices"][0]
    whole = prompt + written["token_ids"]
    read = [server_factory(model=model, no_prefix_cache=True, max_step_tokens=16), server]
    for reader in read:
        choice = reader.complete(prompt=whole, max_tokens=0, echo=True, **GREEDY)["choices"][0]
        assert (choice["logprobs"]["token_logprobs"][len(prompt):]
                == written["logprobs"]["token_logprobs"])


@each_model
def test_a_batch_says_the_same_each_time(server_factory, model):
    """Greedy, of one token and of many, 24 at once and each by itself."""
    dice = random.Random(model.name)
    server = server_factory(model=model, no_prefix_cache=True)
    prompts = [some_ids(dice, 1 if number % 2 else 1 + number, VOCABULARY) for number in range(24)]

    def ask(number):
        return server.complete(prompt=prompts[number], max_tokens=16, **GREEDY)["choices"][0]
    alone = [ask(number) for number in range(24)]
    for _ in range(3):
        for expected, choice in zip(alone, in_threads(24, ask)):
            same(choice, expected)
