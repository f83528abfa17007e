# SPDX-License-Identifier: Apache-2.0
"""Every preset, at a tiny size: it learns, keeps what its paper keeps, and needs no other device."""

import json
import math

import numpy as np
import pytest
import torch

from train.config import parse_config, shipped
from train.fit import Windows, build, make_optimizers, parse_arguments, train_step, window_loss
from train.init import new_tensors, read_init
from train.model.model import Model, checkpoint_name, checkpoint_tensors
from train.parameters import fixed_by_papers
from train.presets import presets
from train.schedule import Schedule
from train.table_config import Size, row_config
from train.table_rows import Row

# In the place of a preset's first mixer: what no preset has.
RECURRENT = {
    "gated_delta": {
        "kind": "linear",
        "gate": "gated_delta",
        "query_scale": "sqrt_dim",
        "conv": {"width": 4, "activation": "silu"},
        "qk_norm": {"type": "l2"},
        "output_norm": "rmsnorm",
        "output_gate": "swish",
    },
    "mamba2": {
        "kind": "linear",
        "gate": "mamba2",
        "num_qk_heads": 1,
        "conv": {"width": 4, "activation": "silu"},
        "output_norm": "rmsnorm",
        "output_norm_scope": "hidden",
        "output_gate": "swish",
        "output_gate_first": True,
    },
}
SYSTEMS = (*presets().SYSTEMS, *RECURRENT)
VOCABULARY, WINDOW, STEPS, BATCH = 64, 64, 200, 8
TINY = Size(2, 32, 4, VOCABULARY, WINDOW, BATCH, 3e-3, 0, 0, 0, 0)


def tiny(system):
    """The preset with two layers, one of each kind, of width 32."""
    if system not in RECURRENT:
        return row_config(Row(system), TINY)
    config = row_config(Row("hybrid_regla"), TINY)
    config["mixers"]["regla"] = RECURRENT[system]
    return config


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """(token file, entropy of one token by itself): a Markov chain of few likely successors."""
    rng = np.random.default_rng(0)
    successors = rng.dirichlet(np.full(VOCABULARY, 0.05), size=VOCABULARY)
    ids = [0]
    for _ in range(20000):
        ids.append(int(rng.choice(VOCABULARY, p=successors[ids[-1]])))
    path = tmp_path_factory.mktemp("chain") / "train.u16"
    np.array(ids, dtype=np.uint16).tofile(path)
    share = np.bincount(ids, minlength=VOCABULARY) / len(ids)
    return path, float(-(share[share > 0] * np.log(share[share > 0])).sum())


def train(system, data, folder):
    """(tensors before, the trained model, losses of the steps)"""
    (folder / "config.json").write_text(json.dumps(tiny(system)))
    args = parse_arguments(
        [
            *("--config", str(folder / "config.json"), "--data", str(data)),
            *("--run", str(folder), f"--steps={STEPS}", "--optimizer=adamw", "--warmup=20"),
        ]
    )
    model = build(args, 0)
    before = {name: tensor.clone() for name, tensor in checkpoint_tensors(model).items()}
    optimizers, schedule = make_optimizers(model, args), Schedule(STEPS, 20, 60)
    windows = Windows(data, WINDOW, 0)
    losses = [
        train_step(
            model,
            window_loss,
            optimizers,
            windows.batch(step, BATCH),
            args,
            step + 1,
            schedule.at(step),
        )[0].item()
        for step in range(STEPS)
    ]
    return before, model, losses


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_preset_learns(system, text, tmp_path):
    data, unigram = text
    before, model, losses = train(system, data, tmp_path)
    assert all(map(math.isfinite, losses))
    assert np.mean(losses[-20:]) < unigram
    fixed = fixed_by_papers(parse_config(shipped(tiny(system))), learned_theta=False)
    parameters = {checkpoint_name(n) for n, _ in model.named_parameters(remove_duplicate=False)}
    after = checkpoint_tensors(model)
    for name, tensor in after.items():
        kept = name in fixed or name not in parameters  # permutations, SPE's noise
        assert torch.equal(tensor, before[name]) == kept, name
    for name, tensor in after.items():  # KERPLE's are one for all layers
        if name.startswith("model.layers.0.attn.position.r"):
            assert torch.equal(tensor, after[name.replace("layers.0", "layers.1")])


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_preset_computes_where_its_tensors_are(system):
    """On the device meta, which has shapes alone, an operand of another device is an error."""
    raw = tiny(system)
    config = parse_config(shipped(raw))
    tensors = new_tensors(config, raw["shapes"], 0, read_init(raw))
    model = Model(config, {name: tensor.to("meta") for name, tensor in tensors.items()})
    ids = torch.zeros((2, WINDOW + 1), dtype=torch.int64, device="meta")
    loss = window_loss(model, ids)
    loss.backward()
    assert loss.device.type == "meta"
