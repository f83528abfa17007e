# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders in the Hugging Face layout: config.json, model.safetensors."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from train.config import parse_config
from train.model.model import Model, checkpoint_tensors
from train.model.recurrence import chunked

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def load_tensors(folder, dtype=torch.float32):
    """{name: tensor} of a checkpoint, numbers as dtype."""
    return {
        name: tensor.to(dtype) if tensor.dtype.is_floating_point else tensor
        for name, tensor in load_file(Path(folder) / "model.safetensors").items()
    }


def load_model(folder, dtype=torch.float32, recur=chunked):
    """(model, config.json's object) of a checkpoint, computing in dtype."""
    raw = json.loads((Path(folder) / "config.json").read_text())
    return Model(parse_config(raw), load_tensors(folder, dtype), recur).eval(), raw


def save_model(folder, model, raw_config, dtype):
    """Writes config.json and model.safetensors; dtype: "bf16", "f16" or "f32"."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to(DTYPES[dtype]).contiguous() if tensor.dtype.is_floating_point else tensor
        for name, tensor in checkpoint_tensors(model).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(raw_config, indent=2) + "\n")
