# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/gguf/keys.txt: the keys that GGUF files have, one a line, with who names it.

    pip install gguf==0.19.0
    python tests/scripts/make_gguf_keys.py

Those of the package are its constants. llama.cpp's are what LLM_KV_NAMES in its llama-arch.cpp has
beyond them (00395eb), and Ollama's what its converters for the families here write beyond both
(fb30760, convert/). Files of LM Studio are by llama.cpp's converter. %. stands for the architecture.
tests/unit/test_gguf_keys.c holds the list against the table in lib/base/gguf_keys.c.
"""

from pathlib import Path

import gguf

OUT = Path(__file__).resolve().parent.parent / "data" / "gguf" / "keys.txt"
VERSION = "0.19.0"
LLAMA_CPP = """
general.source.huggingface.repository %.deepstack_mapping %.hidden_activation %.attention.value_scale
%.attention.output_group_count %.attention.output_lora_rank %.attention.compress_rope_freq_base
%.attention.compress_ratios %.attention.recurrent_layers %.hyper_connection.count
%.hyper_connection.sinkhorn_iterations %.hyper_connection.epsilon %.hash_layer_count %.rope.scale_linear
%.target_layers %.target_hidden_size %.norm_before_residual %.dense_2_feat_in %.dense_2_feat_out
%.dense_3_feat_in %.dense_3_feat_out tokenizer.ggml.cls_token_id tokenizer.ggml.normalizer.lowercase
tokenizer.ggml.normalizer.strip_accents tokenizer.ggml.suppress_tokens tokenizer.ggml.added_tokens
quantize.imatrix.file quantize.imatrix.dataset quantize.imatrix.entries_count
quantize.imatrix.chunks_count
""".split()
OLLAMA = """
general.parameter_count tokenizer.ggml.eos_token_ids tokenizer.ggml.bos_token_ids
tokenizer.ggml.add_padding_token tokenizer.ggml.add_unknown_token tokenizer.ggml.add_mask_token
%.attention.head_dim %.rope.global.freq_base %.rope.local.freq_base %.rope.freq_scale
%.rope.mrope_section %.rope.mrope_interleaved %.mrope_sections %.rope.scaling.extrapolation_factor
%.rope.scaling.beta_fast %.rope.scaling.beta_slow %.norm_top_k_prob %.ssm.v_head_reordered
%.vision.block_count %.vision.attention.head_count %.vision.image_size %.audio.block_count
%.audio.sample_rate %.mm.tokens_per_image %.mm.projector_bias %.image_token_id %.image_token_index
%.vision_start_token_id %.vision_end_token_id %.spatial_merge_size
""".split()


def constants(space):
    """The texts of a class and those inside of it, in their order."""
    for name, value in vars(space).items():
        if isinstance(value, str) and not name.startswith("__"):
            yield value
        elif isinstance(value, type):
            yield from constants(value)


def main():
    found = {}
    package = [key.replace("{arch}", "%").format(id=0, name="NAME", dense="dense_2")
               for key in constants(gguf.Keys)]
    for source, keys in (f"gguf-{VERSION}", package), ("llama.cpp", LLAMA_CPP), ("ollama", OLLAMA):
        for key in keys:
            assert key.count(".") and " " not in key, key
            found.setdefault(key, source)
    OUT.write_text("".join(f"{source} {key}\n" for key, source in found.items()))


if __name__ == "__main__":
    main()
