# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the families with Mamba-2: transformers in float64 against `regla check`.

    python tests/scripts/cross_check_mamba.py --out FOLDER --regla build/dev/regla [--count 300] [--seed 1]

`make test-train` runs it, as cross_check_dense.py, whose rules hold here.
"""

import copy
import shutil
import sys

import torch
import transformers
from cross_check_dense import TOKENIZER, biased, choose, random_rope, run, shapes
from mamba_noise import fill_mamba


def divisor(rng, number):
    return rng.choice([n for n in range(1, number + 1) if number % n == 0])


def mixer_sizes(rng):
    """Heads, groups, a head's size and its state's."""
    heads = rng.choice([1, 2, 3, 4, 6, 8])
    return heads, divisor(rng, heads), rng.choice([4, 8, 12, 16, 20, 33]), rng.choice([1, 3, 8, 16, 31, 64])


def limits(rng):
    return choose(rng, [0.0, float("inf")], [0.0, 0.4], [0.3, float("inf")], [0.2, 0.7])


def mamba_keys(rng, expand=None):
    heads, groups, size, state = mixer_sizes(rng)
    expand = expand or rng.choice([1, 2, 3])
    while heads * size % expand or heads * size // expand < 8:
        heads, groups, size, state = mixer_sizes(rng)
    return heads * size // expand, {
        "mamba_n_heads": heads, "mamba_n_groups": groups, "mamba_d_head": size,
        "mamba_d_state": state, "mamba_d_conv": rng.choice([2, 3, 4, 4, 5, 8]), "mamba_expand": expand,
        "mamba_conv_bias": rng.random() < 0.7, "mamba_proj_bias": rng.random() < 0.4,
        "mamba_chunk_size": rng.choice([4, 16, 256]), "time_step_limit": limits(rng)}


def hybrid(rng):
    """Sizes that attention and Mamba-2 share."""
    hidden, keys = mamba_keys(rng)
    heads = rng.choice([n for n in range(1, 7) if hidden % n == 0 and hidden // n % 4 == 0] or [0])
    while not heads:
        hidden, keys = mamba_keys(rng)
        heads = rng.choice([n for n in range(1, 7) if hidden % n == 0 and hidden // n % 4 == 0] or [0])
    common = shapes(rng)
    common.pop("head_dim")
    return {**common, **keys, "hidden_size": hidden, "num_attention_heads": heads,
            "num_key_value_heads": divisor(rng, heads), **biased(rng, "attention_bias")}


def mamba2(rng):
    expand = rng.choice([1, 2, 3])
    hidden, keys = mamba_keys(rng, expand)
    common = shapes(rng)
    return {**{key: common[key] for key in ("vocab_size", "num_hidden_layers", "tie_word_embeddings",
                                            "bos_token_id", "eos_token_id", "pad_token_id")},
            "hidden_size": hidden, "num_heads": keys["mamba_n_heads"], "head_dim": keys["mamba_d_head"],
            "state_size": keys["mamba_d_state"], "n_groups": keys["mamba_n_groups"], "expand": expand,
            "conv_kernel": keys["mamba_d_conv"], "use_conv_bias": keys["mamba_conv_bias"],
            "use_bias": keys["mamba_proj_bias"], "time_step_limit": keys["time_step_limit"],
            "chunk_size": keys["mamba_chunk_size"], "layer_norm_epsilon": choose(rng, 1e-5, 1e-6, 1e-3)}


def bamba(rng):
    keys = hybrid(rng)
    layers = [i for i in range(keys["num_hidden_layers"]) if rng.random() < 0.5]
    return {**keys, **biased(rng, "mlp_bias"), "attn_layer_indices": layers or None,
            "rope_parameters": random_rope(rng, True)}


def granitemoehybrid(rng):
    keys = hybrid(rng)
    keys["shared_intermediate_size"] = keys.pop("intermediate_size")
    kinds = [rng.choice(["linear_attention", "full_attention"]) for _ in range(keys["num_hidden_layers"])]
    rope = {"position_embedding_type": "rope", "rope_parameters": random_rope(rng, True)}
    return {**keys, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": kinds,
            **(rope if rng.random() < 0.5 else {"position_embedding_type": rng.choice([None, "nope"])}),
            "embedding_multiplier": choose(rng, 12.0, 1.0, 3), "logits_scaling": choose(rng, 8.0, 1, 0.7),
            "residual_multiplier": choose(rng, 0.22, 1.0, 1.4),
            "attention_multiplier": choose(rng, 0.015625, 0.3, 1.0)}


def falcon_h1(rng):
    keys = hybrid(rng)
    inner = keys["mamba_n_heads"] * keys["mamba_d_head"]
    if rng.random() < 0.5:  # another width than hidden_size says
        keys["mamba_expand"] = 2
    keys["mamba_d_ssm"] = inner
    numbers = [1.0, 0.25, 0.6, 1.1, 2.0]
    for key in ("lm_head", "embedding", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"):
        keys[f"{key}_multiplier"] = choose(rng, 1.0, *numbers)
    if rng.random() < 0.7:
        keys["ssm_multipliers"] = [rng.choice(numbers) for _ in range(5)]
    if rng.random() < 0.7:
        keys["mlp_multipliers"] = [rng.choice(numbers) for _ in range(2)]
    return {**keys, **biased(rng, "mlp_bias", "projectors_bias", "mamba_rms_norm",
                             "mamba_norm_before_gate"),
            "rope_parameters": random_rope(rng, True)}


def nemotron_h(rng):
    keys = hybrid(rng)
    for ours in ("mamba_d_head", "mamba_expand", "mamba_proj_bias", "rms_norm_eps", "time_step_limit",
                 "num_hidden_layers"):
        keys.pop(ours)
    for theirs, ours in (("mamba_num_heads", "mamba_n_heads"), ("ssm_state_size", "mamba_d_state"),
                         ("n_groups", "mamba_n_groups"), ("conv_kernel", "mamba_d_conv"),
                         ("chunk_size", "mamba_chunk_size"), ("use_conv_bias", "mamba_conv_bias")):
        keys[theirs] = keys.pop(ours)
    layers = rng.choice([1, 2, 3, 5])
    # the class takes it for the least step, which the checkpoints' time_step_limit does not have
    return {**keys, **biased(rng, "mlp_bias", "use_bias"), "head_dim": rng.choice([4, 8, 12, 16]),
            "mamba_head_dim": rng.choice([4, 8, 12, 16, 20]), "time_step_min": 1e-30,
            "mlp_hidden_act": choose(rng, "relu2", "silu", "gelu"),
            "layer_norm_epsilon": choose(rng, 1e-5, 1e-6, 1e-3),
            "layers_block_type": [rng.choice(["linear_attention", "full_attention", "mlp"])
                                  for _ in range(layers)]}


FAMILIES = {"Mamba2": mamba2, "Bamba": bamba, "GraniteMoeHybrid": granitemoehybrid, "FalconH1": falcon_h1,
            "NemotronH": nemotron_h}


def save(folder, family, rng):
    keys = FAMILIES[family](rng)
    config = getattr(transformers, family + "Config")(**copy.deepcopy(keys))
    model = getattr(transformers, family + "ForCausalLM")(config)
    fill_mamba(model, rng.randrange(1 << 30), rng.choice([0.6, 1.0, 1.3]))
    model.to(rng.choice([torch.float32, torch.bfloat16, torch.float16])).save_pretrained(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")


if __name__ == "__main__":
    sys.exit(run(__doc__, FAMILIES, save))
