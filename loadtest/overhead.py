#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the server costs beside the engine: `regla bench` and clients of `regla serve` take turns on
one preset. Verdicts: a single stream's time per token (at most 5 % more than the engine's), the
share of the engine's tokens/s that reaches many streams (at least 85 %), and how much of their
steps the device waits for the host (at most 10 %). And the CPU time that the server takes for a
token outside the engine. Run again, it goes on where it was stopped."""

import argparse
import json
import sys

from measure import (VOCABULARY, WARM_UP_TOKENS, Failure, Replies, draw, find_binary, machine,
                     median, own_seconds, run, serving, spread)
from table import Table

MOST_OVERHEAD_PERCENT = 5
LEAST_SHARE_PERCENT = 85
MOST_HOST_PERCENT = 10
CAUSES = ("device", "host", "idle")
COLUMNS = ("side preset streams length repeat tokens_per_second step_share "
           "own_cpu_us_per_token device_ms host_ms idle_ms texts_per_step").split()
KEY = COLUMNS[:5]


def model_of(point, options):
    return {"model": options.model} if options.model else {"preset": point["preset"]}


def engine_point(binary, point, options):
    """Generation only: neither a prompt, nor the choice of tokens."""
    flags = [part for name, value in model_of(point, options).items() for part in (f"--{name}", value)]
    found = json.loads(run([binary, "bench", *flags, "--weights", options.weights, "--device",
                            options.device, "--pp", 0, "--tg", point["length"], "--batch",
                            point["streams"], "--repeat", 1, "--json"]))
    return {**point, "side": "engine", "tokens_per_second": found["results"][0]["tokens_per_second"],
            "step_share": 1.0, "own_cpu_us_per_token": 0.0,
            **{f"{cause}_ms": 0.0 for cause in CAUSES}, "texts_per_step": point["streams"]}


def http_point(binary, point, options):
    """From the first request to the last byte of the last reply, on a server as anyone starts it."""
    streams, length = point["streams"], point["length"]
    with serving(binary, **model_of(point, options), weights=options.weights,
                 device=options.device, max_running=max(streams, 128)) as server:
        with Replies(server.url, streams, WARM_UP_TOKENS, 0,
                     vocabulary=options.vocabulary) as replies:
            replies.take(streams)
        server.wait_idle()
        own, before = own_seconds(server), server.metrics()
        with Replies(server.url, streams, length, point["repeat"],
                     options.temperature, options.vocabulary) as replies:
            times = replies.take(streams)
            own, after = own_seconds(server) - own, server.metrics()

    def grown(name, **labels):
        return sum(value - before[key] for key, value in after.items()
                   if key[0] == name and set(labels.items()) <= key[1])

    seconds = max(ended for _, ended in times)
    tokens, steps = grown("regla_generated_tokens_total"), grown("regla_engine_steps_total")
    return {**point, "side": "http", "tokens_per_second": streams * length / seconds,
            "step_share": min(1.0, grown("regla_engine_step_seconds_total") / seconds),
            "own_cpu_us_per_token": own * 1e6 / tokens, "texts_per_step": tokens / steps,
            **{f"{cause}_ms": 1e3 * grown("regla_engine_seconds_total", cause=cause) / steps
               for cause in CAUSES}}


def measure(table, binary, options):
    todo = []
    for repeat in range(1, options.repeat + 1):
        for streams in options.streams:
            point = {"preset": options.model or options.preset, "streams": streams, "length": options.length,
                     "repeat": repeat}
            # Who begins changes from round to round, so that a drift favours neither.
            sides = [(engine_point, "engine"), (http_point, "http")][::1 if repeat % 2 else -1]
            todo += [(side, point) for side, name in sides if not table.has(side=name, **point)]
    for number, (side, point) in enumerate(todo, 1):
        print(f"[{number} of {len(todo)}] {side.__name__} {point}", file=sys.stderr)
        table.add(side(binary, point, options))


def verdicts(table, options):
    found = []
    for streams in options.streams:
        key = {"preset": options.model or options.preset, "streams": streams, "length": options.length}
        engine, http = (table.values("tokens_per_second", side=side, **key)
                        for side in ("engine", "http"))
        # Both sides of a round ran one after the other, so a drift of the machine cancels out.
        share = 100 * median([b / a for a, b in zip(engine, http)])
        outside = 1 - median(table.values("step_share", side="http", **key))
        steps = {f"{cause}_ms": median(table.values(f"{cause}_ms", side="http", **key))
                 for cause in CAUSES}
        found.append({**key, "engine_tokens_per_second": median(engine),
                      "http_tokens_per_second": median(http),
                      "spread_percent": 100 * max(spread(engine), spread(http)),
                      "overhead_percent": 100 * (100 / share - 1), "share_percent": share,
                      "outside_steps_percent": 100 * outside,
                      "own_cpu_us_per_token": median(
                          table.values("own_cpu_us_per_token", side="http", **key)),
                      "texts_per_step": median(table.values("texts_per_step", side="http", **key)),
                      **steps, "host_percent":
                          100 * steps["host_ms"] / (steps["device_ms"] + steps["host_ms"])})
    return found


def report(found):
    print(f"\n{'preset':<14} {'streams':>7} {'engine':>10} {'HTTP':>10} {'spread':>8} {'share':>7} "
          f"{'overhead':>9} {'outside steps':>14} {'own CPU':>10}")
    print(f"{'':<14} {'':>7} {'tokens/s':>10} {'tokens/s':>10} {'%':>8} {'%':>7} {'%':>9} {'%':>14} "
          f"{'us/token':>10}")
    for row in found:
        print("{preset:<14} {streams:>7} {engine_tokens_per_second:>10.1f} "
              "{http_tokens_per_second:>10.1f} {spread_percent:>8.1f} {share_percent:>7.1f} "
              "{overhead_percent:>9.1f} {outside_steps_percent:>14.1f} "
              "{own_cpu_us_per_token:>10.1f}".format(**row))
    print("\na step by cause: the device, it waiting for the host, no step to come")
    for row in found:
        print("{streams:>7} streams {device_ms:>9.3f} ms {host_ms:>9.3f} ms {idle_ms:>9.3f} ms; the host's "
              "share of the first two is {host_percent:.1f} %; {texts_per_step:.1f} texts generate in "
              "a step".format(**row))
    for row in found:
        for good, limit in limits(row):
            print(f"{'PASS' if good else 'FAIL'}  {row['streams']} streams: {limit}")


def limits(row):
    """(whether it holds, what it says)"""
    if row["streams"] == 1:
        return [(row["overhead_percent"] <= MOST_OVERHEAD_PERCENT,
                 f"time per token at most {MOST_OVERHEAD_PERCENT} % above the engine's")]
    return [(row["share_percent"] >= LEAST_SHARE_PERCENT,
             f"at least {LEAST_SHARE_PERCENT} % of the engine's tokens/s"),
            (row["host_percent"] <= MOST_HOST_PERCENT,
             f"the host at most {MOST_HOST_PERCENT} % of the steps")]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", help="regla (build/release/regla)")
    parser.add_argument("--preset", default="regla-160m")
    parser.add_argument("--model", help="instead of the preset: a model's folder")
    parser.add_argument("--vocabulary", default=VOCABULARY, type=int, help="of a model: its tokens")
    parser.add_argument("--streams", default="1,64",
                        type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--length", default=128, type=int, help="tokens of each reply")
    parser.add_argument("--repeat", default=5, type=int, help="rounds; medians are reported")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--temperature", default=0.0, type=float)
    parser.add_argument("--out", default="overhead", help="folder for overhead.csv, .json and a plot")
    parser.add_argument("--no-plots", action="store_true", help="draw none")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    try:
        binary = find_binary(options.binary)
        settings = {**machine(binary), "weights": options.weights, "device": options.device,
                    "temperature": options.temperature}
        table = Table(f"{options.out}/overhead.csv", COLUMNS, KEY, settings)
        table.write_json()
        measure(table, binary, options)
    except (Failure, AssertionError) as failure:
        print(f"overhead: {failure}", file=sys.stderr)
        return 1
    found = verdicts(table, options)
    table.write_json(verdicts=found)
    report(found)
    draw("overhead", found, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
