# SPDX-License-Identifier: Apache-2.0
"""Random weights of models with Mamba-2, in which every part matters."""

import torch
from golden_case import fill_with_noise


def fill_mamba(model, seed, scale=1.3):
    """Decays that last for some tokens to some dozens, and steps around 0.1 to 1."""
    generator = torch.Generator().manual_seed(seed + 1)
    fill_with_noise(model, seed, scale)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if name.endswith("conv1d.weight"):
            tensor.data.copy_(0.5 * noise)
        elif name.endswith("A_log"):
            tensor.data.copy_(-1.5 + noise)
        elif name.endswith("dt_bias"):
            tensor.data.copy_(-1 + noise)
        elif name.endswith(".D"):
            tensor.data.copy_(0.7 + 0.5 * noise)
