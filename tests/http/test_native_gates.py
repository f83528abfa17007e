# SPDX-License-Identifier: Apache-2.0
"""The gates fixed, hgrn2 and kda in the native format: the reference's RetNet, HGRN2 and KDA, whose tensors
have other names and forms there."""

import subprocess

import numpy as np
import pytest
from harness import BINARY
from reference_math import log_softmax
from reference_models import FAMILIES, PROMPT, expected, write_model

MIXERS = {
    "retnet": {"gate": "fixed", "query_scale": "sqrt_dim", "position": {"type": "rope", "stage": "after"},
               "output_norm": "rmsnorm", "output_gate": "swish"},
    "hgrn2": {"gate": "hgrn2", "query_scale": "sqrt_dim", "output_norm": "rmsnorm", "output_norm_eps": 1e-5,
              "output_norm_scope": "hidden"},
    "kda": {"gate": "kda", "query_scale": "sqrt_dim", "conv": {"width": 4, "activation": "silu"},
            "qk_norm": {"type": "l2"}, "beta_max": 2, "decay_bound": -5, "output_norm": "rmsnorm",
            "output_gate": "sigmoid"}}
KEYS = {"retnet": {}, "hgrn2": {}, "kda": {"allow_neg_eigval": True, "lower_bound": -5.0}}
NAMES = {"retnet": {"g_norm_swish_gate": "out_norm", "g_proj": "out_gate_proj"},
         "hgrn2": {"f_proj": "k_proj", "i_proj": "v_proj", "g_norm": "out_norm"},
         "kda": {"f_proj.": "gk_proj.", "o_norm": "out_norm"}}


def renamed(family, tensors):
    result = {}
    for name, tensor in tensors.items():
        for old, new in NAMES[family].items():
            name = name.replace("attn." + old, "attn." + new)
        result[name] = tensor
    return result


def test_retnets_mlp_has_another_width_where_its_ratio_is_null(tmp_path):
    """As fla's: absent it is 2, null 4."""
    reference = FAMILIES["retnet"]
    config = {**reference.config, "hidden_size": 128, "intermediate_size": None}
    for name, keys in (("absent", {}), ("null", {"hidden_ratio": None})):
        own = {**config, **keys}
        tensors = reference.tensors(own)
        write_model(tmp_path / name, own, tensors, expected(reference.logits(own, tensors, PROMPT)))
        done = subprocess.run([str(BINARY), "check", str(tmp_path / name)], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("keys", [{"model_type": "hgrn2", "expand_ratio": 1},
                                  {"model_type": "rwkv7", "head_dim": 1}])
def test_heads_of_one_number_are_too_many(tmp_path, keys):
    config = {**FAMILIES["hgrn2"].config, "hidden_size": 65536, **keys}
    write_model(tmp_path / "model", config, None, {})
    done = subprocess.run([str(BINARY), "check", str(tmp_path / "model")], capture_output=True, text=True,
                          timeout=60)
    assert "config.json: expected heads of a size that gives at most 4096, got 65536" in done.stderr


def own_tensors(family, config, tensors):
    """As model-format.md has them."""
    result = renamed(family, tensors)
    layers, heads = config["num_hidden_layers"], config.get("num_heads")
    for i in range(layers):
        attn = f"model.layers.{i}.attn."
        if family == "retnet":
            result[attn + "decay"] = (1 - 2.0 ** (-5 - np.arange(heads))).astype(np.float32)
        if family == "hgrn2":
            shares = np.exp(log_softmax(tensors["model.lower_bounds"].astype(np.float64).T)).T
            least = np.cumsum(shares, 0)[i] - shares[0]
            result[attn + "least"] = least.astype(np.float32)
        if family == "kda":
            result[attn + "gk_proj.1.bias"] = result.pop(attn + "dt_bias")
            low, high = (result.pop(f"{attn}g_proj.{j}.weight").astype(np.float64) for j in (0, 1))
            result[attn + "out_gate_proj.weight"] = (high @ low).astype(np.float32)
            result[attn + "out_gate_proj.bias"] = result.pop(attn + "g_proj.1.bias")
            result[attn + "conv.weight"] = np.concatenate(
                [result.pop(f"{attn}{name}_conv1d.weight") for name in "qkv"])
    result.pop("model.lower_bounds", None)
    return result


def native(family, folder, change=None):
    reference = FAMILIES[family]
    config = {**reference.config, **KEYS[family]}
    tensors = reference.tensors(config)
    heads = reference.heads(config) if family == "hgrn2" else config["num_heads"]
    own = {key: config[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                                        "bos_token_id", "eos_token_id")}
    own |= {"model_type": "regla", "num_attention_heads": heads, "hidden_act": "silu",
            "norm_type": "rmsnorm", "norm_eps": 1e-6, "tie_word_embeddings": False,
            "layer_types": ["mixer"] * config["num_hidden_layers"],
            "mixers": {"mixer": {"kind": "linear", **MIXERS[family]}}}
    own_ones = own_tensors(family, config, tensors)
    if change is not None:
        change(own_ones)
    answers = expected(reference.logits(config, tensors, PROMPT))
    write_model(folder, own, own_ones, answers)
    return subprocess.run([str(BINARY), "check", str(folder)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("family", MIXERS)
def test_a_gate_is_the_formula(tmp_path, family):
    done = native(family, tmp_path / "model")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("family, tensor, value", [("retnet", "decay", 1.5), ("retnet", "decay", -0.1),
                                                   ("hgrn2", "least", 1.01)])
def test_what_is_no_share_is_refused(tmp_path, family, tensor, value):
    def change(tensors):
        tensors[f"model.layers.1.attn.{tensor}"][2] = value
    done = native(family, tmp_path / "model", change)
    assert done.returncode != 0
    assert (f'tensor "model.layers.1.attn.{tensor}": expected numbers from 0 to 1, got {value:g} at element 2'
            in done.stderr), done.stderr
