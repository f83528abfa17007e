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
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    path = folder / "model.safetensors"
    write_tensors(path, header, b"")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + offset)
