#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each thing that can be switched off in the CUDA backend brings: `regla bench` as it is, then
with one thing other than it is, in one table. Each run is a process of its own, since the backend
reads its switches as it starts. Noise is measured, too: the first setting runs twice, and the plain
run, which comes first, once more at the end. A ratio that differs from 1 by no more than such a pair
of equal runs shows nothing; the last lines say which do so.

Usage: cuda_switches.py --regla PROGRAM --bench "ARGUMENTS" [--bench ...] [--csv FILE]
           --without all|NAME,...          switches of engine/cuda/switches.h, each off alone, and
                                           all of these together; the ratio is on / off
           --environment NAME=VALUE,...    a variable, each value; the ratio is set / not set
Lines that begin with "figure: " are for the table of cuda_session.sh. Status: 1 when a run failed,
124 when one took longer than --each seconds: it ends all, as the device may have stopped.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

SWITCHES = Path(__file__).resolve().parents[1] / "engine/cuda/switches.h"
AGAIN = ", again"
COLUMNS = "setting test batch tokens_per_second spread share_of_limit ratio".split()


def switches():
    return re.findall(r'\bX\([A-Z]+, "([a-z]+)"\)', SWITCHES.read_text())


def without(names):
    """The environment with these off, besides what is off already."""
    before = os.environ.get("REGLA_CUDA_WITHOUT")
    return {"REGLA_CUDA_WITHOUT": ",".join(([before] if before else []) + names)}


def settings(arguments):
    """(what a row is called, its environment)"""
    if arguments.without:
        names = switches() if arguments.without == "all" else arguments.without.split(",")
        rows = [(f"without {name}", without([name])) for name in names]
        return rows + ([("without all of them", without(names))] if len(names) > 1 else [])
    name, values = arguments.environment.split("=", 1)
    return [(f"{name}={value}", {name: value}) for value in values.split(",")]


def measure(arguments, environment):
    """What one setting's runs found; None where one failed, which has then been said."""
    found = []
    for bench in arguments.bench:
        command = [arguments.regla, "bench", "--device", "cuda", *bench.split(), "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=arguments.each,
                                env={**os.environ, **environment})
        if result.returncode:
            print(f"{' '.join(command)}: status {result.returncode}: {result.stderr.strip()[-300:]}")
            return None
        found += json.loads(result.stdout)["results"]
    return found


class Report:
    def __init__(self, arguments):
        self.on_over_off = bool(arguments.without)
        self.base = self.noise = None
        self.runs, self.rows = {}, []
        self.file = open(arguments.csv, "a", newline="") if arguments.csv else None  # noqa: SIM115
        self.csv = csv.DictWriter(self.file, COLUMNS, extrasaction="ignore") if self.file else None
        if self.csv and not self.file.tell():
            self.csv.writeheader()

    def heading(self, found):
        names = [f"{one['model']} {one['test']}, batch {one['batch']}" for one in found]
        print(f"{'tokens/s, and ' + ('on / off' if self.on_over_off else 'set / not set'):<34}",
              *(f"{name:>30}" for name in names))
        rates = (f"{name} {one['tokens_per_second']:.1f}/s {100 * one['share_of_limit']:.1f} %"
                 for name, one in zip(names, found))
        print("figure:", ", ".join(rates))

    def ratios(self, found, base):
        ratios = [one["tokens_per_second"] / other["tokens_per_second"]
                  for one, other in zip(found, base)]
        return [1 / ratio for ratio in ratios] if self.on_over_off else ratios

    def row(self, name, found):
        if self.base is None:
            self.base = found
            self.heading(found)
        first = self.runs.get(name.removesuffix(AGAIN)) if name.endswith(AGAIN) else None
        ratios = self.ratios(found, first or self.base)
        if first:
            self.noise = [max(noise, abs(ratio - 1)) for noise, ratio in
                          zip(self.noise or [0] * len(ratios), ratios)]
        elif found is not self.base:
            self.rows.append((name.removeprefix("without "), ratios))
        self.runs[name] = found
        print(f"{name:<34}", *(f"{one['tokens_per_second']:>21.1f} {ratio:>7.3f}x"
                               for one, ratio in zip(found, ratios)), flush=True)
        if found is not self.base:
            print(f"figure: {name.removeprefix('without ')}",
                  " ".join(f"{ratio:.3f}x" for ratio in ratios), flush=True)
        if self.csv:
            for one, ratio in zip(found, ratios):
                self.csv.writerow({**one, "setting": name, "ratio": f"{ratio:.4f}"})
            self.file.flush()

    def end(self):
        """How far equal runs are apart, and which settings no further, test by test."""
        if self.noise is None:
            return
        print("figure: noise", " ".join(f"{100 * noise:.1f} %" for noise in self.noise))
        for test, noise in enumerate(self.noise):
            names = [name for name, ratios in self.rows if abs(ratios[test] - 1) <= noise]
            one = self.base[test]
            print(f"figure: within noise in {one['test']} b{one['batch']}:", ", ".join(names) or "none")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--regla", default="build/cuda/regla")
    parser.add_argument("--bench", action="append", required=True)
    parser.add_argument("--each", type=float, default=30, help="seconds of a run at most")
    parser.add_argument("--csv", help="appends the table to it")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--without")
    what.add_argument("--environment")
    arguments = parser.parse_args()
    report, status = Report(arguments), 0
    base, (first, *others) = ("as it is", {}), settings(arguments)
    again = [(name + AGAIN, environment) for name, environment in (first, base)]
    for name, environment in [base, first, again[0], *others, again[1]]:
        brief = name.removeprefix("without ")
        try:
            found = measure(arguments, environment)
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {arguments.each:g} s\nfigure: {brief} stopped")
            return 124
        if found:
            report.row(name, found)
        else:
            print(f"{name}: failed\nfigure: {brief} failed", flush=True)
            status = 1
        if report.base is None:
            return 1
    report.end()
    return status


if __name__ == "__main__":
    sys.exit(main())
