#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What constrained output costs: so many texts at once, free, with JSON schemas that the server has
seen, and each with a new one. Prints the share of a step that masks take (at most 3 % with schemas
that were seen, 10 % with new ones), and how long the first use of a schema of 10 KB takes (at most
50 ms)."""

import argparse
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from measure import ROOT, Failure, find_binary, machine, median, serving

MOST_SEEN_PERCENT, MOST_NEW_PERCENT, MOST_FIRST_MS = 3, 10, 50
COUNTED = ("regla_engine_steps_total", "regla_engine_step_seconds_total", "regla_generated_tokens_total",
           "regla_masks_total", "regla_mask_seconds_total", "regla_grammars_compiled_total",
           "regla_grammar_compile_seconds_total")
WORDS = ("name city street colour weight height owner since until number state note price count rank "
         "title author pages year place kind size").split()


def schema_of(number):
    """A list of records that is longer than any text here, of fields in an order of its own."""
    rng = random.Random(number)
    kinds = [{"type": "string", "maxLength": 20 + number % 50}, {"type": "integer", "minimum": 0},
             {"type": "boolean"}, {"enum": ["low", "middle", f"high {number}"]},
             {"type": "string", "format": "date"}, {"type": "array", "items": {"type": "number"}}]
    fields = {name: rng.choice(kinds) for name in rng.sample(WORDS, 6)}
    record = {"type": "object", "properties": fields, "required": list(fields),
              "additionalProperties": False}
    return {"type": "array", "items": record, "minItems": 1000}


def large_schema(number, size):
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    while len(json.dumps(schema)) < size:
        schema["properties"][f"field {number} {len(schema['properties'])}"] = schema_of(
            len(schema["properties"]))["items"]
    schema["required"] = list(schema["properties"])
    return schema


def run_texts(server, options, schemas, seed):
    """What the counters grew by while texts ran, one a schema."""
    def write(number):
        form = {} if schemas[number] is None else {"guided_json": schemas[number]}
        reply = server.post("/v1/completions", {
            "prompt": "A list of records: ", "max_tokens": options.length, "temperature": 1,
            "ignore_eos": True, "seed": seed + number, **form}, timeout=3600)
        if reply.status_code != 200 or reply.json()["usage"]["completion_tokens"] != options.length:
            raise Failure(f"expected {options.length} tokens, got {reply.text[:400]}")
    before, began = server.metrics(), time.monotonic()
    with ThreadPoolExecutor(len(schemas)) as pool:
        list(pool.map(write, range(len(schemas))))
    seconds, after = time.monotonic() - began, server.metrics()
    grown = {name: sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)
             for name in COUNTED}
    return {"seconds": seconds, **grown}


def row(name, found):
    steps = found["regla_engine_steps_total"]
    step = found["regla_engine_step_seconds_total"] / steps
    mask = found["regla_mask_seconds_total"] / steps
    return {"texts": name, "tokens_per_second": found["regla_generated_tokens_total"] / found["seconds"],
            "texts_a_step": found["regla_generated_tokens_total"] / steps, "step_ms": 1e3 * step,
            "mask_us_per_token": 1e6 * found["regla_mask_seconds_total"] / max(found["regla_masks_total"], 1),
            "mask_percent": 100 * mask / step, "compiled": found["regla_grammars_compiled_total"]}


def first_use(server, options):
    """Seconds to compile schemas of 10 KB that the server has not seen."""
    times = []
    for number in range(options.repeat):
        before = server.metric("regla_grammar_compile_seconds_total")
        reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1,
                                                "guided_json": large_schema(number, 10_000)})
        if reply.status_code != 200:
            raise Failure(reply.text[:400])
        times.append(server.metric("regla_grammar_compile_seconds_total") - before)
    return times


def measure(binary, options):
    rows = []
    with serving(binary, model=options.model, weights=options.weights, max_running=options.texts,
                 max_body_memory="4G") as server:
        seen = [schema_of(number) for number in range(options.texts)]
        run_texts(server, options, seen, 0)
        for turn in range(1, options.repeat + 1):
            new = [schema_of(turn * 1000 + number) for number in range(options.texts)]
            for name, schemas in (("free", [None] * options.texts), ("seen", seen), ("new", new)):
                found = run_texts(server, options, schemas, turn * 1000)
                rows.append({"turn": turn, **row(name, found)})
                print(json.dumps(rows[-1]), file=sys.stderr)
        times = first_use(server, options)
    return rows, times


def report(rows, times):
    print(f"{'texts':<6} {'tokens/s':>9} {'a step':>7} {'step ms':>8} {'mask us':>8} {'share %':>8} "
          f"{'compiled':>8}")
    shares = {}
    for name in ("free", "seen", "new"):
        mine = [found for found in rows if found["texts"] == name]
        of = {key: median([found[key] for found in mine]) for key in mine[0] if key not in ("turn", "texts")}
        shares[name] = of["mask_percent"]
        print("{name:<6} {tokens_per_second:>9.1f} {texts_a_step:>7.1f} {step_ms:>8.3f} "
              "{mask_us_per_token:>8.2f} {mask_percent:>8.2f} {compiled:>8.0f}".format(name=name, **of))
    first = 1e3 * median(times)
    print(f"a schema of 10 KB: {first:.1f} ms, at most {1e3 * max(times):.1f} ms")
    verdicts = [("seen schemas", shares["seen"], MOST_SEEN_PERCENT, "% of a step"),
                ("new schemas", shares["new"], MOST_NEW_PERCENT, "% of a step"),
                ("the first use of 10 KB", first, MOST_FIRST_MS, "ms")]
    for what, got, most, unit in verdicts:
        print(f"{'PASS' if got <= most else 'FAIL'}  {what}: {got:.2f} {unit}, at most {most}")
    return all(got <= most for _, got, most, _ in verdicts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary")
    parser.add_argument("--model", default=ROOT / "models" / "smollm2-135m-instruct")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="tokens of each text")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    try:
        binary = find_binary(options.binary)
        print(json.dumps(machine(binary)), file=sys.stderr)
        return 0 if report(*measure(binary, options)) else 1
    except Failure as failure:
        print(f"constrained.py: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
