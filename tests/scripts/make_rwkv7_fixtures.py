# SPDX-License-Identifier: Apache-2.0
"""Makes the rwkv7_* cases in tests/golden: models that flash-linear-attention itself saved.

    python make_rwkv7_fixtures.py ../golden [CASE...]

Needs torch, transformers, einops and flash-linear-attention 0.6.0. The forward pass is that of their classes
in float64, with each kernel, which needs a GPU, replaced by what it computes: the recurrence by their naive
one (dplr_recurrence, which scales q by d^-1/2; the model does not), the others by the formula in PyTorch.
"""

import pathlib
import shutil
import sys
import warnings

import fla.layers.rwkv7
import fla.models.rwkv7.modeling_rwkv7
import torch
import torch.nn.functional as F
from dense_reference import exact
from fla.models import RWKV7Config, RWKV7ForCausalLM
from fla.modules import GroupNorm, LayerNorm
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.rwkv7.fused_k_update import k_update_ref
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref
from golden_case import fill_with_noise, random_prompt, write_case

SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "bos_token_id": 0, "eos_token_id": 0,
         "fuse_cross_entropy": False}
LAYER, MODEL = fla.layers.rwkv7, fla.models.rwkv7.modeling_rwkv7
CASES = {  # name -> keys, dtype, length of the prompt
    "rwkv7": ({"vocab_size": 275, "head_dim": 8, "decay_low_rank_dim": 8, "gate_low_rank_dim": 12,
               "a_low_rank_dim": 6, "v_low_rank_dim": 4, "norm_eps": 8e-5,
               "fuse_norm": False},  # as llama.cpp
              torch.float32, 70),
    "rwkv7_plain": ({"vocab_size": 277, "head_dim": 16, "norm_bias": False,
                     "norm_first": False, "intermediate_size": 72, "tie_word_embeddings": True},
                    torch.bfloat16, 40),
}
SEED = 7070


def token_shift(x, cu_seqlens=None, cache=None, output_cache=False, **_):
    assert cache is None
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return (before - x, x[:, -1:]) if output_cache else before - x


def recurrence(r, w, k, v, a=None, b=None, kk=None, scale=1.0, initial_state=None, **_):
    assert scale == 1.0 and initial_state is None
    if kk is not None:
        a, b = -kk, kk * a
    by_head = [x.transpose(1, 2) for x in (r * r.shape[-1] ** 0.5, k, v, a, b, w)]
    out, state = dplr_recurrence(*by_head, None, True)
    return out.transpose(1, 2), state


def layer_norm(self, x, residual=None, prenorm=False):
    x = x if residual is None else x + residual
    y = F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
    return (y, x) if prenorm else y


def group_norm(self, x):
    rows = x.reshape(-1, x.shape[-1])
    return F.group_norm(rows, self.num_groups, self.weight, self.bias, self.eps).view_as(x)


def use_plain_operations():
    torch._dynamo.config.disable = True  # their compiled functions know no float64
    for module in (LAYER, MODEL):
        module.token_shift = token_shift
    LAYER.fused_addcmul_rwkv7 = lambda x, change, *shares: [x + change * share for share in shares]
    LAYER.fused_k_rwkv7 = k_update_ref
    LAYER.gate_output_correction = gate_output_correction_ref
    LAYER.l2_norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    LAYER.chunk_rwkv7 = LAYER.fused_mul_recurrent_rwkv7 = recurrence
    LayerNorm.forward, GroupNorm.forward = layer_norm, group_norm


def make(folder, case, seed):
    keys, dtype, length = case
    model = RWKV7ForCausalLM(RWKV7Config(**SHAPE, **keys))
    fill_with_noise(model, seed)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    model = RWKV7ForCausalLM.from_pretrained(folder, dtype=torch.float64).double().eval()

    def logits_of(ids):
        with torch.no_grad(), exact():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    write_case(folder, logits_of, random_prompt(keys["vocab_size"], length, seed))


def main():
    golden = pathlib.Path(sys.argv[1])
    warnings.filterwarnings("ignore", message=".*potentially buggy.*")
    use_plain_operations()
    for i, (name, case) in enumerate(CASES.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            make(golden / name, case, SEED + i)


if __name__ == "__main__":
    main()
