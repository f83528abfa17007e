# SPDX-License-Identifier: Apache-2.0
"""Makes files for the engine of what others have saved.

    python -m train.convert state EXPORT TUNED OUT [--key-first] [--token ID]
    python -m train.convert transnormer FOLDER OUT

state: a tuned initial state of RWKV-7 as a state file, for PUT /v1/sessions/NAME/state. TUNED (.pth or
.safetensors) has a tensor "blocks.LAYER.att.time_state" [H, d, d] for each layer: of a head the rows are
values and the columns keys; with --key-first it is the other way round, as trainers have it that hand it
to flash-linear-attention. EXPORT is any state file of the same model that regla has exported; the model's
fingerprint and the layout of its state are taken from it.

transnormer: a released TransNormerLLM as a native checkpoint; convert_lightning.py has names and shapes.
"""

import argparse
import ctypes
import ctypes.util
import re
import struct
from pathlib import Path

import numpy as np

from train.files import must_exist, parse_object, told, words

MAGIC = b"\x89RGL\r\n\x1a\n"
TOKENS, LAYOUT, STATE = 2, 3, 4
RECURRENT = 1  # a kind of part
BLOCK = 16  # rows that lie together
NUMBERS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def checksum(data):
    name = ctypes.util.find_library("xxhash")
    if name is None:
        raise ValueError("expected libxxhash (Debian's package libxxhash0), got none")
    function = ctypes.CDLL(name).XXH3_64bits
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return function(data, len(data))


def read_export(path):
    """(version, fingerprint, vocabulary, layout, state) of a state file (engine/state-file.md)."""
    data = must_exist(path).read_bytes()
    if len(data) < 80 or data[:8] != MAGIC:
        raise ValueError(f"{path}: expected a state file of regla, got another thing")
    version, head, _, count = struct.unpack_from("<4I", data, 8)
    if version not in (1, 2) or head != 80 + 24 * count or len(data) < head:
        raise ValueError(f"{path}: expected version 1 or 2 and a whole head, got version {version}")
    at, parts = head, {}
    for i in range(count):
        kind, _, size, told_sum = struct.unpack_from("<IIQQ", data, 72 + 24 * i)
        parts[kind] = data[at:at + size]
        if len(parts[kind]) != size or checksum(parts[kind]) != told_sum:
            raise ValueError(f"{path}: section {kind}: truncated or corrupt")
        at += (size + 7) // 8 * 8
    if STATE not in parts or LAYOUT not in parts:
        raise ValueError(f"{path}: expected a state, got a session without any tokens")
    vocabulary, = struct.unpack_from("<I", data, 64)
    return version, data[32:48], vocabulary, parts[LAYOUT], parts[STATE]


def write_state_file(path, version, fingerprint, vocabulary, token, layout, state):
    """A text of one token, without logits."""
    sections = [(TOKENS, struct.pack("<I", token)), (LAYOUT, layout), (STATE, state)]
    padded = [data + bytes(-len(data) % 8) for _, data in sections]
    size = 80 + 24 * len(sections)
    head = MAGIC + struct.pack("<4IQ16s2Q2I", version, size, 0, len(sections),
                               size + sum(map(len, padded)), fingerprint, 1, 1, vocabulary, 0)
    for kind, data in sections:
        head += struct.pack("<IIQQ", kind, 0, len(data), checksum(data))
    Path(path).write_bytes(head + struct.pack("<Q", checksum(head)) + b"".join(padded))


def read_safetensors(path):
    """{name: array of float32}, without PyTorch."""
    data = must_exist(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size:
        raise ValueError(f"{path}: expected safetensors, got another thing")
    header, found = parse_object(data[8:8 + size].decode("utf-8", "replace"), path), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, (begin, end) = entry["dtype"], entry["data_offsets"]
        if kind not in NUMBERS:
            raise ValueError(f"{path}: {name}: expected {', '.join(NUMBERS)}, got {kind}")
        values = np.frombuffer(data[8 + size + begin:8 + size + end], NUMBERS[kind])
        if kind == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        found[name] = values.astype(np.float32).reshape(entry["shape"])
    return found


def read_pth(path):
    import torch  # which a file of safetensors does not need

    try:
        tensors = torch.load(must_exist(path), map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of a broken file PyTorch raises whatever its reader met
        raise ValueError(f"{path}: expected tensors, got: {words(error)}") from None
    if not isinstance(tensors, dict):
        raise ValueError(f"{path}: expected a dict of tensors, got {type(tensors).__name__}")
    return {name: tensor.float().numpy() for name, tensor in tensors.items()
            if isinstance(tensor, torch.Tensor)}


def read_tuned(path):
    """{layer: [H, d, d]}"""
    tensors = read_safetensors(path) if Path(path).suffix == ".safetensors" else read_pth(path)
    found = {int(match[1]): tensor for name, tensor in tensors.items()
             if (match := re.fullmatch(r"blocks\.(\d+)\.att\.time_state", name))}
    if not found:
        raise ValueError(f"{path}: expected tensors blocks.LAYER.att.time_state, got none")
    return found


def blocks_of(path, layer, tensor, shape, key_first):
    """[H, blocks, features, 16]: the rows of a block lie together."""
    turned = tensor.swapaxes(-1, -2) if key_first else tensor
    name = f"{path}: blocks.{layer}.att.time_state"
    if turned.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if not np.isfinite(turned).all():
        raise ValueError(f"{name}: expected finite numbers")
    heads, rows, features = shape
    blocks = np.zeros((heads, -(-rows // BLOCK) * BLOCK, features), "<f4")
    blocks[:, :rows] = turned
    return blocks.reshape(heads, -1, BLOCK, features).swapaxes(2, 3)


def image_of(path, tuned, layout, key_first):
    """The bytes of a state whose recurrent parts are these; all else, as shifts, is 0."""
    slot, page, _, count = struct.unpack_from("<QQII", layout)
    parts = [struct.unpack_from("<8I2Q", layout, 24 + 48 * i) for i in range(count)]
    layers = {part[0] for part in parts if part[1] == RECURRENT}
    if page or not layers or layers != tuned.keys():
        raise ValueError(f"{path}: expected the layers {sorted(layers)} of a model without KV, "
                         f"got {sorted(tuned)}")
    image = bytearray(slot)
    for layer, kind, _, heads, rows, features, _, _, offset, head_bytes in parts:
        if kind != RECURRENT:
            continue
        blocks = blocks_of(path, layer, tuned[layer], (heads, rows, features), key_first)
        for head in range(heads):
            data = blocks[head].tobytes()
            at = offset + head * head_bytes
            image[at:at + len(data)] = data
    return bytes(image)


def convert_state(export, tuned, out, key_first=False, token=0):
    version, fingerprint, vocabulary, layout, _ = read_export(export)
    if not 0 <= token < vocabulary:
        raise ValueError(f"--token: expected an id from 0 to {vocabulary - 1}, got {token}")
    image = image_of(tuned, read_tuned(tuned), layout, key_first)
    write_state_file(out, version, fingerprint, vocabulary, token, layout, image)


def main():
    parser = argparse.ArgumentParser(prog="train.convert", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    state = commands.add_parser("state", help="a tuned initial state of RWKV-7 as a state file")
    state.add_argument("export", help="any state file of the model")
    state.add_argument("tuned", help="the tuned states, .pth or .safetensors")
    state.add_argument("out", help="the file to write")
    state.add_argument("--key-first", action="store_true", help="the first axis of a head is the key's")
    state.add_argument("--token", type=int, default=0, help="the id that the text begins with (0)")
    transnormer = commands.add_parser("transnormer", help="a TransNormerLLM as a native checkpoint")
    transnormer.add_argument("folder", type=Path, help="config.json and safetensors, as released")
    transnormer.add_argument("out", type=Path, help="the folder to write")
    args = parser.parse_args()
    with told("train.convert"):
        if args.command == "transnormer":
            from train.convert_lightning import convert  # with PyTorch, which states do not need
            convert(args.folder, args.out)
            return
        convert_state(args.export, args.tuned, args.out, args.key_first, args.token)


if __name__ == "__main__":
    main()
