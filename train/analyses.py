# SPDX-License-Identifier: Apache-2.0
"""The papers' figures that are not tables: ReGLA 2 to 4, TransNormer 2, KERPLE 2 to 4.

Those of trained models take the checkpoints that `make tables` left (--work); an analysis whose
checkpoint is not there says so. ReGLA's figure 4 trains four models of its own. Writes analyses.md
and the plots; analyses.json keeps the figures.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch
from train import plots
from train.checkpoint import load_model, load_tensors, save_model
from train.config import parse_config, read_config, shipped
from train.export import export
from train.init import new_tensors, read_init
from train.model.linear_mixer import LinearMixer, log_refined
from train.model.model import Model
from train.model.positions import alibi_slopes
from train.table_config import SIZES, row_config
from train.table_report import wrapped
from train.table_run import Plan, environment, fit_arguments
from train.table_rows import Row
from train.tables import ROOT
from train.tokenizer import read_tokenizer

DIMENSIONS = (8, 16, 32, 64, 128)
EXTREME = {"large": 6.0, "small": -6.0}  # biases of the gate: sigma is 0.9975 and 0.0025
BINS = 20


def texts_of(work, length, count):
    """ids [count, length] of the held-out documents."""
    tokenizer = read_tokenizer(work / "tokenizer.json")
    rows = []
    for line in (work / "valid.jsonl").open():
        ids = tokenizer.encode(json.loads(line)["text"]).ids
        rows += [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
        if len(rows) >= count:
            break
    return torch.tensor(rows[:count])


# ReGLA, figure 2: the deviation of inner products, by dimension and feature map.


def theory(kind, d):
    return math.sqrt(d) if kind == "identity" else math.e * math.sqrt((math.e**2 - 1) * d)


def inner_products(kind, q, k):
    return ((q.exp() * k.exp()) if kind == "exp" else q * k).sum(-1)


def synthetic_deviation(kind, d, pairs=500, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn((2, pairs, d), generator=generator, dtype=torch.float64)
    return float(inner_products(kind, q, k).std())


@torch.no_grad()
def text_deviation(kind, d, ids, seed=0):
    """Of q_t and k_s, s <= t, in a new one-layer model that reads the texts."""
    raw = row_config(Row("la_relu"), SIZES["S"])
    raw.update(num_hidden_layers=1, layer_types=["mixer"], num_attention_heads=1,
               vocab_size=int(ids.max()) + 1)
    raw["mixers"]["mixer"] = {"kind": "linear", "feature_map": "identity"}
    raw["shapes"].update(head_dim=d, value_dim=d, bias=False)
    config = parse_config({k: v for k, v in raw.items() if k != "shapes"})
    block = Model(config, new_tensors(config, raw["shapes"], seed))
    count = total = square = 0.0
    for row in ids:
        x = block.layers[0].attn_norm(torch.nn.functional.embedding(row, block.embeddings))
        q, k = block.layers[0].attn.q_proj(x), block.layers[0].attn.k_proj(x)
        q, k = (q.exp(), k.exp()) if kind == "exp" else (q, k)
        scores = (q @ k.T).double()[torch.ones(len(row), len(row)).tril().bool()]
        count += len(scores)
        total += float(scores.sum())
        square += float(scores.square().sum())
    return math.sqrt(square / count - (total / count) ** 2)


def regla2(plan):
    ids = texts_of(plan.work, 1000, 100)
    figures, series = {}, {}
    for kind in ("identity", "exp"):
        figures[kind] = [(d, theory(kind, d), synthetic_deviation(kind, d),
                          text_deviation(kind, d, ids)) for d in DIMENSIONS]
        for i, what in ((1, f"{kind}: theorem 3.1"), (2, f".{kind}: synthetic"),
                        (3, f".{kind}: text")):
            series[what] = [(row[0], row[i]) for row in figures[kind]]
    plots.lines(plan.out / "regla-figure2.svg", "standard deviation of inner products", series,
                "dimension", "deviation", True, True, 2)
    lines = [f"500 pairs of Gaussian vectors; {len(ids)} texts of 1,000 tokens in a new one-layer "
             "model.", "", "| map | dimension | theorem 3.1 | synthetic | text |", "|---" * 5 + "|"]
    lines += [f"| {kind} | {d} | {a:.4g} | {b:.4g} | {c:.4g} |"
              for kind, rows in figures.items() for d, a, b, c in rows]
    return lines + ["", "![figure 2](regla-figure2.svg)"], figures


# ReGLA, figure 3: the gradient of the refined gate.


def refined_gradient(g, r):
    """dF/dz for F of eq. 16 and g = sigma(z)."""
    return 2 * ((1 - r) * g + r * (1 - g)) * g * (1 - g)


def regla3(plan):
    at = [i / 100 for i in range(101)]
    series = {f"F, r = {r}": [(g, refined_gradient(g, r)) for g in at] for r in (0, 0.25, 0.75, 1)}
    series["~sigmoid (and r = 0.5)"] = [(g, g * (1 - g)) for g in at]
    plots.lines(plan.out / "regla-figure3.svg", "gradient of the gate by its activation", series,
                "g", "gradient")
    gains = {r: (refined_gradient(0.01, r) / 0.0099, refined_gradient(0.99, r) / 0.0099)
             for r in (0, 0.25, 0.5, 0.75, 1)}
    lines = ["The gradient against the sigmoid's, times so many, near both ends. With r = 1/2 the "
             "refined gate is the plain one.", "", "| r | at g = 0.01 | at g = 0.99 |", "|---" * 3 + "|"]
    lines += [f"| {r} | {low:.2f} | {high:.2f} |" for r, (low, high) in gains.items()]
    return lines + ["", "![figure 3](regla-figure3.svg)"], gains


# ReGLA, figure 4: gates that begin at an end.


@torch.no_grad()
def gate_histogram(model, ids):
    """Shares of the forget gates' activations in BINS equal parts of [0, 1]; all layers."""
    counts, kept = torch.zeros(BINS), {}

    def keep(name):
        return lambda _module, _inputs, output: kept.__setitem__(name, output)

    mixers = [m for m in model.modules() if isinstance(m, LinearMixer)]
    for i, mixer in enumerate(mixers):
        mixer.g_proj.register_forward_hook(keep(("g", i)))
        mixer.r_proj.register_forward_hook(keep(("r", i)))
    model(ids)
    for i in range(len(mixers)):
        gates = log_refined(kept["g", i], kept["r", i]).exp()
        counts += torch.histc(gates.float(), BINS, 0, 1)
    return (counts / counts.sum()).tolist()


def extreme_start(plan, bias, refined, folder):
    """A new ReGLA whose gates begin at an end; not refined: r is 1/2, so that F = g."""
    raw = row_config(Row("regla", config={"init": {"gate_bias": [bias, bias]}}), plan.size)
    (folder / "start").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    config, raw = read_config(folder / "config.json")
    tensors = new_tensors(config, raw["shapes"], 0, read_init(raw))
    if not refined:
        tensors = {name: torch.zeros_like(t) if ".r_proj." in name else t
                   for name, t in tensors.items()}
    save_model(folder / "start", Model(config, tensors), shipped(raw), "f32")


def train_extreme(plan, bias, refined, folder):
    row = Row("regla")
    if not (folder / "model").exists():
        extreme_start(plan, bias, refined, folder)
        frozen = [] if refined else ["--freeze", r"\.r_proj\."]
        command = [sys.executable, "-m", "train.fit", "--config", folder / "config.json", "--start",
                   folder / "start", "--data", plan.work / "train.u16", "--run", folder, "--resume",
                   *frozen, *fit_arguments(plan, row, 0)]
        with (folder / "log").open("a") as log:
            subprocess.run([str(p) for p in command], cwd=ROOT, env=environment(), stdout=log,
                           check=True)
        export(folder / "state.pt", folder / "config.json", plan.work / "tokenizer.json",
               folder / "model", "f32")
    return load_model(folder / "start")[0], load_model(folder / "model")[0]


def regla4(plan):
    ids = texts_of(plan.work, plan.size.window, 64)
    figures, series = {}, {}
    for end, bias in EXTREME.items():
        for kind in ("refined", "plain"):
            folder = plan.work / f"gates-{end}-{kind}"
            before, after = train_extreme(plan, bias, kind == "refined", folder)
            for when, model in (("before", before), ("after", after)):
                shares = gate_histogram(model, ids)
                figures[f"{end}, {kind}, {when}"] = shares
                mark = "~" if when == "before" else ""
                series[f"{mark}{end}, {kind}, {when}"] = [
                    ((i + 0.5) / BINS, share) for i, share in enumerate(shares)]
    plots.lines(plan.out / "regla-figure4.svg", "forget gates before and after training", series,
                "activation", "share")
    lines = [f"{plan.tokens:,} tokens from biases of 6 and -6; plain: r stays 1/2, so that F = g. "
             "The share of activations outside the part of 1/20 where they began:", "",
             "| begin | gate | before | after |", "|---" * 4 + "|"]
    for end in EXTREME:
        place = BINS - 1 if end == "large" else 0
        for kind in ("refined", "plain"):
            before, after = (1 - figures[f"{end}, {kind}, {when}"][place]
                             for when in ("before", "after"))
            lines.append(f"| {end} | {kind} | {before:.4f} | {after:.4f} |")
    return lines + ["", "![figure 4](regla-figure4.svg)"], figures


# TransNormer, figure 2: how local attention is.


@torch.no_grad()
def attention_matrices(model, ids):
    """[B, H, T, T] of each layer; rows of absolute weights that sum to 1. Linear mixers: of the
    recurrence without a gate on its rows."""
    found, undo = [], []
    for layer in model.layers:
        mixer = layer.attn
        name = "recur" if isinstance(mixer, LinearMixer) else "_attend"
        original = getattr(mixer, name)

        def watch(q, k, v, *rest, original=original, linear=name == "recur", **gates):
            if linear and "log_a" in gates:
                raise ValueError("attention matrices: a gate on rows has none")
            eye = torch.eye(k.shape[-2], dtype=v.dtype).expand(*k.shape[:-1], k.shape[-2])
            weights = original(q, k, eye, *rest, **gates).abs()
            found.append(weights / weights.sum(-1, keepdim=True).clamp(min=1e-30))
            return original(q, k, v, *rest, **gates)

        setattr(mixer, name, watch)
        undo.append((mixer, name, original))
    try:
        model(ids)
    finally:
        for mixer, name, original in undo:
            setattr(mixer, name, original)
    return found


def accumulated(weights, ratios):
    """l(i, r, N) of section 3.2, its mean over i, heads and texts, for each r."""
    length = weights.shape[-1]
    distance = (torch.arange(length)[:, None] - torch.arange(length)[None, :]).abs()
    return [float((weights * (2 * distance <= r * length)).sum(-1).mean()) for r in ratios]


def transnormer2(plan):
    rows = {"vanilla": "sinusoidal", "1+elu": "elu_sinusoidal", "TransNormer T1": "transnormer_t1",
            "TransNormer T2": "transnormer_t2"}
    ratios = [i / 50 for i in range(101)]
    ids, series, areas = texts_of(plan.work, plan.size.window, 16), {}, {}
    for name, row in rows.items():
        folder = plan.work / f"{row}-s0" / "model"
        if not folder.exists():
            areas[name] = None
            continue
        weights = attention_matrices(load_model(folder)[0], ids)
        early = weights[: len(weights) // 2]
        for what, layers in (("all layers", weights), ("early layers", early)):
            curve = [sum(v) / len(layers) for v in zip(*(accumulated(w, ratios) for w in layers))]
            areas.setdefault(name, {})[what] = sum(curve[:51]) / 51
            if what == "early layers":
                series[name] = list(zip(ratios[:51], curve[:51]))
    if not series:
        raise FileNotFoundError("no checkpoint of its rows")
    plots.lines(plan.out / "transnormer-figure2.svg",
                "locally accumulated attention, early layers", series,
                "size of the neighbourhood, of the length", "accumulated attention")
    lines = ["The mean of the curve over neighbourhoods up to the whole length: more is more local. "
             "A causal row has no right half.", "", "| system | early layers | all layers |",
             "|---" * 3 + "|"]
    lines += [f"| {name} | not trained yet | |" if area is None else
              f"| {name} | {area['early layers']:.3f} | {area['all layers']:.3f} |"
              for name, area in areas.items()]
    return lines + ["", "![figure 2](transnormer-figure2.svg)"], areas


# KERPLE, figures 2 to 4: the kernels that were learned.


def kernel(kind, r, distance):
    if kind == "kerple_log":
        return -r[0] * math.log1p(r[1] * distance)
    if kind == "kerple_power":
        return -r[0] * distance ** r[1]
    return -r[0] * distance


def kernels(plan):
    """Each head's bias by distance."""
    far = plan.size.window * 32
    at = [0] + [round(2 ** (i / 4)) for i in range(4 * int(math.log2(far)) + 1)]
    lines, figures = ["The bias at a distance of 32 windows, by head: the flattest and the steepest.",
                      "", "| kernel | flattest | steepest |", "|---" * 3 + "|"], {}
    for number, kind in ((2, "kerple_log"), (3, "kerple_power"), (4, "alibi")):
        heads = [(slope,) for slope in alibi_slopes(plan.size.heads)]
        if kind != "alibi":
            folder = plan.work / f"{kind}-s0" / "model"
            if not folder.exists():
                lines.append(f"| {kind} | not trained yet | |")
                continue
            tensors = load_tensors(folder)
            layer = "model.layers.0.attn.position"
            heads = list(zip(tensors[f"{layer}.r1"].tolist(), tensors[f"{layer}.r2"].tolist()))
        figures[kind] = heads
        plots.lines(plan.out / f"kerple-figure{number}.svg", f"{kind}: the bias of each head",
                    {f"head {h}": [(d, kernel(kind, r, d)) for d in at]
                     for h, r in enumerate(heads)}, "distance", "bias")
        ends = sorted(kernel(kind, r, far) for r in heads)
        lines.append(f"| {kind} | {ends[-1]:.4g} | {ends[0]:.4g} |")
    return lines + [""] + [f"![figure {n}](kerple-figure{n}.svg)" for n, kind in
                           ((2, "kerple_log"), (3, "kerple_power"), (4, "alibi"))
                           if kind in figures], figures


ANALYSES = {
    "regla2": ("ReGLA, figure 2", regla2),
    "regla3": ("ReGLA, figure 3", regla3),
    "regla4": ("ReGLA, figure 4", regla4),
    "transnormer2": ("TransNormer, figure 2", transnormer2),
    "kerple": ("KERPLE, figures 2 to 4", kernels),
}


def analyse(plan, names):
    """Makes the analyses; one that fails does not stop the others. Returns how many failed."""
    lines = ["# The papers' figures", "", "`python -m train.analyses` wrote this.", ""]
    kept, failed = {}, 0
    for name in names:
        title, function = ANALYSES[name]
        lines += [f"## {title}", ""]
        try:
            text, kept[name] = function(plan)
        except Exception as error:
            text, failed = [f"Not made: {type(error).__name__}: {error}"], failed + 1
        lines += [*text, ""]
        print(f"{name}: {'; '.join(text[:1])}", flush=True)
    (plan.out / "analyses.md").write_text("\n".join(map(wrapped, lines)))
    (plan.out / "analyses.json").write_text(json.dumps(kept) + "\n")
    return failed


def main():
    parser = argparse.ArgumentParser(prog="train.analyses", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="S")
    parser.add_argument("--work", type=Path, default=ROOT / "train" / "runs" / "tables-s-quick",
                        help="the tables' folder of checkpoints")
    parser.add_argument("--out", type=Path, default=ROOT / "train" / "tables" / "s-quick")
    parser.add_argument("--tokens", type=int, help="of each run of ReGLA's figure 4")
    parser.add_argument("--only", nargs="+", choices=tuple(ANALYSES), default=list(ANALYSES))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not (args.work / "valid.jsonl").exists():
        parser.exit(1, f"train.analyses: {args.work}: expected the texts of make tables, found none\n")
    torch.set_num_threads(args.threads)
    size = SIZES[args.size]
    args.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(size, args.tokens or size.quick_tokens, "", args.work.absolute(), args.out.absolute(),
                None)
    sys.exit(1 if analyse(plan, args.only) else 0)


if __name__ == "__main__":
    main()
