# SPDX-License-Identifier: Apache-2.0
"""The families with Mamba-2 in numpy's float64, from a config.json as their classes of transformers 5.24
read it: for reference_models.py."""

import math

import numpy as np
from reference_dense import ACTIVATIONS
from reference_math import Noise, convolve, log_softmax, rms_norm, rotary, silu, softplus

SIZES = {"vocab_size": 275, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 0,
         "eos_token_id": 0}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
MIXER = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
# What classes call a mixer's keys: heads, a head's size, the state's, groups, the convolution's width,
# and the biases of the convolution, of in_proj and of out_proj.
BAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
         "mamba_conv_bias", "mamba_proj_bias", "mamba_proj_bias")
NAMES = {
    "mamba2": ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_conv_bias",
               "use_bias", "use_bias"),
    "bamba": BAMBA, "granitemoehybrid": BAMBA, "falcon_h1": (*BAMBA[:7], "projectors_bias"),
    "nemotron_h": ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel",
                   "use_conv_bias", "use_bias", "use_bias")}
KINDS = {"mamba": "linear_attention", "attention": "full_attention", "M": "linear_attention",
         "*": "full_attention", "-": "mlp"}


def number(value):
    return float(value["__float__"]) if isinstance(value, dict) else value


class Hybrid:
    head = "lm_head.weight"

    def __init__(self, model_type, tied=False, **config):
        self.type, self.tied = model_type, tied
        self.config = {"model_type": model_type, **SIZES, **config}
        old = model_type in ("mamba2", "nemotron_h")
        self.root = "backbone." if old else "model."
        self.embeddings = self.root + ("embeddings" if old else "embed_tokens") + ".weight"
        self.last = {"mamba2": "norm_f", "nemotron_h": "norm_f", "granitemoehybrid": "norm"}.get(
            model_type, "final_layernorm")

    # ---- what a configuration says

    def mixer(self, c):
        """(H, P, N, G, K, biases of the convolution, in_proj, out_proj)"""
        heads, size, state, groups, width, conv, into, out = NAMES[self.type]
        p = c.get(size, "auto")
        if p == "auto":
            inner = c.get("mamba_d_ssm", 2 * c["hidden_size"])
            p = (inner or 2 * c["hidden_size"]) // c[heads]
        return (c[heads], p, c[state], c[groups], c.get(width, 4), c.get(conv, True),
                c.get(into, False), c.get(out, False))

    def eps(self, c):
        if self.type in ("mamba2", "nemotron_h"):
            return c.get("layer_norm_epsilon", 1e-5)
        return c.get("rms_norm_eps", 1e-6 if self.type == "granitemoehybrid" else 1e-5)

    def heads(self, c):
        """(heads of attention, those of keys, a head's size)"""
        usual = 128 if self.type == "nemotron_h" else c["hidden_size"] // c["num_attention_heads"]
        heads = c["num_attention_heads"]
        return heads, c.get("num_key_value_heads", heads) or heads, c.get("head_dim") or usual

    def inner(self, c):
        return c["shared_intermediate_size" if self.type == "granitemoehybrid" else "intermediate_size"]

    def layers(self, c):
        """The kind of each: of falcon_h1 both at once."""
        count = c.get("num_hidden_layers", 2)
        if self.type == "bamba":
            full = c.get("attn_layer_indices") or []
            return ["full_attention" if i in full else "linear_attention" for i in range(count)]
        kinds = c.get("layers_block_type") or c.get("layer_types") or c.get("hybrid_override_pattern")
        kinds = [KINDS.get(kind, kind) for kind in kinds or ["linear_attention"] * count]
        return ["both"] * count if self.type == "falcon_h1" else kinds

    def step(self, c):
        """The limits of dt."""
        usual = [0.0, {"__float__": "Infinity"}]
        return [number(limit) for limit in c.get("time_step_limit") or usual]

    def multiplier(self, c, name):
        return c.get(name, 1)

    # ---- tensors

    def shapes(self, c):
        """name -> shape; vectors as they are."""
        width, shapes = c["hidden_size"], {}

        def linear(name, rows, cols, biased):
            shapes[name + ".weight"] = (rows, cols)
            if biased:
                shapes[name + ".bias"] = (rows,)

        for i, kind in enumerate(self.layers(c)):
            layer = f"{self.root}layers.{i}."
            alone = self.type in ("mamba2", "nemotron_h")
            shapes[layer + ("norm" if alone else "input_layernorm") + ".weight"] = (width,)
            if kind in ("linear_attention", "both"):
                at = layer + ("mixer." if alone else "mamba.")
                h, p, n, g, k, conv, into, out = self.mixer(c)
                linear(at + "in_proj", 2 * h * p + 2 * g * n + h, width, into)
                shapes[at + "conv1d.weight"] = (h * p + 2 * g * n, 1, k)
                if conv:
                    shapes[at + "conv1d.bias"] = (h * p + 2 * g * n,)
                shapes |= {at + name: (h,) for name in ("A_log", "D", "dt_bias")}
                if self.type != "falcon_h1" or c.get("mamba_rms_norm", False):
                    shapes[at + "norm.weight"] = (h * p,)
                linear(at + "out_proj", width, h * p, out)
            if kind in ("full_attention", "both"):
                at = layer + ("mixer." if alone else "self_attn.")
                heads, kv, size = self.heads(c)
                biased = c.get("attention_bias", False) and self.type != "nemotron_h"
                for name, rows in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
                    linear(at + name, rows * size, width, biased)
                linear(at + "o_proj", width, heads * size, biased)
            if self.type == "mamba2" or (alone and kind != "mlp"):
                continue
            inner, biased = self.inner(c), c.get("mlp_bias", False)
            if self.type == "nemotron_h":
                linear(layer + "mixer.up_proj", inner, width, biased)
                linear(layer + "mixer.down_proj", width, inner, biased)
            elif self.type == "granitemoehybrid":
                shapes[layer + "post_attention_layernorm.weight"] = (width,)
                linear(layer + "shared_mlp.input_linear", 2 * inner, width, False)
                linear(layer + "shared_mlp.output_linear", width, inner, False)
            else:
                shapes[layer + "pre_ff_layernorm.weight"] = (width,)
                linear(layer + "feed_forward.gate_proj", inner, width, biased)
                linear(layer + "feed_forward.up_proj", inner, width, biased)
                linear(layer + "feed_forward.down_proj", width, inner, biased)
        return shapes

    def tensors(self, c):
        noise, width = Noise(), c["hidden_size"]
        tensors = {self.embeddings: noise("in", c["vocab_size"], width, scale=0.5),
                   f"{self.root}{self.last}.weight": noise("norm", width, mean=1)}
        for name, shape in self.shapes(c).items():
            mean = 1 if len(shape) == 1 and name.endswith(("norm.weight", ".D")) else 0
            tensors[name] = noise(name, *shape, mean=mean, scale=0.5 if "conv1d" in name else 0.25)
        if not c.get("tie_word_embeddings", self.tied):
            tensors[self.head] = noise("out", c["vocab_size"], width)
        return tensors

    # ---- what it computes

    def logits(self, c, tensors, ids):
        return Run(self, c, tensors, len(ids)).logits(ids)


class Run:
    def __init__(self, family, c, tensors, length):
        self.family, self.c, self.length = family, c, length
        self.weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0)

    def norm(self, x, name, groups=1):
        parts = rms_norm(x.reshape(self.length, groups, -1), self.family.eps(self.c))
        return parts.reshape(x.shape) * self.weights[name + ".weight"]

    def mamba(self, x, at):
        c, length = self.c, self.length
        h, p, n, g, *_ = self.family.mixer(c)
        inner, state = h * p, g * n
        y = self.linear(x * c.get("ssm_in_multiplier", 1), at + "in_proj")
        scales = c.get("ssm_multipliers") or [1] * 5
        y = y * np.repeat(scales, [inner, inner, state, state, h])
        z, y, dt = np.split(y, [inner, 2 * inner + 2 * state], -1)
        y = convolve(y, self.weights[at + "conv1d.weight"][:, 0])
        u, b, q = np.split(silu(y + self.weights.get(at + "conv1d.bias", 0)), [inner, inner + state], -1)
        u = u.reshape(length, h, p)
        b, q = (np.repeat(s.reshape(length, g, n), h // g, 1) for s in (b, q))
        dt = np.clip(softplus(dt + self.weights[at + "dt_bias"]), *self.family.step(c))
        decay = np.exp(-dt * np.exp(self.weights[at + "A_log"]))
        s, out = np.zeros((h, p, n)), np.zeros((length, h, p))
        for t in range(length):
            s = s * decay[t][:, None, None] + (dt[t][:, None] * u[t])[..., None] * b[t][:, None]
            out[t] = np.einsum("hpn,hn->hp", s, q[t]) + self.weights[at + "D"][:, None] * u[t]
        out = out.reshape(length, inner)
        if at + "norm.weight" not in self.weights:
            out = out * silu(z)
        elif self.family.type == "falcon_h1" and c.get("mamba_norm_before_gate", True):
            out = self.norm(out, at + "norm", g) * silu(z)
        else:
            out = self.norm(out * silu(z), at + "norm", g)
        return self.linear(out, at + "out_proj")

    def rotation(self, size):
        """Cosines and sines of the dimensions that turn; None: none does."""
        c, kind = self.c, self.family.type
        turns = kind != "granitemoehybrid" or c.get("position_embedding_type") == "rope"
        if kind == "nemotron_h" or not turns:
            return None
        longest = {"bamba": 262144, "falcon_h1": 8192}.get(kind, 2048)
        rope = dict(c.get("rope_scaling") or c.get("rope_parameters") or {})
        if kind != "bamba" and rope.get("rope_type", "default") == "default":
            rope["partial_rotary_factor"] = 1
        frequencies, factor = rotary(rope, c.get("rope_theta", 10000), 0.5 if kind == "bamba" else 1, size,
                                     c.get("max_position_embeddings", longest))
        angles = np.outer(np.arange(self.length), np.concatenate([frequencies, frequencies]))
        return factor * np.cos(angles), factor * np.sin(angles)

    def attention(self, x, at):
        c, length = self.c, self.length
        heads, kv, size = self.family.heads(c)
        x = x * c.get("attention_in_multiplier", 1)
        turned = self.rotation(size)

        def rotate(y):
            if turned is None:
                return y
            cos, sin = turned
            r, half = cos.shape[-1], cos.shape[-1] // 2
            other = np.concatenate([-y[..., half:r], y[..., :half]], -1)
            return np.concatenate([y[..., :r] * cos + other * sin, y[..., r:]], -1)

        q, k, v = (self.linear(x, at + f"{name}_proj").reshape(length, count, size).transpose(1, 0, 2)
                   for name, count in (("q", heads), ("k", kv), ("v", kv)))
        q, k = rotate(q), rotate(k * c.get("key_multiplier", 1))
        k, v = (np.repeat(y, heads // kv, 0) for y in (k, v))
        scale = 1 / math.sqrt(size)
        if self.family.type == "granitemoehybrid":
            scale = c.get("attention_multiplier", 1)
        seen = np.tril(np.ones((length, length), bool))
        scores = np.where(seen, scale * q @ k.transpose(0, 2, 1), -np.inf)
        mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(length, -1)
        return self.linear(mixed, at + "o_proj")

    def mlp(self, x, layer):
        c, kind = self.c, self.family.type
        if kind == "nemotron_h":
            act = ACTIVATIONS[c.get("mlp_hidden_act", "relu2")]
            return self.linear(act(self.linear(x, layer + "mixer.up_proj")), layer + "mixer.down_proj")
        act, at = ACTIVATIONS[c.get("hidden_act", "silu")], layer + "feed_forward."
        if kind == "granitemoehybrid":
            at = layer + "shared_mlp."
            gate, up = np.split(self.linear(x, at + "input_linear"), 2, -1)
            return self.linear(act(gate) * up, at + "output_linear")
        first, last = c.get("mlp_multipliers") or (1, 1)
        gate = act(first * self.linear(x, at + "gate_proj"))
        return last * self.linear(gate * self.linear(x, at + "up_proj"), at + "down_proj")

    def logits(self, ids):
        c, family = self.c, self.family
        residual = c.get("residual_multiplier", 1)
        x = self.weights[family.embeddings][ids] * c.get("embedding_multiplier", 1)
        for i, kind in enumerate(family.layers(c)):
            layer = f"{family.root}layers.{i}."
            alone = family.type in ("mamba2", "nemotron_h")
            y, added = self.norm(x, layer + ("norm" if alone else "input_layernorm")), 0
            if kind in ("linear_attention", "both"):
                added = self.mamba(y, layer + ("mixer." if alone else "mamba."))
                added = added * c.get("ssm_out_multiplier", 1)
            if kind in ("full_attention", "both"):
                out = self.attention(y, layer + ("mixer." if alone else "self_attn."))
                added = added + out * c.get("attention_out_multiplier", 1)
            if kind == "mlp":
                added = self.mlp(y, layer)
            x = x + residual * added
            if alone:
                continue
            before = "post_attention_layernorm" if family.type == "granitemoehybrid" else "pre_ff_layernorm"
            x = x + residual * self.mlp(self.norm(x, layer + before), layer)
        head = self.weights.get(family.head, self.weights[family.embeddings])
        logits = self.norm(x, family.root + family.last) @ head.T
        return logits * c.get("lm_head_multiplier", 1) / c.get("logits_scaling", 1)


MAMBA = {
    "mamba2": Hybrid("mamba2", num_heads=4, head_dim=16, state_size=8, n_groups=2),
    "bamba": Hybrid("bamba", **ATTENTION, **MIXER, attn_layer_indices=[1]),
    "granitemoehybrid": Hybrid(
        "granitemoehybrid", **ATTENTION, **MIXER, num_local_experts=0, shared_intermediate_size=40,
        layer_types=["linear_attention", "full_attention"]),
    "falcon_h1": Hybrid("falcon_h1", **ATTENTION, **MIXER, mamba_d_ssm=64),
    "nemotron_h": Hybrid(
        "nemotron_h", **ATTENTION, head_dim=12, mamba_num_heads=4, mamba_head_dim=12, ssm_state_size=8,
        n_groups=2, time_step_min=1e-30, num_experts_per_tok=1,
        layers_block_type=["linear_attention", "full_attention", "mlp"]),
}
