# SPDX-License-Identifier: Apache-2.0
"""Families with layers of Gated DeltaNet in numpy's float64, from a config.json as their classes of
transformers 5.24 and flash-linear-attention 0.6 read it: for reference_models.py."""

import numpy as np
from reference_dense import SIZES, Dense
from reference_math import Noise, convolve, log_softmax, rms_norm, sigmoid, silu, softplus


def delta_rule(q, k, v, beta, decay):
    """Of [T, H, d], [T, H, d], [T, H, dv], [T, H] and [T, H]; q and k become of length 1."""
    q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    state, out = np.zeros((v.shape[1], q.shape[-1], v.shape[-1])), np.zeros(v.shape)
    for t in range(len(q)):
        state = state * decay[t][:, None, None]
        found = np.einsum("hkv,hk->hv", state, k[t])
        state = state + k[t][..., None] * (beta[t][:, None] * (v[t] - found))[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) / np.sqrt(q.shape[-1])
    return out


class Delta(Dense):
    root = "model."

    def __init__(self, model_type, **config):
        super().__init__(model_type, theta=10000, longest=32768)
        self.config = {"model_type": model_type, **SIZES, **config}
        self.kind = model_type
        self.fla = model_type in ("gated_deltanet", "delta_net")
        self.gates = model_type != "delta_net"
        self.one_added = model_type == "qwen3_5_text"
        if self.fla:
            self.embeddings = "model.embeddings.weight"

    def is_linear(self, c, i):
        usual = (i + 1) % c.get("full_attention_interval", 4) != 0
        return self.fla or (c["layer_types"][i] == "linear_attention" if c.get("layer_types") else usual)

    def sizes(self, c):
        """(heads of q and k, of v, sizes of a head of q and of v)"""
        if self.kind == "gated_deltanet":
            size = c.get("head_dim", 256)
            heads = c["num_heads"]
            return heads, c.get("num_v_heads") or heads, size, int(size * c.get("expand_v", 2))
        if self.kind == "delta_net":
            heads, width = c["num_heads"], c["hidden_size"]
            return heads, heads, *(round(width * c.get(f"expand_{x}", 1)) // heads for x in "kv")
        heads = c["num_attention_heads"]
        usual = (heads, heads) if self.kind == "olmo_hybrid" else (16, 32)
        keys = c.get("linear_num_key_heads") or usual[0]
        size = c.get("linear_key_head_dim") or int(0.75 * c["hidden_size"] / keys)
        return (keys, c.get("linear_num_value_heads") or usual[1], size,
                c.get("linear_value_head_dim") or 2 * size)

    def gated(self, c):
        return c.get("use_gate", self.gates) if self.fla else True

    def linear_shapes(self, c):
        keys, heads, size, value = self.sizes(c)
        width, all_keys, values = c["hidden_size"], keys * size, heads * value
        taps = c.get("conv_size" if self.fla else "linear_conv_kernel_dim", 4)
        names = ("in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj")
        if self.kind != "qwen3_5_text":
            names = ("g_proj", "b_proj", "a_proj", "o_norm", "o_proj")
        z, b, a, norm, out = names
        shapes = {f"{b}.weight": (heads, width), f"{norm}.weight": (value,), f"{out}.weight": (width, values)}
        if self.gated(c):
            shapes[f"{z}.weight"] = (values, width)
        if self.gates:
            shapes |= {f"{a}.weight": (heads, width), "A_log": (heads,), "dt_bias": (heads,)}
        rows = {"q": all_keys, "k": all_keys, "v": values}
        if self.kind == "qwen3_5_text":
            rows = {"in_proj_qkv.weight": (sum(rows.values()), width),
                    "conv1d.weight": (sum(rows.values()), 1, taps)}
            return shapes | rows
        for x, count in rows.items():
            shapes |= {f"{x}_proj.weight": (count, width), f"{x}_conv1d.weight": (count, 1, taps)}
        return shapes

    def attention_shapes(self, c):
        heads, kv_heads, size = self.shape(c)
        width, turns = c["hidden_size"], 2 if self.one_added else 1
        rows = {"q_proj": (turns * heads * size, width), "k_proj": (kv_heads * size, width),
                "v_proj": (kv_heads * size, width), "o_proj": (width, heads * size)}
        biased = c.get("attention_bias", False)
        shapes = {f"{name}.weight": shape for name, shape in rows.items()}
        shapes |= {f"{name}.bias": shape[:1] for name, shape in rows.items() if biased}
        whole = (1, 1) if self.one_added else (heads, kv_heads)
        return shapes | {f"{x}_norm.weight": (n * size,) for x, n in zip("qk", whole)}

    def names(self, c, i):
        """(mixer, MLP, norms before them, norms behind them)"""
        if self.fla:
            return "attn", "mlp", ("attn_norm", "mlp_norm"), ()
        mixer = "linear_attn" if self.is_linear(c, i) else "self_attn"
        if self.kind == "olmo_hybrid" and not self.is_linear(c, i):
            return mixer, "mlp", (), ("post_attention_layernorm", "post_feedforward_layernorm")
        before = ("input_layernorm", "post_attention_layernorm")
        if self.kind == "olmo_hybrid":
            before = ("attention_layer_norm", "feedforward_layer_norm")
        return mixer, "mlp", before, ()

    def inner(self, c):
        size = c.get("intermediate_size")
        if size is None:
            size = 256 * ((int(c["hidden_size"] * c.get("hidden_ratio", 4) * 2 / 3) + 255) // 256)
        return size

    def tensors(self, c):
        noise, width, inner = Noise(), c["hidden_size"], self.inner(c)
        mean = 0 if self.one_added else 1
        tensors = {self.embeddings: noise("in", c["vocab_size"], width, scale=0.5),
                   "model.norm.weight": noise("norm", width, mean=mean)}
        for i in range(c["num_hidden_layers"]):
            mixer, mlp, before, behind = self.names(c, i)
            layer, linear = f"model.layers.{i}.", self.is_linear(c, i)
            shapes = {f"{mixer}.{name}": shape for name, shape in
                      (self.linear_shapes(c) if linear else self.attention_shapes(c)).items()}
            shapes |= {f"{norm}.weight": (width,) for norm in (*before, *behind)}
            shapes |= {f"{mlp}.{name}_proj.weight": shape for name, shape in
                       (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner)))}
            for name, shape in shapes.items():
                own = linear and name.startswith(mixer)
                usual = (1 if own else mean) if name.endswith("norm.weight") or "layer" in name else 0
                tensors[layer + name] = noise(layer + name, *shape, scale=0.5 if len(shape) == 3 else 0.25,
                                              mean=-1 if name.endswith("A_log") else usual)
        if not c.get("tie_word_embeddings", False):
            tensors[Dense.head] = noise("out", c["vocab_size"], width)
        return tensors

    def norm(self, x, weight, eps, one_added=False):
        return rms_norm(x, eps) * (weight + one_added)

    def mix_linear(self, c, get, x):
        keys, heads, size, value = self.sizes(c)
        if self.kind == "qwen3_5_text":
            z, b, a, norm, out = ("in_proj_z", "in_proj_b", "in_proj_a", "norm", "out_proj")
            u, weight = x @ get("in_proj_qkv.weight").T, get("conv1d.weight")
        else:
            z, b, a, norm, out = ("g_proj", "b_proj", "a_proj", "o_norm", "o_proj")
            u = np.concatenate([x @ get(f"{n}_proj.weight").T for n in "qkv"], -1)
            weight = np.concatenate([get(f"{n}_conv1d.weight") for n in "qkv"])
        u = silu(convolve(u, weight[:, 0]))
        parts = np.split(u, [keys * size, 2 * keys * size], -1)
        q, k = (np.repeat(p.reshape(len(x), keys, size), heads // keys, 1) for p in parts[:2])
        negative = c.get("allow_neg_eigval", False)
        if self.kind == "olmo_hybrid":
            negative = c.get("linear_allow_neg_eigval", True)
        beta = sigmoid(x @ get(f"{b}.weight").T) * (2 if negative else 1)
        decay = np.ones(beta.shape)
        if self.gates:
            step = softplus(x @ get(f"{a}.weight").T + get("dt_bias"))
            decay = np.exp(-np.exp(get("A_log")) * step)
        h = delta_rule(q, k, parts[2].reshape(len(x), heads, value), beta, decay)
        eps = 1e-5 if self.kind == "olmo_hybrid" else self.eps(c)
        h = self.norm(h, get(f"{norm}.weight"), eps).reshape(len(x), -1)
        if self.gated(c):
            act = sigmoid if c.get("output_gate_activation") == "sigmoid" else silu
            h = h * act(x @ get(f"{z}.weight").T)
        return h @ get(f"{out}.weight").T

    def turn(self, c, x):
        """[H, T, d], in part."""
        rope = dict(c.get("rope_parameters") or {})
        base = rope.get("rope_theta", c.get("rope_theta", self.theta))
        if self.kind == "olmo_hybrid" and base is None:
            return x
        part = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25))
        size = x.shape[-1]
        turned = int(size * part) if self.one_added else size
        angles = np.outer(np.arange(x.shape[1]), base ** (-np.arange(0, turned, 2) / turned))
        half = angles.shape[1]
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = x[..., :half], x[..., half:2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)

    def mix_attention(self, c, get, x):
        heads, kv_heads, size = self.shape(c)

        def linear(name, y=x):
            return y @ get(f"{name}.weight").T + get(f"{name}.bias", np.zeros(()))

        gate, split = None, []
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            z = linear(f"{name}_proj")
            if name == "q" and self.one_added:
                z, gate = np.split(z.reshape(len(x), heads, 2, size), 2, 2)
            if name != "v" and not self.one_added:  # all heads together
                z = self.norm(z, get(f"{name}_norm.weight"), self.eps(c))
            z = z.reshape(len(x), count, size)
            if name != "v" and self.one_added:
                z = self.norm(z, get(f"{name}_norm.weight"), self.eps(c), True)
            z = z.transpose(1, 0, 2)
            z = z if name == "v" else self.turn(c, z)
            split.append(z if name == "q" else np.repeat(z, heads // kv_heads, 0))
        q, k, v = split
        seen = np.tril(np.ones((len(x), len(x)), bool))
        scores = np.where(seen, q @ k.transpose(0, 2, 1) / size**0.5, -np.inf)
        h = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return linear("o_proj", h if gate is None else h * sigmoid(gate.reshape(h.shape)))

    def eps(self, c):
        return c.get("norm_eps" if self.fla else "rms_norm_eps", 1e-6)

    def logits(self, c, tensors, ids):
        tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        x = tensors[self.embeddings][ids]
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            mixer, mlp, before, behind = self.names(c, i)

            def normed(y, names, place, layer=layer):
                if not names:
                    return y
                return self.norm(y, tensors[f"{layer}{names[place]}.weight"], self.eps(c), self.one_added)

            def get(name, usual=None, prefix=f"{layer}{mixer}."):
                return tensors[prefix + name] if usual is None else tensors.get(prefix + name, usual)

            mix = self.mix_linear if self.is_linear(c, i) else self.mix_attention
            x = x + normed(mix(c, get, normed(x, before, 0)), behind, 0)
            y = normed(x, before, 1)
            gate, up, down = (tensors[f"{layer}{mlp}.{n}_proj.weight"].T for n in ("gate", "up", "down"))
            x = x + normed((silu(y @ gate) * (y @ up)) @ down, behind, 1)
        head = tensors.get(Dense.head, tensors[self.embeddings])
        return self.norm(x, tensors["model.norm.weight"], self.eps(c), self.one_added) @ head.T


HYBRID = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
          "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
DELTA = {
    "qwen3_5_text": Delta("qwen3_5_text", head_dim=16, **HYBRID),
    "olmo_hybrid": Delta("olmo_hybrid", pad_token_id=None, **HYBRID),
    "gated_deltanet": Delta("gated_deltanet", num_heads=2, num_v_heads=4, head_dim=8, expand_v=1.5),
    "delta_net": Delta("delta_net", num_heads=2),
}
