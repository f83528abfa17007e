# SPDX-License-Identifier: Apache-2.0
"""Softmax (and ReLA) mixers: attention over kept keys (model-format.md, "Softmax mixers")."""

import torch
from torch import nn

from train.model.layers import Linear, Norm
from train.model.linear_mixer import split_heads
from train.model.positions import SoftmaxPosition


class SoftmaxMixer(nn.Module):
    """x [B, T, D] -> [B, T, D]"""

    def __init__(self, config, model, tensors):
        super().__init__()
        heads, width = model.num_attention_heads, model.hidden_size
        self.config, self.heads = config, heads
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, Linear(tensors.under(name), None, width))
        self.d, dv = self.q_proj.weight.shape[0] // heads, self.v_proj.weight.shape[0] // heads
        self.o_proj = Linear(tensors.under("o_proj"), width, heads * dv)
        self.position = SoftmaxPosition(config.position, heads, self.d, tensors.under("position"))
        self.norm_over_hidden = config.output_norm_scope == "hidden"
        size = heads * dv if self.norm_over_hidden else dv
        self.out_norm = Norm(
            config.output_norm, size, config.output_norm_eps, tensors.under("out_norm")
        )
        if config.output_gate == "swish":
            self.out_gate_proj = Linear(tensors.under("out_gate_proj"), heads * dv, width)

    def forward(self, x):
        q, k, v = (
            split_heads(proj(x), self.heads) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.position.rotate(q) * self.d**-0.5, self.position.rotate(k)
        h = self._attend(q, k, v).transpose(1, 2)
        if not self.norm_over_hidden:
            h = self.out_norm(h)
        h = h.flatten(-2)
        if self.norm_over_hidden:
            h = self.out_norm(h)
        if self.config.output_gate == "swish":
            h = h * torch.nn.functional.silu(self.out_gate_proj(x))
        return self.o_proj(h)

    def _attend(self, q, k, v):
        """All queries at once; long texts in blocks of queries, which bounds the scores' memory."""
        block = 512
        if q.shape[-2] <= block:
            return self._attend_block(q, k, v, 0)
        return torch.cat(
            [
                self._attend_block(
                    q[..., t : t + block, :], k[..., : t + block, :], v[..., : t + block, :], t
                )
                for t in range(0, q.shape[-2], block)
            ],
            -2,
        )

    def _attend_block(self, q, k, v, first):
        """Queries at positions first.. against the keys 0.. ."""
        query = torch.arange(first, first + q.shape[-2], device=q.device)[:, None]
        key = torch.arange(k.shape[-2], device=q.device)
        distance = query - key
        seen = distance >= 0
        if self.config.window == "sliding":
            seen &= distance < self.config.window_size
        elif self.config.window == "block":
            size = self.config.window_size
            seen &= query // size == key // size
        scores = q @ k.transpose(-1, -2)
        scale, bias = self.position.bias(distance.clamp(min=0), scores.dtype)
        if scale is not None:
            scores = scores * scale
        if self.config.activation == "relu":
            scores = scores if bias is None else scores + bias
            return scores.relu().masked_fill(~seen, 0) @ v
        mask = scores.new_zeros(seen.shape).masked_fill(~seen, float("-inf"))
        return (scores + (mask if bias is None else bias + mask)).softmax(-1) @ v
