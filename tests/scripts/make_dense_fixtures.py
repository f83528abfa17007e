# SPDX-License-Identifier: Apache-2.0
"""Makes the dense_* and lfm* cases in tests/golden: tiny models that `transformers` itself saved.

    python make_dense_fixtures.py ../golden     # with transformers 4.51.3: the folders dense_*_tf4
    python make_dense_fixtures.py ../golden     # then with 5.24.0: the others, and all expected.json

Names after the folder make these cases alone.

Both need torch 2.15.0 and safetensors 0.8.0. Released files are mostly written by version 4, which
keeps rope_theta and rope_scaling at the top and knows no layer_types. Expected values are of
version 5, wholly in float64 (dense_reference.py), for both.

Of each case the script demands that every option counts: with any of `neutral` in its place, and
without any vector of weights, log-probabilities move by more than MATTERS. And that they are well
conditioned: float32 arithmetic and keys in f16 move them by less than the tolerances.
"""

import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from golden_case import TOLERANCE, fill_with_noise, random_prompt, write_case

VERSIONS = ("4.51.3", "5.24.0")
WORST_F32 = 6e-5  # of float32 against float64
WORST_F16_KEYS = 1.6e-3
TOLERANCE_F16_KEYS = 2e-3
MATTERS = 5e-3
BASE = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "long_factor": [1.1, 1.6, 2.5, 4.0, 7.0, 11.0],
        "short_factor": [1.0, 1.2, 1.4, 1.9, 2.6, 3.0], "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 32}
F32, BF16 = torch.float32, torch.bfloat16


def rope(theta, scaling=None):
    return {**(scaling or {"rope_type": "default"}), "rope_theta": theta}


def by_kind(full, sliding):
    return {"full_attention": full, "sliding_attention": sliding}


# name -> class, dtype, tokens of the prompt, keys, neutral values of keys that must count.
CASES_5 = {
    "dense_llama": (
        "Llama", BF16, 131,
        {"vocab_size": 277, "hidden_size": 36, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "attention_bias": True,
         "mlp_bias": True, "rope_parameters": rope(5000.0, LLAMA3), "rms_norm_eps": 1e-3},
        [{"rope_parameters": rope(5000.0)}, {"rope_parameters": rope(5000.0, {**LLAMA3, "factor": 4.0})},
         {"rms_norm_eps": 1e-5}]),
    "dense_qwen2": (
        "Qwen2", F32, 132,
        {"vocab_size": 281, "hidden_size": 40, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "use_sliding_window": True,
         "sliding_window": 20, "max_window_layers": 1, "tie_word_embeddings": True,
         "rope_parameters": rope(1e6)},
        [{"sliding_window": 21}, {"layer_types": ["full_attention"] * 2},
         {"layer_types": ["sliding_attention"] * 2}, {"rope_parameters": rope(1e4)}]),
    "dense_qwen3": (
        "Qwen3", BF16, 66,
        {"vocab_size": 279, "hidden_size": 40, "intermediate_size": 36, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
         "tie_word_embeddings": True, "rope_parameters": rope(1e6)},
        [{"rope_parameters": rope(1e4)}]),
    "dense_mistral": (
        "Mistral", BF16, 131,
        {"vocab_size": 275, "hidden_size": 44, "intermediate_size": 28, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 33,
         "tie_word_embeddings": True,
         "rope_parameters": rope(1e6), "rms_norm_eps": 1e-5},
        [{"sliding_window": 34}, {"sliding_window": None}]),
    "dense_smollm3": (
        "SmolLM3", BF16, 70,
        {"vocab_size": 277, "hidden_size": 40, "intermediate_size": 30, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "no_rope_layers": [1, 0, 1],
         "tie_word_embeddings": True, "rope_parameters": rope(5e4)},
        [{"no_rope_layers": [1, 1, 1]}, {"no_rope_layers": [0, 1, 0]}]),
    "dense_granite": (
        "Granite", BF16, 67,
        {"vocab_size": 283, "hidden_size": 48, "intermediate_size": 44, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 1, "embedding_multiplier": 6.0,
         "residual_multiplier": 0.4, "attention_multiplier": 0.4, "logits_scaling": 1.5,
         "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": rope(1e4)},
        [{"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"attention_multiplier": 0.25},
         {"logits_scaling": 1.0}]),
    "dense_olmo2": (
        "Olmo2", BF16, 100,
        {"vocab_size": 276, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 1, "rope_parameters": rope(5e5),
         "rms_norm_eps": 1e-6},
        [{"rope_parameters": rope(1e4)}]),
    "dense_olmo3": (
        "Olmo3", BF16, 165,
        {"vocab_size": 277, "hidden_size": 36, "intermediate_size": 16, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 3, "sliding_window": 70,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
         "rope_parameters": by_kind(rope(5e3, YARN), rope(5e3))},
        [{"sliding_window": 71}, {"layer_types": ["full_attention"] * 3},
         {"rope_parameters": by_kind(rope(5e3), rope(5e3))},
         {"rope_parameters": by_kind(rope(5e3, YARN), rope(5e3, YARN))},
         {"rope_parameters": by_kind(rope(5e3, {**YARN, "attention_factor": 1.0}), rope(5e3))}]),
    "dense_gemma2": (
        "Gemma2", BF16, 100,
        {"vocab_size": 277, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 25,
         "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0,
         "rope_parameters": rope(1e4)},
        [{"sliding_window": 26}, {"layer_types": ["full_attention"] * 2},
         {"layer_types": ["full_attention", "sliding_attention"]},
         {"query_pre_attn_scalar": 16}, {"attn_logit_softcapping": None},
         {"final_logit_softcapping": None}, {"hidden_activation": "silu"}]),
    "dense_gemma3_text": (
        "Gemma3", BF16, 150,
        {"vocab_size": 279, "hidden_size": 48, "intermediate_size": 28, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 30,
         "query_pre_attn_scalar": 20,
         "layer_types": ["full_attention", "sliding_attention"],
         "rope_parameters": by_kind(rope(1e6, {"rope_type": "linear", "factor": 8.0}), rope(1e4))},
        [{"sliding_window": 31}, {"layer_types": ["full_attention"] * 2},
         {"rope_parameters": by_kind(rope(1e6), rope(1e4))},
         {"rope_parameters": by_kind(rope(1e6, {"rope_type": "linear", "factor": 8.0}), rope(1e6))},
         {"query_pre_attn_scalar": 16}]),
    "lfm2": (
        "Lfm2", BF16, 90,
        {"vocab_size": 277, "hidden_size": 48, "intermediate_size": 60, "num_hidden_layers": 4,
         "num_attention_heads": 3, "num_key_value_heads": 1, "block_multiple_of": 8,
         "block_ffn_dim_multiplier": 0.9, "layer_types": ["conv", "full_attention", "conv", "conv"],
         "rope_parameters": rope(1e4)},
        [{"rope_parameters": rope(1e2)}]),
    "lfm2_bias": (
        "Lfm2", F32, 70,
        {"vocab_size": 279, "hidden_size": 36, "intermediate_size": 31, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 3, "block_auto_adjust_ff_dim": False,
         "conv_bias": True, "conv_L_cache": 4, "layer_types": ["conv", "conv", "full_attention"],
         "tie_word_embeddings": False, "rope_parameters": rope(1e4)},
        [{"rope_parameters": rope(1e2)}]),
    "lfm3": (
        "Lfm3", BF16, 140,
        {"vocab_size": 281, "hidden_size": 40, "intermediate_size": 44, "num_hidden_layers": 5,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "sliding_window": 20},
        [{"sliding_window": 21},
         {"layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"]},
         {"rope_parameters": by_kind(rope(1e6), rope(1e4))}]),
    # transformers takes long factors for a call of more than the original length, as all here are.
    "dense_phi3": (
        "Phi3", BF16, 90,
        {"vocab_size": 275, "hidden_size": 64, "intermediate_size": 44, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "original_max_position_embeddings": 32,
         "tie_word_embeddings": True, "rope_parameters": rope(1e3, LONG), "rms_norm_eps": 1e-3},
        [{"rope_parameters": rope(1e3, {**LONG, "long_factor": LONG["short_factor"]})},
         {"rope_parameters": rope(1e3, {**LONG, "attention_factor": 1.0})},
         {"rope_parameters": rope(1e3, {**LONG, "rope_type": "default"})}, {"rms_norm_eps": 1e-5}]),
    "dense_phi3_short": (
        "Phi3", F32, 70,
        {"vocab_size": 273, "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 2, "sliding_window": 30,
         "original_max_position_embeddings": 512,
         "rope_parameters": rope(1e3, {**LONG, "original_max_position_embeddings": 512})},
        [{"rope_parameters": rope(1e3, {**LONG, "short_factor": LONG["long_factor"]})},
         {"sliding_window": 31}, {"sliding_window": None}]),
}
CASES_4 = {
    "dense_llama_tf4": (
        "Llama", BF16, 70,
        {"vocab_size": 275, "hidden_size": 54, "intermediate_size": 28, "num_hidden_layers": 1,
         "num_attention_heads": 3, "num_key_value_heads": 1, "tie_word_embeddings": True,
         "rope_theta": 5000.0, "rope_scaling": LLAMA3},
        [{"rope_parameters": rope(5000.0)}, {"rope_parameters": rope(1e4, LLAMA3)}]),
    "dense_qwen2_tf4": (
        "Qwen2", BF16, 80,
        {"vocab_size": 277, "hidden_size": 42, "intermediate_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 3, "use_sliding_window": True,
         "sliding_window": 19, "max_window_layers": 1, "tie_word_embeddings": True,
         "rope_theta": 5e3, "rope_scaling": YARN},
        [{"layer_types": ["full_attention"] * 2}, {"layer_types": ["sliding_attention"] * 2},
         {"rope_parameters": rope(5000.0)}]),
    "dense_gemma3_text_tf4": (
        "Gemma3", BF16, 70,
        {"vocab_size": 275, "hidden_size": 44, "intermediate_size": 24, "num_hidden_layers": 3,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 20, "sliding_window": 22,
         "query_pre_attn_scalar": 26, "sliding_window_pattern": 2, "rope_theta": 1e6,
         "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        [{"layer_types": ["full_attention"] * 3},
         {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         {"rope_parameters": by_kind(rope(1e6), rope(1e4))},
         {"rope_parameters": by_kind(rope(1e6, {"rope_type": "linear", "factor": 8.0}), rope(1e6))}]),
}
SEED = 4200


def save(folder, case, seed):
    name, dtype, _, keys, _ = case
    of_text = "Gemma3TextConfig" if name == "Gemma3" else name + "Config"
    config = getattr(transformers, of_text)(**{**BASE, **copy.deepcopy(keys)})
    model = getattr(transformers, name + "ForCausalLM")(config)
    fill_with_noise(model, seed, 0.6 if dtype == BF16 else 1.0, 0.0 if "Gemma" in name else 1.0)
    if dtype == BF16:  # keys and values in f16 would move too much
        for of, norm in model.named_parameters():
            if of.endswith(("q_norm.weight", "k_norm.weight")):
                norm.data.sub_(0.4)
        if "Olmo" in name:  # which adds to them what norms made as large as 1
            model.get_input_embeddings().weight.data.mul_(8)
        if "Gemma" in name:  # whose embeddings are the head, and count √hidden_size times as the input
            model.get_input_embeddings().weight.data.mul_(0.6)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, safe_serialization=True)


def changed(folder, config, keys):
    plain = json.loads((folder / "config.json").read_text(),
                       object_hook=lambda o: float(o["__float__"]) if "__float__" in o else o)
    if "rope_parameters" in keys:  # transformers 4's come before them
        plain = {key: value for key, value in plain.items() if not key.startswith("rope_")}
    return type(config).from_dict({**plain, **copy.deepcopy(keys)})


def distance_from(logprobs, prompt):
    """Of what expected.json holds: the tokens of the prompt and the five best."""
    def compared(values):
        following = values[:-1].gather(1, torch.tensor(prompt[1:])[:, None])
        return torch.cat([following.flatten(), values.gather(1, best).flatten()])

    best = logprobs.topk(5).indices
    return lambda other: float((compared(other) - compared(logprobs)).abs().max())


def check_that_all_counts(folder, config, tensors, prompt, distance, neutral):
    import dense_reference

    def moves(config, tensors):
        other = dense_reference.exact_model(config, tensors)
        return distance(dense_reference.exact_logprobs(other, prompt))

    for keys in neutral:
        moved = moves(changed(folder, config, keys), tensors)
        if not moved > MATTERS:
            raise SystemExit(f"{folder.name}: {keys} moves log-probabilities by {moved:.1e} only")
    rest = 0.0 if config.model_type in ("gemma2", "gemma3_text") else 1.0
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    last = f"{layers - 1}.layer_scalar"  # which the last norm undoes
    for name in (n for n, t in tensors.items() if t.dim() == 1 and ".visual." not in n
                 and ".vision_tower." not in n and not n.endswith(last)):
        without = torch.full_like(tensors[name], 0.0 if name.endswith("bias") else rest)
        moved = moves(config, {**tensors, name: without})
        if not moved > MATTERS:
            raise SystemExit(f"{folder.name}: {name} moves log-probabilities by {moved:.1e} only")


def expect(folder, case, seed):
    import dense_reference

    _, dtype, length, keys, neutral = case
    config, tensors = dense_reference.read_config(folder), dense_reference.read_tensors(folder)
    if any(tensor.dtype != dtype for tensor in tensors.values()):
        raise SystemExit(f"{folder.name}: not saved as {dtype}")
    prompt = random_prompt(config.get_text_config().vocab_size, length, seed)
    model = dense_reference.exact_model(config, tensors)
    distance = distance_from(dense_reference.exact_logprobs(model, prompt), prompt)
    check_that_all_counts(folder, config, tensors, prompt, distance, neutral)
    f32 = distance(dense_reference.single_logprobs(config, tensors, prompt))
    keys16 = distance(dense_reference.f16_keys_logprobs(model, prompt))
    print(f"{folder.name}: float32 moves {f32:.1e}, keys in f16 {keys16:.1e}")
    if f32 > WORST_F32 or (dtype == BF16 and keys16 > WORST_F16_KEYS):
        raise SystemExit(f"{folder.name}: badly conditioned; draw another seed")
    write_case(folder, lambda ids: dense_reference.exact_logits(model, ids), prompt)
    if dtype == BF16 and keys16 > 0:
        file = folder / "expected.json"
        expected = json.loads(file.read_text())
        expected |= {"tolerance": TOLERANCE_F16_KEYS, "tolerance_f32": TOLERANCE}
        file.write_text(json.dumps(expected))


def main():
    golden = pathlib.Path(sys.argv[1])
    if transformers.__version__ not in VERSIONS:
        raise SystemExit(f"transformers: expected {' or '.join(VERSIONS)}, got {transformers.__version__}")
    first = transformers.__version__ == VERSIONS[0]
    torch.set_num_threads(1)
    cases = [*CASES_4.items(), *CASES_5.items()]
    for i, (name, case) in enumerate(cases):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        folder = golden / name
        if first == (name in CASES_4):
            save(folder, case, SEED + i)
        if not first:
            expect(folder, case, SEED + i)


if __name__ == "__main__":
    main()
