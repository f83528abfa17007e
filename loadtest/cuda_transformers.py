# SPDX-License-Identifier: Apache-2.0
"""Generation by `regla` beside transformers and flash-linear-attention, on one GPU, in one run.

For each length and batch: tokens per second of generating `length` tokens after a prompt of 16, with
random weights of equal shapes (160 million, 12 layers of 768) in bf16, greedily. transformers is
GPT-NeoX with a static cache of the point's length, compiled as its `generate` does it, anew for each
point; flash-linear-attention, where it is installed, is its GLA, saved and read by `regla` too. A
short first run of a point is not timed (it compiles); the figure is the median of three after it.
Both measure the prompt's 16 tokens, or leave them out, below 1 % of the time.

`regla bench` comes first, once for each model; then the points, those that say most first. One that
fails is said to have, and why.

Usage: cuda_transformers.py --regla build/cuda/regla [--lengths 1024,4096,64] [--batches 1,64,16]
       [--activations f32|16bit] [--seconds 500] [--out FILE.csv]
           16bit: regla's products round their inputs to bf16, as those of the others do
       cuda_transformers.py --products
           instead: the times of torch.matmul for products that loadtest/kernels times, in bf16 in
           and out, under the same names
Status: 77 where there is no PyTorch, no transformers or no CUDA device: nothing is measured then.
"""

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = 16
WARM_UP = 32  # tokens
VOCAB, HIDDEN, LAYERS, HEADS, INTERMEDIATE = 50304, 768, 12, 12, 3072
PRESETS = ("gpt_neox", "regla", "hybrid_regla")
TOKENIZER = Path(__file__).resolve().parents[1] / "tests/golden/gla_fla/tokenizer.json"


def skipped(why):
    print(f"cuda_transformers: skipped: {why}")
    sys.exit(77)


def first_line(text):
    return next((line for line in text.splitlines() if line.strip()), "no message")


def regla(arguments, model):
    """Tokens per second of `regla bench` by (length, batch); model: its flag and value."""
    command = [arguments.regla, "bench", "--device", "cuda", *model, "--weights", "bf16",
               "--activations", arguments.activations,
               "--pp", "0", "--tg", ",".join(map(str, arguments.lengths)),
               "--depth", str(PROMPT), "--batch", ",".join(map(str, arguments.batches)),
               "--repeat", "3", "--json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True,
                                timeout=arguments.seconds / 3)
    except (OSError, subprocess.SubprocessError) as error:
        failed = isinstance(error, subprocess.CalledProcessError)
        print(f"regla {' '.join(model)} failed:",
              first_line(error.stderr) if failed else type(error).__name__, flush=True)
        return {}
    found = {(one["test"], one["batch"]): one["tokens_per_second"]
             for one in json.loads(result.stdout)["results"]}
    return {(length, batch): found[f"tg{length}@{PROMPT}", batch]
            for length in arguments.lengths for batch in arguments.batches}


def generate(torch, model, length, batch, cache):
    """Tokens per second of model.generate; cache: None, or the one it is to use."""
    prompt = torch.randint(0, VOCAB, (batch, PROMPT), device="cuda")

    def run(tokens):
        arguments = {}
        if cache is not None:
            cache.reset()
            arguments["past_key_values"] = cache
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                             min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0,
                             **arguments)
        torch.cuda.synchronize()
        assert out.shape == (batch, PROMPT + tokens), out.shape
        return time.perf_counter() - start

    run(min(length, WARM_UP))
    return batch * length / statistics.median(run(length) for _ in range(3))


def try_generate(torch, model, length, batch, static):
    """What generate says and None, or None and why it failed."""
    from transformers import StaticCache

    torch._dynamo.reset()  # else it would compile for all shapes from the second on, or give up
    torch.cuda.empty_cache()
    try:
        cache = StaticCache(config=model.config, max_cache_len=PROMPT + length) if static else None
        with torch.no_grad():
            return generate(torch, model, length, batch, cache), None
    except Exception as error:  # whatever it is, other points may do
        return None, f"{type(error).__name__}: {first_line(str(error))}"


def gpt_neox(torch, longest):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS,
                           num_attention_heads=HEADS, intermediate_size=INTERMEDIATE,
                           rotary_pct=0.25, max_position_embeddings=longest + PROMPT)
    config.eos_token_id = None
    return GPTNeoXForCausalLM(config).to("cuda", torch.bfloat16).eval()


def gla(torch, folder):
    """flash-linear-attention's GLA, saved to `folder` for regla; None where it is not installed."""
    try:
        from fla.models import GLAConfig, GLAForCausalLM
    except ImportError:
        print("cuda_transformers: no flash-linear-attention here: no column for its GLA")
        return None
    config = GLAConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_heads=4,
                       expand_k=0.5, expand_v=1.0, intermediate_size=INTERMEDIATE)
    config.eos_token_id = None
    model = GLAForCausalLM(config).to("cuda", torch.bfloat16).eval()
    model.save_pretrained(folder)
    shutil.copy(TOKENIZER, folder)
    return model


def ratio(ours, theirs):
    return ours / theirs if ours and theirs else None


def cell(value, form="{:.0f}"):
    return "-" if value is None else form.format(value)


def numbers(text):
    return [int(part) for part in text.split(",")]


def measure(torch, models, ours, length, batch, in_time):
    """A point: theirs, unless there is no time, beside ours, which is there."""
    point = {"length": length, "batch": batch, "failed": None if in_time else "out of time"}
    for name, model in models.items():
        point[f"theirs_{name}"] = None
        if model and in_time:
            point[f"theirs_{name}"], why = try_generate(torch, model, length, batch,
                                                        name == "gpt_neox")
            point["failed"] = point["failed"] or why
    for name, results in ours.items():
        theirs = "gla" if name == "gla" else "gpt_neox"
        point[f"regla_{name}"] = results.get((length, batch))
        point[f"ratio_{name}"] = ratio(point[f"regla_{name}"], point[f"theirs_{theirs}"])
    return point


def print_point(point):
    print(f"{point['length']:>7} {point['batch']:>6} {cell(point['theirs_gpt_neox']):>13}",
          *(f"{cell(point['regla_' + name]):>9} {cell(point['ratio_' + name], '{:.2f}x'):>7}"
            for name in PRESETS),
          f"{cell(point['theirs_gla']):>9} {cell(point['regla_gla']):>9} "
          f"{cell(point['ratio_gla'], '{:.2f}x'):>7} ", point["failed"] or "", flush=True)


def write(path, points):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, points[0])
        writer.writeheader()
        writer.writerows(points)


def compare(torch, arguments):
    begin, longest, points = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        models = {"gpt_neox": gpt_neox(torch, max(arguments.lengths)), "gla": gla(torch, folder)}
        ours = {name: regla(arguments, ["--preset", f"{name}-160m"]) for name in PRESETS}
        ours["gla"] = regla(arguments, ["--model", folder]) if models["gla"] else {}
    print(" length  batch  transformers   regla of the same, and ReGLA, hybrid ReGLA, of its size"
          "        fla GLA, regla's")
    for batch in arguments.batches:
        for length in arguments.lengths:
            start = time.monotonic()
            in_time = start + longest - begin < arguments.seconds
            points.append(measure(torch, models, ours, length, batch, in_time))
            longest = max(longest, time.monotonic() - start)
            print_point(points[-1])
            if arguments.out:  # all so far: the next point may be stopped
                write(arguments.out, points)


def products(torch):
    calls, tries = 40, 7
    copied = torch.zeros(2, 1 << 29, dtype=torch.uint8, device="cuda")
    for columns, rows, copies in ((4096, 4096, 8), (768, 3072, 64), (3072, 768, 64)):
        weights = torch.randn(copies, rows, columns, device="cuda").bfloat16()
        for batch in (1, 8, 64, 256, 2048):
            x = torch.randn(batch, columns, device="cuda").bfloat16()
            times = []
            for _ in range(1 + tries):
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                for _ in range(2):  # while this runs, the calls are queued
                    copied[1].copy_(copied[0])
                events[0].record()
                for call in range(calls):
                    torch.matmul(x, weights[call % copies].t())
                events[1].record()
                torch.cuda.synchronize()
                times.append(1e-3 * events[0].elapsed_time(events[1]) / calls)
            seconds = statistics.median(times[1:])
            print(f"{f'product bf16, {columns} x {rows}, {batch} rows':<58} {1e6 * seconds:9.1f} us"
                  f" {2e-12 * batch * columns * rows / seconds:8.2f} TFLOP/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--regla", default="build/cuda/regla")
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096, 64])
    parser.add_argument("--batches", type=numbers, default=[1, 64, 16])
    parser.add_argument("--activations", choices=("f32", "16bit"), default="f32")
    parser.add_argument("--seconds", type=float, default=500,
                        help="a point that might end later is not begun")
    parser.add_argument("--out", help="a CSV of the table")
    parser.add_argument("--products", action="store_true",
                        help="only the times of torch.matmul for some products")
    arguments = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        skipped(f"no {error.name} here")
    if not torch.cuda.is_available():
        skipped("PyTorch sees no CUDA device")
    shown = ("torch.matmul, bf16" if arguments.products else
             f"tokens/s, bf16 with activations in {arguments.activations}, and regla / theirs")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers "
          f"{transformers.__version__}; {shown}")
    if arguments.products:
        products(torch)
    else:
        compare(torch, arguments)


if __name__ == "__main__":
    main()
