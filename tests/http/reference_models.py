# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and GLA in numpy's float64, from a config.json as transformers 5.24 and fla 0.6 read it:
what `regla check` must find for a configuration and its tensors."""

import json
import math
import shutil
import struct
from pathlib import Path

import numpy as np
from reference_delta import DELTA
from reference_dense import DENSE
from reference_fla import FLA
from reference_gemma4 import GEMMA4
from reference_lfm import LFM
from reference_mamba import MAMBA
from reference_math import (Noise, convolve, gelu, gelu_tanh, log_softmax, relu, relu2, rms_norm, rotary,
                            sigmoid, silu)
from reference_rwkv7 import RWKV

PROMPT = [5, 17, 200, 33, 33, 90, 128, 7, 250, 61, 2, 99]
TOKENIZER = Path(__file__).resolve().parents[1] / "golden" / "gpt_neox" / "tokenizer.json"
TOLERANCE = 5e-4

SIZES = {"vocab_size": 275, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
         "bos_token_id": 0, "eos_token_id": 0}


class NeoX:
    root = "gpt_neox."
    head = "embed_out.weight"
    embeddings = "gpt_neox.embed_in.weight"
    config = {"model_type": "gpt_neox", "num_attention_heads": 2, **SIZES}
    activations = {
        "gelu": gelu, "gelu_python": gelu, "gelu_new": gelu_tanh, "gelu_fast": gelu_tanh,
        "gelu_pytorch_tanh": gelu_tanh, "gelu_python_tanh": gelu_tanh, "gelu_accurate": gelu_tanh,
        "relu": relu, "silu": silu, "swish": silu, "relu2": relu2}

    @staticmethod
    def tensors(c):
        noise, size, inner = Noise(), c["hidden_size"], c["intermediate_size"]
        tensors = {NeoX.embeddings: noise("in", c["vocab_size"], size, scale=0.5)}
        norms, linear = ["gpt_neox.final_layer_norm"], []
        for i in range(c["num_hidden_layers"]):
            layer = f"gpt_neox.layers.{i}."
            norms += [layer + "input_layernorm", layer + "post_attention_layernorm"]
            biased = c.get("attention_bias", True)
            linear += [(layer + "attention.query_key_value", 3 * size, size, biased),
                       (layer + "attention.dense", size, size, biased),
                       (layer + "mlp.dense_h_to_4h", inner, size, True),
                       (layer + "mlp.dense_4h_to_h", size, inner, True)]
        for name in norms:
            tensors[name + ".weight"] = noise(name, size, mean=1)
            tensors[name + ".bias"] = noise(name + "b", size)
        for name, rows, cols, biased in linear:
            tensors[name + ".weight"] = noise(name, rows, cols)
            if biased:
                tensors[name + ".bias"] = noise(name + "b", rows)
        if not c.get("tie_word_embeddings", False):
            tensors[NeoX.head] = noise("out", c["vocab_size"], size)
        return tensors

    @staticmethod
    def frequencies(c):
        """GPTNeoXConfig.convert_rope_params_to_dict and its class's frequencies."""
        return rotary(c.get("rope_scaling") or c.get("rope_parameters") or {},
                      c.get("rotary_emb_base", 10000), c.get("rotary_pct", 0.25),
                      c["hidden_size"] // c["num_attention_heads"],
                      c.get("max_position_embeddings", 2048),
                      c.get("original_max_position_embeddings"))

    @staticmethod
    def logits(c, tensors, ids):
        def weight(name):
            return tensors[name + ".weight"].astype(np.float64)

        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(()))
            return x @ weight(name).T + bias.astype(np.float64)

        def norm(x, name):
            centred = x - x.mean(-1, keepdims=True)
            deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + c.get("layer_norm_eps", 1e-5))
            return centred / deviation * weight(name) + tensors[name + ".bias"].astype(np.float64)

        def rotate(x):
            r, half = cos.shape[-1], cos.shape[-1] // 2
            turned = np.concatenate([-x[..., half:r], x[..., :half]], -1)
            return np.concatenate([x[..., :r] * cos + turned * sin, x[..., r:]], -1)

        heads, length = c["num_attention_heads"], len(ids)
        size = c["hidden_size"] // heads
        frequencies, factor = NeoX.frequencies(c)
        angles = np.outer(np.arange(length), frequencies)
        angles = np.concatenate([angles, angles], -1)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        act = NeoX.activations[c.get("hidden_act", "gelu")]
        x = weight("gpt_neox.embed_in")[ids]
        for i in range(c["num_hidden_layers"]):
            layer = f"gpt_neox.layers.{i}."

            def mlp(y, layer=layer):
                return linear(act(linear(y, layer + "mlp.dense_h_to_4h")), layer + "mlp.dense_4h_to_h")

            qkv = linear(norm(x, layer + "input_layernorm"), layer + "attention.query_key_value")
            q, k, v = np.split(qkv.reshape(length, heads, 3 * size).transpose(1, 0, 2), 3, -1)
            scores = rotate(q) @ rotate(k).transpose(0, 2, 1) / math.sqrt(size)
            scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
            mixed = (np.exp(log_softmax(scores)) @ v).transpose(1, 0, 2).reshape(length, -1)
            mixed = linear(mixed, layer + "attention.dense")
            if c.get("use_parallel_residual", True):
                x = x + mixed + mlp(norm(x, layer + "post_attention_layernorm"))
            else:
                x = x + mixed
                x = x + mlp(norm(x, layer + "post_attention_layernorm"))
        head = tensors.get(NeoX.head, tensors[NeoX.embeddings]).astype(np.float64)
        return norm(x, "gpt_neox.final_layer_norm") @ head.T


class GLA:
    root = "model."
    head = "lm_head.weight"
    embeddings = "model.embeddings.weight"
    config = {"model_type": "gla", "num_heads": 4, **SIZES}

    @staticmethod
    def sizes(c):
        """(keys, values, groups, inner) as GatedLinearAttention and GatedMLP compute them."""
        size = c["hidden_size"]
        inner = c.get("intermediate_size")
        if inner is None:
            ratio = c.get("hidden_ratio", 4)
            inner = int(size * (4 if ratio is None else ratio) * 2 / 3)
            inner = 256 * ((inner + 255) // 256)
        groups = c["num_heads"] // (c.get("num_kv_heads") or c["num_heads"])
        return (round(size * c.get("expand_k", 0.5)), round(size * c.get("expand_v", 1.0)), groups,
                inner)

    @staticmethod
    def norm_name(c):
        fused = c.get("fuse_norm", True) and c.get("use_output_gate", True)
        return "g_norm_swish_gate" if fused else "g_norm"

    @staticmethod
    def tensors(c):
        noise, size, rank = Noise(), c["hidden_size"], 16
        keys, values, groups, inner = GLA.sizes(c)
        tensors = {GLA.embeddings: noise("in", c["vocab_size"], size, scale=1),
                   "model.norm.weight": noise("norm", size, mean=1)}
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            shapes = {"attn.q_proj": (keys, size), "attn.k_proj": (keys // groups, size),
                      "attn.v_proj": (values // groups, size), "attn.o_proj": (size, values),
                      "attn.gk_proj.0": (rank, size), "attn.gk_proj.1": (keys // groups, rank),
                      "mlp.gate_proj": (inner, size), "mlp.up_proj": (inner, size),
                      "mlp.down_proj": (size, inner), "attn_norm": (size,), "mlp_norm": (size,)}
            if c.get("use_output_gate", True):
                shapes["attn.g_proj"] = (values, size)
            if c.get("elementwise_affine", True):
                shapes["attn." + GLA.norm_name(c)] = (values // c["num_heads"],)
            for name, shape in shapes.items():
                tensors[layer + name + ".weight"] = noise(layer + name, *shape,
                                                          mean=1 if len(shape) == 1 else 0)
            if c.get("use_short_conv"):
                for name in "qkv":
                    rows = shapes[f"attn.{name}_proj"][0]
                    tensors[layer + f"attn.{name}_conv1d.weight"] = noise(
                        layer + name + "conv", rows, 1, c.get("conv_size", 4), scale=0.5)
            tensors[layer + "attn.gk_proj.1.bias"] = noise(layer + "bias", keys // groups, mean=-1)
        if not c.get("tie_word_embeddings", False):
            tensors[GLA.head] = noise("out", c["vocab_size"], size)
        return tensors

    @staticmethod
    def logits(c, tensors, ids):
        def norm(x, name):
            weight = tensors.get(name + ".weight", np.ones(())).astype(np.float64)
            return rms_norm(x, c.get("norm_eps", 1e-6)) * weight

        def linear(x, name):
            bias = tensors.get(name + ".bias", np.zeros(()))
            return x @ tensors[name + ".weight"].astype(np.float64).T + bias

        heads, length = c["num_heads"], len(ids)
        _, _, groups, _ = GLA.sizes(c)
        act = relu if c.get("feature_map") == "relu" else lambda x: x
        x = tensors[GLA.embeddings].astype(np.float64)[ids]
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}."

            def heads_of(name, y, share=1, layer=layer):
                z = linear(y, layer + "attn." + name)
                taps = tensors.get(f"{layer}attn.{name[0]}_conv1d.weight")
                if taps is not None:
                    z = silu(convolve(z, taps[:, 0].astype(np.float64)))
                return np.repeat(z.reshape(length, heads // share, -1), share, 1)

            y = norm(x, layer + "attn_norm")
            q, k = act(heads_of("q_proj", y)), act(heads_of("k_proj", y, groups))
            v = heads_of("v_proj", y, groups)
            gates = linear(linear(y, layer + "attn.gk_proj.0"), layer + "attn.gk_proj.1")
            gates = np.repeat(gates.reshape(length, heads // groups, -1), groups, 1)
            decay = sigmoid(gates) ** (1 / 16)
            state = np.zeros((heads, q.shape[-1], v.shape[-1]))
            out = np.zeros(v.shape)
            for t in range(length):
                state = state * decay[t][..., None] + k[t][..., None] * v[t][:, None]
                out[t] = np.einsum("hkv,hk->hv", state, q[t]) / math.sqrt(q.shape[-1])
            out = norm(out, layer + "attn." + GLA.norm_name(c))
            if c.get("use_output_gate", True):
                out = out * silu(heads_of("g_proj", y))
            x = x + linear(out.reshape(length, -1), layer + "attn.o_proj")
            y = norm(x, layer + "mlp_norm")
            inner = silu(linear(y, layer + "mlp.gate_proj")) * linear(y, layer + "mlp.up_proj")
            x = x + linear(inner, layer + "mlp.down_proj")
        head = tensors.get(GLA.head, tensors[GLA.embeddings]).astype(np.float64)
        return norm(x, "model.norm") @ head.T


FAMILIES = {"gpt_neox": NeoX, "gla": GLA, **DENSE, **GEMMA4, **LFM, **MAMBA, **DELTA, **FLA, **RWKV}
DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "uint8": "F8_E4M3",
          "int8": "F8_E8M0"}  # the last two stand for types that numpy does not have


def write_tensors(path, tensors, metadata=...):
    header, data = {} if metadata is ... else {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def expected(logits):
    """expected.json of tests/golden/README.md, for PROMPT and one token behind it."""
    logprobs = log_softmax(logits)
    best = np.argsort(-logprobs, -1)[:, :5]
    return {
        "prompt": PROMPT,
        "prompt_logprobs": [logprobs[t, token] for t, token in enumerate(PROMPT[1:])],
        "top5": [[[int(i), row[i]] for i in ids] for row, ids in zip(logprobs, best)],
        "greedy": [int(best[-1, 0])],
        "greedy_margin": [logprobs[-1, best[-1, 0]] - logprobs[-1, best[-1, 1]]],
        "tolerance": TOLERANCE}


def write_model(folder, config, tensors, answers, generation=None, text=None):
    """A folder for `regla check`; text: config.json as it shall be."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text or json.dumps(config))
    (folder / "expected.json").write_text(json.dumps(answers))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    if tensors is not None:
        write_tensors(folder / "model.safetensors", tensors)
    return folder
