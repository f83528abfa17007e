# SPDX-License-Identifier: Apache-2.0
"""Positions of both kinds of mixers (model-format.md, "Positions"); positions start at 0."""

import math

import torch
from torch import nn


def rotary_size(d, fraction):
    """How many of d dimensions are rotated: rounded down to even."""
    return int(d * fraction) // 2 * 2


def places(length, device):
    """[T, 1]: the positions, in float64, since t times a small error grows."""
    return torch.arange(length, dtype=torch.float64, device=device)[:, None]


def rope_angles(length, size, base, device):
    """[T, size/2]"""
    steps = torch.arange(0, size, 2, dtype=torch.float64, device=device)
    return places(length, device) * base ** (-steps / size)


def rotate_pairs(x, angles, pairing):
    """Rotates the first 2 * pairs dimensions of x [.., T, n] by angles [.., T, pairs]."""
    size = 2 * angles.shape[-1]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    turned, rest = x[..., :size], x[..., size:]
    if pairing == "half":
        a, b = turned[..., : size // 2], turned[..., size // 2 :]
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def default_theta(count, size):
    """LRPE's angles 10000^(-2j/size), j < count, in float64."""
    return 10000 ** (-2 * torch.arange(count, dtype=torch.float64) / size)


class Lrpe(nn.Module):
    """LRPE types 1 to 3 on vectors of size m; the basis comes first."""

    def __init__(self, config, heads, m, tensors):
        super().__init__()
        self.config, self.m = config, m
        if config.basis == "householder":
            self.householder = tensors.take("householder", (m,))
        if config.type == "lrpe_permutation":
            self.register_buffer("permutation", tensors.take("permutation", (m,)))
            return
        pairs = m if config.type == "lrpe_unitary" else rotary_size(m, config.rotary_pct) // 2
        if tensors.has("theta"):
            per_head = len(tensors.shape("theta")) == 2
            self.theta = tensors.take("theta", (heads, pairs) if per_head else (pairs,))
        else:
            size = m if config.type == "lrpe_unitary" else 2 * pairs
            self.default_theta = default_theta(pairs, size)

    def forward(self, x):
        """x [B, H, T, m]"""
        x = self._basis(x)
        if self.config.type == "lrpe_permutation":
            return x.gather(-1, self._powers(x.shape[-2]).expand(x.shape))
        theta = self.theta if hasattr(self, "theta") else self.default_theta
        theta = theta.unsqueeze(-2) if theta.dim() == 2 else theta
        angles = places(x.shape[-2], x.device) * theta.to(x.device, torch.float64)
        if self.config.type == "lrpe_unitary":
            return torch.cat((x * angles.cos().to(x.dtype), x * angles.sin().to(x.dtype)), -1)
        return rotate_pairs(x, angles, "adjacent")

    def _basis(self, x):
        if self.config.basis == "householder":
            v = self.householder / self.householder.norm()
            return x - 2 * v * (x @ v).unsqueeze(-1)
        if self.config.basis == "odd_even":
            half = (self.m + 1) // 2
            return x[..., [k // 2 + (k % 2) * half for k in range(self.m)]]
        return x

    def _powers(self, length):
        """[T, m]: row t is the permutation applied t times."""
        rows = [torch.arange(self.m, device=self.permutation.device)]
        for _ in range(1, length):
            rows.append(self.permutation.long()[rows[-1]])
        return torch.stack(rows)


class LinearPosition(nn.Module):
    """Positions of a linear mixer: `before` on q and k [B, H, T, d], `after` on their features."""

    def __init__(self, config, heads, d, m, tensors):
        super().__init__()
        self.config = config
        self.doubles = config.type == "lrpe_unitary"
        self.lrpe = Lrpe(config, heads, m, tensors) if config.type.startswith("lrpe") else None

    def before(self, z):
        return self._rope(z) if self.config.type == "rope" and self.config.stage == "before" else z

    def after(self, z):
        if self.lrpe is not None:
            return self.lrpe(z)
        return self._rope(z) if self.config.type == "rope" and self.config.stage == "after" else z

    def _rope(self, z):
        size = rotary_size(z.shape[-1], self.config.rotary_pct)
        return rotate_pairs(
            z, rope_angles(z.shape[-2], size, self.config.base, z.device), self.config.pairing
        )


KERPLE_PARAMETERS = {
    "kerple_log": 2,
    "kerple_power": 2,
    "kerple_3para_log": 3,
    "kerple_bias_wht": 4,
}
# Those that are exponents of the distance: at most 2, else the kernel is not positive definite.
KERPLE_EXPONENTS = {
    "kerple_power": ("r2",),
    "kerple_3para_log": ("r3",),
    "kerple_bias_wht": ("r2", "r4"),
}
KERPLE_LOWEST = 1e-2  # of all, as released
KERPLE_HIGHEST_EXPONENT = 2.0


class SoftmaxPosition(nn.Module):
    """Positions of a softmax mixer: `rotate` on q and k, `bias` on the scores."""

    def __init__(self, config, heads, d, tensors):
        super().__init__()
        self.config, self.heads = config, heads
        for i in range(1, KERPLE_PARAMETERS.get(config.type, 0) + 1):
            setattr(self, f"r{i}", tensors.take(f"r{i}", (heads,)))
        if config.type == "t5":
            self.bucket_bias = tensors.take("bucket_bias", (32, heads))
        self.lrpe = Lrpe(config, heads, d, tensors) if config.type.startswith("lrpe") else None

    def rotate(self, z):
        if self.lrpe is not None:
            return self.lrpe(z)
        if self.config.type != "rope":
            return z
        size = rotary_size(z.shape[-1], self.config.rotary_pct)
        return rotate_pairs(
            z, rope_angles(z.shape[-2], size, self.config.base, z.device), self.config.pairing
        )

    def bias(self, distance, dtype):
        """What multiplies and what is added to the scores, [H, T, S] or None, at the distances S >
        t - s >= 0 [T, S]."""
        kind = self.config.type
        if kind == "alibi":
            slopes = torch.tensor(alibi_slopes(self.heads), dtype=dtype, device=distance.device)
            return None, -slopes[:, None, None] * distance.to(dtype)
        if kind == "t5":
            return None, self.bucket_bias[t5_bucket(distance)].permute(2, 0, 1)
        if kind not in KERPLE_PARAMETERS:
            return None, None
        # A bias of the distance alone: computed once a distance, then spread over the square.
        delta = torch.arange(distance.shape[1], dtype=dtype, device=distance.device)
        scale, bias = self._kerple(delta)
        spread = distance.flatten()
        return (
            None if scale is None else scale.index_select(1, spread).unflatten(1, distance.shape),
            bias.index_select(1, spread).unflatten(1, distance.shape),
        )

    def clamp_kerple(self):
        """Puts r1..r4 back into their ranges, after a step of training."""
        exponents = KERPLE_EXPONENTS.get(self.config.type, ())
        for i in range(1, KERPLE_PARAMETERS.get(self.config.type, 0) + 1):
            highest = KERPLE_HIGHEST_EXPONENT if f"r{i}" in exponents else None
            with torch.no_grad():
                getattr(self, f"r{i}").clamp_(min=KERPLE_LOWEST, max=highest)

    def _kerple(self, delta):
        kind = self.config.type
        r1, r2 = self.r1[:, None], self.r2[:, None]
        if kind == "kerple_log":
            return None, -r1 * torch.log1p(r2 * delta)
        if kind == "kerple_power":
            return None, -r1 * delta**r2
        r3 = self.r3[:, None]
        if kind == "kerple_3para_log":
            return None, -r1 * torch.log1p(r2 * delta**r3)
        return (-r3 * delta ** self.r4[:, None]).exp(), -r1 * delta**r2


def alibi_slopes(heads):
    """2^(-8(h+1)/n) for a power of two; else those of the next lower power, then every other one of
    its double."""

    def power(n):
        return [2.0 ** (-8 * (h + 1) / n) for h in range(n)]

    lower = 1 << (heads.bit_length() - 1)
    return power(lower) + power(2 * lower)[0::2][: heads - lower]


def t5_bucket(distance):
    far = 16 + (16 * torch.log(distance.clamp(min=16).double() / 16) / math.log(8)).floor().long()
    return torch.where(distance < 16, distance, far.clamp(max=31))
