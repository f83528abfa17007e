# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 under the names of its releases: the same bits as under flash-linear-attention's."""

import json
import re

import numpy as np
import pytest

import conftest
from checkpoints import copy_of, read_tensors, write_tensors
from harness import GOLDEN
from session_helpers import GREEDY, same
from test_lifecycle import regla
from test_quantize import load, quantize

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

GOLDEN_CASE = GOLDEN / "rwkv7"
PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43]
OUTER = {"model.embeddings.weight": "emb.weight", "lm_head.weight": "head.weight",
         "model.norm.weight": "ln_out.weight", "model.norm.bias": "ln_out.bias"}
PARTS = {"pre_norm": "ln0", "attn_norm": "ln1", "ffn_norm": "ln2", "attn.g_norm": "att.ln_x",
         "attn.r_proj": "att.receptance", "attn.k_proj": "att.key", "attn.v_proj": "att.value",
         "attn.o_proj": "att.output"}


def released(name, values):
    """A tensor of FLA's as the releases have it."""
    if name in OUTER:
        return OUTER[name], values
    layer, part = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
    if pair := re.fullmatch(r"attn\.([wavg])_lora\.lora\.([02])\.(weight|bias)", part):
        letter, place, kind = pair.groups()
        if kind == "bias":
            return f"blocks.{layer}.att.{letter}0", values.reshape(1, 1, -1)
        return f"blocks.{layer}.att.{letter}{1 + int(place) // 2}", np.ascontiguousarray(values.T)
    for own, other in PARTS.items():
        if part.startswith(own + "."):
            return f"blocks.{layer}.{other}{part.removeprefix(own)}", values
    part = re.sub("^attn", "att", part)
    is_vector = part != "att.r_k" and not part.endswith("weight")
    return f"blocks.{layer}.{part}", values.reshape(1, 1, -1) if is_vector else values


def save(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        bytes_ = values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    write_tensors(path, header, data)


def as_released():
    tensors = dict(released(*item) for item in load(GOLDEN_CASE).items())
    # which the releases have, and nobody uses
    width = tensors["blocks.0.ln1.weight"].size
    for name, shape in (("v0", (1, 1, width)), ("v1", (width, 4)), ("v2", (4, width))):
        tensors[f"blocks.0.att.{name}"] = np.ones(shape, np.float32)
    return tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = copy_of(tmp_path_factory.mktemp("released") / "model", "rwkv7")
    save(folder / "model.safetensors", as_released())
    return folder


def sample(tmp_path, model):
    running = conftest.start(tmp_path, model=model, threads=1)
    choice = running.complete(prompt=PROMPT, max_tokens=12, echo=True, **GREEDY)["choices"][0]
    conftest.finish(running)
    return choice


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return sample(tmp_path_factory.mktemp("fla"), GOLDEN_CASE)


def test_released_names_mean_the_same_bits(folder, expected, tmp_path):
    names = read_tensors(folder / "model.safetensors")[0]
    assert names["blocks.1.att.w1"]["shape"] == [32, 8]
    assert names["blocks.1.att.w0"]["shape"] == [1, 1, 32]
    same(sample(tmp_path, folder), expected)


def test_quantized_releases_have_flas_names(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was a dark night, and the old man said nothing. " * 20)
    result = quantize(folder, text, tmp_path / "out", "--tokens", "400", "--context", "64")
    assert result.returncode == 0, result.stderr
    golden, own = load(GOLDEN_CASE), load(tmp_path / "out")
    for name, values in golden.items():
        if values.ndim < 2 or "lora" in name:
            assert np.array_equal(own[name].reshape(values.shape), values), name
    assert sample(tmp_path, tmp_path / "out")["token_ids"]


def test_without_norm_bias_those_of_the_file_are_not_used(expected, tmp_path):
    """As in FLA, whose norms have none then."""
    said = []
    for name, zeros in (("ignored", False), ("zeros", True), ("below the head", False)):
        folder = copy_of(tmp_path / name, "rwkv7")
        if zeros:
            save(folder / "model.safetensors", {
                key: values * 0 if key.endswith("norm.bias") and "g_norm" not in key else values
                for key, values in load(GOLDEN_CASE).items()})
        else:
            if name == "below the head":  # as a model is saved without its head
                save(folder / "model.safetensors", {key.removeprefix("model."): values
                                                    for key, values in load(GOLDEN_CASE).items()})
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "norm_bias": False}))
        said.append(sample(tmp_path, folder))
    assert said[0]["logprobs"]["token_logprobs"][1:] != expected["logprobs"]["token_logprobs"][1:]
    for one, *others in zip(*(choice["logprobs"]["token_logprobs"][1:] for choice in said)):
        assert all(abs(one - other) < 1e-5 for other in others)


@pytest.mark.parametrize("name, shape, told", [
    ("blocks.1.att.w1", (8, 32), r"attn\.w_lora\.lora\.0\.weight\": expected shape \[32, 8\], got \[8, 32\]"),
    ("blocks.1.att.a0", (1, 31), r"attn\.a_lora\.lora\.2\.bias\": expected shape \[32\], got \[1, 31\]"),
    ("blocks.1.att.time_state", (4, 8, 8), r"blocks\.1\.att\.time_state\": the configuration has no use"),
    ("blocks.1.att.k_k", None, r"attn\.k_k\": expected shape \[32\], got nothing"),
])
def test_damaged_releases(name, shape, told, tmp_path):
    tensors = as_released()
    tensors.pop(name, None)
    if shape:
        tensors[name] = np.ones(shape, np.float32)
    folder = copy_of(tmp_path / "model", "rwkv7")
    save(folder / "model.safetensors", tensors)
    result = regla("info", folder)
    assert result.returncode != 0
    assert re.search(told, result.stderr), result.stderr
