# SPDX-License-Identifier: Apache-2.0
"""Makes the delta_fla_* cases in tests/golden: models that flash-linear-attention itself saved.

    python make_delta_fla_fixtures.py ../golden [CASE...]

Needs torch, transformers, einops and, in a virtual environment without those of make_delta_fixtures.py,
flash-linear-attention 0.6.0. The forward pass is that of their classes in float64, with each kernel, which
needs a GPU, replaced by what it computes: the recurrence by their naive one, the others by the same
formula in PyTorch.
"""

import pathlib
import shutil
import sys

import fla.layers.delta_net
import fla.layers.gated_deltanet
import fla.modules.mlp
import make_delta_fixtures
import torch
import torch.nn.functional as F
from dense_reference import exact
from fla.models import (DeltaNetConfig, DeltaNetForCausalLM, GatedDeltaNetConfig,
                        GatedDeltaNetForCausalLM)
from fla.modules import FusedRMSNormGated, RMSNorm, ShortConvolution
from fla.modules.mlp import SwiGLULinear
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from golden_case import random_prompt, write_case

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40, "bos_token_id": 0,
         "eos_token_id": 0, "max_position_embeddings": 256, "fuse_cross_entropy": False}
GATED = (GatedDeltaNetConfig, GatedDeltaNetForCausalLM)
PLAIN = (DeltaNetConfig, DeltaNetForCausalLM)
CASES = {  # name -> classes, keys, dtype, length of the prompt: beyond 64 they take the chunk kernel
    "delta_fla_gated": (GATED, {"vocab_size": 275, "num_heads": 2, "num_v_heads": 4, "head_dim": 8,
                                "expand_v": 1.5, "allow_neg_eigval": True}, torch.float32, 70),
    "delta_fla_gated_sigmoid": (GATED, {"vocab_size": 277, "num_heads": 3, "head_dim": 12, "conv_size": 3,
                                        "expand_v": 1.0, "output_gate_activation": "sigmoid",
                                        "tie_word_embeddings": True}, torch.bfloat16, 40),
    "delta_fla_ungated": (GATED, {"vocab_size": 276, "num_heads": 2, "head_dim": 8, "use_gate": False},
                          torch.float32, 40),
    "delta_fla_plain": (PLAIN, {"vocab_size": 275, "num_heads": 2, "expand_k": 0.5}, torch.float32, 66),
    "delta_fla_plain_gate": (PLAIN, {"vocab_size": 279, "num_heads": 4, "expand_v": 2.0, "use_gate": True,
                                     "allow_neg_eigval": True, "conv_size": 2}, torch.bfloat16, 50),
}
SEED = 4360


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def of_heads(x, like):
    return x.repeat_interleave(like.shape[2] // x.shape[2], 2)


def gated_delta_rule(q, k, v, g, beta, A_log, dt_bias, allow_neg_eigval, **_):
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    decay = -A_log.exp() * F.softplus(g + dt_bias)
    return naive_recurrent_gated_delta_rule(of_heads(unit(q), v), of_heads(unit(k), v), v, beta, decay)


def delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel, **_):
    assert use_qk_l2norm_in_kernel
    h, state = delta_rule_recurrence(*(x.transpose(1, 2) for x in (unit(q), unit(k), v, beta)))
    return h.transpose(1, 2), state


def rms_norm(self, x, residual=None, prenorm=False):
    if residual is not None:
        x = x + residual
    y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
    return (y, x) if prenorm else y


def gated_norm(self, x, g):
    return rms_norm(self, x) * (torch.sigmoid(g) if self.activation == "sigmoid" else F.silu(g))


def convolve(self, x, **_):
    padded = F.pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))
    return F.silu(F.conv1d(padded, self.weight, self.bias, groups=x.shape[-1]).transpose(1, 2)), None


def use_plain_operations():
    for module, rule in ((fla.layers.gated_deltanet, gated_delta_rule), (fla.layers.delta_net, delta_rule)):
        for name in vars(module).copy():
            if name.endswith("delta_rule"):
                setattr(module, name, rule)
    fla.layers.gated_deltanet.GatedDeltaNet._use_fused_qkv_conv = lambda *_, **__: False
    ShortConvolution.forward = convolve
    RMSNorm.forward = rms_norm
    FusedRMSNormGated.forward = gated_norm
    fla.modules.mlp.swiglu = lambda x, y: F.silu(x) * y
    SwiGLULinear.forward = lambda self, x, y, weight, bias: F.linear(F.silu(x) * y, weight, bias)


def make(folder, case, seed):
    (config_class, model_class), keys, dtype, length = case
    model = model_class(config_class(**{**SHAPE, **keys}))
    make_delta_fixtures.fill(model, seed, 1.0, False)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    model = model_class.from_pretrained(folder, dtype=torch.float64).double().eval()

    def logits_of(ids):
        with torch.no_grad(), exact():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    write_case(folder, logits_of, random_prompt(keys["vocab_size"], length, seed))


def main():
    golden = pathlib.Path(sys.argv[1])
    use_plain_operations()
    for i, (name, case) in enumerate(CASES.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            make(golden / name, case, SEED + i)


if __name__ == "__main__":
    main()
