# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 in numpy's float64, from a config.json as flash-linear-attention 0.6 reads it: for
reference_models.py."""

import math

import numpy as np
from reference_math import Noise, relu2, sigmoid

RANKS = {"w": ("decay_low_rank_dim", 64, 2.5), "a": ("a_low_rank_dim", 64, 2.5),
         "v": ("v_low_rank_dim", 16, 1.7), "g": ("gate_low_rank_dim", 128, 5)}


def layer_norm(x, eps, groups=1):
    parts = x.reshape(len(x), groups, -1)
    parts = parts - parts.mean(-1, keepdims=True)
    return (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + eps)).reshape(x.shape)


def change(x):
    """Of the token before, less this one's."""
    return np.concatenate([np.zeros((1, x.shape[1])), x[:-1]]) - x


class Rwkv7:
    root = "model."
    head = "lm_head.weight"
    embeddings = "model.embeddings.weight"
    config = {"model_type": "rwkv7", "vocab_size": 275, "hidden_size": 32, "num_hidden_layers": 2,
              "intermediate_size": 48, "head_dim": 8, "decay_low_rank_dim": 8, "a_low_rank_dim": 6,
              "v_low_rank_dim": 4, "gate_low_rank_dim": 12, "bos_token_id": 0, "eos_token_id": 0}

    @staticmethod
    def head_dim(c):
        size = c.get("head_dim", 64)
        return size if size is not None else c["hidden_size"] // c["num_heads"]

    def rank(self, c, letter):
        key, usual, factor = RANKS[letter]
        rank = c.get(key, usual)
        if rank is None:
            scale = 1 if letter == "g" else self.head_dim(c) / 64
            rank = max(32, round(factor * math.sqrt(c["hidden_size"]) * scale / 32) * 32)
        return rank

    @staticmethod
    def inner(c):
        size = c.get("intermediate_size")
        return size or 32 * math.ceil(int(c["hidden_size"] * (c.get("hidden_ratio") or 4)) / 32)

    def tensors(self, c):
        noise, width, heads = Noise(), c["hidden_size"], c["hidden_size"] // self.head_dim(c)
        tensors = {self.embeddings: noise("in", c["vocab_size"], width, scale=0.5)}
        norms, inner = ["model.norm"], self.inner(c)
        if c.get("norm_first", True):
            norms.append("model.layers.0.pre_norm")
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            norms += [layer + "attn_norm", layer + "ffn_norm", layer + "attn.g_norm"]
            shapes = {f"attn.x_{x}": (1, 1, width) for x in "rwkvag"}
            shapes |= {"attn.k_k": (width,), "attn.k_a": (width,), "attn.r_k": (heads, width // heads)}
            shapes |= {f"attn.{x}_proj.weight": (width, width) for x in "rkvo"}
            for x in RANKS if i else "wag":
                shapes[f"attn.{x}_lora.lora.0.weight"] = self.rank(c, x), width
                shapes[f"attn.{x}_lora.lora.2.weight"] = width, self.rank(c, x)
                if x != "g":
                    shapes[f"attn.{x}_lora.lora.2.bias"] = width,
            shapes |= {"ffn.x_k": (width,), "ffn.key.weight": (inner, width),
                       "ffn.value.weight": (width, inner)}
            for name, shape in shapes.items():
                tensors[layer + name] = noise(layer + name, *shape, mean=0.7 if name == "attn.k_k" else 0)
        for name in norms:
            tensors[name + ".weight"] = noise(name, width, mean=1)
            if c.get("norm_bias", True) or name.endswith("g_norm"):
                tensors[name + ".bias"] = noise(name + "b", width)
        if not c.get("tie_word_embeddings", False):
            tensors[self.head] = noise("out", c["vocab_size"], width)
        return tensors

    def mix(self, c, get, x, first, start=0):
        """The mixer's output, and the first layer's v. start: S before the text [heads, v, k]."""
        length, size = len(x), self.head_dim(c)
        mixed = {n: x + change(x) * get(f"x_{n}")[0, 0] for n in "rwkvag"}

        def low_rank(name, act):
            z = act(mixed[name] @ get(f"{name}_lora.lora.0.weight").T)
            z = z @ get(f"{name}_lora.lora.2.weight").T
            return z if name == "g" else z + get(f"{name}_lora.lora.2.bias")

        r, k, v = (mixed[n] @ get(f"{n}_proj.weight").T for n in "rkv")
        decay = np.exp(-math.exp(-0.5) * sigmoid(low_rank("w", np.tanh)))
        if first is not None:
            v = v + (first - v) * sigmoid(low_rank("v", lambda z: z))
        rate = sigmoid(low_rank("a", lambda z: z))
        r, v, decay, rate, k, kappa = (z.reshape(length, -1, size) for z in (
            r, v, decay, rate, k * (1 + (rate - 1) * get("k_a")), k * get("k_k")))
        square = (kappa**2).sum(-1, keepdims=True)
        kappa = kappa / (np.sqrt(square + 1e-6) if c.get("fuse_norm", True) else np.sqrt(square))
        state, h = np.zeros((r.shape[1], size, size)) + start, np.zeros(r.shape)
        for t in range(length):  # state[h, v, k]
            found = np.einsum("hvk,hk->hv", state, kappa[t])
            state = (state * decay[t][:, None] - found[..., None] * (kappa[t] * rate[t])[:, None]
                     + v[t][..., None] * k[t][:, None])
            h[t] = np.einsum("hvk,hk->hv", state, r[t])
        h = layer_norm(h.reshape(length, -1), size * c.get("norm_eps", 1e-5), r.shape[1])
        h = h * get("g_norm.weight") + get("g_norm.bias")
        bonus = (r * k * get("r_k")).sum(-1, keepdims=True) * v
        out = (h + bonus.reshape(length, -1)) * low_rank("g", sigmoid)
        return out @ get("o_proj.weight").T, v.reshape(length, -1) if first is None else first

    def logits(self, c, tensors, ids, starts=()):
        tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

        def norm(x, name):
            return (layer_norm(x, c.get("norm_eps", 1e-5)) * tensors[name + ".weight"]
                    + tensors.get(name + ".bias", 0))

        x, first = tensors[self.embeddings][ids], None
        if c.get("norm_first", True):
            x = norm(x, "model.layers.0.pre_norm")
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."

            def get(name, prefix=layer + "attn."):
                return tensors[prefix + name]

            added, first = self.mix(c, get, norm(x, layer + "attn_norm"), first,
                                    *starts[i:i + 1])
            x = x + added
            y = norm(x, layer + "ffn_norm")
            y = (y + change(y) * tensors[layer + "ffn.x_k"]) @ tensors[layer + "ffn.key.weight"].T
            x = x + relu2(y) @ tensors[layer + "ffn.value.weight"].T
        head = tensors.get(self.head, tensors[self.embeddings])
        return norm(x, "model.norm") @ head.T


RWKV = {"rwkv7": Rwkv7()}
