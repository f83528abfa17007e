# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the native family: train/'s PyTorch model in float64 against `regla check`.

    python tests/scripts/cross_check.py --out FOLDER --regla build/dev/regla [--count 200] [--seed 1]

Needs torch and safetensors (train/requirements.txt); not part of `make test`. Every configuration
becomes a checkpoint folder with an expected.json as tests/golden has them. Its tolerance is the
larger of 2e-4 and 20 times the error that PyTorch itself makes in float32 on the same case: some
combinations (an unnormalised identity map, a normalizer near zero) are badly conditioned, and where
even PyTorch is off by 0.01 the case is dropped. What
train/ refuses, regla must refuse, and the other way round.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from native_cases import AS_NEW, GOLDEN, TOKENIZER_IDS, golden_config  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from train.checkpoint import DTYPES, load_model  # noqa: E402
from train.config import (  # noqa: E402
    BOTH,
    DELTA,
    EXPONENTIAL,
    LINEAR,
    LRPE,
    MODEL,
    POSITION,
    SOFTMAX,
    parse_config,
)
from train.init import new_tensors  # noqa: E402
from train.model.model import Model  # noqa: E402
from train.model.recurrence import step_by_step  # noqa: E402

TOKENIZER = ROOT / "tests/golden/alibi/tokenizer.json"
NORMS = BOTH["output_norm"]
GREEDY_TOKENS = 3
PAGED = ("full", "long_short")  # windows
KV_TOLERANCE = 1e-3  # of a golden case with pages, where keys or segments are rounded to f16
WORST_CONDITION = 0.01  # PyTorch's error in float32 beyond which a case says nothing


class IllConditioned(Exception):
    pass



def random_position(rng, kind):
    """A `position` object; now and then one that both sides must refuse."""
    types = ["none", "rope", *LRPE, "spe"]
    if kind == "softmax" or rng.random() < 0.03:
        types += [t for t in POSITION["type"] if t not in types]
    position = {"type": rng.choice(types)}
    if position["type"] == "rope":
        position["pairing"] = rng.choice(POSITION["pairing"])
        position["base"] = rng.choice([10000.0, 100.0, 500000.0])
        if kind == "linear":
            position["stage"] = rng.choice(["before", "after"])
        if (kind == "softmax" or rng.random() < 0.03) and rng.random() < 0.3:
            position["distance_bias"] = rng.choice([1, 10, 64, 200])
    if position["type"] in ("rope", "lrpe_orthogonal"):
        position["rotary_pct"] = rng.choice([1.0, 0.5, 0.25, 0.7, 0.0])
    if position["type"] == "spe":
        position["gated"] = rng.random() < 0.7
    if position["type"] in LRPE:
        position["basis"] = rng.choice(POSITION["basis"])
    return position


def random_output(rng):
    """What comes behind a mixer's h."""
    output = {
        "output_norm": rng.choice(NORMS),
        "output_norm_scope": rng.choice(["head", "hidden"]),
        "output_norm_eps": rng.choice([1e-10, 1e-5, 1e-3]),
        "output_gate": rng.choice(BOTH["output_gate"]),
    }
    if rng.random() < (0.3 if output["output_gate"] != "none" else 0.03):
        output["output_gate_scope"] = rng.choice(["head", "hidden"])
        if rng.random() < 0.9:
            output["output_norm_scope"] = "head"
    return output


def random_inputs(rng, mixer, heads):
    """How q, k and v come from x; at times a combination that both sides must refuse."""
    if rng.random() < 0.3:
        mixer["num_heads"] = heads = rng.choice([1, 2, 3])
    mixer["qk_projection"] = rng.choice(["separate", "separate", "shared"])
    mixer["value_activation"] = rng.choice(["none", "none", "silu"])
    likely = 0.35 if mixer["qk_projection"] == "separate" else 0.03
    if rng.random() < likely:
        key = "num_qk_heads" if mixer["kind"] == "linear" else "num_kv_heads"
        mixer[key] = rng.choice([n for n in range(1, heads + 1) if heads % n == 0 or rng.random() < 0.05])
    if rng.random() < likely:
        norm = {"type": rng.choice(["layernorm", "rmsnorm", "l2"]), "scope": rng.choice(["head", "hidden"])}
        if rng.random() < (0.3 if norm["type"] != "l2" else 0.03):
            norm["plus_one"] = True
        if rng.random() < 0.3:
            norm["eps"] = rng.choice([1e-8, 1e-3])
        mixer["qk_norm"] = norm
    if mixer["kind"] == "linear" and rng.random() < likely:
        mixer["conv"] = {"width": rng.randint(2, 8), "activation": rng.choice(["none", "silu"])}


def random_mixer(rng, heads):
    kind = rng.choice(["linear", "linear", "softmax"])
    mixer = {"kind": kind, "position": random_position(rng, kind)}
    mixer.update(random_output(rng))
    random_inputs(rng, mixer, heads)
    if kind == "softmax":
        mixer["activation"] = rng.choice(["softmax", "softmax", "relu", "relu2"])
        if mixer["activation"] == "relu2" or rng.random() < 0.03:
            mixer["score_divisor"] = rng.choice([1, 3, 8, 100])
        mixer["window"] = rng.choice(SOFTMAX["window"])
        if mixer["window"] != "full":
            mixer["window_size"] = rng.choice([1, 2, 7, 32, 63, 64, 65, 100, 128, 5000])
        if mixer["window"] == "long_short":
            mixer["segment_length"] = rng.choice([1, 2, 4, 8, 16, 32, 64])
            mixer["segment_rank"] = rng.randint(1, min(4, mixer["segment_length"]))
            if rng.random() < 0.9:
                mixer["activation"], mixer["position"] = "softmax", {"type": "none"}
                mixer.pop("num_kv_heads", None)
        return mixer
    random_recurrence(rng, mixer)
    return mixer


def random_recurrence(rng, mixer):
    """What a linear mixer alone has."""
    mixer["feature_map"] = rng.choice(LINEAR["feature_map"])
    mixer["gate"] = rng.choice(LINEAR["gate"])
    mixer["query_scale"] = rng.choice(LINEAR["query_scale"])
    mixer["sum_norm"] = rng.random() < (0.4 if mixer["gate"] in ("none", "scalar") else 0.03)
    if mixer["feature_map"] == "dpfp":
        mixer["dpfp_nu"] = rng.choice([1, 2, 3, 5])
    if mixer["gate"] == "gla":
        mixer["gate_logit_normalizer"] = rng.choice([1.0, 16.0, 3.5])
    if mixer["gate"] in DELTA and mixer["feature_map"] in EXPONENTIAL and rng.random() < 0.8:
        mixer["feature_map"] = "dpfp"
    if mixer["gate"] == "rwkv7" and rng.random() < 0.9:
        mixer["feature_map"] = "identity"
    if rng.random() < (0.3 if mixer["gate"] in DELTA else 0.02):
        mixer["beta_max"] = rng.choice([1, 1.5, 2])
    if rng.random() < (0.3 if mixer["output_gate"] != "none" else 0.03):
        mixer["output_gate_first"] = True
    if mixer.get("num_qk_heads") and rng.random() < 0.9:  # it goes with few
        mixer["position"] = rng.choice([{"type": "none"}, {"type": "rope", "stage": "after"}])
        mixer["feature_map"] = rng.choice(["identity", "relu", "elu+1", "dpfp"])
        mixer["gate"] = rng.choice(["scalar", "refined", *DELTA, "mamba2"])
        mixer.pop("beta_max", None)
        mixer["sum_norm"] = False
    if mixer["gate"] == "none" and rng.random() < 0.5:
        mixer["chunk_size"] = rng.choice([16, 17, 23, 32, 63, 64, 100, 5000])
        mixer["query_scale"] = "none"
        mixer["sum_norm"] = rng.random() < 0.03
        if mixer["feature_map"] in EXPONENTIAL and rng.random() < 0.8:
            mixer["feature_map"] = "relu"


def random_pair(rng, mixers):
    """A pair of two of the mixers, which it changes to what most pairs need."""
    parts = [rng.choice(sorted(mixers)) for _ in range(2)]
    combine = rng.choice(["add", "concatenate"])
    for key, default in (("num_heads", None), ("qk_projection", "separate"), ("value_activation", "none")):
        if combine == "add":
            mixers[parts[1]][key] = mixers[parts[0]].get(key, default)
    for part in parts:
        mixers[part]["output_gate"] = "none"
        for key in ("output_gate_scope", "output_gate_first", "num_qk_heads", "num_kv_heads", "qk_norm"):
            mixers[part].pop(key, None)
        if combine == "add" and rng.random() < 0.95:
            mixers[part].pop("conv", None)
    return {"kind": "pair", "parts": parts, "combine": combine,
            "output_gate": rng.choice(["none", "swish"])}


def random_config(rng):
    layers = rng.choice([1, 2, 3])
    heads = rng.choice([1, 2, 3, 4, 5, 6, 8])
    mixers = {name: random_mixer(rng, heads) for name in "abc"[: rng.choice([1, 2])]}
    if rng.random() < 0.3:
        mixers["p"] = random_pair(rng, mixers)
    raw = {
        "model_type": "regla",
        "vocab_size": TOKENIZER_IDS + rng.choice([0, 1, 5, 13, 40]),
        "hidden_size": 2 * rng.randint(4, 33) + (rng.random() < 0.3),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": rng.choice([0, rng.randint(1, 80), rng.randint(1, 80)]),
        "hidden_act": rng.choice(MODEL["hidden_act"]),
        "norm_type": rng.choice(MODEL["norm_type"]),
        "norm_eps": rng.choice([1e-5, 1e-6, 1e-2]),
        "parallel_residual": rng.random() < 0.3,
        "tie_word_embeddings": rng.random() < 0.3,
        "position_embedding": rng.choice(["none", "none", "sinusoidal", "learned"]),
        "embedding_norm": rng.random() < 0.3,
        "norm_plus_one": rng.random() < 0.2,
        **({"embedding_scale": rng.choice([0.5, 3.3])} if rng.random() < 0.3 else {}),
        "bos_token_id": 0,
        "eos_token_id": 0,
        "layer_types": [rng.choice(sorted(mixers)) for _ in range(layers)],
        "mixers": mixers,
    }
    if raw["position_embedding"] == "learned":
        raw["max_position_embeddings"] = 256
    if raw["position_embedding"] == "sinusoidal":
        raw["hidden_size"] += raw["hidden_size"] % 2
    shapes = {
        "head_dim": rng.randint(2, 24),
        "value_dim": rng.randint(1, 40),
        "features": rng.randint(2, 30),
        "glu": rng.random() < 0.5,
        "bias": rng.random() < 0.5,
    }
    if any(mixer.get("window") == "long_short" for mixer in mixers.values()):
        shapes["value_dim"] = shapes["head_dim"]
    return raw, shapes


def random_tensors(config, shapes, rng):
    """Tensors of the right shapes with values that leave nothing at its neutral element."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def normal(shape, std=1.0):
        return torch.randn(shape, generator=generator) * std

    made = {}
    for name, tensor in new_tensors(config, shapes).items():
        shape = tensor.shape
        if name.endswith("permutation"):
            made[name] = tensor.to(rng.choice([torch.int32, torch.int64]))
        elif "norm.weight" in name:
            made[name] = 1 + normal(shape, 0.2)
        elif name.endswith((".noise", ".gate_noise", "position.gate", ".offsets", ".gains")):
            made[name] = normal(shape)
        elif name.endswith(".freqs"):
            made[name] = normal(shape) - 2
        elif ".position.r" in name:
            made[name] = 0.05 + 1.2 * torch.rand(shape, generator=generator)
        elif name.endswith("norm.gate"):
            made[name] = normal(shape)
        elif name.endswith(".bias"):
            if rng.random() < 0.7 or "norm" not in name:
                made[name] = normal(shape, 0.5) + (tensor if "g_proj" in name else 0)
        elif "features.weight" in name or "householder" in name:
            made[name] = normal(shape)
        elif name.endswith("distance_bias"):
            made[name] = normal(shape, 0.2)
        elif name.endswith("_scale.weight"):
            made[name] = 1 + normal(shape, 0.5)
        elif "feature_" in name or "bucket_bias" in name or "embeddings" in name:
            made[name] = normal(shape, 0.7)
        else:
            made[name] = normal(shape, 1.2 / max(1, shape[-1]) ** 0.5)
    for i, layer in enumerate(config.layer_types):
        calm_delta(config.mixers[layer], f"model.layers.{i}.attn", made)
    for name in [n for n in made if n.endswith("proj.weight") and ".gk_proj" not in n]:
        bias = name.replace(".weight", ".bias")
        if rng.random() < 0.15:
            if bias in made:
                del made[bias]
            else:
                made[bias] = normal((made[name].shape[0],), 0.3)
    widen_spe(made, rng, normal)
    add_thetas(config, shapes, made, rng, normal)
    return made


def widen_spe(made, rng, normal):
    """Other numbers of sines and realizations than new models have."""
    for name in [n for n in made if n.endswith("position.noise")]:
        heads, m = made[name].shape[:2]
        sines, realizations = rng.choice([1, 2, 3]), rng.choice([1, 7, 16, 33, 70])
        prefix = name.removesuffix("noise")
        for of_sines in ("freqs", "offsets", "gains"):
            made[prefix + of_sines] = normal((heads, m, sines)) - 2 * (of_sines == "freqs")
        made[name] = normal((heads, m, 2 * sines, realizations))
        if prefix + "gate_noise" in made:
            made[prefix + "gate_noise"] = normal((heads, m, realizations))


def calm_delta(mixer, name, made):
    """The delta rule grows without bound where beta |phi(k)|^2 > 2: small keys and rates."""
    if mixer.gate in DELTA and mixer.feature_map in ("identity", "relu", "elu", "elu+1"):
        shared = mixer.qk_projection == "shared"
        made[f"{name}.{'k_scale' if shared else 'k_proj'}.weight"] *= 0.3
        made[f"{name}.b_proj.bias"] = torch.full((mixer.num_heads,), -4.0)
        made[f"{name}.b_proj.weight"] *= 0.3


def add_thetas(config, shapes, made, rng, normal):
    model = Model(config, made)
    for i, layer in enumerate(model.layers):
        lrpe = getattr(getattr(layer.attn, "position", None), "lrpe", None)
        if lrpe is None or not hasattr(lrpe, "default_theta") or rng.random() < 0.4:
            continue
        pairs = len(lrpe.default_theta)
        if pairs == 0:
            continue
        heads = config.mixers[config.layer_types[i]].num_heads
        shape = (pairs,) if rng.random() < 0.5 else (heads, pairs)
        made[f"model.layers.{i}.attn.position.theta"] = normal(shape, 1.0)


def logprobs_of(folder, dtype, prompt):
    model, _ = load_model(folder, dtype, step_by_step)
    with torch.no_grad():
        return model(torch.tensor([prompt]))[0].double().log_softmax(-1)


def greedy_of(folder, prompt):
    ids, margins = list(prompt), []
    for _ in range(GREEDY_TOKENS):
        best = logprobs_of(folder, torch.float64, ids)[-1].topk(2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    return ids[len(prompt) :], margins


def write_case(folder, rng, name=None):
    """Writes a case (random, or GOLDEN's); returns what train/ refuses it for, or None."""
    raw, shapes = random_config(rng) if name is None else golden_config(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    refusal = None
    try:
        config = parse_config(raw)
    except ValueError as error:
        refusal = str(error)
        save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
        config = None
    length = rng.choice([1, 2, 60, 64, 65, 100, 130, 150]) if name is None else 70
    prompt = [rng.randrange(raw["vocab_size"]) for _ in range(length)]
    if config is None:
        write_expected(folder, prompt, torch.zeros(length, raw["vocab_size"]), [0], [1.0], 1.0)
        return refusal
    dtype = DTYPES[rng.choice(["f32", "f32", "bf16", "f16"] if name is None else ["bf16"])]
    tensors = random_tensors(config, shapes, rng)
    fixed = AS_NEW.get(name, "\n")
    tensors.update({n: t for n, t in new_tensors(config, shapes).items() if fixed in n})
    tensors = {
        name: (tensor.to(dtype) if tensor.dtype.is_floating_point else tensor).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(tensors, folder / "model.safetensors")
    exact = logprobs_of(folder, torch.float64, prompt)
    single = logprobs_of(folder, torch.float32, prompt)
    error = float((exact - single).abs().max())
    if not error < WORST_CONDITION:
        raise IllConditioned
    paged = any(m.kind == "softmax" and m.window in PAGED for m in config.mixers.values())
    f32 = max(2e-4, 20 * error)
    tolerances = (KV_TOLERANCE, f32) if name is not None and paged else (f32,)
    write_expected(folder, prompt, exact, *greedy_of(folder, prompt), *tolerances)
    return None


def write_expected(folder, prompt, logprobs, greedy, margins, tolerance, tolerance_f32=None):
    top = logprobs.topk(5)
    expected = {
        "prompt": prompt,
        "prompt_logprobs": [round(float(logprobs[i, t]), 6) for i, t in enumerate(prompt[1:])],
        "top5": [
            [[int(t), round(float(p), 6)] for t, p in zip(ids, values)]
            for ids, values in zip(top.indices, top.values)
        ],
        "greedy": greedy,
        "greedy_margin": margins,
        "tolerance": tolerance,
    }
    if tolerance_f32 is not None:
        expected["tolerance_f32"] = tolerance_f32
    (folder / "expected.json").write_text(json.dumps(expected))


def check(regla, folder, reproducibility):
    # The tolerance is of f32 arithmetic: keys and values rounded to f16 would exceed it.
    command = [regla, "check", str(folder), "--kv", "f32"]
    command += ["--reproducibility"] * reproducibility
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode, (result.stdout + result.stderr).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--regla", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reproducibility", type=int, default=4, help="every so many-th case")
    parser.add_argument("--golden", action="store_true", help="write GOLDEN's cases instead")
    parser.add_argument("--only", nargs="*", default=GOLDEN, help="of GOLDEN's, these alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.golden:
        for name in args.only:
            write_case(args.out / name, random.Random(name), name)
        return 0
    passed, refused, ill, failures = 0, 0, 0, []
    for i in range(args.count):
        folder = args.out / f"case{args.seed}_{i:04}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            refusal = write_case(folder, random.Random(args.seed * 100003 + i))
        except IllConditioned:
            ill += 1
            shutil.rmtree(folder)
            continue
        code, text = check(args.regla, folder, i % args.reproducibility == 0)
        print(f"{folder.name}: {refusal or ''} | {text.splitlines()[0] if text else code}", flush=True)
        if refusal is not None and code == 1 and "config.json" in text:
            refused += 1
        elif refusal is None and code == 0:
            passed += 1
            shutil.rmtree(folder)
        else:
            failures.append(folder.name)
    print(
        f"cross-check: {passed} agree, {refused} refused by both, {ill} ill-conditioned, "
        f"{len(failures)} differ",
        *failures,
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
