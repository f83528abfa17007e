# SPDX-License-Identifier: Apache-2.0
"""What the models for peers have in common, whoever makes them."""

SEED = 1
GGUF_FORMATS = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0"}


def add_tokens(gguf, writer, count):
    """A merge, which llama.cpp wants, its parts, and names."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<", "0", "<0", *(f"<{id}>" for id in range(3, count))])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)
    writer.add_token_merges(["< 0"])
    writer.add_add_bos_token(False)
