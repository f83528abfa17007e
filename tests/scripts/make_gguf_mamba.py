# SPDX-License-Identifier: Apache-2.0
"""Makes GGUF files of the cases with Mamba-2 with llama.cpp's own converter.

    python tests/scripts/make_gguf_mamba.py build/peers/source

As make_gguf_dense.py, whose folder and packages these are. The converter reads names and numbers
that released files have, so these are put into config.json first.
"""

import sys

import make_gguf_dense as dense
import make_gguf_fixtures as fixtures

OLD = {"full_attention": "attention", "linear_attention": "mamba"}
LETTERS = {"full_attention": "*", "linear_attention": "M", "mlp": "-"}


def granite(config):
    return config | {"layer_types": [OLD[kind] for kind in config["layer_types"]]}


def nemotron(config):
    experts = ("num_experts_per_tok", "n_routed_experts")
    config = {key: value for key, value in config.items() if key not in experts}
    pattern = "".join(LETTERS[kind] for kind in config.pop("layers_block_type"))
    return config | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern),
                     "d_head": config["mamba_head_dim"]}


def falcon(config):
    """In f32, since the converter multiplies weights with the multipliers."""
    heads = config["num_attention_heads"]
    return config | {"head_dim": config["hidden_size"] // heads, "dtype": "float32"}


CASES = {"mamba2": lambda config: config, "granitemoehybrid": granite, "falcon_h1": falcon,
         "nemotron_h": nemotron}


def main():
    for name, change in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        case = fixtures.TESTS / "golden" / name
        dense.convert(case, case / "model.gguf", change)
        dense.make_seed(case / "model.gguf", fixtures.CORPUS / name)


if __name__ == "__main__":
    main()
