#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether two builds of regla compute the same bits.

Both serve every checkpoint of tests/golden and the shipped model, in several formats, and score the
same texts: log-probabilities of each token and of the five best, of a prompt and of what they
generate. Prints them in hex with --print; says where the builds differ first, and ends with 1.

OLD and NEW are commits, folders of sources (`.`: this tree), or programs that are built."""

import argparse
import hashlib
import json
import os
import struct
import sys
from pathlib import Path

from builds import BUILDS, compile_with, tree_of
from measure import ROOT, Failure, serving, shipped_model

FORMATS = ["auto auto f32", "bf16 f16 f32", "f16 bf16 f32", "q8 f16 f32", "q8 f16 16bit",
           "q8 f16 8bit", "bf16 f16 16bit"]
GENERATED, SHIPPED_TOKENS = 16, 2000


def program_of(name):
    if Path(name).is_file():
        return Path(name).resolve()
    folder, sources = tree_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "program.log"
    compile_with(log, ["cmake", "-S", sources, "-B", folder / "program",
                       "-DCMAKE_BUILD_TYPE=Release", "-DREGLA_TESTS=OFF"])
    compile_with(log, ["cmake", "--build", folder / "program", "-j", os.cpu_count(),
                       "--target", "regla"])
    return folder / "program" / "regla"


def bits(value):
    """A log-probability as the hex digits of its f32; the server prints enough digits."""
    return "-" if value is None else struct.pack(">f", value).hex()


def lines_of(reply):
    """A line per token: its id or text, the bits of its log-probability and of the best ones."""
    found = reply["choices"][0]["logprobs"]
    for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]):
        best = " ".join(f"{json.dumps(key)}={bits(value)}" for key, value in (top or {}).items())
        yield f"{json.dumps(token)} {bits(logprob)} {best}"


def score(program, model, prompt, generated, formats):
    """The lines of one model, or None where this processor refuses the formats."""
    weights, kv, activations = formats.split()
    flags = {"model": model, "threads": 2, "weights": weights, "kv": kv, "activations": activations}
    try:
        with serving(program, **flags) as server:
            reply = server.complete(prompt=prompt, max_tokens=generated, temperature=0, echo=True,
                                    logprobs=5, ignore_eos=True)
            return list(lines_of(reply))
    except AssertionError as failed:
        if "--activations" in str(failed):
            return None
        raise


def cases(chosen):
    for folder in sorted((ROOT / "tests" / "golden").glob("*/expected.json")):
        prompt = json.loads(folder.read_text())["prompt"]
        yield folder.parent.name, folder.parent, prompt, GENERATED, chosen
    model = shipped_model()
    yield model.name, model, "It was a dark night, and", SHIPPED_TOKENS, chosen


def differ(name, formats, old, new):
    if (old is None) != (new is None):
        return f"{name} ({formats}): one of both refuses the formats"
    if old is None:
        return None
    for number, pair in enumerate(zip(old, new)):
        if pair[0] != pair[1]:
            return f"{name} ({formats}), token {number}: old {pair[0]}, new {pair[1]}"
    return None if len(old) == len(new) else f"{name} ({formats}): {len(old)} and {len(new)} tokens"


def compare(options):
    programs = [program_of(options.old), program_of(options.new)]
    tokens = numbers = differences = refused = 0
    digest = hashlib.sha256()
    for name, model, prompt, generated, formats in cases(options.formats):
        before = differences
        for each in formats:
            old, new = (score(program, model, prompt, generated, each) for program in programs)
            if said := differ(name, each, old, new):
                print(said, flush=True)
                differences += 1
            refused += old is None
            for line in new or []:
                digest.update(line.encode())
                numbers += line.count("=") + 1
                if options.print:
                    print(name, each, line)
            tokens += len(new or [])
        print(f"{name}: {'the same bits' if differences == before else 'other bits'}", file=sys.stderr)
    print(f"{tokens} tokens, {numbers} log-probabilities, sha256 {digest.hexdigest()[:16]}; "
          f"{refused} pairs of formats that this processor refuses; {differences} differ")
    return 1 if differences or not tokens else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--formats", default=FORMATS, type=lambda text: text.split(","),
                        help="weights, KV and activations, with blanks between them; several with "
                             f"commas ({','.join(FORMATS)})")
    parser.add_argument("--print", action="store_true", help="every token, its bits in hex")
    options = parser.parse_args()
    try:
        BUILDS.mkdir(parents=True, exist_ok=True)
        return compare(options)
    except Failure as failure:
        print(f"bits: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
