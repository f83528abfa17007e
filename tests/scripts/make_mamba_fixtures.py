# SPDX-License-Identifier: Apache-2.0
"""Makes the cases of families with Mamba-2 in tests/golden: tiny models that `transformers` itself saved.

    python make_mamba_fixtures.py ../golden      # with transformers 5.24.0

Names after the folder make these cases alone. What make_dense_fixtures.py demands of its cases holds
here too, but for gate_mamba2, a Mamba-2 of transformers written in the family regla.
"""

import copy
import json
import pathlib
import shutil
import sys

import dense_reference
import torch
import transformers
from golden_case import random_prompt, write_case
from make_dense_fixtures import BASE, BF16, F32, VERSIONS, expect, rope
from mamba_noise import fill_mamba
from safetensors.torch import save_file

INFINITY = float("inf")
MAMBA = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_head": 12,
         "mamba_chunk_size": 8, "mamba_expand": 2}

# name -> class, dtype, tokens of the prompt, keys, neutral values of keys that must count.
CASES = {
    "mamba2": (
        "Mamba2", BF16, 71,
        {"vocab_size": 277, "hidden_size": 36, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 12,
         "state_size": 16, "n_groups": 2, "expand": 2, "chunk_size": 8, "tie_word_embeddings": True,
         "layer_norm_epsilon": 1e-3},
        [{"layer_norm_epsilon": 0.1}]),
    "bamba": (
        "Bamba", BF16, 68,
        {"vocab_size": 279, "hidden_size": 36, "intermediate_size": 28, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 1, "attn_layer_indices": [1], **MAMBA,
         "mamba_d_conv": 3, "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True,
         "time_step_limit": [0.3, 0.6], "rope_parameters": rope(5000.0)},
        [{"time_step_limit": [0.0, 0.6]}, {"time_step_limit": [0.3, INFINITY]},
         {"rope_parameters": {**rope(5000.0), "partial_rotary_factor": 1.0}}]),
    "granitemoehybrid": (
        "GraniteMoeHybrid", BF16, 67,
        {"vocab_size": 281, "hidden_size": 36, "intermediate_size": 30, "shared_intermediate_size": 30,
         "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 1, "num_local_experts": 0,
         "num_experts_per_tok": 0, **MAMBA, "mamba_n_groups": 1,
         "layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "attention_multiplier": 0.4,
         "logits_scaling": 1.5, "tie_word_embeddings": True},
        [{"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"attention_multiplier": 0.25},
         {"logits_scaling": 1.0}, {"position_embedding_type": "rope"}]),
    "falcon_h1": (
        "FalconH1", BF16, 66,
        {"vocab_size": 277, "hidden_size": 36, "intermediate_size": 30, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 1, **MAMBA, "mamba_n_heads": 5,
         "mamba_n_groups": 1, "mamba_d_head": 8, "mamba_d_ssm": 40, "mamba_rms_norm": False,
         "lm_head_multiplier": 0.6, "embedding_multiplier": 2.0, "mlp_multipliers": [0.7, 0.6],
         "key_multiplier": 0.4, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.4,
         "ssm_multipliers": [0.5, 0.7, 0.6, 0.8, 0.35], "ssm_in_multiplier": 1.5,
         "ssm_out_multiplier": 0.7, "rope_parameters": rope(1e5)},
        [{key: 1.0} for key in ("lm_head_multiplier", "embedding_multiplier", "key_multiplier",
                                "attention_out_multiplier", "attention_in_multiplier",
                                "ssm_in_multiplier", "ssm_out_multiplier")]
        + [{"mlp_multipliers": [1.0, 0.6]}, {"mlp_multipliers": [0.7, 1.0]}]
        + [{"ssm_multipliers": [1.0 if j == i else n for j, n in enumerate([0.5, 0.7, 0.6, 0.8, 0.35])]}
           for i in range(5)]),
    "falcon_h1_norm": (
        "FalconH1", F32, 66,
        {"vocab_size": 275, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, **MAMBA, "mamba_d_ssm": 48,
         "mamba_d_head": 8, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
         "mamba_proj_bias": True, "projectors_bias": True, "attention_bias": True,
         "ssm_in_multiplier": 1.5, "ssm_multipliers": [0.5, 0.7, 0.6, 0.8, 0.35],
         "attention_in_multiplier": 1.4, "rope_parameters": rope(1e4)},
        [{"mamba_norm_before_gate": True}, {"ssm_in_multiplier": 1.0},
         {"attention_in_multiplier": 1.0}]),
    "nemotron_h": (
        "NemotronH", BF16, 67,
        {"vocab_size": 283, "hidden_size": 40, "intermediate_size": 48,
         "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
         "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12, "mamba_num_heads": 6,
         "mamba_head_dim": 10, "ssm_state_size": 12, "n_groups": 3, "chunk_size": 8,
         "time_step_min": 1e-30},
        [{"mlp_hidden_act": "relu"}]),
}
SEED = 4300


def save(folder, case, seed):
    name, dtype, _, keys, _ = case
    config = getattr(transformers, name + "Config")(**{**BASE, **copy.deepcopy(keys)})
    model = getattr(transformers, name + "ForCausalLM")(config)
    fill_mamba(model, seed, 0.8 if dtype == BF16 else 1.0)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)


def native(golden, seed):
    """The same model as transformers has it and in the family regla: gate_mamba2. There each head has B
    and C of its own, and all share the norm's weight."""
    heads, size, state, width = 4, 12, 10, 24
    keys = {**BASE, "vocab_size": 275, "hidden_size": width, "num_hidden_layers": 2, "num_heads": heads,
            "head_dim": size, "state_size": state, "n_groups": heads, "expand": 2, "chunk_size": 8}
    config = transformers.Mamba2Config(**keys)
    model = transformers.Mamba2ForCausalLM(config)
    fill_mamba(model, seed, 1.0)
    tensors = {name: tensor.to(F32) for name, tensor in model.state_dict().items()}
    inner, states = heads * size, heads * state
    rows = {"out_gate_proj": inner, "v_proj": inner, "k_proj": states, "q_proj": states, "dt_proj": heads}
    out = {"model.embeddings.weight": tensors["backbone.embeddings.weight"],
           "model.norm.weight": tensors["backbone.norm_f.weight"],
           "lm_head.weight": tensors["lm_head.weight"]}
    for i in range(2):
        theirs, ours = f"backbone.layers.{i}.mixer.", f"model.layers.{i}.attn."
        norm = tensors[theirs + "norm.weight"]
        norm.copy_(norm[:size].repeat(heads))
        for name, part in zip(rows, tensors[theirs + "in_proj.weight"].split(list(rows.values()))):
            out[f"{ours}{name}.weight"] = part
        for kind in ("weight", "bias"):
            channels = tensors[f"{theirs}conv1d.{kind}"].reshape(inner + 2 * states, -1)
            u, b, c = channels.split([inner, states, states])
            together = torch.cat([c, b, u])
            out[f"{ours}conv.{kind}"] = together if kind == "weight" else together[:, 0]
        out |= {ours + "dt_proj.bias": tensors[theirs + "dt_bias"], ours + "out_norm.weight": norm[:size],
                ours + "A_log": tensors[theirs + "A_log"], ours + "D": tensors[theirs + "D"],
                ours + "o_proj.weight": tensors[theirs + "out_proj.weight"],
                f"model.layers.{i}.attn_norm.weight": tensors[f"backbone.layers.{i}.norm.weight"]}
    folder = golden / "gate_mamba2"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file({name: tensor.contiguous().clone() for name, tensor in out.items()},
              folder / "model.safetensors")
    mixer = {"kind": "linear", "feature_map": "identity", "gate": "mamba2", "output_norm": "rmsnorm",
             "output_gate": "swish", "output_gate_first": True, "conv": {"width": 4, "activation": "silu"}}
    (folder / "config.json").write_text(json.dumps({
        "model_type": "regla", "vocab_size": 275, "hidden_size": width, "num_hidden_layers": 2,
        "num_attention_heads": heads, "intermediate_size": 0, "norm_type": "rmsnorm", "norm_eps": 1e-5,
        "bos_token_id": 0, "eos_token_id": 0, "mixers": {"m": mixer}, "layer_types": ["m", "m"]}))
    model = dense_reference.exact_model(config, tensors)
    write_case(folder, lambda ids: dense_reference.exact_logits(model, ids), random_prompt(275, 70, seed))


def main():
    golden = pathlib.Path(sys.argv[1])
    if transformers.__version__ != VERSIONS[1]:
        raise SystemExit(f"transformers: expected {VERSIONS[1]}, got {transformers.__version__}")
    torch.set_num_threads(1)
    for i, (name, case) in enumerate(CASES.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        save(golden / name, case, SEED + i)
        expect(golden / name, case, SEED + i)
    if not sys.argv[2:] or "gate_mamba2" in sys.argv[2:]:
        native(golden, SEED + len(CASES))


if __name__ == "__main__":
    main()
