"""Writes a model's card (README.md) from measurements: `regla perplexity`, `regla generate`, the losses by position, and
the log of its training."""

import argparse
import json
import math
import subprocess
from pathlib import Path

import torch
from tokenizers import Tokenizer

from train.checkpoint import load_model
from train.documents import read_documents, text_files
from train.evaluate import evaluate

PROMPTS = Path(__file__).with_name("prompts.txt")
POSITION_LENGTH, POSITION_WINDOWS = 8192, 40

CARD = """# {name}

A small English language model: a hybrid of [ReGLA](../../engine/README.md) linear attention and softmax attention with
KERPLE's logarithmic position bias, trained from nothing by `make model` on public-domain books. It continues texts in the
style of English prose before 1928. It does not follow instructions, and what it says of the world is not to be relied on.

| | |
|---|---|
| parameters | {parameters:,} ({size:.1f} MB in {dtype}) |
| layers | {layers}; width {width}, {heads} heads |
| vocabulary | {vocab:,}: byte-level BPE learned from the training texts; every text survives encoding and decoding |
| data | 259 public-domain books in English (118 M characters); their authors' works before 1928 |
| held out | 8 other books ({bytes:,} bytes), never trained on |
| tokens seen | {seen:,} ({steps:,} steps of {batch_tokens:,}; {epochs:.2f} times the training text) |
| training length | windows of {window} tokens, from random places |
| time | {minutes:.0f} minutes on two CPU cores shared with other work |
| training loss | {train_loss:.3f} nats a token (mean of the last {log_every} steps) |
| validation loss | {loss:.4f} nats a token, whole books |
| bits per byte | **{bits_per_byte:.4f}** |
| perplexity per word | {ppl_word:.1f} |
| perplexity per token | {ppl_token:.2f} |

Trained with `make model` (`train/make_model.sh`): Muon for the matrices of the layers, AdamW for the rest, bfloat16 autocast;
warm-up, a constant rate, then a linear decay to zero. The validation figures are those of

    {perplexity_command}

## Loss by position

The mean loss of the tokens at these positions, in {position_windows} windows of {position_length:,} tokens from the held-out
books (`{evaluate_command}`). It was trained on {window}; the loss does not rise beyond.

| positions | tokens | nats a token |
|---|---|---|
{positions}

From {window} on: {beyond:.4f}; in the last bucket, up to {position_length:,}: {last:.4f}. Mean at the training
length (positions {half}..{window}): {at_training:.4f}.

## Twenty continuations

Of fixed prompts, unedited, the first that came: `regla generate {folder} --prompt "…" {generate_flags} --seed N`, N = 1 to 20.

{continuations}"""


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def training_figures(log):
    """What the log says: its arguments, its last step, and the seconds of all its parts."""
    steps, seconds, previous = [], 0, 0
    for line in Path(log).read_text().splitlines():
        if line.startswith("{"):
            steps.append(json.loads(line))
            elapsed = steps[-1]["seconds"]
            seconds += elapsed - previous if elapsed >= previous else elapsed
            previous = elapsed
    last = steps[-1]
    per_step = last["tokens"] // last["step"]
    return {"seen": last["tokens"], "steps": last["step"], "batch_tokens": per_step, "minutes": seconds / 60,
            "train_loss": last["loss"], "log_every": last["step"] - steps[-2]["step"]}


def position_table(buckets, length):
    ends = [b["from"] for b in buckets[1:]] + [length]
    return "\n".join(f"| {b['from']:,} to {end:,} | {b['tokens']:,} | {b['loss']:.4f} |" for b, end in zip(buckets, ends))


def mean_loss(buckets):
    return sum(b["loss"] * b["tokens"] for b in buckets) / sum(b["tokens"] for b in buckets)


def continuations(engine, folder, flags):
    parts = []
    for seed, prompt in enumerate(PROMPTS.read_text().splitlines(), 1):
        text = run(engine, "generate", folder, "--prompt", prompt, *flags, "--seed", seed, "--quiet").rstrip("\n")
        quoted = "\n".join(f"> {line}".rstrip() for line in f"**{prompt}**{text}".splitlines())
        parts.append(f"{seed}.\n\n{quoted}\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--valid", required=True)
    parser.add_argument("--log", required=True, help="output of train.fit")
    parser.add_argument("--train-tokens", type=int, required=True, help="tokens of the training text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--engine", default="build/release/regla")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = Path(args.model)
    flags = ["--max-tokens", "100", "--temperature", "0.8", "--top-p", "0.95"]
    measured = json.loads(run(args.engine, "perplexity", folder, args.valid, "--json"))
    model, config = load_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    buckets = evaluate(model, tokenizer, read_documents(text_files(args.valid)), POSITION_LENGTH,
                       POSITION_WINDOWS)["loss_by_position"]
    training = training_figures(args.log)
    window = args.window
    at_training = [b for b in buckets if b["from"] == window // 2]
    (folder / "README.md").write_text(CARD.format(
        name=folder.name, folder=folder, parameters=sum(p.numel() for p in model.parameters()), dtype="BF16",
        size=(folder / "model.safetensors").stat().st_size / 1e6, layers=", ".join(config["layer_types"]),
        width=config["hidden_size"], heads=config["num_attention_heads"], vocab=config["vocab_size"],
        bytes=measured["bytes"], epochs=training["seen"] / args.train_tokens, window=window, half=window // 2,
        loss=measured["nll"] / measured["tokens"], bits_per_byte=measured["bits_per_byte"],
        ppl_word=measured["ppl_word"], ppl_token=math.exp(measured["nll"] / measured["tokens"]),
        perplexity_command=f"regla perplexity {folder} {args.valid}",
        evaluate_command=f"python -m train.evaluate {folder} {args.valid} --length {POSITION_LENGTH} "
                         f"--limit {POSITION_WINDOWS}",
        position_windows=POSITION_WINDOWS, position_length=POSITION_LENGTH,
        positions=position_table(buckets, POSITION_LENGTH), beyond=mean_loss([b for b in buckets if b["from"] >= window]),
        last=buckets[-1]["loss"], at_training=mean_loss(at_training), generate_flags=" ".join(flags),
        continuations=continuations(args.engine, folder, flags), **training))


if __name__ == "__main__":
    main()
