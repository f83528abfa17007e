#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the CUDA kernels: registers, bytes that are spilled, static shared memory
and instructions of each, by cuobjdump. All kernels of one build, or those that differ between two,
as before → after.

A build is a file, or a folder with libregla_cuda.a or with objects; they need no GPU. Objects of
several architectures give the one that --arch names. cuobjdump comes with CUDA, or with the package
nvidia-cuda-cuobjdump; its path may be in CUOBJDUMP."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

COLUMNS = "registers", "spill stores", "spill loads", "shared", "instructions"
WIDTHS = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


class Failure(Exception):
    """What went wrong, in a sentence for the user."""


def objects_of(build):
    path = Path(build)
    if path.is_file():
        return [path]
    found = sorted(path.glob("libregla_cuda.a")) or sorted(path.rglob("*.cu.o"))
    if not found:
        raise Failure(f"{build}: expected a file, or a folder with libregla_cuda.a or *.cu.o")
    return found


def dump(option, path, arch):
    command = [os.environ.get("CUOBJDUMP", "cuobjdump"), "--gpu-architecture", arch, option, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise Failure(f"expected cuobjdump on the PATH, or its path in CUOBJDUMP, got "
                      f"{command[0]!r}") from None
    if done.returncode:
        raise Failure(f"{path}: {done.stderr.strip() or 'cuobjdump failed'}")
    return done.stdout


def demangled(names):
    """{mangled: as in the source, without namespaces, and without parameters where that is enough
    to tell the kernels apart}"""
    unneeded = re.compile(r"\(anonymous namespace\)::|\(\w+\)(?=\d)|^void ")

    def shown(*options):
        done = subprocess.run(["c++filt", *options], input="\n".join(names), capture_output=True,
                              text=True, check=True)
        return [unneeded.sub("", name) for name in done.stdout.splitlines()]

    brief = shown("-p")
    found = {name: short if brief.count(short) == 1 else whole
             for name, short, whole in zip(names, brief, shown())}
    if len(set(found.values())) < len(names):
        raise Failure("two kernels have the same name and the same parameters")
    return found


def bytes_of(line):
    """Of a store to local memory, or a load from it."""
    kinds = re.search(r"\b(?:STL|LDL)((?:\.\w+)*)", line).group(1).split(".")
    return next((WIDTHS[kind] for kind in kinds if kind in WIDTHS), 4)


def kernels_of(build, arch):
    """{mangled name: {column: number}}"""
    kernels = {}
    for path in objects_of(build):
        for name, registers, shared in re.findall(
                r"Function (\S+):\s+REG:(\d+) .*?SHARED:(\d+)", dump("-res-usage", path, arch)):
            kernels[name] = dict.fromkeys(COLUMNS, 0) | {"registers": int(registers),
                                                         "shared": int(shared)}
        for text in dump("-sass", path, arch).split("Function : ")[1:]:
            name = text.split("\n", 1)[0].strip()
            lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", text, re.MULTILINE)
            kernel = kernels.setdefault(name, dict.fromkeys(COLUMNS, 0))
            kernel["instructions"] = sum(not re.search(r"\bNOP\b", line) for line in lines)
            for line in lines:
                if re.search(r"\b(STL|LDL)\b", line):
                    kernel["spill stores" if "STL" in line else "spill loads"] += bytes_of(line)
    if not kernels:
        raise Failure(f"{build}: no kernels for {arch}")
    names = demangled(list(kernels))
    return {names[name]: kernel for name, kernel in kernels.items()}


def cell(before, after, column):
    values = ["-" if kernel is None else f"{kernel[column]:,}" for kernel in (before, after)]
    return values[0] if values[0] == values[1] else " → ".join(values)


def rows_of(builds):
    """Of one build all kernels; of two those that differ."""
    before, after = builds[0], builds[-1]
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if len(builds) == 1 or old != new:
            yield [f"`{name}`", *(cell(old, new, column) for column in COLUMNS)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a build; without AFTER all of its kernels are printed")
    parser.add_argument("after", nargs="?", help="another")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    paths = [path for path in (options.before, options.after) if path is not None]
    builds = [kernels_of(path, options.arch) for path in paths]
    rows = list(rows_of(builds))
    print("| kernel | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    counts = " → ".join(str(len(kernels)) for kernels in builds)
    spilling = " → ".join(str(sum(kernel["spill stores"] > 0 for kernel in kernels.values()))
                          for kernels in builds)
    print(f"\n{options.arch}: {counts} kernels, {spilling} of them spill"
          + (f"; {len(rows)} differ" if len(builds) == 2 else ""))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"sass.py: {failure}")
