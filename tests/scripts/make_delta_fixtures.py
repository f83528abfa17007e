# SPDX-License-Identifier: Apache-2.0
"""Makes the delta_* cases in tests/golden: tiny models with layers of Gated DeltaNet that `transformers`
itself saved, and the same layers in the native format.

    python make_delta_fixtures.py ../golden [CASE...]     # with transformers 5.24.0

What the script demands of each case is what make_dense_fixtures.py does.
"""

import copy
import json
import pathlib
import shutil
import sys

import make_dense_fixtures as dense
import torch
import transformers
from golden_case import fill_with_noise
from safetensors.torch import load_file, save_file

F32, BF16 = torch.float32, torch.bfloat16
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0], "mrope_interleaved": True}
QWEN = {"vocab_size": 277, "hidden_size": 40, "intermediate_size": 36, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "linear_key_head_dim": 8,
        "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": ROPE}
VISION = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 40,
          "num_position_embeddings": 16, "patch_size": 2}

# name -> class, dtype, tokens of the prompt, keys, neutral values of keys that must count.
CASES = {
    "delta_qwen3_5_text": (
        "Qwen3_5", F32, 70, {**QWEN, "attention_bias": True},
        [{"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}, {"rms_norm_eps": 1e-2}]),
    "delta_qwen3_5": (
        "Qwen3_5ForConditionalGeneration", BF16, 66,
        {"text_config": {**QWEN, "vocab_size": 281, "linear_conv_kernel_dim": 3,
                         "linear_key_head_dim": 12, "linear_value_head_dim": 8},
         "vision_config": VISION, "tie_word_embeddings": True}, []),
    "delta_olmo_hybrid": (
        "OlmoHybrid", F32, 75,
        {"vocab_size": 275, "hidden_size": 36, "intermediate_size": 32, "num_hidden_layers": 4,
         "num_attention_heads": 3, "num_key_value_heads": 1, "linear_key_head_dim": 8,
         "linear_value_head_dim": 20, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
         "rope_parameters": {"rope_type": "default", "rope_theta": None}},
        [{"linear_allow_neg_eigval": False},
         {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}]),
    "delta_olmo_hybrid_rope": (
        "OlmoHybrid", BF16, 68,
        {"vocab_size": 279, "hidden_size": 40, "intermediate_size": 28, "num_hidden_layers": 2,
         "num_attention_heads": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
         "linear_key_head_dim": 10, "linear_value_head_dim": 6, "linear_allow_neg_eigval": False,
         "linear_conv_kernel_dim": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        [{"linear_allow_neg_eigval": True},
         {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}]),
}
SEED = 4300


def config_of(name, keys):
    if name.endswith("Generation"):
        text = {**dense.BASE, **copy.deepcopy(keys["text_config"])}
        return transformers.Qwen3_5Config(**{**copy.deepcopy(keys), "text_config": text})
    of = "Qwen3_5TextConfig" if name == "Qwen3_5" else name + "Config"
    return getattr(transformers, of)(**{**dense.BASE, **copy.deepcopy(keys)})


def make_model(name, keys):
    config = config_of(name, keys)
    return getattr(transformers, name if name.endswith("Generation") else name + "ForCausalLM")(config)


def fill(model, seed, scale, plus_one):
    """States that live for dozens of tokens, and convolutions of which every tap counts."""
    fill_with_noise(model, seed, scale, 0.0 if plus_one else 1.0)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, tensor in sorted(model.named_parameters()):
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if "conv1d" in name:
            tensor.data.copy_(0.6 * noise)
        elif name.endswith("A_log"):
            tensor.data.copy_(0.5 * noise - 1.5)
        elif name.endswith("linear_attn.norm.weight"):
            tensor.data.copy_(1 + 0.2 * noise)


def save(folder, case, seed):
    name, dtype, _, keys, _ = case
    model = make_model(name, keys)
    fill(model, seed, 0.6 if dtype == BF16 else 1.0, name.startswith("Qwen"))
    if dtype == BF16:  # keys and values in f16 would move too much
        for of, norm in model.named_parameters():
            if of.endswith(("q_norm.weight", "k_norm.weight")):
                norm.data.sub_(0.4)
    if "Olmo" in name:
        model.get_input_embeddings().weight.data.mul_(4)
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)


NATIVE = "delta_native", "delta_qwen3_5_text"
NATIVE_NAMES = (
    ("embed_tokens", "embeddings"), ("input_layernorm", "attn_norm"), ("self_attn", "attn"),
    ("post_attention_layernorm", "mlp_norm"), ("linear_attn", "attn"), ("in_proj_z", "out_gate_proj"),
    ("in_proj_a", "a_proj"), ("in_proj_b", "b_proj"), ("attn.norm.", "attn.out_norm."),
    ("dt_bias", "a_proj.bias"), ("attn.out_proj", "attn.o_proj"), ("conv1d", "conv"))


def native_tensors(config, tensors):
    """Of Qwen 3.5: the rows of q, k and v by themselves, and those of attention's gate."""
    rows = [config["linear_num_key_heads"] * config["linear_key_head_dim"]] * 2
    for name, tensor in tensors.items():
        for old, new in NATIVE_NAMES:
            name = name.replace(old, new)
        if "in_proj_qkv" in name:
            parts = tensor.split([*rows, len(tensor) - sum(rows)])
            yield from ((name.replace("in_proj_qkv", f"{p}_proj"), part) for p, part in zip("qkv", parts))
        elif "attn.q_proj" in name:
            halves = tensor.unflatten(0, (config["num_attention_heads"], 2, -1)).transpose(0, 1)
            yield name, halves[0].flatten(0, 1)
            yield name.replace("q_proj", "out_gate_proj"), halves[1].flatten(0, 1)
        else:
            yield name, tensor


def native_config(config):
    rope = config["rope_parameters"]
    linear = {"kind": "linear", "num_heads": config["linear_num_value_heads"],
              "num_qk_heads": config["linear_num_key_heads"], "gate": "gated_delta",
              "query_scale": "sqrt_dim",
              "conv": {"width": config["linear_conv_kernel_dim"], "activation": "silu"},
              "qk_norm": {"type": "l2"}, "output_norm": "rmsnorm", "output_gate": "swish"}
    softmax = {"kind": "softmax", "num_kv_heads": config["num_key_value_heads"], "output_gate": "sigmoid",
               "qk_norm": {"type": "rmsnorm", "plus_one": True},
               "position": {"type": "rope", "base": rope["rope_theta"],
                            "rotary_pct": rope["partial_rotary_factor"]}}
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "hidden_act", "tie_word_embeddings", "layer_types", "bos_token_id", "eos_token_id")
    return {"model_type": "regla", **{key: config[key] for key in same}, "norm_type": "rmsnorm",
            "norm_eps": config["rms_norm_eps"], "norm_plus_one": True,
            "mixers": {"linear_attention": linear, "full_attention": softmax}}


def write_native(golden):
    """The same model in the native format, of which the same is expected."""
    to, source = (golden / name for name in NATIVE)
    config = json.loads((source / "config.json").read_text())
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, ignore=lambda *_: ["generation_config.json", "model.gguf"])
    (to / "config.json").write_text(json.dumps(native_config(config), indent=1) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in
               native_tensors(config, load_file(source / "model.safetensors"))}
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    (to / "model.safetensors").chmod(0o644)


def main():
    golden = pathlib.Path(sys.argv[1])
    if transformers.__version__ != dense.VERSIONS[1]:
        raise SystemExit(f"transformers: expected {dense.VERSIONS[1]}, got {transformers.__version__}")
    torch.set_num_threads(1)
    for i, (name, case) in enumerate(CASES.items()):
        if not sys.argv[2:] or name in sys.argv[2:]:
            save(golden / name, case, SEED + i)
            dense.expect(golden / name, case, SEED + i)
    if not sys.argv[2:] or NATIVE[0] in sys.argv[2:]:
        write_native(golden)


if __name__ == "__main__":
    main()
