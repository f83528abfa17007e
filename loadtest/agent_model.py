# SPDX-License-Identifier: Apache-2.0
"""A GGUF file that regla and llama.cpp read, of the preset qwen3.5-0.8b's shape: random weights in
Q8_0, and the tokenizer and template of another GGUF file."""

import json

import numpy as np

from peer_gguf import SEED
from peer_model import preset_path

PRESET = "qwen3.5-0.8b"
ARCHITECTURE = "qwen35"
TOKENIZER = "tokenizer."


def sizes(config):
    """Columns of a linear layer: of keys (and queries), of values; of a full one: of queries, keys."""
    return (config["linear_num_key_heads"] * config["linear_key_head_dim"],
            config["linear_num_value_heads"] * config["linear_value_head_dim"],
            config["num_attention_heads"] * config["head_dim"],
            config["num_key_value_heads"] * config["head_dim"])


def linear_layer(config):
    """(matrices [rows, columns], vectors) by their names in llama.cpp."""
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys, values, *_ = sizes(config)
    return ({"attn_qkv.weight": (2 * keys + values, hidden), "attn_gate.weight": (values, hidden),
             "ssm_alpha.weight": (heads, hidden), "ssm_beta.weight": (heads, hidden),
             "ssm_out.weight": (hidden, values)},
            {"ssm_norm.weight": (config["linear_value_head_dim"],), "ssm_a": (heads,),
             "ssm_dt.bias": (heads,),
             "ssm_conv1d.weight": (2 * keys + values, config["linear_conv_kernel_dim"])})


def full_layer(config):
    hidden, size = config["hidden_size"], config["head_dim"]
    *_, queries, keys = sizes(config)
    return ({"attn_q.weight": (2 * queries, hidden), "attn_k.weight": (keys, hidden),
             "attn_v.weight": (keys, hidden), "attn_output.weight": (hidden, queries)},
            {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)})


def both_layers(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return ({"ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden),
             "ffn_down.weight": (hidden, inner)},
            {"attn_norm.weight": (hidden,), "post_attention_norm.weight": (hidden,)})


def is_full(config, layer):
    return (layer + 1) % config["full_attention_interval"] == 0


def draw_vector(generator, name, shape):
    """Decays between 0.9 and 0.999 a token, as trained ones; norms near 1."""
    if name == "ssm_a":
        return -generator.uniform(0.5, 8, shape).astype(np.float32)
    if name == "ssm_dt.bias":
        return generator.uniform(-6, -2, shape).astype(np.float32)
    noise = generator.standard_normal(shape, np.float32)
    return noise / 2 if name == "ssm_conv1d.weight" else 1 + noise / 10


def add_keys(writer, config, vocabulary):
    rotated = int(config["rope_parameters"]["partial_rotary_factor"] * config["head_dim"])
    _, values, *_ = sizes(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(rotated)
    writer.add_rope_dimension_sections([rotated // 2 - 2 * (rotated // 6), rotated // 6, rotated // 6, 0])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(values)
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_vocab_size(vocabulary)


def copy_tokenizer(gguf, writer, path):
    """Its number of tokens."""
    reader = gguf.GGUFReader(path)
    count = 0
    for name, field in reader.fields.items():
        if name.startswith(TOKENIZER):
            value = field.contents()
            count = len(value) if name == "tokenizer.ggml.tokens" else count
            writer.add_key_value(name, value, field.types[0],
                                 field.types[-1] if len(field.types) > 1 else None)
    return count


def write(path, tokenizer):
    """The model, with the tokenizer and template of that GGUF file. Wants the package gguf."""
    import gguf

    config = json.loads(preset_path(PRESET).read_text())
    generator = np.random.default_rng(SEED)
    kind = gguf.GGMLQuantizationType.Q8_0
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    tokens = copy_tokenizer(gguf, writer, tokenizer)
    add_keys(writer, config, tokens)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)

    def add_matrix(name, shape):
        numbers = generator.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        writer.add_tensor(name, gguf.quantize(numbers, kind), raw_dtype=kind)

    add_matrix("token_embd.weight", (tokens, config["hidden_size"]))
    for layer in range(config["num_hidden_layers"]):
        mixer = full_layer(config) if is_full(config, layer) else linear_layer(config)
        for matrices, vectors in (mixer, both_layers(config)):
            for name, shape in matrices.items():
                add_matrix(f"blk.{layer}.{name}", shape)
            for name, shape in vectors.items():
                writer.add_tensor(f"blk.{layer}.{name}", draw_vector(generator, name, shape))
    writer.add_tensor("output_norm.weight", draw_vector(generator, "output_norm", (config["hidden_size"],)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
