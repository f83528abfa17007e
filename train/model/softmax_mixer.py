# SPDX-License-Identifier: Apache-2.0
"""Softmax (and ReLA) mixers: attention over kept keys (model-format.md, "Softmax mixers")."""

import torch

from train.model.linear_mixer import Mixer, split_heads
from train.model.positions import SoftmaxPosition
from train.model.segments import Segments


class SoftmaxMixer(Mixer):
    """x [B, T, D] -> [B, T, D]"""

    def __init__(self, config, model, tensors, part=False, owner=None):
        super().__init__()
        heads, width = config.num_heads, model.hidden_size
        self.config, self.heads = config, heads
        d, dv = self.take_inputs(config, width, tensors, owner)
        self.scale = 1 / config.score_divisor if config.score_divisor else d**-0.5
        self.position = SoftmaxPosition(config.position, heads, d, tensors.under("position"))
        self.segments = None
        if config.window == "long_short":
            self.segments = Segments(config, model, tensors, d, dv)
        self.take_norm(config, heads, dv, tensors)
        if not part:
            self.take_output(config, heads * dv, width, tensors)

    def hidden(self, x, sources=None):
        q, k, v = self.inputs(x, sources)
        if self.segments is not None:
            return self.normed(self.segments(x, split_heads(q, self.heads) * self.scale, k, v), x)
        q, k, v = (
            split_heads(part, heads) for part, heads in zip((q, k, v), self.config.head_counts())
        )
        q, k = self.position.rotate(q) * self.scale, self.position.rotate(k)
        if k.shape[1] != self.heads:
            k, v = (part.repeat_interleave(self.heads // k.shape[1], 1) for part in (k, v))
        return self.normed(self._attend(q, k, v), x)

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
        if self.config.activation != "softmax":
            scores = (scores if bias is None else scores + bias).relu()
            if self.config.activation == "relu2":
                scores = scores.square()
            return scores.masked_fill(~seen, 0) @ v
        mask = scores.new_zeros(seen.shape).masked_fill(~seen, float("-inf"))
        return (scores + (mask if bias is None else bias + mask)).softmax(-1) @ v
