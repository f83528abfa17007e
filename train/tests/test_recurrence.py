# SPDX-License-Identifier: Apache-2.0
"""The chunked form against the recurrence, for every kind of gate, and in float32 as trained."""

import pytest
import torch
import torch.nn.functional as F

from train.model.linear_mixer import FeatureMap, log_refined
from train.model.recurrence import LOWEST_LOG_DECAY, chunked, step_by_step

HEADS, LENGTH, DV, M = 2, 75, 6, 5


def inputs(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(1, HEADS, LENGTH, *shape, generator=generator, dtype=torch.float64).to(
            dtype
        )

    return normal(M).exp(), normal(M).exp(), normal(DV), normal


GATES = {
    "none": lambda normal, k, v: (v, {}),
    "scalar": lambda normal, k, v: (v, {"log_a": F.logsigmoid(normal(1) + 2)}),
    "rows": lambda normal, k, v: (v, {"log_a": F.logsigmoid(normal(DV) + 2)}),
    "features": lambda normal, k, v: (v, {"log_f": F.logsigmoid(normal(M)) / 16}),
    "both": lambda normal, k, v: (
        v,
        {"log_a": F.logsigmoid(normal(DV) + 2), "log_f": F.logsigmoid(normal(M) + 2)},
    ),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("chunk", (1, 16, 100))
def test_decays(gate, chunk):
    q, k, v, normal = inputs(torch.float64)
    v, gates = GATES[gate](normal, k, v)
    assert torch.allclose(
        chunked(q, k, v, **gates, chunk=chunk), step_by_step(q, k, v, **gates), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("chunk", (1, 16, 100))
def test_delta(chunk):
    q, k, v, normal = inputs(torch.float64)
    k, rate = F.normalize(k, dim=-1), torch.sigmoid(normal(1))
    assert torch.allclose(
        chunked(q, k, rate * v, rate=rate, chunk=chunk),
        step_by_step(q, k, rate * v, rate=rate),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("chunk", (1, 16, 64, 100, None))
@pytest.mark.parametrize("strength", (0.1, 20, 3000))
@pytest.mark.parametrize("delta", (False, True))
def test_one_decay_a_head(chunk, strength, delta):
    """Gated DeltaNet's and Mamba-2's, whose decays have no floor, as they reach far and nowhere."""
    q, k, v, normal = inputs(torch.float64)
    k, rate = F.normalize(k, dim=-1), 2 * torch.sigmoid(normal(1))
    gates = {"log_a": -strength * normal(1) ** 2, **({"rate": rate} if delta else {})}
    assert torch.allclose(
        chunked(q, k, v, **gates, chunk=chunk), step_by_step(q, k, v, **gates), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("strength", (1e-3, 1, 50))
@pytest.mark.parametrize("delta", (False, True))
def test_one_decay_a_head_in_float32(strength, delta):
    q, k, v, normal = inputs(torch.float32)
    q, k, rate = F.normalize(q, dim=-1), F.normalize(k, dim=-1), torch.sigmoid(normal(1))
    gates = {"log_a": -strength * normal(1) ** 2, **({"rate": rate} if delta else {})}
    want = step_by_step(*(x.double() for x in (q, k, v)), **{n: g.double() for n, g in gates.items()})
    got = chunked(q, k, v, **gates)
    assert got.dtype == torch.float32
    assert (got - want).abs().max() <= 3e-6 * want.abs().max()


@pytest.mark.parametrize("delta", (False, True))
@pytest.mark.parametrize("form", (chunked, step_by_step))
def test_gradients_of_one_decay_a_head(form, delta):
    """Of both forms against differences; chunks of 3 leave one of 1, with its padding."""
    generator = torch.Generator().manual_seed(3)

    def normal(size):
        made = torch.randn(1, 2, 7, size, generator=generator, dtype=torch.float64)
        return made.requires_grad_()

    def run(q, k, v, log_a, rate):
        gates = {"log_a": -F.softplus(log_a), **({"rate": rate.sigmoid()} if delta else {})}
        more = {"chunk": 3} if form is chunked else {}
        return form(q, F.normalize(k, dim=-1), v, **gates, **more)

    rate = normal(1) if delta else None
    assert torch.autograd.gradcheck(run, (normal(3), normal(3), normal(2), normal(1), rate))


@pytest.mark.parametrize("delta", (False, True))
def test_gradients_are_those_of_the_steps(delta):
    q, k, v, normal = inputs(torch.float64)
    k = F.normalize(k, dim=-1)
    leaves = [q, k, v, -normal(1) ** 2, *((torch.sigmoid(normal(1)),) if delta else ())]
    gradients = []
    for form in (chunked, step_by_step):
        made = [leaf.clone().requires_grad_() for leaf in leaves]
        h = form(*made[:3], log_a=made[3], rate=made[4] if delta else None)
        h.square().sum().backward()
        gradients.append([leaf.grad for leaf in made])
    for got, want in zip(*gradients):
        assert torch.allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("decay", ({"log_a": DV}, {"log_f": M}))
def test_a_delta_rule_with_many_decays_is_refused(decay):
    q, k, v, normal = inputs(torch.float64)
    decay = {name: -normal(size) ** 2 for name, size in decay.items()}
    with pytest.raises(ValueError, match="no chunked form"):
        chunked(q, k, v, **decay, rate=torch.sigmoid(normal(1)))


def test_a_decay_to_nothing_has_finite_gradients():
    q, k, v, normal = inputs(torch.float32)
    log_a = torch.full_like(normal(1), -1e6).requires_grad_()
    rate = torch.sigmoid(normal(1))
    h = chunked(q, F.normalize(k, dim=-1), v, log_a=log_a, rate=rate)
    h.square().sum().backward()
    assert h.isfinite().all() and log_a.grad.isfinite().all()


def test_refined_in_float32():
    """As trained: exponential features, gates down to the strongest decay the chunks hold."""
    q, k, v, normal = inputs(torch.float32)
    q, k = (z / z.amax((-2, -1), keepdim=True) for z in (q, k))
    log_a = log_refined(4 * normal(DV), normal(DV)).clamp(min=LOWEST_LOG_DECAY)
    want = step_by_step(*(x.double() for x in (q, k, v, log_a)))
    got = chunked(q, k, v, log_a)
    assert (got - want).abs().max() <= 3e-6 * want.abs().max()


def test_the_strongest_decays_of_both_kinds_in_float32():
    q, k, v, normal = inputs(torch.float32)
    log_a, log_f = torch.full_like(normal(DV), -50), torch.full_like(normal(M), -50)
    lowest = torch.full_like(log_a, LOWEST_LOG_DECAY), torch.full_like(log_f, LOWEST_LOG_DECAY)
    want = step_by_step(*(x.double() for x in (q, k, v, *lowest)))
    got = chunked(q, k, v, log_a, log_f)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def test_state_is_causal():
    q, k, v, normal = inputs(torch.float64)
    log_a = F.logsigmoid(normal(DV))
    changed = v.clone()
    changed[:, :, 40:] += 1
    before, after = chunked(q, k, v, log_a), chunked(q, k, changed, log_a)
    assert torch.equal(before[:, :, :40], after[:, :, :40])
    assert not torch.allclose(before[:, :, 40:], after[:, :, 40:])


@pytest.mark.parametrize("growth", (60.0, 300.0))
def test_exponential_keys_that_grow(growth):
    """What comes before keys of another size stays what it was, or at least finite."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 24, 4, generator=generator) for _ in range(3))
    k[:, :, 12:] += growth
    k.requires_grad_()
    of_q, of_k, correction = FeatureMap._exponential(q, k)
    h = chunked(of_q, of_k, v) * correction.exp()
    h.sum().backward()
    assert h.isfinite().all() and k.grad.isfinite().all()
    running = k.detach().amax(-1, keepdim=True).cummax(-2).values.double()
    for t in range(24) if growth < 80 else range(12, 24):
        keys = (k.detach()[:, :, : t + 1].double() - running[:, :, t : t + 1]).exp()
        state = v[:, :, : t + 1].double().transpose(-1, -2) @ keys
        expected = (state @ of_q[:, :, t, :, None].double()).squeeze(-1)
        torch.testing.assert_close(h[:, :, t].double(), expected, rtol=1e-5, atol=1e-6)
