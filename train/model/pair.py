# SPDX-License-Identifier: Apache-2.0
"""A pair: two mixers of the same x, whose h are added or concatenated (model-format.md, "Pairs")."""

import torch
from torch import nn

from train.model.linear_mixer import LinearMixer, Mixer
from train.model.recurrence import chunked
from train.model.softmax_mixer import SoftmaxMixer


def make_mixer(config, model, tensors, recur=chunked, **part):
    """The mixer of a layer; part: of a pair."""
    if config.kind == "pair":
        return Pair(config, model, tensors, recur)
    if config.kind == "linear":
        return LinearMixer(config, model, tensors, recur, **part)
    return SoftmaxMixer(config, model, tensors, **part)


class Pair(Mixer):
    def __init__(self, config, model, tensors, recur):
        super().__init__()
        self.config = config
        self.first = model.mixers[config.parts[0]]
        mixers = [model.mixers[name] for name in config.parts]
        owner = None
        if config.combine == "add":
            self.take_sources(self.first, model.hidden_size, tensors)
            owner = self
        self.parts = nn.ModuleList(
            make_mixer(
                mixer, model, tensors.under(f"parts.{i}"), recur, part=True, owner=owner
            )
            for i, mixer in enumerate(mixers)
        )
        sizes = [
            (part if owner is None else self).v_proj.weight.shape[0] for part in self.parts
        ]
        size = sizes[0] if config.combine == "add" else sum(sizes)
        self.take_output(config, size, model.hidden_size, tensors)

    def hidden(self, x):
        if self.config.combine == "concatenate":
            return torch.cat([part.hidden(x) for part in self.parts], -1)
        sources = self.sources(x, self.first)
        return self.parts[0].hidden(x, sources) + self.parts[1].hidden(x, sources)
