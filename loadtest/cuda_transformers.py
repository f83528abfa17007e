# SPDX-License-Identifier: Apache-2.0
"""Generation by `regla` beside transformers and flash-linear-attention, on one GPU, in one run.

For each length and batch: tokens per second of generating `length` tokens after a prompt of 16, with
random weights of equal shapes (160 million, 12 layers of 768) in bf16, greedily. transformers is
GPT-NeoX with a static cache of the point's length, compiled as its `generate` does it, anew for each
point; flash-linear-attention, where it is installed, is its GLA, saved and read by `regla` too. A
short first run of a point is not timed (it compiles); the figure is the median of those after it: three,
or as many as fit into FEW_SECONDS. Both measure the prompt's 16 tokens, or leave them out, below 2 %
of the time.

A point is one of theirs beside `regla bench` of that length and batch alone; those that say most come
first. What is found is written at once, so that nothing is lost when the time is over. What fails or
takes too long is said to have, and why; the points after it go on.

Usage: cuda_transformers.py --regla build/cuda/regla [--lengths 1024,4096] [--batches 1,64]
       [--activations f32|16bit] [--seconds 500] [--out FILE.csv]
           16bit: regla's products round their inputs to bf16, as those of the others do
       cuda_transformers.py --products
           instead: the times of torch.matmul for products that loadtest/kernels times, in bf16 in
           and out, under the same names
Lines that begin with "figure: " are for the table of cuda_session.sh. Status: 77 where there is no
PyTorch, no transformers or no CUDA device: nothing is measured then; 1 where no figure of ours came to
stand beside one of theirs.
"""

import argparse
import contextlib
import csv
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = 16
WARM_UP = 32  # tokens
VOCAB, HIDDEN, LAYERS, HEADS, INTERMEDIATE = 50304, 768, 12, 12, 3072
FEW_SECONDS = 5
BENCH_SECONDS = 40  # of one `regla bench`, which takes some 4 on an H200
LEAST_SECONDS = 2  # that are worth a try
# What of ours stands beside theirs: presets without "-160m"; of GLA the very model, as it was saved.
BESIDE = {"gpt_neox": ("gpt_neox", "regla", "hybrid_regla"), "gla": ("gla",)}
TOKENIZER = Path(__file__).resolve().parents[1] / "tests/golden/gla_fla/tokenizer.json"
COLUMNS = "length batch theirs theirs_tokens_per_second regla regla_tokens_per_second ratio failed".split()


def skipped(why):
    print(f"cuda_transformers: skipped: {why}")
    sys.exit(77)


def first_line(text):
    return next((line for line in text.splitlines() if line.strip()), "no message")


class OutOfTime(BaseException):
    """No Exception: torch would take it for one of its own."""


class Clock:
    """The time that is left of --seconds."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    @contextlib.contextmanager
    def at_most(self, seconds):
        """Raises OutOfTime in what takes longer, as soon as Python sees it."""
        def ring(_signal, _frame):
            raise OutOfTime(f"stopped after {seconds:.1f} s")

        before = signal.signal(signal.SIGALRM, ring)
        timer = signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, before)


def bench(arguments, model, length, batch, seconds):
    """Tokens per second of `regla bench` and None, or None and why it failed; model: its flag and
    value."""
    command = [arguments.regla, "bench", "--device", "cuda", *model, "--weights", "bf16",
               "--activations", arguments.activations, "--pp", "0", "--tg", str(length),
               "--depth", str(PROMPT), "--batch", str(batch), "--repeat", "2", "--json"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds)
        return json.loads(result.stdout)["results"][0]["tokens_per_second"], None
    except subprocess.TimeoutExpired as error:
        said = error.stderr or b""  # bytes, whatever was asked for
        return None, f"stopped after {seconds:.1f} s: {first_line(said.decode(errors='replace'))}"
    except subprocess.CalledProcessError as error:
        return None, f"status {error.returncode}: {first_line(error.stderr)}"
    except (OSError, ValueError, LookupError) as error:
        return None, f"{type(error).__name__}: {first_line(str(error))}"


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
    times, start = [run(length)], time.monotonic()
    while len(times) < 3 and 2 * times[0] + time.monotonic() - start < FEW_SECONDS:
        times.append(run(length))
    return batch * length / statistics.median(times)


def try_generate(torch, model, length, batch, static, clock, seconds):
    """What generate says and None, or None and why it failed."""
    try:
        with clock.at_most(seconds), torch.no_grad():
            from transformers import StaticCache

            torch._dynamo.reset()  # else it would compile for all shapes from the second on, or give up
            torch.cuda.empty_cache()
            cache = StaticCache(config=model.config, max_cache_len=PROMPT + length) if static else None
            return generate(torch, model, length, batch, cache), None
    except OutOfTime as error:
        return None, str(error)
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


def numbers(text):
    return [int(part) for part in text.split(",")]


class Table:
    """The rows, printed and written as they come."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def begin(self, point, own, speed, why):
        """Ours of a point; why: it failed, or None."""
        failed = why and f"regla {own}: {why}"
        self.rows.append(dict(zip(COLUMNS, (*point, None, own, speed, None, failed))))
        print(f"{point[0]} tokens, batch {point[1]}:", failed or f"regla {own} {speed:.0f}/s",
              flush=True)
        self.write()

    def finish(self, point, speed, why):
        """Theirs, in all rows of the point."""
        length, batch, theirs = point
        if why:
            print(f"{length} tokens, batch {batch}: {theirs}: {why}", flush=True)
        for row in self.rows:
            if tuple(row[column] for column in COLUMNS[:3]) != point:
                continue
            own = row["regla_tokens_per_second"]
            row.update(theirs_tokens_per_second=speed, ratio=own / speed if own and speed else None,
                       failed="; ".join(filter(None, (row["failed"], why and f"{theirs}: {why}"))))
            if row["ratio"]:
                print(f"figure: {length} tokens, batch {batch}: {theirs} {speed:.0f}/s, regla "
                      f"{row['regla']} {own:.0f}/s {row['ratio']:.2f}x", flush=True)
        self.write()

    def write(self):
        if self.path:
            with open(self.path, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(self.rows)

    def compared(self):
        return any(row["ratio"] for row in self.rows)


def measure(torch, arguments, clock, table, point, model, folder, more):
    """Ours of a point, which take seconds, then theirs, which may take half of what is left where
    there are more points."""
    length, batch, theirs = point
    for own in BESIDE[theirs]:
        flags = ["--model", folder] if theirs == "gla" else ["--preset", f"{own}-160m"]
        seconds = min(BENCH_SECONDS, clock.left() / 4)
        table.begin(point, own, *(bench(arguments, flags, length, batch, seconds)
                                  if seconds > LEAST_SECONDS else (None, "out of time")))
    seconds = clock.left() / 2 if more else clock.left()
    table.finish(point, *(try_generate(torch, model, length, batch, theirs == "gpt_neox", clock, seconds)
                          if seconds > LEAST_SECONDS else (None, "out of time")))


def compare(torch, arguments):
    """False: no figure of ours stands beside one of theirs."""
    clock, table = Clock(arguments.seconds), Table(arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        models = {"gpt_neox": gpt_neox(torch, max(arguments.lengths)), "gla": gla(torch, folder)}
        points = [(length, batch, name) for length in arguments.lengths
                  for name, model in models.items() if model for batch in arguments.batches]
        for number, point in enumerate(points, 1):
            measure(torch, arguments, clock, table, point, models[point[2]], folder, number < len(points))
    return table.compared()


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
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096])
    parser.add_argument("--batches", type=numbers, default=[1, 64])
    parser.add_argument("--activations", choices=("f32", "16bit"), default="f32")
    parser.add_argument("--seconds", type=float, default=500,
                        help="when these are over, no more is measured")
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
    elif not compare(torch, arguments):
        sys.exit(1)


if __name__ == "__main__":
    main()
