# SPDX-License-Identifier: Apache-2.0
"""Random Gated DeltaNets and DeltaNets of flash-linear-attention, in float64, against `regla check`.

    python tests/scripts/cross_check_delta_fla.py --out FOLDER --regla build/dev/regla [--count 300]

`make test-train` runs it, with what tests/fla/requirements.txt names. Folders that differ stay.
"""

import json
import shutil
import sys

import make_delta_fixtures
import make_delta_fla_fixtures as fixtures
import torch
from cross_check_dense import TOKENIZER, TOKENIZER_IDS, TOLERANCE, choose, run
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


FAMILIES = {"GatedDeltaNet": (fixtures.GATED, gated), "DeltaNet": (fixtures.PLAIN, plain)}


def save(folder, family, rng):
    (config, model_class), keys_of = FAMILIES[family]
    model = model_class(config(**keys_of(rng, shapes(rng))))
    make_delta_fixtures.fill(model, rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3]), False)
    model.to(rng.choice([torch.float32, torch.bfloat16])).save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")


def write_case(folder, family, rng, save_case):
    """Every case is well conditioned."""
    shutil.rmtree(folder, ignore_errors=True)
    save_case(folder, family, rng)
    model = FAMILIES[family][0][1].from_pretrained(folder, dtype=torch.float64).double().eval()

    def logits_of(ids):
        with torch.no_grad(), exact():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    prompt = [rng.randrange(model.config.vocab_size) for _ in range(rng.choice(PROMPTS))]
    case = expected(logits_of, prompt) | {"tolerance": TOLERANCE}
    (folder / "expected.json").write_text(json.dumps(case))
    return True


if __name__ == "__main__":
    fixtures.use_plain_operations()
    sys.exit(run(__doc__, FAMILIES, save, write_case))
