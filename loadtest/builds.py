#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of regla in turns in one process, by slices of some 50 ms: how many times as fast the
new one is, by the pace at which memory was read around them. For what the sources say of one way
against another.

OLD and NEW are commits, or folders of sources as they are: `.` is this tree. Each is built into
build/builds; one whose interface is too far from today's does not compile."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from measure import ROOT, Failure, run
from peers import parse_test

BUILDS = ROOT / "build" / "builds"
SOURCES = ROOT / "loadtest" / "builds"
PACKAGES = "jansson libpcre2-8 libutf8proc libxxhash".split()  # xxhash: before 0.2.0
COMPILER = ["cc", "-O2", "-Wall", "-Wextra", "-std=gnu11"]


def tree_of(name):
    """(folder of the build, its sources)"""
    if (Path(name) / "CMakeLists.txt").exists():
        sources = Path(name).resolve()
        return BUILDS / ("folder" + str(sources).replace("/", "-")), sources
    found = subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", "--quiet", "--short=12",
                            f"{name}^{{commit}}"], capture_output=True, text=True)
    if found.returncode:
        raise Failure(f"expected a commit, or a folder of sources, got {name!r}")
    folder = BUILDS / found.stdout.strip()
    sources = folder / "sources"
    if not sources.exists():
        unpacked = folder / "unpacking"
        unpacked.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", name], stdout=subprocess.PIPE,
                                 check=True)
        subprocess.run(["tar", "x", "-C", unpacked], input=archive.stdout, check=True)
        unpacked.rename(sources)
    return folder, sources


def compile_with(log, command):
    """Appends to the log what a compiler says; the first error is what fails."""
    with open(log, "a+") as said:
        began = said.tell()
        if subprocess.run([str(part) for part in command], stdout=said, stderr=said).returncode == 0:
            return
        said.seek(began)
        lines = said.read().splitlines() or [f"{command[0]} failed"]
        raise Failure(f"{next((line for line in lines if 'error' in line.lower()), lines[-1])} ({log})")


def build(name):
    """The shared object of one side."""
    folder, sources = tree_of(name)
    side, libraries, log = folder / "side.so", folder / "build", folder / "build.log"
    print(f"builds: {name} in {folder}", file=sys.stderr, flush=True)
    folder.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    compile_with(log, ["cmake", "-S", sources, "-B", libraries, "-DCMAKE_BUILD_TYPE=Release",
                       "-DREGLA_TESTS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"])
    # bench was a part of the server until 0.2
    bench = "bench" if (sources / "bench").exists() else "server"
    compile_with(log, ["cmake", "--build", libraries, "-j", os.cpu_count(), "--target", f"regla_{bench}"])
    flags = run(["pkg-config", "--cflags", "--libs", *PACKAGES]).split()
    # its own headers before ours, of which it sees side.h alone
    compile_with(log, [*COMPILER, "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", side, f"-I{sources}",
                       f'-DBENCH_TEXT_H="{bench}/bench_text.h"',
                       "-idirafter", ROOT, SOURCES / "side.c", "-Wl,-Bsymbolic", "-Wl,--start-group",
                       *(library for layer in (bench, "engine", "lib")  # lib: a part of the engine until 0.3
                         if (library := libraries / f"libregla_{layer}.a").exists()),
                       "-Wl,--end-group", *flags, "-lm", "-lpthread"])
    return side


def build_turns():
    turns = BUILDS / "turns"
    run([*COMPILER, "-D_GNU_SOURCE", f"-I{ROOT}", "-o", turns, SOURCES / "turns.c",
         ROOT / "bench" / "bench_paces.c", ROOT / "bench" / "statistics.c", "-ldl", "-lm"])
    return turns


def measure(turns, old, new, options):
    """Prints a line for each test, weights and pace, and returns whether each has one."""
    print(f"{'weights':8} {'test':>10} {'memory':>10} {'old':>9} {'new':>9} {'new / old':>9}  95% certain")
    missing = False
    for weights in options.weights:
        for test in options.tests:
            found = json.loads(run([turns, old, new, options.preset, weights, options.kv,
                                    options.activations, test["kind"], test["tokens"],
                                    test["depth"], test["texts"], options.seconds]))
            for pace in found:
                print("{weights:8} {test:>10} {bandwidth_gbps:5.1f} GB/s {old:9.1f} {new:9.1f} {ratio:9.3f}  "
                      "{low:.3f} to {high:.3f}, of {pairs} pairs".format(
                          weights=weights, test=test["test"], **pace), flush=True)
            if not found:
                print(f"{weights:8} {test['test']:>10} no pair at one pace in {options.seconds:g} s")
                missing = True
    return not missing


def parse(arguments):
    def items(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a commit, or a folder of sources")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="likewise (.: this tree)")
    parser.add_argument("--preset", default="regla-160m")
    parser.add_argument("--weights", default="f32,bf16,q8", type=items)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--activations", default="f32")
    parser.add_argument("--tests", default="pp512,tg64", type=lambda text: list(map(parse_test, items(text))),
                        help="tokens read or generated, @ after so many, x texts at once: pp512, "
                             "tg64@8000, tg32x16 (pp512,tg64)")
    parser.add_argument("--seconds", default=30, type=float, help="of pairs, for each test and weights")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        BUILDS.mkdir(parents=True, exist_ok=True)
        turns = build_turns()
        old, new = build(options.old), build(options.new)
        if old == new:
            # one object opened twice would be one engine
            raise Failure(f"both are {old}: expected two builds")
        return 0 if measure(turns, old, new, options) else 1
    except Failure as failure:
        print(f"builds: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
