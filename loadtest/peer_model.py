# SPDX-License-Identifier: Apache-2.0
"""One model in the formats of both sides: a preset of GPT-NeoX's shape with random weights, as a
directory for regla and as GGUF files for llama.cpp, in f32, bf16 and q8_0.

Every weight is a bf16, so that the f32 and the bf16 of both sides are the same numbers."""

import json
import sys

import numpy as np

from measure import ROOT, Failure

SEED = 1
# In the order of GGUF's names; their own converter's table (conversion/gptneox.py).
LAYER_TENSORS = {
    "input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}
OTHER_TENSORS = {"gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
                 "embed_out": "output"}
GGUF_FORMATS = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0"}


def preset(name):
    config = json.loads((ROOT / "models" / "presets" / f"{name}.json").read_text())
    if config.get("model_type") != "gpt_neox":
        raise Failure(f"{name}: expected a preset of model_type gpt_neox, which llama.cpp runs, "
                      f"got {config.get('model_type')}")
    return config


def shapes(config):
    """Of every tensor, by its name in the Hugging Face layout."""
    hidden, inner, vocabulary = (config[key] for key in
                                 ("hidden_size", "intermediate_size", "vocab_size"))
    matrices = {"attention.query_key_value": (3 * hidden, hidden), "attention.dense": (hidden, hidden),
                "mlp.dense_h_to_4h": (inner, hidden), "mlp.dense_4h_to_h": (hidden, inner)}
    found = {"gpt_neox.embed_in.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        for name in LAYER_TENSORS:
            shape = matrices.get(name, (hidden,))
            found[f"gpt_neox.layers.{layer}.{name}.weight"] = shape
            found[f"gpt_neox.layers.{layer}.{name}.bias"] = shape[:1]
    found["gpt_neox.final_layer_norm.weight"] = found["gpt_neox.final_layer_norm.bias"] = (hidden,)
    found["embed_out.weight"] = (vocabulary, hidden)
    return found


def nearest_bf16(values):
    """The upper halves of f32s, to nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def draw(config):
    """Weights with which attention is neither flat nor a choice of one: q, k of variance 1."""
    generator = np.random.default_rng(SEED)
    tensors = {}
    for name, shape in shapes(config).items():
        values = generator.standard_normal(shape, np.float32)
        if len(shape) == 2 and "embed_in" not in name:
            values /= np.float32(shape[1]) ** 0.5
        elif len(shape) == 1:
            values = 0.1 * values + (1 if "norm.weight" in name else 0)
        tensors[name] = nearest_bf16(values)
    return tensors


def as_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_directory(folder, config, tensors, weights="bf16"):
    """safetensors: the length of a JSON, that JSON, and then the tensors. weights: bf16 or f32."""
    header, end = {}, 0
    for name, values in tensors.items():
        size = values.size * (4 if weights == "f32" else 2)
        header[name] = {"dtype": weights.upper(), "shape": values.shape,
                        "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write((as_f32(values) if weights == "f32" else values).tobytes())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def gguf_tensors(config, tensors):
    """(name, f32 values) as llama.cpp wants them."""
    heads = config["num_attention_heads"]
    for name, bits in tensors.items():
        values = as_f32(bits)
        stem, kind = name.rsplit(".", 1)
        if stem in OTHER_TENSORS:
            yield f"{OTHER_TENSORS[stem]}.{kind}", values
            continue
        layer, stem = stem.removeprefix("gpt_neox.layers.").split(".", 1)
        if stem == "attention.query_key_value":
            # Ours: q, k and v of a head, then of the next; theirs: the q of all heads, then the k.
            values = values.reshape(heads, 3, -1, *values.shape[1:]).swapaxes(0, 1)
            values = values.reshape(-1, *values.shape[3:])
        yield f"blk.{layer}.{LAYER_TENSORS[stem]}.{kind}", np.ascontiguousarray(values)


def write_gguf(gguf, path, config, tensors, weights):
    """Vectors stay f32, as llama.cpp's own converter leaves them."""
    kind = gguf.GGMLQuantizationType[GGUF_FORMATS[weights]]
    writer = gguf.GGUFWriter(path, "gptneox")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    head_size = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(config["rotary_pct"] * head_size))
    writer.add_rope_freq_base(config["rotary_emb_base"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_parallel_residual(config["use_parallel_residual"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType[f"{'MOSTLY_' if weights != 'f32' else 'ALL_'}"
                                            f"{GGUF_FORMATS[weights]}"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    # a merge, which llama.cpp wants, and its parts
    writer.add_token_list(["<", "0", "<0", *(f"<{id}>" for id in range(3, config["vocab_size"]))])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["< 0"])
    writer.add_add_bos_token(False)
    for name, values in gguf_tensors(config, tensors):
        if values.ndim == 2 and weights != "f32":
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(folder, name, gguf_package):
    """(model directory, {format: GGUF file}) of a preset; once written, they stay."""
    directory = folder / name
    files = {weights: folder / f"{name}-{weights}.gguf" for weights in GGUF_FORMATS}
    done = directory / "written"
    if done.exists():
        return directory, files
    config = preset(name)
    print(f"writing {directory} and {', '.join(file.name for file in files.values())}",
          file=sys.stderr)
    sys.path.insert(0, str(gguf_package))
    import gguf  # the peer's own, by build.sh

    tensors = draw(config)
    write_directory(directory, config, tensors)
    for weights, file in files.items():
        write_gguf(gguf, file, config, tensors, weights)
    done.touch()
    return directory, files
