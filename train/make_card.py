# SPDX-License-Identifier: Apache-2.0
"""Writes a model's card (README.md) from measurements: `regla perplexity`, `regla generate`, and
the log of its training. With --beside it writes a row into a card that is there: what another model
comes to that was trained for as many tokens."""

import argparse
import json
import math
import re
import subprocess
from pathlib import Path

from safetensors import SafetensorError, safe_open

from train.files import must_exist, parse_object, read_object, read_text, told

PROMPTS = Path(__file__).with_name("prompts.txt")
POSITION_CONTEXT = 8192
# Of the card's continuations, and what train.export recommends.
SAMPLING = {"temperature": 0.8, "top_p": 0.95}
FLAGS = ["--max-tokens", "100", "--temperature", "0.8", "--top-p", "0.95"]

CARD = """# {name}

A small language model that continues texts in the style of those it was trained on. Its layers
alternate between ReGLA's linear attention and softmax attention with KERPLE's logarithmic position
bias. It was trained from scratch. It follows no instructions. Do not rely on what it says
about the world.

| | |
|---|---|
| parameters | {parameters:,} ({mebibytes:.1f} MiB in {dtype}) |
| layers | {layers}; width {width}, {heads} heads |
| vocabulary | {vocab:,}: byte-level BPE learned from the training text |
| training data | {data} |
| held out | {documents} other texts, {bytes:,} bytes, never trained on |
| tokens seen | {seen:,} ({steps:,} steps of {step_tokens:,}); the data has {text_tokens:,} |
| training length | windows of {window} tokens, in a random order |
| training time | {minutes:.0f} minutes on {cores} |
| training loss | {train_loss:.3f} nats a token: the mean of the last steps, at most 20 |
| validation loss | {loss:.4f} nats a token |
| bits per byte | **{bits_per_byte:.4f}** |
| perplexity per word | {ppl_word:.1f} |
| perplexity per token | {ppl_token:.2f} |

The command is {command}. The texts are not in the repository,
so others can train such a model on texts of their own, but not this one again.

Training uses Muon for the matrices of the layers, AdamW for the rest, and bfloat16 autocast. The
learning rate warms up, stays constant, and decays linearly to zero over the last
{decay:,} steps.{went_on} The training loss is of windows of {window} tokens. The validation figures are of
whole texts. With VALID for the held-out file ({kind}) the command was:

    {perplexity}

## Loss by position

The mean loss of tokens, by how many tokens came before them in the text. The held-out texts were
read twice: cut into windows of {context:,} tokens (the same command with `--context {context}`), and
whole. (In training the windows were of {window} tokens.)

| tokens before | tokens in windows | loss, nats a token | tokens in whole texts | loss, nats a token |
|---|---|---|---|---|
{positions}

With windows of {context:,}, the loss at the end of the training length ({at_training_range} tokens
before) is {at_training:.4f}. The highest loss at any later position is {worst:.4f} ({rise:+.1f} %).

## Five continuations

Continuations of fixed prompts: the first result of each, unedited.
`regla generate {folder} --prompt TEXT {sampling} --seed N`, N = 1 to 5.
{recommended}
{continuations}"""

RECOMMENDED = (
    "Its `generation_config.json` recommends this sampling, so that requests which say nothing get it, too.\n"
)

# A row of the table of another model's card.
BESIDE = (
    "| beside it: {layers} | {parameters:,} parameters, {seen:,} tokens seen in {steps:,} steps: "
    "training loss {train_loss:.3f}, validation loss {loss:.4f}, bits per byte **{bits_per_byte:.4f}**, "
    "perplexity per word {ppl_word:.1f}, per token {ppl_token:.2f} |"
)
WENT_ON = (
    "\nThe run was made longer at step {}: there the rate went from what it was to that of the longer"
    "\nrun."
)
LAST_ROW = "| perplexity per token |"  # of a card's table without such rows


def run(*command, stdin=None):
    command = [str(part) for part in command]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=stdin, text=True)
    return done.stdout


class Valid:
    """The held-out file as the engine takes it: by name, or compressed through a pipe. The card's
    readers do not have it, so it is VALID in the command that they see."""

    def __init__(self, path):
        suffix = must_exist(path).suffix
        self.unpack = {".xz": ["xz", "-dc", path], ".gz": ["gzip", "-dc", path]}.get(suffix)
        lines = ".jsonl" in Path(path).suffixes
        self.kind = "a JSON object a line, with its `text`" if lines else "plain text"
        kind = "jsonl" if lines else "text"
        self.path = path
        self.arguments = [path] if self.unpack is None else ["-", "--format", kind]

    def perplexity(self, engine, folder, *options):
        """The command in words, and what it printed."""
        command = ["perplexity", folder, *self.arguments, "--by-position", *options]
        shown = " ".join(["regla", *("VALID" if part is self.path else str(part) for part in command)])
        if self.unpack is None:
            return shown, json.loads(run(engine, *command, "--json"))
        with subprocess.Popen(self.unpack, stdout=subprocess.PIPE) as unpacked:
            measured = json.loads(run(engine, *command, "--json", stdin=unpacked.stdout))
        return f"{' '.join(self.unpack[:-1])} VALID | {shown}", measured


def training_figures(log):
    """What the log of train.fit says; a resumed run's log has several parts, each counting its own
    seconds."""
    text = read_text(log)
    lines = enumerate(text.splitlines(), 1)
    records = [parse_object(line, log, number) for number, line in lines if line[:1] == "{"]
    if not records:
        raise ValueError(f"{log}: expected lines of train.fit, found none")
    seconds = sum(
        record["seconds"]
        for record, after in zip(records, records[1:] + [{"seconds": 0}], strict=True)
        if after["seconds"] < record["seconds"]
    )
    last = records[-1]
    return {
        "seen": last["tokens"],
        "steps": last["step"],
        "step_tokens": last["tokens"] // last["step"],
        "decay": last["decay"],
        "minutes": seconds / 60,
        "train_loss": last["loss"],
        "went_on": "".join(map(WENT_ON.format, re.findall(r"goes on from step (\d+) to \d+, not", text))),
    }


def model_figures(folder):
    config = read_object(folder / "config.json")
    try:
        with safe_open(must_exist(folder / "model.safetensors"), "numpy") as file:
            slices = [file.get_slice(name) for name in file.keys()]
    except SafetensorError as error:
        raise ValueError(f"{folder}/model.safetensors: expected safetensors, got: {error}") from None
    return {
        "parameters": sum(math.prod(part.get_shape()) for part in slices),
        "dtype": "/".join(sorted({part.get_dtype() for part in slices})),
        "mebibytes": (folder / "model.safetensors").stat().st_size / 2**20,
        "layers": ", ".join(config["layer_types"]),
        "width": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "vocab": config["vocab_size"],
    }


def position_figures(buckets, whole, window):
    """The table of losses by position, in windows and in whole texts, and how far they rise in the
    windows above that at the training length."""

    def first(bucket):
        return int(bucket["tokens_before"].split("-")[0])

    # A window's last token has all the others before it: a bucket of its own, with one a window.
    buckets = [b for b in buckets if first(b) < POSITION_CONTEXT]
    # The held-out text may be shorter than the windows it was trained on.
    at_training = [b for b in buckets if first(b) < window][-1]
    beyond = [b["nll_per_token"] for b in buckets if first(b) >= window]
    worst = max(beyond, default=at_training["nll_per_token"])
    in_windows = {b["tokens_before"]: b for b in buckets}
    rows = []
    for b in whole:
        near = in_windows.get(b["tokens_before"])
        left = f"{near['tokens']:,} | {near['nll_per_token']:.4f}" if near else "|"
        rows.append(
            f"| {b['tokens_before']} | {left} | {b['tokens']:,} | {b['nll_per_token']:.4f} |"
        )
    return {
        "positions": "\n".join(rows),
        "at_training_range": at_training["tokens_before"],
        "at_training": at_training["nll_per_token"],
        "worst": worst,
        "rise": 100 * (worst / at_training["nll_per_token"] - 1),
    }


def recommends(folder):
    """Whether the model's author recommends the sampling of the continuations."""
    file = folder / "generation_config.json"
    said = read_object(file) if file.exists() else {}
    return said.get("do_sample") is True and SAMPLING.items() <= said.items()


def continuations(engine, folder):
    parts = []
    for seed, prompt in enumerate(PROMPTS.read_text().splitlines()[:5], 1):
        command = ["generate", folder, "--prompt", prompt, *FLAGS, "--seed", seed, "--quiet"]
        text = run(engine, *command).removesuffix("\n")
        lines = f"**{prompt}**{text}".split("\n")
        quoted = "\n".join(f"> {line}".rstrip() for line in lines)
        parts.append(f"{seed}.\n\n{quoted}\n")
    return "\n".join(parts)


def measured_figures(measured):
    same = ("documents", "bytes", "bits_per_byte", "ppl_word", "ppl_token")
    return {"loss": measured["nll"] / measured["tokens"], **{key: measured[key] for key in same}}


def training_of(card):
    """Tokens, steps and the steps of the decay, as a card says them."""
    said = re.search(r"^\| tokens seen \| ([\d,]+) \(([\d,]+) steps of ", card, re.MULTILINE)
    decay = re.search(r"to zero over the last\s+([\d,]+) steps", card)
    if said is None or decay is None:
        raise ValueError("expected a card of train.make_card, found neither tokens nor steps")
    return tuple(int(text.replace(",", "")) for text in (*said.groups(), decay.group(1)))


def add_row(card, figures):
    """The card with the row, in the place of one of a model with the same layers."""
    want, got = training_of(card), tuple(figures[key] for key in ("seen", "steps", "decay"))
    if want != got:
        raise ValueError(f"expected tokens, steps and steps of the decay {want}, got {got}")
    row = BESIDE.format(**figures)
    start = row.split(" | ")[0] + " | "
    lines = [line for line in card.split("\n") if not line.startswith(start)]
    last = max(i for i, line in enumerate(lines) if line.startswith((LAST_ROW, "| beside it: ")))
    return "\n".join([*lines[: last + 1], row, *lines[last + 1 :]])


def write_beside(args):
    """A row for the model in the card of another."""
    file = Path(args.beside) / "README.md"
    valid = Valid(args.valid)
    figures = {**training_figures(args.log), **model_figures(Path(args.model))}
    card = read_text(file)
    figures |= measured_figures(valid.perplexity(args.engine, Path(args.model))[1])
    try:
        card = add_row(card, figures)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    file.write_text(card)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="checkpoint folder")
    parser.add_argument("--valid", required=True, help="held-out documents")
    parser.add_argument("--log", required=True, help="output of train.fit")
    parser.add_argument("--beside", metavar="FOLDER", help="model in whose card to write a row")
    parser.add_argument("--text-tokens", type=int, help="of the training text")
    parser.add_argument("--data", help="what the training text is, in words")
    parser.add_argument("--cores", default="two CPU cores")
    parser.add_argument("--command", default="`make model`, which runs `train/make_model.sh`",
                        help="that trained it, in Markdown")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--engine", default="build/release/regla")
    args = parser.parse_args()
    if args.beside is None and (args.text_tokens is None or args.data is None):
        parser.error("a card needs --text-tokens and --data")
    with told("train.make_card", subprocess.CalledProcessError):
        if args.beside is not None:
            write_beside(args)
        else:
            write_card(args)


def write_card(args):
    folder = Path(args.model)
    valid = Valid(args.valid)
    figures = {**training_figures(args.log), **model_figures(folder)}  # before minutes of measuring
    measuring, measured = valid.perplexity(args.engine, folder)
    _, windows = valid.perplexity(args.engine, folder, "--context", POSITION_CONTEXT)
    card = CARD.format(
        name=folder.name,
        folder=folder,
        data=args.data,
        cores=args.cores,
        command=args.command,
        text_tokens=args.text_tokens,
        window=args.window,
        perplexity=measuring,
        kind=valid.kind,
        context=POSITION_CONTEXT,
        sampling=" ".join(FLAGS),
        recommended=RECOMMENDED if recommends(folder) else "",
        continuations=continuations(args.engine, folder),
        **measured_figures(measured),
        **figures,
        **position_figures(windows["by_position"], measured["by_position"], args.window),
    )
    (folder / "README.md").write_text(card)


if __name__ == "__main__":
    main()
