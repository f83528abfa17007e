#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints tests/unit/rope_cases.h: frequencies that transformers 5.24 makes of configurations, in f32.

    python tests/scripts/make_rope_cases.py > tests/unit/rope_cases.h"""

import json

from transformers import GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA = [
    {},
    {"rope_theta": 500000.0, "rope_scaling": None},
    {"rope_theta": 500000.0, "rope_scaling": {}, "rope_parameters": {"rope_theta": 7}},
    {"rope_theta": 7, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_parameters": {"rope_theta": 9}},
    {"rope_theta": 500000.0, "max_position_embeddings": 131072,
     "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    {"max_position_embeddings": 64, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    {"original_max_position_embeddings": 48, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}},
    {"rope_parameters": YARN},
    {"rope_parameters": {**YARN, "rope_theta": 1e6, "truncate": False}},
    {"rope_parameters": {**YARN, "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2.0}},
    {"rope_parameters": {**YARN, "beta_fast": 0, "beta_slow": None}},
    {"rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}},
    {"rope_parameters": {**YARN, "mscale": 0.707}},
    {"max_position_embeddings": 16384, "rope_parameters": {**YARN, "factor": None}},
    {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn", "factor": 0.5}},
    {"rope_parameters": {**YARN, "beta_fast": 4, "beta_slow": 4, "truncate": False}},
    {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.4}},
    {"partial_rotary_factor": 0.25, "rope_parameters": {"rope_type": "proportional", "factor": 3}},
    {"partial_rotary_factor": 0.5},
]
NEOX = [
    {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    {"rotary_pct": 0.7},
    {"rotary_pct": 0.7, "rope_scaling": {"type": "linear", "factor": 2}},
    {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "proportional"}},
]
HEAD = 16


def number(value):
    return repr(float(value))


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Frequencies of rotary embeddings that transformers 5.24 makes of configurations, for heads"
          " of 16.\n * Made by tests/scripts/make_rope_cases.py. */")
    print("#ifndef TESTS_UNIT_ROPE_CASES_H\n#define TESTS_UNIT_ROPE_CASES_H\n")
    print("#include <stdbool.h>\n")
    print("struct rope_case {\n    bool neox; /* else llama */\n    const char *config;")
    print("    double factor; /* of cosines and sines */\n    int dims;\n    double frequencies[8];\n};\n")
    print("static const struct rope_case rope_cases[] = {")
    for neox, cases in ((False, LLAMA), (True, NEOX)):
        for case in cases:
            config = json.loads(json.dumps({**case, "hidden_size": 2 * HEAD,
                                            "num_attention_heads": 2}))
            config = (GPTNeoXConfig if neox else LlamaConfig)(**config)
            rope = (GPTNeoXRotaryEmbedding if neox else LlamaRotaryEmbedding)(config)
            text = json.dumps(case).replace('"', '\\"')
            half = len(text) // 2
            half = text.rfind(" ", 0, half) + 1
            frequencies = rope.inv_freq.tolist()
            print(f"    {{{str(neox).lower()},")
            print(f'     "{text[:half]}"')
            print(f'     "{text[half:]}",')
            print(f"     {number(rope.attention_scaling)}, {2 * len(frequencies)},")
            print("     {" + ",\n      ".join(number(f) for f in frequencies) + "}},")
    print("};\n\n#endif")


main()
