# SPDX-License-Identifier: Apache-2.0
"""Makes the cases transnormerllm and lightning in tests/golden, models with fixed decays, by train/.

    python tests/scripts/make_lightning_fixtures.py tests/golden

No package has these models, so the values are those of formulas of our own, in float64, from the tensors as
their authors name them: TransNormerLLM (arXiv 2307.14995) and MiniMax-01's mixer (2501.08313, section 2.2)
beside an MLP that is not a mixture. Needs torch and safetensors.
"""

import json
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from golden_case import random_prompt, write_case  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from train.convert_lightning import convert, minimax_mixer  # noqa: E402

VOCAB, HEADS, DIM, LAYERS, WIDE = 275, 4, 6, 3, 40
WIDTH = HEADS * DIM
PROMPT, SEED = 70, 7300
ALPHA, BETA = 1.5, 0.75  # of MiniMax's residuals


def noise(shape, generator):
    return torch.randn(shape, generator=generator) * 1.3 / shape[-1] ** 0.5


def rms(x, eps=1e-6, weight=1.0):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def slope(head, layer, last):
    """Of ALiBi, where the number of heads is a power of two; less of it in later layers."""
    return 2 ** (-8 * (head + 1) / HEADS) * (1 - layer / last + 1e-5)


def retain(q, k, v, slopes):
    """[T, H, d] each: the sum over s <= t of e^(-slope (t - s)) (q_t . k_s) v_s, written out."""
    t = torch.arange(len(q), dtype=torch.float64)
    apart = t[:, None] - t[None, :]
    weights = torch.where(apart >= 0, torch.exp(-slopes[:, None, None] * apart.clamp(min=0)), 0.0)
    return torch.einsum("thd,shd,hts,she->the", q, k, weights, v)


def all_slopes(layer, last):
    return torch.tensor([slope(head, layer, last) for head in range(HEADS)], dtype=torch.float64)


# ---- TransNormerLLM ----

def transnormer_tensors(generator):
    tensors = {"model.embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=generator) * 0.3,
               "lm_head.weight": noise((VOCAB, WIDTH), generator)}
    for i in range(LAYERS):
        place = f"model.layers.{i}"
        tensors |= {f"{place}.token_mixer.qkvu_proj.weight": noise((4 * WIDTH, WIDTH), generator),
                    f"{place}.token_mixer.qkvu_proj.bias": 0.3 * torch.randn(4 * WIDTH, generator=generator),
                    f"{place}.token_mixer.out_proj.weight": noise((WIDTH, WIDTH), generator),
                    f"{place}.token_mixer.out_proj.bias": 0.3 * torch.randn(WIDTH, generator=generator),
                    f"{place}.channel_mixer.l1.weight": noise((WIDE, WIDTH), generator),
                    f"{place}.channel_mixer.l2.weight": noise((WIDE, WIDTH), generator),
                    f"{place}.channel_mixer.l3.weight": noise((WIDTH, WIDE), generator)}
        for part, size in (("l1", WIDE), ("l2", WIDE), ("l3", WIDTH)):
            tensors[f"{place}.channel_mixer.{part}.bias"] = 0.3 * torch.randn(size, generator=generator)
    angles = 10000 ** (-2 / WIDTH * torch.arange(WIDTH)).reshape(HEADS, 1, DIM)
    tensors["model.layers.0.token_mixer.lrpe.theta"] = angles
    return tensors


TRANSNORMER = {"model_type": "transnormer", "vocab_size": VOCAB, "decoder_embed_dim": WIDTH,
               "hidden_dim": WIDTH, "decoder_layers": LAYERS, "decoder_attention_heads": HEADS,
               "glu_dim": WIDE, "bias": True,
               "linear_act_fun": "silu", "linear_use_lrpe_list": [1, 0, 0], "norm_type": "simplermsnorm",
               "no_scale_embedding": False, "bos_token_id": 0, "eos_token_id": 0}


def transnormer_logits(tensors, ids):
    t = {name: tensor.double() for name, tensor in tensors.items()}

    def linear(x, name):
        return F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])

    x = t["model.embed_tokens.weight"][ids] * WIDTH ** 0.5
    for i in range(LAYERS):
        place = f"model.layers.{i}"
        q, k, v, u = linear(rms(x), f"{place}.token_mixer.qkvu_proj").chunk(4, -1)
        q, k, v = (rows.unflatten(-1, (HEADS, DIM)) for rows in (F.silu(q), F.silu(k), v))
        theta = t.get(f"{place}.token_mixer.lrpe.theta")
        if theta is not None:
            angles = torch.arange(len(ids), dtype=torch.float64)[:, None, None] * theta[:, 0]
            q, k = (torch.cat([z * angles.cos(), z * angles.sin()], -1) for z in (q, k))
        h = retain(q, k, v, all_slopes(i, LAYERS - 1)).flatten(1)
        x = x + linear(u * rms(h), f"{place}.token_mixer.out_proj")
        z = rms(x)
        x = x + linear(linear(z, f"{place}.channel_mixer.l1") * linear(z, f"{place}.channel_mixer.l2"),
                       f"{place}.channel_mixer.l3")
    return F.linear(rms(x), t["lm_head.weight"])


def make_transnormer(folder):
    generator = torch.Generator().manual_seed(SEED)
    source = folder.with_name(folder.name + ".release")
    source.mkdir()
    tensors = transnormer_tensors(generator)
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(TRANSNORMER))
    convert(source, folder)
    shutil.rmtree(source)
    write_case(folder, lambda ids: transnormer_logits(tensors, ids), random_prompt(VOCAB, PROMPT, SEED))


# ---- lightning layers ----

def lightning_tensors(generator):
    """Below each layer, as MiniMax names them; the MLP as ours."""
    around = {"model.embeddings.weight": torch.randn(VOCAB, WIDTH, generator=generator),
              "lm_head.weight": noise((VOCAB, WIDTH), generator),
              "model.norm.weight": 1 + 0.2 * torch.randn(WIDTH, generator=generator)}
    layers = []
    for _ in range(LAYERS):
        mixer = {"qkv_proj.weight": noise((3 * WIDTH, WIDTH), generator),
                 "output_gate.weight": noise((WIDTH, WIDTH), generator),
                 "out_proj.weight": noise((WIDTH, WIDTH), generator),
                 "norm.weight": 1 + 0.2 * torch.randn(WIDTH, generator=generator)}
        rest = {"attn_input_norm.weight": 1 + 0.2 * torch.randn(WIDTH, generator=generator),
                "mlp_input_norm.weight": 1 + 0.2 * torch.randn(WIDTH, generator=generator),
                "mlp.gate_proj.weight": noise((WIDE, WIDTH), generator),
                "mlp.up_proj.weight": noise((WIDE, WIDTH), generator),
                "mlp.down_proj.weight": noise((WIDTH, WIDE), generator)}
        layers.append((mixer, rest))
    return around, layers


def lightning_logits(around, layers, ids):
    x = around["model.embeddings.weight"].double()[ids]
    for i, (mixer, rest) in enumerate(layers):
        m, r = ({name: tensor.double() for name, tensor in part.items()} for part in (mixer, rest))
        x = rms(x, weight=r["attn_input_norm.weight"])
        qkv = F.silu(F.linear(x, m["qkv_proj.weight"])).unflatten(-1, (HEADS, 3 * DIM))
        h = retain(*qkv.chunk(3, -1), all_slopes(i, LAYERS - 1 + 1e-5)).flatten(1)
        gated = torch.sigmoid(F.linear(x, m["output_gate.weight"])) * rms(h, weight=m["norm.weight"])
        x = ALPHA * x + BETA * F.linear(gated, m["out_proj.weight"])
        x = rms(x, weight=r["mlp_input_norm.weight"])
        inner = F.silu(F.linear(x, r["mlp.gate_proj.weight"])) * F.linear(x, r["mlp.up_proj.weight"])
        x = ALPHA * x + BETA * F.linear(inner, r["mlp.down_proj.weight"])
    x = rms(x, weight=around["model.norm.weight"].double())
    return F.linear(x, around["lm_head.weight"].double())


def make_lightning(folder):
    around, layers = lightning_tensors(torch.Generator().manual_seed(SEED + 1))
    tensors = dict(around)
    for i, (mixer, rest) in enumerate(layers):
        kind, native = minimax_mixer(HEADS, i, LAYERS, mixer)
        tensors |= {f"model.layers.{i}.attn.{name}": tensor for name, tensor in native.items()}
        tensors |= {f"model.layers.{i}.{name}": tensor for name, tensor in rest.items()}
    block = {"input_norm": "rmsnorm", "alpha": ALPHA, "beta": BETA}
    config = {"model_type": "regla", "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "intermediate_size": WIDE, "hidden_act": "silu",
              "norm_type": "rmsnorm", "norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 0,
              "layer_types": ["layer"] * LAYERS, "mixers": {"lightning": kind},
              "blocks": {"layer": [{"branches": [{"mixer": "lightning"}], **block},
                                   {"branches": [{"mlp": {}}], **block}]}}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_case(folder, lambda ids: lightning_logits(around, layers, ids),
               random_prompt(VOCAB, PROMPT, SEED + 1))


def main():
    golden = pathlib.Path(sys.argv[1])
    for name, make in (("transnormerllm", make_transnormer), ("lightning", make_lightning)):
        shutil.rmtree(golden / name, ignore_errors=True)
        make(golden / name)


if __name__ == "__main__":
    main()
