# SPDX-License-Identifier: Apache-2.0
"""Random models of flash-linear-attention, in float64, against `regla check`.

    python tests/scripts/cross_check_fla.py --out FOLDER --regla build/dev/regla [--count 300]

`make test-train` runs it, with what tests/fla/requirements.txt names. Folders that differ stay.
"""

import json
import shutil
import sys

import make_delta_fixtures
import make_delta_fla_fixtures as delta_fixtures
import make_fla_fixtures as fla_fixtures
import make_rwkv7_fixtures as rwkv_fixtures
import torch
from cross_check_dense import TOKENIZER, TOKENIZER_IDS, TOLERANCE, choose, run
from dense_reference import exact
from golden_case import expected, fill_with_noise

PROMPTS = (1, 2, 20, 64, 65, 90)


def delta_shapes(rng):
    return {"vocab_size": TOKENIZER_IDS + rng.choice([0, 1, 6]), "hidden_size": 12 * rng.choice([1, 2, 3]),
            "num_hidden_layers": rng.choice([1, 2, 3]), "intermediate_size": choose(rng, 20, 31, None),
            "conv_size": choose(rng, 4, 2, 3, 8), "tie_word_embeddings": rng.random() < 0.5,
            "norm_eps": choose(rng, 1e-6, 1e-5, 1e-3), "use_gate": rng.random() < 0.7,
            "allow_neg_eigval": rng.random() < 0.5, "bos_token_id": 0, "eos_token_id": 0,
            "fuse_cross_entropy": False}


def gated(rng):
    keys = delta_shapes(rng)
    heads = rng.choice([1, 2, 3])
    return {**keys, "num_heads": heads, "num_v_heads": choose(rng, None, heads, 2 * heads, 3 * heads),
            "head_dim": rng.choice([4, 8, 12, 18]), "expand_v": rng.choice([0.5, 1.0, 1.5, 2.0]),
            "output_gate_activation": rng.choice(["swish", "silu", "sigmoid"])}


def plain(rng):
    return {**delta_shapes(rng), "num_heads": rng.choice([1, 2, 3]), "expand_k": rng.choice([0.5, 1.0]),
            "expand_v": rng.choice([0.5, 1.0, 2.0])}


def rwkv7(rng):
    head_dim, heads = rng.choice([2, 4, 8, 18, 64]), rng.choice([1, 2, 3])
    ranks = {f"{name}_low_rank_dim": choose(rng, 1, 3, 8, 40, None) for name in ("decay", "a", "v", "gate")}
    return {"vocab_size": TOKENIZER_IDS + rng.choice([0, 1, 6]), "hidden_size": heads * head_dim,
            "num_hidden_layers": rng.choice([2, 3, 4]), "head_dim": head_dim, **ranks,
            "intermediate_size": choose(rng, 20, 31, None), "hidden_ratio": choose(rng, 4, 1.5, None),
            "tie_word_embeddings": rng.random() < 0.5, "norm_eps": choose(rng, 1e-6, 1e-5, 1e-3),
            **{key: rng.random() < 0.7 for key in ("norm_first", "norm_bias", "fuse_norm")},
            "bos_token_id": 0, "eos_token_id": 0, "fuse_cross_entropy": False}


def fla_shapes(rng):
    keys = delta_shapes(rng)
    return {key: value for key, value in keys.items() if key not in ("use_gate", "allow_neg_eigval")}


def grouped(rng):
    keys, heads = fla_shapes(rng), rng.choice([1, 2, 3, 6])
    return {**keys, "num_heads": heads, "num_kv_heads": rng.choice([None, 1, heads]),
            "feature_map": rng.choice([None, None, "relu"]), "expand_v": rng.choice([0.5, 1.0, 2.0]),
            "use_output_gate": rng.random() < 0.7, "elementwise_affine": rng.random() < 0.7,
            "fuse_norm": rng.random() < 0.7}


def gla(rng):
    return {**grouped(rng), "expand_k": rng.choice([0.5, 1.0]), "use_short_conv": rng.random() < 0.5}


def retnet(rng):
    return {**grouped(rng), "expand_k": rng.choice([1.0, 2.0])}


def hgrn2(rng):
    heads = rng.choice([1, 2, 3])
    keys = {**fla_shapes(rng), "use_lower_bound": rng.random() < 0.7, "use_short_conv": rng.random() < 0.5}
    if rng.random() < 0.5:
        return {**keys, "expand_ratio": None, "num_heads": heads}
    return {**keys, "expand_ratio": keys["hidden_size"] // heads}


def kda(rng):
    bound = rng.choice([None, None, -5.0, -1.0])
    return {**fla_shapes(rng), "num_heads": rng.choice([1, 2, 3]), "head_dim": rng.choice([4, 8, 12, 18]),
            "expand_v": rng.choice([0.5, 1.0, 1.5, 2.0]), "allow_neg_eigval": rng.random() < 0.5,
            "lower_bound": bound, "safe_gate": bound is not None and rng.random() < 0.5}


def fill_delta(model, rng):
    make_delta_fixtures.fill(model, rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3]), False)


def fill_rwkv(model, rng):
    fill_with_noise(model, rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3]))


FAMILIES = {"GatedDeltaNet": (delta_fixtures.GATED, gated, fill_delta),
            "DeltaNet": (delta_fixtures.PLAIN, plain, fill_delta),
            "GLA": (fla_fixtures.GLA, gla, fill_delta), "RetNet": (fla_fixtures.RETNET, retnet, fill_delta),
            "HGRN2": (fla_fixtures.HGRN2, hgrn2, fill_delta), "KDA": (fla_fixtures.KDA, kda, fill_delta),
            "RWKV7": ((rwkv_fixtures.RWKV7Config, rwkv_fixtures.RWKV7ForCausalLM), rwkv7, fill_rwkv)}


def save(folder, family, rng):
    (config, model_class), keys_of, fill = FAMILIES[family]
    model = model_class(config(**keys_of(rng)))
    fill(model, rng)
    model.to(rng.choice([torch.float32, torch.bfloat16])).save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")


def is_steady(folder, model_class, prompt, logits):
    """Whether the library itself comes near in float32. RWKV-7's norm of a head may be of next to nothing."""
    model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        short = model(torch.tensor([prompt]), use_cache=False).logits[0].double()
    return (short.log_softmax(-1) - logits.log_softmax(-1)).abs().max() < TOLERANCE / 2


def write_case(folder, family, rng, save_case):
    """False: it is ill-conditioned, which Gated DeltaNets and DeltaNets never are."""
    shutil.rmtree(folder, ignore_errors=True)
    save_case(folder, family, rng)
    model = FAMILIES[family][0][1].from_pretrained(folder, dtype=torch.float64).double().eval()

    def logits_of(ids):
        with torch.no_grad(), exact():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    prompt = [rng.randrange(model.config.vocab_size) for _ in range(rng.choice(PROMPTS))]
    if family == "RWKV7" and not is_steady(folder, FAMILIES[family][0][1], prompt, logits_of(prompt)):
        return False
    case = expected(logits_of, prompt) | {"tolerance": TOLERANCE}
    (folder / "expected.json").write_text(json.dumps(case))
    return True


if __name__ == "__main__":
    fla_fixtures.use_plain_operations()
    rwkv_fixtures.use_plain_operations()
    sys.exit(run(__doc__, FAMILIES, save, write_case))
