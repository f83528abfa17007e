# SPDX-License-Identifier: Apache-2.0
"""Turns a softmax model into a linear-attention one, which train.fit --start then trains on.

The donor is a GPT-NeoX (Pythia) checkpoint, or one of the native family whose layers are softmax.
Embeddings, norms, MLPs and the head stay. Its attention's projections stay too (--attention keep:
Kasai et al. 2021 and Mao 2022, whose setting the ReGLA paper's table 4 follows), or are drawn anew
(--attention new: the paper's words about its hybrid, "randomly initialized ReGLA modules"). Gates,
feature maps and the norm after the mixer are new in any case. Linear layers have the donor's rotary
position, before the feature map; the hybrid's softmax layers are the donor's.
"""

import argparse
import copy
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from train.checkpoint import DTYPES, read_tensors, save_model
from train.config import parse_config
from train.files import read_object, told
from train.init import new_tensors
from train.model.model import Model
from train.presets import presets

SYSTEMS = ("regla", "hybrid_regla", "fast_decay", "scalar_gate", "hedgehog", "la_relu", "la_elu")
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
# GPT-NeoX's buffers, which are no weights.
BUFFERS = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
# A GPT-NeoX layer's modules and ours.
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "attention.dense": "attn.o_proj",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
WHOLE = {"embed_in": "model.embeddings", "final_layer_norm": "model.norm", "embed_out": "lm_head",
         "lm_head": "lm_head"}


@dataclass
class Donor:
    """A softmax model in the native family's words."""

    config: dict  # without layer_types and mixers
    softmax: list  # the mixer of each layer
    tensors: dict = field(default_factory=dict)


def all_tensors(folder):
    """All tensors of model.safetensors, or of the shards that its index names."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.exists():
        return read_tensors(folder / "model.safetensors")
    weights = read_object(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise ValueError(f"{index}: expected a weight_map of names, got another thing")
    shards = sorted(set(weights.values()))
    return {name: tensor for shard in shards for name, tensor in read_tensors(folder / shard).items()}


def rope_of_neox(raw):
    """The native position of a GPT-NeoX config.json, of version 4 or 5."""
    rope = {**(raw.get("rope_parameters") or {}), **(raw.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"config.json: rope_type: expected default, got {kind!r}")
    share = rope.get("partial_rotary_factor", raw.get("rotary_pct", 0.25))
    base = rope.get("rope_theta", raw.get("rotary_emb_base", 10000))
    size = raw["hidden_size"] // raw["num_attention_heads"]
    if int(size * share) % 2:
        raise ValueError(f"config.json: rotary_pct: expected an even part of {size} dimensions, "
                         f"got {int(size * share)}")
    return {"type": "rope", "rotary_pct": share, "base": base}


def config_of_neox(raw):
    act = raw.get("hidden_act", "gelu")
    if act not in ACTIVATIONS:
        raise ValueError(f"config.json: hidden_act: expected one of {ACTIVATIONS}, got {act!r}")
    config = {key: raw[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers",
                                        "num_attention_heads", "intermediate_size")}
    return {
        "model_type": "regla",
        **config,
        "hidden_act": act,
        "norm_type": "layernorm",
        "norm_eps": raw.get("layer_norm_eps", 1e-5),
        "parallel_residual": raw.get("use_parallel_residual", True),
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
        "max_position_embeddings": raw.get("max_position_embeddings", 2048),
        "bos_token_id": raw.get("bos_token_id", 0),
        "eos_token_id": raw.get("eos_token_id", 0),
    }


def tensors_of_neox(tensors, heads):
    """Under the native family's names; q, k and v, which GPT-NeoX interleaves by heads, parted."""
    native = {}
    for name, tensor in tensors.items():
        if name.endswith(BUFFERS):
            continue
        short, kind = name.removeprefix("gpt_neox.").rsplit(".", 1)
        if short in WHOLE:
            native[f"{WHOLE[short]}.{kind}"] = tensor
            continue
        word, layer, part = (*short.split(".", 2), "")[:3]
        if word == "layers" and part == "attention.query_key_value":
            parted = tensor.unflatten(0, (heads, 3, -1))
            for i, projection in enumerate(("q_proj", "k_proj", "v_proj")):
                native[f"model.layers.{layer}.attn.{projection}.{kind}"] = (
                    parted[:, i].flatten(0, 1).contiguous())
        elif word == "layers" and part in PARTS:
            native[f"model.layers.{layer}.{PARTS[part]}.{kind}"] = tensor
        else:
            raise ValueError(f"{name}: expected a tensor of GPT-NeoX")
    return native


def read_donor(folder):
    folder = Path(folder)
    raw = read_object(folder / "config.json")
    family = raw.get("model_type")
    tensors = {name: tensor.float() if tensor.dtype.is_floating_point else tensor
               for name, tensor in all_tensors(folder).items()}
    if family == "gpt_neox":
        config = config_of_neox(raw)
        softmax = {"kind": "softmax", "position": rope_of_neox(raw)}
        if config["tie_word_embeddings"]:
            tensors.pop("embed_out.weight", None)
        return Donor(config, [softmax] * config["num_hidden_layers"],
                     tensors_of_neox(tensors, config["num_attention_heads"]))
    if family != "regla":
        raise ValueError(f"config.json: model_type: expected gpt_neox or regla, got {family!r}")
    mixers = [raw["mixers"][name] for name in raw["layer_types"]]
    for number, mixer in enumerate(mixers):
        if mixer["kind"] != "softmax" or mixer.get("activation", "softmax") != "softmax":
            raise ValueError(f"config.json: layer {number}: expected softmax attention")
    config = {key: value for key, value in raw.items() if key not in ("layer_types", "mixers")}
    return Donor(config, mixers, tensors)


def linear_mixer(mixer, softmax):
    """A preset's linear mixer with the rotary position of the donor's."""
    mixer = copy.deepcopy(mixer)
    position = softmax.get("position", "none")
    if isinstance(position, dict) and position.get("type") == "rope":
        mixer["position"] = {**position, "stage": "before"}
    else:
        mixer.pop("position", None)
    return mixer


def new_config(donor, system):
    """The linear model's config.json. Layers of the donor may differ, so names have numbers."""
    if system not in SYSTEMS:
        raise ValueError(f"--system: expected one of {', '.join(SYSTEMS)}, got {system}")
    layers = donor.config["num_hidden_layers"]
    system_mixers, layer_types, *_ = presets().SYSTEMS[system]
    mixers, names = {}, []
    for name, softmax in zip(layer_types(layers), donor.softmax, strict=True):
        linear = system_mixers[name]["kind"] == "linear"
        made = linear_mixer(system_mixers[name], softmax) if linear else softmax
        name = system if linear else "softmax"
        while mixers.setdefault(name, made) != made:
            name += "_"
        names.append(name)
    return {**donor.config, "layer_types": names, "mixers": mixers}


def shapes_of(donor):
    """What init.new_tensors must know of the donor's tensors."""
    heads, has = donor.config["num_attention_heads"], donor.tensors.keys()
    layer = "model.layers.0"

    def rows(projection):
        return donor.tensors[f"{layer}.attn.{projection}.weight"].shape[0] // heads

    return {
        "head_dim": rows("q_proj"),
        "value_dim": rows("v_proj"),
        "features": rows("q_proj"),
        "glu": f"{layer}.mlp.gate_proj.weight" in has,
        "bias": f"{layer}.attn.q_proj.bias" in has,
    }


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def linearize(donor, system, attention=None, seed=0):
    """(config.json's object, Model): the donor with the system's mixers."""
    raw = new_config(donor, system)
    config = parse_config(raw)
    attention = attention or ("new" if system == "hybrid_regla" else "keep")
    linear = tuple(
        f"model.layers.{i}.attn."
        for i, name in enumerate(config.layer_types)
        if config.mixers[name].kind == "linear"
    )
    projections = tuple(f"{layer}{name}." for layer in linear for name in PROJECTIONS)
    tensors = {n: t for n, t in donor.tensors.items() if not n.startswith(linear)}
    for name, tensor in new_tensors(config, shapes_of(donor), seed).items():
        if name.startswith(linear) and (attention == "new" or not name.startswith(projections)):
            tensors[name] = tensor
    if attention == "keep":
        tensors |= {n: t for n, t in donor.tensors.items() if n.startswith(projections)}
    return raw, Model(config, tensors)


def write(donor_folder, out, raw, model, dtype):
    save_model(out, model, raw, dtype)
    for name in FILES:
        if (Path(donor_folder) / name).exists():
            shutil.copy(Path(donor_folder) / name, Path(out) / name)


def main():
    parser = argparse.ArgumentParser(
        prog="train.linearize", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("donor", help="checkpoint folder")
    parser.add_argument("--system", choices=SYSTEMS, default="regla")
    parser.add_argument("--attention", choices=("keep", "new"),
                        help="default: new for the hybrid's linear layers, else keep")
    parser.add_argument("--out", required=True, help="folder of the new checkpoint")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="f32")
    parser.add_argument("--seed", type=int, default=0, help="of the new tensors")
    args = parser.parse_args()
    with told("train.linearize"):
        try:
            raw, model = linearize(read_donor(args.donor), args.system, args.attention, args.seed)
        except KeyError as error:
            raise ValueError(f"{args.donor}: config.json: expected {error}, found none") from None
        except ValueError as error:
            raise ValueError(f"{args.donor}: {error}") from None
        write(args.donor, args.out, raw, model, args.dtype)
    print(f"{sum(p.numel() for p in model.parameters())} parameters; train it on with "
          f"python -m train.fit --start {args.out} --config {args.out}/config.json")


if __name__ == "__main__":
    main()
