# SPDX-License-Identifier: Apache-2.0
"""In how many places the program knows each kind of a model's parts, and each format of weights by
its enumerator: what the next kind costs. The names come from the tables themselves. Standard library
only.

Prints for each name the files of the program outside kernels that name it, without comments, and
how many kernels do; `--most N` fails where there are more than N. `--change [BASE]` counts instead
what the working tree touches since it left BASE (main), by class of files."""

import argparse
import re
import subprocess
import sys
from collections import Counter

from lint import CODE, ROOT, read, tracked, without_comments_and_strings

# What is counted -> the table that has its names, each an enumerator: a list of X.
KINDS, FORMATS = "engine/model/kinds.h", "engine/ops/formats.h"
TABLES = {
    "mixers": (KINDS, "MODEL_MIXERS"),
    "gates": (KINDS, "MODEL_GATES"),
    "feature maps": (KINDS, "MODEL_FEATURE_MAPS"),
    "windows": (KINDS, "MODEL_WINDOWS"),
    "positions": (KINDS, "MODEL_POSITIONS"),
    "parts of a state": ("engine/state_layout.h", "STATE_PARTS"),
    "weight formats": (FORMATS, "WEIGHT_FORMATS"),
    "numbers of a drawing": ("engine/model/sampling.h", "SAMPLING_NUMBERS"),
}
PROGRAM = ("lib/", "engine/", "api/", "server/", "bench/", "cli/")
CPU_KERNELS = ("engine/cpu/kernels", "engine/cpu/simd")


def names_of(table):
    """The enumerators of a table, in its order."""
    file, name = TABLES[table]
    code = without_comments_and_strings(read(file))
    body = re.search(rf"#define {name}\(X\)((?:.*\\\n)*.*)", code)
    found = re.findall(r"\bX\((\w+)", body.group(1)) if body else []
    if not found:
        sys.exit(f"counts: {file}: expected a table {name}, found none")
    return found


def is_kernel(file, code):
    return file.startswith(CPU_KERNELS) or (
        file.startswith("engine/cuda/") and re.search(r"\b__(global|device)__\b", code) is not None)


def count_names(most):
    code = {file: without_comments_and_strings(read(file))
            for file in tracked(*CODE) if file.startswith(PROGRAM)}
    kernels = {file for file, text in code.items() if is_kernel(file, text)}
    words = {file: {word.removeprefix("SAMPLING_") for word in re.findall(r"\w+", text)}
             for file, text in code.items()}
    over = 0
    for table in TABLES:
        numbers = []
        print(f"{table}:")
        for name in names_of(table):
            files = [file for file in code if name in words[file]]
            program = [file for file in files if file not in kernels]
            numbers.append(len(program))
            besides = len(files) - len(program)
            kernel = f"+ {besides}" if besides else ""
            print(f"  {name:26} {len(program):2} {kernel:4} {' '.join(program)}")
        print(f"  {len(numbers)} names, {sum(numbers)} places, most {max(numbers)}")
        over += sum(number > most for number in numbers)
    if over:
        print(f"counts: {over} names are in more than {most} files")
    return 1 if over else 0


def class_of(file):
    if file.endswith(".md") or file.startswith("api/openapi"):
        return "documents"
    if file.startswith("tests/"):
        return "tests"
    if not file.startswith(PROGRAM):
        return "other"
    path = ROOT / file
    code = without_comments_and_strings(read(file)) if path.is_file() and file.endswith(CODE) else ""
    return "kernels" if is_kernel(file, code) else "program"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"counts: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def count_change(base):
    left = git("merge-base", base, "HEAD").strip()
    files, added, removed, lists = Counter(), Counter(), Counter(), {}
    changes = [line.split("\t") for line in
               git("diff", "--numstat", "--no-renames", left).splitlines()]
    for file in git("ls-files", "--others", "--exclude-standard").splitlines():
        changes.append(((ROOT / file).read_bytes().count(b"\n"), 0, file))
    for plus, minus, file in changes:
        kind = class_of(file)
        files[kind] += 1
        added[kind] += 0 if plus == "-" else int(plus)  # -: not text
        removed[kind] += 0 if minus == "-" else int(minus)
        lists.setdefault(kind, []).append(file)
    for kind in ("program", "kernels", "tests", "documents", "other"):
        shown = f": {' '.join(lists[kind])}" if kind in ("program", "kernels") and files[kind] else ""
        print(f"{kind:9} {files[kind]:3} files, {added[kind]:5} lines more, {removed[kind]:5} less{shown}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**6, metavar="N")
    parser.add_argument("--change", nargs="?", const="main", metavar="BASE")
    options = parser.parse_args()
    return count_change(options.change) if options.change else count_names(options.most)


sys.exit(main())
