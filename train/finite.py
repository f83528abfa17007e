# SPDX-License-Identifier: Apache-2.0
"""Says where a model's numbers stop being finite."""

import torch

from train.model.model import checkpoint_name


class NotFinite(ArithmeticError):
    """A run cannot go on: a loss or a gradient is infinite or not a number."""


def _finite(output):
    if isinstance(output, torch.Tensor):
        return not output.is_floating_point() or bool(output.isfinite().all())
    return all(_finite(part) for part in output) if isinstance(output, tuple) else True


def first_output_not_finite(model, ids):
    """Name of the first module whose output on ids is not finite; None if all are."""
    places, hooks = [], []
    for name, module in model.named_modules():

        def watch(_module, _inputs, output, name=name):
            if not places and not _finite(output):
                places.append(f"model.{name}" if name else "the logits")

        hooks.append(module.register_forward_hook(watch))
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return places[0] if places else None


def last_gradient_not_finite(model):
    """Name of the tensor nearest to the loss whose gradient is not finite, or None: gradients go
    from the last layer to the first, and what comes after such a layer is not finite either."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not _finite(parameter.grad)
    ]
    return checkpoint_name(names[-1]) if names else None


def explain(model, ids, step, loss):
    """One sentence: which step, and where in the model."""
    place = first_output_not_finite(model, ids)
    if place is not None:
        return f"step {step}: loss {loss}: the output of {place} is not finite"
    place = last_gradient_not_finite(model)
    return f"step {step}: loss {loss}: the gradient of {place or 'the loss'} is not finite"
