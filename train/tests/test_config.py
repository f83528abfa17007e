# SPDX-License-Identifier: Apache-2.0
"""What config.json may say, and that new models of every kind can be made, computed and loaded
again."""

import copy
from itertools import product

import pytest
import torch

from train.checkpoint import load_model, save_model
from train.config import DELTA, EXPONENTIAL, LINEAR, POSITION, parse_config
from train.init import new_tensors
from train.model.model import Model
from train.model.recurrence import step_by_step


def without_shapes(raw):
    return {key: value for key, value in raw.items() if key != "shapes"}


@pytest.mark.parametrize(
    "change, message",
    (
        ({"unheard_of": 1}, "unheard_of: unknown key"),
        ({"hidden_act": "mish"}, "hidden_act: unknown value"),
        ({"blocks": {"x": []}}, "blocks: train/ cannot train it"),
        ({"logit_scale": 1}, "logit_scale: train/ cannot train it"),
        ({"logit_softcap": 1}, "logit_softcap: train/ cannot train it"),
        ({"layer_types": ["a"]}, "layer_types"),
        ({"layer_types": ["a", "z"]}, "z: not in mixers"),
        ({"position_embedding": "learned"}, "max_position_embeddings"),
    ),
)
def test_refuses(raw_config, change, message):
    with pytest.raises(ValueError, match=message):
        parse_config({**without_shapes(raw_config), **change})


@pytest.mark.parametrize(
    "mixer, message",
    (
        ({"feature_map": "exp", "gate": "delta"}, "delta"),
        ({"gate": "refined", "sum_norm": True}, "sum_norm"),
        ({"position": {"type": "rope"}}, "stage"),
        ({"position": {"type": "alibi"}}, "not for linear"),
        ({"window": "full"}, "not of a linear mixer"),
        ({"gates": "none"}, "unknown key"),
        ({"feature_map": "exp", "gate": "gated_delta"}, "gated_delta with an exponential"),
        ({"gate": "mamba2", "sum_norm": True}, "sum_norm"),
        ({"kind": "softmax", "num_kv_heads": 3}, "num_kv_heads: expected a divisor of 2 heads, got 3"),
        ({"kind": "softmax", "num_qk_heads": 1}, "num_qk_heads: not of a softmax mixer"),
        ({"num_kv_heads": 1}, "num_kv_heads: not of a linear mixer"),
        ({"kind": "conv", "conv": {"width": 3}}, "kind: conv: train/ cannot train it"),
        ({"qk_norm": {}}, "qk_norm.: .*type"),
        ({"qk_norm": {"type": "gated_rmsnorm"}}, "qk_norm.type: unknown value"),
        ({"qk_norm": {"type": "l2", "plus_one": True}}, "qk_norm.plus_one: l2 has no weights"),
        ({"qk_norm": {"type": "l2", "eps": 2}}, "qk_norm.eps: expected 0 to 1"),
        ({"qk_norm": {"type": "l2"}, "qk_projection": "shared"}, "must be separate"),
        ({"kind": "softmax", "score_scale": 1}, "score_scale: train/ cannot train it"),
        ({"kind": "softmax", "score_softcap": 1}, "score_softcap: train/ cannot train it"),
        ({"conv": {}}, "conv.: .*width"),
        ({"conv": 4}, "conv: expected an object, got 4"),
        ({"conv": {"width": 9}}, "conv.width: expected 2 to 8, got 9"),
        ({"conv": {"width": 4, "activation": "relu"}}, "conv.activation: unknown value"),
        ({"conv": {"width": 4}, "qk_projection": "shared"}, "must be separate"),
        ({"num_qk_heads": 3}, "num_qk_heads: expected a divisor of 2 heads, got 3"),
        ({"num_qk_heads": 1, "gate": "gla"}, "num_qk_heads: needs"),
        ({"num_qk_heads": 1, "feature_map": "hedgehog"}, "num_qk_heads: needs"),
        ({"num_qk_heads": 1, "position": {"type": "lrpe_unitary"}}, "num_qk_heads: needs"),
        ({"num_qk_heads": 1, "qk_projection": "shared"}, "must be separate"),
        ({"beta_max": 2}, "beta_max: only with the gates delta and gated_delta"),
        ({"beta_max": 3, "gate": "delta"}, "beta_max: expected 1 to 2, got 3"),
        ({"output_gate_first": True}, "output_gate_first: needs an output_gate"),
        ({"output_gate_scope": "head"}, "output_gate_scope: needs an output_gate"),
        ({"output_gate": "relu"}, "output_gate: unknown value 'relu'"),
        (
            {
                "output_gate": "swish",
                "output_gate_scope": "head",
                "output_norm": "rmsnorm",
                "output_norm_scope": "hidden",
            },
            "output_gate_scope: head takes no",
        ),
        ({"window_size": 5}, "not of a linear mixer"),
        ({"dpfp_nu": 0}, "dpfp_nu: expected 1"),
        ({"output_norm_eps": 2}, "output_norm_eps: expected 0 to 1"),
        ({"position": "rope"}, "expected an object"),
        ({"position": {"type": "none", "stage": "before"}}, "stage: not of position none"),
        ({"position": {"type": "lrpe_orthogonal", "pairing": "half"}}, "pairing: not of"),
        ({"position": {"type": "lrpe_unitary", "rotary_pct": 1}}, "rotary_pct: not of"),
        ({"position": {"type": "rope", "stage": "after", "basis": "identity"}}, "basis: not of"),
        ({"position": {"type": "rope", "scaling": {}}}, "scaling: train/ cannot train it"),
        ({"score_divisor": 4}, "not of a linear mixer"),
        ({"chunk_size": 16, "gate": "refined"}, "chunk_size: only with gate none"),
        ({"chunk_size": 15}, "chunk_size: expected 16"),
        ({"num_heads": 0}, "num_heads: expected 1"),
        ({"parts": ["a", "b"]}, "not of a linear mixer"),
        ({"kind": "softmax", "activation": "relu2"}, "score_divisor: of the activation relu2"),
        ({"kind": "pair", "parts": ["a", "b"], "combine": "add"}, "neither a pair nor"),
        ({"kind": "pair", "parts": ["z", "b"], "combine": "add"}, "z: not in mixers"),
        ({"kind": "pair", "parts": ["b", "b"]}, "two parts and combine"),
        ({"kind": "pair", "parts": ["b", "b"], "combine": "add", "num_heads": 2}, "not of a pair"),
        ({"kind": "pair", "window": "full"}, "not of a pair"),
    ),
)
def test_refuses_mixers(raw_config, mixer, message):
    raw = copy.deepcopy(without_shapes(raw_config))
    raw["mixers"]["a"] = {"kind": "linear", **mixer}
    with pytest.raises(ValueError, match=message):
        parse_config(raw)


def test_null_is_as_if_absent(raw_config):
    raw = copy.deepcopy(without_shapes(raw_config))
    raw["mixers"]["a"].update(gate=None, position=None)
    raw["mixers"]["b"]["position"] = {"type": "rope", "pairing": None}
    raw["mixers"]["c"] = {**raw["mixers"]["a"], "position": "none"}
    config = parse_config(raw)
    assert config.mixers["a"].gate == "none" and config.mixers["a"].position.type == "none"
    assert config.mixers["b"].position.pairing == "half"
    assert config.mixers["c"].position == config.mixers["a"].position
    raw.update(hidden_act=None, position_embedding=None, bos_token_id=None)
    config = parse_config(raw)
    assert (config.hidden_act, config.position_embedding) == ("gelu", "none")
    assert config.bos_token_id is None


@pytest.mark.parametrize("mixers, place", [([], "mixers"), ({"a": "regla"}, "mixers.a")])
def test_what_is_no_object_is_said(raw_config, mixers, place):
    raw = {**without_shapes(raw_config), "mixers": mixers}
    with pytest.raises(ValueError, match=f"config.json: {place}: expected an object, got "):
        parse_config(raw)


def check(raw, tmp_path):
    """A new model: finite, chunks equal to steps, saved and loaded as it was."""
    config = parse_config(without_shapes(raw))
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in new_tensors(config, raw["shapes"]).items()
    }
    ids = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model = Model(config, tensors)
        in_chunks, in_steps = model(ids), Model(config, tensors, step_by_step)(ids)
        assert in_steps.isfinite().all() and in_steps.std() > 0
        assert torch.allclose(in_chunks, in_steps, rtol=1e-7, atol=1e-9)
        save_model(tmp_path, model, without_shapes(raw), "f32")
        again, _ = load_model(tmp_path, torch.float64)
        assert torch.allclose(again(ids), in_steps, rtol=1e-4, atol=1e-5)


LINEAR_KINDS = [
    (feature_map, gate)
    for feature_map, gate in product(LINEAR["feature_map"], LINEAR["gate"])
    if not (gate in DELTA and feature_map in EXPONENTIAL)
]
# As Gated DeltaNet and Mamba-2 have them, and what else their keys can say.
RECURRENT = {
    "gated_delta": {
        "gate": "gated_delta",
        "query_scale": "sqrt_dim",
        "conv": {"width": 4, "activation": "silu"},
        "qk_norm": {"type": "l2"},
        "output_norm": "rmsnorm",
        "output_gate": "swish",
    },
    "mamba2": {
        "gate": "mamba2",
        "conv": {"width": 4, "activation": "silu"},
        "output_norm": "rmsnorm",
        "output_gate": "swish",
        "output_gate_first": True,
    },
    "mamba2_groups": {
        "gate": "mamba2",
        "num_heads": 4,
        "num_qk_heads": 2,
        "output_norm": "rmsnorm",
        "output_norm_scope": "hidden",
        "output_gate": "sigmoid",
        "output_gate_first": True,
    },
    "negative_eigenvalues": {
        "gate": "gated_delta",
        "beta_max": 2,
        "num_heads": 6,
        "num_qk_heads": 2,
        "conv": {"width": 2},
        "qk_norm": {"type": "l2", "scope": "hidden", "eps": 1e-3},
        "output_gate": "sigmoid",
        "output_gate_scope": "head",
    },
    "weighted_norms": {
        "gate": "delta",
        "feature_map": "elu+1",
        "num_qk_heads": 1,
        "position": {"type": "rope", "stage": "before"},
        "qk_norm": {"type": "rmsnorm", "plus_one": True},
    },
    "running_maximum": {"gate": "mamba2", "feature_map": "exp", "num_qk_heads": 1},
}
POSITIONS = [
    (position, basis)
    for position, basis in product(POSITION["type"], POSITION["basis"])
    if basis == "identity" or position.startswith("lrpe")
]


@pytest.mark.parametrize("feature_map, gate", LINEAR_KINDS)
def test_linear_mixers(raw_config, tmp_path, feature_map, gate):
    raw = copy.deepcopy(raw_config)
    raw["mixers"]["a"].update(feature_map=feature_map, gate=gate)
    check(raw, tmp_path)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_mixers(raw_config, tmp_path, name):
    raw = copy.deepcopy(raw_config)
    raw["mixers"]["a"] = {"kind": "linear", **RECURRENT[name]}
    raw["mixers"]["b"].update(num_kv_heads=1, qk_norm={"type": "layernorm", "scope": "hidden"})
    raw["norm_plus_one"] = True
    raw["shapes"]["mixers"] = {"a": {"head_dim": 6, "value_dim": 10}}
    check(raw, tmp_path)


def test_shapes_of_a_mixer_that_is_not_there(raw_config):
    raw = copy.deepcopy(raw_config)
    raw["shapes"]["mixers"] = {"z": {"head_dim": 6}}
    with pytest.raises(ValueError, match="shapes.mixers.z: not in mixers"):
        new_tensors(parse_config(without_shapes(raw)), raw["shapes"])


@pytest.mark.parametrize("name", ("gated_delta", "mamba2"))
def test_first_values(raw_config, name):
    """As released: dt between 0.001 and 0.1, A up to 16; all of Mamba-2's D are 1."""
    raw = copy.deepcopy(raw_config)
    raw["mixers"]["a"] = {"kind": "linear", "num_heads": 64, **RECURRENT[name]}
    tensors = new_tensors(parse_config(without_shapes(raw)), raw["shapes"])
    projection = "dt_proj" if name == "mamba2" else "a_proj"
    step = torch.nn.functional.softplus(tensors[f"model.layers.0.attn.{projection}.bias"])
    decay = tensors["model.layers.0.attn.A_log"].exp()
    assert 0.00099 < step.min() < 0.01 and 0.03 < step.max() < 0.1001
    assert decay.min() < 3 and 13 < decay.max() <= 16 and decay.min() >= (1 if name == "mamba2" else 0)
    assert ("model.layers.0.attn.conv.bias" in tensors) == (name == "mamba2")
    skip = tensors.get("model.layers.0.attn.D")
    assert skip is None if name == "gated_delta" else torch.equal(skip, torch.ones(64))
    taps = tensors["model.layers.0.attn.conv.weight"]
    assert 0.45 < taps.abs().max() <= 0.5


@pytest.mark.parametrize("position, basis", POSITIONS)
def test_positions(raw_config, tmp_path, position, basis):
    raw = copy.deepcopy(raw_config)
    said = {"type": position, "basis": basis} if position.startswith("lrpe") else {"type": position}
    if position != "spe":  # which softmax mixers refuse
        raw["mixers"]["b"]["position"] = said
    if position == "rope":
        raw["mixers"]["a"]["position"] = {"type": "rope", "stage": "before"}
    elif position == "spe":
        raw["mixers"]["a"].update(position=said, feature_map="elu+1", sum_norm=True, gate="none")
    elif position.startswith("lrpe"):
        raw["mixers"]["a"]["position"] = said
    check(raw, tmp_path)


LONG_SHORT = {"kind": "softmax", "window": "long_short", "window_size": 5, "segment_length": 4}


@pytest.mark.parametrize("rank", (1, 3))
def test_long_short_windows(raw_config, tmp_path, rank):
    raw = copy.deepcopy(raw_config)
    raw["mixers"]["b"] = {**LONG_SHORT, "segment_rank": rank}
    check(raw, tmp_path)


def test_a_long_short_window_sees_nothing_later_and_learns(raw_config):
    raw = copy.deepcopy(raw_config)
    raw["mixers"]["b"] = {**LONG_SHORT, "segment_rank": 2}
    config = parse_config(without_shapes(raw))
    model = Model(config, new_tensors(config, raw["shapes"]))
    ids = torch.randint(0, 300, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(ids)
        for length in (1, 3, 4, 5, 8, 29):
            assert torch.allclose(model(ids[:, :length]), whole[:, :length], atol=1e-5)
    model(ids).logsumexp(-1).sum().backward()
    for name, tensor in model.layers[1].attn.named_parameters():
        assert tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "change, message",
    (
        ({"segment_length": 24}, "segment_length: expected a divisor of 64, got 24"),
        ({"segment_rank": 5}, "segment_rank: expected 1 to 4, got 5"),
        ({"window": "sliding"}, "only of a window long_short"),
        ({"activation": "relu"}, "long_short needs"),
        ({"position": {"type": "rope"}}, "long_short needs"),
    ),
)
def test_refuses_segments(raw_config, change, message):
    raw = copy.deepcopy(without_shapes(raw_config))
    raw["mixers"]["b"] = {**LONG_SHORT, "segment_rank": 1, **change}
    with pytest.raises(ValueError, match=message):
        parse_config(raw)


FLASH = {"num_heads": 1, "qk_projection": "shared", "value_activation": "silu"}
QUAD = {"kind": "softmax", "activation": "relu2", "score_divisor": 16, **FLASH}


@pytest.mark.parametrize("combine", ("add", "concatenate"))
def test_pairs(raw_config, tmp_path, combine):
    """FLASH, in layers without an MLP."""
    raw = copy.deepcopy(raw_config)
    rope = {"type": "rope", "distance_bias": 16}
    raw["mixers"] = {
        "quad": {**QUAD, "window": "block", "window_size": 16, "position": rope},
        "linear": {"kind": "linear", "chunk_size": 16, **FLASH},
        "a": {
            "kind": "pair",
            "parts": ["quad", "linear"],
            "combine": combine,
            "output_gate": "swish",
        },
        "b": {**QUAD, "output_gate": "swish", "position": rope},
    }
    raw["intermediate_size"] = 0
    check(raw, tmp_path)
