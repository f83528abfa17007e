# SPDX-License-Identifier: Apache-2.0
"""The golden cases of the native family that cross_check.py writes by train/'s models: those of
combinations that no other case has."""

TOKENIZER_IDS = 275  # of tests/golden/alibi/tokenizer.json

# Of these cases what a paper fixes is as in a new model: PermuteFormer's decay, cosFormer's angle.
AS_NEW = {"permuteformer": ".g_proj.", "cosformer": ".theta"}
FLASH = {"num_heads": 1, "qk_projection": "shared", "value_activation": "silu"}
# Combinations that no other golden case has, as (shapes, config, mixers by layer).
GOLDEN = {
    "spe": (
        {"head_dim": 6, "value_dim": 9, "bias": True},
        {"num_attention_heads": 2, "norm_type": "rmsnorm"},
        {
            "kind": "linear",
            "feature_map": "elu+1",
            "sum_norm": True,
            "position": {"type": "spe"},
            "output_norm": "rmsnorm",
        },
        {
            "kind": "linear",
            "feature_map": "exp",
            "gate": "refined",
            "position": {"type": "spe", "gated": False},
            "output_norm": "simple_rmsnorm",
        },
    ),
    "relu_gated_rmsnorm": (
        {"head_dim": 6, "value_dim": 10, "glu": True},
        {"num_attention_heads": 2, "norm_type": "simple_rmsnorm", "norm_eps": 1e-8},
        {
            "kind": "softmax",
            "activation": "relu",
            "window": "block",
            "window_size": 16,
            "position": {"type": "lrpe_orthogonal", "basis": "householder"},
            "output_norm": "gated_rmsnorm",
            "output_norm_scope": "hidden",
        },
        {
            "kind": "linear",
            "feature_map": "elu",
            "output_norm": "gated_rmsnorm",
            "output_gate": "swish",
        },
    ),
    "lrpe1_gla_gate_scaled_hidden_norm": (
        {"head_dim": 5, "value_dim": 7, "glu": True, "bias": True},
        {"num_attention_heads": 3, "hidden_act": "relu", "parallel_residual": True},
        {
            "kind": "linear",
            "feature_map": "hedgehog",
            "gate": "gla",
            "gate_logit_normalizer": 3.5,
            "query_scale": "exp_variance",
            "position": {"type": "lrpe_unitary", "basis": "householder"},
            "output_norm": "layernorm",
            "output_norm_scope": "hidden",
            "output_gate": "swish",
        },
    ),
    "sum_norm_at_its_floor": (
        {"head_dim": 2, "value_dim": 17},
        {"num_attention_heads": 2, "position_embedding": "sinusoidal"},
        {
            "kind": "linear",
            "feature_map": "relu",
            "sum_norm": True,
            "query_scale": "sqrt_dim",
            "output_norm": "none",
        },
    ),
    "sliding_t5": (
        {"head_dim": 6, "value_dim": 3},
        {"num_attention_heads": 5, "tie_word_embeddings": True, "norm_type": "rmsnorm"},
        {
            "kind": "softmax",
            "window": "sliding",
            "window_size": 20,
            "position": {"type": "t5"},
            "output_norm": "rmsnorm",
        },
    ),
    "block_kerple_dpfp": (
        {"head_dim": 4, "value_dim": 9},
        {"num_attention_heads": 1, "embedding_norm": True, "norm_type": "simple_rmsnorm"},
        {
            "kind": "softmax",
            "window": "block",
            "window_size": 13,
            "position": {"type": "kerple_3para_log"},
            "output_gate": "swish",
        },
        {
            "kind": "linear",
            "feature_map": "dpfp",
            "dpfp_nu": 3,
            "gate": "fast_decay",
            "position": {"type": "lrpe_permutation", "basis": "odd_even"},
            "output_norm": "rmsnorm",
        },
    ),
    "transformer_ls": (
        {"head_dim": 6, "value_dim": 6, "bias": True},
        {"num_attention_heads": 3, "position_embedding": "sinusoidal", "embedding_scale": 4.2},
        {
            "kind": "softmax",
            "window": "long_short",
            "window_size": 24,
            "segment_length": 16,
            "segment_rank": 1,
        },
    ),
    "long_short_rank3_alibi": (
        {"head_dim": 7, "value_dim": 7},
        {"num_attention_heads": 2, "parallel_residual": True},
        {
            "kind": "softmax",
            "window": "long_short",
            "window_size": 5,
            "segment_length": 4,
            "segment_rank": 3,
            "output_norm": "rmsnorm",
            "output_gate": "swish",
        },
        {"kind": "softmax", "position": {"type": "alibi"}},
    ),
    # Its keys lie in pages, in f16 by default as the weights are bf16: KV_TOLERANCE.
    "flash_quad": (
        {"head_dim": 8, "value_dim": 36, "bias": True},
        {"num_attention_heads": 3, "intermediate_size": 0},
        {
            "kind": "softmax",
            "activation": "relu2",
            "score_divisor": 4,
            "position": {"type": "rope", "distance_bias": 40},
            "output_gate": "swish",
            **FLASH,
        },
    ),
    "hedgehog": (
        {"head_dim": 12, "value_dim": 12, "bias": True},
        {"num_attention_heads": 4, "hidden_size": 48, "intermediate_size": 96},
        {
            "kind": "linear",
            "feature_map": "hedgehog",
            "position": {"type": "rope", "stage": "before"},
            "output_norm": "rmsnorm",
        },
        {"kind": "linear", "feature_map": "hedgehog", "sum_norm": True},
    ),
    "permuteformer": (
        {"head_dim": 6, "value_dim": 9, "bias": True},
        {"num_attention_heads": 3},
        {
            "kind": "linear",
            "feature_map": "elu+1",
            "gate": "scalar",
            "sum_norm": True,
            "position": {"type": "lrpe_permutation"},
        },
    ),
    "cosformer": (
        {"head_dim": 7, "value_dim": 5, "bias": True},
        {"num_attention_heads": 3, "max_position_embeddings": 128},
        {
            "kind": "linear",
            "feature_map": "relu",
            "sum_norm": True,
            "position": {"type": "lrpe_unitary"},
        },
    ),
    "rfa_unit_length": (
        {"head_dim": 6, "value_dim": 5, "features": 64},
        {"num_attention_heads": 3},
        {
            "kind": "linear",
            "feature_map": "unit_cos_sin",
            "gate": "scalar",
            "sum_norm": True,
        },
        {
            "kind": "linear",
            "feature_map": "unit_cos_sin",
            "position": {"type": "rope", "stage": "before"},
            "output_norm": "rmsnorm",
        },
    ),
}


# RWKV-7's update, by itself and behind what changes keys.
GOLDEN["gate_rwkv7"] = (
    {"head_dim": 12, "value_dim": 9, "bias": True},
    {"num_attention_heads": 2, "norm_type": "rmsnorm"},
    {"kind": "linear", "gate": "rwkv7", "output_norm": "layernorm"},
    {
        "kind": "linear",
        "gate": "rwkv7",
        "conv": {"width": 3, "activation": "silu"},
        "qk_norm": {"type": "l2"},
        "position": {"type": "rope", "stage": "after"},
        "output_gate": "swish",
    },
)


# FLASH and a block of TransNormer T1 and T2 with both attentions (table 12).
GOLDEN["flash"] = (
    {"head_dim": 8, "value_dim": 36, "bias": True},
    {"num_attention_heads": 3, "intermediate_size": 0, "layer_types": ["flash", "flash"]},
    {
        "quad": {
            "kind": "softmax",
            "activation": "relu2",
            "score_divisor": 4,
            "window": "block",
            "window_size": 20,
            "position": {"type": "rope", "distance_bias": 20},
            **FLASH,
        },
        "linear": {
            "kind": "linear",
            "chunk_size": 20,
            "position": {"type": "rope", "stage": "before"},
            **FLASH,
        },
        "flash": {
            "kind": "pair",
            "parts": ["quad", "linear"],
            "combine": "add",
            "output_gate": "swish",
        },
    },
)
GOLDEN["parallel_blocks"] = (
    {"head_dim": 6, "value_dim": 7, "glu": True},
    {"num_attention_heads": 3, "layer_types": ["one", "two"], "norm_type": "simple_rmsnorm"},
    {
        "block": {
            "kind": "softmax",
            "activation": "relu",
            "window": "block",
            "window_size": 13,
            "position": {"type": "lrpe_orthogonal", "basis": "householder"},
            "output_norm": "simple_rmsnorm",
            "output_norm_scope": "hidden",
        },
        "norm": {
            "kind": "linear",
            "feature_map": "elu",
            "position": {"type": "lrpe_orthogonal", "basis": "householder"},
            "output_norm": "rmsnorm",
            "output_norm_scope": "hidden",
        },
        "gated": {"kind": "linear", "feature_map": "exp", "gate": "refined", "num_heads": 2,
                  "output_norm": "rmsnorm"},
        "softmax": {"kind": "softmax", "window": "sliding", "window_size": 20,
                    "position": {"type": "alibi"}},
        "one": {"kind": "pair", "parts": ["block", "norm"], "combine": "concatenate"},
        "two": {"kind": "pair", "parts": ["gated", "softmax"], "combine": "concatenate",
                "output_gate": "swish"},
    },
)


def golden_config(name):
    shapes, changes, *mixers = GOLDEN[name]
    if "layer_types" in changes:  # then the mixers have names
        (mixers,) = mixers
        names = list(mixers)
    else:
        names = "abc"[: len(mixers)]
        mixers = dict(zip(names, mixers))
    return {
        "model_type": "regla",
        "vocab_size": TOKENIZER_IDS,
        "hidden_size": 18,
        "num_hidden_layers": 2,
        "intermediate_size": 23,
        "norm_type": "layernorm",
        "norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "layer_types": [names[0], names[-1]],
        "mixers": mixers,
        **changes,
    }, shapes
