# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders in the Hugging Face layout: config.json, model.safetensors."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from train.config import read_config
from train.files import must_exist, words
from train.model.model import Model, checkpoint_tensors
from train.model.recurrence import chunked

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


STATE = ("step", "model", "optimizers", "schedule")


def read_tensors(file):
    """{name: tensor} of a file of safetensors."""
    try:
        return load_file(must_exist(file))
    except SafetensorError as error:
        raise ValueError(f"{file}: expected safetensors, got: {words(error)}") from None


def read_state(file, device="cpu"):
    """What fit.py saved of a run."""
    try:
        state = torch.load(must_exist(file), map_location=device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of a broken file PyTorch raises whatever its reader met
        said = words(error).split(". ")[0]
        raise ValueError(f"{file}: expected the state of a run, got: {said}") from None
    if not isinstance(state, dict) or not set(STATE) <= state.keys():
        raise ValueError(f"{file}: expected the state of a run ({', '.join(STATE)}), got another thing")
    return state


def load_tensors(folder, dtype=torch.float32):
    """{name: tensor} of a checkpoint, numbers as dtype."""
    return {
        name: tensor.to(dtype) if tensor.dtype.is_floating_point else tensor
        for name, tensor in read_tensors(Path(folder) / "model.safetensors").items()
    }


def load_model(folder, dtype=torch.float32, recur=chunked):
    """(model, config.json's object) of a checkpoint, computing in dtype."""
    config, raw = read_config(Path(folder) / "config.json")
    tensors = load_tensors(folder, dtype)
    try:
        return Model(config, tensors, recur).eval(), raw
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


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
