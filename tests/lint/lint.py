"""Checks of the source tree that no compiler makes. Standard library only.

Run from the repository's root by `make lint`; prints one line per fault and ends with
`lint: N passed, N failed`, one per check.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES, FILE_LINES = 90, 800  # the house rule is ~60 and ~600; here it stops
HEADERS = (".h", ".cuh")
CODE = (".c", ".cc", ".cu", *HEADERS)

# Layer by the first folder that matches -> what it may include ("" matches all of the tree).
MAY_INCLUDE = [
    ("engine/ops/", ["engine/ops/", "engine/base/", "engine/model/"]),
    ("engine/cpu/", ["engine/cpu/", "engine/base/", "engine/ops/"]),
    ("engine/cuda/", ["engine/cuda/", "engine/base/", "engine/ops/"]),
    ("engine/base/", ["engine/base/"]),
    ("engine/text/", ["engine/text/", "engine/base/"]),
    ("engine/model/", ["engine/model/", "engine/base/"]),
    ("engine/", ["engine/"]),
    ("api/", ["api/", "engine/"]),
    ("server/", ["server/", "api/", "engine/", "cli/options.h"]),
    ("bench/", ["bench/", "engine/"]),
    ("cli/", ["cli/", "bench/", "server/", "api/", "engine/"]),
    ("tests/", [""]),
    ("", [""]),
]


def tracked(*suffixes):
    """Files of the working tree that git does not ignore, with one of the suffixes."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        names = listing.stdout.splitlines()
    else:  # a copy without .git
        names = [str(path.relative_to(ROOT)) for top in
                 ("api", "bench", "cli", "deploy", "engine", "loadtest", "models", "server", "tests",
                  "train")
                 for path in (ROOT / top).rglob("*") if ".venv" not in path.parts]
    return [name for name in sorted(names) if name.endswith(suffixes) and (ROOT / name).is_file()]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def without_comments_and_strings(text):
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found.group()), text, flags=re.S)


def check_format():
    """clang-format --dry-run finds nothing"""
    formatter = Path(sys.executable).parent / "clang-format"
    result = subprocess.run([str(formatter), "--dry-run", "-Werror", *tracked(*CODE)],
                            cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        yield from [line for line in result.stderr.splitlines() if "error:" in line][:20]
        yield "`make format` mends it"


def check_includes():
    """every include points down, and is rooted at the repository"""
    for name in tracked(*CODE):
        allowed = next(may for folder, may in MAY_INCLUDE if name.startswith(folder))
        for number, line in enumerate(read(name).splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not found:
                continue
            target = found.group(1)
            if not (ROOT / target).is_file():
                yield f"{name}:{number}: {target}: no such file under the repository's root"
            elif not any(target.startswith(prefix) for prefix in allowed):
                yield f"{name}:{number}: {target}: {name.split('/')[0]}/ may not include it"


def check_below_main():
    """nothing below main exits, and the engine neither prints nor opens sockets"""
    for name in tracked(*CODE):
        if not name.startswith(("engine/", "api/")):
            continue
        code = without_comments_and_strings(read(name))
        for number, line in enumerate(code.splitlines(), 1):
            found = re.search(r"\b(_?exit|abort|quick_exit|printf|puts|putchar|socket)\s*\(", line)
            found = found or re.search(r"\b(stdout|stderr)\b", line)
            if found:
                yield f"{name}:{number}: {found.group(1)}"


def functions(name):
    """(first line, lines) of each function body; clang-format puts its braces in column 0."""
    start = None
    for number, line in enumerate(read(name).splitlines(), 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def check_sizes():
    """functions and files stay short"""
    for name in tracked(*CODE):
        lines = read(name).count("\n")
        if lines > FILE_LINES:
            yield f"{name}: {lines} lines (at most {FILE_LINES})"
        for start, length in functions(name):
            if length > FUNCTION_LINES:
                yield f"{name}:{start}: a function of {length} lines (at most {FUNCTION_LINES})"


def check_headers():
    """a header begins with its job and is guarded by its path"""
    for name in tracked(*HEADERS):
        text = read(name)
        guard = re.sub(r"[^A-Z0-9]", "_", name.upper())
        if not text.startswith("/*"):
            yield f"{name}:1: the first comment should say what the file is for"
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            yield f"{name}: the guard is not {guard}"


def check_words():
    """no leftovers, no paths of one machine, no tabs or spaces at line ends"""
    words = ["TO" + "DO", "FIX" + "ME", "HA" + "CK", "XX" + "X"]  # parted: this file is read too
    leftover = re.compile(r"\b(" + "|".join(words) + r")\b|^(<{7}|>{7}) ")
    machine_path = re.compile(r"(?<![\w.])/(?:work|home/\w+)/")
    for name in tracked(*CODE, ".py", ".sh", ".md", ".txt", ".yaml", "Makefile"):
        if name.startswith(("models/", "tests/golden/")):
            continue
        if name.startswith("tests/") and name.endswith(".txt") and "requirements" not in name:
            continue
        for number, line in enumerate(read(name).splitlines(), 1):
            found = leftover.search(line) or machine_path.search(line)
            if found:
                yield f"{name}:{number}: {found.group()}"
            if line != line.rstrip() or (name.endswith((*CODE, ".py")) and "\t" in line):
                yield f"{name}:{number}: a tab, or white space at the end of the line"


def check_links():
    """links between our documents lead somewhere"""
    for name in tracked(".md"):
        for target in re.findall(r"\]\(([^)#\s]+)", read(name)):
            if not re.match(r"[a-z]+:", target) and not (ROOT / name).parent.joinpath(target).exists():
                yield f"{name}: {target} does not exist"


def check_scripts():
    """shell scripts parse and say so when they may run"""
    for name in tracked(".sh") + [".ci/run"]:
        result = subprocess.run(["bash", "-n", name], cwd=ROOT, capture_output=True, text=True)
        if result.returncode:
            yield f"{name}: {result.stderr.strip()}"
        if not os.access(ROOT / name, os.X_OK):
            yield f"{name}: not executable"


def main():
    passed = failed = 0
    for check in [check_format, check_includes, check_below_main, check_sizes, check_headers,
                  check_words, check_links, check_scripts]:
        faults = list(check())
        for fault in faults:
            print(fault)
        print(f"{'FAILED' if faults else 'ok':6} {check.__doc__}")
        passed, failed = passed + (not faults), failed + bool(faults)
    print(f"lint: {passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
