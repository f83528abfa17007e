# SPDX-License-Identifier: Apache-2.0
"""Random Gated DeltaNets and DeltaNets of flash-linear-attention, in float64, against `regla check`.

    python tests/scripts/cross_check_delta_fla.py --out FOLDER --regla build/dev/regla [--count 100]

Needs what make_delta_fla_fixtures.py does. Folders that differ stay.
"""

import argparse
import json
import random
import shutil
import sys
from pathlib import Path

import make_delta_fixtures
import make_delta_fla_fixtures as fixtures
import torch
from cross_check_dense import TOKENIZER, TOKENIZER_IDS, TOLERANCE, check, choose
from dense_reference import exact
from golden_case import expected

PROMPTS = (1, 2, 20, 64, 65, 90)


def shapes(rng):
    return {"vocab_size": TOKENIZER_IDS + rng.choice([0, 1, 6]), "hidden_size": 12 * rng.choice([1, 2, 3]),
            "num_hidden_layers": rng.choice([1, 2, 3]), "intermediate_size": choose(rng, 20, 31, None),
            "conv_size": choose(rng, 4, 2, 3, 8), "tie_word_embeddings": rng.random() < 0.5,
            "norm_eps": choose(rng, 1e-6, 1e-5, 1e-3), "use_gate": rng.random() < 0.7,
            "allow_neg_eigval": rng.random() < 0.5, "bos_token_id": 0, "eos_token_id": 0,
            "fuse_cross_entropy": False}


def gated(rng, keys):
    heads = rng.choice([1, 2, 3])
    return {**keys, "num_heads": heads, "num_v_heads": choose(rng, None, heads, 2 * heads, 3 * heads),
            "head_dim": rng.choice([4, 8, 12, 18]), "expand_v": rng.choice([0.5, 1.0, 1.5, 2.0]),
            "output_gate_activation": rng.choice(["swish", "silu", "sigmoid"])}


def plain(rng, keys):
    return {**keys, "num_heads": rng.choice([1, 2, 3]), "expand_k": rng.choice([0.5, 1.0]),
            "expand_v": rng.choice([0.5, 1.0, 2.0])}


def write_case(folder, rng):
    of_gated = rng.random() < 0.6
    config, model_class = fixtures.GATED if of_gated else fixtures.PLAIN
    keys = (gated if of_gated else plain)(rng, shapes(rng))
    model = model_class(config(**keys))
    make_delta_fixtures.fill(model, rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3]), False)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(rng.choice([torch.float32, torch.bfloat16])).save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    model = model_class.from_pretrained(folder, dtype=torch.float64).double().eval()

    def logits_of(ids):
        with torch.no_grad(), exact():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    prompt = [rng.randrange(keys["vocab_size"]) for _ in range(rng.choice(PROMPTS))]
    case = expected(logits_of, prompt) | {"tolerance": TOLERANCE}
    (folder / "expected.json").write_text(json.dumps(case))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--regla", required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    fixtures.use_plain_operations()
    failures = 0
    for i in range(args.count):
        folder = args.out / f"{args.seed}_{i:04}"
        write_case(folder, random.Random(args.seed * 100003 + i))
        agrees, text = check(args.regla, folder, i % 4 == 0)
        if agrees:
            shutil.rmtree(folder)
            continue
        failures += 1
        print(f"{folder}: {text}\n{(folder / 'config.json').read_text()}", flush=True)
    print(f"{args.count} configurations, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
