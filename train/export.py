# SPDX-License-Identifier: Apache-2.0
"""Writes a run's state as a checkpoint folder: config.json, model.safetensors, tokenizer.json,
tokenizer_config.json, generation_config.json."""

import argparse
import json
import shutil
from pathlib import Path

from train.checkpoint import read_state, save_model
from train.config import parse_config, read_config, shipped
from train.files import read_object, told
from train.make_card import SAMPLING
from train.model.model import Model, checkpoint_name
from train.tokenizer import END_OF_TEXT, END_OF_TEXT_ID, compare_sizes, read_tokenizer, size_of


def write_tokens(out, config):
    """The texts of the tokens around a text, which chat templates write by name."""
    tokens = {token["id"]: token["content"]
              for token in read_object(out / "tokenizer.json").get("added_tokens", ())}
    named = {"bos_token": tokens.get(config.bos_token_id), "eos_token": tokens.get(config.eos_token_id)}
    (out / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}, indent=2) + "\n"
    )


def with_ends(raw, tokenizer):
    """A config that names no tokens around a text, as presets do, gets the one behind the documents of
    the training."""
    named = tokenizer.id_to_token(END_OF_TEXT_ID) == END_OF_TEXT
    if raw.get("eos_token_id") is not None or not named:
        return raw
    return {**raw, "bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID}


def export(state_file, config_file, tokenizer_file, out, dtype):
    raw = read_config(config_file)[1]
    state = read_state(state_file)["model"]
    tokenizer = read_tokenizer(tokenizer_file)
    raw = with_ends(raw, tokenizer)
    config = parse_config(shipped(raw))
    said = compare_sizes(size_of(tokenizer), tokenizer_file, config.vocab_size, config_file)
    if said:
        print(f"# {said}", flush=True)
    try:
        model = Model(config, {checkpoint_name(name): tensor for name, tensor in state.items()})
    except ValueError as error:
        raise ValueError(f"{state_file}: expected a run of {config_file}: {error}") from None
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
    with told("train.export"):
        export(args.state, args.config, args.tokenizer, args.out, args.dtype)


if __name__ == "__main__":
    main()
