# SPDX-License-Identifier: Apache-2.0
"""Makes GGUF files of experts_* cases, as llama.cpp's converter writes them.

    pip install gguf==0.19.0 sentencepiece==0.2.3 numpy
    python tests/scripts/make_gguf_experts.py [FOLDER [CASE...]]

Without a folder it writes tests/golden/CASE/model.gguf of the cases in KEPT, else FOLDER/CASE.gguf of
all. Keys, names and orders were read in llama.cpp's conversion/{qwen,llama,olmo,granite,lfm2,nemotron,
gpt_oss}.py (November 2026); the converter itself did not run.
"""

import json
import sys
from pathlib import Path

import gguf
import make_gguf_fixtures as fixtures
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import MODEL_ARCH as ARCH

GOLDEN = fixtures.TESTS / "golden"
CASES = {
    "experts_qwen3_moe": ARCH.QWEN3MOE,
    "experts_olmoe": ARCH.OLMOE,
    "experts_mixtral": ARCH.LLAMA,
    "experts_qwen3_5_moe_text": ARCH.QWEN35MOE,
    "experts_qwen3_next": ARCH.QWEN3NEXT,
    "experts_granitemoehybrid": ARCH.GRANITE_HYBRID,
    "experts_lfm2_moe": ARCH.LFM2MOE,
    "experts_nemotron_h": ARCH.NEMOTRON_H_MOE,
    "experts_nemotron_h_latent": ARCH.NEMOTRON_H_MOE,
    "experts_gpt_oss": ARCH.GPT_OSS,
    "experts_gpt_oss_mxfp4": ARCH.GPT_OSS,
}
# Without a key in the format: mixtral's window, gpt-oss's swiglu_limit; groups are not read.
KEPT = ("experts_qwen3_moe", "experts_qwen3_5_moe_text", "experts_granitemoehybrid", "experts_lfm2_moe",
        "experts_nemotron_h_latent")


def read(folder):
    """config, and {name: array}: BF16 becomes F32, which it fits; bytes stay."""
    config, plain = fixtures.read_checkpoint(folder)
    tensors = {name: fixtures.as_f32(*tensor) for name, tensor in plain.items()}
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "U8":
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(raw[8 + length + begin:8 + length + end],
                                          np.uint8).reshape(entry["shape"])
    return config, tensors


# ---- orders ----


def in_pairs(array, heads):
    """Rows of q or k as llama.cpp turns them."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def tiled(array, config, first=0):
    """Rows by value head from `first` on: the first of each key head, then the second."""
    keys = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // keys
    values = array[first:]
    turned = values.reshape(keys, each, -1, *array.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    return np.concatenate([array[:first], turned])


def by_part(array, config):
    """in_proj_qkvz: q, k and v of all key heads, and z."""
    d, keys = config["linear_key_head_dim"], config["linear_num_key_heads"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    parts = np.split(array.reshape(keys, -1, array.shape[1]), np.cumsum([d, d, values]), axis=1)
    q, k, v, z = (part.reshape(-1, array.shape[1]) for part in parts)
    return np.concatenate([q, k, v]), z


def mxfp4(blocks, scales):
    """Halves in place of neighbours, and the scale first."""
    nibbles = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    turned = nibbles[..., :16] | nibbles[..., 16:] << 4
    packed = np.concatenate([scales[..., None], turned], -1)
    return np.ascontiguousarray(packed.reshape(*packed.shape[:-2], -1))


# ---- tensors ----


def stacked(tensors):
    """Experts one by one become a tensor of all."""
    out, parts = {}, {}
    for name, tensor in tensors.items():
        before, _, after = name.partition(".experts.")
        words = after.split(".")
        if words[0].isdigit():
            parts.setdefault((before, words[1]), {})[int(words[0])] = tensor
        else:
            out[name] = tensor
    for (before, matrix), own in parts.items():
        matrix = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(matrix, matrix)
        out[f"{before}.experts.{matrix}.weight"] = np.stack([own[i] for i in sorted(own)])
    return out


def halves(tensors, config):
    """gate_up_proj in two, and gpt-oss's alternating rows; its matrices that are not in blocks are
    turned."""
    out = {}
    turns = config["model_type"] == "gpt_oss"
    for name, tensor in tensors.items():
        if ".experts." in name and turns and name.endswith("proj"):
            tensor = tensor.swapaxes(1, 2)
        if name.endswith(("gate_up_proj", "input_linear.weight")) and not turns:
            gate, up = np.split(tensor, 2, axis=-2)
        elif "gate_up_proj" in name:
            gate, up = tensor[:, 0::2], tensor[:, 1::2]
        else:
            out[name.replace("down_proj_bias", "down_proj.bias")
                if "experts" in name else name] = tensor
            continue
        for part, of in (("gate_proj", gate), ("up_proj", up)):
            new = name.replace("gate_up_proj_bias", f"{part}.bias").replace("gate_up_proj", part)
            new = new.replace("input_linear", part).replace("block_sparse_moe.", "block_sparse_moe.experts.")
            out[new] = of
    return out


def in_blocks(tensors):
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            scales = tensors[name.replace("_blocks", "_scales")]
            out[name.replace("_blocks", ".weight")] = mxfp4(tensor, scales)
        elif not name.endswith("_scales"):
            out[name] = tensor
    return out


def of_qwen(tensors, config):
    out = {}
    reorders = config["model_type"] == "qwen3_5_moe_text"
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor = -np.exp(tensor)
        elif name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor + 1
        elif "conv1d" in name:
            tensor = tensor.reshape(tensor.shape[0], -1)
        if name.endswith("in_proj_qkvz.weight"):
            qkv, z = by_part(tensor, config)
            out |= {name.replace("qkvz", "qkv"): qkv, name.replace("qkvz", "z"): z}
            continue
        if reorders and "linear_attn." in name:
            if "in_proj_qkv" in name or "conv1d" in name:
                tensor = tiled(tensor, config, keys)
            elif "out_proj" in name:
                tensor = tiled(tensor.T, config).T
            elif "norm" not in name:
                tensor = tiled(tensor, config)
        out[name.replace(".dt_bias", ".dt_proj.bias")] = tensor
    return out


def of_mamba(tensors, config):
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor = -np.exp(tensor).reshape(-1, 1)
        elif name.endswith((".D", "conv1d.weight")):
            tensor = tensor.reshape(tensor.shape[0], -1)
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            groups = config.get("mamba_n_groups", config.get("n_groups"))
            tensor = tensor.reshape(groups, -1)
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            tensor = in_pairs(tensor, heads)
        out[name.replace(".dt_bias", ".dt.bias")] = tensor
    return out


def arranged(tensors, config):
    kind = config["model_type"]
    tensors = stacked(tensors)
    if kind.startswith("qwen3_") and "linear_num_key_heads" in config:
        tensors = of_qwen(tensors, config)
    if kind in ("granitemoehybrid", "nemotron_h"):
        tensors = of_mamba(tensors, config)
    if kind == "mixtral":
        tensors = {name: in_pairs(tensor, config["num_attention_heads" if "q_proj" in name else
                                                 "num_key_value_heads"])
                   if name.endswith(("q_proj.weight", "k_proj.weight")) else tensor
                   for name, tensor in tensors.items()}
    if kind == "lfm2_moe":
        tensors = {name: tensor[:, 0] if name.endswith("conv.conv.weight") else tensor
                   for name, tensor in tensors.items()}
    if kind == "gpt_oss" or any("gate_up_proj" in name or "input_linear" in name for name in tensors):
        tensors = in_blocks(halves(tensors, config))
    return tensors


# ---- names and keys ----

RENAMED = (("expert_bias", "expert_bias.bias"), ("e_score_correction_bias", "e_score_correction.bias"),
           ("self_attn.sinks", "self_attn.sinks.weight"))
DIRECT = {  # where the package's table has other names than transformers 5
    "block_sparse_moe.experts.gate_proj": "ffn_gate_exps", "block_sparse_moe.experts.up_proj": "ffn_up_exps",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps", "block_sparse_moe.output_linear": "ffn_down_exps",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "shared_mlp.experts.gate_proj": "ffn_gate_shexp", "shared_mlp.gate_proj": "ffn_gate_shexp",
    "shared_mlp.up_proj": "ffn_up_shexp", "shared_mlp.output_linear": "ffn_down_shexp",
    "mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps",
    "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    "feed_forward.experts.gate_proj": "ffn_gate_exps", "feed_forward.experts.up_proj": "ffn_up_exps",
    "feed_forward.experts.down_proj": "ffn_down_exps", "feed_forward.gate": "ffn_gate_inp",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.out_proj": "ssm_out", "linear_attn.norm": "ssm_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.q_proj": "attn_q",
    "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v", "mixer.o_proj": "attn_output",
    "mamba.dt": "ssm_dt", "mixer.dt": "ssm_dt", "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks",
}


def gguf_name(table, name):
    for old, new in RENAMED:
        name = name.replace(old, new) if name.endswith(old) else name
    base, _, end = name.rpartition(".")
    if end not in ("weight", "bias"):
        base, end = name, ""
    words = base.split(".")
    if len(words) > 3 and ".".join(words[3:]) in DIRECT:
        found = f"blk.{words[2]}.{DIRECT['.'.join(words[3:])]}"
    else:
        found = table.get_name(base)
    if found is None:
        raise SystemExit(f"no name for {name}")
    return f"{found}.{end}" if end else found


def add_keys(writer, config):
    kind, layers = config["model_type"], config.get("num_hidden_layers")
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["full_attention"] * layers
    layers = len(kinds)
    rope = config.get("rope_parameters") or {}
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    attends = [of in ("full_attention", "attention", "sliding_attention") for of in kinds]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_head_count(config["num_attention_heads"])
    kv = config["num_key_value_heads"]
    by_layer = kind in ("granitemoehybrid", "nemotron_h", "lfm2_moe")
    writer.add_head_count_kv([kv if of else 0 for of in attends] if by_layer else kv)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config.get("norm_eps")
                                  or config.get("layer_norm_epsilon"))
    writer.add_vocab_size(config["vocab_size"])
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("head_dim") and kind != "granitemoehybrid":
        writer.add_key_length(head)
        writer.add_value_length(head)
    count = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    writer.add_expert_count(count)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    OWN[kind](writer, config, kinds, head)


def of_width(writer, config, kinds, head):
    writer.add_feed_forward_length(config["intermediate_size"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_linear(writer, config, kinds, head):
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_array(f"{writer.arch}.attention.recurrent_layers",
                     [of == "linear_attention" for of in kinds])
    part = config["rope_parameters"].get("partial_rotary_factor", 0.25)
    writer.add_rope_dimension_count(int(head * part))


def add_granite(writer, config, kinds, head):
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])


def add_lfm(writer, config, kinds, head):
    of_width(writer, config, kinds, head)
    writer.add_leading_dense_block_count(config["num_dense_layers"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def add_nemotron(writer, config, kinds, head):
    writer.add_feed_forward_length([config["moe_intermediate_size"] if of == "moe" else 0 for of in kinds])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(float(config["routed_scaling_factor"]))
    writer.add_expert_group_count(config["n_group"])
    if config.get("moe_latent_size"):
        writer.add_uint32(f"{writer.arch}.moe_latent_size", config["moe_latent_size"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])


def add_gpt_oss(writer, config, kinds, head):
    rope = config["rope_parameters"]
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


OWN = {"qwen3_moe": of_width, "olmoe": of_width, "mixtral": of_width, "qwen3_5_moe_text": add_linear,
       "qwen3_next": add_linear, "granitemoehybrid": add_granite, "lfm2_moe": add_lfm,
       "nemotron_h": add_nemotron, "gpt_oss": add_gpt_oss}


def bits_of(array):
    """BF16, where all numbers fit it."""
    words = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return (words >> 16).astype(np.uint16) if not (words & 0xffff).any() else None


def make(case, path):
    config, tensors = read(GOLDEN / case)
    arch = CASES[case]
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    table = gguf.get_tensor_name_map(arch, layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    add_keys(writer, config)
    tokenizer = json.loads((GOLDEN / case / "tokenizer.json").read_text())
    fixtures.add_bpe(writer, tokenizer, "gpt-2", config["vocab_size"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, array in sorted(arranged(tensors, config).items()):
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        to = gguf_name(table, name)
        if array.dtype == np.uint8:
            writer.add_tensor(to, array, raw_dtype=Type.MXFP4)
            continue
        bits = bits_of(array) if array.ndim > 1 else None
        if bits is not None and to.endswith("weight") and "conv" not in to and "ssm_norm" not in to:
            writer.add_tensor(to, bits.view(np.uint8), raw_shape=[*array.shape[:-1], array.shape[-1] * 2],
                              raw_dtype=Type.BF16)
        else:
            writer.add_tensor(to, np.ascontiguousarray(array, np.float32))
    fixtures.close(writer)
    print(f"{case}: {Path(path).stat().st_size} bytes")


def main():
    out = Path(sys.argv[1]) if sys.argv[1:] else None
    for case in sys.argv[2:] or (CASES if out else KEPT):
        make(case, out / f"{case}.gguf" if out else GOLDEN / case / "model.gguf")


if __name__ == "__main__":
    main()
