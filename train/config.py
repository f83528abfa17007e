# SPDX-License-Identifier: Apache-2.0
"""config.json of the native family (model-format.md, "Native config.json")."""

from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from train.files import read_object

LINEAR = {
    "feature_map": (
        "identity",
        "relu",
        "elu",
        "elu+1",
        "exp",
        "favor",
        "cos_sin",
        "hedgehog",
        "dpfp",
        "unit_cos_sin",
    ),
    "gate": (
        "none",
        "scalar",
        "fast_decay",
        "refined",
        "gla",
        "delta",
        "gated_delta",
        "mamba2",
        "rwkv7",
    ),
    "query_scale": ("none", "sqrt_dim", "exp_variance"),
}
SOFTMAX = {
    "activation": ("softmax", "relu", "relu2"),
    "window": ("full", "block", "sliding", "long_short"),
}
BOTH = {
    "kind": ("linear", "softmax", "pair"),
    "combine": (None, "add", "concatenate"),
    "output_norm": ("none", "layernorm", "rmsnorm", "simple_rmsnorm", "gated_rmsnorm"),
    "output_norm_scope": ("head", "hidden"),
    "output_gate": ("none", "swish", "sigmoid"),
    "output_gate_scope": (None, "head", "hidden"),
    "qk_projection": ("separate", "shared"),
    "value_activation": ("none", "silu"),
}
MODEL = {
    "model_type": ("regla",),
    "hidden_act": ("gelu", "gelu_new", "relu", "silu", "relu2"),
    "norm_type": ("layernorm", "rmsnorm", "simple_rmsnorm"),
    "position_embedding": ("none", "sinusoidal", "learned"),
}
CONV = {"activation": ("none", "silu")}
QK_NORM = {"type": ("layernorm", "rmsnorm", "l2"), "scope": ("head", "hidden")}
LRPE = ("lrpe_unitary", "lrpe_orthogonal", "lrpe_permutation")
POSITION = {
    "type": (
        "none",
        "rope",
        *LRPE,
        "alibi",
        "kerple_log",
        "kerple_power",
        "kerple_3para_log",
        "kerple_bias_wht",
        "t5",
        "spe",
    ),
    "stage": (None, "before", "after"),
    "pairing": ("half", "adjacent"),
    "basis": ("identity", "householder", "odd_even"),
}
# What a position's object may say beside its type.
POSITION_KEYS = {
    "rope": ("stage", "base", "rotary_pct", "pairing", "distance_bias"),
    "lrpe_unitary": ("basis",),
    "lrpe_orthogonal": ("basis", "rotary_pct"),
    "lrpe_permutation": ("basis",),
    "spe": ("gated",),
}


# What the engine computes and train/ does not.
NOT_TRAINED = (
    "blocks",
    "logit_scale",
    "logit_softcap",
    "score_scale",
    "score_softcap",
    "scaling",
)
# Feature maps whose factors are those of a running maximum, and those with a matrix for each head.
EXPONENTIAL = ("exp", "favor")
WITH_MATRIX = ("favor", "cos_sin", "unit_cos_sin", "hedgehog")
DELTA = ("delta", "gated_delta")

# Keys of other kinds.
_LINEAR_KEYS = (
    *LINEAR,
    "sum_norm",
    "dpfp_nu",
    "gate_logit_normalizer",
    "chunk_size",
    "conv",
    "num_qk_heads",
    "beta_max",
    "output_gate_first",
)
_SOFTMAX_KEYS = (*SOFTMAX, "window_size", "score_divisor", "num_kv_heads")
_PAIR_KEYS = ("parts", "combine")
FOREIGN = {
    "linear": (*_SOFTMAX_KEYS, *_PAIR_KEYS),
    "softmax": (*_LINEAR_KEYS, *_PAIR_KEYS),
    "pair": (*_LINEAR_KEYS, *_SOFTMAX_KEYS),
}


@dataclass
class PositionConfig:
    type: str = "none"
    stage: str = None
    base: float = 10000.0
    rotary_pct: float = 1.0
    pairing: str = "half"
    basis: str = "identity"
    gated: bool = True
    distance_bias: int = 0


@dataclass
class ConvConfig:
    width: int
    activation: str = "none"


@dataclass
class QkNormConfig:
    type: str
    scope: str = "head"
    eps: float = None
    plus_one: bool = False


@dataclass
class MixerConfig:
    kind: str
    feature_map: str = "identity"
    gate: str = "none"
    gate_logit_normalizer: float = 16.0
    sum_norm: bool = False
    chunk_size: int = None
    query_scale: str = "none"
    output_norm: str = "none"
    output_norm_scope: str = "head"
    output_norm_eps: float = None
    output_gate: str = "none"
    output_gate_scope: str = None
    output_gate_first: bool = False
    num_heads: int = None
    num_qk_heads: int = None  # of a linear mixer
    num_kv_heads: int = None  # of a softmax mixer
    beta_max: float = None
    conv: ConvConfig = None
    qk_norm: QkNormConfig = None
    qk_projection: str = "separate"
    value_activation: str = "none"
    dpfp_nu: int = 1
    activation: str = "softmax"
    window: str = "full"
    window_size: int = None
    segment_length: int = None
    segment_rank: int = None
    score_divisor: int = None
    parts: list = None
    combine: str = None
    position: PositionConfig = field(default_factory=PositionConfig)

    def head_counts(self):
        """Heads of q, of k and of v."""
        linear = self.num_qk_heads or self.num_heads
        values = self.num_kv_heads or self.num_heads
        return (linear, linear, values) if self.kind == "linear" else (self.num_heads, values, values)


@dataclass
class ModelConfig:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    norm_type: str
    norm_eps: float
    layer_types: list
    mixers: dict
    bos_token_id: int
    eos_token_id: int
    model_type: str = "regla"
    hidden_act: str = "gelu"
    parallel_residual: bool = False
    tie_word_embeddings: bool = False
    position_embedding: str = "none"
    embedding_norm: bool = False
    norm_plus_one: bool = False
    embedding_scale: float = 1.0
    max_position_embeddings: int = None


def is_a(value, kind):
    """Whether JSON has a value of this type, a list of names for a list. Null is as if absent."""
    if value is None or kind not in (bool, int, float, str, list):
        return True
    if kind is list:
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    return type(value) in ((int, float) if kind is float else (kind,))


def _build(cls, raw, where, choices):
    """An object of the class from JSON, refusing unknown keys, missing ones and unknown values."""
    known = {f.name: f.type for f in fields(cls)}
    for key in raw:
        if key not in known:
            what = "train/ cannot train it" if key in NOT_TRAINED else "unknown key"
            raise ValueError(f"config.json: {where}{key}: {what}")
        if not is_a(raw[key], known[key]):
            kind = known[key].__name__
            raise ValueError(f"config.json: {where}{key}: expected {kind}, got {raw[key]!r}")
    try:
        made = cls(**raw)
    except TypeError as error:
        raise ValueError(f"config.json: {where or 'model'}: {error}") from None
    for key, values in choices.items():
        if getattr(made, key) not in values:
            raise ValueError(f"config.json: {where}{key}: unknown value {getattr(made, key)!r}")
    return made


def object_of(raw, where):
    """Its members that are not null: null is as if absent."""
    if not isinstance(raw, dict):
        raise ValueError(f"config.json: {where}: expected an object, got {raw!r}")
    return {key: value for key, value in raw.items() if value is not None}


def _mixer(name, raw, norm_eps, num_heads):
    where = f"mixers.{name}."
    raw = object_of(raw, f"mixers.{name}")
    if raw.get("kind") == "conv":
        raise ValueError(f"config.json: {where}kind: conv: train/ cannot train it")
    position = raw.pop("position", "none")
    position = object_of({"type": "none"} if position == "none" else position, where + "position")
    conv, qk_norm = (object_of(raw[k], where + k) if k in raw else None for k in ("conv", "qk_norm"))
    made = _build(MixerConfig, raw, where, {**BOTH, **LINEAR, **SOFTMAX})
    for key in FOREIGN[made.kind]:
        if key in raw:
            raise ValueError(f"config.json: {where}{key}: not of a {made.kind} mixer")
    if made.kind == "pair":
        if position != {"type": "none"} or set(raw) - {"kind", "parts", "combine", "output_gate"}:
            raise ValueError(f"config.json: {where[:-1]}: a key that is not of a pair")
        if made.combine is None or not isinstance(made.parts, list) or len(made.parts) != 2:
            raise ValueError(f"config.json: {where[:-1]}: a pair needs two parts and combine")
    made.position = _build(PositionConfig, position, where + "position.", POSITION)
    for key in position:
        if key != "type" and key not in POSITION_KEYS.get(made.position.type, ()):
            raise ValueError(
                f"config.json: {where}position.{key}: not of position {made.position.type}"
            )
    if conv is not None:
        made.conv = _build(ConvConfig, conv, where + "conv.", CONV)
    if qk_norm is not None:
        made.qk_norm = _build(QkNormConfig, qk_norm, where + "qk_norm.", QK_NORM)
        if made.qk_norm.eps is None:
            made.qk_norm.eps = 1e-6 if made.qk_norm.type == "l2" else norm_eps
    if made.output_norm_eps is None:
        made.output_norm_eps = norm_eps
    if made.num_heads is None:
        made.num_heads = num_heads
    _check_mixer(made, where)
    return made


def _check_mixer(mixer, where):
    def refuse(text):
        raise ValueError(f"config.json: {where}{text}")

    if mixer.feature_map in EXPONENTIAL and mixer.gate in DELTA:
        refuse(f"gate: {mixer.gate} with an exponential feature map")
    if mixer.gate == "rwkv7" and mixer.feature_map != "identity":
        refuse("gate: rwkv7 needs feature_map identity")
    if mixer.gate == "rwkv7" and mixer.position.type == "lrpe_unitary":
        refuse("position: no lrpe_unitary with the gate rwkv7")
    if mixer.sum_norm and mixer.gate not in ("none", "scalar"):
        refuse("sum_norm: only with gate none or scalar")
    for key, least, most in (
        ("dpfp_nu", 1, 256),
        ("gate_logit_normalizer", 1e-6, 1e9),
        ("output_norm_eps", 0, 1),
        ("num_heads", 1, 4096),
    ):
        if not least <= getattr(mixer, key) <= most:
            refuse(f"{key}: expected {least} to {most}, got {getattr(mixer, key)}")
    if mixer.chunk_size is not None:
        if not 16 <= mixer.chunk_size <= 2**24:
            refuse(f"chunk_size: expected 16 to {2**24}, got {mixer.chunk_size}")
        plain = mixer.gate == "none" and mixer.query_scale == "none" and not mixer.sum_norm
        if not plain or mixer.feature_map in EXPONENTIAL:
            refuse("chunk_size: only with gate none and query_scale none, without sum_norm, exp, favor")
    if (mixer.score_divisor is not None) != (mixer.activation == "relu2"):
        refuse("score_divisor: of the activation relu2, which needs one")
    if mixer.score_divisor is not None and not 1 <= mixer.score_divisor <= 2**24:
        refuse(f"score_divisor: expected 1 to {2**24}, got {mixer.score_divisor}")
    if not 0 <= mixer.position.distance_bias <= 2**24:
        refuse(f"position.distance_bias: expected 1 to {2**24}")
    if mixer.position.distance_bias and mixer.kind == "linear":
        refuse("position.distance_bias: not for linear mixers")
    if not 0 <= mixer.position.rotary_pct <= 1:
        refuse(f"position.rotary_pct: expected 0 to 1, got {mixer.position.rotary_pct}")
    if not 1 <= mixer.position.base <= 1e12:
        refuse(f"position.base: expected 1 to 1e12, got {mixer.position.base}")
    if mixer.kind == "linear" and mixer.position.type == "rope" and mixer.position.stage is None:
        refuse("position.stage: a linear mixer's rope must say before or after")
    if mixer.kind == "linear" and mixer.position.type not in ("none", "rope", *LRPE, "spe"):
        refuse("position.type: not for linear mixers")
    if mixer.position.type == "spe":
        if mixer.kind != "linear":
            refuse("position.type: spe needs a linear mixer")
        if mixer.gate in ("fast_decay", "gla", "rwkv7"):
            refuse(f"gate: {mixer.gate} with position spe, which mixes the features that it decays")
        if not isinstance(mixer.position.gated, bool):
            refuse(f"position.gated: expected true or false, got {mixer.position.gated}")
    if mixer.window != "full" and not (
        isinstance(mixer.window_size, int) and mixer.window_size > 0
    ):
        refuse("window_size: must be a positive number")
    _check_segments(mixer, refuse)
    _check_inputs(mixer, refuse)
    _check_output(mixer, refuse)


def _check_inputs(mixer, refuse):
    """How q, k and v come from x, and the delta rule's rate."""
    for key in ("num_qk_heads", "num_kv_heads"):
        heads = getattr(mixer, key)
        if heads is not None and not (isinstance(heads, int) and heads > 0 and mixer.num_heads % heads == 0):
            refuse(f"{key}: expected a divisor of {mixer.num_heads} heads, got {heads}")
    grouped = mixer.head_counts() != (mixer.num_heads,) * 3
    if mixer.qk_projection == "shared" and (grouped or mixer.conv or mixer.qk_norm):
        refuse("qk_projection: must be separate with conv, qk_norm, num_qk_heads, num_kv_heads")
    if grouped and mixer.window == "long_short":
        refuse("window: long_short without num_kv_heads")
    if grouped and mixer.kind == "linear" and (
        mixer.feature_map in WITH_MATRIX
        or mixer.gate in ("fast_decay", "gla", "rwkv7")
        or mixer.position.type not in ("none", "rope")
    ):
        refuse(
            "num_qk_heads: needs a feature_map without a matrix, no gate fast_decay, gla or rwkv7, and "
            "the position none or rope"
        )
    if mixer.conv and not (isinstance(mixer.conv.width, int) and 2 <= mixer.conv.width <= 8):
        refuse(f"conv.width: expected 2 to 8, got {mixer.conv.width}")
    if mixer.qk_norm and not 0 <= mixer.qk_norm.eps <= 1:
        refuse(f"qk_norm.eps: expected 0 to 1, got {mixer.qk_norm.eps}")
    if mixer.qk_norm and mixer.qk_norm.type == "l2" and mixer.qk_norm.plus_one:
        refuse("qk_norm.plus_one: l2 has no weights")
    if mixer.beta_max is not None and mixer.gate not in DELTA:
        refuse("beta_max: only with the gates delta and gated_delta")
    if mixer.beta_max is not None and not 1 <= mixer.beta_max <= 2:
        refuse(f"beta_max: expected 1 to 2, got {mixer.beta_max}")


def _check_output(mixer, refuse):
    by_head = mixer.output_gate_scope == "head"
    if mixer.output_gate_scope is not None and mixer.output_gate == "none":
        refuse("output_gate_scope: needs an output_gate")
    if by_head and mixer.output_norm != "none" and mixer.output_norm_scope == "hidden":
        refuse("output_gate_scope: head takes no output_norm_scope hidden")
    if mixer.output_gate_first and (mixer.output_gate == "none" or by_head):
        refuse("output_gate_first: needs an output_gate, of scope hidden")


def _check_segments(mixer, refuse):
    length, rank = mixer.segment_length, mixer.segment_rank
    if mixer.window != "long_short":
        if length is not None or rank is not None:
            refuse("segment_length, segment_rank: only of a window long_short")
        return
    if not (isinstance(length, int) and 1 <= length <= 64 and 64 % length == 0):
        refuse(f"segment_length: expected a divisor of 64, got {length}")
    if not (isinstance(rank, int) and 1 <= rank <= length):
        refuse(f"segment_rank: expected 1 to {length}, got {rank}")
    if mixer.activation != "softmax" or mixer.position.type != "none":
        refuse("window: long_short needs the activation softmax and position none")


def _check_pair(mixers, name, pair):
    where = f"config.json: mixers.{name}.parts"
    for part in pair.parts:
        if part not in mixers:
            raise ValueError(f"{where}: {part}: not in mixers")
        if mixers[part].kind == "pair" or mixers[part].output_gate != "none":
            raise ValueError(f"{where}: {part}: neither a pair nor one with an output_gate")
    same = ("num_heads", "num_kv_heads", "qk_projection", "value_activation")
    first, second = (mixers[part] for part in pair.parts)
    if pair.combine == "add" and (first.conv or second.conv):
        raise ValueError(f"{where}: combine add takes no conv")
    if pair.combine == "add" and any(getattr(first, k) != getattr(second, k) for k in same):
        raise ValueError(f"{where}: combine add needs equal {', '.join(same)}")


def parse_config(raw):
    """A ModelConfig from config.json's object (a preset's "shapes" already taken out)."""
    ids = {key: raw[key] for key in ("bos_token_id", "eos_token_id") if key in raw}
    raw = {**object_of(raw, "model"), **ids}  # whose null says that there is none
    if raw.get("blocks") == {}:
        del raw["blocks"]
    mixers = object_of(raw.get("mixers", {}), "mixers")
    config = _build(ModelConfig, raw, "", MODEL)
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        if getattr(config, key) < 1:
            raise ValueError(f"config.json: {key}: expected 1 or more, got {getattr(config, key)}")
    if len(config.layer_types) != config.num_hidden_layers:
        raise ValueError("config.json: layer_types: not num_hidden_layers long")
    config.mixers = {
        name: _mixer(name, mixer, config.norm_eps, config.num_attention_heads)
        for name, mixer in mixers.items()
    }
    for name, mixer in config.mixers.items():
        if mixer.kind == "pair":
            _check_pair(config.mixers, name, mixer)
    for name in config.layer_types:
        if name not in config.mixers:
            raise ValueError(f"config.json: layer_types: {name}: not in mixers")
    if not 1e-6 <= config.embedding_scale <= 1e6:
        raise ValueError(
            f"config.json: embedding_scale: expected 1e-6 to 1e6, got {config.embedding_scale}"
        )
    if config.position_embedding == "learned" and config.max_position_embeddings is None:
        raise ValueError("config.json: max_position_embeddings: required by learned positions")
    return config


def shipped(raw):
    """config.json's object without what only training needs (init.py, parameters.py)."""
    return {key: value for key, value in raw.items() if key not in ("shapes", "init", "rates")}


@contextmanager
def of_file(path):
    """Errors about a config.json name this file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("config.json", str(path), 1)) from None


def read_config(path):
    """(ModelConfig, the JSON object) of a config.json."""
    raw = read_object(path)
    with of_file(path):
        return parse_config(shipped(raw)), raw
