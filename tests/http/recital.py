# SPDX-License-Identifier: Apache-2.0
"""A model that recites: what it writes depends on the position only. A position's embedding is the
code of the token that comes next, all else is zero, so the likeliest token is that one by far. A chat
whose prompt is long enough begins wherever a text was put."""

import json
import shutil

import numpy as np
from reference_models import write_tensors

from harness import GOLDEN, ROOT

SIZE, EOS = 64, 0
TEMPLATES = ROOT / "tests" / "data" / "chat"


def byte_characters():
    """How byte-level BPE spells bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class Recital:
    """Texts one after the other. `markers`: {text: whether it is a special token}."""

    def __init__(self, markers):
        self.markers = markers
        self.ids = {marker: 257 + i for i, marker in enumerate(markers)}
        self.vocabulary = 257 + len(markers)
        self.tokens = []

    def encode(self, text):
        ids, at, raw = [], 0, text.encode()
        while at < len(raw):
            found = [m for m in self.ids if raw.startswith(m.encode(), at)]
            ids.append(self.ids[max(found, key=len)] if found else 1 + raw[at])
            at += len(max(found, key=len).encode()) if found else 1
        return ids

    def add(self, text, ends=True):
        """The position of its first token."""
        begin = len(self.tokens)
        self.tokens += self.encode(text) + [EOS] * ends
        return begin

    def write(self, folder, template, first, dice=None):
        """A model's folder. The texts begin at position `first`. With dice the model writes anything
        instead."""
        folder.mkdir()
        codes = np.sign(np.random.default_rng(7).standard_normal((self.vocabulary, SIZE))).astype("float32")
        wanted = np.array([EOS] * first + self.tokens + [EOS] * 1024)  # room for max_tokens
        positions = codes[wanted] - codes[wanted].mean(1, keepdims=True)
        assert ((positions @ codes.T).argmax(1) == wanted).all()
        zeros = lambda *shape: np.zeros(shape, "float32")  # noqa: E731
        norms = {f"model.{name}.{part}": np.full(SIZE, part == "weight", "float32")
                 for name in ("layers.0.attn_norm", "layers.0.mlp_norm", "norm")
                 for part in ("weight", "bias")}
        tensors = {
            "lm_head.weight": codes, "model.embeddings.weight": zeros(self.vocabulary, SIZE),
            "model.position_embeddings.weight": positions, **norms,
            **{f"model.layers.0.attn.{name}_proj.weight": zeros(SIZE, SIZE) for name in "kvqo"},
            "model.layers.0.mlp.up_proj.weight": zeros(8, SIZE),
            "model.layers.0.mlp.down_proj.weight": zeros(SIZE, 8)}
        if dice:
            tensors |= {name: dice.normal(0, 0.2, value.shape).astype("float32")
                        for name, value in tensors.items() if "norm" not in name}
        write_tensors(folder / "model.safetensors", tensors)
        config = json.loads((GOLDEN / "sliding_parallel_learned" / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {
            "vocab_size": self.vocabulary, "hidden_size": SIZE, "num_hidden_layers": 1,
            "layer_types": ["a"], "num_attention_heads": 1, "intermediate_size": 8,
            "mixers": {"a": {"kind": "softmax", "window": "sliding", "window_size": 6}},
            "max_position_embeddings": len(positions)}))
        self.write_tokenizer(folder / "tokenizer.json")
        shutil.copyfile(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
        return folder

    def write_tokenizer(self, path):
        tokenizer = json.loads((GOLDEN / "hybrid_regla" / "tokenizer.json").read_text())
        entry = tokenizer["added_tokens"][0]
        tokenizer["added_tokens"] = [entry] + [
            {**entry, "id": self.ids[marker], "content": marker, "special": special}
            for marker, special in self.markers.items()]
        tokenizer["model"]["merges"] = []
        tokenizer["model"]["vocab"] = {entry["content"]: EOS} | {
            character: 1 + byte for byte, character in byte_characters().items()}
        path.write_text(json.dumps(tokenizer))
