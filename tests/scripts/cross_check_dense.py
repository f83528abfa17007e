# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the families without Mamba-2: transformers in float64 against `regla check`.

    python tests/scripts/cross_check_dense.py --out FOLDER --regla build/dev/regla [--count 300] [--seed 1]

`make test-train` runs it, with what tests/dense/requirements.txt names. Every configuration becomes a folder
that transformers itself saved, with an expected.json as tests/golden has them. Its tolerance is the
larger of 2e-4 and 20 times the error that transformers itself makes in float32 on the same case; a
case where that is above WORST_F32 says nothing and is drawn again. Folders that differ stay.
"""

import argparse
import copy
import json
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import make_delta_fixtures
import torch
import transformers
from dense_reference import exact_logprobs, exact_model, read_config, read_tensors, single_logprobs
from golden_case import fill_with_noise

VERSION = "5.24.0"
TOKENIZER = Path(__file__).resolve().parents[1] / "golden/gpt_neox/tokenizer.json"
TOKENIZER_IDS = 275
GREEDY_TOKENS = 3
TOLERANCE = 2e-4
WORST_F32 = 1e-3
ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "relu"]


def choose(rng, usual, *others):
    """The usual value in half of the cases."""
    return usual if rng.random() < 0.5 else rng.choice(others)


def random_rope(rng, same_in_all):
    kind = rng.choice(["default", "default", "linear", "llama3", "yarn"])
    rope = {"rope_type": kind, "rope_theta": rng.choice([1e4, 5e5, 1e6, 100.0, 12345.5])}
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 4.0, 8.0, 1.5])
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = rng.choice([16, 32, 64, 200])
    if kind == "llama3":
        rope |= {"low_freq_factor": rng.choice([1.0, 2.0]), "high_freq_factor": rng.choice([3.0, 4.0])}
    if kind == "yarn":
        if rng.random() < 0.3:
            rope["attention_factor"] = rng.choice([1.0, 0.8, 1.3])
        elif rng.random() < 0.3:
            rope |= {"mscale": rng.choice([0.7, 1.0]), "mscale_all_dim": rng.choice([0.8, 1.0])}
        if rng.random() < 0.3:
            rope |= {"beta_fast": rng.choice([16.0, 8.0]), "beta_slow": rng.choice([2.0, 1.0])}
        # transformers reads `truncate` beside the kinds of layers, not in them.
        if same_in_all and rng.random() < 0.3:
            rope["truncate"] = False
    return rope


def shapes(rng):
    heads = rng.choice([1, 2, 3, 4, 6])
    kv_heads = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    head_dim = rng.choice([4, 8, 12, 16, 20, 24, 32])
    hidden = heads * rng.choice([4, 6, 10, 12, 16, 18]) if rng.random() < 0.5 else heads * head_dim
    return {
        "vocab_size": TOKENIZER_IDS + rng.choice([0, 1, 2, 5, 6, 37]),
        "hidden_size": hidden,
        "head_dim": head_dim,
        "intermediate_size": rng.choice([16, 31, 40, 64, 77]),
        "num_hidden_layers": rng.choice([1, 2, 3, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": choose(rng, 1e-6, 1e-5, 1e-3, 0.1),
        "bos_token_id": 0,
        "eos_token_id": rng.choice([0, 1, [1, 2]]),
        "pad_token_id": None,
        "max_position_embeddings": 512,
    }


def biased(rng, *keys):
    return {key: rng.random() < 0.4 for key in keys}


def random_kinds(rng, layers):
    return [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]


def random_window(rng):
    return rng.choice([1, 2, 7, 16, 31, 63, 64, 65, 100, 500])


def no_head_dim(keys):
    """For classes where it follows from the others."""
    dim = keys.pop("head_dim")
    keys["hidden_size"] = keys["num_attention_heads"] * dim
    return keys


def llama(rng, keys):
    return {**keys, **biased(rng, "attention_bias", "mlp_bias"), "rope_parameters": random_rope(rng, True)}


def with_windows(rng, keys):
    """Qwen: windows from a layer on, or kinds of layers by name."""
    keys |= {"rope_parameters": random_rope(rng, True), "use_sliding_window": rng.random() < 0.7,
             "sliding_window": random_window(rng), "max_window_layers": rng.choice([0, 1, 2, 9])}
    if keys["use_sliding_window"] and rng.random() < 0.3:
        keys["layer_types"] = random_kinds(rng, keys["num_hidden_layers"])
    return keys


def qwen2(rng, keys):
    return with_windows(rng, keys)


def qwen3(rng, keys):
    return with_windows(rng, {**keys, **biased(rng, "attention_bias")})


def mistral(rng, keys):
    return {**keys, "rope_parameters": random_rope(rng, True),
            "sliding_window": choose(rng, None, 1, 7, 31, 64, 65)}


def smollm3(rng, keys):
    keys |= {**biased(rng, "attention_bias", "mlp_bias"), "rope_parameters": random_rope(rng, True),
             "use_sliding_window": rng.random() < 0.4, "sliding_window": random_window(rng)}
    if rng.random() < 0.5:
        keys["no_rope_layers"] = [rng.choice([0, 1]) for _ in range(keys["num_hidden_layers"])]
    else:
        keys["no_rope_layer_interval"] = rng.choice([1, 2, 3, 4])
    return keys


def granite(rng, keys):
    return {**no_head_dim(keys), **biased(rng, "attention_bias", "mlp_bias"),
            "rope_parameters": random_rope(rng, True),
            "embedding_multiplier": choose(rng, 12.0, 1.0, 3), "logits_scaling": choose(rng, 8.0, 1, 0.7),
            "residual_multiplier": choose(rng, 0.22, 1.0, 1.4),
            "attention_multiplier": choose(rng, 0.015625, 0.3, 1.0)}


def olmo2(rng, keys):
    return {**no_head_dim(keys), **biased(rng, "attention_bias"), "rope_parameters": random_rope(rng, True)}


def olmo3(rng, keys):
    keys = {**no_head_dim(keys), **biased(rng, "attention_bias"), "sliding_window": random_window(rng),
            "rope_parameters": {"full_attention": random_rope(rng, False),
                                "sliding_attention": random_rope(rng, False)}}
    if rng.random() < 0.6:
        keys["layer_types"] = random_kinds(rng, keys["num_hidden_layers"])
    return keys


def gemma(rng, keys):
    keys |= {**biased(rng, "attention_bias"), "hidden_activation": choose(rng, "gelu_pytorch_tanh", "gelu"),
             "sliding_window": random_window(rng), "query_pre_attn_scalar": rng.choice([4, 16, 24, 100]),
             "attn_logit_softcapping": choose(rng, None, 50.0, 1.5),
             "final_logit_softcapping": choose(rng, None, 30.0, 2.0)}
    if rng.random() < 0.6:
        keys["layer_types"] = random_kinds(rng, keys["num_hidden_layers"])
    return keys


def gemma2(rng, keys):
    return {**gemma(rng, keys), "rope_parameters": random_rope(rng, True)}


def gemma3_text(rng, keys):
    return {**gemma(rng, keys), "rope_parameters": {"full_attention": random_rope(rng, False),
                                                    "sliding_attention": random_rope(rng, False)}}


def phi3(rng, keys):
    """Where the original length is less than the longest, both lists are the same: transformers would
    take the short one for a short prompt."""
    keys = no_head_dim(keys)
    part = rng.choice([1.0, 0.5, 0.75])
    size = keys["hidden_size"] // keys["num_attention_heads"]
    original, turned = rng.choice([16, 512]), int(size * part) // 2
    rope = {"rope_type": "default", "rope_theta": rng.choice([1e4, 100.0])}
    if rng.random() < 0.7 and int(size * part) % 2 == 0:
        both = [[rng.uniform(0.8, 8) for _ in range(turned)] for _ in range(2)]
        rope |= {"rope_type": "longrope", "long_factor": both[0], "short_factor": both[original > 16],
                 "original_max_position_embeddings": original}
        rope |= rng.choice([{}, {}, {"factor": 3.0}, {"attention_factor": 0.8}])
    return {**keys, "original_max_position_embeddings": original,
            "rope_parameters": {**rope, "partial_rotary_factor": part},
            "sliding_window": choose(rng, None, 1, 7, 31, 64, 65)}


def delta(rng, keys):
    """Sizes of Gated DeltaNet, and which layers have it: of both kinds one at least."""
    heads, layers = rng.choice([1, 2, 3]), max(2, keys["num_hidden_layers"])
    keys |= {"num_hidden_layers": layers, "linear_num_key_heads": heads,
             "linear_num_value_heads": heads * rng.choice([1, 1, 2, 3]),
             "linear_key_head_dim": rng.choice([4, 8, 12, 15, 16, 33]),
             "linear_value_head_dim": rng.choice([4, 8, 12, 15, 16, 33]),
             "linear_conv_kernel_dim": choose(rng, 4, 2, 3, 5, 8)}
    kinds = ["linear_attention", "full_attention"]
    keys["layer_types"] = [*kinds, *(rng.choice(kinds) for _ in range(layers - 2))]
    rng.shuffle(keys["layer_types"])
    return keys


def qwen3_5(rng, keys):
    keys = {**delta(rng, keys), **biased(rng, "attention_bias"), "rope_parameters": random_rope(rng, True)}
    keys["rope_parameters"] |= {"partial_rotary_factor": choose(rng, 0.25, 0.5, 1.0, 0.35)}
    if rng.random() < 0.5:
        keys["rope_parameters"] |= {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    if keys["rope_parameters"]["rope_type"] == "yarn":  # int(head_dim * it) is even there
        keys["rope_parameters"] |= {"partial_rotary_factor": 0.5, "truncate": True}
    if rng.random() < 0.3:
        del keys["layer_types"]
        keys |= {"full_attention_interval": rng.choice([1, 2, 3])}
    return keys


def olmo_hybrid(rng, keys):
    keys = {**delta(rng, no_head_dim(keys)), **biased(rng, "attention_bias"),
            "rope_parameters": random_rope(rng, True), "linear_allow_neg_eigval": rng.random() < 0.6}
    if rng.random() < 0.4:
        keys["rope_parameters"] = {"rope_type": "default", "rope_theta": None}
    return keys


def lfm(rng, keys, *kinds):
    keys |= {**biased(rng, "conv_bias"), "norm_eps": keys.pop("rms_norm_eps"),
             "conv_L_cache": rng.choice([2, 3, 4, 5, 6, 7, 8])}
    if rng.random() < 0.8:
        keys["layer_types"] = [rng.choice(kinds) for _ in range(keys["num_hidden_layers"])]
    return keys


def lfm2(rng, keys):
    keys = lfm(rng, no_head_dim(keys), "conv", "conv", "full_attention")
    if "layer_types" not in keys and rng.random() < 0.5:
        keys["full_attn_idxs"] = rng.sample(range(keys["num_hidden_layers"]), 1)
    return {**keys, "rope_parameters": random_rope(rng, True),
            "block_auto_adjust_ff_dim": rng.random() < 0.6,
            "block_multiple_of": rng.choice([1, 8, 16, 10]),
            "block_ffn_dim_multiplier": choose(rng, 1.0, 1, 0.7, 1.3)}


def lfm3(rng, keys):
    keys = lfm(rng, keys, "conv", "full_attention", "sliding_attention")
    keys |= {**biased(rng, "attention_bias"), "sliding_window": random_window(rng),
             "use_attention_gate": rng.random() < 0.7, "use_sandwich_norm": rng.random() < 0.7}
    if rng.random() < 0.6:
        keys["rope_parameters"] = {"full_attention": random_rope(rng, False),
                                   "sliding_attention": random_rope(rng, False)}
    return keys


FAMILIES = {"Llama": llama, "Qwen2": qwen2, "Qwen3": qwen3, "Mistral": mistral, "SmolLM3": smollm3,
            "Granite": granite, "Olmo2": olmo2, "Olmo3": olmo3, "Gemma2": gemma2, "Gemma3": gemma3_text,
            "Phi3": phi3, "Lfm2": lfm2, "Lfm3": lfm3, "Qwen3_5": qwen3_5, "OlmoHybrid": olmo_hybrid}
DELTA = ("Qwen3_5", "OlmoHybrid")
TEXT_CONFIGS = ("Gemma3", "Qwen3_5")


def random_keys(rng, family):
    keys = shapes(rng)
    if family in DELTA:
        keys["hidden_act"] = "silu"
    elif not family.startswith("Gemma"):
        keys["hidden_act"] = choose(rng, "silu", *ACTIVATIONS)
    elif keys["hidden_size"] % keys["num_attention_heads"]:
        raise AssertionError("shapes: hidden_size is a multiple of the heads")
    return FAMILIES[family](rng, keys)


def save(folder, family, rng):
    keys = random_keys(rng, family)
    of_text = family + ("TextConfig" if family in TEXT_CONFIGS else "Config")
    config = getattr(transformers, of_text)(**copy.deepcopy(keys))
    model = getattr(transformers, family + "ForCausalLM")(config)
    norm = 0.0 if family.startswith("Gemma") else 1.0
    seed, scale = rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3])
    if family in DELTA:
        make_delta_fixtures.fill(model, seed, scale, family == "Qwen3_5")
    else:
        fill_with_noise(model, seed, scale, norm)
    model.to(rng.choice([torch.float32, torch.bfloat16, torch.float16])).save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")


def expected(model, prompt, tolerance):
    ids, greedy, margins = list(prompt), [], []
    for _ in range(GREEDY_TOKENS):
        best = exact_logprobs(model, ids)[-1].topk(2)
        ids.append(int(best.indices[0]))
        greedy.append(ids[-1])
        margins.append(float(best.values[0] - best.values[1]))
    logprobs = exact_logprobs(model, prompt)
    top = logprobs.topk(5)
    return {
        "prompt": prompt,
        "prompt_logprobs": [float(logprobs[i, t]) for i, t in enumerate(prompt[1:])],
        "top5": [[[int(t), float(p)] for t, p in zip(ids, values)]
                 for ids, values in zip(top.indices, top.values)],
        "greedy": greedy,
        "greedy_margin": margins,
        "tolerance": tolerance,
    }


def write_case(folder, family, rng, save_case):
    """Returns whether the case is well conditioned."""
    shutil.rmtree(folder, ignore_errors=True)
    save_case(folder, family, rng)
    config, tensors = read_config(folder), read_tensors(folder)
    prompt = [rng.randrange(config.vocab_size) for _ in range(rng.choice([1, 2, 40, 64, 65, 100, 130]))]
    model = exact_model(config, tensors)
    error = (single_logprobs(config, tensors, prompt) - exact_logprobs(model, prompt)).abs().max()
    if not error < WORST_F32:
        return False
    case = expected(model, prompt, max(TOLERANCE, 20 * float(error)))
    (folder / "expected.json").write_text(json.dumps(case))
    return True


def check(regla, folder, reproducibility):
    # The tolerance is of f32 arithmetic: keys and values rounded to f16 would exceed it.
    command = [regla, "check", str(folder), "--kv", "f32", *["--reproducibility"] * reproducibility]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode == 0, (result.stdout + result.stderr).strip()


def run(description, families, save_case, write=write_case):
    """Its exit code. write: a function as write_case."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--regla", required=True)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", nargs="*", default=list(families), choices=families)
    parser.add_argument("--reproducibility", type=int, default=4, help="every so many-th case")
    args = parser.parse_args()
    if transformers.__version__ != VERSION:
        raise SystemExit(f"transformers: expected {VERSION}, got {transformers.__version__}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ill, failures = 0, []
    for i in range(args.count):
        family = args.families[i % len(args.families)]
        folder = args.out / f"{family.lower()}_{args.seed}_{i:04}"
        rng = random.Random(args.seed * 100003 + i)
        while not write(folder, family, rng, save_case):
            ill += 1
        agrees, text = check(args.regla, folder, i % args.reproducibility == 0)
        if agrees:
            shutil.rmtree(folder)
            continue
        failures.append(folder.name)
        print(f"{folder}: {text}\n{(folder / 'config.json').read_text()}", flush=True)
    print(f"{ill} drawn again, being ill-conditioned", *failures)
    print(f"seed {args.seed}: {args.count} configurations of {', '.join(args.families)}: "
          f"{len(failures)} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(run(__doc__, FAMILIES, save))
