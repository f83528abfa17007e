# SPDX-License-Identifier: Apache-2.0
"""Presets: --preset in the place of a model, and a server without a tokenizer. Formats of weights
and KV, as far as flags and replies name them."""

import json
import pathlib
import re
import struct
import subprocess
import sys

import pytest

import checkpoints
from harness import GOLDEN, ROOT, check_error, read_frames
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev")  # of a large model

HYBRID = GOLDEN / "hybrid_regla"
PRESET = "hybrid_regla-6l"
VOCAB_SIZE = 50304
PROMPT = [11, 50303, 0, 4711, 11]
GREEDY = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def preset_server(tmp_path_factory):
    import conftest
    running = conftest.start(tmp_path_factory.mktemp("preset"), preset=PRESET)
    yield running
    conftest.finish(running)


def test_the_files_are_what_their_script_writes():
    script = ROOT / "models" / "presets" / "make_presets.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_info_lists_the_files():
    listed = regla("info", "--presets").stdout.split()
    assert listed == sorted(path.stem for path in (ROOT / "models" / "presets").glob("*.json"))
    assert len(listed) == 2 * 34 + 11 + 13


@pytest.mark.long
def test_a_preset_has_no_files():
    assert "files  " not in regla("info", "--preset", PRESET).stdout
    assert json.loads(regla("info", "--preset", PRESET, "--json").stdout)["file_bytes"] == 0


@pytest.mark.parametrize("arguments, words", [
    (["serve"], ["neither"]), (["serve", "--model", HYBRID, "--preset", PRESET], ["both"]),
    (["serve", "--preset", "regla-160"], ["regla-160", "did you mean regla-160m?", "--presets"]),
    (["info"], ["neither"]), (["info", HYBRID, "--preset", PRESET], ["both"]),
    (["generate", "--preset", "x" * 300], ["--presets"]),
    (["generate", "--preset", PRESET, "--prompt", "1", "--stop", "a"], ["--stop"]),
    (["perplexity", "--preset", PRESET, "file"], ["--preset"]),
    (["info", HYBRID, "--weights", "q9"], ["--weights", "q8"]),
    (["info", HYBRID, "--kv", "q8"], ["--kv", "bf16"])])
def test_wrong_usage_is_status_2(arguments, words):
    result = regla(*arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.long
def test_generate_takes_and_gives_token_ids(preset_server):
    prompt = " ".join(map(str, PROMPT))
    result = regla("generate", "--preset", PRESET, "--prompt", prompt, "--max-tokens", 4,
                   "--temperature", 0, "--echo", "--quiet", timeout=120)
    assert result.returncode == 0, result.stderr
    ids = [int(word) for word in result.stdout.split()]
    assert ids[:len(PROMPT)] == PROMPT
    served = preset_server.complete(prompt=PROMPT, **GREEDY)["choices"][0]
    assert ids[len(PROMPT):] == served["token_ids"]
    result = regla("generate", "--preset", PRESET, "--prompt", f"1 {VOCAB_SIZE}", timeout=120)
    assert result.returncode == 1 and f"under {VOCAB_SIZE}" in result.stderr


def test_completion_by_token_ids(preset_server):
    reply = preset_server.complete(prompt=PROMPT, logprobs=2, echo=True, **GREEDY)
    choice = reply["choices"][0]
    assert choice["text"] == "" and choice["finish_reason"] == "length"
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == 4
    names = [f"token_id:{token}" for token in PROMPT + choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert choice["logprobs"]["text_offset"] == [0] * len(names)
    for logprob, top in zip(choice["logprobs"]["token_logprobs"][1:],
                            choice["logprobs"]["top_logprobs"][1:]):
        assert -40 < logprob <= 0
        assert all(re.fullmatch(r"token_id:\d+", name) for name in top)
    assert reply["model"] == PRESET
    several = preset_server.complete(prompt=[PROMPT, PROMPT[:2]], **GREEDY)["choices"]
    assert several[0]["token_ids"] == choice["token_ids"]
    without = preset_server.complete(prompt=PROMPT, return_token_ids=False, **GREEDY)["choices"][0]
    assert without["token_ids"] is None


def test_stream_of_token_ids(preset_server):
    whole = preset_server.complete(prompt=PROMPT, **GREEDY)["choices"][0]["token_ids"]
    reply = preset_server.post("/v1/completions", {"prompt": PROMPT, "stream": True, **GREEDY})
    choices = [frame["choices"][0] for frame in read_frames(reply.content)]
    assert [len(choice["token_ids"]) for choice in choices] == [1] * 4
    assert [choice["token_ids"][0] for choice in choices] == whole
    assert all(choice["text"] == "" for choice in choices)


def test_stop_token_ids(preset_server):
    whole = preset_server.complete(prompt=PROMPT, **GREEDY)["choices"][0]["token_ids"]
    choice = preset_server.complete(prompt=PROMPT, stop_token_ids=[whole[1]], **GREEDY)["choices"][0]
    first = whole.index(whole[1])
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == whole[1]
    assert choice["token_ids"] == whole[:first + 1]


@pytest.mark.parametrize("fields, param", [
    ({"prompt": "a text"}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": ""}, "prompt"),
    ({"prompt": [1], "stop": "a"}, "stop"), ({"prompt": [1], "stop": ["a"]}, "stop"),
    ({"prompt": [1], "bad_words": ["a"]}, "bad_words"),
    ({"prompt": [VOCAB_SIZE]}, "prompt")])
def test_texts_are_refused(preset_server, fields, param):
    error = preset_server.refuse(400, **fields)
    assert error["param"] == param
    if fields["prompt"] != [VOCAB_SIZE]:
        assert "tokenizer" in error["message"]


def test_a_session_goes_on_by_itself(preset_server):
    """"" is no text: nothing is added to what the session holds."""
    def go_on(max_tokens):
        return preset_server.complete(prompt="", session_id="preset", max_tokens=max_tokens,
                                      temperature=0)
    whole = preset_server.complete(prompt=PROMPT, **GREEDY)["choices"][0]["token_ids"]
    preset_server.complete(prompt=PROMPT, session_id="preset", max_tokens=0)
    assert go_on(1)["choices"][0]["token_ids"] + go_on(3)["choices"][0]["token_ids"] == whole
    error = preset_server.refuse(400, prompt="a text", session_id="preset")
    assert error["param"] == "prompt" and "tokenizer" in error["message"]
    preset_server.refuse(400, prompt="", session_id="new")
    assert preset_server.http.delete("/v1/sessions/preset").status_code == 204


def test_what_needs_a_tokenizer_is_not_there(preset_server):
    for reply in (preset_server.post("/tokenize", {"prompt": "a"}),
                  preset_server.post("/detokenize", {"tokens": [1]}),
                  preset_server.post("/apply-template", {"messages": []}),
                  preset_server.get("/tokenizer_info")):
        assert "tokenizer" in check_error(reply, 501, "not_implemented")["message"]


def test_a_preset_is_described_as_a_model(preset_server):
    card = preset_server.get("/v1/models").json()["data"][0]
    assert card["id"] == PRESET
    told = json.loads(regla("info", "--preset", PRESET, "--json", timeout=120).stdout)
    assert told["parameters"] == card["parameters"] and told["dtype"] == "BF16"
    assert [layer["kind"] for layer in told["layers"]] == ["linear", "softmax"] * 3


def test_a_model_needs_its_tokenizer(tmp_path):
    folder = checkpoints.copy_of(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    result = regla("serve", "--model", folder, "--port", 0)
    assert result.returncode == 1 and "tokenizer.json" in result.stderr


def test_info_says_what_each_format_costs():
    told = {name: json.loads(regla("info", HYBRID, "--json", "--weights", name).stdout)
            for name in ("f32", "bf16", "f16", "q8", "q6", "q4")}
    predicted = told["f32"]["weights_by_format"]
    for name in told:
        assert told[name]["weights"] == name
        assert predicted[name]["bytes_read_per_token"] == told[name]["weights_bytes"]
    sizes = [predicted[name]["bytes"] for name in ("q4", "q6", "q8", "bf16", "f32")]
    assert sizes == sorted(set(sizes))
    text = regla("info", HYBRID).stdout
    for word in ("--weights", "q8", "--kv", "bf16", "loaded in"):
        assert word in text


def test_info_says_what_kv_costs():
    for name in ("f32", "f16", "bf16"):
        told = json.loads(regla("info", HYBRID, "--json", "--kv", name).stdout)
        assert told["kv"] == name
        assert told["kv_bytes_per_token"] == told["kv_bytes_per_token_by_format"][name]
        assert told["kv_bytes_per_token_by_format"]["f16"] * 2 == \
            told["kv_bytes_per_token_by_format"]["f32"]


def test_the_fingerprint_names_set_and_formats(server, server_factory):
    pattern = r"regla-[0-9.]+-[0-9a-f]{8}-[a-z0-9]+-"
    plain = server.complete(prompt=[1], max_tokens=1)["system_fingerprint"]
    assert re.fullmatch(pattern + "f32-f32", plain)
    other = server_factory(weights="q8", kv="bf16").complete(prompt=[1], max_tokens=1)
    assert re.fullmatch(pattern + "q8-bf16" + ("-8bit" if ROUNDS else ""), other["system_fingerprint"])


ROUNDS = "avx512_vnni" in pathlib.Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("weights, activations, message", [
    ("f32", "16bit", "activations: 16bit goes with weights in bf16, f16, q8, q6 or q4, these are in f32"),
    ("bf16", "8bit", "activations: 8bit goes with weights in q8, q6 or q4, these are in bf16")])
def test_activations_that_do_not_fit_the_weights_are_refused(weights, activations, message):
    for command in (["info", HYBRID], ["serve", "--model", HYBRID, "--port", 0]):
        result = regla(*command, "--weights", weights, "--activations", activations)
        assert result.returncode == 1 and message in result.stderr, result.stderr


@pytest.mark.parametrize("weights, message", [
    ("f32", "products: cublaslt goes with weights in bf16 or f16, these are in f32"),
    ("q8", "products: cublaslt goes with weights in bf16 or f16, these are in q8"),
    ("bf16", "products: expected own on the CPU, got cublaslt")])
def test_products_that_a_device_or_its_weights_do_not_have_are_refused(weights, message):
    for command in (["info", HYBRID], ["bench", "--model", HYBRID], ["generate", HYBRID],
                    ["serve", "--model", HYBRID, "--port", 0]):
        result = regla(*command, "--device", "cpu", "--weights", weights, "--products", "cublaslt")
        assert result.returncode == 1 and message in result.stderr, result.stderr
    result = regla("serve", "--model", HYBRID, "--products", "cublas")
    assert result.returncode == 2 and "--products: expected own|cublaslt, got" in result.stderr


def test_rounded_activations_are_said_or_refused(server_factory):
    told = regla("info", HYBRID, "--json", "--weights", "q8", "--activations", "16bit")
    if not ROUNDS:
        assert told.returncode == 1
        assert "16bit with weights in q8 needs AVX-512 VNNI" in told.stderr
        return
    assert json.loads(told.stdout)["activations"] == "16bit"
    told = regla("info", HYBRID, "--json", "--weights", "f16", "--activations", "16bit")
    if '"amx"' in regla("info", HYBRID, "--json").stdout:
        assert json.loads(told.stdout)["activations"] == "16bit"
    else:
        assert told.returncode == 1 and "16bit with weights in f16 needs AMX" in told.stderr
    server = server_factory(weights="q8", activations="16bit")
    assert server.complete(prompt=[1], max_tokens=1)["system_fingerprint"].endswith("-q8-f16-16bit")


@pytest.mark.parametrize("weights, rounded", [("q8", "8bit"), ("q6", "16bit"), ("q4", "8bit")])
def test_activations_are_rounded_by_default_where_that_is_faster(server_factory, weights, rounded):
    told = json.loads(regla("info", HYBRID, "--json", "--weights", weights).stdout)
    assert told["activations"] == (rounded if ROUNDS else "f32")
    server = server_factory(weights=weights)
    fingerprint = server.complete(prompt=[1], max_tokens=1)["system_fingerprint"]
    assert fingerprint.endswith(f"-{weights}-f16" + (f"-{rounded}" if ROUNDS else ""))


def test_activations_are_not_rounded_where_nothing_was_asked_to_be():
    assert json.loads(regla("info", HYBRID, "--json").stdout)["activations"] == "f32"  # so are its weights
    help_text = regla("check", "--help").stdout
    assert re.search(r"--activations auto.*?default f32", help_text, re.S)


def test_check_bits_only(tmp_path):
    folder = checkpoints.copy_of(tmp_path / "case")
    expected = json.loads((folder / "expected.json").read_text())
    expected["prompt_logprobs"][3] += 1
    (folder / "expected.json").write_text(json.dumps(expected))
    assert regla("check", folder).returncode == 1
    result = regla("check", "--bits-only", folder)
    assert result.returncode == 0 and "the same bits in 29 runs" in result.stdout
    header, data = checkpoints.read_tensors(folder / "model.safetensors")
    begin, end = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"]

    def fill(number):
        numbers = struct.pack("<f", number) * ((end - begin) // 4)
        checkpoints.write_tensors(folder / "model.safetensors", header,
                                  data[:begin] + numbers + data[end:])
        return regla("check", "--bits-only", folder)
    result = fill(3e38)
    assert result.returncode == 1 and "expected numbers" in result.stdout
    result = fill(float("nan"))
    assert result.returncode == 1 and "cannot be run" in result.stdout
    assert ('model.safetensors: tensor "model.layers.0.mlp.up_proj.weight": expected finite numbers, '
            "got nan at element 0") in result.stderr
