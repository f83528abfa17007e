# SPDX-License-Identifier: Apache-2.0
"""What a run trains: tensors that the papers hold fixed keep their values, tensors that they share
are one tensor in all layers; and which have a learning rate of their own."""

import re

import torch

from train.config import object_of
from train.init import is_permuteformer
from train.model.model import checkpoint_name
from train.model.positions import SoftmaxPosition

# KERPLE has one set of r for all layers (its table 2 counts 24 to 36 parameters).
KERPLE_R = r"\.position\.r[1-4]$"
MOST_RATE = 1000  # factor of a learning rate


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


def read_rates(raw):
    """The "rates" of a config's JSON object: factors of the learning rate, by regular expressions that
    find names of tensors as in a checkpoint."""
    rates = object_of(raw.get("rates", {}), "rates")
    for regex, factor in rates.items():
        if type(factor) not in (int, float) or not 0 < factor <= MOST_RATE:
            raise ValueError(
                f"config.json: rates.{regex}: expected more than 0, at most {MOST_RATE}, got {factor!r}"
            )
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(
                f"config.json: rates.{regex}: expected a regular expression, got: {error}"
            ) from None
    return rates


def factors_of(model, rates):
    """The factor of each trained parameter's rate, by its name; 1 where no regex finds it."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = {name: [r for r in rates if re.search(r, checkpoint_name(name))] for name in names}
    for regex in rates:
        if not any(regex in regexes for regexes in found.values()):
            raise ValueError(f"config.json: rates.{regex}: expected a trained tensor, found none")
    for name, regexes in found.items():
        if len(regexes) > 1:
            raise ValueError(
                f"config.json: rates: expected one for {checkpoint_name(name)}, got {regexes}"
            )
    return {name: rates[regexes[0]] if regexes else 1.0 for name, regexes in found.items()}


def keep_in_range(model):
    """After a step: KERPLE's r where its kernels are positive definite."""
    for module in model.modules():
        if isinstance(module, SoftmaxPosition):
            module.clamp_kerple()
