# SPDX-License-Identifier: Apache-2.0
"""The dense families in numpy's float64, from a config.json as their classes of transformers 5.24 read
it: for reference_models.py."""

import math

import numpy as np
from reference_math import Noise, gelu, gelu_tanh, log_softmax, relu, relu2, rms_norm, rotary, silu

SIZES = {"vocab_size": 275, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
         "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
ACTIVATIONS = {"silu": silu, "swish": silu, "gelu": gelu, "gelu_pytorch_tanh": gelu_tanh, "relu": relu,
               "relu2": relu2}


def all_alike(c):
    """(window or None, whether it rotates) of each layer."""
    return [(None, True)] * c["num_hidden_layers"]


def windows_of_mistral(c):
    return [(c.get("sliding_window", 4096), True)] * c["num_hidden_layers"]


def windows_of_phi3(c):
    return [(c.get("sliding_window"), True)] * c["num_hidden_layers"]


def windows_of_qwen(c):
    window = c.get("sliding_window", 4096) if c.get("use_sliding_window", False) else None
    sliding = [window is not None and i >= c.get("max_window_layers", 28)
               for i in range(c["num_hidden_layers"])]
    if c.get("layer_types"):
        sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    return [(window if slides else None, True) for slides in sliding]


def layers_of_smollm3(c):
    layers = range(c["num_hidden_layers"])
    turns = c.get("no_rope_layers") or [(i + 1) % c.get("no_rope_layer_interval", 4) != 0
                                        for i in layers]
    sliding = [c.get("use_sliding_window", False) and not turns[i] for i in layers]
    if c.get("layer_types"):
        sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    return [(c.get("sliding_window") if sliding[i] else None, bool(turns[i])) for i in layers]


class Dense:
    root = "model."
    head = "lm_head.weight"
    embeddings = "model.embed_tokens.weight"

    def __init__(self, model_type, layers=all_alike, qkv_bias=False, biases=(), qk_norm=False,
                 tied=False, theta=10000, longest=2048, head_dim=None, partial=False, original=None,
                 **config):
        self.config = {"model_type": model_type, **SIZES, **config}
        self.layers, self.qkv_bias, self.biases, self.qk_norm = layers, qkv_bias, biases, qk_norm
        self.tied, self.theta, self.longest, self.head_dim = tied, theta, longest, head_dim
        self.partial, self.original = partial, original

    def shape(self, c):
        """(heads, of keys, size of a head)"""
        heads = c["num_attention_heads"]
        size = c.get("head_dim") or self.head_dim or c["hidden_size"] // heads
        return heads, c["num_key_value_heads"] or heads, size

    def tensors(self, c):
        noise, width, inner = Noise(), c["hidden_size"], c["intermediate_size"]
        heads, kv_heads, size = self.shape(c)
        attention = "attention_bias" in self.biases and c.get("attention_bias", False)
        mlp = "mlp_bias" in self.biases and c.get("mlp_bias", False)
        qkv = attention or self.qkv_bias
        tensors = {Dense.embeddings: noise("in", c["vocab_size"], width, scale=0.5),
                   "model.norm.weight": noise("norm", width, mean=1)}
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            norms = {"input_layernorm": width, "post_attention_layernorm": width}
            if self.qk_norm:
                norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
            for name, length in norms.items():
                tensors[f"{layer}{name}.weight"] = noise(layer + name, length, mean=1)
            for name, rows, cols, biased in (
                    ("self_attn.q_proj", heads * size, width, qkv),
                    ("self_attn.k_proj", kv_heads * size, width, qkv),
                    ("self_attn.v_proj", kv_heads * size, width, qkv),
                    ("self_attn.o_proj", width, heads * size, attention),
                    ("mlp.gate_proj", inner, width, mlp), ("mlp.up_proj", inner, width, mlp),
                    ("mlp.down_proj", width, inner, mlp)):
                tensors[f"{layer}{name}.weight"] = noise(layer + name, rows, cols)
                if biased:
                    tensors[f"{layer}{name}.bias"] = noise(layer + name + "b", rows)
        if not c.get("tie_word_embeddings", self.tied):
            tensors[Dense.head] = noise("out", c["vocab_size"], width)
        return tensors

    def rotation(self, c, length):
        """Cosines and sines [length, what turns of a head]. The usual embedding turns whole heads, but
        where the class is partial."""
        rope = dict(c.get("rope_scaling") or c.get("rope_parameters") or {})
        whole = rope.get("rope_type", rope.get("type", "default")) == "default"
        if whole and not self.partial:
            rope["partial_rotary_factor"] = 1
        frequencies, factor = rotary(
            rope, c.get("rope_theta", self.theta), c.get("partial_rotary_factor", 1),
            self.shape(c)[2], c.get("max_position_embeddings", self.longest),
            c.get("original_max_position_embeddings", self.original))
        angles = np.outer(np.arange(length), frequencies)
        angles = np.concatenate([angles, angles], -1)
        return factor * np.cos(angles), factor * np.sin(angles)

    def logits(self, c, tensors, ids):
        def norm(x, name):
            return rms_norm(x, c.get("rms_norm_eps", 1e-6)) * tensors[name + ".weight"].astype(np.float64)

        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(())).astype(np.float64)
            return x @ tensors[name + ".weight"].astype(np.float64).T + bias

        def rotate(x):
            half = cos.shape[-1] // 2
            x, rest = x[..., :2 * half], x[..., 2 * half:]
            turned = x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin
            return np.concatenate([turned, rest], -1)

        (heads, kv_heads, size), length = self.shape(c), len(ids)
        cos, sin = self.rotation(c, length)
        back = np.subtract.outer(np.arange(length), np.arange(length))
        act, residual = ACTIVATIONS[c.get("hidden_act", "silu")], c.get("residual_multiplier", 1)
        scale = 1 / math.sqrt(size)
        if c["model_type"] == "granite":
            scale = c.get("attention_multiplier", 1)
        x = tensors[Dense.embeddings].astype(np.float64)[ids] * c.get("embedding_multiplier", 1)
        for i, (window, turns) in enumerate(self.layers(c)):
            layer = f"model.layers.{i}."

            def heads_of(name, y, count, layer=layer):
                z = linear(y, f"{layer}self_attn.{name}_proj").reshape(length, count, size)
                if self.qk_norm and name != "v":
                    z = norm(z, f"{layer}self_attn.{name}_norm")
                return z.transpose(1, 0, 2)

            y = norm(x, layer + "input_layernorm")
            q, k, v = heads_of("q", y, heads), heads_of("k", y, kv_heads), heads_of("v", y, kv_heads)
            if turns:
                q, k = rotate(q), rotate(k)
            k, v = (np.repeat(z, heads // kv_heads, 0) for z in (k, v))
            seen = (back >= 0) & (back < (window or length))
            scores = np.where(seen, scale * q @ k.transpose(0, 2, 1), -np.inf)
            mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(length, -1)
            x = x + residual * linear(mixed, layer + "self_attn.o_proj")
            y = norm(x, layer + "post_attention_layernorm")
            inner = act(linear(y, layer + "mlp.gate_proj")) * linear(y, layer + "mlp.up_proj")
            x = x + residual * linear(inner, layer + "mlp.down_proj")
        head = tensors.get(Dense.head, tensors[Dense.embeddings]).astype(np.float64)
        return norm(x, "model.norm") @ head.T / c.get("logits_scaling", 1)


BOTH = ("attention_bias", "mlp_bias")
WINDOW = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
DENSE = {
    "llama": Dense("llama", biases=BOTH),
    "mistral": Dense("mistral", windows_of_mistral, longest=131072),
    "qwen2": Dense("qwen2", windows_of_qwen, qkv_bias=True, longest=32768, **WINDOW),
    "qwen3": Dense("qwen3", windows_of_qwen, biases=BOTH[:1], qk_norm=True, longest=32768,
                   head_dim=128, **WINDOW),
    "smollm3": Dense("smollm3", layers_of_smollm3, biases=BOTH, tied=True, theta=2e6, longest=32768,
                     no_rope_layer_interval=2, sliding_window=5, pad_token_id=None),
    "granite": Dense("granite", biases=BOTH),
}
DENSE["qwen3"].config["head_dim"] = 12


class Fused(Dense):
    """Phi-3: q, k and v in one matrix, and gates and ups."""

    parts = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
             "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}

    def tensors(self, c):
        tensors = super().tensors(c)
        for i in range(c["num_hidden_layers"]):
            for whole, parts in self.parts.items():
                own = [tensors.pop(f"model.layers.{i}.{part}.weight") for part in parts]
                tensors[f"model.layers.{i}.{whole}.weight"] = np.concatenate(own)
        return tensors

    def logits(self, c, tensors, ids):
        heads, kv_heads, size = self.shape(c)
        split = {"self_attn.qkv_proj": [heads * size, (heads + kv_heads) * size], "mlp.gate_up_proj": 2}
        tensors = dict(tensors)
        for i in range(c["num_hidden_layers"]):
            for whole, parts in self.parts.items():
                own = np.split(tensors.pop(f"model.layers.{i}.{whole}.weight"), split[whole])
                tensors |= {f"model.layers.{i}.{part}.weight": one for part, one in zip(parts, own)}
        return super().logits(c, tensors, ids)


DENSE["phi3"] = Fused("phi3", windows_of_phi3, longest=4096, original=4096, partial=True,
                      pad_token_id=None, rms_norm_eps=1e-5, original_max_position_embeddings=8)


def every(n):
    """Each n-th layer is full, unless layer_types says which."""
    def layers(c):
        kinds = c.get("layer_types") or ["sliding_attention" if (i + 1) % c.get("sliding_window_pattern", n)
                                         else "full_attention" for i in range(c["num_hidden_layers"])]
        return [(c.get("sliding_window", 4096) if kind == "sliding_attention" else None, True)
                for kind in kinds]
    return layers


class Normed(Dense):
    """With norms behind the branches: OLMo, and Gemma, whose norms are 1 + w."""

    def __init__(self, model_type, layers, thetas=None, **keys):
        super().__init__(model_type, layers, biases=("attention_bias",), **keys)
        self.gemma, self.thetas = model_type.startswith("gemma"), thetas

    def norms(self, c):
        (heads, kv_heads, size), width = self.shape(c), c["hidden_size"]
        names = {"post_attention_layernorm": width, "post_feedforward_layernorm": width}
        if self.gemma:
            names |= {"input_layernorm": width, "pre_feedforward_layernorm": width}
        if c["model_type"] == "gemma3_text":
            names |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
        if not self.gemma:
            names |= {"self_attn.q_norm": heads * size, "self_attn.k_norm": kv_heads * size}
        return names

    def tensors(self, c):
        mean, noise, tensors = 0 if self.gemma else 1, Noise(), super().tensors(c)
        tensors = {name: t for name, t in tensors.items() if "layernorm" not in name}
        tensors["model.norm.weight"] = noise("norm", c["hidden_size"], mean=mean)
        for i in range(c["num_hidden_layers"]):
            for name, size in self.norms(c).items():
                full = f"model.layers.{i}.{name}.weight"
                tensors[full] = noise(full, size, mean=mean)
        return tensors

    def rotations(self, c, length):
        """Of full layers and of those with a window."""
        if not self.thetas:
            return (self.rotation(c, length),) * 2
        rope, found = c.get("rope_parameters") or {}, []
        own = {"full_attention": c.get("rope_scaling") or rope.get("full_attention") or {},
               "sliding_attention": rope.get("sliding_attention") or {}}
        outside = {"full_attention": c.get("rope_theta"), "sliding_attention":
                   c.get("rope_local_base_freq") if self.gemma else None}
        for theta, kind in zip(self.thetas, own):
            parameters = {**own[kind], "truncate": rope.get("truncate", True)}
            alone = {"head_dim": self.shape(c)[2], "hidden_size": c["hidden_size"],
                     "num_attention_heads": c["num_attention_heads"],
                     "num_key_value_heads": c["num_key_value_heads"], "rope_parameters": parameters,
                     "rope_theta": outside[kind] or theta}
            found.append(self.rotation(alone | {"max_position_embeddings": c.get(
                "max_position_embeddings", self.longest)}, length))
        return found

    def logits(self, c, tensors, ids):
        def norm(x, name):
            w = tensors[name + ".weight"].astype(np.float64) + self.gemma
            return rms_norm(x, eps) * w

        def maybe(x, name):
            return norm(x, name) if name + ".weight" in tensors else x

        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(())).astype(np.float64)
            return x @ tensors[name + ".weight"].astype(np.float64).T + bias

        def cap(x, softcap):
            return softcap * np.tanh(x / softcap) if softcap else x

        (heads, kv_heads, size), length = self.shape(c), len(ids)
        eps = c.get("rms_norm_eps", 1e-6 if self.gemma else 1e-5)
        rotations = self.rotations(c, length)
        back = np.subtract.outer(np.arange(length), np.arange(length))
        act = ACTIVATIONS[c.get("hidden_activation", "gelu_pytorch_tanh") if self.gemma
                          else c.get("hidden_act", "silu")]
        scale = (c.get("query_pre_attn_scalar", 256) if self.gemma else size) ** -0.5
        softcap = c.get("attn_logit_softcapping", 50) if c["model_type"] == "gemma2" else None
        x = tensors[Dense.embeddings].astype(np.float64)[ids]
        x = x * np.sqrt(c["hidden_size"]) if self.gemma else x
        for i, (window, _) in enumerate(self.layers(c)):
            layer = f"model.layers.{i}."
            cos, sin = rotations[window is not None]
            split = []
            y = maybe(x, layer + "input_layernorm")
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                z = linear(y, f"{layer}self_attn.{name}_proj")
                z = z.reshape(length, count, size) if self.gemma else z
                z = maybe(z, f"{layer}self_attn.{name}_norm").reshape(length, count, size)
                z = z.transpose(1, 0, 2)
                if name != "v":
                    z = z * cos + np.concatenate([-z[..., size // 2:], z[..., :size // 2]], -1) * sin
                split.append(z if name == "q" else np.repeat(z, heads // kv_heads, 0))
            q, k, v = split
            seen = (back >= 0) & (back < (window or length))
            scores = np.where(seen, cap(scale * q @ k.transpose(0, 2, 1), softcap), -np.inf)
            mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(length, -1)
            y = linear(mixed, layer + "self_attn.o_proj")
            x = x + norm(y, layer + "post_attention_layernorm")
            y = maybe(x, layer + "pre_feedforward_layernorm")
            inner = act(linear(y, layer + "mlp.gate_proj")) * linear(y, layer + "mlp.up_proj")
            x = x + norm(linear(inner, layer + "mlp.down_proj"), layer + "post_feedforward_layernorm")
        head = tensors.get(Dense.head, tensors[Dense.embeddings]).astype(np.float64)
        usual = 30 if c["model_type"] == "gemma2" else None
        return cap(norm(x, "model.norm") @ head.T, c.get("final_logit_softcapping", usual))


GEMMA = {"tied": True, "head_dim": 256, "sliding_window": 5, "query_pre_attn_scalar": 10}
DENSE |= {
    "olmo2": Normed("olmo2", all_alike),
    "olmo3": Normed("olmo3", every(4), (500000, 500000), sliding_window=5,
                    layer_types=["full_attention", "sliding_attention"]),
    "gemma2": Normed("gemma2", every(2), longest=8192, **GEMMA),
    "gemma3_text": Normed("gemma3_text", every(6), (1e6, 1e4), longest=131072, **GEMMA,
                          layer_types=["full_attention", "sliding_attention"]),
}
for family in ("gemma2", "gemma3_text"):
    DENSE[family].config["head_dim"] = 12
