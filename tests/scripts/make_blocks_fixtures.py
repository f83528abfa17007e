# SPDX-License-Identifier: Apache-2.0
"""Makes cases in tests/golden of native models: of `blocks`, and of what came with and after them.

    python make_blocks_fixtures.py ../golden [case...]    # needs torch and safetensors

`logits` computes what model-format.md says of these keys, in float64 and over the whole sequence at
once. Of each case the script demands that every key counts: with another value in its place
log-probabilities move by more than MATTERS.
"""

import copy
import json
import pathlib
import shutil
import sys

import torch
from golden_case import fill_with_noise, random_prompt, write_case
from safetensors.torch import save_file

MATTERS = 5e-3
MARGIN = 1e-3  # between the last expert that is chosen and the first that is not: f32 is far nearer
PROMPT = 70
ROUTED = []  # of each mixture that was computed: its name, sorted weights, and chosen ids
ACTS = {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "relu": torch.relu}
BASE = {"model_type": "regla", "vocab_size": 275, "num_attention_heads": 4, "bos_token_id": 0,
        "eos_token_id": 0}


class Tensors:
    """Makes each tensor when it is first asked for."""

    def __init__(self):
        self.made = {}

    def __call__(self, name, *shape):
        return self.made.setdefault(name, torch.ones(shape, dtype=torch.float64))

    def named_parameters(self):
        return self.made.items()


def norm(tensors, name, kind, eps, plus_one, x):
    if kind == "none":
        return x
    size = x.shape[-1]
    if kind == "simple_rmsnorm":
        return x / (x.square().mean(-1, keepdim=True).sqrt() + eps)
    weight = tensors(f"{name}.weight", size) + plus_one
    if kind == "rmsnorm":
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / deviation * weight + tensors(f"{name}.bias", size)


def linear(tensors, name, rows, x, bias=False):
    y = x @ tensors(f"{name}.weight", rows, x.shape[-1]).T
    return y + tensors(f"{name}.bias", rows) if bias else y


def cap(x, softcap):
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def rotate(x, base):
    """rope with pairs (i, i + d/2) of x [T, H, d]."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * base ** (
        -torch.arange(half, dtype=torch.float64) / half)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def attention(tensors, name, config, mixer, x):
    heads, d = mixer.get("num_heads", config["num_attention_heads"]), HEAD
    kv_heads = mixer.get("num_kv_heads", heads)
    qk_norm = mixer.get("qk_norm", {"type": "none"})
    hidden = qk_norm.get("scope") == "hidden"
    split = []
    for part, count in (("q", heads), ("k", kv_heads)):
        z = linear(tensors, f"{name}.{part}_proj", count * d, x)
        z = z if hidden else z.view(len(x), count, d)
        z = norm(tensors, f"{name}.{part}_norm", qk_norm["type"],
                 qk_norm.get("eps", config["norm_eps"]), qk_norm.get("plus_one", False), z)
        z = z.view(len(x), count, d)
        split.append(rotate(z, mixer["position"]["base"]) if "position" in mixer else z)
    q, k = split
    if mixer.get("values_in_keys"):
        v = k[..., :VALUES]
    else:
        v = linear(tensors, f"{name}.v_proj", kv_heads * VALUES, x).view(len(x), kv_heads, VALUES)
    k, v = (z.repeat_interleave(heads // kv_heads, 1) for z in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * mixer.get("score_scale", d ** -0.5)
    scores = cap(scores, mixer.get("score_softcap"))
    distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
    seen = (distance >= 0) & (distance < mixer.get("window_size", len(x)))
    if mixer.get("activation") == "relu":
        weights = torch.relu(scores) * seen
    else:
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v)


def convolve(tensors, name, conv, z):
    """Each channel of z [T, C] by itself."""
    width = conv["width"]
    weight = tensors(f"{name}.weight", z.shape[-1], width)
    before = torch.cat([torch.zeros(width - 1, z.shape[-1], dtype=z.dtype), z])
    y = sum(weight[:, j] * before[j:j + len(z)] for j in range(width))
    if width in BIASED:
        y = y + tensors(f"{name}.bias", z.shape[-1])
    return torch.nn.functional.silu(y) if conv.get("activation") == "silu" else y


def recurrence(tensors, name, config, mixer, x):
    """The gate scalar with sum_norm on elu + 1: a weight for each pair of positions."""
    assert (mixer["gate"], mixer["feature_map"], mixer["sum_norm"]) == ("scalar", "elu+1", True)
    heads = mixer.get("num_heads", config["num_attention_heads"])
    sizes = heads * HEAD, heads * HEAD, heads * VALUES
    qkv = [linear(tensors, f"{name}.{part}_proj", size, x) for part, size in zip("qkv", sizes)]
    if "conv" in mixer:
        qkv = convolve(tensors, f"{name}.conv", mixer["conv"], torch.cat(qkv, -1)).split(sizes, -1)
    q, k = (torch.nn.functional.elu(z).view(len(x), heads, HEAD) + 1 for z in qkv[:2])
    v = qkv[2].view(len(x), heads, VALUES)
    gate = torch.sigmoid(linear(tensors, f"{name}.g_proj", heads, x, True)).T
    until = gate.log().cumsum(-1)
    decay = (until[:, :, None] - until[:, None, :]).exp() * (1 - gate[:, None, :])
    weights = torch.einsum("thd,shd->hts", q, k) * decay.tril()
    return torch.einsum("hts,shd->thd", weights / weights.sum(-1, keepdim=True).clamp_min(1e-6), v)


def gated_conv(tensors, name, mixer, x):
    before, after, u = linear(tensors, f"{name}.in_proj", 3 * CHANNELS, x, True).split(CHANNELS, -1)
    return after * convolve(tensors, f"{name}.conv", mixer["conv"], before * u)


def mix(tensors, name, config, mixer, x):
    if mixer["kind"] == "conv":
        h = gated_conv(tensors, name, mixer, x)
        return linear(tensors, f"{name}.o_proj", config["hidden_size"], h, True)
    compute = attention if mixer["kind"] == "softmax" else recurrence
    h = compute(tensors, name, config, mixer, x)
    size = h.shape[1] if mixer.get("output_gate_scope") == "head" else h[0].numel()
    if "output_gate" in mixer:
        act = torch.sigmoid if mixer["output_gate"] == "sigmoid" else torch.nn.functional.silu
        h = h.reshape(len(x), size, -1) * act(linear(tensors, f"{name}.out_gate_proj", size, x))[..., None]
    h = h.reshape(len(x), -1)
    return linear(tensors, f"{name}.o_proj", config["hidden_size"], h)


def mlp(tensors, name, config, keys, x):
    return (experts if "num_experts" in keys else one_mlp)(tensors, name, config, keys, x)


def experts(tensors, name, config, keys, x):
    """All experts of all tokens, of which those that are not chosen have the weight 0."""
    count, chosen = keys["num_experts"], keys["num_experts_per_tok"]
    weights = linear(tensors, f"{name}.router", count, x, True).softmax(-1)
    kept, ids = weights.topk(chosen)
    if keys.get("norm_topk_prob"):
        kept = kept / kept.sum(-1, keepdim=True)
    ROUTED.append((name, weights.sort(-1, descending=True).values, ids))
    parts = [one_mlp(tensors, f"{name}.experts.{e}", config, keys, x) for e in range(count)]
    shares = torch.zeros_like(weights).scatter(-1, ids, kept)
    return sum(shares[:, e:e + 1] * part for e, part in enumerate(parts))


def one_mlp(tensors, name, config, keys, x):
    act = ACTS[keys.get("hidden_act", config.get("hidden_act", "gelu"))]
    inner = keys.get("intermediate_size", config["intermediate_size"])
    up = linear(tensors, f"{name}.up_proj", inner, x, True)
    up = act(linear(tensors, f"{name}.gate_proj", inner, x)) * up if inner in GATED else act(up)
    return linear(tensors, f"{name}.down_proj", config["hidden_size"], up)


def run_block(tensors, layer, config, block, x):
    def of(kind, name, x):
        return norm(tensors, f"{layer}.{name}", kind, config["norm_eps"],
                    config.get("norm_plus_one", False), x)

    names = [branch.get("name", "attn" if "mixer" in branch else "mlp") for branch in block["branches"]]
    x = of(block.get("input_norm", "none"), names[0] + "_input_norm", x)
    usual = "none" if "input_norm" in block else config["norm_type"]
    total = 0
    for name, branch in zip(names, block["branches"]):
        y = of(branch.get("norm", usual), name + "_norm", x)
        if branch.get("token_shift"):
            before = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
            y = y + (before - y) * tensors(f"{layer}.{name}_token_shift", y.shape[-1])
        if "mixer" in branch:
            y = mix(tensors, f"{layer}.{name}", config, config["mixers"][branch["mixer"]], y)
        else:
            y = mlp(tensors, f"{layer}.{name}", config, branch["mlp"], y)
        total = total + branch.get("scale", 1) * y
    total = of(block.get("post_norm", "none"), names[0] + "_post_norm", total)
    return block.get("alpha", 1) * x + block.get("beta", 1) * total


def logits(tensors, config, ids):
    embeddings = tensors("model.embeddings.weight", config["vocab_size"], config["hidden_size"])
    x = embeddings[ids] * config.get("embedding_scale", 1)
    for i, kind in enumerate(config["layer_types"]):
        plain = [{"branches": [{"mixer": kind}]}, {"branches": [{"mlp": {}}]}]
        for block in config["blocks"].get(kind, plain):
            x = run_block(tensors, f"model.layers.{i}", config, block, x)
    x = norm(tensors, "model.norm", config["norm_type"], config["norm_eps"],
             config.get("norm_plus_one", False), x)
    z = linear(tensors, "lm_head", config["vocab_size"], x) * config.get("logit_scale", 1)
    return cap(z, config.get("logit_softcap"))


SIZES = {"values_in_keys": (24, 10)}  # d and d_v, else 6 and 5
GATED = (21, 30)  # intermediate_size of MLPs that are
CHANNELS = 26  # of a mixer that is a convolution
BIASED = (4, 8)  # width of convolutions that are
CASES = {
    # As OLMo 2 and Gemma 2 are: norms behind branches, weights 1 + w, capped scores and logits.
    "blocks_post_norm": {
        "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 23, "norm_type": "rmsnorm",
        "norm_eps": 1e-5, "norm_plus_one": True, "embedding_scale": 1.7, "logit_scale": 0.4,
        "logit_softcap": 3.0,
        "mixers": {
            "full": {"kind": "softmax", "num_kv_heads": 2, "score_scale": 0.3, "score_softcap": 1.5,
                     "qk_norm": {"type": "rmsnorm", "eps": 1e-2, "plus_one": True},
                     "position": {"type": "rope", "base": 500.0}, "output_gate": "sigmoid"},
            "near": {"kind": "softmax", "num_heads": 3, "num_kv_heads": 1, "window": "sliding",
                     "window_size": 20, "qk_norm": {"type": "layernorm", "scope": "hidden"},
                     "position": {"type": "rope", "base": 10000.0}}},
        "blocks": {
            "before_and_behind": [
                {"branches": [{"mixer": "full"}], "post_norm": "rmsnorm"},
                {"branches": [{"mlp": {}}], "post_norm": "simple_rmsnorm"}],
            "behind": [
                {"branches": [{"mixer": "near", "norm": "none"}], "post_norm": "rmsnorm"},
                {"branches": [{"mlp": {"hidden_act": "silu", "intermediate_size": 21}, "norm": "none"}],
                 "post_norm": "rmsnorm"}]},
        "layer_types": ["before_and_behind", "behind", "near"],
    },
    # Scales, branches side by side, and layers of one block.
    "blocks_branches": {
        "hidden_size": 28, "num_hidden_layers": 4, "intermediate_size": 21, "norm_type": "layernorm",
        "norm_eps": 1e-5, "hidden_act": "silu",
        "mixers": {
            "linear": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                       "output_gate": "sigmoid"},
            "softmax": {"kind": "softmax", "num_heads": 6, "num_kv_heads": 2, "score_softcap": 0.5,
                        "activation": "relu", "position": {"type": "rope", "base": 100.0}}},
        "blocks": {
            "side_by_side": [
                {"branches": [{"mixer": "linear", "name": "left", "scale": 0.7, "norm": "rmsnorm"},
                              {"mixer": "softmax", "name": "right", "scale": 0.2}],
                 "input_norm": "rmsnorm", "post_norm": "simple_rmsnorm", "alpha": 0.9, "beta": 0.6},
                {"branches": [{"mlp": {}, "scale": 0.5}], "alpha": 1.3}],
            "only_mlp": [{"branches": [{"mlp": {"hidden_act": "relu", "intermediate_size": 30}}]}],
            "only_mixer": [{"branches": [{"mixer": "linear"}], "beta": 0.8}],
            "mlp_first": [{"branches": [{"mlp": {"hidden_act": "gelu", "intermediate_size": 17}},
                                        {"mixer": "softmax", "norm": "simple_rmsnorm"}]}]},
        "layer_types": ["side_by_side", "only_mlp", "only_mixer", "mlp_first"],
    },
    # Short convolutions, with and without a bias and an activation, beside a layer that has none.
    "convolutions": {
        "hidden_size": 24, "num_hidden_layers": 4, "intermediate_size": 19, "norm_type": "rmsnorm",
        "norm_eps": 1e-5, "blocks": {},
        "mixers": {
            "four": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                     "conv": {"width": 4, "activation": "silu"}},
            "three": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                      "num_heads": 3, "conv": {"width": 3}},
            "eight": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                      "num_heads": 5, "conv": {"width": 8, "activation": "silu"}},
            "full": {"kind": "softmax", "num_kv_heads": 2, "position": {"type": "rope", "base": 500.0}}},
        "layer_types": ["four", "three", "full", "eight"],
    },
    # Mixers that are convolutions, as in LFM 2, and gates with a number for each head.
    "gated_convolutions": {
        "hidden_size": 24, "num_hidden_layers": 5, "intermediate_size": 21, "norm_type": "rmsnorm",
        "norm_eps": 1e-5, "hidden_act": "silu", "blocks": {},
        "mixers": {
            "three": {"kind": "conv", "conv": {"width": 3}},
            "four": {"kind": "conv", "conv": {"width": 4, "activation": "silu"}},
            "near": {"kind": "softmax", "window": "sliding", "window_size": 15, "num_kv_heads": 2,
                     "output_gate": "sigmoid", "output_gate_scope": "head"},
            "linear": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                       "output_gate": "swish", "output_gate_scope": "head"}},
        "layer_types": ["three", "near", "four", "linear", "three"],
    },
    # Branches that see a part of the token before, as RWKV's.
    "token_shift": {
        "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 21, "norm_type": "layernorm",
        "norm_eps": 1e-5, "hidden_act": "silu",
        "mixers": {
            "linear": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True,
                       "conv": {"width": 3}},
            "full": {"kind": "softmax", "num_kv_heads": 2, "position": {"type": "rope", "base": 500.0}}},
        "blocks": {
            "both": [{"branches": [{"mixer": "linear", "token_shift": True}]},
                     {"branches": [{"mlp": {}, "token_shift": True}], "post_norm": "simple_rmsnorm"}],
            "beside": [{"branches": [{"mixer": "full"},
                                     {"mlp": {}, "norm": "none", "token_shift": True}]}]},
        "layer_types": ["both", "beside", "both"],
    },
    # Mixtures of experts: one of two, without gates; two of four, with them and renormalized; and an
    # MLP of one, in a layer whose mixer reads the same x.
    "experts": {
        "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 21, "norm_type": "rmsnorm",
        "norm_eps": 1e-5, "hidden_act": "silu",
        "mixers": {
            "linear": {"kind": "linear", "feature_map": "elu+1", "gate": "scalar", "sum_norm": True},
            "full": {"kind": "softmax", "num_kv_heads": 2, "position": {"type": "rope", "base": 500.0}}},
        "blocks": {
            "one_of_two": [
                {"branches": [{"mixer": "linear"}]},
                {"branches": [{"mlp": {"num_experts": 2, "num_experts_per_tok": 1,
                                       "intermediate_size": 17, "hidden_act": "relu"}}]}],
            "two_of_four": [
                {"branches": [{"mixer": "full"},
                              {"mlp": {"num_experts": 4, "num_experts_per_tok": 2,
                                       "norm_topk_prob": True}}]},
                {"branches": [{"mlp": {}, "name": "last"}], "post_norm": "simple_rmsnorm"}]},
        "layer_types": ["one_of_two", "two_of_four"],
    },
    # Values that are the first numbers of their keys, of one kv head, some and all, beside stored ones.
    "values_in_keys": {
        "hidden_size": 24, "num_hidden_layers": 4, "intermediate_size": 21, "norm_type": "rmsnorm",
        "norm_eps": 1e-5, "hidden_act": "silu", "blocks": {},
        "mixers": {
            "one": {"kind": "softmax", "num_kv_heads": 1, "values_in_keys": 10, "score_scale": 0.3},
            "some": {"kind": "softmax", "num_kv_heads": 2, "values_in_keys": 10,
                     "position": {"type": "rope", "base": 500.0},
                     "qk_norm": {"type": "rmsnorm", "eps": 1e-2}},
            "usual": {"kind": "softmax", "num_kv_heads": 2, "position": {"type": "rope", "base": 500.0}},
            "all": {"kind": "softmax", "num_heads": 3, "values_in_keys": 10, "activation": "relu"}},
        "layer_types": ["one", "some", "usual", "all"],
    },
}


def numbers(config, path=()):
    """Places of numbers that can be other ones without another shape of a tensor."""
    shapes = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "num_heads",
              "num_kv_heads", "num_attention_heads", "width",
              "norm_eps", "bos_token_id", "eos_token_id", "sum_norm", "num_experts")
    items = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from numbers(value, (*path, key))
        elif isinstance(value, (int, float)) and key not in shapes:
            yield (*path, key)


def check_that_all_counts(name, config, tensors, prompt):
    before = logits(tensors, config, prompt).log_softmax(-1)
    tensors = copy.copy(tensors)
    tensors.made = dict(tensors.made)  # it stays without those of the changes
    for path in numbers(config):
        changed = copy.deepcopy(config)
        at = changed
        for key in path[:-1]:
            at = at[key]
        value = at[path[-1]]
        if isinstance(value, bool):
            at[path[-1]] = not value
        elif path[-1] == "values_in_keys":
            del at[path[-1]]
        else:
            at[path[-1]] = value + 1 if path[-1] == "window_size" else value * 2
        moved = float((logits(tensors, changed, prompt).log_softmax(-1) - before).abs().max())
        if moved < MATTERS:
            raise SystemExit(f"{name}: {path}: it moves log-probabilities by {moved:.1e} only")


def check_routes(name):
    """Of all mixtures since the last call: no choice is near another one, no expert is without
    tokens."""
    for place, weights, ids in ROUTED:
        chosen, count = ids.shape[-1], weights.shape[-1]
        margin = float((weights[:, chosen - 1] - weights[:, chosen]).min())
        idle = set(range(count)) - set(ids.flatten().tolist())
        if margin < MARGIN or idle:
            raise SystemExit(f"{name}: {place}: margin {margin:.1e}, experts {idle} without tokens")
    if ROUTED:
        least = min(float((w[:, i.shape[-1] - 1] - w[:, i.shape[-1]]).min()) for _, w, i in ROUTED)
        print(f"{name}: the least margin of a router is {least:.1e}")
    ROUTED.clear()


def make(folder, config, seed):
    tensors, prompt = Tensors(), random_prompt(BASE["vocab_size"], PROMPT, seed)
    config = {**BASE, **config}
    logits(tensors, config, prompt)
    fill_with_noise(tensors, seed)
    for key, tensor in tensors.made.items():
        tensors.made[key] = tensor.float().double()
    check_that_all_counts(folder.name, config, tensors, prompt)
    ROUTED.clear()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file({key: tensor.float() for key, tensor in tensors.made.items()},
              folder / "model.safetensors")
    write_case(folder, lambda ids: logits(tensors, config, ids), prompt)
    check_routes(folder.name)


for number, (name, config) in enumerate(CASES.items()):
    if sys.argv[2:] and name not in sys.argv[2:]:
        continue
    HEAD, VALUES = SIZES.get(name, (6, 5))
    make(pathlib.Path(sys.argv[1]) / name, config, 4300 + number)
