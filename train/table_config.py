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
    "S": Size(4, 128, 4, 1024, 128, 8, 3e-3, 1_500_000, 250_000, 96, 16),
    # The papers' shape for autoregressive models: for a GPU.
    "ALM": Size(6, 512, 8, 8192, 512, 128, 1e-3, 16_000_000, 4_000_000, 24, 8),
}


def multiple(x, of):
    return max(round(x / of), 1) * of if x else 0  # FLASH has no MLP


def row_config(row, size):
    """The row's config.json with its shapes. Widths shrink with the model's, windows with the
    training window; FLASH's one head shrinks with the width. Embeddings start with deviation 1 in
    every row: where they differ, a short run measures how soon it leaves the loss of single tokens.
    """
    made = presets()
    config = copy.deepcopy(made.native(row.system, size.layers))
    scale = size.width / made.SIZES["hidden_size"]
    head, shapes = size.width // size.heads, config["shapes"]
    if any(mixer.get("num_heads") == 1 for mixer in config["mixers"].values()):
        shapes["value_dim"] = multiple(shapes["value_dim"] * scale, 8)
        shapes["head_dim"] = max(multiple(shapes["head_dim"] * scale, 8), head)
    else:
        for key in ("head_dim", "value_dim", "features"):
            shapes[key] = multiple(shapes[key] * head / made.HEAD_DIM, 2)
    config["intermediate_size"] = multiple(config["intermediate_size"] * scale * row.inner, 8)
    config.update(
        hidden_size=size.width,
        num_attention_heads=size.heads,
        vocab_size=size.vocabulary,
        max_position_embeddings=size.window,
        tie_word_embeddings=True,
        embedding_scale=size.width**0.5,
        bos_token_id=0,
        eos_token_id=0,
    )
    edit(config, row, size)
    return config


def mixers_used(config):
    """Names of the mixers of layers, and of the parts of those that have parts."""
    used = set(config["layer_types"])
    return used | {part for name in used for part in config["mixers"][name].get("parts", ())}


def scale_lengths(mixer, row, size):
    """Lengths in tokens, as many times shorter as the training window; FLASH-quad's length is the
    window itself."""
    places = [(mixer, key) for key in ("window_size", "chunk_size", "score_divisor")]
    if isinstance(mixer.get("position"), dict):
        places.append((mixer["position"], "distance_bias"))
    for place, key in places:
        if place.get(key) == presets().SIZES["max_position_embeddings"]:
            place[key] = size.window
        elif key in place:
            place[key] = max(round(place[key] * row.window * size.window / PAPER_WINDOW), 1)
    if mixer.get("window") == "sliding" and "window_size" not in mixer:
        mixer["window_size"] = size.window  # KERPLE's figure 5: the training length


def edit(config, row, size):
    """Applies what the row says, in place."""
    config.update(row.config)
    for name, changes in row.mixers.items():
        config["mixers"].setdefault(name, {}).update(changes)
    if row.layers is not None:
        config["layer_types"] = row.layers(size.layers)
    used = mixers_used(config)
    config["mixers"] = {name: m for name, m in config["mixers"].items() if name in used}
    for mixer in config["mixers"].values():
        scale_lengths(mixer, row, size)
    for key, change in row.shapes.items():
        if isinstance(change, bool):
            config["shapes"][key] = change
        else:
            config["shapes"][key] = multiple(config["shapes"][key] * change, 2)
