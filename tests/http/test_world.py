# SPDX-License-Identifier: Apache-2.0
"""A model with RWKV's World vocabulary in the place of tokenizer.json. A bias of 100 says which tokens
are drawn."""

import json
import os
import re
import subprocess

import pytest

import checkpoints
import conftest
import harness

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

# Ids 1 to 256 are the bytes 0 to 255.
MORE = ["ab", "abcd", b"\xe4\xb8", '{"', '":', "\r\n"]
AB, ABCD, HALF, OPEN, COLON, NEWLINE = range(257, 263)


def byte_ids(text):
    return [byte + 1 for byte in text.encode()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world") / "model"
    checkpoints.copy_of(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    tokens = [chr(i) if i < 0x80 else bytes([i]) for i in range(256)] + MORE
    lines = (f"{i} {token!r} {len(token)}\n" for i, token in enumerate(tokens, 1))
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    running = conftest.start(tmp_path_factory.mktemp("world-server"), model=folder)
    yield running
    conftest.finish(running)


def complete(server, prompt, drawn, **fields):
    fields = {"logit_bias": {str(i): 100 for i in drawn}, "temperature": 0, **fields}
    return server.complete(prompt=prompt, **fields)["choices"][0]


def test_tokenize_takes_the_longest(server):
    for text, ids in [("abcd\r\nab", [ABCD, NEWLINE, AB]), ("中b", [HALF, 0xAD + 1, ord("b") + 1]),
                      ("a<|rwkv_tokenizer_end_of_text|>", [ord("a") + 1, 0])]:
        assert server.post("/tokenize", {"prompt": text}).json()["tokens"] == ids
        assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == text


def test_detokenize_replaces_what_is_no_text(server):
    assert server.post("/detokenize", {"tokens": [HALF, AB, 0xFF + 1]}).json()["prompt"] == "\ufffdab\ufffd"


def test_a_character_of_several_tokens_is_whole(server):
    choice = complete(server, [HALF], [0xAD + 1], max_tokens=1)
    assert choice["text"] == "中"
    choice = complete(server, "x", [HALF], max_tokens=2, logprobs=1)
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe4\\xb8"] * 2
    assert choice["text"] == "\ufffd\ufffd"


def test_stop_strings_across_tokens(server):
    choice = complete(server, "x", [ABCD], max_tokens=4, stop="da")
    assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")


def test_streamed_parts_add_up(server):
    seen = ""
    for seed in range(20):
        body = {"prompt": "x", "max_tokens": 24, "temperature": 2, "seed": seed,
                "logit_bias": {str(i): 100 for i in (HALF, 0xAD + 1, AB, NEWLINE)}}
        whole = server.complete(**body)["choices"][0]["text"]
        assert "".join(frame["choices"][0]["text"] for frame in server.stream(**body)) == whole
        seen += whole
    assert "中" in seen and "\ufffd" in seen


def test_constrained_output(server):
    schema = {"type": "object", "properties": {"ab": {"enum": ["中\r\n", "abcd"]}}, "required": ["ab"],
              "additionalProperties": False}
    for seed in range(4):
        choice = server.complete(prompt="x", max_tokens=60, temperature=1, seed=seed, response_format={
            "type": "json_schema", "json_schema": {"name": "s", "schema": schema}})["choices"][0]
        assert json.loads(choice["text"]) in ({"ab": "中\r\n"}, {"ab": "abcd"}), choice
    choice = complete(server, "x", [], max_tokens=8, structured_outputs={"regex": "(abcd|中){2}"})
    assert re.fullmatch("(abcd|中){2}", choice["text"])


def test_quantize_copies_the_vocabulary(folder, tmp_path):
    (tmp_path / "text").write_text("abcd " * 200)
    subprocess.run([os.fspath(harness.BINARY), "quantize", folder, tmp_path / "text", tmp_path / "out"],
                   check=True, capture_output=True, timeout=60 * harness.SLOWNESS)
    assert (tmp_path / "out" / "rwkv_vocab_v20230424.txt").exists()
