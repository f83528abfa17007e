# SPDX-License-Identifier: Apache-2.0
"""Linearising: a donor with Pythia's names and shapes, GPT-NeoX's numbers, and a donor of ours."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from train.checkpoint import load_model
from train.config import parse_config
from train.export import export
from train.fit import fit, parse_arguments
from train.linearize import SYSTEMS, linearize, read_donor, write
from train.model.model import Model
from train.presets import presets
from train.tokenizer import encode_documents, train_tokenizer

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
PYTHIA = {
    "model_type": "gpt_neox", "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 3, "intermediate_size": 192, "hidden_act": "gelu", "rotary_pct": 0.25,
    "rotary_emb_base": 10000, "layer_norm_eps": 1e-5, "use_parallel_residual": True,
    "tie_word_embeddings": False, "max_position_embeddings": 64, "bos_token_id": 0,
    "eos_token_id": 0, "torch_dtype": "float16", "architectures": ["GPTNeoXForCausalLM"],
}
THERE = [system for system in SYSTEMS if system in presets().SYSTEMS]


def pythia_tensors(raw):
    """Random tensors by the names and shapes of EleutherAI/pythia-160m, buffers included."""
    width, inner, vocab = raw["hidden_size"], raw["intermediate_size"], raw["vocab_size"]
    norm = {"weight": (width,), "bias": (width,)}
    layer = {
        "input_layernorm": norm,
        "post_attention_layernorm": norm,
        "attention.query_key_value": {"weight": (3 * width, width), "bias": (3 * width,)},
        "attention.dense": {"weight": (width, width), "bias": (width,)},
        "mlp.dense_h_to_4h": {"weight": (inner, width), "bias": (inner,)},
        "mlp.dense_4h_to_h": {"weight": (width, inner), "bias": (width,)},
        "attention": {"bias": (1, 1, 8, 8), "masked_bias": ()},
        "attention.rotary_emb": {"inv_freq": (2,)},
    }
    shapes = {"embed_out.weight": (vocab, width), "gpt_neox.embed_in.weight": (vocab, width),
              **{f"gpt_neox.final_layer_norm.{k}": s for k, s in norm.items()},
              **{f"gpt_neox.layers.{i}.{part}.{k}": s for i in range(raw["num_hidden_layers"])
                 for part, kinds in layer.items() for k, s in kinds.items()}}
    generator = torch.Generator().manual_seed(5)
    return {name: (0.2 * torch.randn(shape, generator=generator)).half()
            for name, shape in shapes.items()}


@pytest.fixture
def pythia(tmp_path):
    (tmp_path / "donor").mkdir()
    (tmp_path / "donor" / "config.json").write_text(json.dumps(PYTHIA))
    (tmp_path / "donor" / "tokenizer.json").write_text("{}")
    save_file(pythia_tensors(PYTHIA), tmp_path / "donor" / "model.safetensors")
    return tmp_path / "donor"


@pytest.mark.parametrize("case", ["gpt_neox_tf5", "gpt_neox_tf5_sequential_sharded",
                                  "gpt_neox_tf5_tied_no_bias", "gpt_neox_tf4_28_buffers"])
def test_a_donor_is_read_as_the_library_computes_it(case):
    """transformers' log-probabilities: q, k and v are parted rightly, and so are the rest."""
    donor = read_donor(GOLDEN / case)
    names = ["softmax"] * len(donor.softmax)
    raw = {**donor.config, "layer_types": names, "mixers": {"softmax": donor.softmax[0]}}
    model = Model(parse_config(raw), {n: t.double() for n, t in donor.tensors.items()})
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    ids = torch.tensor([expected["prompt"]])
    with torch.no_grad():
        logprobs = model(ids)[0].log_softmax(-1)
    got = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0]
    want = torch.tensor(expected["prompt_logprobs"], dtype=torch.float64)
    assert torch.allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("system", THERE)
def test_a_pythia_becomes_every_system(pythia, tmp_path, system):
    donor = read_donor(pythia)
    raw, model = linearize(donor, system)
    write(pythia, tmp_path / "out", raw, model, "f32")
    model, raw = load_model(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").exists()
    kinds = [raw["mixers"][name]["kind"] for name in raw["layer_types"]]
    assert kinds == (["linear", "softmax"] * 2 if system == "hybrid_regla" else ["linear"] * 4)
    assert raw["parallel_residual"] and raw["mixers"][raw["layer_types"][0]]["position"] == {
        "type": "rope", "stage": "before", "rotary_pct": 0.25, "base": 10000}
    original = pythia_tensors(PYTHIA)
    assert torch.equal(model.embeddings, original["gpt_neox.embed_in.weight"].float())
    assert torch.equal(model.layers[2].mlp.up_proj.bias,
                       original["gpt_neox.layers.2.mlp.dense_h_to_4h.bias"].float())
    rows = original["gpt_neox.layers.1.attention.query_key_value.weight"].float()
    assert torch.equal(model.layers[1].attn.k_proj.weight[:16], rows[16:32])
    assert torch.equal(model.layers[1].attn.q_proj.weight[16:32], rows[48:64])
    first = original["gpt_neox.layers.0.attention.dense.weight"].float()
    kept = torch.equal(model.layers[0].attn.o_proj.weight, first)
    assert kept == (system != "hybrid_regla")
    with torch.no_grad():
        assert model(torch.arange(40)[None]).isfinite().all()


def test_attention_can_be_kept_or_drawn_anew(pythia):
    donor = read_donor(pythia)
    weight = donor.tensors["model.layers.0.attn.q_proj.weight"]
    for system in ("regla", "hybrid_regla"):
        for attention in ("keep", "new"):
            _, model = linearize(donor, system, attention)
            assert torch.equal(model.layers[0].attn.q_proj.weight, weight) == (attention == "keep")


@pytest.mark.parametrize("change, message", [
    ({"model_type": "gpt2"}, "model_type: expected gpt_neox or regla, got 'gpt2'"),
    ({"hidden_act": "mish"}, "hidden_act: expected one of"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type: expected default, got 'linear'"),
    ({"rotary_pct": 0.2}, "rotary_pct: expected an even part of 16 dimensions, got 3"),
])
def test_a_donor_that_cannot_be_read_is_refused(pythia, change, message):
    (pythia / "config.json").write_text(json.dumps({**PYTHIA, **change}))
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        read_donor(pythia)


def test_a_donor_of_ours_must_be_softmax(tmp_path, raw_config):
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="layer 0: expected softmax attention"):
        read_donor(tmp_path)


@pytest.fixture
def trained(tmp_path, text, raw_config):
    """(folder with tokens, config of a softmax model, a donor trained for 120 steps)."""
    tokenizer = train_tokenizer([text], 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode_documents(tokenizer, [text])[0].tofile(tmp_path / "train.u16")
    raw_config["mixers"] = {"a": {"kind": "softmax", "position": {"type": "rope"}}}
    raw_config["layer_types"] = ["a", "a"]
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    run(tmp_path, tmp_path / "config.json", "donor", 120)
    export(tmp_path / "donor/state.pt", tmp_path / "config.json", tmp_path / "tokenizer.json",
           tmp_path / "donor/model", "f32")
    return tmp_path


def run(folder, config, name, steps, *more):
    fit(parse_arguments([
        "--config", str(config), "--data", str(folder / "train.u16"), "--run", str(folder / name),
        f"--steps={steps}", "--warmup=4", "--decay=8", "--batch=4", "--window=32", "--threads=1",
        "--optimizer=adamw", "--log-every=1", *more]))


@pytest.mark.parametrize("system", ["regla", "hybrid_regla", "la_relu"])
def test_a_trained_donor_is_worth_its_steps(trained, capsys, system):
    """After as many steps the linearised model is better than the same from scratch."""
    raw, model = linearize(read_donor(trained / "donor/model"), system)
    write(trained / "donor/model", trained / "start", raw, model, "f32")
    scratch = {**raw, "shapes": {"head_dim": 8, "value_dim": 8, "glu": True, "bias": False}}
    (trained / "scratch.json").write_text(json.dumps(scratch))
    last = {}
    for name, arguments in (
        ("linearised", (trained / "start/config.json", "linear", 12, "--start", str(trained / "start"))),
        ("scratch", (trained / "scratch.json", "scratch", 12)),
    ):
        capsys.readouterr()
        run(trained, *arguments)
        last[name] = json.loads(capsys.readouterr().out.splitlines()[-1])["loss"]
    assert last["linearised"] < last["scratch"] - 0.5
