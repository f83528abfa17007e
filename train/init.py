# SPDX-License-Identifier: Apache-2.0
"""First values of a model's tensors, from a config with a "shapes" object (as presets have) and,
if it wants other ones than by default, an "init" object."""

import math
from dataclasses import dataclass, field, fields

import torch

from train.config import is_a, object_of
from train.model.layers import WEIGHTED_NORMS
from train.model.positions import KERPLE_LOWEST, default_theta, rotary_size

# FLASH (Hua et al. 2022): the deviation of q_scale, k_scale and of the bias by distance.
FLASH_START = 0.02
# The first steps dt = softplus(b) of Gated DeltaNet and Mamba-2 as released: evenly drawn by their
# logarithm. A = e^A_log is drawn evenly, too.
STEPS = (1e-3, 0.1)
DECAYS = {"gated_delta": (0, 16), "mamba2": (1, 16)}
LEAST_DECAY = 1e-4  # whose logarithm is finite
# KERPLE as released: each head's r is drawn between 0 and this (3-para-log was not released; its
# exponent has the range of the other exponents).
KERPLE_RANGES = {
    "kerple_log": {"r1": 2.0, "r2": 1.0},
    "kerple_power": {"r1": 1.0, "r2": 2.0},
    "kerple_3para_log": {"r1": 2.0, "r2": 1.0, "r3": 2.0},
    "kerple_bias_wht": {"r1": 1.0, "r2": 2.0, "r3": 1.0, "r4": 2.0},
}
SHAPES = {"head_dim": int, "value_dim": int, "features": int, "glu": bool, "bias": bool}


@dataclass
class Init:
    """The "init" object of a config."""

    # Of the biases of g_proj, z_proj and f_proj, evenly over a head's dimensions (or the heads).
    # ReGLA's sigma(b_g) is then 0.73 to 0.99 and, as b_r = 0, F = g at first.
    gate_bias: tuple = (1.0, 4.5)
    # Of fast decay: its products sigma(z_i) sigma(f_j) are at first sigma of the i-th of gate_bias,
    # for all j, as ReGLA's gate is; else each of its two gates is that.
    gate_product: bool = False
    # {"r1": [from, to], ..}: evenly over the heads, in the place of the released draw.
    kerple: dict = field(default_factory=dict)
    # LRPE's angles become a tensor, which is trained.
    learned_theta: bool = False


def _pair(value, where):
    if not isinstance(value, list) or [type(end) in (int, float) for end in value] != [True, True]:
        raise ValueError(f"config.json: {where}: expected two numbers, got {value!r}")
    return tuple(value)


def read_init(raw):
    """The Init of a config's JSON object."""
    given = object_of(raw.get("init", {}), "init")
    for key in given:
        if key not in {f.name for f in fields(Init)}:
            raise ValueError(f"config.json: init.{key}: unknown key")
    for key in ("learned_theta", "gate_product"):
        if not is_a(given.get(key), bool):
            raise ValueError(f"config.json: init.{key}: expected bool, got {given[key]!r}")
    if "gate_bias" in given:
        given["gate_bias"] = _pair(given["gate_bias"], "init.gate_bias")
    kerple = object_of(given.get("kerple", {}), "init.kerple")
    for key in kerple:
        if key not in ("r1", "r2", "r3", "r4"):
            raise ValueError(f"config.json: init.kerple.{key}: unknown key")
        kerple[key] = _pair(kerple[key], f"init.kerple.{key}")
    return Init(**{**given, "kerple": kerple})


def read_shapes(raw):
    """The "shapes" of a config's JSON object."""
    shapes = object_of(raw.get("shapes", {}), "shapes")
    mixers = object_of(shapes.get("mixers", {}), "shapes.mixers")
    for where, sizes in (("shapes", shapes), *((f"shapes.mixers.{m}", mixers[m]) for m in mixers)):
        for key, value in object_of(sizes, where).items():
            if key == "mixers" and where == "shapes":
                continue
            if key not in SHAPES:
                raise ValueError(f"config.json: {where}.{key}: unknown key")
            if not is_a(value, SHAPES[key]) or SHAPES[key] is int and value < 1:
                kind = "1 or more" if SHAPES[key] is int else "true or false"
                raise ValueError(f"config.json: {where}.{key}: expected {kind}, got {value!r}")
    return shapes


def is_cosformer(mixer):
    return mixer.feature_map == "relu" and mixer.position.type == "lrpe_unitary"


def is_permuteformer(mixer):
    """Whether the decay of heads is PermuteFormer's: r_h = sigma(2 + 3h/H) at every token."""
    return (
        mixer.kind == "linear"
        and mixer.gate == "scalar"
        and mixer.position.type == "lrpe_permutation"
    )


class _Maker:
    def __init__(self, config, shapes, seed, init):
        self.config, self.shapes, self.init = config, shapes, init
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = {}
        # KERPLE's r are the same in all layers, and whatever they are, all else starts the same.
        self.shared, self.shared_generator = {}, torch.Generator().manual_seed(seed)

    def normal(self, name, shape, std):
        self.tensors[name] = torch.randn(shape, generator=self.generator) * std

    def uniform(self, shape, least, most):
        return least + (most - least) * torch.rand(shape, generator=self.generator)

    def orthogonal(self, name, matrices, rows, size):
        """Performer's W: Gaussian rows, orthogonal within each block of `size` of them."""
        made = []
        for first in range(0, rows, size):
            gaussian = torch.randn((matrices, size, size), generator=self.generator)
            directions = torch.linalg.qr(gaussian.transpose(-1, -2)).Q.transpose(-1, -2)
            lengths = torch.randn((matrices, size, size), generator=self.generator).norm(
                dim=-1, keepdim=True
            )
            made.append((directions * lengths)[:, : rows - first])
        self.tensors[name] = torch.cat(made, 1)

    def linear(self, name, outputs, inputs, bias, scale=1.0):
        self.normal(f"{name}.weight", (outputs, inputs), scale / math.sqrt(inputs))
        if bias:
            self.tensors[f"{name}.bias"] = torch.zeros(outputs)

    def shapes_of(self, mixer_name):
        """Sizes of a mixer: the config's "shapes", and what these have under "mixers" for it."""
        return {**self.shapes, **self.shapes.get("mixers", {}).get(mixer_name, {})}

    def norm(self, name, kind, size, plus_one=False):
        if kind in WEIGHTED_NORMS:
            self.tensors[f"{name}.weight"] = torch.full((size,), 0.0 if plus_one else 1.0)
        if kind == "gated_rmsnorm":
            self.tensors[f"{name}.gate"] = torch.ones(size)
        if kind == "layernorm":
            self.tensors[f"{name}.bias"] = torch.zeros(size)


def new_tensors(config, shapes, seed=0, init=None):
    """Checkpoint tensors of a new model; shapes: head_dim, value_dim, features (of favor and
    the Fourier maps), glu, bias, and mixers, an object of others of these for some mixers; init: an
    Init."""
    for name in shapes.get("mixers", {}):
        if name not in config.mixers:
            raise ValueError(f"config.json: shapes.mixers.{name}: not in mixers")
    make = _Maker(config, shapes, seed, init or Init())
    width, plus_one = config.hidden_size, config.norm_plus_one
    # Scaled ones end as wide as sinusoids, as in Vaswani et al. 2017.
    std = 0.02 if config.embedding_scale == 1 else 1 / config.embedding_scale
    make.normal("model.embeddings.weight", (config.vocab_size, width), std)
    if config.position_embedding == "learned":
        make.normal(
            "model.position_embeddings.weight", (config.max_position_embeddings, width), 0.02
        )
    if config.embedding_norm:
        make.norm("model.embedding_norm", config.norm_type, width, plus_one)
    for i, name in enumerate(config.layer_types):
        layer = f"model.layers.{i}"
        make.norm(f"{layer}.attn_norm", config.norm_type, width, plus_one)
        _attention(make, name, f"{layer}.attn")
        if config.intermediate_size > 0:
            make.norm(f"{layer}.mlp_norm", config.norm_type, width, plus_one)
            _mlp(make, f"{layer}.mlp")
    make.norm("model.norm", config.norm_type, width, plus_one)
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


def _attention(make, mixer_name, name):
    config = make.config
    mixer = config.mixers[mixer_name]
    pair = mixer.kind == "pair"
    part_names = mixer.parts if pair else [mixer_name]
    parts = [(config.mixers[part], _sizes(make, part)) for part in part_names]
    added = pair and mixer.combine == "add"

    def output():
        heights = [part.num_heads * sizes["value_dim"] for part, sizes in parts]
        size = heights[0] if added else sum(heights)
        width, bias = config.hidden_size, make.shapes.get("bias", False)
        make.linear(f"{name}.o_proj", width, size, bias, _residual_scale(config))
        if mixer.output_gate != "none":
            gates = mixer.num_heads if mixer.output_gate_scope == "head" else size
            make.linear(f"{name}.out_gate_proj", gates, width, False)

    for i, (part, sizes) in enumerate(parts):
        prefix = f"{name}.parts.{i}" if pair else name
        sources = prefix if not added else name if i == 0 else None
        _queries(make, part, prefix, sources, sizes)
        if not pair:  # a seed's numbers come in this order
            output()
        _rest(make, part, prefix, sizes)
    if pair:
        output()


def _sizes(make, mixer_name):
    """The mixer's shapes, with head_dim and value_dim."""
    config = make.config
    d = config.hidden_size // config.num_attention_heads
    return {"head_dim": d, "value_dim": d, **make.shapes_of(mixer_name)}


def _queries(make, mixer, name, sources, sizes):
    """q, k and v; sources: where the values, and the one projection of shared q and k, are."""
    width, bias, d = make.config.hidden_size, make.shapes.get("bias", False), sizes["head_dim"]
    q, k, v = mixer.head_counts()
    rows = {"q_proj": q * d, "k_proj": k * d, "v_proj": v * sizes["value_dim"]}
    if mixer.qk_projection == "separate":
        make.linear(f"{name}.q_proj", rows["q_proj"], width, bias)
        make.linear(f"{name}.k_proj", rows["k_proj"], width, bias)
    elif sources is not None:
        make.linear(f"{sources}.qk_proj", rows["q_proj"], width, bias)
    if sources is not None:
        make.linear(f"{sources}.v_proj", rows["v_proj"], width, bias)
    for side in ("q_scale", "k_scale") if mixer.qk_projection == "shared" else ():
        make.normal(f"{name}.{side}.weight", (rows["q_proj"],), FLASH_START)
        make.tensors[f"{name}.{side}.bias"] = torch.zeros(rows["q_proj"])
    if mixer.conv is not None:
        _conv(make, mixer, f"{name}.conv", sum(rows.values()))
    if mixer.qk_norm is not None:
        for side, heads in (("q_norm", q), ("k_norm", k)):
            size = d if mixer.qk_norm.scope == "head" else heads * d
            make.norm(f"{name}.{side}", mixer.qk_norm.type, size, mixer.qk_norm.plus_one)


def _conv(make, mixer, name, channels):
    """As PyTorch starts a convolution; of mixers with one, Mamba-2's has a bias."""
    most = mixer.conv.width**-0.5
    make.tensors[f"{name}.weight"] = make.uniform((channels, mixer.conv.width), -most, most)
    if mixer.gate == "mamba2":
        make.tensors[f"{name}.bias"] = make.uniform((channels,), -most, most)


def _rest(make, mixer, name, sizes):
    d, dv, heads = sizes["head_dim"], sizes["value_dim"], mixer.num_heads
    make.norm(
        f"{name}.out_norm",
        mixer.output_norm,
        heads * dv if mixer.output_norm_scope == "hidden" else dv,
    )
    if mixer.window == "long_short":
        make.linear(f"{name}.segment_proj", heads * mixer.segment_rank, make.config.hidden_size, True)
        for norm in ("window_norm", "segment_norm"):
            make.norm(f"{name}.{norm}", "layernorm", heads * d)
    m = d
    if mixer.kind == "linear":
        m = _features(make, mixer, name, d, sizes.get("features"))
        _gates(make, mixer, name, m, dv)
    _position(make, mixer, f"{name}.position", m)


def _features(make, mixer, name, d, rows):
    """The feature map's tensors; returns the number of features."""
    heads = mixer.num_heads
    rows = rows or d
    if mixer.feature_map == "favor":
        make.orthogonal(f"{name}.features.weight", heads, rows, d)
        return rows
    if mixer.feature_map in ("cos_sin", "unit_cos_sin"):
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
    if mixer.gate in DECAYS:
        _steps(make, mixer, name)
        return
    sizes = {
        "scalar": {"g_proj": 1},
        "fast_decay": {"z_proj": dv, "f_proj": m},
        "refined": {"g_proj": dv, "r_proj": dv},
        "delta": {"b_proj": 1},
        "rwkv7": {"f_proj": m, "erase_proj": m, "write_proj": m},
    }.get(mixer.gate, {})
    if is_permuteformer(mixer):
        make.tensors[f"{name}.g_proj.weight"] = torch.zeros(heads, width)
        make.tensors[f"{name}.g_proj.bias"] = 2 + 3 * torch.arange(heads) / heads
        return
    for gate, size in sizes.items():
        make.linear(f"{name}.{gate}", heads * size, width, True)
        if gate in ("g_proj", "z_proj", "f_proj"):
            spread = torch.linspace(*make.init.gate_bias, size if size > 1 else heads)
            make.tensors[f"{name}.{gate}.bias"] = spread.repeat(heads) if size > 1 else spread
    if mixer.gate == "fast_decay" and make.init.gate_product:
        _factors(make, name)


def _factors(make, name):
    """Of the z that a gate alone would have: f takes as much of all products as of the largest."""
    z, f = make.tensors[f"{name}.z_proj.bias"], make.tensors[f"{name}.f_proj.bias"]
    product = z.double().sigmoid()
    factor = product.max().sqrt()
    make.tensors[f"{name}.z_proj.bias"] = (product / factor).logit().float()
    make.tensors[f"{name}.f_proj.bias"] = torch.full_like(f, float(factor.logit()))


def _steps(make, mixer, name):
    """The rate and the decay of Gated DeltaNet, and Mamba-2's, as released: A_log, and dt in a
    bias."""
    heads, width = mixer.num_heads, make.config.hidden_size
    projection = "dt_proj" if mixer.gate == "mamba2" else "a_proj"
    make.linear(f"{name}.{projection}", heads, width, False)
    step = make.uniform((heads,), *(math.log(s) for s in STEPS)).exp()
    make.tensors[f"{name}.{projection}.bias"] = step + torch.log(-torch.expm1(-step))
    decay = make.uniform((heads,), *DECAYS[mixer.gate]).clamp(min=LEAST_DECAY)
    make.tensors[f"{name}.A_log"] = decay.log()
    if mixer.gate == "mamba2":
        make.tensors[f"{name}.D"] = torch.ones(heads)
    else:
        make.linear(f"{name}.b_proj", heads, width, False)


def _spe(make, position, name, heads, m, sines=1):
    """As SPE's released code starts; as many realizations as features, and one sine, as in that of
    LRPE."""
    for tensor in ("freqs", "offsets", "gains"):
        make.normal(f"{name}.{tensor}", (heads, m, sines), 1.0)
    make.tensors[f"{name}.freqs"] -= 4.0
    gains = make.tensors[f"{name}.gains"]
    gains *= 2.0 / gains.norm(dim=-1, keepdim=True).sqrt()
    make.normal(f"{name}.noise", (heads, m, 2 * sines, m), 1.0)
    if position.gated:
        make.normal(f"{name}.gate", (heads, m), 1.0)
        make.normal(f"{name}.gate_noise", (heads, m, m), 1.0)


def _kerple(make, kind, name, heads):
    for r, highest in KERPLE_RANGES.get(kind, {}).items():
        if (kind, r) not in make.shared:
            values = highest * torch.rand(heads, generator=make.shared_generator)
            if r in make.init.kerple:  # the others are drawn as without it
                values = torch.linspace(*make.init.kerple[r], heads)
            make.shared[kind, r] = values.clamp(min=KERPLE_LOWEST)
        make.tensors[f"{name}.{r}"] = make.shared[kind, r].clone()


def _theta(make, mixer, name, m):
    """cosFormer's one angle, or LRPE's first ones where they are learned; else there is no tensor,
    and the angles are the default ones."""
    position, longest = mixer.position, make.config.max_position_embeddings
    if is_cosformer(mixer) and longest:
        make.tensors[f"{name}.theta"] = torch.full((m,), math.pi / (2 * longest))
    elif make.init.learned_theta and position.type == "lrpe_unitary":
        make.tensors[f"{name}.theta"] = default_theta(m, m).float()
    elif make.init.learned_theta and position.type == "lrpe_orthogonal":
        size = rotary_size(m, position.rotary_pct)
        make.tensors[f"{name}.theta"] = default_theta(size // 2, size).float()


def _position(make, mixer, name, m):
    position = mixer.position
    heads = mixer.num_heads
    _kerple(make, position.type, name, heads)
    if position.type == "t5":
        make.tensors[f"{name}.bucket_bias"] = torch.zeros(32, heads)
    if position.type == "spe":
        _spe(make, position, name, heads, m)
    if position.distance_bias:
        make.normal(f"{name}.distance_bias", (position.distance_bias, heads), FLASH_START)
    if position.basis == "householder":
        make.normal(f"{name}.householder", (m,), 1.0)
    _theta(make, mixer, name, m)
    if position.type == "lrpe_permutation":
        make.tensors[f"{name}.permutation"] = torch.randperm(m, generator=make.generator).to(
            torch.int32
        )
