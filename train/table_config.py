# SPDX-License-Identifier: Apache-2.0
"""A row of a table as a config.json of the size that the tables are made at."""

import copy
from dataclasses import dataclass

from train.presets import presets

PAPER_WINDOW = 512  # the training length of KERPLE, LRPE and TransNormer


@dataclass
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int
    window: int  # tokens of a training window
    batch: int  # windows a step
    lr: float
    tokens: int  # of a run
    quick_tokens: int
    documents: int  # of 32 windows each, to score on
    quick_documents: int


SIZES = {
    "S": Size(4, 128, 4, 1024, 128, 8, 3e-3, 1_500_000, 250_000, 96, 24),
    # The papers' shape for autoregressive models: for a GPU.
    "ALM": Size(6, 512, 8, 8192, 512, 128, 1e-3, 16_000_000, 4_000_000, 24, 8),
}


def multiple(x, of):
    return max(round(x / of), 1) * of


def row_config(row, size):
    """The row's config.json with its shapes. Widths shrink with the model's, windows with the
    training window; a preset of one head keeps it."""
    made = presets()
    config = copy.deepcopy(made.native(row.system, size.layers))
    scale = size.width / made.SIZES["hidden_size"]
    head = size.width // size.heads
    shapes = config["shapes"]
    old_head = shapes["head_dim"]
    if config["num_attention_heads"] == made.HEADS:
        config["num_attention_heads"] = size.heads
    else:
        head = max(multiple(old_head * scale, 8), head)
    of_a_head = head / old_head  # features are so many times a head
    for key in ("head_dim", "value_dim", "features"):
        shapes[key] = multiple(shapes[key] * of_a_head, 2)
    if config.get("intermediate_size"):
        config["intermediate_size"] = multiple(config["intermediate_size"] * scale * row.inner, 8)
    config.update(
        hidden_size=size.width,
        vocab_size=size.vocabulary,
        max_position_embeddings=size.window,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    edit(config, row, size)
    return config


def edit(config, row, size):
    """Applies what the row says, in place."""
    config.update(row.config)
    for name, changes in row.mixers.items():
        config["mixers"].setdefault(name, {}).update(changes)
    if row.layers is not None:
        config["layer_types"] = row.layers(size.layers)
    used = set(config["layer_types"])
    config["mixers"] = {name: m for name, m in config["mixers"].items() if name in used}
    for mixer in config["mixers"].values():
        if mixer.get("window") == "sliding" and "window_size" not in mixer:
            mixer["window_size"] = size.window  # figure 5's window is the training length
        elif "window_size" in mixer:
            scaled = mixer["window_size"] * row.window * size.window / PAPER_WINDOW
            mixer["window_size"] = max(round(scaled), 1)
    for key, change in row.shapes.items():
        if isinstance(change, bool):
            config["shapes"][key] = change
        else:
            config["shapes"][key] = multiple(config["shapes"][key] * change, 2)
