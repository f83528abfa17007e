#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two shapes in turns: what share of memory's limit each one's generation reaches, and what share of
the peak of what multiplies its prompts, in one run. The difference says what a shape costs beside the
other: a machine's memory changes its pace from minute to minute, and both meet the same."""

import argparse
import json
import statistics
import sys

from measure import Failure, find_binary, run

SAME_PACE = 0.85  # of the fastest memory that a slice met: slower slices are counted apart


def measured(binary, preset, options):
    command = [binary, "bench", "--preset", preset, "--weights", options.weights, "--activations",
               "f32", "--pp", options.pp, "--tg", options.tg, "--repeat", 1, "--json"]
    return json.loads(run(command))["results"]


def shares(rounds, preset, weights, test):
    """[(GB/s or None, share of the limit)] of all rounds."""
    found = []
    for results in rounds[preset]:
        for result in results:
            if (result["weights"], result["test"]) != (weights, test):
                continue
            if "paces" in result and result["paces"]:
                found += [(pace["bandwidth_gbps"], pace["share_of_limit"])
                          for pace in result["paces"] for _ in range(pace["slices"])]
            else:
                found.append((None, result["share_of_limit"]))
    return found


def print_row(rounds, presets, weights, test):
    rows = [shares(rounds, preset, weights, test) for preset in presets]
    paces = [pace for row in rows for pace, _ in row if pace]
    fastest = max(paces, default=0)
    for name, wanted in (("fast", True), ("slow", False)) if paces else (("", None),):
        kept = [[share for pace, share in row if wanted is None or
                 pace and (pace >= SAME_PACE * fastest) == wanted] for row in rows]
        if not all(kept):
            continue
        middle = [100 * statistics.median(row) for row in kept]
        print(f"{weights:<6} {test:<8} {name:<5} " +
              " ".join(f"{share:8.1f}% of {len(row):3}" for share, row in zip(middle, kept)) +
              f"   {middle[0] - middle[1]:+6.1f} points", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs=2, help="the second is what the first is compared with")
    parser.add_argument("--weights", default="f32,bf16,q8")
    parser.add_argument("--pp", default="512")
    parser.add_argument("--tg", default="64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--binary")
    options = parser.parse_args()
    try:
        binary = find_binary(options.binary)
        rounds = {preset: [] for preset in options.presets}
        for _ in range(options.rounds):
            for preset in options.presets:
                rounds[preset].append(measured(binary, preset, options))
    except Failure as failure:
        sys.exit(f"shares: {failure}")
    print(f"{'':<21} {options.presets[0]:>16} {options.presets[1]:>16}")
    tests = dict.fromkeys((result["weights"], result["test"])
                          for result in rounds[options.presets[0]][0])
    for weights, test in tests:
        print_row(rounds, options.presets, weights, test)


if __name__ == "__main__":
    main()
