#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The latency and memory study over HTTP: what `regla study` measures of the engine, beside the same
asked of `regla serve` by a client; the difference is what the server costs. Run again, it goes on
where it was stopped."""

import argparse
import sys

from measure import (PROMPT_TOKENS, ROOT, WARM_UP_TOKENS, Failure, Replies, draw, find_binary, machine,
                     median, run, serving, spread, status_bytes)
from table import Table

DEFAULT = "softmax,fast_decay,regla,hybrid_regla,transnormer_t1,transnormer_t2"
LENGTHS = "64,128,256,512,1024,2048,4096,8192"
LONG_TOKENS = 1024
# As `regla study` writes them, with who was measured before them, and how much of the time was in the
# engine's steps behind them.
COLUMNS = ("side system length batch repeat total_s ttft_s tokens_per_second weights_bytes "
           "recurrent_bytes kv_bytes workspace_bytes process_peak_bytes device_peak_bytes "
           "step_s").split()
KEY = COLUMNS[:5]


def engine_point(binary, point, options):
    spec = "{system}:{length}:{batch}:{repeat}".format(**point)
    line = run([binary, "study", "--point", spec, "--weights", options.weights])
    row = dict(zip(COLUMNS[1:], line.strip().split(",")))
    return {**row, "step_s": row["total_s"]}


def http_point(binary, point, options):
    """One round: as many clients at once as the batch has texts."""
    small = point["system"] + "-6l"
    preset = small if (ROOT / "models" / "presets" / f"{small}.json").exists() else point["system"]
    batch, length = point["batch"], point["length"]
    # What a text costs, not what is kept of it for later: no checkpoints, as in the engine's study.
    with serving(binary, preset=preset, weights=options.weights, max_running=batch,
                 environment={"REGLA_PREFIX_CACHE": "false"}) as server:
        with Replies(server.url, batch, WARM_UP_TOKENS, 0) as replies:
            replies.take(batch)
        server.wait_idle()
        before = server.metrics()
        with Replies(server.url, batch, length, point["repeat"]) as replies:
            times = replies.take(batch)
            after = server.metrics()
        return http_row(server, point, max(ended for _, ended in times), before, after)


def http_row(server, point, total_s, before, after):
    def grown(name):
        return sum(value - before[key] for key, value in after.items() if key[0] == name)

    def peak(component):
        return int(server.metric("regla_memory_peak_bytes", component=component))

    first = "regla_time_to_first_token_seconds"
    return {**point, "total_s": total_s, "ttft_s": grown(first + "_sum") / grown(first + "_count"),
            "tokens_per_second": point["batch"] * point["length"] / total_s,
            "weights_bytes": peak("weights"), "recurrent_bytes": peak("recurrent_state"),
            "kv_bytes": peak("kv_cache"), "workspace_bytes": peak("workspace"),
            "process_peak_bytes": status_bytes(server.process.pid, "VmHWM"),
            "device_peak_bytes": 0,
            "step_s": min(total_s, grown("regla_engine_step_seconds_total"))}


def points(options):
    """Systems next to each other, and both sides of one: a drift of the machine hits all alike."""
    for length in options.lengths:
        for repeat in range(1, (options.repeat if length <= LONG_TOKENS else 1) + 1):
            for batch in options.batch:
                for system in options.systems:
                    yield {"system": system, "length": length, "batch": batch, "repeat": repeat}


def measure(table, binary, options):
    todo = [(side, point) for point in points(options) for side in ("engine", "http")
            if not table.has(side=side, **point)]
    for number, (side, point) in enumerate(todo, 1):
        print(f"[{number} of {len(todo)}] {side} {point['system']} {point['length']} tokens, batch "
              f"{point['batch']}", file=sys.stderr)
        row = (engine_point if side == "engine" else http_point)(binary, point, options)
        table.add({"side": side, **row})


def compare(table, options):
    """A row for each point of which both sides were measured."""
    rows = []
    for batch in options.batch:
        for system in options.systems:
            for length in options.lengths:
                key = {"system": system, "length": length, "batch": batch}
                sides = {side: table.values("total_s", side=side, **key)
                         for side in ("engine", "http")}
                if not all(sides.values()):
                    continue
                engine, http = (median(sides[side]) * 1e3 / length for side in ("engine", "http"))
                outside = median([total - step for total, step in zip(
                    *(table.values(name, side="http", **key) for name in ("total_s", "step_s")))])
                rows.append({**key, "engine_ms": engine, "http_ms": http, "overhead_ms": http - engine,
                             "overhead_percent": (http / engine - 1) * 100,
                             "outside_steps_ms": outside * 1e3 / length,
                             "spread_percent": max(map(spread, sides.values())) * 100,
                             "engine_state_bytes": state_bytes(table, "engine", key),
                             "http_state_bytes": state_bytes(table, "http", key)})
    return rows


def state_bytes(table, side, key):
    return max(a + b for a, b in zip(table.values("recurrent_bytes", side=side, **key),
                                     table.values("kv_bytes", side=side, **key)))


def report(rows):
    print(f"\n{'system':<16} {'length':>6} {'batch':>5} {'engine':>9} {'HTTP':>9} {'overhead':>9} "
          f"{'':>7} {'outside':>9} {'spread':>7} {'state, engine':>14} {'HTTP':>12}")
    print(f"{'':<16} {'':>6} {'':>5} {'ms/token':>9} {'ms/token':>9} {'ms/token':>9} {'%':>7} "
          f"{'steps, ms':>9} {'%':>7} {'bytes':>14} {'bytes':>12}")
    for row in rows:
        print("{system:<16} {length:>6} {batch:>5} {engine_ms:>9.3f} {http_ms:>9.3f} "
              "{overhead_ms:>9.3f} {overhead_percent:>7.1f} {outside_steps_ms:>9.3f} "
              "{spread_percent:>7.1f} {engine_state_bytes:>14} {http_state_bytes:>12}".format(**row))
    print(f"\nA token of a text: (prompt of {PROMPT_TOKENS} and all tokens) / length, medians of the "
          "repeats; with several\ntexts at once, time of a step. Outside steps: of HTTP's, what was "
          "not in the engine's own steps; that\ncompares nothing with another run. Spread: of the "
          "side that has more.")


def numbers(text):
    values = [int(part) for part in text.split(",")]
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers from 1, got {text!r}")
    return values


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", help="regla (build/release/regla)")
    parser.add_argument("--systems", default=DEFAULT, type=lambda text: text.split(","),
                        help="presets, \"-6l\" left out, separated by commas")
    parser.add_argument("--lengths", default=LENGTHS, type=numbers)
    parser.add_argument("--batch", default="1", type=numbers, help="texts at once, e.g. 1,16,64")
    parser.add_argument("--repeat", default=3, type=int,
                        help="runs of each point up to 1,024 tokens; above: one")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--out", default="study-http", help="folder for study.csv, .json and plots")
    parser.add_argument("--quick", action="store_true", help="lengths 64 and 256, one run")
    parser.add_argument("--no-plots", action="store_true", help="draw none")
    options = parser.parse_args(arguments)
    if options.quick:
        options.lengths, options.repeat = [64, 256], 1
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        binary = find_binary(options.binary)
        settings = {**machine(binary), "weights": options.weights}
        table = Table(f"{options.out}/study.csv", COLUMNS, KEY, settings)
        table.write_json()
        measure(table, binary, options)
    except (Failure, AssertionError) as failure:
        print(f"study: {failure}", file=sys.stderr)
        return 1
    rows = compare(table, options)
    table.write_json(comparison=rows)
    report(rows)
    draw("study", rows, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
