#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long `regla serve` loads a model, and how much memory it takes meanwhile: from its start to
`ready`, for files of several types, with them in the page cache and (as root) without.

Several --binary take turns. `peak` is the most that lay in memory, pages of the mapped files
included, which the kernel may drop; `anonymous` the most without them. `stays` is what lies there
once the server is ready. `ratio` is peak over stays."""

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import peer_model
from measure import ROOT, Failure, find_binary, harness, median, status_bytes, thread_seconds

CONFIG = {**peer_model.preset("gpt_neox-160m"), "hidden_size": 1280, "num_attention_heads": 20,
          "intermediate_size": 5120, "num_hidden_layers": 24}  # 0.6e9 weights
CASES = ("f32", "f32>bf16", "f32>q8", "bf16>f32", "bf16", "bf16>q8", "bf16.gguf>f32", "bf16.gguf",
         "bf16.gguf>q8", "q8_0.gguf", "q4_1.gguf", "q4_1.gguf>q8")
FIELDS = ("RssAnon", "RssFile")
SECONDS_BETWEEN_LOOKS = 0.003
TOKENIZER = harness.GOLDEN / "gpt_neox" / "tokenizer.json"  # for models that have none


def write_gguf(path, config, kind, package):
    if package:
        sys.path.append(str(package))
    try:
        import gguf
    except ImportError as missing:
        raise Failure(f"{missing}: `pip install gguf`, or name its folder with --gguf") from None
    peer_model.GGUF_FORMATS[kind] = kind.upper()
    peer_model.write_gguf(gguf, path, config, peer_model.draw(config), kind)


def model_of(folder, name, package):
    """The file or folder of a model, which is written once, or is there."""
    path, written = folder / name, folder / f"{name}.written"
    if name not in {case.partition(">")[0] for case in CASES}:
        if not path.exists():
            raise Failure(f"{path}: expected a model, or one of {', '.join(CASES)}")
        if path.is_dir() and not (path / "tokenizer.json").exists():
            shutil.copy(TOKENIZER, path)
        return path
    if written.exists():
        return path
    print(f"writing {path}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".gguf"):
        write_gguf(path, CONFIG, name.removesuffix(".gguf"), package)
    else:
        peer_model.write_directory(path, CONFIG, peer_model.draw(CONFIG), name)
        shutil.copy(TOKENIZER, path)
    written.touch()
    return path


def drop_cache(model):
    """Of the model's files alone: other processes keep theirs."""
    for path in [model] if model.is_file() else model.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_all(model):
    for path in [model] if model.is_file() else model.iterdir():
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def measure(binary, model, weights, threads, cold):
    """One start: seconds, and bytes by name."""
    (drop_cache if cold else read_all)(model)
    harness.BINARY = binary
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        server = harness.Server(Path(folder) / "log", model=model, weights=weights, threads=threads,
                                wait=False, state_memory="64M", host_state_memory="16M")
        anonymous = 0
        try:
            while "ready: " not in server.tail(100_000):
                if server.process.poll() is not None:
                    raise Failure(f"{binary} ended: {server.tail()}")
                anonymous = max(anonymous, status_bytes(server.process.pid, "RssAnon"))
                time.sleep(SECONDS_BETWEEN_LOOKS)
            seconds = time.monotonic() - began
            cpu = sum(thread_seconds(server.process.pid).values())
            peak = status_bytes(server.process.pid, "VmHWM")
            after = {field: status_bytes(server.process.pid, field) for field in FIELDS}
        finally:
            server.stop()
    return {"seconds": seconds, "cpu": cpu, "peak": peak, "anonymous": max(anonymous, after["RssAnon"]),
            "stays": sum(after.values()), "stays_anonymous": after["RssAnon"]}


def print_row(case, cache, binary, runs):
    middle = {key: median([run[key] for run in runs]) for key in runs[0]}
    mib = {key: f"{value / 2**20:.0f}" for key, value in middle.items()}
    times = [run["seconds"] for run in runs]
    print(f"| {case} | {cache} | {binary} | {middle['seconds']:.2f} ({min(times):.2f} to "
          f"{max(times):.2f}) | {middle['cpu']:.2f} | {mib['peak']} | {mib['anonymous']} | {mib['stays']} | "
          f"{mib['stays_anonymous']} | {middle['peak'] / middle['stays']:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", action="append", help="default: build/release/regla")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES),
                        help=f"what the file has, and >FORMAT for --weights: {','.join(CASES)}; "
                             "or a model in --models")
    parser.add_argument("--caches", type=lambda text: text.split(","), default=["warm", "cold"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "load_time")
    parser.add_argument("--gguf", type=Path, help="folder of the package gguf, if not in sys.path")
    options = parser.parse_args()
    binaries = [find_binary(name) for name in options.binary or [None]]
    print("| file, weights | page cache | program | s to ready (least to most) | CPU s | peak MiB "
          "| anonymous | stays | anonymous | ratio |\n|---|---|---|---|---|---|---|---|---|---|")
    for case, cache in itertools.product(options.cases, options.caches):
        name, _, weights = case.partition(">")
        model = model_of(options.models, name, options.gguf)
        runs = {binary: [] for binary in binaries}
        for _ in range(options.rounds):
            for binary in binaries:
                runs[binary].append(measure(binary, model, weights or "auto", options.threads,
                                            cache == "cold"))
        for binary in binaries:
            print_row(case, cache, binary.name if binary.name != "regla" else binary.parent.name,
                      runs[binary])


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"load_time.py: {failure}")
