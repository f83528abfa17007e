#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each format of weights, with each rounding of activations, costs a model: its perplexity on a
text, beside that of weights, activations and KV in f32. Pairs that this processor refuses are left
out, and said. Prints a table in Markdown."""

import argparse
import json
import sys

from measure import Failure, find_binary, machine, run

FORMATS = {"f32": ("f32",), **dict.fromkeys(("bf16", "f16"), ("f32", "16bit")),
           **dict.fromkeys(("q8", "q6", "q4"), ("f32", "16bit", "8bit"))}


def score(binary, options, weights, activations):
    return json.loads(run([binary, "perplexity", options.model, options.text, "--context",
                           options.context, "--kv", "f32", "--weights", weights, "--activations",
                           activations, "--quiet", "--json"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", help="plain text, or JSONL with \"text\"")
    parser.add_argument("--context", default="512", help="tokens of a window")
    parser.add_argument("--binary")
    options = parser.parse_args()
    try:
        binary = find_binary(options.binary)
        exact = score(binary, options, "f32", "f32")
        where = machine(binary)
    except Failure as failure:
        sys.exit(f"perplexities: {failure}")
    print(f"{options.model}, {exact['tokens']:,} tokens of {options.text} in windows of "
          f"{options.context}; regla {where['regla']} on {where['processor']}\n")
    print("| weights | activations | perplexity | against f32 |\n|---|---|---|---|")
    for weights, roundings in FORMATS.items():
        for activations in roundings:
            try:
                ppl = score(binary, options, weights, activations)["ppl_token"]
            except Failure as failure:
                print(f"perplexities: {failure}", file=sys.stderr)
                continue
            beside = 100 * (ppl / exact["ppl_token"] - 1)
            print(f"| {weights} | {activations} | {ppl:.4f} | {beside:+.4f} % |", flush=True)


if __name__ == "__main__":
    main()
