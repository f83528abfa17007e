# SPDX-License-Identifier: Apache-2.0
"""train.convert_lightning; tests/golden/transnormerllm has its numbers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from train.convert_lightning import convert, decay, minimax_mixer, slopes

CONFIG = {"vocab_size": 7, "decoder_embed_dim": 6, "hidden_dim": 6, "decoder_layers": 2,
          "decoder_attention_heads": 3, "glu_dim": 5, "linear_use_lrpe_list": [1, 0]}


def released():
    tensors = {"model.embed_tokens.weight": (7, 6), "lm_head.weight": (7, 6),
               "model.layers.0.token_mixer.lrpe.theta": (3, 1, 2)}
    for place in ("model.layers.0", "model.layers.1"):
        tensors |= {f"{place}.token_mixer.qkvu_proj.weight": (24, 6),
                    f"{place}.token_mixer.out_proj.weight": (6, 6),
                    f"{place}.channel_mixer.l1.weight": (5, 6), f"{place}.channel_mixer.l2.weight": (5, 6),
                    f"{place}.channel_mixer.l3.weight": (6, 5)}
    return {name: torch.randn(shape) for name, shape in tensors.items()}


def write(folder, tensors, **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_rows_and_numbers_are_where_they_belong(tmp_path):
    tensors = released()
    convert(write(tmp_path / "in", tensors), tmp_path / "out")
    made = load_file(tmp_path / "out" / "model.safetensors")
    fused = tensors["model.layers.1.token_mixer.qkvu_proj.weight"]
    for i, name in enumerate(("q_proj", "k_proj", "v_proj", "out_gate_proj")):
        assert torch.equal(made[f"model.layers.1.attn.{name}.weight"], fused[6 * i:6 * i + 6])
    assert torch.equal(made["model.layers.0.attn.position.theta"],
                       tensors["model.layers.0.token_mixer.lrpe.theta"][:, 0])
    assert torch.equal(made["model.layers.0.mlp.down_proj.weight"],
                       tensors["model.layers.0.channel_mixer.l3.weight"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["layer_types"] == ["lrpe", "plain"] and config["intermediate_size"] == 5


def test_slopes_are_alibis_also_of_three_heads():
    assert slopes(4) == [2.0 ** -2, 2.0 ** -4, 2.0 ** -6, 2.0 ** -8]
    assert slopes(3) == [2.0 ** -4, 2.0 ** -8, 2.0 ** -2]
    first, last = decay(4, 0, 1), decay(4, 1, 1)
    assert (first < last).all() and (last < 1.0001).all()


def test_heads_of_a_lightning_layer_are_parted():
    fused = torch.arange(2 * 3 * 2 * 4.0).reshape(12, 4)
    rest = {name: torch.zeros(4, 4) for name in ("output_gate.weight", "out_proj.weight", "norm.weight")}
    _, made = minimax_mixer(2, 0, 2, {"qkv_proj.weight": fused, **rest})
    assert torch.equal(made["k_proj.weight"], fused[[2, 3, 8, 9]])


@pytest.mark.parametrize("changes, tensor, said", [
    ({"norm_type": "layernorm"}, None, "norm_type: expected simplermsnorm, got 'layernorm'"),
    ({"hidden_dim": 12}, None, "hidden_dim: expected 6, got 12"),
    ({"linear_act_fun": "cos"}, None, "linear_act_fun: expected one of silu"),
    ({"linear_use_lrpe_list": [1]}, None, "linear_use_lrpe_list: expected 2 numbers, got 1"),
    ({}, "model.layers.0.token_mixer.q_proj.weight", "expected a tensor of TransNormerLLM"),
])
def test_what_is_another_model_is_refused(tmp_path, changes, tensor, said):
    tensors = released() | ({tensor: torch.zeros(6, 6)} if tensor else {})
    with pytest.raises(ValueError, match=said):
        convert(write(tmp_path / "in", tensors, **changes), tmp_path / "out")
