# SPDX-License-Identifier: Apache-2.0
"""What a run trains: tensors that the papers hold fixed keep their values, tensors that they share
are one tensor in all layers."""

import re

import torch

from train.init import is_permuteformer
from train.model.model import checkpoint_name
from train.model.positions import SoftmaxPosition

# KERPLE has one set of r for all layers (its table 2 counts 24 to 36 parameters).
KERPLE_R = r"\.position\.r[1-4]$"


def fixed_by_papers(config, learned_theta):
    """Names, in a checkpoint, of tensors that are drawn or set once: the random W of Performer and
    RFA, LRPE's Householder vector, its angles unless they are to be learned, cosFormer's angle, and
    PermuteFormer's decay."""
    names = set()
    for i, kind in enumerate(config.layer_types):
        layer = f"model.layers.{i}.attn"
        names |= {f"{layer}.features.weight", f"{layer}.position.householder"}
        if not learned_theta:
            names.add(f"{layer}.position.theta")
        if is_permuteformer(config.mixers[kind]):
            names |= {f"{layer}.g_proj.weight", f"{layer}.g_proj.bias"}
    return names


def freeze(model, fixed, regex=None):
    """The parameters of these names, and those whose name the regex finds, are not trained."""
    found = False
    for name, parameter in model.named_parameters():
        name = checkpoint_name(name)
        matched = regex is not None and re.search(regex, name) is not None
        found |= matched
        if matched or name in fixed:
            parameter.requires_grad_(False)
    if regex is not None and not found:
        raise ValueError(f"--freeze {regex}: expected a tensor of that name, found none")


def tie(model, regex, required, equal):
    """Parameters whose names the regex finds and which differ only in the layer become one, that of
    the first of these layers. `required`: there must be such; `equal`: they must be equal before.
    """
    groups = {}
    for name, parameter in list(model.named_parameters()):
        shown = checkpoint_name(name)
        if re.search(regex, shown) and name.startswith("layers."):
            groups.setdefault(re.sub(r"^layers\.\d+\.", "", name), []).append((name, parameter))
    groups = {rest: members for rest, members in groups.items() if len(members) > 1}
    if required and not groups:
        raise ValueError(f"--tie {regex}: expected tensors of several layers, found none")
    for members in groups.values():
        first_name, first = members[0]
        for name, parameter in members[1:]:
            if parameter.shape != first.shape or (equal and not torch.equal(parameter, first)):
                raise ValueError(
                    f"--tie {regex}: {checkpoint_name(name)} differs from "
                    f"{checkpoint_name(first_name)} where the run starts"
                )
            module, leaf = name.rsplit(".", 1)
            setattr(model.get_submodule(module), leaf, first)


def keep_in_range(model):
    """After a step: KERPLE's r where its kernels are positive definite."""
    for module in model.modules():
        if isinstance(module, SoftmaxPosition):
            module.clamp_kerple()
