# SPDX-License-Identifier: Apache-2.0
"""Makes the gla_fla* cases in tests/golden: models that flash-linear-attention itself saved.

    python make_gla_fixture.py ../golden       # needs torch, transformers, flash-linear-attention

Their kernels need a GPU, so the forward pass is their GLAForCausalLM with each kernel replaced by
what it computes: the recurrence by their naive_recurrent_gla (float32), the fused norms and the
fused SwiGLU by the same formula in PyTorch (float64).
"""

import pathlib
import shutil
import sys

import fla.layers.gla
import fla.modules.mlp
import torch
import torch.nn.functional as F
from fla.models import GLAConfig, GLAForCausalLM
from fla.modules import FusedRMSNormGated, RMSNorm
from fla.modules.mlp import SwiGLULinear
from fla.ops.gla.naive import naive_recurrent_gla
from golden_case import fill_with_noise, random_prompt, write_case

VOCAB = 275
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4,
         "bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 256}
CASES = [  # (name, config keys, dtype, length of the prompt: beyond 64 they take the chunk kernel)
    ("gla_fla", {"intermediate_size": 72, "expand_k": 1.0, "expand_v": 2.0}, torch.float32, 40),
    ("gla_fla_kv_heads_default_mlp", {"num_kv_heads": 2, "intermediate_size": None},
     torch.bfloat16, 72),
]


def naive_gla(q, k, v, gk=None, g=None, initial_state=None, output_final_state=False, **_):
    return naive_recurrent_gla(q, k, v, g if gk is None else gk, initial_state, output_final_state)


def rms_norm(self, x, residual=None, prenorm=False):
    if residual is not None:
        x = x + residual
    y = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
    return (y, x) if prenorm else y


def use_plain_operations():
    fla.layers.gla.fused_recurrent_gla = naive_gla
    fla.layers.gla.chunk_gla = naive_gla
    RMSNorm.forward = rms_norm
    FusedRMSNormGated.forward = lambda self, x, g: rms_norm(self, x) * F.silu(g)
    fla.layers.gla.ACT2FN = {"swish": F.silu, "silu": F.silu, "relu": F.relu}
    fla.modules.mlp.swiglu = lambda x, y: F.silu(x) * y
    SwiGLULinear.forward = lambda self, x, y, weight, bias: F.linear(F.silu(x) * y, weight, bias)


def make(folder, keys, dtype, length, seed):
    model = GLAForCausalLM(GLAConfig(**SHAPE, **keys))
    fill_with_noise(model, seed)
    for block in model.model.layers:  # gates around 0.9, so that some features forget
        block.attn.gk_proj[1].bias.data.add_(-1.0)
    model = model.to(dtype)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, safe_serialization=True)

    model = GLAForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def logits_of(ids):
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    write_case(folder, logits_of, random_prompt(VOCAB, length, seed))


def main():
    golden = pathlib.Path(sys.argv[1])
    use_plain_operations()
    for seed, (name, keys, dtype, length) in enumerate(CASES):
        make(golden / name, keys, dtype, length, 600 + seed)


if __name__ == "__main__":
    main()
