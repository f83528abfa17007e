# SPDX-License-Identifier: Apache-2.0
"""Makes the gpt_neox_tf* cases in tests/golden: models that `transformers` itself saved.

Run it once with each version of transformers whose way of saving we want to read:

    python make_gpt_neox_fixture.py ../golden       # needs torch and transformers

4.28 writes the buffers that Pythia's files still carry (attention.bias as BOOL, masked_bias,
rotary_emb.inv_freq), 4.46 the keys rotary_pct, rotary_emb_base, torch_dtype, 5.x
rope_parameters and dtype. Expected values: the saved model, loaded again by transformers and
run by it in float64 (its rotary tables and its softmax stay in float32).
"""

import pathlib
import shutil
import sys

import torch
import transformers
from golden_case import fill_with_noise, random_prompt, write_case
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

VOCAB = 275
SHAPE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 80, "bos_token_id": 0, "eos_token_id": 0,
         "max_position_embeddings": 256, "attention_dropout": 0.0, "hidden_dropout": 0.0}


def rotary(version, pct, base):
    if version < 5:
        return {"rotary_pct": pct, "rotary_emb_base": base}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": float(base),
                                "partial_rotary_factor": pct}}


def cases(version, minor):
    """(name, config keys, dtype, size of a shard)"""
    parallel = {**rotary(version, 0.25, 10000), "use_parallel_residual": True, "hidden_act": "gelu"}
    in_turn = {**rotary(version, 1.0, 5000), "use_parallel_residual": False,
               "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
    if version == 4 and minor < 30:
        return [("gpt_neox_tf4_28_buffers", {**parallel, "max_position_embeddings": 64}, torch.float32,
                 None)]
    if version == 4:
        return [("gpt_neox_tf4", parallel, torch.float16, None),
                ("gpt_neox_tf4_sequential_sharded", in_turn, torch.float32, "80KB")]
    return [("gpt_neox_tf5", parallel, torch.bfloat16, None),
            ("gpt_neox_tf5_sequential_sharded", in_turn, torch.float32, "80KB"),
            ("gpt_neox_tf5_tied_no_bias",
             {**rotary(version, 0.5, 10000), "use_parallel_residual": True, "hidden_act": "relu",
              "tie_word_embeddings": True, "attention_bias": False}, torch.float32, None)]


def make(folder, keys, dtype, shard, seed):
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**{**SHAPE, **keys}))
    fill_with_noise(model, seed)
    model = model.to(dtype)
    shutil.rmtree(folder, ignore_errors=True)
    limit = {"max_shard_size": shard} if shard else {}
    model.save_pretrained(folder, safe_serialization=True, **limit)

    model = GPTNeoXForCausalLM.from_pretrained(folder, torch_dtype=torch.float64).eval()
    if next(model.parameters()).dtype != torch.float64:
        raise SystemExit("the model was not loaded in float64")

    def logits_of(ids):
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double()

    write_case(folder, logits_of, random_prompt(VOCAB, 40, seed))


def main():
    golden = pathlib.Path(sys.argv[1])
    version, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    for seed, (name, keys, dtype, shard) in enumerate(cases(version, minor)):
        make(golden / name, keys, dtype, shard, 100 * version + minor + seed)


main()
