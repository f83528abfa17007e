# SPDX-License-Identifier: Apache-2.0
"""Gemma 4's text models in numpy's float64, from a config.json as their class of transformers 5.24 reads
it: for reference_models.py."""

import numpy as np
from reference_dense import ACTIVATIONS, SIZES, Dense
from reference_math import Noise, log_softmax, rms_norm, rotary

FULL, SLIDES = "full_attention", "sliding_attention"
USUAL_ROPE = {FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
              SLIDES: {"rope_type": "default", "rope_theta": 1e4}}


class Gemma4(Dense):
    def __init__(self, **config):
        super().__init__("gemma4_text", longest=131072, tied=True)
        self.config = {"model_type": "gemma4_text", **SIZES, **config}

    def kinds(self, c):
        layers = c["num_hidden_layers"]
        kinds = c.get("layer_types") or [SLIDES if (i + 1) % 6 else FULL for i in range(layers)]
        return [*kinds[:-1], FULL]

    def source(self, c, i):
        """The layer whose keys and values a layer has."""
        kinds, own = self.kinds(c), c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)
        return i if i < own else max(j for j in range(own) if kinds[j] == kinds[i])

    def heads(self, c, kind):
        """(of queries, of keys, size)"""
        heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        if kind == FULL:
            size = c.get("global_head_dim", 512)
            given = c.get("num_global_key_value_heads") if c.get("attention_k_eq_v") else None
            kv_heads = given or kv_heads
            for own in (c.get("per_layer_config") or {}).values():
                size, kv_heads = own.get("head_dim", c["head_dim"]), own.get("num_key_value_heads", kv_heads)
        return heads, kv_heads, size

    def attention(self, c, i, add):
        kind, width, bias = self.kinds(c)[i], c["hidden_size"], c.get("attention_bias", False)
        heads, kv_heads, size = self.heads(c, kind)
        layer = f"model.layers.{i}.self_attn."
        add(layer + "q_proj", heads * size, width, biased=bias)
        add(layer + "q_norm", size, mean=1)
        add(layer + "o_proj", width, heads * size, biased=bias)
        if self.source(c, i) != i:
            return
        add(layer + "k_proj", kv_heads * size, width, biased=bias)
        add(layer + "k_norm", size, mean=1)
        if kind == SLIDES or not c.get("attention_k_eq_v"):
            add(layer + "v_proj", kv_heads * size, width, biased=bias)

    def feed_forward(self, c, i, add):
        width, inner, layer = c["hidden_size"], c["intermediate_size"], f"model.layers.{i}."
        wide = c.get("use_double_wide_mlp") and self.source(c, i) != i
        inner = inner * (2 if wide else 1)
        for name, rows, cols in (("gate_proj", inner, width), ("up_proj", inner, width),
                                 ("down_proj", width, inner)):
            add(f"{layer}mlp.{name}", rows, cols)
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                     "post_feedforward_layernorm"):
            add(layer + name, width, mean=1)
        if c.get("enable_moe_block"):
            for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                         "pre_feedforward_layernorm_2"):
                add(layer + name, width, mean=1)
            count, size = c["num_experts"], c["moe_intermediate_size"]
            add(layer + "router.proj", count, width)
            add(layer + "router.scale", width, mean=1, end="")
            add(layer + "router.per_expert_scale", count, mean=1, end="")
            add(layer + "experts.gate_up_proj", count, 2 * size, width, end="")
            add(layer + "experts.down_proj", count, width, size, end="")

    def tensors(self, c):
        noise, width, tensors = Noise(), c["hidden_size"], {}
        layers, own = c["num_hidden_layers"], c.get("hidden_size_per_layer_input", 256)

        def add(name, *shape, biased=False, mean=0, end=".weight"):
            tensors[name + end] = noise(name, *shape, mean=mean)
            if biased:
                tensors[name + ".bias"] = noise(name + "b", shape[0])

        add("model.embed_tokens", c["vocab_size"], width)
        add("model.norm", width, mean=1)
        if not c.get("tie_word_embeddings", True):
            add("lm_head", c["vocab_size"], width)
        if own:
            add("model.embed_tokens_per_layer", c.get("vocab_size_per_layer_input", 262144), layers * own)
            add("model.per_layer_model_projection", layers * own, width)
            add("model.per_layer_projection_norm", own, mean=1)
        for i in range(layers):
            self.attention(c, i, add)
            self.feed_forward(c, i, add)
            add(f"model.layers.{i}.layer_scalar", 1, mean=1, end="")
            if own:
                add(f"model.layers.{i}.per_layer_input_gate", own, width)
                add(f"model.layers.{i}.per_layer_projection", width, own)
                add(f"model.layers.{i}.post_per_layer_input_norm", width, mean=1)
        return tensors

    def turn(self, c, kind, x):
        rope = (c.get("rope_parameters") or USUAL_ROPE)[kind]
        frequencies, factor = rotary(rope, 1e4, 1, x.shape[-1], c.get("max_position_embeddings", 131072))
        angles, half = np.outer(np.arange(x.shape[1]), frequencies), x.shape[-1] // 2
        angles = np.concatenate([angles, angles], -1)
        return factor * (x * np.cos(angles)
                         + np.concatenate([-x[..., half:], x[..., :half]], -1) * np.sin(angles))

    def logits(self, c, tensors, ids):
        def weight(name):
            return tensors[name].astype(np.float64)

        def norm(x, name=None):
            return rms_norm(x, c.get("rms_norm_eps", 1e-6)) * (weight(name + ".weight") if name else 1)

        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(())).astype(np.float64)
            return x @ weight(name + ".weight").T + bias

        def split(x, count, size):
            return x.reshape(len(ids), count, size)

        def attend(x, i):
            kind, layer = self.kinds(c)[i], f"model.layers.{i}.self_attn."
            heads, kv_heads, size = self.heads(c, kind)
            if self.source(c, i) == i:
                k = split(linear(x, layer + "k_proj"), kv_heads, size)
                alike = layer + "v_proj.weight" not in tensors
                v = k if alike else split(linear(x, layer + "v_proj"), kv_heads, size)
                k = self.turn(c, kind, norm(k, layer + "k_norm").transpose(1, 0, 2))
                kept[i] = k, norm(v).transpose(1, 0, 2)
            k, v = (np.repeat(z, heads // kv_heads, 0) for z in kept[self.source(c, i)])
            q = norm(split(linear(x, layer + "q_proj"), heads, size), layer + "q_norm")
            q = self.turn(c, kind, q.transpose(1, 0, 2))
            back = np.subtract.outer(np.arange(len(ids)), np.arange(len(ids)))
            window = c.get("sliding_window", 512) if kind == SLIDES else len(ids)
            scores = np.where((back >= 0) & (back < window), q @ k.transpose(0, 2, 1), -np.inf)
            mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(len(ids), -1)
            return linear(mixed, layer + "o_proj")

        def mix(x, i):
            layer, count = f"model.layers.{i}.", c["top_k_experts"]
            scores = norm(x) * weight(layer + "router.scale") * c["hidden_size"] ** -0.5
            scores = np.exp(log_softmax(linear(scores, layer + "router.proj")))
            y, out = norm(x, layer + "pre_feedforward_layernorm_2"), np.zeros_like(x)
            for t, row in enumerate(scores):
                chosen = np.argsort(-row, kind="stable")[:count]
                for e in chosen:
                    both = weight(layer + "experts.gate_up_proj")[e] @ y[t]
                    gate, up = np.split(both, 2)
                    own = weight(layer + "experts.down_proj")[e] @ (act(gate) * up)
                    share = row[e] / row[chosen].sum() * weight(layer + "router.per_expert_scale")[e]
                    out[t] += share * own
            return out

        kept, act = {}, ACTIVATIONS[c.get("hidden_activation", "gelu_pytorch_tanh")]
        layers, own = c["num_hidden_layers"], c.get("hidden_size_per_layer_input", 256)
        x = weight("model.embed_tokens.weight")[ids] * c["hidden_size"] ** 0.5
        if own:
            given = split(weight("model.embed_tokens_per_layer.weight")[ids] * own**0.5, layers, own)
            inputs = split(linear(x, "model.per_layer_model_projection"), layers, own)
            inputs = norm(inputs * c["hidden_size"] ** -0.5, "model.per_layer_projection_norm")
            inputs = (inputs + given) * 2**-0.5
        for i in range(layers):
            layer = f"model.layers.{i}."
            y = attend(norm(x, layer + "input_layernorm"), i)
            x = x + norm(y, layer + "post_attention_layernorm")
            y = norm(x, layer + "pre_feedforward_layernorm")
            y = act(linear(y, layer + "mlp.gate_proj")) * linear(y, layer + "mlp.up_proj")
            y = linear(y, layer + "mlp.down_proj")
            if c.get("enable_moe_block"):
                y = (norm(y, layer + "post_feedforward_layernorm_1")
                     + norm(mix(x, i), layer + "post_feedforward_layernorm_2"))
            x = x + norm(y, layer + "post_feedforward_layernorm")
            if own:
                y = act(linear(x, layer + "per_layer_input_gate")) * inputs[:, i]
                y = linear(y, layer + "per_layer_projection")
                x = x + norm(y, layer + "post_per_layer_input_norm")
            x = x * weight(layer + "layer_scalar")
        head = tensors.get(Dense.head, tensors[Dense.embeddings]).astype(np.float64)
        x, cap = norm(x, "model.norm") @ head.T, c.get("final_logit_softcapping")
        return cap * np.tanh(x / cap) if cap else x


GEMMA4 = {"gemma4_text": Gemma4(
    num_hidden_layers=4, layer_types=[SLIDES, FULL, SLIDES, FULL], num_kv_shared_layers=2, head_dim=8,
    global_head_dim=12, sliding_window=5, hidden_size_per_layer_input=6, vocab_size_per_layer_input=275,
    enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=20)}
