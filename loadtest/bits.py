#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether two builds of regla compute the same bits, and take models for the same.

Both serve every checkpoint of tests/golden and the shipped model, in all formats of weights with all
of activations, and every preset. Of each, both score the same text: log-probabilities of each token
and of the five best, of a prompt and of what they generate. Then they export the text's state, whose
head has the model's fingerprint. The new build goes on from its own state and from the old one's:
from its export, and from the sessions that it left in a directory (--state-dir).

Says where the builds differ first, for each model and formats, and then ends with 1. With --print,
says what the new one has, in hex. OLD and NEW are commits, folders of sources (`.`: this tree), or
programs that are built."""

import argparse
import fnmatch
import hashlib
import itertools
import json
import os
import re
import struct
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from builds import BUILDS, compile_with, tree_of
from measure import ROOT, Failure, run, serving, shipped_model

FORMATS = ["auto auto f32", "bf16 f16 f32", "bf16 f16 16bit", "f16 bf16 f32", "f16 bf16 16bit",
           *(f"{weights} f16 {activations}" for weights in ("q8", "q6", "q4")
             for activations in ("f32", "16bit", "8bit"))]
PRESET_FORMATS = ["bf16 f16 auto"]
KINDS = ["golden", "shipped", "presets"]
GENERATED, SHIPPED_TOKENS, CONTINUED = 12, 2000, 4
PRESET_PROMPT = [(7919 * i) % 10000 for i in range(70)]  # beyond a page; within every vocabulary
# of a file of a state (engine/state-file.md)
MAGIC, DIRECTORY, SECTION = b"\x89RGL\r\n\x1a\n", 72, struct.Struct("<IIQQ")
SECTIONS = {2: "tokens", 3: "layout", 4: "state", 5: "logits"}


class Case(NamedTuple):
    name: str
    flags: dict
    prompt: object
    generated: int
    formats: list


class Found(NamedTuple):
    """What one build has of a case in one choice of formats."""
    lines: list        # of the text: token, the bits of its log-probability and of the best ones
    continued: list    # of what follows its own state
    imported: list     # of what follows the old build's; the old one has none
    stored: list       # likewise, from its directory
    export: bytes


def program_of(name):
    if Path(name).is_file():
        return Path(name).resolve()
    folder, sources = tree_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "program.log"
    print(f"bits: building {name} in {folder}", file=sys.stderr, flush=True)
    compile_with(log, ["cmake", "-S", sources, "-B", folder / "program",
                       "-DCMAKE_BUILD_TYPE=Release", "-DREGLA_TESTS=OFF"])
    compile_with(log, ["cmake", "--build", folder / "program", "-j", os.cpu_count(),
                       "--target", "regla"])
    return folder / "program" / "regla"


def bits(value):
    """A log-probability as the hex digits of its f32; the server prints enough digits."""
    return "-" if value is None else struct.pack(">f", value).hex()


def lines_of(reply):
    found = reply["choices"][0]["logprobs"]
    for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]):
        best = " ".join(f"{json.dumps(key)}={bits(value)}" for key, value in (top or {}).items())
        yield f"{json.dumps(token)} {bits(logprob)} {best}"


def complete(server, session, prompt, count):
    return list(lines_of(server.complete(prompt=prompt, max_tokens=count, temperature=0, echo=True,
                                         logprobs=5, ignore_eos=True, session_id=session)))


def put(server, session, export):
    """What is wrong with it; none."""
    taken = server.http.put(f"/v1/sessions/{session}/state", content=export)
    return [] if taken.status_code == 201 else [f"{taken.status_code}: {taken.text}"]


def ask(program, case, formats, folder, old_export):
    """folder: where sessions are. The old build leaves one there. None where this processor refuses
    the formats."""
    weights, kv, activations = formats.split()
    flags = {"threads": 2, "weights": weights, "kv": kv, "activations": activations,
             "state_dir": folder, **case.flags}
    try:
        with serving(program, **flags) as server:
            lines = complete(server, "own", case.prompt, case.generated)
            reply = server.get("/v1/sessions/own/state")
            assert reply.status_code == 200, reply.text
            continued = complete(server, "own", [1], CONTINUED)
            if not old_export:
                wrong = put(server, "left", reply.content)
                assert not wrong, wrong
                assert server.http.delete("/v1/sessions/own").status_code == 204
                return Found(lines, continued, [], [], reply.content)
            imported = put(server, "old", old_export) or complete(server, "old", [1], CONTINUED)
            left = server.get("/v1/sessions/left")
            stored = ([f"{left.status_code}: {left.text}"] if left.status_code != 200 else
                      complete(server, "left", [1], CONTINUED))
            return Found(lines, continued, imported, stored, reply.content)
    except AssertionError as failed:
        if re.search("^regla serve: .*activations", str(failed), re.MULTILINE):
            return None
        raise Failure(f"{program} does not serve it: {str(failed).strip().splitlines()[-1]}") from failed


def cases(options):
    """Those that --kinds and --models choose."""
    def chosen(name):
        return any(fnmatch.fnmatch(name, pattern) for pattern in options.models)

    for folder in sorted((ROOT / "tests" / "golden").glob("*/expected.json")):
        name = folder.parent.name
        if "golden" in options.kinds and chosen(name):
            prompt = json.loads(folder.read_text())["prompt"]
            yield Case(name, {"model": folder.parent}, prompt, GENERATED, options.formats)
    model = shipped_model()
    if "shipped" in options.kinds and chosen(model.name):
        yield Case(model.name, {"model": model}, "It was a dark night, and", SHIPPED_TOKENS,
                   options.formats)
    if "presets" in options.kinds:
        for name in run([options.new, "info", "--presets"]).split():
            if chosen(f"preset {name}"):
                yield Case(f"preset {name}", {"preset": name}, PRESET_PROMPT, GENERATED,
                           options.preset_formats)


def fingerprint(export):
    assert export.startswith(MAGIC), export[:80]
    return export[32:48].hex()


def sections(export):
    """name -> checksum"""
    count, = struct.unpack_from("<I", export, 20)
    entries = (SECTION.unpack_from(export, DIRECTORY + i * SECTION.size) for i in range(count))
    return {SECTIONS.get(kind, f"section {kind}"): checksum for kind, _flags, _size, checksum in entries}


def differ_lines(what, old, new):
    for number, (before, after) in enumerate(zip(old, new)):
        for a, b in zip(before.split(" "), after.split(" ")):
            if a != b:
                return f"{what}, token {number}: old {a}, new {b}"
    return None if len(old) == len(new) else f"{what}: {len(old)} and {len(new)} tokens"


def differences(old, new):
    """What differs between two Found, a sentence each."""
    prints = [fingerprint(found.export) for found in (old, new)]
    if prints[0] != prints[1]:
        yield f"fingerprint: old {prints[0]}, new {prints[1]}"
    parts = [sections(found.export) for found in (old, new)]
    for name in sorted(parts[0].keys() | parts[1].keys()):
        if parts[0].get(name) != parts[1].get(name):
            yield f"the exports differ in their {name}"
    # a state of another fingerprint is refused, as it must be
    texts = [("the text", old.lines, new.lines), ("behind its own state", old.continued, new.continued)]
    if prints[0] == prints[1]:
        texts += [("behind the old build's state", old.continued, new.imported),
                  ("behind what it left in its directory", old.continued, new.stored)]
    yield from filter(None, (differ_lines(*each) for each in texts))


def compare_one(programs, case, formats):
    """(new's Found or None, what differs)"""
    try:
        with tempfile.TemporaryDirectory() as folder:
            old = ask(programs[0], case, formats, folder, None)
            new = ask(programs[1], case, formats, folder, old and old.export)
    except Failure as failure:
        return None, [str(failure)]
    if old is None or new is None:
        return new, [] if old is new else ["one of both refuses the formats"]
    return new, list(differences(old, new))


def tell(case, formats, found, differ, print_all):
    for each in differ:
        print(f"{case.name} ({formats}), {each}", flush=True)
    if print_all and found:
        print(f"{case.name} ({formats}) fingerprint {fingerprint(found.export)}")
        for line in [*found.lines, *found.continued]:
            print(f"{case.name} ({formats}) {line}")


def compare(options):
    programs = [program_of(options.old), program_of(options.new)]
    options.new = programs[1]
    jobs = [(case, formats) for case in cases(options) for formats in case.formats]
    digest, prints = hashlib.sha256(), set()
    tokens = numbers = refused = differing = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        results = pool.map(compare_one, itertools.repeat(programs), *zip(*jobs)) if jobs else ()
        for (case, formats), (found, differ) in zip(jobs, results):
            tell(case, formats, found, differ, options.print)
            differing += bool(differ)
            if formats == case.formats[-1]:
                print(f"{case.name}: done; {differing} differ", file=sys.stderr, flush=True)
            refused += found is None and not differ
            if found is None:
                continue
            prints.add(fingerprint(found.export))
            digest.update(fingerprint(found.export).encode())
            for line in [*found.lines, *found.continued, *found.imported, *found.stored]:
                digest.update(line.encode())
                tokens += 1
                numbers += len(re.findall("=[0-9a-f]{8}(?= |$)", line))
    print(f"{len(prints)} fingerprints, {tokens} tokens, {numbers} log-probabilities, sha256 "
          f"{digest.hexdigest()[:16]}; of {len(jobs)} models in a choice of formats this processor "
          f"refuses {refused}; " + (f"{differing} differ" if differing else "the same"))
    return 1 if differing or not tokens else 0


def main():
    def items(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--kinds", default=KINDS, type=items, help=f"of models ({','.join(KINDS)})")
    parser.add_argument("--models", default=["*"], type=items,
                        help="only those of such names: gla*,preset mamba2* (*)")
    parser.add_argument("--formats", default=FORMATS, type=items,
                        help="weights, KV and activations, with blanks between them; several with "
                             f"commas ({','.join(FORMATS)})")
    parser.add_argument("--preset-formats", default=PRESET_FORMATS, type=items,
                        help=f"likewise, of presets ({','.join(PRESET_FORMATS)})")
    parser.add_argument("--jobs", default=os.cpu_count(), type=int, help="servers at a time (processors)")
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
