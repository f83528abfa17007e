#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Open-loop load on anything OpenAI-shaped: Poisson arrivals; percentiles of the time to the first
token and between tokens; goodput under limits of both; errors by kind. --search finds the highest
rate that holds the limits, --soak fails when the server's memory, threads or descriptors grow."""

import argparse
import asyncio
import csv
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from generator import PERCENTILES, Limits, Target, run_load, summarize
from measure import Failure, draw, find_binary, machine, serving, shipped_model
from soak import growth, soak
from workload import Lengths, Workload

SOAK_SECONDS = 3600
WARM_UP_PART = -1


def share(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got {text}")
    return value


def positive(text):
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def lengths(text):
    try:
        return Lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def peer(text):
    name, sign, url = text.partition("=")
    if not (name and sign and url.startswith("http")):
        raise argparse.ArgumentTypeError(f"expected name=http://host:port, got {text!r}")
    return Target(name, url.rstrip("/").removesuffix("/v1"))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    server = parser.add_argument_group("what is loaded")
    server.add_argument("--binary", help="regla (build/release/regla), started here with --preset "
                        "or --model unless --url or --peer alone is given")
    server.add_argument("--preset", help="e.g. regla-160m")
    server.add_argument("--model", help="folder of a model (the shipped one)")
    server.add_argument("--weights", default="auto")
    server.add_argument("--url", type=lambda text: peer("regla=" + text), help="a running server")
    server.add_argument("--pid", type=int, help="its process, for --soak")
    server.add_argument("--peer", action="append", type=peer, default=[], metavar="NAME=URL",
                        help="another server that gets the same load, in turns")
    load = parser.add_argument_group("the load")
    load.add_argument("--rate", type=positive, default=4.0, help="requests per second (4)")
    load.add_argument("--duration", type=positive, help="seconds of arrivals (30); of a soak (3600)")
    load.add_argument("--warm-up", type=float, default=2.0,
                      help="seconds of such load before what counts, but for a soak (2)")
    load.add_argument("--prompt-tokens", type=lengths, default=Lengths("uniform:16:128"),
                      help="such as 64, exponential:64, lognormal:64:0.8:1024 (uniform:16:128)")
    load.add_argument("--max-tokens", type=lengths, default=Lengths("uniform:16:64"),
                      help="likewise (uniform:16:64)")
    load.add_argument("--shared", type=share, default=0.0,
                      help="share of prompts that begin with a shared prefix")
    load.add_argument("--prefix-tokens", type=int, default=256, help="of a shared prefix (256)")
    load.add_argument("--prefixes", type=int, default=4, help="how many shared prefixes there are (4)")
    load.add_argument("--sessions", type=share, default=0.0, help="share that continues a session")
    load.add_argument("--disconnect", type=share, default=0.0, help="share that leaves midway")
    load.add_argument("--slow", type=share, default=0.0, help="share that reads with pauses")
    load.add_argument("--vocabulary", type=int, default=250, help="token ids are drawn below it (250)")
    load.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    load.add_argument("--timeout", type=positive, default=120.0, help="seconds of one request (120)")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--first-ms", type=positive, default=1000.0, help="to the first token (1000)")
    limits.add_argument("--between-ms", type=positive, default=100.0,
                        help="between tokens, mean of a request (100)")
    limits.add_argument("--share", type=share, default=0.95, help="of requests that must hold them (0.95)")
    limits.add_argument("--most-errors", type=int, default=0, help="more of them: exit 1 (0)")
    modes = parser.add_argument_group("modes")
    modes.add_argument("--search", action="store_true",
                       help="from --rate on: double it while the limits hold, then bisect")
    modes.add_argument("--search-steps", type=int, default=8, help="runs of a search, at most (8)")
    modes.add_argument("--soak", action="store_true")
    modes.add_argument("--round-seconds", type=positive, default=30.0, help="of load in a soak's round (30)")
    modes.add_argument("--state-memory", default="128M", help="of a server started here for a soak, "
                       "on the device and again in host memory: full soon, for that is no growth (128M)")
    modes.add_argument("--tolerated-mib", type=float, default=16.0, help="growth of memory in a soak (16)")
    parser.add_argument("--out", default="load", help="folder for load.json, .csv and plots")
    parser.add_argument("--no-plots", action="store_true", help="draw none")
    options = parser.parse_args(arguments)
    if options.duration is None:
        options.duration = SOAK_SECONDS if options.soak else 30
    return options


def start_server(options, stack):
    """Our own server, if one is asked for."""
    if options.url or (options.peer and not (options.preset or options.model)):
        return []
    flags = {"preset": options.preset} if options.preset else {
        "model": options.model or shipped_model()}
    if options.soak:
        flags |= {"state_memory": options.state_memory, "host_state_memory": options.state_memory}
    server = stack.enter_context(serving(find_binary(options.binary), weights=options.weights,
                                         **flags))
    return [Target("regla", server.url, pid=server.process.pid)]


def targets_of(options, stack):
    found = start_server(options, stack)
    if options.url:
        options.url.pid = options.pid
        found = [options.url]
    return found + options.peer


def workload_of(options):
    return Workload(options.prompt_tokens, options.max_tokens, options.shared, options.prefix_tokens,
                    options.prefixes, options.sessions, options.disconnect, options.slow,
                    options.vocabulary, options.seed)


async def one_run(target, rate, options, part):
    """`part`: of the workload's arrivals; what was sent before would be answered from the cache."""
    arrivals = workload_of(options).arrivals(rate, options.duration, part)
    outcomes, seconds = await run_load(target, arrivals, options.timeout, f"run-{part}")
    limits = Limits(options.first_ms, options.between_ms, options.share)
    run = summarize(target, rate, arrivals, outcomes, seconds, limits)
    print_run(run)
    return run


async def warm_up(target, options):
    arrivals = workload_of(options).arrivals(options.rate, options.warm_up, WARM_UP_PART)
    await run_load(target, arrivals, options.timeout, "warm-up")


async def search(target, options):
    """All runs, and the highest rate that held the limits (None: not even the first)."""
    runs, held, broke, rate = [], None, None, options.rate
    for step in range(options.search_steps):
        run = await one_run(target, rate, options, step)
        runs.append(run)
        if run["holds"]:
            held = rate
        else:
            broke = rate
        if held is None:
            rate = broke / 2
        else:
            rate = 2 * held if broke is None else (held * broke) ** 0.5
    return runs, held


def cell(value):
    return "-" if value is None else f"{value:.1f}"


RANKS = " ".join(f"p{rank:<2}".rjust(7) for rank in PERCENTILES)
HEAD = (f"{'target':<12} {'rate':>7} {'requests':>8} {'tokens/s':>9}   {'first token, ms':>31}   "
        f"{'between tokens, ms':>31} {'good':>6} {'goodput':>8}  errors\n"
        f"{'':<12} {'/s':>7} {'':>8} {'':>9}   {RANKS}   {RANKS} {'%':>6} {'/s':>8}")


def print_run(run):
    latencies = "".join("   " + " ".join(f"{cell(value):>7}" for value in run[name].values())
                        for name in ("first_ms", "between_ms"))
    errors = ", ".join(f"{count} {kind}" for kind, count in run["errors"].items()) or "none"
    print(f"{run['target']:<12} {run['rate']:>7.2f} {run['requests']:>8} "
          f"{run['tokens_per_second']:>9.1f}{latencies} {run['good_share'] * 100:>6.1f} "
          f"{run['goodput']:>8.2f}  {errors}", flush=True)


async def load_all(targets, options):
    """Targets in turns: (what goes into load.json, whether all is well)."""
    for target in targets:
        await warm_up(target, options)
    print(HEAD)
    if options.search:
        found = {target.name: await search(target, options) for target in targets}
        for name, (_, held) in found.items():
            print(f"{name}: " + (f"{held:.2f} requests/s hold the limits" if held else
                                 "no rate that was tried holds the limits"))
        runs = [run for runs, _ in found.values() for run in runs]
        return {"runs": runs, "highest_rate": {name: held for name, (_, held) in found.items()}}, True
    runs = [await one_run(target, options.rate, options, 0) for target in targets]
    errors = sum(sum(run["errors"].values()) for run in runs)
    return {"runs": runs}, errors <= options.most_errors


async def soak_one(target, options):
    arrivals, outcomes, samples = await soak(target, workload_of(options), options.rate,
                                             options.duration, options.round_seconds,
                                             options.timeout)
    limits = Limits(options.first_ms, options.between_ms, options.share)
    run = summarize(target, options.rate, arrivals, outcomes, samples[-1]["seconds"], limits)
    print(HEAD)
    print_run(run)
    found = growth(samples, options.tolerated_mib * 2**20)
    for name, change in found.items():
        print(f"{'FAIL' if change['grown'] else 'PASS'}  {name}: {change['before']:.0f} at first, "
              f"{change['after']:.0f} at last, {len(samples)} rounds")
    grown = any(change["grown"] for change in found.values())
    errors = sum(run["errors"].values())
    return {"runs": [run], "soak": {"samples": samples, "growth": found}}, \
        not grown and errors <= options.most_errors


async def run_mode(targets, options):
    if options.soak:
        if len(targets) != 1:
            raise Failure("--soak takes one server")
        return await soak_one(targets[0], options)
    return await load_all(targets, options)


def settings_of(options):
    """Of the command line, what is not about files, and of the machine, what is known."""
    skipped = ("binary", "out", "no_plots", "url", "peer", "pid")
    settings = {name: str(value) if isinstance(value, Lengths) else value
                for name, value in vars(options).items() if name not in skipped}
    try:
        settings |= machine(find_binary(options.binary))
    except Failure:
        pass  # peers alone need no regla
    return settings


def flat(run):
    """A run as a line of CSV: a column for each percentile, errors as their sum."""
    plain = {name: value for name, value in run.items() if name not in ("errors", "details")}
    row = {"errors": sum(run["errors"].values())}
    for name, value in plain.items():
        row |= {f"{rank}_{name}": v for rank, v in value.items()} if isinstance(value, dict) else {
            name: value}
    return row


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write(result, options):
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "load.json").write_text(
        json.dumps({"settings": settings_of(options), **result}, indent=1) + "\n")
    write_csv(out / "load.csv", [flat(run) for run in result["runs"]])
    if "soak" in result:
        write_csv(out / "soak.csv", result["soak"]["samples"])


def main(arguments=None):
    options = parse(arguments)
    try:
        with ExitStack() as stack:
            result, good = asyncio.run(run_mode(targets_of(options, stack), options))
    except (Failure, AssertionError) as failure:
        print(f"load: {failure}", file=sys.stderr)
        return 1
    write(result, options)
    if options.soak:
        draw("soak", result["soak"]["samples"], options)
    elif options.search:
        draw("rates", result["runs"], options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
