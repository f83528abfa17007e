# SPDX-License-Identifier: Apache-2.0
"""Trains the shipped model on a GPU that is lent for minutes, to a machine with PyTorch and without
a network.

`pack` puts texts into a folder that git ignores, as many as fit: whole documents, drawn at random,
in parts of .jsonl.bz2. The folder travels with the checkout. There `run` ends after the seconds it
is given, whatever the pace: it turns the texts into tokens, trains, and exports. If `fit --compile`
has no line of its log after a share of the time, or ends before that, it trains without --compile.
In OUT are then model.safetensors and train.log. Where a run ended early these are of the last saved
state, and the status is 1.
"""

import argparse
import bz2
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from train import STARTED
from train.documents import read_documents, training_files
from train.files import told
from train.windows import open_tokens

MODEL = Path("models/regla-books-7.7m")
CONFIG = Path("train/regla-books.json")
PARTS = 16  # files that are read side by side
WINDOW, BATCH = 512, 64
EXPORT_SECONDS = 20
# Eight times the batch of make_model.sh, and many times its steps.
RECIPE = [
    *("--window", WINDOW, "--batch", BATCH, "--warmup", 100, "--decay-share", 0.4),
    *("--lr", 5e-3, "--muon-lr", 0.03, "--muon-decay", 0.05, "--tie", "", "--bf16"),
    *("--check", "line", "--log-every", 20, "--save-seconds", 15),
]


def pack(args):
    """Fills the folder anew."""
    documents = list(read_documents(training_files([args.data], args.without)))
    random.Random(args.seed).shuffle(documents)
    folder = Path(args.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed, count, size, limit = [b""] * PARTS, 0, 0, int(args.mib * 2**20)
    for text in documents:
        line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
        stream = bz2.compress(line.encode())
        if size + len(stream) <= limit:
            packed[count % PARTS] += stream
            count, size = count + 1, size + len(stream)
    for i, part in enumerate(packed):
        if part:
            (folder / f"part{i:02}.jsonl.bz2").write_bytes(part)
    if not count:
        sys.exit(f"train.gpu_session: {args.mib} MiB: expected room for a document, found none")
    print(f"{folder}: {count} of {len(documents)} documents, {size / 2**20:.1f} MiB")


def elapsed():
    return time.monotonic() - STARTED


class Session:
    def __init__(self, args):
        self.args = args
        self.out = Path(args.out)
        self.run = Path(args.run)
        self.out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir(parents=True)
        self.log = (self.out / "train.log").open("wb")

    def say(self, text):
        line = f"# {elapsed():.0f} s: {text}"
        print(line, flush=True)
        self.log.write(line.encode() + b"\n")
        self.log.flush()

    def start(self, module, *arguments):
        command = [sys.executable, "-m", f"train.{module}", *map(str, arguments)]
        return subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def must(self, module, *arguments):
        """A step that all others need."""
        status = self.start(module, *arguments).wait()
        if status:
            self.say(f"train.{module} ended with status {status}")
            sys.exit(1)

    def tokens(self):
        self.must("tokenizer", self.args.folder, "--tokenizer", MODEL / "tokenizer.json",
                  "--jobs", os.cpu_count(), "--out", self.run)
        return len(open_tokens(self.run / "train.u16"))

    def fit(self, tokens, *options):
        """Trains until its time is over. None if there was no line of the log by the time that
        --compile is given, else the status."""
        most = max(int(self.args.epochs * tokens) // (WINDOW * BATCH), 1)
        before = self.lines()
        process = self.start(
            "fit", "--config", CONFIG, "--data", self.run / "train.u16", "--run", self.run, *RECIPE,
            "--steps", min(most, self.args.steps or most), "--device", self.args.device,
            "--seconds", self.args.seconds - EXPORT_SECONDS - elapsed(), *options,
        )
        try:
            while process.poll() is None:
                late = elapsed() > self.args.seconds * self.args.compile_share
                if "--compile" in options and late and self.lines() == before:
                    return None
                if elapsed() > self.args.seconds - EXPORT_SECONDS / 2:
                    self.say("the training did not end in time")
                    return 1
                time.sleep(0.2)
            return None if process.returncode and self.lines() == before else process.returncode
        finally:
            end(process)

    def lines(self):
        """Of steps, in the log."""
        return (self.out / "train.log").read_bytes().count(b'\n{"step"')


def end(process):
    """With what it has started: the processes that compile."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run(args):
    session = Session(args)
    tokens = session.tokens()
    session.say(f"{tokens} tokens")
    status = session.fit(tokens, "--compile")
    if status is None:
        session.say("no step with --compile: trains without")
        status = session.fit(tokens)
    session.say(f"training ended with status {status}")
    if not (session.run / "state.pt").exists():
        session.say("no state was saved")
        sys.exit(1)
    session.must("export", "--state", session.run / "state.pt", "--config", CONFIG,
                 "--tokenizer", MODEL / "tokenizer.json", "--out", session.run / "model")
    shutil.copy(session.run / "model/model.safetensors", session.out)
    session.say("exported")
    sys.exit(1 if status != 0 else 0)


def main():
    parser = argparse.ArgumentParser(
        prog="train.gpu_session",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parts = parser.add_subparsers(required=True)
    packs = parts.add_parser("pack", formatter_class=parser.formatter_class)
    add = packs.add_argument
    add("--data", default="../shared/data/books/train.jsonl.xz", help="file or folder of texts")
    add("--without", nargs="*", default=[], help="files held out")
    add("--mib", type=float, default=9, help="most MiB of the folder")
    add("--seed", type=int, default=0, help="of the draw")
    packs.set_defaults(part=pack)
    runs = parts.add_parser("run", formatter_class=parser.formatter_class)
    add = runs.add_argument
    add("--seconds", type=float, default=180, help="in which all is done")
    add("--compile-share", type=float, default=0.45, help="of them, until the first line of the log")
    add("--epochs", type=float, default=8, help="at most so often each token")
    add("--steps", type=int, help="at most so many steps")
    add("--device", default="cuda")
    add("--run", default="train/runs/gpu-session", help="folder of what does not come back")
    add("--out", default=os.environ.get("OUT", "gpu-session"))
    runs.set_defaults(part=run)
    for part in (packs, runs):
        part.add_argument("--folder", default=".cuda-train", help="of the packed texts")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and no training goes on
    with told("train.gpu_session"):
        args.part(args)


if __name__ == "__main__":
    main()
