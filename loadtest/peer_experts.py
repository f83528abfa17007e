# SPDX-License-Identifier: Apache-2.0
"""A preset with experts as a GGUF file that regla and llama.cpp read: random Q4_0 blocks, written as they
are drawn, since numbers of f32 would not fit in memory. Names and orders are llama.cpp's, as
tests/scripts/make_gguf_experts.py has them of the small cases."""

import sys

import numpy as np

from measure import ROOT
from peer_gguf import SEED, add_tokens

BLOCK, BLOCK_BYTES = 32, 18
NIBBLE_DEVIATION = 4.61  # of the numbers 0 to 15


class Drawer:
    """Adds tensors of a layer, or of none, to the file."""

    def __init__(self, gguf, writer, config):
        self.gguf, self.writer, self.config = gguf, writer, config
        self.generator = np.random.default_rng(SEED)
        self.prefix = ""

    def matrices(self, **shapes):
        """Of variance 1 / columns: an f16 scale, and nibbles."""
        kind = self.gguf.GGMLQuantizationType.Q4_0
        for name, shape in shapes.items():
            *rows, columns = shape
            blocks = np.empty((*rows, columns // BLOCK, BLOCK_BYTES), np.uint8)
            blocks[..., 2:] = np.frombuffer(self.generator.bytes(blocks[..., 2:].size),
                                            np.uint8).reshape(blocks[..., 2:].shape)
            scale = np.float16(columns ** -0.5 / NIBBLE_DEVIATION)
            blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
            self.writer.add_tensor(f"{self.prefix}{name}.weight", blocks.reshape(*rows, -1), raw_dtype=kind)

    def numbers(self, name, shape, middle, deviation):
        values = middle + deviation * self.generator.standard_normal(shape, np.float32)
        self.writer.add_tensor(self.prefix + name, values.astype(np.float32))

    def norms(self, **shapes):
        for name, shape in shapes.items():
            self.numbers(f"{name}.weight", shape, 1, 0.1)

    def attention(self, **norms):
        config, hidden = self.config, self.config["hidden_size"]
        head = config.get("head_dim") or hidden // config["num_attention_heads"]
        queries, keys = (head * config[key] for key in ("num_attention_heads", "num_key_value_heads"))
        self.matrices(attn_q=(queries, hidden), attn_k=(keys, hidden), attn_v=(keys, hidden),
                      attn_output=(hidden, queries))
        self.norms(**{name: (head,) for name in norms})

    def experts(self, inner):
        hidden = self.config["hidden_size"]
        count = self.config.get("num_local_experts") or self.config["num_experts"]
        self.numbers("ffn_gate_inp.weight", (count, hidden), 0, hidden ** -0.5)
        self.matrices(ffn_gate_exps=(count, inner, hidden), ffn_up_exps=(count, inner, hidden),
                      ffn_down_exps=(count, hidden, inner))
        return count

    def mlp(self, inner, after=""):
        hidden = self.config["hidden_size"]
        self.matrices(**{f"ffn_gate{after}": (inner, hidden), f"ffn_up{after}": (inner, hidden),
                         f"ffn_down{after}": (hidden, inner)})


def granite_layer(drawer, config, layer):
    hidden, inner = config["hidden_size"], config["mamba_expand"] * config["hidden_size"]
    heads, groups = config["mamba_n_heads"], config["mamba_n_groups"]
    if config["layer_types"][layer] == "mamba":
        channels = inner + 2 * groups * config["mamba_d_state"]
        drawer.matrices(ssm_in=(inner + channels + heads, hidden), ssm_out=(hidden, inner))
        drawer.numbers("ssm_conv1d.weight", (channels, config["mamba_d_conv"]), 0, 0.5)
        drawer.numbers("ssm_conv1d.bias", (channels,), 0, 0.1)
        drawer.numbers("ssm_dt.bias", (heads,), -4, 1)
        drawer.numbers("ssm_a", (heads, 1), -4, 0.5)
        drawer.numbers("ssm_d", (heads, 1), 1, 0.1)
        drawer.norms(ssm_norm=(groups, inner // groups))
    else:
        drawer.attention()
    drawer.experts(config["intermediate_size"])
    drawer.mlp(config["shared_intermediate_size"], "_shexp")


def lfm_layer(drawer, config, layer):
    hidden = config["hidden_size"]
    if config["layer_types"][layer] == "conv":
        drawer.matrices(**{"shortconv.in_proj": (3 * hidden, hidden), "shortconv.out_proj": (hidden, hidden)})
        drawer.numbers("shortconv.conv.weight", (hidden, config["conv_L_cache"]), 0, 0.5)
    else:
        drawer.attention(attn_q_norm=True, attn_k_norm=True)
    if layer < config["num_dense_layers"]:
        drawer.mlp(config["intermediate_size"])
        return
    count = drawer.experts(config["moe_intermediate_size"])
    drawer.numbers("exp_probs_b.bias", (count,), 0, 0.01)


# By model_type: the architecture, what adds a layer, the last norm's name.
FAMILIES = {"granitemoehybrid": ("granitehybrid", granite_layer, "output_norm"),
            "lfm2_moe": ("lfm2moe", lfm_layer, "token_embd_norm")}


def has_experts(config):
    return config.get("model_type") in FAMILIES and bool(config.get("num_local_experts")
                                                         or config.get("num_experts"))


def write(gguf, path, config):
    sys.path.insert(0, str(ROOT / "tests" / "scripts"))
    from make_gguf_experts import add_keys

    architecture, add_layer, last_norm = FAMILIES[config["model_type"]]
    if "rope_theta" in config:
        config = {**config, "rope_parameters": {"rope_theta": config["rope_theta"]}}
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture, use_temp_file=True)
    add_keys(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    add_tokens(gguf, writer, config["vocab_size"])
    drawer = Drawer(gguf, writer, config)
    drawer.matrices(token_embd=(config["vocab_size"], config["hidden_size"]))
    for layer in range(config["num_hidden_layers"]):
        drawer.prefix = f"blk.{layer}."
        drawer.norms(attn_norm=(config["hidden_size"],), ffn_norm=(config["hidden_size"],))
        add_layer(drawer, config, layer)
    drawer.prefix = ""
    drawer.norms(**{last_norm: (config["hidden_size"],)})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)
