# SPDX-License-Identifier: Apache-2.0
"""Writes the presets: one configuration per system of model-format.md's table, in two depths, and
models that many people run.

Run from anywhere, `python3 models/presets/make_presets.py`; `--check` only says whether the files
are what this script writes. A preset is a config.json and the object `shapes`, which says what a
checkpoint's tensors would. <system>-160m has Pythia-160m's shape, <system>-6l half its layers, and
<system>-6x512 the shape of the language models of the papers LRPE and TransNormer.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPTHS = {"160m": 12, "6l": 6}
HEADS, HEAD_DIM = 12, 64
SIZES = {"hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS, "intermediate_size": 3072,
         "vocab_size": 50304, "max_position_embeddings": 2048}
# LRPE's appendix E, TransNormer's table 13; TransNormer's table 4 says 156.00 M parameters, which
# means that the embeddings are tied. Both papers train with fairseq, which multiplies embeddings by
# the root of the width, whatever the positions.
SMALL = {"hidden_size": 8 * HEAD_DIM, "num_attention_heads": 8, "intermediate_size": 2048,
         "vocab_size": 267744, "max_position_embeddings": 512}
SMALL_CONFIG = {"hidden_act": "relu", "tie_word_embeddings": True,
                "embedding_scale": SMALL["hidden_size"] ** 0.5}

ROPE = {"type": "rope", "stage": "before"}
RMS = {"output_norm": "rmsnorm"}
SMALL_RMS = {"output_norm": "rmsnorm", "output_norm_eps": 1e-10}
SUM = {"sum_norm": True}
SINUSOIDAL = {"position_embedding": "sinusoidal"}  # with embeddings times sqrt(D)
TRANSNORMER = {"output_norm": "simple_rmsnorm", "output_norm_scope": "hidden"}
RELA = {"output_norm": "gated_rmsnorm", "output_norm_scope": "hidden"}


def softmax(position=None, **more):
    return {"kind": "softmax", **({"position": position} if position else {}), **more}


def linear(feature_map, gate="none", position=None, **more):
    return {"kind": "linear", "feature_map": feature_map, "gate": gate,
            **({"position": position} if position else {}), **more}


def lrpe(kind):
    return {"type": f"lrpe_{kind}", "basis": "householder"}


REGLA = linear("exp", "refined", ROPE, query_scale="exp_variance", **SMALL_RMS)


def everywhere(mixer):
    return lambda layers: [mixer] * layers


def in_turn(first, second):
    return lambda layers: [first, second] * (layers // 2)


def halves(first, second):
    return lambda layers: [first] * (layers // 2) + [second] * (layers // 2)


def transnormer(activation, feature_map, block_norm):
    return ({"block": softmax(activation=activation, window="block", window_size=64,
                              position=lrpe("orthogonal"), **block_norm),
             "linear": linear(feature_map, position=lrpe("orthogonal"), **TRANSNORMER)},
            halves("block", "linear"),
            {"hidden_act": "silu", "norm_type": "simple_rmsnorm", "norm_eps": 1e-8,
             "embedding_norm": True},
            {"glu": True})


FLASH = {"num_heads": 1, "qk_projection": "shared", "value_activation": "silu"}
FLASH_CHUNK = 256
FLASH_SHAPES = {"head_dim": 128, "value_dim": 2 * HEADS * HEAD_DIM, "features": 128}


def plain(mixer, config=None, shapes=None):
    """The same mixer in every layer."""
    return {"mixer": mixer}, everywhere("mixer"), config or {}, shapes or {}


# Each: its mixers, layers -> their names, what differs from the common configuration, and shapes.
SYSTEMS = {
    "softmax": plain(softmax({"type": "rope"})),
    "regla": plain(REGLA),
    "hybrid_regla": ({"regla": REGLA, "softmax": softmax({"type": "rope"})}, in_turn("regla", "softmax"),
                     {}, {}),
    "fast_decay": plain(linear("identity", "fast_decay", ROPE, **RMS)),
    "rfa": plain(linear("unit_cos_sin", "scalar", **SUM)),
    "la_relu": plain(linear("relu", position=ROPE, **RMS)),
    "la_elu": plain(linear("elu+1", position=ROPE, **RMS)),
    "hedgehog": plain(linear("hedgehog", position=ROPE, **RMS), shapes={"features": 2 * HEAD_DIM}),
    "deltanet": plain(linear("dpfp", "delta", **RMS), shapes={"features": 2 * HEAD_DIM}),
    "performer": plain(linear("favor", **SUM)),
    "cosformer": plain(linear("relu", position={"type": "lrpe_unitary"}, **SUM)),
    "transnormer_t1": transnormer("relu", "elu", RELA),
    "transnormer_t2": transnormer("softmax", "elu+1", {}),
    "lrpe1": plain(linear("elu+1", position=lrpe("unitary"), **SUM)),
    "lrpe2": plain(linear("elu+1", position=lrpe("orthogonal"), **SUM)),
    "lrpe3": plain(linear("elu+1", position=lrpe("permutation"), **SUM)),
    "spe": plain(linear("elu+1", position={"type": "spe"}, **SUM)),
    "kerple_log": plain(softmax({"type": "kerple_log"})),
    "kerple_power": plain(softmax({"type": "kerple_power"})),
    "kerple_3para_log": plain(softmax({"type": "kerple_3para_log"})),
    "kerple_bias_wht": plain(softmax({"type": "kerple_bias_wht"})),
    "alibi": plain(softmax({"type": "alibi"})),
    "t5": plain(softmax({"type": "t5"})),
    "sinusoidal": plain(softmax(), SINUSOIDAL),
    # as its released language models of enwik8 and text8, but for the positions
    "transformer_ls": plain(softmax(window="long_short", window_size=512, segment_length=16,
                                    segment_rank=1), SINUSOIDAL),
    "flash_quad": plain(softmax({"type": "rope", "distance_bias": 2048}, activation="relu2",
                                score_divisor=2048, output_gate="swish", **FLASH),
                        {"intermediate_size": 0}, FLASH_SHAPES),
    "flash": ({"quad": softmax({"type": "rope", "distance_bias": FLASH_CHUNK}, activation="relu2",
                               score_divisor=FLASH_CHUNK, window="block", window_size=FLASH_CHUNK,
                               **FLASH),
               "linear": linear("identity", position=ROPE, chunk_size=FLASH_CHUNK, **FLASH),
               "flash": {"kind": "pair", "parts": ["quad", "linear"], "combine": "add",
                         "output_gate": "swish"}},
              everywhere("flash"), {"intermediate_size": 0}, FLASH_SHAPES),
    "elu_sinusoidal": plain(linear("elu+1", **SUM), SINUSOIDAL),
    "permuteformer": plain(linear("elu+1", "scalar", {"type": "lrpe_permutation"}, **SUM)),
    "gla": plain(linear("identity", "gla", query_scale="sqrt_dim", output_gate="swish", **RMS)),
    "scalar_gate": plain(linear("relu", "scalar", ROPE, **RMS)),
}
# Those whose decays no data changes, which train/ does not train. RetNet's values are twice as wide, and
# its MLP so much narrower.
TRANSNORMERLLM = linear("silu", "fixed", output_gate="linear", **TRANSNORMER)
FIXED = {
    "retnet": ({"mixer": linear("identity", "fixed", ROPE, query_scale="sqrt_dim", output_gate="swish",
                                **RMS)},
               everywhere("mixer"),
               {"hidden_act": "silu", "norm_type": "rmsnorm", "norm_eps": 1e-6, "intermediate_size": 1024},
               {"value_dim": 2 * HEAD_DIM, "glu": True, "bias": False}),
    "transnormerllm": ({"lrpe": {**TRANSNORMERLLM, "position": {"type": "lrpe_unitary"}},
                        "plain": TRANSNORMERLLM},
                       lambda layers: ["lrpe"] + ["plain"] * (layers - 1),
                       {"hidden_act": "identity", "norm_type": "simple_rmsnorm", "norm_eps": 1e-6,
                        "embedding_scale": SIZES["hidden_size"] ** 0.5},
                       {"glu": True, "bias": False}),
}
# Those that LRPE's table 2 and TransNormer's table 4 compare.
IN_SMALL = ("sinusoidal", "elu_sinusoidal", "performer", "transnormer_t1", "transnormer_t2",
            "permuteformer", "lrpe1", "lrpe2", "lrpe3", "spe", "transformer_ls")

SHAPES = {"head_dim": HEAD_DIM, "value_dim": HEAD_DIM, "features": HEAD_DIM, "glu": False,
          "bias": True}


def gated_width(width):
    """Of a gated MLP with as many parameters as one of this width that is not gated."""
    return width * 2 // 3


def native(system, layers, sizes=SIZES, changes=None):
    mixers, layer_types, config, shapes = {**SYSTEMS, **FIXED}[system]
    if config.get("intermediate_size") == 0:  # FLASH: half the weights a layer, twice the layers
        layers *= 2
    if shapes.get("glu"):
        sizes = {**sizes, "intermediate_size": gated_width(sizes["intermediate_size"])}
    if config.get("position_embedding") == "sinusoidal":
        config = {**config, "embedding_scale": sizes["hidden_size"] ** 0.5}
    common = {"hidden_act": "gelu", "norm_type": "layernorm", "norm_eps": 1e-5,
              "parallel_residual": False, "tie_word_embeddings": False,
              "position_embedding": "none", "embedding_norm": False}
    return {"model_type": "regla", **sizes, "num_hidden_layers": layers,
            **{**common, **(changes or {}), **config},
            "bos_token_id": None, "eos_token_id": None, "layer_types": layer_types(layers),
            "mixers": mixers, "shapes": {**SHAPES, **shapes}}


def gpt_neox(layers):
    """Pythia's own config.json; its mixer's shapes follow from it."""
    return {"model_type": "gpt_neox", **SIZES, "num_hidden_layers": layers, "hidden_act": "gelu",
            "layer_norm_eps": 1e-5, "rotary_pct": 0.25, "rotary_emb_base": 10000,
            "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False,
            "bos_token_id": None, "eos_token_id": None, "shapes": SHAPES}


def dense(model_type, heads, kv_heads, head_dim, layers, width, vocabulary, **changes):
    """The config.json of a released model, with its shapes."""
    return {"model_type": model_type, "vocab_size": vocabulary, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "intermediate_size": width, "hidden_act": "silu", "tie_word_embeddings": True,
            **changes, "bos_token_id": None, "eos_token_id": None,
            "shapes": {"head_dim": head_dim, "value_dim": head_dim, "features": head_dim,
                       "glu": True, "bias": False}}


DENSE = {
    "smollm2-135m": dense("llama", 9, 3, 64, 30, 1536, 49152, hidden_size=576, rms_norm_eps=1e-5,
                          max_position_embeddings=8192, rope_theta=100000),
    "qwen3-0.6b": dense("qwen3", 16, 8, 128, 28, 3072, 151936, hidden_size=1024,
                        rms_norm_eps=1e-6, max_position_embeddings=40960, rope_theta=1000000),
    "qwen3.5-0.8b": dense("qwen3_5_text", 8, 2, 256, 24, 3584, 248320, hidden_size=1024,
                          rms_norm_eps=1e-6, max_position_embeddings=262144,
                          rope_parameters={"rope_type": "default", "rope_theta": 10000000,
                                           "partial_rotary_factor": 0.25},
                          full_attention_interval=4, linear_num_key_heads=16,
                          linear_num_value_heads=16, linear_key_head_dim=128,
                          linear_value_head_dim=128, linear_conv_kernel_dim=4),
    "lfm2-350m": dense("lfm2", 16, 8, 64, 16, 6656, 65536, hidden_size=1024, norm_eps=1e-5,
                       max_position_embeddings=128000, rope_theta=1000000, conv_L_cache=3,
                       full_attn_idxs=[2, 5, 8, 10, 12, 14]),
    # longrope's divisors, which cost no time, are left out
    "phi-4-mini": dense("phi3", 24, 8, 128, 32, 8192, 200064, hidden_size=3072, rms_norm_eps=1e-5,
                        max_position_embeddings=131072, rope_theta=10000, partial_rotary_factor=0.75),
    "gemma-4-e2b": dense("gemma4_text", 8, 1, 256, 35, 6144, 262144, hidden_size=1536, rms_norm_eps=1e-6,
                         hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
                         max_position_embeddings=131072, sliding_window=512, global_head_dim=512,
                         layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7,
                         num_kv_shared_layers=20, use_double_wide_mlp=True,
                         hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144,
                         final_logit_softcapping=30.0),
}

# What Mamba-2's mixers are called by Bamba's kin.
def mamba(heads, head_dim, state, **changes):
    return {"mamba_n_heads": heads, "mamba_d_head": head_dim, "mamba_d_state": state,
            "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, **changes}


def without(shape, *keys):
    return {key: value for key, value in shape.items()
            if key not in ("num_attention_heads", "num_key_value_heads", *keys)}


GRANITE_LAYERS = ["attention" if i in (10, 13, 17, 27) else "mamba" for i in range(32)]
MAMBA = {
    "mamba2-130m": without(
        dense("mamba2", 0, 0, 64, 24, 0, 50288, hidden_size=768, layer_norm_epsilon=1e-5,
              num_heads=24, state_size=128, n_groups=1, conv_kernel=4, expand=2), "intermediate_size"),
    "falcon-h1-90m": dense(
        "falcon_h1", 8, 2, 64, 24, 768, 32768, hidden_size=512, rms_norm_eps=1e-5,
        max_position_embeddings=262144, rope_theta=1e11, **mamba(24, 32, 64, mamba_d_ssm=768),
        embedding_multiplier=5.6, lm_head_multiplier=0.04, key_multiplier=0.4,
        attention_in_multiplier=1.0, attention_out_multiplier=0.9, ssm_in_multiplier=1.2,
        ssm_out_multiplier=0.25, ssm_multipliers=[0.35, 0.25, 0.18, 0.5, 0.35],
        mlp_multipliers=[0.9, 0.25]),
    "granite-4.0-h-350m": dense(
        "granitemoehybrid", 12, 4, 64, 32, 2048, 100352, hidden_size=768, rms_norm_eps=1e-5,
        max_position_embeddings=32768, shared_intermediate_size=2048, num_local_experts=0,
        position_embedding_type="nope", layer_types=GRANITE_LAYERS, **mamba(48, 32, 128),
        embedding_multiplier=12, logits_scaling=3, residual_multiplier=0.246,
        attention_multiplier=0.015625),
}


# Mixtures of experts.
TINY_LAYERS = ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]
LFM2_LAYERS = ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)]
EXPERTS = {
    "granite-4.0-h-tiny": dense(
        "granitemoehybrid", 12, 4, 128, 40, 512, 100352, hidden_size=1536, rms_norm_eps=1e-5,
        max_position_embeddings=131072, shared_intermediate_size=1024, num_local_experts=64,
        num_experts_per_tok=6, position_embedding_type="nope", layer_types=TINY_LAYERS,
        **mamba(48, 64, 128), embedding_multiplier=12, logits_scaling=6, residual_multiplier=0.22,
        attention_multiplier=0.0078125),
    "lfm2-8b-a1b": dense(
        "lfm2_moe", 32, 8, 64, 24, 7168, 65536, hidden_size=2048, norm_eps=1e-5,
        max_position_embeddings=128000, rope_theta=1000000, conv_L_cache=3, layer_types=LFM2_LAYERS,
        num_dense_layers=2, moe_intermediate_size=1792, num_experts=32, num_experts_per_tok=4,
        norm_topk_prob=True, use_expert_bias=True, routed_scaling_factor=1.0),
    "qwen3.5-35b-a3b": dense(
        "qwen3_5_moe_text", 16, 2, 256, 40, 512, 248320, hidden_size=2048, rms_norm_eps=1e-6,
        tie_word_embeddings=False, max_position_embeddings=262144,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000,
                         "partial_rotary_factor": 0.25},
        full_attention_interval=4, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=256,
        num_experts_per_tok=8),
}

RWKV = {
    "rwkv7-0.1b": without(
        dense("rwkv7", 0, 0, 64, 12, 3072, 65536, hidden_size=768, hidden_act="sqrelu", norm_eps=1e-5,
              tie_word_embeddings=False, decay_low_rank_dim=64, a_low_rank_dim=64, v_low_rank_dim=32,
              gate_low_rank_dim=128)),
}


def text(config):
    """A key per line, and a mixer per line."""
    lines = []
    for key, value in config.items():
        if key == "mixers":
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(mixer)}"
                               for name, mixer in value.items())
            lines.append(f'  "mixers": {{\n{inner}\n  }}')
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    wanted = {}
    for depth, layers in DEPTHS.items():
        wanted[f"gpt_neox-{depth}.json"] = text(gpt_neox(layers))
        for system in (*SYSTEMS, *FIXED):
            wanted[f"{system}-{depth}.json"] = text(native(system, layers))
    for system in IN_SMALL:
        wanted[f"{system}-6x512.json"] = text(native(system, 6, SMALL, SMALL_CONFIG))
    for name, config in {**DENSE, **MAMBA, **EXPERTS, **RWKV}.items():
        wanted[f"{name}.json"] = text(config)
    if "--check" not in sys.argv[1:]:
        for name, content in wanted.items():
            (HERE / name).write_text(content, encoding="utf-8")
    there = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("*.json")}
    differ = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
    if differ:
        sys.exit(f"make_presets.py would write otherwise: {', '.join(differ)}")


if __name__ == "__main__":
    main()
