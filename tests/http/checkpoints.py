# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that tests make up: damaged copies of a golden one, and large ones of zeros."""

import json
import shutil
import struct

from harness import GOLDEN


def copy_of(folder, case="hybrid_regla"):
    shutil.copytree(GOLDEN / case, folder)
    return folder


def read_tensors(path):
    """(header, data) of a safetensors file."""
    raw = path.read_bytes()
    length, = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + length]), raw[8 + length:]


def write_tensors(path, header, data):
    """header: a dict, or the header's bytes as they shall be."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def with_byte_fallback(folder):
    """A golden model whose tokenizer spells as Llama's: "\u2581" for a space, and what it has no
    token for in bytes, of which a run is a text only as a whole. Its ids, by content."""
    copy_of(folder)
    contents = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
                "\u2581", *"abcdefghijklmno"]
    ids = {content: i for i, content in enumerate(contents)}
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0",
        "added_tokens": [{"id": i, "content": contents[i], "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, {**space, "pattern": {"String": " "},
                                                      "content": "\u2581"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            space, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": ids,
                  "merges": []}}))
    return ids


def write_holes(folder, shapes):
    """Tensors of zeros of these shapes: a hole in the file."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    path = folder / "model.safetensors"
    write_tensors(path, header, b"")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + offset)


def write_scaled(folder, case, times):
    """A golden model, so many times as wide in all but its vocabulary and heads, of zeros."""
    copy_of(folder, case)
    config = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "intermediate_size"):
        config[name] *= times
    (folder / "config.json").write_text(json.dumps(config))
    header, _ = read_tensors(folder / "model.safetensors")
    write_holes(folder, {name: [size if size == config["vocab_size"] else size * times
                                for size in tensor["shape"]]
                         for name, tensor in header.items() if name != "__metadata__"})


def write_zeros(folder, hidden_size, layers):
    """A native softmax model whose tensors are a hole in the file."""
    copy_of(folder)
    size, vocab = hidden_size, 275
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_size=size, num_hidden_layers=layers, intermediate_size=4 * size,
                  num_attention_heads=8, layer_types=["s"] * layers, tie_word_embeddings=True)
    del config["mixers"]["r"]
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embeddings.weight": [vocab, size], "model.norm.weight": [size]}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("attn_norm", "mlp_norm"):
            shapes[prefix + name + ".weight"] = [size]
        for name in ("q", "k", "v", "o"):
            shapes[prefix + f"attn.{name}_proj.weight"] = [size, size]
        shapes[prefix + "mlp.up_proj.weight"] = [4 * size, size]
        shapes[prefix + "mlp.down_proj.weight"] = [size, 4 * size]
    write_holes(folder, shapes)
