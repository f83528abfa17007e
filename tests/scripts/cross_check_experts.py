# SPDX-License-Identifier: Apache-2.0
"""Random configurations of mixtures of experts: transformers in float64 against `regla check`.

    python tests/scripts/cross_check_experts.py --out FOLDER --regla build/dev/regla [--count 300] [--seed 1]

`make test-train` runs it, as cross_check_dense.py, whose rules hold here; a draw in which a router nearly
ties is drawn again. Of gpt-oss some have experts in MXFP4, of Qwen 3.5 stacked ones, as released files do.
"""

import json
import shutil
import sys

import make_experts_fixtures as fixtures
import torch
import transformers
from cross_check_dense import (ACTIVATIONS, TOKENIZER, WORST_F32, biased, choose, expected, random_rope,
                               random_window, run, shapes)
from cross_check_mamba import hybrid
from dense_reference import exact_logprobs, exact_model, read_config, single_logprobs
from golden_case import TOLERANCE


def activation(rng):
    return {"hidden_act": choose(rng, "silu", *ACTIVATIONS)}


def experts(rng, count="num_experts"):
    number = rng.choice([2, 3, 4, 8, 12])
    return {count: number, "num_experts_per_tok": rng.randint(1, min(number, 4))}


def qwen3_moe(rng):
    keys = shapes(rng)
    layers = keys["num_hidden_layers"]
    return {**keys, **experts(rng), **activation(rng), **biased(rng, "attention_bias"),
            "moe_intermediate_size": rng.choice([8, 17, 32]),
            "norm_topk_prob": rng.random() < 0.5, "decoder_sparse_step": rng.choice([1, 1, 2]),
            "mlp_only_layers": [i for i in range(layers) if rng.random() < 0.2],
            "use_sliding_window": rng.random() < 0.4, "sliding_window": random_window(rng),
            "rope_parameters": random_rope(rng, True)}


def whole_heads(keys):
    """Of classes without head_dim."""
    keys["hidden_size"] = keys["num_attention_heads"] * keys.pop("head_dim")
    return keys


def olmoe(rng):
    return {**whole_heads(shapes(rng)), **experts(rng), **activation(rng), **biased(rng, "attention_bias"),
            "norm_topk_prob": rng.random() < 0.5, "rope_parameters": random_rope(rng, True)}


def mixtral(rng):
    return {**shapes(rng), **experts(rng, "num_local_experts"), **activation(rng),
            "sliding_window": rng.choice([None, 7, 40]), "rope_parameters": random_rope(rng, True)}


def linear(rng):
    keys = shapes(rng)
    heads = rng.choice([1, 2, 3])
    kinds = [rng.choice(["linear_attention", "full_attention"]) for _ in range(keys["num_hidden_layers"])]
    return {**keys, **experts(rng), **biased(rng, "attention_bias"),
            "moe_intermediate_size": rng.choice([8, 17, 32]),
            "shared_expert_intermediate_size": rng.choice([4, 19, 32]), "layer_types": kinds,
            "linear_num_key_heads": heads, "linear_num_value_heads": heads * rng.choice([1, 2, 3]),
            "linear_key_head_dim": rng.choice([4, 8, 12]), "linear_value_head_dim": rng.choice([4, 8, 20]),
            "linear_conv_kernel_dim": rng.choice([2, 4]),
            "rope_parameters": {"rope_type": "default", "rope_theta": rng.choice([1e4, 100.0]),
                                "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}}


def qwen3_5_moe(rng):
    keys = linear(rng)
    keys.pop("intermediate_size")
    return keys


def qwen3_next(rng):
    keys = linear(rng)
    return {**keys, "norm_topk_prob": rng.random() < 0.5,
            "mlp_only_layers": [i for i in range(keys["num_hidden_layers"]) if rng.random() < 0.3]}


def granitemoehybrid(rng):
    keys = hybrid(rng)
    kinds = [rng.choice(["linear_attention", "full_attention"]) for _ in range(keys["num_hidden_layers"])]
    rope = {"position_embedding_type": "rope", "rope_parameters": random_rope(rng, True)}
    return {**keys, **experts(rng, "num_local_experts"), "layer_types": kinds,
            "shared_intermediate_size": rng.choice([12, 31]),
            **(rope if rng.random() < 0.5 else {"position_embedding_type": "nope"}),
            "embedding_multiplier": choose(rng, 12.0, 1.0), "logits_scaling": choose(rng, 8.0, 0.7),
            "residual_multiplier": choose(rng, 0.22, 1.0),
            "attention_multiplier": choose(rng, 0.1, 0.3)}


def lfm2_moe(rng):
    keys = whole_heads(shapes(rng))
    keys["norm_eps"] = keys.pop("rms_norm_eps")
    layers = keys["num_hidden_layers"]
    return {**keys, **experts(rng), "moe_intermediate_size": rng.choice([8, 17, 32]),
            "num_dense_layers": rng.randint(0, layers), "norm_topk_prob": rng.random() < 0.5,
            "use_expert_bias": rng.random() < 0.7, "routed_scaling_factor": choose(rng, 1.0, 2.5),
            "conv_bias": rng.random() < 0.3, "conv_L_cache": rng.choice([2, 3, 4]),
            "layer_types": [rng.choice(["conv", "full_attention"]) for _ in range(layers)],
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
    number = rng.choice([4, 6, 8, 12])
    groups = rng.choice([n for n in range(1, number // 2 + 1) if number % n == 0])
    top = rng.randint(1, groups)
    kinds = ["moe", *(rng.choice(["linear_attention", "full_attention", "mlp", "moe"]) for _ in range(2))]
    return {**keys, **biased(rng, "mlp_bias", "use_bias"), "head_dim": rng.choice([4, 8, 16]),
            "mlp_hidden_act": choose(rng, "relu2", "silu", "gelu"),
            "mamba_head_dim": rng.choice([4, 8, 12]), "time_step_min": 1e-30,
            "layer_norm_epsilon": choose(rng, 1e-5, 1e-3), "layers_block_type": kinds,
            "n_routed_experts": number, "n_group": groups, "topk_group": top,
            "num_experts_per_tok": rng.randint(1, min(4, number // groups * top)),
            "moe_intermediate_size": rng.choice([8, 17, 32]),
            "moe_shared_expert_intermediate_size": rng.choice([8, 19]),
            "moe_latent_size": rng.choice([None, 8, 20]), "norm_topk_prob": rng.random() < 0.6,
            "routed_scaling_factor": choose(rng, 1.0, 2.5)}


def gpt_oss(rng):
    keys = shapes(rng)
    kinds = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(keys["num_hidden_layers"])]
    if rng.random() < 0.4:
        keys |= {"hidden_size": rng.choice([32, 64, 96]), "intermediate_size": rng.choice([32, 64])}
    yarn = {**fixtures.YARN, "truncate": rng.random() < 0.3}
    return {**keys, **experts(rng, "num_local_experts"), "sliding_window": random_window(rng),
            "layer_types": kinds, "swiglu_limit": choose(rng, 7.0, 0.3),
            "rope_parameters": yarn if rng.random() < 0.7 else random_rope(rng, True)}


def gemma4(rng):
    """With experts or not."""
    keys = shapes(rng)
    layers, heads = rng.choice([1, 2, 3, 5, 6]), keys["num_attention_heads"]
    kinds = [rng.choice([fixtures.SLIDES, fixtures.FULL]) for _ in range(layers - 1)] + [fixtures.FULL]
    shared = [n for n in range(layers) if set(kinds[:layers - n]) == set(kinds)]
    full = random_rope(rng, False)
    if rng.random() < 0.6:
        full = {"rope_type": "proportional", "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0, 0.3]),
                "rope_theta": rng.choice([1e6, 100.0])}
    keys |= {"num_hidden_layers": layers, "layer_types": kinds, "num_kv_shared_layers": rng.choice(shared),
             "global_head_dim": rng.choice([4, 8, 20, 32]), "attention_k_eq_v": rng.random() < 0.5,
             "num_global_key_value_heads": rng.choice([None, 1, heads]),
             "attention_bias": rng.random() < 0.3, "use_double_wide_mlp": rng.random() < 0.5,
             "final_logit_softcapping": choose(rng, None, 30.0, 2.0),
             "hidden_activation": choose(rng, "gelu_pytorch_tanh", "gelu", "silu"),
             "sliding_window": rng.choice([1, 2, 7, 31, 64, 65, 100]),
             "vocab_size_per_layer_input": keys["vocab_size"] + rng.choice([0, 3]),
             "rope_parameters": {"full_attention": full, "sliding_attention": random_rope(rng, False)}}
    least = 4 if keys["num_kv_shared_layers"] else 0  # there transformers fails without
    keys["hidden_size_per_layer_input"] = rng.choice([least, 4, 7, 16])
    if rng.random() < 0.5:
        number = rng.choice([2, 3, 4, 8])
        keys |= {"enable_moe_block": True, "num_experts": number,
                 "top_k_experts": rng.randint(1, min(number, 4)),
                 "moe_intermediate_size": rng.choice([8, 17, 32])}
    return keys


def gemma4_with_tower(rng):
    text = {**gemma4(rng), "pad_token_id": 0}
    return {"tie_word_embeddings": text.pop("tie_word_embeddings"), "eos_token_id": text["eos_token_id"],
            "text_config": text, "vision_config": fixtures.TOWER, "audio_config": None}


FAMILIES = {"Qwen3Moe": qwen3_moe, "Olmoe": olmoe, "Mixtral": mixtral, "Qwen3_5Moe": qwen3_5_moe,
            "Qwen3Next": qwen3_next, "GraniteMoeHybrid": granitemoehybrid, "Lfm2Moe": lfm2_moe,
            "NemotronH": nemotron_h, "GptOss": gpt_oss, "Gemma4": gemma4,
            "Gemma4ForConditionalGeneration": gemma4_with_tower}


def in_blocks(model, family, rng):
    """What fixtures.in_blocks returns, of some models whose sizes MXFP4 allows."""
    whole = family == "GptOss" and model.config.hidden_size % 32 + model.config.intermediate_size % 32 == 0
    return fixtures.in_blocks(model, rng.randrange(1 << 30)) if whole and rng.random() < 0.8 else {}


def save(folder, family, rng):
    model = fixtures.model_of(family, FAMILIES[family](rng))
    fixtures.fill(model, family, rng.randrange(1 << 30), rng.choice([0.6, 1.0]))
    blocks = in_blocks(model, family, rng)
    model.to(rng.choice([torch.float32, torch.bfloat16])).save_pretrained(folder)
    if blocks:
        fixtures.with_blocks(folder, blocks)
    if family == "Qwen3_5Moe" and rng.random() < 0.5:
        fixtures.stack(folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    return {name: tensor.float() for name, tensor in model.state_dict().items()}


def write_case(folder, family, rng, save_case):
    """Returns whether the case is well conditioned, its routers included."""
    shutil.rmtree(folder, ignore_errors=True)
    tensors = save_case(folder, family, rng)
    config = read_config(folder)
    vocabulary = config.get_text_config().vocab_size
    prompt = [rng.randrange(vocabulary) for _ in range(rng.choice([1, 2, 40, 65, 100]))]
    model = exact_model(config, tensors)
    error = (single_logprobs(config, tensors, prompt) - exact_logprobs(model, prompt)).abs().max()
    if not error < WORST_F32:
        return False
    case = expected(model, prompt, max(TOLERANCE, 20 * float(error)))
    if fixtures.nearest(model, prompt + case["greedy"]) < fixtures.NEAREST:
        return False
    (folder / "expected.json").write_text(json.dumps(case))
    return True


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(run(__doc__, FAMILIES, save, write_case))
