# SPDX-License-Identifier: Apache-2.0
"""Makes the experts_* and gemma4* cases in tests/golden: tiny mixtures of experts, and models of Gemma 4
with and without, that `transformers` itself saved.

    python make_experts_fixtures.py ../golden      # with transformers 5.24.0

Names after the folder make these cases alone. What make_dense_fixtures.py demands of its cases holds
here too. Besides, in no router is the last expert chosen nearer than NEAREST to the first that is not,
and no expert is idle: over the prompt and the greedy text.
"""

import copy
import json
import pathlib
import shutil
import sys

import dense_reference
import make_delta_fixtures as delta
import torch
import transformers
from golden_case import TOLERANCE, fill_with_noise, random_prompt, write_case
from make_dense_fixtures import (BASE, BF16, F32, TOLERANCE_F16_KEYS, VERSIONS, WORST_F16_KEYS,
                                 WORST_F32, check_that_all_counts, distance_from, rope)
from make_mamba_fixtures import MAMBA
from mamba_noise import fill_mamba
from safetensors.torch import load_file, save_file

NEAREST = 2e-4  # in what a router chooses by
SEED = 4500

QWEN = {key: value for key, value in delta.QWEN.items() if key != "num_hidden_layers"}
QWEN = {**QWEN, "hidden_size": 32, "vocab_size": 275}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
        "beta_slow": 1.0, "truncate": False, "rope_theta": 500.0}
GPT_OSS = {"vocab_size": 275, "hidden_size": 40, "intermediate_size": 24, "num_hidden_layers": 2,
           "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 5,
           "num_experts_per_tok": 2, "sliding_window": 30, "swiglu_limit": 0.3, "rope_parameters": YARN}
GPT_OSS_COUNTS = [{"swiglu_limit": 7.0}, {"num_experts_per_tok": 1},
                  {"rope_parameters": {**YARN, "truncate": True}}]

SLIDES, FULL = "sliding_attention", "full_attention"
GEMMA4 = {"vocab_size": 275, "hidden_size": 32, "intermediate_size": 20, "num_attention_heads": 2,
          "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 16, "sliding_window": 20,
          "hidden_size_per_layer_input": 0}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
         "num_key_value_heads": 1, "head_dim": 16, "patch_size": 2, "position_embedding_size": 8}


def gemma4_rope(part, theta):
    return {"rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": theta},
        "sliding_attention": rope(1e2)}}


# name -> class, dtype, tokens of the prompt, keys, neutral values of keys that must count.
CASES = {
    "experts_qwen3_moe": (
        "Qwen3Moe", BF16, 70,
        {"vocab_size": 277, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12, "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True,
         "mlp_only_layers": [1], "tie_word_embeddings": True, "rope_parameters": rope(1e4)},
        [{"norm_topk_prob": False}, {"num_experts_per_tok": 1}, {"rope_parameters": rope(1e3)}]),
    "experts_olmoe": (
        "Olmoe", BF16, 66,
        {"vocab_size": 275, "hidden_size": 36, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 3, "num_key_value_heads": 3, "num_experts": 5,
         "num_experts_per_tok": 3, "rope_parameters": rope(1e4)},
        [{"norm_topk_prob": True}, {"num_experts_per_tok": 2}]),
    "experts_mixtral": (
        "Mixtral", F32, 71,
        {"vocab_size": 273, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4,
         "num_experts_per_tok": 2, "sliding_window": 30, "tie_word_embeddings": True,
         "rope_parameters": rope(1e4)},
        [{"num_experts_per_tok": 1}, {"sliding_window": None}]),
    "experts_qwen3_5_moe_text": (
        "Qwen3_5Moe", BF16, 66,
        {**QWEN, "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2,
         "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 20,
         "shared_expert_intermediate_size": 12, "tie_word_embeddings": True},
        [{"num_experts_per_tok": 1}]),
    "experts_qwen3_next": (
        "Qwen3Next", F32, 70,
        {**QWEN, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
         "shared_expert_intermediate_size": 20, "intermediate_size": 28, "mlp_only_layers": [1],
         "tie_word_embeddings": True},
        [{"num_experts_per_tok": 1}, {"norm_topk_prob": False}]),
    "experts_granitemoehybrid": (
        "GraniteMoeHybrid", BF16, 67,
        {"vocab_size": 275, "hidden_size": 36, "intermediate_size": 16, "shared_intermediate_size": 20,
         "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1,
         "num_local_experts": 6, "num_experts_per_tok": 3, **MAMBA, "mamba_n_groups": 1,
         "layer_types": ["linear_attention", "full_attention", "linear_attention"],
         "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "attention_multiplier": 0.4,
         "logits_scaling": 1.5, "tie_word_embeddings": True},
        [{"num_experts_per_tok": 2}, {"residual_multiplier": 1.0}]),
    "experts_lfm2_moe": (
        "Lfm2Moe", BF16, 68,
        {"vocab_size": 279, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4,
         "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 6,
         "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_dense_layers": 1,
         "routed_scaling_factor": 1.7, "layer_types": ["conv", "full_attention", "conv", "conv"],
         "tie_word_embeddings": True, "rope_parameters": rope(1e4)},
        [{"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"num_experts_per_tok": 1}]),
    "experts_nemotron_h": (
        "NemotronH", BF16, 69,
        {"vocab_size": 277, "hidden_size": 32, "intermediate_size": 36,
         "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mlp"],
         "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12, "mamba_num_heads": 4,
         "mamba_head_dim": 10, "ssm_state_size": 12, "n_groups": 2, "chunk_size": 8,
         "time_step_min": 1e-30, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 28,
         "routed_scaling_factor": 1.6, "n_group": 4, "topk_group": 2},
        [{"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"topk_group": 3},
         {"n_group": 1, "topk_group": 1}]),
    "experts_nemotron_h_latent": (
        "NemotronH", F32, 66,
        {"vocab_size": 273, "hidden_size": 28, "intermediate_size": 24,
         "layers_block_type": ["linear_attention", "moe"], "mlp_bias": True,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "mamba_num_heads": 3,
         "mamba_head_dim": 10, "ssm_state_size": 12, "n_groups": 3, "chunk_size": 8,
         "time_step_min": 1e-30, "n_routed_experts": 5, "num_experts_per_tok": 2,
         "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 12,
         "moe_latent_size": 20, "tie_word_embeddings": True},
        [{"num_experts_per_tok": 1}]),
    "experts_gpt_oss": ("GptOss", BF16, 75, {**GPT_OSS, "tie_word_embeddings": True},
                        [*GPT_OSS_COUNTS, {"sliding_window": 31}]),
    "experts_gpt_oss_mxfp4": (
        "GptOss", BF16, 66,
        {**GPT_OSS, "vocab_size": 273, "hidden_size": 64, "intermediate_size": 32,
         "num_hidden_layers": 1, "num_local_experts": 4, "tie_word_embeddings": True}, []),
    # As 31B, with a tower for images.
    "gemma4": (
        "Gemma4ForConditionalGeneration", BF16, 69,
        {"text_config": {
            **GEMMA4, "num_hidden_layers": 3, "layer_types": [SLIDES, SLIDES, FULL],
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 4.0,
            "use_bidirectional_attention": "vision", **BASE, "pad_token_id": 0,
            **gemma4_rope(0.5, 1e2)},
         "vision_config": TOWER, "audio_config": None}, []),
    # As E2B: inputs of layers, shared keys and values, wide MLPs.
    "gemma4_text": (
        "Gemma4", BF16, 70,
        {**GEMMA4, "num_hidden_layers": 5, "layer_types": [SLIDES, SLIDES, FULL, SLIDES, FULL],
         "vocab_size": 273, "vocab_size_per_layer_input": 274, "hidden_size_per_layer_input": 6,
         "num_key_value_heads": 1, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
         "rms_norm_eps": 1e-3, "attention_bias": True, **gemma4_rope(0.25, 1e2)},
        [{"sliding_window": 21}, {"rms_norm_eps": 1e-6}, gemma4_rope(0.5, 1e2),
         gemma4_rope(0.25, 1e3)]),
    # As 26B-A4B.
    "experts_gemma4_text": (
        "Gemma4", BF16, 71,
        {**GEMMA4, "num_hidden_layers": 2, "layer_types": [SLIDES, FULL], "attention_k_eq_v": True,
         "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 5,
         "top_k_experts": 2, "moe_intermediate_size": 12, **gemma4_rope(0.5, 1e2)},
        [{"top_k_experts": 1}, {"sliding_window": 21}]),
}
NEAR_TIES = "GraniteMoeHybrid", "NemotronH", "GptOss"
STACKED = "experts_qwen3_5_moe_text"  # as released files are; transformers saves them one by one


def model_of(name, keys):
    if name.endswith("ForConditionalGeneration"):
        config = transformers.Gemma4Config(**{"bos_token_id": 0, "eos_token_id": 0, **copy.deepcopy(keys)})
        return transformers.Gemma4ForConditionalGeneration(config)
    of_text = {"Qwen3_5Moe": "Qwen3_5MoeTextConfig", "Gemma4": "Gemma4TextConfig"}.get(name, name + "Config")
    config = getattr(transformers, of_text)(**{**BASE, **copy.deepcopy(keys)})
    return getattr(transformers, name + "ForCausalLM")(config)


def stack(folder):
    """As the library's modules have them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    of = {}
    for name in sorted(tensors):
        before, _, after = name.partition(".experts.")
        if after:
            i, matrix, _ = after.split(".")
            of.setdefault((before, matrix), {})[int(i)] = tensors.pop(name)
    parts = {key: torch.stack([own[i] for i in sorted(own)]) for key, own in of.items()}
    for before in {before for before, _ in parts}:
        tensors[f"{before}.experts.gate_up_proj"] = torch.cat(
            [parts[before, "gate_proj"], parts[before, "up_proj"]], 1).contiguous()
        tensors[f"{before}.experts.down_proj"] = parts[before, "down_proj"]
    save_file(tensors, file, {"format": "pt"})


E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def in_blocks(model, seed):
    """Gives the experts numbers of MXFP4, and returns them as OpenAI released them."""
    generator = torch.Generator().manual_seed(seed + 2)
    tensors = {}
    for name, tensor in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, cols, rows = tensor.shape
        blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=generator)
        scales = torch.randint(121, 125, (experts, rows, cols // 32), generator=generator)
        pairs = torch.stack([E2M1[blocks & 15], E2M1[blocks >> 4]], -1).flatten(-2)
        numbers = pairs * 2.0 ** (scales[..., None] - 127).double()
        tensor.data.copy_(numbers.flatten(2).transpose(1, 2))
        tensors |= {name + "_blocks": blocks.to(torch.uint8), name + "_scales": scales.to(torch.uint8)}
    return tensors


def with_blocks(folder, blocks):
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items()
               if not name.endswith(("experts.gate_up_proj", "experts.down_proj"))}
    save_file(tensors | blocks, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def save(folder, case, seed):
    """Returns its tensors under the names of modules, in the numbers of the file."""
    name, dtype, _, keys, _ = case
    model = model_of(name, keys)
    fill(model, name, seed, 0.6 if dtype == BF16 else 1.0)
    blocks = in_blocks(model, seed) if folder.name.endswith("mxfp4") else {}
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    tensors = {name: tensor.to(F32) for name, tensor in model.state_dict().items()}
    if blocks:
        with_blocks(folder, blocks)
    if folder.name == STACKED:
        stack(folder)
    return tensors


def fill(model, name, seed, scale):
    if name.startswith("Qwen3_5") or name == "Qwen3Next":
        delta.fill(model, seed, scale, True)
    elif name in ("GraniteMoeHybrid", "NemotronH"):
        fill_mamba(model, seed, scale)
    else:
        fill_with_noise(model, seed, scale)
    if name == "GptOss":  # tokens differ by more than biases
        model.get_input_embeddings().weight.data.mul_(5)
    generator = torch.Generator().manual_seed(seed + 1)
    for of, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if tensor.dim() == 3 and "experts" in of:  # stacked matrices
            tensor.data.copy_(noise * scale / tensor.shape[1 if name == "GptOss" else 2] ** 0.5)
        elif name in NEAR_TIES and of.endswith(("router.weight", "mixer.gate.weight")):
            tensor.data.mul_(3)  # else some token nearly ties
        elif of.endswith(("expert_bias", "e_score_correction_bias")):
            tensor.data.copy_(0.1 * noise)
        elif of.endswith("sinks"):
            tensor.data.copy_(1 + noise)
        elif of.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            tensor.data.copy_(1 + 0.3 * noise)
        elif of.endswith(("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight")):
            tensor.data.sub_(0.4 * (scale < 1))  # keys in f16 would move too much


def routers(model):
    return [module for _, module in model.named_modules() if type(module).__name__.endswith("Router")]


def scores_of(router, inputs):
    """What it chooses by, and the least distance of groups that count from others."""
    x = inputs[0].reshape(-1, inputs[0].shape[-1])
    if type(router).__name__.startswith("Gemma4"):
        with dense_reference.exact():
            x = router.norm(x) * router.scale * router.scalar_root_size
            return router.proj(x).softmax(-1), float("inf")
    scores = torch.nn.functional.linear(x, router.weight)
    of, apart = type(router).__name__, float("inf")
    if of.startswith("GptOss"):
        return scores + router.bias, apart
    if of.startswith("Lfm2"):
        return scores.sigmoid() + (0 if inputs[1] is None else inputs[1]), apart
    if not of.startswith("Nemotron"):
        return scores.softmax(-1), apart
    scores = scores.sigmoid() + router.e_score_correction_bias
    groups = scores.unflatten(-1, (router.num_group, -1))
    sums = groups.topk(2, -1).values.sum(-1).sort(-1, descending=True).values
    if router.topk_group < router.num_group:
        apart = float((sums[:, router.topk_group - 1] - sums[:, router.topk_group]).min().detach())
        least = sums[:, router.topk_group - 1:router.topk_group]
        counts = groups.topk(2, -1).values.sum(-1) >= least
        scores = groups.masked_fill(~counts[..., None], float("-inf")).flatten(1)
    return scores, apart


def routed(model, ids):
    """Of each router that a text meets: how often it chose each expert, and by what it decided at
    least. In float64."""
    seen, hooks = {}, []

    def see(module, inputs, outputs):
        seen[module] = inputs, outputs

    for router in routers(model):
        hooks.append(router.register_forward_hook(see))
    dense_reference.exact_logits(model, ids)
    for hook in hooks:
        hook.remove()
    for inputs, outputs, router in ((*seen[router], router) for router in routers(model)):
        chosen = outputs[-1]
        scores, apart = scores_of(router, inputs)
        counts = torch.bincount(chosen.flatten(), minlength=scores.shape[1])
        least = scores.gather(1, chosen).min(1).values
        others = scores.scatter(1, chosen, float("-inf")).max(1).values
        yield counts.tolist(), min(float((least - others).min().detach()), apart)


def nearest(model, ids):
    return min((gap for _, gap in routed(model, ids)), default=float("inf"))


def check_routers(folder, model, ids):
    for counts, gap in routed(model, ids):
        if 0 in counts:
            raise SystemExit(f"{folder.name}: experts without tokens: {counts}")
        if not gap > NEAREST:
            raise SystemExit(f"{folder.name}: a router decides by {gap:.1e}; draw another seed")


def expect(folder, case, seed, tensors):
    _, dtype, length, _, neutral = case
    config = dense_reference.read_config(folder)
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
    file = folder / "expected.json"
    expected = json.loads(file.read_text())
    check_routers(folder, model, prompt + expected["greedy"])
    if dtype == BF16 and keys16 > 0:
        expected |= {"tolerance": TOLERANCE_F16_KEYS, "tolerance_f32": TOLERANCE}
        file.write_text(json.dumps(expected))


def main():
    golden = pathlib.Path(sys.argv[1])
    if transformers.__version__ != VERSIONS[1]:
        raise SystemExit(f"transformers: expected {VERSIONS[1]}, got {transformers.__version__}")
    torch.set_num_threads(1)
    for i, (name, case) in enumerate(CASES.items()):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        for seed in range(SEED + 100 * i, SEED + 100 * i + 100):
            try:
                expect(golden / name, case, seed, save(golden / name, case, seed))
                break
            except SystemExit as error:
                print(f"seed {seed}: {error}")


if __name__ == "__main__":
    main()
