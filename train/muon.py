# SPDX-License-Identifier: Apache-2.0
"""Muon: momentum whose steps are orthogonalized by Newton-Schulz iterations (Jordan 2024), for the
hidden matrices."""

import torch

# Coefficients of the quintic iteration: singular values go to about 1 in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix, steps=5):
    """The nearest semi-orthogonal matrix, roughly, of matrices [.., n, m] with n <= m."""
    a, b, c = COEFFICIENTS
    x = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(-2, -1)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """All matrices of one shape take their step together. `dtype`: of the iterations; bfloat16 is
    precise enough."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0, dtype=torch.float32):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(sorted(parameter.shape)), []).append(parameter)
            for parameters in by_shape.values():
                self._step_together(group, parameters)

    def _step_together(self, group, parameters):
        updates = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(momentum, group["momentum"])
            updates.append(update if update.shape[0] <= update.shape[1] else update.T)
        for parameter, update in zip(
            parameters, orthogonalize(torch.stack(updates).to(self.dtype)).float()
        ):
            update = update if parameter.shape[0] <= parameter.shape[1] else update.T
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * scale)
