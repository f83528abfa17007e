#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A preset of a family that transformers and llama.cpp both have: the folder is saved by
transformers, and its GGUF files are made by llama.cpp's own converter. peers.py runs this with the
packages of tests/dense (`tests/scripts/venv.sh tests/dense`).

    python loadtest/peer_library.py CONFIG FOLDER SOURCE FORMAT=FILE...

CONFIG: a preset's JSON. SOURCE: the peer's, which build.sh unpacks. Weights are random bf16 numbers,
so that f32 and bf16 of both sides are the same; where the converter multiplies them (Falcon-H1) its
bf16 is rounded once more."""

import json
import sys
from pathlib import Path

import torch
import transformers
from peer_gguf import GGUF_FORMATS, SEED, add_tokens

NOT_OF_THE_LIBRARY = ("shapes",)  # what regla alone reads of a preset
OTHER_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}


def library_config(preset):
    keys = {key: value for key, value in preset.items()
            if key not in NOT_OF_THE_LIBRARY and key != "model_type"}
    return transformers.AutoConfig.for_model(preset["model_type"], **keys)


def save(config, folder):
    """Matrices of variance 1 / columns, so that no layer is flat and none chooses one; what else
    there is as transformers begins it."""
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 2:
                tensor.normal_(0, tensor.shape[1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def converter_config(folder):
    """As the converter reads it: names of layers that released files have, and no experts where
    there are none (the class says two of them per token, which llama.cpp refuses)."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "granitemoehybrid":
        of = {theirs: ours for ours, theirs in OTHER_NAMES.items()}
        config["layer_types"] = [of.get(kind, kind) for kind in config["layer_types"]]
        config["num_experts_per_tok"] = config["num_local_experts"]
    return config


def convert(folder, weights, path):
    import gguf
    from conversion import get_model_class

    config = converter_config(folder)
    chosen = get_model_class(config["architectures"][0])

    def set_vocab(self):
        add_tokens(gguf, self.gguf_writer, config["vocab_size"])

    kind = f"{'ALL' if weights == 'f32' else 'MOSTLY'}_{GGUF_FORMATS[weights]}"
    model = type(chosen.__name__, (chosen,), {"set_vocab": set_vocab, "no_mtp": True,
                                              "model_arch": chosen.model_arch})
    model(folder, gguf.LlamaFileType[kind], path, model_name=folder.name, hparams=config).write()


def main(preset, folder, source, *files):
    folder = Path(folder)
    save(library_config(json.loads(Path(preset).read_text())), folder)
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    for file in files:
        weights, path = file.split("=", 1)
        convert(folder, weights, Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
