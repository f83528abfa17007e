# SPDX-License-Identifier: Apache-2.0
"""Makes the retnet*, hgrn2*, kda* and gla_fla_conv cases in tests/golden: models that flash-linear-attention
itself saved.

    python make_fla_fixtures.py ../golden [CASE...]

Needs torch, transformers, einops and flash-linear-attention 0.6.0. The forward pass is that of their classes
in float64, with each kernel, which needs a GPU, replaced by what it computes: the recurrences by their naive
ones, the others by the same formula in PyTorch.
"""

import pathlib
import sys

import fla.layers.gla
import fla.layers.hgrn2
import fla.layers.kda
import fla.layers.multiscale_retention
import make_delta_fla_fixtures as delta
import torch
import torch.nn.functional as F
from fla.models import (GLAConfig, GLAForCausalLM, HGRN2Config, HGRN2ForCausalLM, KDAConfig,
                        KDAForCausalLM, RetNetConfig, RetNetForCausalLM)
from fla.modules import ShortConvolution
from fla.modules.rotary import RotaryEmbedding
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.retention.naive import naive_retention

GLA, RETNET = (GLAConfig, GLAForCausalLM), (RetNetConfig, RetNetForCausalLM)
HGRN2, KDA = (HGRN2Config, HGRN2ForCausalLM), (KDAConfig, KDAForCausalLM)
CASES = {  # name -> classes, keys, dtype, length of the prompt: beyond 64 they take the chunk kernel
    "gla_fla_conv": (GLA, {"vocab_size": 275, "num_heads": 2, "num_kv_heads": 1, "use_short_conv": True,
                           "conv_size": 3}, torch.float32, 40),
    "retnet": (RETNET, {"vocab_size": 276, "num_heads": 4}, torch.float32, 70),
    "retnet_kv_heads": (RETNET, {"vocab_size": 277, "num_heads": 4, "num_kv_heads": 2, "expand_v": 1.5,
                                 "feature_map": "relu", "use_output_gate": False,
                                 "tie_word_embeddings": True}, torch.bfloat16, 50),
    "hgrn2": (HGRN2, {"vocab_size": 275, "expand_ratio": 8, "num_hidden_layers": 3}, torch.float32, 70),
    "hgrn2_conv": (HGRN2, {"vocab_size": 278, "expand_ratio": None, "num_heads": 2, "use_short_conv": True,
                           "use_lower_bound": False, "tie_word_embeddings": True}, torch.bfloat16, 40),
    "kda": (KDA, {"vocab_size": 275, "num_heads": 2, "head_dim": 12, "expand_v": 1.5,
                  "allow_neg_eigval": True}, torch.float32, 70),
    "kda_bound": (KDA, {"vocab_size": 279, "num_heads": 3, "head_dim": 8, "safe_gate": True,
                        "lower_bound": -5.0, "conv_size": 2}, torch.bfloat16, 40),
}
SEED = 4390


def gla(q, k, v, gk=None, g=None, initial_state=None, output_final_state=False, **_):
    assert initial_state is None
    return naive_recurrent_gla(q, k, v, g if gk is None else gk, None, output_final_state)


def retention(q, k, v, **_):
    return naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None


def kda(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval=False, lower_bound=None, **_):
    g = g.unflatten(-1, (A_log.shape[0], -1)) if g.dim() == 3 else g
    if lower_bound is None:
        g = naive_kda_gate(g, A_log, dt_bias, g.dtype)
    else:
        g = naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound, g.dtype)
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    return naive_recurrent_kda(delta.unit(q), delta.unit(k), v, g, beta)


def convolve(self, x, **_):
    padded = F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))
    y = F.conv1d(padded, self.weight, self.bias, groups=x.shape[-1]).transpose(1, 2)
    return (F.silu(y) if self.activation else y), None


def turn(self, q, k, **_):
    assert not self.interleaved
    half = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
    angles = torch.arange(q.shape[1], dtype=torch.float64)[:, None] * self.base ** -half
    cos, sin = (f(angles)[None, :, None, :] for f in (torch.cos, torch.sin))

    def turned(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return turned(q), turned(k)


def use_plain_operations():
    delta.use_plain_operations()
    modules = (fla.layers.gla, gla), (fla.layers.hgrn2, gla), (fla.layers.kda, kda), (
        fla.layers.multiscale_retention, retention)
    for module, rule in modules:
        for name in vars(module).copy():
            if name.endswith(("_gla", "_kda", "_retention")):
                setattr(module, name, rule)
    for module in (fla.layers.gla, fla.layers.multiscale_retention):
        module.ACT2FN = {"swish": F.silu, "silu": F.silu, "relu": F.relu}
    fla.layers.hgrn2.swish = F.silu
    fla.layers.hgrn2.rms_norm_linear = lambda x, weight, _, out, bias: F.linear(
        F.rms_norm(x, x.shape[-1:], weight, 1e-5), out, bias)
    ShortConvolution.forward = convolve
    RotaryEmbedding.forward = turn


def main():
    golden = pathlib.Path(sys.argv[1])
    use_plain_operations()
    for i, (name, case) in enumerate(CASES.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            delta.make(golden / name, case, SEED + i)


if __name__ == "__main__":
    main()
