# SPDX-License-Identifier: Apache-2.0
"""The figures' numbers against what is known of them."""

import math

import pytest
import torch

from train import analyses
from train.config import parse_config
from train.init import new_tensors
from train.model.linear_mixer import log_refined
from train.model.model import Model


@pytest.mark.parametrize("kind", ["identity", "exp"])
def test_inner_products_deviate_as_theorem_3_1_says(kind):
    """A sample of 200,000 pairs; of exp the fourth moment is large."""
    d = 16
    found = analyses.synthetic_deviation(kind, d, 200_000)
    assert found == pytest.approx(analyses.theory(kind, d), rel=0.05)


def test_the_refined_gates_gradient():
    z = torch.linspace(-6, 6, 25, dtype=torch.float64, requires_grad=True)
    for r in (0.1, 0.5, 0.9):
        logit = torch.full_like(z, math.log(r / (1 - r)))
        (gradient,) = torch.autograd.grad(log_refined(z, logit).exp().sum(), z)
        expected = analyses.refined_gradient(torch.sigmoid(z), r)
        assert torch.allclose(gradient, expected, rtol=1e-9, atol=0)


@pytest.fixture
def model(raw_config):
    raw_config["mixers"]["a"] = {"kind": "linear", "feature_map": "elu+1", "sum_norm": True}
    raw_config["mixers"]["b"] = {"kind": "softmax", "window": "block", "window_size": 4}
    config = parse_config({k: v for k, v in raw_config.items() if k != "shapes"})
    return Model(config, new_tensors(config, raw_config["shapes"]))


def test_attention_matrices(model):
    ids = torch.arange(24).reshape(2, 12)
    before = model(ids)
    linear, block = analyses.attention_matrices(model, ids)
    assert linear.shape == block.shape == (2, 2, 12, 12)
    for weights in (linear, block):
        assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 12))
        assert (weights.triu(1) == 0).all()
    assert (block[..., 8:, :8] == 0).all() and (linear[..., 11, :] > 0).all()
    assert torch.equal(model(ids), before)  # the model is as it was


def test_accumulated_attention():
    eye, even = torch.eye(8)[None, None], torch.full((1, 1, 8, 8), 1 / 8)
    assert analyses.accumulated(eye, [0, 0.5, 2]) == [1, 1, 1]
    assert analyses.accumulated(even, [0, 2]) == pytest.approx([1 / 8, 1])


def test_gates_that_begin_at_an_end(tmp_path):
    plan = analyses.Plan(analyses.SIZES["S"], 0, "", tmp_path, tmp_path, None)
    ids = torch.arange(64)[None]
    for refined in (True, False):
        folder = tmp_path / str(refined)
        analyses.extreme_start(plan, 6.0, refined, folder)
        shares = analyses.gate_histogram(analyses.load_model(folder / "start")[0], ids)
        assert sum(shares) == pytest.approx(1, abs=1e-5) and shares[-1] > 0.9


def test_kernels():
    assert analyses.kernel("kerple_log", (2.0, 1.0), 0) == 0
    assert analyses.kernel("kerple_log", (2.0, 1.0), math.e - 1) == pytest.approx(-2)
    assert analyses.kernel("kerple_power", (0.5, 2.0), 3) == -4.5
    assert analyses.kernel("alibi", (0.25,), 8) == -2


def test_an_analysis_that_cannot_be_made_is_said(tmp_path, capsys):
    plan = analyses.Plan(analyses.SIZES["S"], 0, "", tmp_path, tmp_path, None)
    assert analyses.analyse(plan, ["regla3", "transnormer2", "kerple"]) == 1
    text = (tmp_path / "analyses.md").read_text()
    assert "Not made: " in text and "| kerple_log | not trained yet" in text
    assert (tmp_path / "regla-figure3.svg").exists() and (tmp_path / "kerple-figure4.svg").exists()
