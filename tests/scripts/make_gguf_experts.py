# SPDX-License-Identifier: Apache-2.0
"""GGUF files of mixtures of experts by llama.cpp's own converter, against what transformers computes.

    python tests/scripts/make_gguf_experts.py LLAMA_CPP --regla build/dev/regla [--out FOLDER] [CASE...]

LLAMA_CPP is a folder with its conversion/ and gguf-py/, as vendor/llama.cpp in PyPI's sdist of
llama_cpp_python 0.3.36. Needs transformers 5.24.0, torch and sentencepiece. Each case is one of
make_experts_fixtures.py, changed to what the format can say (CHANGES); transformers saves it, the
converter reads it, and `regla check` holds both the folder and the file against float64: the same
tokens, and logits within the tolerance of the folder, since the file has the same numbers. It also writes

  tests/fuzz/corpus/gguf/CASE    the metadata without tokenizers, and the first layer's names
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import make_experts_fixtures as fixtures
import make_gguf_dense as converter
import torch
import transformers

# Not in the files: a limit of gpt-oss's clamp other than 7, a window of mixtral, lfm2_moe's factor,
# layers of Qwen and Nemotron-3 with one MLP. Refused: Nemotron's groups.
CHANGES = {
    "experts_qwen3_moe": {"mlp_only_layers": []},
    "experts_qwen3_next": {"mlp_only_layers": []},
    "experts_mixtral": {"sliding_window": None},
    "experts_lfm2_moe": {"routed_scaling_factor": 1.0},
    "experts_nemotron_h": {"n_group": 1, "topk_group": 1, "layers_block_type": [
        "linear_attention", "moe", "full_attention", "moe"]},
    "experts_gpt_oss": {"swiglu_limit": 7.0},
    "experts_gpt_oss_mxfp4": {"swiglu_limit": 7.0},
}
MARGIN = 5e-3  # of the greedy tokens, so that all are compared
KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def as_released(config):
    """What the converter reads of what transformers 5 calls otherwise."""
    if config["model_type"] == "granitemoehybrid":
        config["layer_types"] = [KINDS[kind] for kind in config["layer_types"]]
    if config["model_type"] == "nemotron_h":
        config["d_head"] = config["mamba_head_dim"]  # else it asks for 64
    return config


def make(name, out):
    """The case and its file, in folders of their own."""
    klass, dtype, length, keys, _ = fixtures.CASES[name]
    case = klass, dtype, length, {**keys, **CHANGES.get(name, {})}, []
    folder, seed = out / name, fixtures.SEED + 100 * list(fixtures.CASES).index(name)
    while True:
        try:
            fixtures.expect(folder, case, seed, fixtures.save(folder, case, seed))
            if min(json.loads((folder / "expected.json").read_text())["greedy_margin"]) < MARGIN:
                raise SystemExit(f"{name}: two tokens nearly tie; draw another seed")
            break
        except SystemExit as error:
            print(f"seed {seed}: {error}")
            seed += 1
    shutil.copy(converter.fixtures.TESTS / "golden" / name / "tokenizer.json", folder)
    file = out / f"{name}_gguf"
    shutil.rmtree(file, ignore_errors=True)
    file.mkdir()
    converter.convert(folder, file / "model.gguf", as_released)
    shutil.copyfile(folder / "expected.json", file / "expected.json")
    converter.make_seed(file / "model.gguf", converter.fixtures.CORPUS / name)
    return folder, file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp")
    parser.add_argument("cases", nargs="*", default=list(fixtures.CASES))
    parser.add_argument("--regla", required=True)
    parser.add_argument("--out", type=Path, default=Path("/tmp/gguf-experts"))
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    made = [folder for name in options.cases for folder in make(name, options.out)]
    return subprocess.run([options.regla, "check", "--kv", "f32", *made]).returncode


if __name__ == "__main__":
    sys.exit(main())
