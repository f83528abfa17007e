# SPDX-License-Identifier: Apache-2.0
"""What the references of all families compute with, in numpy's float64."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.maximum(x, 0)


def relu2(x):
    return relu(x) ** 2


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms_norm(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def convolve(x, weight):
    """Of each channel of x [T, C] by itself, with weight [C, taps], whose last is that of the same row."""
    length, taps = len(x), weight.shape[1]
    x = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return sum(weight[:, j] * x[j:j + length] for j in range(taps))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class Noise:
    """Numbers that f32 holds, the same for the same name, so that a change elsewhere changes none."""

    def __call__(self, name, *shape, scale=0.25, mean=0):
        random = np.random.default_rng(list(name.encode()))
        return (mean + scale * random.standard_normal(shape)).astype(np.float32)


def rotary(rope, base, part, size, longest, outside=None):
    """(frequencies, factor of cosines and sines) of transformers' modeling_rope_utils.py. rope has
    precedence over base and part, `outside` over its original_max_position_embeddings."""
    base, part = rope.get("rope_theta", base), rope.get("partial_rotary_factor", part)
    kind = rope.get("rope_type", rope.get("type", "default"))
    dim, factor = int(size * part), rope.get("factor", 1)
    length = outside or rope.get("original_max_position_embeddings", longest)
    if kind == "proportional":
        turning = int(part * size // 2)
        own = 1.0 / base ** (np.arange(0, 2 * turning, 2) / size)
        return np.concatenate([own, np.zeros(size // 2 - turning)]) / factor, 1
    own = 1.0 / (base ** (np.arange(0, dim, 2) / max(dim, 1)))
    if kind == "longrope":
        ratio = rope.get("factor") or longest / length
        usual = math.sqrt(1 + math.log(ratio) / math.log(length)) if ratio > 1 else 1
        divisors = rope["long_factor" if longest > length else "short_factor"]
        return own / np.array(divisors), rope.get("attention_factor", usual)
    if kind == "linear":
        return own / factor, 1
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = np.clip((length * own / (2 * np.pi) - low) / (high - low), 0, 1)
        return (1 - smooth) * own / factor + smooth * own, 1
    if kind == "yarn":
        def mscale(m):
            return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1

        factor = factor or longest / length
        ends = [dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)]
        if rope.get("truncate", True):
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        low, high = max(ends[0], 0), min(ends[1], dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
        given = rope.get("attention_factor")
        if given is None:
            both = rope.get("mscale") and rope.get("mscale_all_dim")
            given = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"]) if both else mscale(1)
        return own / factor * ramp + own * (1 - ramp), given
    return own, 1
