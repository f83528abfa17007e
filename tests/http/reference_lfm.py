# SPDX-License-Identifier: Apache-2.0
"""LFM 2 and 3 in numpy's float64, from a config.json as their classes of transformers 5.24 read it: for
reference_models.py."""

import numpy as np
from reference_dense import SIZES, Dense
from reference_math import Noise, convolve, log_softmax, rms_norm, sigmoid, silu

EPS, EMBEDDINGS = 1e-5, Dense.embeddings


class Lfm(Dense):
    root = "model."

    def __init__(self, model_type, kinds, width, **config):
        super().__init__(model_type, theta=1e6, longest=128000)
        self.config = {"model_type": model_type, **SIZES, **config}
        self.kinds, self.width, self.third = kinds, width, model_type == "lfm3"

    def layer_types(self, c):
        return c.get("layer_types") or [self.kinds(c, i) for i in range(c["num_hidden_layers"])]

    def inner(self, c):
        size = c.get("block_ff_dim", c.get("intermediate_size"))
        if self.third or not c.get("block_auto_adjust_ff_dim", True):
            return size
        size, multiple = int(2 * size / 3), c.get("block_multiple_of", 256)
        return multiple * -(-int(c.get("block_ffn_dim_multiplier", 1) * size) // multiple)

    def tied_to(self, c):
        return c.get("tie_embedding", c.get("tie_word_embeddings", True))

    def tensors(self, c):
        noise, width, inner, tensors = Noise(), c["hidden_size"], self.inner(c), {}
        heads, kv_heads, size = self.shape(c)
        bias = c.get("attention_bias", False) and self.third
        out, q_norm, k_norm = (("o_proj", "q_norm", "k_norm") if self.third
                               else ("out_proj", "q_layernorm", "k_layernorm"))

        def add(name, *shape, biased=False, mean=0):
            tensors[name + ".weight"] = noise(name, *shape, mean=mean)
            if biased:
                tensors[name + ".bias"] = noise(name + "b", shape[0])

        add("model.embed_tokens", c["vocab_size"], width)
        add("model.embedding_norm", width, mean=1)
        if not self.tied_to(c):
            add("lm_head", c["vocab_size"], width)
        for i, kind in enumerate(self.layer_types(c)):
            layer = f"model.layers.{i}."
            norms = ["operator_norm", "ffn_norm"]
            if self.third and c.get("use_sandwich_norm", True):
                norms += ["post_operator_norm", "post_ffn_norm"]
            for name in norms:
                add(layer + name, width, mean=1)
            for name, rows, cols in (("w1", inner, width), ("w3", inner, width), ("w2", width, inner)):
                add(f"{layer}feed_forward.{name}", rows, cols)
            if kind == "conv":
                biased = c.get("conv_bias", False)
                add(layer + "conv.in_proj", 3 * width, width, biased=biased)
                add(layer + "conv.conv", width, 1, c.get("conv_L_cache", self.width), biased=biased)
                add(layer + "conv.out_proj", width, width, biased=biased)
                continue
            for name, rows, cols in (("q_proj", heads * size, width), ("k_proj", kv_heads * size, width),
                                     ("v_proj", kv_heads * size, width), (out, width, heads * size)):
                add(f"{layer}self_attn.{name}", rows, cols, biased=bias)
            add(f"{layer}self_attn.{q_norm}", size, mean=1)
            add(f"{layer}self_attn.{k_norm}", size, mean=1)
            if self.third and c.get("use_attention_gate", True):
                add(layer + "self_attn.gate_proj", heads, width)
        return tensors

    def turns(self, c, kind, length):
        if not self.third:
            return self.rotation(c, length)
        usual = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                                    "partial_rotary_factor": 0.5},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
        own = (c.get("rope_parameters") or usual)[kind]
        return self.rotation({**c, "rope_parameters": own}, length)

    def mix(self, c, tensors, layer, kind, x):
        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(())).astype(np.float64)
            return x @ tensors[name + ".weight"].astype(np.float64).T + bias

        length = len(x)
        if kind == "conv":
            before, after, u = np.split(linear(x, layer + "conv.in_proj"), 3, -1)
            weight = tensors[layer + "conv.conv.weight"].astype(np.float64)[:, 0]
            y = convolve(before * u, weight)
            y = y + tensors.get(layer + "conv.conv.bias", np.zeros(())).astype(np.float64)
            return linear(after * y, layer + "conv.out_proj")
        heads, kv_heads, size = self.shape(c)
        cos, sin = self.turns(c, kind, length)
        end = "norm" if self.third else "layernorm"
        split = []
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            z = linear(x, f"{layer}self_attn.{name}_proj").reshape(length, count, size)
            if name != "v":
                z = self.norm(c, tensors, z, f"{layer}self_attn.{name}_{end}").transpose(1, 0, 2)
                z = z * cos + np.concatenate([-z[..., size // 2:], z[..., :size // 2]], -1) * sin
            else:
                z = z.transpose(1, 0, 2)
            split.append(z if name == "q" else np.repeat(z, heads // kv_heads, 0))
        q, k, v = split
        back = np.subtract.outer(np.arange(length), np.arange(length))
        window = c.get("sliding_window", 256) if kind == "sliding_attention" else length
        scores = np.where((back >= 0) & (back < window), q @ k.transpose(0, 2, 1) / size**0.5, -np.inf)
        mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2)
        if layer + "self_attn.gate_proj.weight" in tensors:
            mixed = mixed * sigmoid(linear(x, layer + "self_attn.gate_proj"))[..., None]
        return linear(mixed.reshape(length, -1),
                      layer + ("self_attn.o_proj" if self.third else "self_attn.out_proj"))

    def norm(self, c, tensors, x, name):
        if name + ".weight" not in tensors:
            return x
        return rms_norm(x, c.get("norm_eps", EPS)) * tensors[name + ".weight"].astype(np.float64)

    def logits(self, c, tensors, ids):
        x = tensors[EMBEDDINGS].astype(np.float64)[ids]
        for i, kind in enumerate(self.layer_types(c)):
            layer = f"model.layers.{i}."
            w1, w2, w3 = (tensors[f"{layer}feed_forward.w{n}.weight"].astype(np.float64).T
                          for n in (1, 2, 3))
            y = self.mix(c, tensors, layer, kind, self.norm(c, tensors, x, layer + "operator_norm"))
            x = x + self.norm(c, tensors, y, layer + "post_operator_norm")
            y = self.norm(c, tensors, x, layer + "ffn_norm")
            y = (silu(y @ w1) * (y @ w3)) @ w2
            x = x + self.norm(c, tensors, y, layer + "post_ffn_norm")
        head = tensors.get(Dense.head, tensors[EMBEDDINGS]).astype(np.float64)
        return self.norm(c, tensors, x, "model.embedding_norm") @ head.T


def of_lfm2(c, i):
    listed = c.get("full_attn_idxs")
    return "full_attention" if listed is None or i in listed else "conv"


def of_lfm3(c, i):
    if i % 4 == 2:
        return "full_attention"
    return "sliding_attention" if i % 4 == 0 and i > 0 else "conv"


LFM = {
    "lfm2": Lfm("lfm2", of_lfm2, 3, block_multiple_of=16, full_attn_idxs=[1]),
    "lfm3": Lfm("lfm3", of_lfm3, 7, head_dim=8, sliding_window=5,
                layer_types=["conv", "full_attention", "sliding_attention"]),
}
LFM["lfm3"].config["num_hidden_layers"] = 3
