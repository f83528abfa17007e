# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that falls back on bytes, as Llama's: a run of them is a text only as a whole, so what
they spell is held back until the run ends. A bias of 100 says which tokens are drawn."""

import os
import subprocess

import pytest

import checkpoints
import conftest
import harness

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byte-fallback") / "model"
    return folder, checkpoints.with_byte_fallback(folder)


@pytest.fixture(scope="module")
def ids(model):
    return model[1]


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    running = conftest.start(tmp_path_factory.mktemp("byte-fallback-server"), model=model[0])
    yield running
    conftest.finish(running)


def complete(server, prompt, drawn, **fields):
    fields = {"logit_bias": {str(i): 100 for i in drawn}, "temperature": 0, **fields}
    return server.complete(prompt=prompt, **fields)["choices"][0]


def spelled(ids, text):
    return [ids[f"<0x{byte:02X}>"] for byte in text.encode()]


@pytest.mark.parametrize("text", ["\n", "\n\n", "中", "中中", "中" * 40, "e\u0301\n"])
def test_the_prompts_last_bytes_are_the_prompts(server, ids, text):
    prompt = [ids["a"]] + spelled(ids, text)
    assert complete(server, prompt, [ids["b"]], max_tokens=3)["text"] == "bbb"
    assert complete(server, prompt, [ids["\u2581"]], max_tokens=2)["text"] == "  "
    again = complete(server, prompt, [ids["b"]], max_tokens=3, stop="\n")
    assert (again["text"], again["finish_reason"]) == ("bbb", "length")


def test_special_tokens_do_not_make_a_beginning(server, ids):
    """Strip takes the space that begins a text, and only that one."""
    prompt = [ids["a"]] + 6 * [ids["<s>"]]
    assert complete(server, prompt, [ids["\u2581"]], max_tokens=2)["text"] == "  "
    assert complete(server, [ids["<s>"]], [ids["\u2581"]], max_tokens=2)["text"] == " "


def test_a_character_that_the_prompt_began_is_completed(server, ids):
    begun, last = spelled(ids, "中")[:2], spelled(ids, "中")[2]
    for before in ([ids["a"]], spelled(ids, "中"), spelled(ids, "\n")):
        assert complete(server, before + begun, [last], max_tokens=1)["text"] == "中"


def test_bytes_that_are_no_text_stay_in_the_prompt(server, ids):
    assert complete(server, [ids["a"], ids["<0xFF>"]], [ids["b"]], max_tokens=1)["text"] == "b"


def test_a_stop_string_that_was_held_back_stops(server, ids):
    """The run of bytes ends with the last token, or with the one that ends the text."""
    newline = ids["<0x0A>"]
    choice = complete(server, [ids["a"]], [newline], max_tokens=1, stop=["\n"])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", "\n")
    choice = complete(server, [ids["a"]], [newline, ids["b"]], max_tokens=30, stop=["\n"],
                      stop_token_ids=[ids["b"]], temperature=1, seed=5)
    assert choice["finish_reason"] == "stop"
    several = [complete(server, [ids["a"]], [newline, ids["b"]], max_tokens=30, stop=["\n"],
                        stop_token_ids=[ids["b"]], temperature=1, seed=seed) for seed in range(12)]
    assert {choice["stop_reason"] for choice in several} == {"\n", ids["b"]}
    assert {choice["text"] for choice in several} == {""}


def test_offsets_count_what_was_held_back(server, ids):
    newline = ids["<0x0A>"]
    choice = complete(server, [ids["a"], newline, newline, ids["b"], newline], [newline, ids["c"]],
                      max_tokens=24, temperature=1, seed=3, logprobs=0, echo=True)
    assert "\n\nc" in choice["text"] and len(choice["text"]) == 29
    assert choice["logprobs"]["text_offset"] == list(range(29))


def test_generate_prints_what_the_server_gives(server, model):
    """From the shell, behind the same prompts."""
    for prompt in ("a b", "a b\n", "中"):
        text = server.complete(prompt=prompt, max_tokens=12, temperature=0)["choices"][0]["text"]
        result = subprocess.run(
            [os.fspath(harness.BINARY), "generate", os.fspath(model[0]), "--prompt", prompt,
             "--temperature", "0", "--max-tokens", "12", "--quiet"],
            capture_output=True, timeout=60, check=True)
        assert result.stdout.decode() == text + "\n"
