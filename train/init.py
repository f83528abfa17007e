# SPDX-License-Identifier: Apache-2.0
"""First values of a model's tensors, from a config with a "shapes" object (as presets have)."""

import math

import torch

# ReGLA's gates: sigma(b_g) from 0.73 to 0.99 over the dimensions of a head, and b_r = 0, so that F
# = g at first.
GATE_BIAS = (1.0, 4.5)
# KERPLE: with r1 >= 1 the far keys' total mass stays bounded, which is what carries beyond the
# training length.
KERPLE_START = {"r1": (1.0, 2.0), "r2": (1.0, 1.0), "r3": (1.0, 1.0), "r4": (1.0, 1.0)}
# FLASH (Hua et al. 2022): the deviation of q_scale, k_scale and of the bias by distance.
FLASH_START = 0.02
KERPLE_COUNT = {"kerple_log": 2, "kerple_power": 2, "kerple_3para_log": 3, "kerple_bias_wht": 4}


class _Maker:
    def __init__(self, config, shapes, seed):
        self.config, self.shapes = config, shapes
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = {}

    def normal(self, name, shape, std):
        self.tensors[name] = torch.randn(shape, generator=self.generator) * std

    def linear(self, name, outputs, inputs, bias, scale=1.0):
        self.normal(f"{name}.weight", (outputs, inputs), scale / math.sqrt(inputs))
        if bias:
            self.tensors[f"{name}.bias"] = torch.zeros(outputs)

    def norm(self, name, kind, size):
        if kind in ("layernorm", "rmsnorm"):
            self.tensors[f"{name}.weight"] = torch.ones(size)
        if kind == "layernorm":
            self.tensors[f"{name}.bias"] = torch.zeros(size)


def new_tensors(config, shapes, seed=0):
    """Checkpoint tensors of a new model; shapes: head_dim, value_dim, features (of favor and
    cos_sin), glu, bias."""
    make = _Maker(config, shapes, seed)
    width = config.hidden_size
    make.normal("model.embeddings.weight", (config.vocab_size, width), 0.02)
    if config.position_embedding == "learned":
        make.normal(
            "model.position_embeddings.weight", (config.max_position_embeddings, width), 0.02
        )
    if config.embedding_norm:
        make.norm("model.embedding_norm", config.norm_type, width)
    for i, name in enumerate(config.layer_types):
        layer = f"model.layers.{i}"
        make.norm(f"{layer}.attn_norm", config.norm_type, width)
        _attention(make, config.mixers[name], f"{layer}.attn")
        if config.intermediate_size > 0:
            make.norm(f"{layer}.mlp_norm", config.norm_type, width)
            _mlp(make, f"{layer}.mlp")
    make.norm("model.norm", config.norm_type, width)
    if not config.tie_word_embeddings:
        make.normal("lm_head.weight", (config.vocab_size, width), 0.02)
    return make.tensors


def _mlp(make, name):
    width, inner, bias = (
        make.config.hidden_size,
        make.config.intermediate_size,
        make.shapes.get("bias", False),
    )
    if make.shapes.get("glu", False):
        make.linear(f"{name}.gate_proj", inner, width, bias)
    make.linear(f"{name}.up_proj", inner, width, bias)
    make.linear(f"{name}.down_proj", width, inner, bias, _residual_scale(make.config))


def _residual_scale(config):
    return 1 / math.sqrt(2 * config.num_hidden_layers)


def _attention(make, mixer, name):
    config, shapes = make.config, make.shapes
    dv = shapes.get("value_dim", _head_dim(make))
    pair = mixer.kind == "pair"
    parts = [config.mixers[part] for part in mixer.parts] if pair else [mixer]
    added = pair and mixer.combine == "add"

    def output():
        size = dv * (parts[0].num_heads if added else sum(part.num_heads for part in parts))
        width, bias = config.hidden_size, shapes.get("bias", False)
        make.linear(f"{name}.o_proj", width, size, bias, _residual_scale(config))
        if mixer.output_gate == "swish":
            make.linear(f"{name}.out_gate_proj", size, width, False)

    for i, part in enumerate(parts):
        prefix = f"{name}.parts.{i}" if pair else name
        sources = prefix if not added else name if i == 0 else None
        _queries(make, part, prefix, sources, dv)
        if not pair:  # a seed's numbers come in this order
            output()
        _rest(make, part, prefix, dv)
    if pair:
        output()


def _head_dim(make):
    config = make.config
    return make.shapes.get("head_dim", config.hidden_size // config.num_attention_heads)


def _queries(make, mixer, name, sources, dv):
    """q, k and v; sources: where the values, and the one projection of shared q and k, are."""
    width, bias = make.config.hidden_size, make.shapes.get("bias", False)
    size = mixer.num_heads * _head_dim(make)
    if mixer.qk_projection == "separate":
        make.linear(f"{name}.q_proj", size, width, bias)
        make.linear(f"{name}.k_proj", size, width, bias)
    elif sources is not None:
        make.linear(f"{sources}.qk_proj", size, width, bias)
    if sources is not None:
        make.linear(f"{sources}.v_proj", mixer.num_heads * dv, width, bias)
    for side in ("q_scale", "k_scale") if mixer.qk_projection == "shared" else ():
        make.normal(f"{name}.{side}.weight", (size,), FLASH_START)
        make.tensors[f"{name}.{side}.bias"] = torch.zeros(size)


def _rest(make, mixer, name, dv):
    d, heads = _head_dim(make), mixer.num_heads
    make.norm(
        f"{name}.out_norm",
        mixer.output_norm,
        heads * dv if mixer.output_norm_scope == "hidden" else dv,
    )
    m = d
    if mixer.kind == "linear":
        m = _features(make, mixer, name, d)
        _gates(make, mixer, name, m, dv)
    _position(make, mixer, f"{name}.position", m)


def _features(make, mixer, name, d):
    """The feature map's tensors; returns the number of features."""
    heads = mixer.num_heads
    rows = make.shapes.get("features") or d
    if mixer.feature_map == "favor":
        make.normal(f"{name}.features.weight", (heads, rows, d), 1.0)
        return rows
    if mixer.feature_map == "cos_sin":
        make.normal(f"{name}.features.weight", (heads, rows // 2, d), 1.0)
        return rows // 2 * 2
    if mixer.feature_map == "hedgehog":
        for side in ("feature_q", "feature_k"):
            make.tensors[f"{name}.{side}.weight"] = torch.eye(d).repeat(heads, 1, 1)
        return 2 * d
    return 2 * d * mixer.dpfp_nu if mixer.feature_map == "dpfp" else d


def _gates(make, mixer, name, m, dv):
    heads, width = mixer.num_heads, make.config.hidden_size
    if mixer.gate == "gla":
        make.linear(f"{name}.gk_proj.0", 16, width, False)
        make.linear(f"{name}.gk_proj.1", heads * m, 16, True)
        return
    sizes = {
        "scalar": {"g_proj": 1},
        "fast_decay": {"z_proj": dv, "f_proj": m},
        "refined": {"g_proj": dv, "r_proj": dv},
        "delta": {"b_proj": 1},
    }.get(mixer.gate, {})
    for gate, size in sizes.items():
        make.linear(f"{name}.{gate}", heads * size, width, True)
        if gate in ("g_proj", "z_proj", "f_proj"):
            spread = torch.linspace(*GATE_BIAS, size if size > 1 else heads)
            make.tensors[f"{name}.{gate}.bias"] = spread.repeat(heads) if size > 1 else spread


def _position(make, mixer, name, m):
    position = mixer.position
    heads, longest = mixer.num_heads, make.config.max_position_embeddings
    for i in range(1, KERPLE_COUNT.get(position.type, 0) + 1):
        make.tensors[f"{name}.r{i}"] = torch.linspace(*KERPLE_START[f"r{i}"], heads)
    if position.type == "t5":
        make.tensors[f"{name}.bucket_bias"] = torch.zeros(32, heads)
    if position.distance_bias:
        make.normal(f"{name}.distance_bias", (position.distance_bias, heads), FLASH_START)
    if position.basis == "householder":
        make.normal(f"{name}.householder", (m,), 1.0)
    # cosFormer's angle; LRPE by itself keeps the default ones.
    if position.type == "lrpe_unitary" and mixer.feature_map == "relu" and longest:
        make.tensors[f"{name}.theta"] = torch.full((m,), math.pi / (2 * longest))
    if position.type == "lrpe_permutation":
        make.tensors[f"{name}.permutation"] = torch.randperm(m, generator=make.generator).to(
            torch.int32
        )
