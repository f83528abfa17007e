# SPDX-License-Identifier: Apache-2.0
"""Long-short windows (model-format.md, "Long-short windows"): Transformer-LS's attention."""

import torch
from torch import nn

from train.model.layers import Linear, Norm, at_least_f32
from train.model.linear_mixer import split_heads


class Segments(nn.Module):
    """x [B, T, D], q [B, H, T, d], k and v [B, T, H d] -> h [B, H, T, d]"""

    def __init__(self, config, model, tensors, d, value_dim):
        super().__init__()
        if d != value_dim:
            raise ValueError(f"{tensors.prefix}v_proj: a long_short window needs k's height")
        self.heads, self.rank = config.num_heads, config.segment_rank
        self.length, self.window = config.segment_length, config.window_size
        self.segment_proj = Linear(
            tensors.under("segment_proj"), self.heads * self.rank, model.hidden_size
        )
        for name in ("window_norm", "segment_norm"):
            norm = Norm("layernorm", self.heads * d, model.norm_eps, tensors.under(name))
            setattr(self, name, norm)

    def forward(self, x, q, k, v):
        scores = self.segment_proj(x)
        keys, values = (
            torch.cat(
                (self._vectors(scores, part), split_heads(self.window_norm(part), self.heads)), -2
            )
            for part in (k, v)
        )
        position = torch.arange(x.shape[1], device=x.device)
        block = 512  # of queries: bounds the scores' memory
        return torch.cat(
            [
                (q[..., part, :] @ keys.transpose(-1, -2))
                .masked_fill(~self._seen(part, x.shape[1]), float("-inf"))
                .softmax(-1)
                @ values
                for part in position.split(block)
            ],
            -2,
        )

    def _seen(self, query, length):
        """[queries, keys]: which vectors of segments, then which keys, each position sees."""
        query = query[:, None]
        segment = torch.arange(length // self.length, device=query.device)
        segment = segment.repeat_interleave(self.rank)
        distance = query - torch.arange(length, device=query.device)
        near = (distance >= 0) & (distance < self.window)
        return torch.cat((segment < query // self.length, near), 1)

    def _vectors(self, scores, x):
        """[B, H, r * whole segments, d]: of keys or values x [B, T, H d]."""
        count = x.shape[1] // self.length
        whole = count * self.length
        scores, x = (
            part[:, :whole].unflatten(1, (count, self.length)).unflatten(-1, (self.heads, size))
            for part, size in ((scores, self.rank), (x, x.shape[-1] // self.heads))
        )
        weights = at_least_f32(scores).softmax(2).to(x.dtype)
        made = torch.einsum("bclhr,bclhd->bcrhd", weights, x)
        return split_heads(self.segment_norm(made.flatten(-2).flatten(1, 2)), self.heads)
