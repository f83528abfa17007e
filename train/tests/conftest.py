# SPDX-License-Identifier: Apache-2.0
"""A small model config and a small text for the tests of train/."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
torch.set_num_threads(1)


@pytest.fixture
def raw_config():
    return {
        "model_type": "regla",
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "norm_type": "rmsnorm",
        "norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "layer_types": ["a", "b"],
        "mixers": {
            "a": {
                "kind": "linear",
                "feature_map": "exp",
                "gate": "refined",
                "query_scale": "exp_variance",
                "output_norm": "rmsnorm",
                "output_norm_eps": 1e-10,
            },
            "b": {"kind": "softmax", "position": {"type": "kerple_log"}},
        },
        "shapes": {"head_dim": 8, "value_dim": 8, "glu": True, "bias": False},
    }


@pytest.fixture
def text():
    return "The cat sat on the mat; the dog sat on the cat. Ünïcödé — 猫 \U0001f408\r\n\tend  " * 40
