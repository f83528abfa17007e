"""Generation by `regla` beside transformers and flash-linear-attention, on one GPU, in one run.

For each length and batch: tokens per second of generating `length` tokens after a prompt of 16, with
random weights of equal shapes (160 million, 12 layers of 768) in bf16, greedily. transformers is
GPT-NeoX with its static cache, compiled as its `generate` does it; flash-linear-attention, where it
is installed, is its GLA, saved and read by `regla` too. The first run of a point is not timed (it
compiles); the figure is the median of three after it. Both measure the prompt's 16 tokens, or leave
them out, below 1 % of the time.

Usage: cuda_transformers.py --regla build/cuda/regla [--lengths 64,1024,4096] [--batches 1,16,64]
       [--seconds 500] [--out FILE.csv]
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
VOCAB, HIDDEN, LAYERS, HEADS, INTERMEDIATE = 50304, 768, 12, 12, 3072
TOKENIZER = Path(__file__).resolve().parents[1] / "tests/golden/gla_fla/tokenizer.json"


def skipped(why):
    print(f"cuda_transformers: skipped: {why}")
    sys.exit(77)


def regla(program, model, length, batch):
    """Tokens per second of `regla bench`; model: its flag and value."""
    command = [program, "bench", "--device", "cuda", *model, "--weights", "bf16", "--pp", "0",
               "--tg", str(length), "--depth", str(PROMPT), "--batch", str(batch), "--repeat", "3",
               "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"  regla {' '.join(model)}: {last}", file=sys.stderr)
        return None
    return json.loads(result.stdout)["results"][0]["tokens_per_second"]


def generate(torch, model, length, batch, **arguments):
    """Tokens per second of model.generate."""
    prompt = torch.randint(0, VOCAB, (batch, PROMPT), device="cuda")

    def run():
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                             min_new_tokens=length, max_new_tokens=length, pad_token_id=0,
                             **arguments)
        torch.cuda.synchronize()
        assert out.shape == (batch, PROMPT + length), out.shape
        return time.perf_counter() - start

    run()
    return batch * length / statistics.median(run() for _ in range(3))


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


def measure(torch, arguments, models, length, batch):
    point = {"length": length, "batch": batch}
    with torch.inference_mode():
        point["transformers_gpt_neox"] = generate(torch, models["gpt_neox"], length, batch,
                                                  cache_implementation="static")
        point["fla_gla"] = models["gla"] and generate(torch, models["gla"], length, batch)
    torch.cuda.empty_cache()
    for name in ("gpt_neox", "regla", "hybrid_regla"):
        point[f"regla_{name}"] = regla(arguments.regla, ["--preset", f"{name}-160m"], length, batch)
        point[f"ratio_{name}"] = ratio(point[f"regla_{name}"], point["transformers_gpt_neox"])
    point["regla_gla"] = models["gla"] and regla(arguments.regla, ["--model", models["folder"]],
                                                 length, batch)
    point["ratio_gla"] = ratio(point["regla_gla"], point["fla_gla"])
    return point


def print_point(point):
    print(f"{point['length']:>7} {point['batch']:>6} {cell(point['transformers_gpt_neox']):>13}",
          *(f"{cell(point['regla_' + name]):>9} {cell(point['ratio_' + name], '{:.2f}x'):>7}"
            for name in ("gpt_neox", "regla", "hybrid_regla")),
          f"{cell(point['fla_gla']):>9} {cell(point['regla_gla']):>9} "
          f"{cell(point['ratio_gla'], '{:.2f}x'):>7}", flush=True)


def write(path, points):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, points[0])
        writer.writeheader()
        writer.writerows(points)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--regla", default="build/cuda/regla")
    parser.add_argument("--lengths", type=numbers, default=[64, 1024, 4096])
    parser.add_argument("--batches", type=numbers, default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=500,
                        help="no point is begun after so long")
    parser.add_argument("--out", help="a CSV of the table")
    arguments = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        skipped(f"no {error.name} here")
    if not torch.cuda.is_available():
        skipped("PyTorch sees no CUDA device")
    begin, points = time.monotonic(), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers "
          f"{transformers.__version__}; tokens/s, bf16, and regla / theirs")
    print(" length  batch  transformers   regla of the same, and ReGLA, hybrid ReGLA, of its size"
          "        fla GLA, regla's")
    with tempfile.TemporaryDirectory() as folder:
        models = {"gpt_neox": gpt_neox(torch, max(arguments.lengths)), "folder": folder}
        models["gla"] = gla(torch, folder)
        for length in arguments.lengths:
            for batch in arguments.batches:
                if time.monotonic() - begin > arguments.seconds:
                    print(f"not measured, out of time: length {length}, batch {batch}")
                    continue
                points.append(measure(torch, arguments, models, length, batch))
                print_point(points[-1])
                if arguments.out:  # all so far: the next point may be stopped
                    write(arguments.out, points)


if __name__ == "__main__":
    main()
