# SPDX-License-Identifier: Apache-2.0
"""Makes native checkpoints of models with fixed decays.

    python -m train.convert transnormer FOLDER OUT

FOLDER is a TransNormerLLM as OpenNLPLab releases it (safetensors): heads H of d, width D = H d, MLP G.

    model.embed_tokens.weight [V, D], model.final_norm (no weight), lm_head.weight [V, D]
    model.layers.N.token_mixer.qkvu_proj.weight [4 D, D]   rows of q, k, v and u -> {q,k,v,out_gate}_proj
    model.layers.N.token_mixer.out_proj.weight [D, D]      -> attn.o_proj
    model.layers.N.token_mixer.lrpe.theta [H, 1, d]        -> attn.position.theta [H, d], where it is there
    model.layers.N.channel_mixer.l1, l2 [G, D], l3 [D, G]  -> mlp.gate_proj, up_proj, down_proj

With `bias` each matrix of a layer has one. Beside them OUT has attn.decay [H] = e^-slope, which the release
computes, and norms of ones: its SimpleRMSNorm is an RMSNorm with epsilon 1e-6 without a weight. A layer of
MiniMax-01, without its experts, is `minimax_mixer`'s:

    self_attn.qkv_proj.weight [3 H d, D]     a head's q, k and v, then the next head's -> {q,k,v}_proj
    self_attn.output_gate.weight [H d, D], self_attn.out_proj.weight [D, H d], self_attn.norm.weight [H d]
"""

import json
import math
import shutil

import torch
from safetensors.torch import save_file

from train.files import read_object
from train.linearize import FILES, all_tensors

EPSILON = 1e-6
ACTS = {"silu": "silu", "swish": "silu", "relu": "relu", "elu": "elu", "1+elu": "elu+1"}


def slopes(heads):
    """ALiBi's; of heads that are no power of two as its authors have them."""
    whole = 2 ** int(math.log2(heads))
    own = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    return own if whole == heads else own + slopes(2 * whole)[::2][:heads - whole]


def decay(heads, layer, last):
    """e^-slope [H]. `last` is what the layer's number is divided by."""
    share = 1 - layer / last + 1e-5
    return torch.tensor([math.exp(-slope * share) for slope in slopes(heads)], dtype=torch.float32)


def linear_mixer(act, position, **more):
    return {"kind": "linear", "feature_map": act, "gate": "fixed", "position": position,
            "output_norm": "rmsnorm", "output_norm_scope": "hidden", "output_norm_eps": EPSILON, **more}


def config_of_transnormer(raw):
    if raw.get("norm_type", "simplermsnorm") != "simplermsnorm":
        raise ValueError(f"config.json: norm_type: expected simplermsnorm, got {raw['norm_type']!r}")
    width, layers = raw["decoder_embed_dim"], raw["decoder_layers"]
    if raw.get("hidden_dim", width) != width:
        raise ValueError(f"config.json: hidden_dim: expected {width}, got {raw['hidden_dim']}")
    act = raw.get("linear_act_fun", "silu")
    if act not in ACTS:
        raise ValueError(f"config.json: linear_act_fun: expected one of {', '.join(ACTS)}, got {act!r}")
    turned = raw.get("linear_use_lrpe_list") or [raw.get("linear_use_lrpe", True)] * layers
    if len(turned) != layers:
        raise ValueError(f"config.json: linear_use_lrpe_list: expected {layers} numbers, got {len(turned)}")
    size = raw.get("glu_dim", -1)
    kinds = {"lrpe": linear_mixer(ACTS[act], {"type": "lrpe_unitary"}, output_gate="linear"),
             "plain": linear_mixer(ACTS[act], {"type": "none"}, output_gate="linear")}
    names = ["lrpe" if turn else "plain" for turn in turned]
    return {
        "model_type": "regla", "vocab_size": raw["vocab_size"], "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": raw["decoder_attention_heads"],
        "intermediate_size": width if size == -1 else size, "hidden_act": "identity",
        "norm_type": "rmsnorm", "norm_eps": EPSILON,
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
        "embedding_scale": 1.0 if raw.get("no_scale_embedding") else width ** 0.5,
        "bos_token_id": raw.get("bos_token_id"), "eos_token_id": raw.get("eos_token_id"),
        "layer_types": names, "mixers": {name: kinds[name] for name in dict.fromkeys(names)},
    }


PARTS = {"token_mixer.out_proj": "attn.o_proj", "channel_mixer.l1": "mlp.gate_proj",
         "channel_mixer.l2": "mlp.up_proj", "channel_mixer.l3": "mlp.down_proj"}
QKVU = ("q_proj", "k_proj", "v_proj", "out_gate_proj")


def transnormer(raw, tensors):
    """config.json and tensors of a TransNormerLLM, as a native model's."""
    config = config_of_transnormer(raw)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    ones = torch.ones(config["hidden_size"])
    out = {"model.norm.weight": ones}
    for name, tensor in tensors.items():
        short, kind = name.removeprefix("model.").rsplit(".", 1)
        if short in ("embed_tokens", "lm_head"):
            if not (config["tie_word_embeddings"] and short == "lm_head"):
                out["lm_head.weight" if short == "lm_head" else "model.embeddings.weight"] = tensor
            continue
        word, layer, part = (*short.split(".", 2), "")[:3]
        place = f"model.layers.{layer}"
        if word == "layers" and part == "token_mixer.qkvu_proj":
            for new, rows in zip(QKVU, tensor.chunk(4)):
                out[f"{place}.attn.{new}.{kind}"] = rows.contiguous()
        elif word == "layers" and f"{part}.{kind}" == "token_mixer.lrpe.theta":
            out[f"{place}.attn.position.theta"] = tensor.float().reshape(heads, -1)
        elif word == "layers" and part in PARTS:
            out[f"{place}.{PARTS[part]}.{kind}"] = tensor
        else:
            raise ValueError(f"{name}: expected a tensor of TransNormerLLM")
    for layer in range(layers):
        place = f"model.layers.{layer}"
        out[f"{place}.attn.decay"] = decay(heads, layer, max(layers - 1, 1))
        for norm in ("attn_norm", "mlp_norm", "attn.out_norm"):
            out[f"{place}.{norm}.weight"] = ones.clone()
    return config, out


def minimax_mixer(heads, layer, layers, tensors):
    """The native mixer of a lightning layer, and its tensors below `attn`; `tensors` are below self_attn."""
    q, k, v = tensors["qkv_proj.weight"].unflatten(0, (heads, 3, -1)).unbind(1)
    out = {f"{name}.weight": rows.flatten(0, 1).contiguous()
           for name, rows in (("q_proj", q), ("k_proj", k), ("v_proj", v))}
    out |= {"out_gate_proj.weight": tensors["output_gate.weight"],
            "o_proj.weight": tensors["out_proj.weight"], "out_norm.weight": tensors["norm.weight"],
            "decay": decay(heads, layer, layers - 1 + 1e-5)}
    return linear_mixer("silu", {"type": "none"}, value_activation="silu", output_gate="sigmoid"), out


def convert(source, target):
    raw = read_object(source / "config.json")
    config, tensors = transnormer(raw, all_tensors(source))
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for file in FILES:
        if (source / file).exists():
            shutil.copy(source / file, target / file)
