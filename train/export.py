# SPDX-License-Identifier: Apache-2.0
"""Writes a run's state as a checkpoint folder: config.json, model.safetensors, tokenizer.json,
tokenizer_config.json, generation_config.json."""

import argparse
import json
import shutil
from pathlib import Path

import torch

from train.checkpoint import save_model
from train.config import read_config, shipped
from train.make_card import SAMPLING
from train.model.model import Model, checkpoint_name


def write_tokens(out, config):
    """The texts of the tokens around a text, which chat templates write by name."""
    tokens = {token["id"]: token["content"]
              for token in json.loads((out / "tokenizer.json").read_text())["added_tokens"]}
    named = {"bos_token": tokens.get(config.bos_token_id), "eos_token": tokens.get(config.eos_token_id)}
    (out / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}, indent=2) + "\n"
    )


def export(state_file, config_file, tokenizer_file, out, dtype):
    config, raw = read_config(config_file)
    state = torch.load(state_file, map_location="cpu")["model"]
    model = Model(config, {checkpoint_name(name): tensor for name, tensor in state.items()})
    save_model(out, model, shipped(raw), dtype)
    out = Path(out)
    shutil.copy(tokenizer_file, out / "tokenizer.json")
    write_tokens(out, config)
    (out / "generation_config.json").write_text(
        json.dumps(
            {
                "bos_token_id": config.bos_token_id,
                "eos_token_id": config.eos_token_id,
                "do_sample": True,
                **SAMPLING,
            },
            indent=2,
        )
        + "\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", required=True, help="a run's state.pt")
    parser.add_argument("--config", required=True, help="the run's config")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    args = parser.parse_args()
    export(args.state, args.config, args.tokenizer, args.out, args.dtype)


if __name__ == "__main__":
    main()
