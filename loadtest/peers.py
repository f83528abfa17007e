#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Regla beside llama.cpp, or ik_llama.cpp, on one model in the same run: first whether both say the
same, then tokens per second. Needs loadtest/llama/build.sh. Run again, it goes
on where it was stopped.

Two ways of taking turns. `pairs`: both engines in one process (loadtest/llama/turns.c), by slices
of some 50 ms, since the memory's pace may change from second to second; a round's ratio is the
median of its pairs. `programs`: `regla bench` and llama-bench (16 texts: llama-batched-bench) as
anyone runs them, one after the other.

Each test is measured without the peer's flash attention and with it, since which one is faster
depends on the processor and the length: what counts is the ratio to the faster one."""

import argparse
import json
import re
import sys
import time
from pathlib import Path

import peer_model
from measure import ROOT, Failure, Others, find_binary, machine, median, run
from table import Table

PEERS = ROOT / "build" / "peers"
BENCHES = ("llama-bench", "llama-batched-bench")
COLUMNS = ("way weights test flash round pairs regla_tokens_per_second llama_tokens_per_second ratio "
           "share_of_limit bandwidth_gbps").split()
KEY = COLUMNS[:5]
FLASH = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
MODEL = "gpt_neox-160m"
SAME_TOKENS = 128
SAME_TOKENS_OF_TEXT = 1000


def parse_test(text):
    """pp512, tg64, tg64@2048, tg32x16"""
    found = re.fullmatch(r"(pp|tg)(\d+)(?:@(\d+))?(?:x(\d+))?", text)
    if not found or found[1] == "pp" and found[4]:
        raise argparse.ArgumentTypeError(f"expected pp512, tg64, tg64@2048 or tg32x16, got {text}")
    kind, tokens, depth, texts = found.groups()
    return {"test": text, "kind": kind, "tokens": int(tokens), "depth": int(depth or 0),
            "texts": int(texts or 1)}


def flash_settings(names):
    unknown = [name for name in names if name not in FLASH]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected {', '.join(FLASH)}, got {unknown[0]!r}")
    return names


def programs(folder, names):
    """Those that build.sh has made, by name."""
    found = {name: folder / "bin" / name for name in names}
    for path in (folder / "name", *found.values()):
        if not path.exists():
            raise Failure(f"{path} is not there: loadtest/llama/build.sh")
    return found


def check_engine(turns, regla):
    """`turns` has an engine of its own, from when it was linked."""
    if turns.stat().st_mtime < regla.stat().st_mtime:
        raise Failure(f"{turns} is older than {regla}, so is the engine in it: loadtest/llama/build.sh")


def pairs_point(setup, weights, test, flash, options):
    """One run of `turns`."""
    lines = run([setup["turns"], "speed", setup["directory"],
                 file_of(setup, weights), ours(weights), test["kind"], test["tokens"], test["depth"],
                 test["texts"], options.seconds, FLASH[flash], options.load])
    pairs = [json.loads(line) for line in lines.splitlines()]
    if not pairs:
        raise Failure(f"{test['test']}: no pair in {options.seconds} s: more --seconds")
    return {"pairs": len(pairs), "ratio": median([pair["regla"] / pair["llama"] for pair in pairs]),
            **{name: median([pair[key] for pair in pairs]) for name, key in
               (("regla_tokens_per_second", "regla"), ("llama_tokens_per_second", "llama"),
                ("share_of_limit", "share_of_limit"), ("bandwidth_gbps", "bandwidth_gbps"))}}


def formats_of(label):
    """Of q4=Q4_K_M/16bit: regla's weights, the peer's type or "", regla's activations or ""."""
    formats, _, activations = label.partition("/")
    weights, _, kind = formats.partition("=")
    return weights, kind, activations


def ours(label):
    """What `turns` takes: without the peer's type."""
    weights, _, activations = formats_of(label)
    return f"{weights}/{activations}" if activations else weights


def file_of(setup, label):
    weights, kind, _ = formats_of(label)
    return setup["files"][kind or weights]


def quantize(setup, labels):
    """Adds the files of the peer's own types to setup."""
    files = setup["files"]
    for weights, kind, _ in map(formats_of, labels):
        if not kind and weights not in files:
            raise Failure(f"{weights}: expected one of {', '.join(files)}, or the peer's type with it: "
                          f"{weights}=Q4_0")
        if kind and kind not in files:
            source = Path(files["bf16"])
            files[kind] = source.with_name(f"{source.stem.removesuffix('-bf16')}-{kind}.gguf")
            if not files[kind].exists():
                print(f"writing {files[kind]}", file=sys.stderr)
                part = files[kind].with_suffix(".part")
                run([setup["turns"], "quantize", source, part, kind])
                part.rename(files[kind])


def regla_bench(setup, weights, test, _, options):
    weights, _, activations = formats_of(weights)
    pp, tg = (test["tokens"], 0) if test["kind"] == "pp" else (0, test["tokens"])
    found = json.loads(run([setup["regla"], "bench", "--model",
                            setup["directory"], "--weights", weights, "--kv", "f16",
                            "--activations", activations or "f32", "--pp", pp,
                            "--tg", tg, "--depth", test["depth"], "--batch", test["texts"],
                            "--repeat", options.repeat, "--json"]))
    return found["results"][0], found["bandwidth_gbps"]


def llama_bench(setup, weights, test, flash, options):
    """The median of its repeats."""
    file, threads = file_of(setup, weights), options.threads
    if test["texts"] > 1:
        length = test["texts"] * (test["depth"] + test["tokens"] + 1)
        lines = run([setup["llama-batched-bench"], "-m", file, "-t", threads,
                     "-c", length, "-npp", max(test["depth"], 1), "-npl",
                     ",".join([str(test["texts"])] * options.repeat), "-ntg", test["tokens"],
                     "-fa", flash, "--output-format", "jsonl"])
        return median(batched_speeds(lines))
    counts = ("-p", test["tokens"], "-n", 0) if test["kind"] == "pp" else \
        ("-p", 0, "-n", test["tokens"])
    found = json.loads(run([setup["llama-bench"], "-m", file, "-t", threads,
                            *counts, "-d", test["depth"], "-r", options.repeat, "-fa", flash,
                            "-o", "json"]))
    return median(found[0]["samples_ts"])


def batched_speeds(lines):
    return [json.loads(line)["speed_tg"] for line in lines.splitlines() if line.startswith("{")]


def programs_point(setup, weights, test, flash, options, regla_first):
    sides = {}
    for regla in (regla_first, not regla_first):
        side = regla_bench if regla else llama_bench
        sides[regla] = side(setup, weights, test, flash, options)
    (ours, bandwidth), theirs = sides[True], sides[False]
    return {"pairs": 1, "regla_tokens_per_second": ours["tokens_per_second"],
            "llama_tokens_per_second": theirs, "ratio": ours["tokens_per_second"] / theirs,
            "share_of_limit": ours["share_of_limit"], "bandwidth_gbps": bandwidth}


def quiet_point(number, label, point, options):
    """(point(), how often it was dropped since others disturbed it); None: that was always so."""
    for dropped in range(options.tries):
        others = Others()
        found = point()
        share = others.share()
        if share <= options.most_others:
            return found, dropped
        print(f"[{number}] {label}: dropped, others had {100 * share:.1f} % of the processor",
              file=sys.stderr, flush=True)
    return None, options.tries


def tokens_to_compare(setup, options):
    """How many, and a file of their ids: a GGUF file's model gets a text, one of random weights
    random tokens."""
    if not setup["given"]:
        return SAME_TOKENS, ()
    ids = run([setup["regla"], "tokenize", setup["directory"], "--format", "ids"],
              text=Path(options.text).read_text()).split()
    if len(ids) < SAME_TOKENS_OF_TEXT:
        raise Failure(f"{options.text}: expected {SAME_TOKENS_OF_TEXT} tokens, got {len(ids)}")
    file = Path(options.out) / "ids.txt"
    file.write_text(" ".join(ids[:SAME_TOKENS_OF_TEXT]) + "\n")
    return SAME_TOKENS_OF_TEXT, (file,)


def compare_models(saved, setup, options):
    """What both say to the same tokens, by weights. saved: where it is if that has been done."""
    try:
        found = json.loads(Path(saved).read_text())["same"]
    except (OSError, ValueError, KeyError):
        found = {}
    tokens, ids = tokens_to_compare(setup, options)
    for weights in options.weights:
        if weights not in found:
            found[weights] = json.loads(run([setup["turns"], "same", setup["directory"],
                                             file_of(setup, weights), ours(weights), tokens,
                                             *ids]))
        print("{weights}: {same_likeliest} of {positions} likeliest tokens the same; log-probabilities "
              "differ by {mean_difference} (mean) and {most_difference} (most); loss {loss_regla} and "
              "{loss_llama}; {parameters} parameters, weights of {weight_bytes_regla} and "
              "{weight_bytes_llama} bytes".format(weights=weights, **found[weights]), flush=True)
    return found


def check_agreement(same, options):
    """With f32, where both multiply the same numbers."""
    found = same.get("f32")
    share = found["same_likeliest"] / found["positions"] if found else 1
    if share < options.least_same:
        raise Failure(f"f32: expected {100 * options.least_same:g} % of the likeliest tokens the same, "
                      f"got {100 * share:.1f} %")


def measure(table, setup, options):
    """(rounds that were dropped, measurements that have none for that)"""
    dropped = missing = 0
    begun = time.monotonic()
    todo = [(way, weights, test, flash, number) for way, rounds in (("pairs", options.rounds),
                                                                    ("programs", options.programs))
            for number in range(1, rounds + 1) for weights in options.weights
            for test in options.tests for flash in options.flash
            if not table.has(way=way, weights=weights, test=test["test"], flash=flash,
                             round=number)]
    for number, (way, weights, test, flash, round_) in enumerate(todo, 1):
        if time.monotonic() - begun > options.stop_after:
            print(f"peers: {len(todo) - number + 1} left", file=sys.stderr)
            break
        label = f"{way} {weights} {test['test']} flash attention {flash} round {round_}"
        print(f"[{number} of {len(todo)}] {label}", file=sys.stderr, flush=True)
        point, times = quiet_point(
            number, label, lambda: pairs_point(setup, weights, test, flash, options)
            if way == "pairs" else
            programs_point(setup, weights, test, flash, options, round_ % 2 == 1), options)
        dropped += times
        if point is None:
            missing += 1
            continue
        table.add({"way": way, "weights": weights, "test": test["test"], "flash": flash,
                   "round": round_, **point})
    return dropped, missing


def summary(table):
    """A row of each measurement, with the least and the highest ratio of its rounds."""
    found = []
    for key in dict.fromkeys(tuple(row[name] for name in KEY[:-1]) for row in table.rows):
        names = dict(zip(KEY, key))
        ratios = table.values("ratio", **names)
        found.append({**names, "rounds": len(ratios),
                      **{name: median(table.values(name, **names)) for name in COLUMNS[len(KEY):]},
                      "lowest_ratio": min(ratios), "highest_ratio": max(ratios)})
    for row in found:
        row["counts"] = row["ratio"] == min(other["ratio"] for other in found if all(
            other[name] == row[name] for name in ("way", "weights", "test")))
    return found


def report(found, dropped, missing, options):
    print(f"rounds dropped in this run: {dropped} (others had more than "
          f"{100 * options.most_others:g} % of the processor)")
    if missing:
        print(f"rounds MISSING: {missing} (disturbed {options.tries} times each; run again)")
    if not found:
        print("nothing was measured")
        return
    print(f"{'way':9} {'weights':10} {'test':>10} {'flash':>6} {'rounds':>6} {'regla':>8} "
          f"{'llama.cpp':>9} {'ratio':>7} {'of rounds':>14} {'of limit':>8}")
    for row in found:
        print("{way:9} {weights:10} {test:>10} {flash:>6} {rounds:>6} {regla_tokens_per_second:>8.1f} "
              "{llama_tokens_per_second:>9.1f} {ratio:>6.3f}{mark} {lowest_ratio:>6.3f} - "
              "{highest_ratio:<5.3f} {share:>8.1f}".format(
                  share=100 * row["share_of_limit"], mark="*" if row["counts"] else " ", **row))
    print("* counts: the lower ratio of the two, which is that to the peer's faster setting")
    behind = [row for row in found if row["counts"] and row["ratio"] < 1]
    for row in behind:
        print("BEHIND {weights} {test} ({way}): {ratio:.3f}".format(**row))
    if not behind:
        print("ahead in all of them")


def parse(arguments):
    def items(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", help="regla (build/release/regla)")
    parser.add_argument("--model", default=MODEL, help="a preset of model_type "
                        f"{', '.join(peer_model.READ)}, or a GGUF file ({MODEL})")
    parser.add_argument("--text", default=ROOT / "README.md", metavar="FILE",
                        help="what both read of a GGUF file's model, to compare predictions (README.md)")
    parser.add_argument("--least-same", default=0.98, type=float, metavar="SHARE",
                        help="of likeliest tokens that must be the same with a GGUF file and f32 (0.98)")
    parser.add_argument("--weights", default="f32,bf16,q8", type=items,
                        help="with regla's activations after a slash, if not f32: bf16/16bit; the "
                             "peer's type after =, which it writes itself: q4=Q4_K_M/auto")
    parser.add_argument("--tests", default="pp512,tg64,tg64@2048,tg64@8000,tg32x16",
                        type=lambda text: [parse_test(item) for item in items(text)],
                        help="tokens read or generated, @ after so many, x texts at once")
    parser.add_argument("--rounds", default=5, type=int, help="of pairs")
    parser.add_argument("--seconds", default=15, type=float, help="of pairs in a round")
    parser.add_argument("--programs", default=0, type=int, help="rounds of whole programs")
    parser.add_argument("--most-others", default=0.03, type=float, metavar="SHARE",
                        help="of the processor that other processes may have in a round; beyond it "
                             "the round is dropped and measured again (0.03)")
    parser.add_argument("--tries", default=4, type=int, help="of a round that is disturbed")
    parser.add_argument("--repeat", default=3, type=int, help="of each program in a round")
    parser.add_argument("--flash", default="off,on", type=lambda text: flash_settings(items(text)),
                        help="settings of llama.cpp's flash attention: off, on, auto (as it likes)")
    parser.add_argument("--peer", default=PEERS, type=Path,
                        help="folder of the peer that build.sh has made (build/peers)")
    parser.add_argument("--load", default=-1, type=int, choices=(-1, 0, 1, 2),
                        help="how `pairs` has llama.cpp load: -1 as it likes, 0 read, 1 map; "
                             "2 repack, as ik_llama.cpp can")
    parser.add_argument("--stop-after", default=float("inf"), type=float,
                        help="seconds after which no further measurement begins")
    parser.add_argument("--out", default="peers", help="folder for peers.csv and peers.json")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        regla = find_binary(options.binary)
        found = programs(options.peer, ("turns", *(BENCHES if options.programs else ())))
        check_engine(found["turns"], regla)
        given = options.model.endswith(".gguf")
        directory, files = (peer_model.given if given else peer_model.make)(
            Path(options.model) if given else options.model, PEERS / "models",
            options.peer / "source" / "gguf-py")
        setup = {"regla": regla, "directory": directory, "files": files, "given": given, **found}
        quantize(setup, options.weights)
        settings = {**machine(regla), "model": options.model,
                    "llama": (options.peer / "name").read_text().strip(),
                    "load": options.load, "seconds": options.seconds, "repeat": options.repeat}
        options.threads = settings["cores"]
        table = Table(f"{options.out}/peers.csv", COLUMNS, KEY, settings)
        same = compare_models(table.path.with_suffix(".json"), setup, options)
        table.write_json(same=same)
        if given:
            check_agreement(same, options)
        dropped, missing = measure(table, setup, options)
    except Failure as failure:
        print(f"peers: {failure}", file=sys.stderr)
        return 1
    rows = summary(table)
    table.write_json(same=same, summary=rows, dropped_in_last_run=dropped)
    report(rows, dropped, missing, options)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
