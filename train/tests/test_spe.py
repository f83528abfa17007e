# SPDX-License-Identifier: Apache-2.0
"""SPE against its definition, sum by sum, and what training does to its noise."""

import math

import pytest
import torch

from train.config import PositionConfig, parse_config
from train.init import new_tensors
from train.model.layers import Tensors
from train.model.model import Model
from train.model.positions import Spe

HEADS, M, SINES, R, LENGTH = 2, 3, 2, 5, 7


def tensors(gated):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    made = {name: normal(HEADS, M, SINES) for name in ("freqs", "offsets", "gains")}
    made["noise"] = normal(HEADS, M, 2 * SINES, R)
    if gated:
        made |= {"gate": normal(HEADS, M), "gate_noise": normal(HEADS, M, R)}
    return made


def encoded(z, h, t, phi, query):
    """y [R] of one head's phi [M] at position t: the formulas of model-format.md."""

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    out = []
    for r in range(R):
        y = 0.0
        for d in range(M):
            x = 0.0
            for k in range(SINES):
                angle = 2 * math.pi * sigmoid(z["freqs"][h, d, k]) / 2 * t
                angle += z["offsets"][h, d, k].item() if query else 0
                gain = math.log(1 + math.exp(z["gains"][h, d, k]))
                u, v = z["noise"][h, d, 2 * k, r].item(), z["noise"][h, d, 2 * k + 1, r].item()
                x += gain * (math.cos(angle) * u + math.sin(angle) * v)
            x /= math.sqrt(2 * SINES)
            g = sigmoid(z["gate"][h, d]) if "gate" in z else 0
            dry = z["gate_noise"][h, d, r].item() if "gate" in z else 0
            y += phi[d].item() * (math.sqrt(1 - g) * x + math.sqrt(g) * dry)
        out.append(y / (M * R) ** 0.25)
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("gated", (True, False))
def test_definition(gated):
    z = tensors(gated)
    spe = Spe(PositionConfig(type="spe", gated=gated), HEADS, M, Tensors(z))
    q, k = torch.rand(2, 1, HEADS, LENGTH, M, dtype=torch.float64)
    with torch.no_grad():
        got = spe(q, k)
    for side, x in enumerate((q, k)):
        for h in range(HEADS):
            for t in range(LENGTH):
                want = encoded(z, h, t, x[0, h, t], side == 0)
                assert torch.allclose(got[side][0, h, t], want, rtol=1e-12, atol=1e-12)


def test_products_depend_on_the_distance_alone():
    """On average over the noise y_q.y_k is what model-format.md says: here over 3e4 realizations,
    whose deviation is some 1 %."""
    many = 30_000
    z = {name: x.float() for name, x in tensors(True).items()}
    z["noise"] = torch.randn(HEADS, M, 2 * SINES, many)
    z["gate_noise"] = torch.randn(HEADS, M, many)
    spe = Spe(PositionConfig(type="spe"), HEADS, M, Tensors(z))
    q, k = torch.rand(2, 1, HEADS, 1, M).expand(2, 1, HEADS, LENGTH, M)
    with torch.no_grad():
        y_q, y_k = spe(q, k)
    got = (y_q @ y_k.transpose(-1, -2))[0]
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    g = z["gate"].sigmoid()
    waves = (
        math.pi * z["freqs"].sigmoid()[..., None, None] * distance + z["offsets"][..., None, None]
    ).cos() * (torch.nn.functional.softplus(z["gains"])[..., None, None] ** 2 / 2)
    p = (1 - g)[..., None, None] * waves.mean(2) + g[..., None, None]
    want = ((q[0] * k[0])[:, 0, :, None, None] * p).sum(1) * (many / M) ** 0.5
    assert (got - want).abs().max() <= 0.05 * want.abs().max()


def test_training_draws_noise_and_keeps_the_checkpoints(raw_config):
    raw_config["mixers"]["a"] = {
        "kind": "linear",
        "feature_map": "elu+1",
        "sum_norm": True,
        "position": {"type": "spe"},
    }
    shapes = raw_config.pop("shapes")
    config = parse_config(raw_config)
    start = new_tensors(config, shapes, 0)
    model = Model(config, start)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.equal(model(ids), model(ids))
    first, second = model(ids), model(ids)
    assert not torch.equal(first, second)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    second.square().mean().backward()
    optimizer.step()
    spe = model.layers[0].attn.position.spe
    prefix = "model.layers.0.attn.position."
    assert torch.equal(spe.noise, start[prefix + "noise"])
    assert torch.equal(spe.gate_noise, start[prefix + "gate_noise"])
    for name in ("freqs", "offsets", "gains", "gate"):
        assert not torch.equal(getattr(spe, name), start[prefix + name]), name
