# SPDX-License-Identifier: Apache-2.0
"""What every part of a model is made of: tensors taken by name, linear layers, norms.

A model is always built from tensors (a checkpoint's or init.py's): a layer has a bias if and only
if its tensor is there, and sizes are what the tensors say.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Tensors:
    """A checkpoint's tensors, each to be taken once, under a prefix."""

    def __init__(self, tensors, prefix="", taken=None):
        self.tensors, self.prefix = tensors, prefix
        self.taken = set() if taken is None else taken

    def under(self, prefix):
        return Tensors(self.tensors, f"{self.prefix}{prefix}.", self.taken)

    def has(self, name):
        return self.prefix + name in self.tensors

    def shape(self, name):
        return tuple(self._find(name).shape)

    def take(self, name, shape=None):
        """The tensor as a parameter (integers: as they are); its shape must fit, None matching any
        size."""
        tensor = self._find(name)
        full = self.prefix + name
        if shape is not None and (
            len(shape) != tensor.dim()
            or any(s is not None and s != n for s, n in zip(shape, tensor.shape))
        ):
            raise ValueError(f"{full}: shape {list(tensor.shape)}, expected {list(shape)}")
        self.taken.add(full)
        if not tensor.dtype.is_floating_point:
            return tensor
        return nn.Parameter(tensor.detach().clone())

    def unused(self):
        return sorted(set(self.tensors) - self.taken)

    def _find(self, name):
        if self.prefix + name not in self.tensors:
            raise ValueError(f"{self.prefix}{name}: missing")
        return self.tensors[self.prefix + name]


def at_least_f32(x):
    """Out of autocast's bfloat16, where sums of logarithms and exponentials need more."""
    return x.float() if x.dtype == torch.bfloat16 else x


class Linear(nn.Module):
    def __init__(self, tensors, outputs=None, inputs=None):
        super().__init__()
        self.weight = tensors.take("weight", (outputs, inputs))
        self.bias = tensors.take("bias", (self.weight.shape[0],)) if tensors.has("bias") else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Conv(nn.Module):
    """A causal convolution of each channel by itself, x [B, T, C]; the last tap is the present
    token's."""

    def __init__(self, config, channels, tensors):
        super().__init__()
        self.config = config
        one = (1,) if len(tensors.shape("weight")) == 3 else ()
        self.weight = tensors.take("weight", (channels, *one, config.width))
        self.bias = tensors.take("bias", (channels,)) if tensors.has("bias") else None

    def forward(self, x):
        taps, length = self.weight.flatten(1).unbind(-1), x.shape[-2]
        x = F.pad(at_least_f32(x), (0, 0, len(taps) - 1, 0))
        y = sum(tap * x[..., i : i + length, :] for i, tap in enumerate(taps))
        if self.bias is not None:
            y = y + self.bias
        return F.silu(y) if self.config.activation == "silu" else y


WEIGHTED_NORMS = ("layernorm", "rmsnorm", "gated_rmsnorm")


class Norm(nn.Module):
    """layernorm, rmsnorm, simple_rmsnorm, gated_rmsnorm, l2 or none over the last dimension;
    plus_one: the weight is 1 + w."""

    def __init__(self, kind, size, eps, tensors, plus_one=False):
        super().__init__()
        self.kind, self.eps, self.plus_one = kind, eps, plus_one
        self.weight = tensors.take("weight", (size,)) if kind in WEIGHTED_NORMS else None
        self.bias = (
            tensors.take("bias", (size,)) if kind == "layernorm" and tensors.has("bias") else None
        )
        self.gate = tensors.take("gate", (size,)) if kind == "gated_rmsnorm" else None

    def forward(self, x):
        if self.kind == "none":
            return x
        if self.kind == "l2":
            return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)
        weight = 1 + self.weight if self.plus_one and self.weight is not None else self.weight
        if self.kind == "layernorm":
            return F.layer_norm(x, x.shape[-1:], weight, self.bias, self.eps)
        if self.kind == "rmsnorm":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight
        if self.kind == "gated_rmsnorm":  # ReLA's
            unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
            return unit * weight * (self.gate * x).sigmoid()
        # A row of zeros (ReLU attention without a positive score) has the gradient 1/eps: that of a
        # vector's norm is taken as 0 there, that of a root would be infinite.
        rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return x / (rms + self.eps)
