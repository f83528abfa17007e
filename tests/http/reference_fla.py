# SPDX-License-Identifier: Apache-2.0
"""RetNet, HGRN2 and KDA in numpy's float64, from a config.json as flash-linear-attention 0.6 reads it: for
reference_models.py."""

import numpy as np
from reference_dense import SIZES
from reference_math import (Noise, convolve, log_softmax, relu, rms_norm, sigmoid, silu, softplus)


def unit(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def recurrence(q, k, v, decay, beta=None):
    """Of [T, H, d], [T, H, d], [T, H, dv], decays [T, H, d] and, of the delta rule, [T, H]."""
    state, out = np.zeros((v.shape[1], q.shape[-1], v.shape[-1])), np.zeros(v.shape)
    for t in range(len(q)):
        state = state * decay[t][..., None]
        value = v[t]
        if beta is not None:
            value = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][..., None] * value[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(q.shape[-1])
    return out


class Fla:
    """What they share: blocks of norm, mixer, norm and a gated MLP."""

    root, head, embeddings = "model.", "lm_head.weight", "model.embeddings.weight"
    ratio = 4  # hidden_ratio, where it is absent

    def __init__(self, model_type, **config):
        self.config = {"model_type": model_type, **SIZES, **config}

    def inner(self, c):
        size = c.get("intermediate_size")
        if size is None:
            ratio = c.get("hidden_ratio", self.ratio)
            size = 256 * ((int(c["hidden_size"] * (4 if ratio is None else ratio) * 2 / 3) + 255) // 256)
        return size

    def tensors(self, c):
        noise, width, inner = Noise(), c["hidden_size"], self.inner(c)
        tensors = {self.embeddings: noise("in", c["vocab_size"], width, scale=0.5),
                   "model.norm.weight": noise("norm", width, mean=1)}
        tensors |= self.outer(c, noise)
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            shapes = {f"attn.{name}": shape for name, shape in self.shapes(c).items()}
            shapes |= {f"{norm}_norm.weight": (width,) for norm in ("attn", "mlp")}
            shapes |= {"mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width),
                       "mlp.down_proj.weight": (width, inner)}
            for name, shape in shapes.items():
                mean = -1 if name.endswith("A_log") else 1 if "norm" in name else 0
                tensors[layer + name] = noise(layer + name, *shape, scale=0.5 if len(shape) == 3 else 0.25,
                                              mean=mean)
        if not c.get("tie_word_embeddings", False):
            tensors[self.head] = noise("out", c["vocab_size"], width)
        return tensors

    def outer(self, c, noise):
        return {}

    def logits(self, c, tensors, ids):
        tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        eps = c.get("norm_eps", 1e-6)
        x = tensors[self.embeddings][ids]
        for i in range(c["num_hidden_layers"]):
            def get(name, layer=f"model.layers.{i}."):
                return tensors[layer + name]
            y = rms_norm(x, eps) * get("attn_norm.weight")
            x = x + self.mix(c, lambda name, get=get: get("attn." + name), y, tensors, i)
            y = rms_norm(x, eps) * get("mlp_norm.weight")
            x = x + (silu(y @ get("mlp.gate_proj.weight").T) * (y @ get("mlp.up_proj.weight").T)
                     ) @ get("mlp.down_proj.weight").T
        head = tensors.get(self.head, tensors[self.embeddings])
        return rms_norm(x, eps) * tensors["model.norm.weight"] @ head.T


class RetNet(Fla):
    ratio = 2

    def sizes(self, c):
        width, heads = c["hidden_size"], c["num_heads"]
        return (heads, heads // (c.get("num_kv_heads") or heads), round(width * c.get("expand_k", 1)),
                round(width * c.get("expand_v", 2)))

    def norm(self, c):
        fused = c.get("fuse_norm", True) and c.get("use_output_gate", True)
        return "g_norm_swish_gate.weight" if fused else "g_norm.weight"

    def shapes(self, c):
        heads, share, keys, values = self.sizes(c)
        width = c["hidden_size"]
        shapes = {"q_proj.weight": (keys, width), "k_proj.weight": (keys // share, width),
                  "v_proj.weight": (values // share, width), "o_proj.weight": (width, values)}
        if c.get("use_output_gate", True):
            shapes["g_proj.weight"] = (values, width)
        if c.get("elementwise_affine", True):
            shapes[self.norm(c)] = (values // heads,)
        return shapes

    def mix(self, c, get, x, tensors, i):
        heads, share, _, _ = self.sizes(c)
        act = relu if c.get("feature_map") == "relu" else lambda z: z
        q, k, v = (np.repeat((x @ get(f"{name}_proj.weight").T).reshape(len(x), heads // count, -1), count, 1)
                   for name, count in (("q", 1), ("k", share), ("v", share)))
        size = q.shape[-1]
        angles = np.arange(len(x))[:, None] * 10000.0 ** -(np.arange(0, size, 2) / size)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

        def turned(z):
            a, b = np.split(z, 2, -1)
            return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
        decay = 1 - 2.0 ** (-5 - np.arange(heads))
        h = recurrence(turned(act(q)), turned(act(k)), v, np.broadcast_to(decay[:, None], q.shape))
        h = rms_norm(h, c.get("norm_eps", 1e-6))
        if c.get("elementwise_affine", True):
            h = h * get(self.norm(c))
        h = h.reshape(len(x), -1)
        if c.get("use_output_gate", True):
            h = h * silu(x @ get("g_proj.weight").T)
        return h @ get("o_proj.weight").T


class Hgrn2(Fla):
    def heads(self, c):
        ratio = c.get("expand_ratio", 128)
        return c["num_heads"] if ratio is None else c["hidden_size"] // ratio

    def outer(self, c, noise):
        if not c.get("use_lower_bound", True):
            return {}
        return {"model.lower_bounds": noise("bounds", c["num_hidden_layers"], c["hidden_size"], scale=1)}

    def shapes(self, c):
        width = c["hidden_size"]
        shapes = {f"{name}_proj.weight": (width, width) for name in "qfio"} | {"g_norm.weight": (width,)}
        if c.get("use_short_conv", False):
            shapes |= {f"{name}_conv1d.weight": (width, 1, c.get("conv_size", 4)) for name in "qfi"}
        return shapes

    def mix(self, c, get, x, tensors, i):
        def project(name):
            y = x @ get(f"{name}_proj.weight").T
            return convolve(y, get(f"{name}_conv1d.weight")[:, 0]) if c.get("use_short_conv", False) else y
        heads, least = self.heads(c), 0
        if c.get("use_lower_bound", True) and i > 0:
            shares = np.exp(log_softmax(tensors["model.lower_bounds"].T)).T
            least = np.cumsum(shares, 0)[i] - shares[0]
        forget = least + (1 - least) * sigmoid(project("f"))
        q, k, v, decay = (z.reshape(len(x), heads, -1)
                          for z in (silu(project("q")), 1 - forget, project("i"), forget))
        h = rms_norm(recurrence(q, k, v, decay).reshape(len(x), -1), 1e-5) * get("g_norm.weight")
        return h @ get("o_proj.weight").T


class Kda(Fla):
    def sizes(self, c):
        size = c.get("head_dim", 128)
        return c["num_heads"], size, int(size * c.get("expand_v", 1))

    def shapes(self, c):
        heads, size, value = self.sizes(c)
        width, keys, values = c["hidden_size"], heads * size, heads * value
        shapes = {"b_proj.weight": (heads, width), "o_proj.weight": (width, values), "A_log": (heads,),
                  "dt_bias": (keys,), "f_proj.0.weight": (value, width), "f_proj.1.weight": (keys, value),
                  "g_proj.0.weight": (value, width), "g_proj.1.weight": (values, value),
                  "g_proj.1.bias": (values,), "o_norm.weight": (value,)}
        for name, rows in (("q", keys), ("k", keys), ("v", values)):
            shapes |= {f"{name}_proj.weight": (rows, width),
                       f"{name}_conv1d.weight": (rows, 1, c.get("conv_size", 4))}
        return shapes

    def mix(self, c, get, x, tensors, i):
        heads, size, value = self.sizes(c)

        def split(y):
            return y.reshape(len(x), heads, -1)
        q, k, v = (split(silu(convolve(x @ get(f"{name}_proj.weight").T, get(f"{name}_conv1d.weight")[:, 0])))
                   for name in "qkv")
        g = split(x @ get("f_proj.0.weight").T @ get("f_proj.1.weight").T + get("dt_bias"))
        scale, bound = np.exp(get("A_log"))[:, None], c.get("lower_bound")
        decay = np.exp(-scale * softplus(g) if bound is None else bound * sigmoid(scale * g))
        beta = sigmoid(x @ get("b_proj.weight").T) * (2 if c.get("allow_neg_eigval") else 1)
        h = rms_norm(recurrence(unit(q), unit(k), v, decay, beta), c.get("norm_eps", 1e-6))
        gate = x @ get("g_proj.0.weight").T @ get("g_proj.1.weight").T + get("g_proj.1.bias")
        return (h * get("o_norm.weight") * sigmoid(split(gate))).reshape(len(x), -1) @ get("o_proj.weight").T


FLA = {"retnet": RetNet("retnet", num_heads=4), "hgrn2": Hgrn2("hgrn2", expand_ratio=8),
       "kda": Kda("kda", num_heads=4, head_dim=8)}
