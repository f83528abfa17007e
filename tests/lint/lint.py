# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree that no compiler makes. Standard library only.

Run from the repository's root by `make lint`; prints one line per fault and ends with
`lint: N passed, N failed`, one per check. `lint.py --graph` prints the rooms of the program, which
room includes which, and what breaks the order.
"""

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES, FILE_LINES = 90, 800  # the house rule is ~60 and ~600; here it stops
HEADERS = (".h", ".cuh")
LICENCE = "SPDX-" + "License-Identifier: Apache-2.0"
CODE = (".c", ".cc", ".cu", *HEADERS)
SUFFIX = "(?:c|cc|cu|cuh|h|cmake|lua|md|py|sh|yaml)"
SOURCE_NAME = rf"[\w./*{{}},-]*[\w*}}]\.(?:{SUFFIX}\b|\{{{SUFFIX}(?:,{SUFFIX})*\}})"
FOREIGN = ("/", "vllm/", "guidellm/", "aiperf/")  # not of this repository, though documents name them
PARAGRAPH_WORDS, PARAGRAPH_LINES, LINE_COLUMNS = 100, 8, 130

# Room by the first prefix that matches a file -> what it may include besides itself. Rooms stand in
# order: each includes only rooms above it in this list. A room ends with "/" (a folder with all
# below it) or names one module ("server/server." is server.c and server.h).
LIB = ["lib/"]
ENGINE = ["engine/", *LIB]
SHARED = [*ENGINE, "api/", "server/*"]  # "server/*": files of server/ itself, none of its folders
ROOMS = {
    "lib/base/": [],
    "lib/text/": ["lib/base/"],
    "lib/jinja/": ["lib/base/", "lib/text/"],
    "lib/grammar/": ["lib/base/", "lib/text/"],
    "engine/model/": ["lib/base/"],
    "engine/ops/": ["lib/base/", "engine/model/"],
    "engine/cpu/": ["lib/base/", "engine/ops/"],
    "engine/cuda/": ["lib/base/", "engine/ops/"],
    "engine/": ENGINE,
    "api/": ENGINE,
    "server/store/": SHARED,
    "server/states/": [*SHARED, "server/store/"],
    "server/schedule/": [*SHARED, "server/store/", "server/states/"],
    "server/http/": SHARED,
    "server/page/": [],
    "server/endpoints/": [*SHARED, "server/store/", "server/states/", "server/schedule/",
                          "server/http/", "server/page/"],
    "server/server.": [*ENGINE, "api/", "server/"],
    "server/": [*ENGINE, "api/"],
    "bench/": ENGINE,
    "cli/": [*ENGINE, "api/", "server/", "bench/"],
    "tests/": [""],
    "": [""],
}

# Where functions of several files call each other for what nests (CONTRIBUTING says which); what
# matches one of these may be a ring by calls.
RECURSION = ["lib/grammar/schema*", "lib/jinja/pars*", "lib/jinja/{evaluate,statements}",
             "api/chat_{calls,calls_*,values}"]


def tracked(*suffixes):
    """Files of the working tree that git does not ignore, with one of the suffixes."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        names = listing.stdout.splitlines()
    else:  # a copy without .git
        names = [str(path.relative_to(ROOT)) for top in
                 ("api", "bench", "cli", "deploy", "engine", "lib", "loadtest", "models", "server",
                  "tests", "train")
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


def check_python():
    """ruff finds nothing (ruff.toml)"""
    ruff = Path(sys.executable).parent / "ruff"
    result = subprocess.run([str(ruff), "check", "--no-cache", "--quiet", "--output-format", "concise",
                             "tests", "loadtest", "train", "models"],
                            cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        yield from (result.stdout + result.stderr).splitlines()[:20]


def room_of(name):
    return next(room for room in ROOMS if name.startswith(room))


def may_include(room, target):
    """Whether files of a room may include the target."""
    if room_of(target) == room:
        return True
    for allowed in ROOMS[room]:
        if allowed.endswith("*"):
            folder = allowed[:-1]
            if target.startswith(folder) and "/" not in target[len(folder):]:
                return room_of(target) == folder
        elif target.startswith(allowed):
            return True
    return False


def includes(name):
    """(line number, included path) of each include of ours."""
    for number, line in enumerate(read(name).splitlines(), 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if found:
            yield number, found.group(1)


def check_includes():
    """every include points down, and is rooted at the repository"""
    for name in tracked(*CODE):
        room = room_of(name)
        for number, target in includes(name):
            if not (ROOT / target).is_file():
                yield f"{name}:{number}: {target}: no such file under the repository's root"
            elif not may_include(room, target):
                yield f"{name}:{number}: {target}: {room or 'this folder'} may not include it"


def module_of(name):
    """A .c and its .h are one module: engine/state.h is of engine/state."""
    return name.rsplit(".", 1)[0]


def module_graph():
    """module -> modules that it includes, of the program: no tests, no tools."""
    graph = {}
    for name in tracked(*CODE):
        if room_of(name) in ("tests/", ""):
            continue
        of = graph.setdefault(module_of(name), set())
        of |= {module_of(target) for _, target in includes(name)} - {module_of(name)}
    return graph


def called(text):
    """Words before a parenthesis that are not a member's."""
    return set(re.findall(r"(?<![.>\w])(\w+)\(", text))


def call_graph():
    """module -> modules whose functions it calls, of the program. A call is a name that a header
    which the caller includes declares, and that one module of the program defines."""
    code = {name: without_comments_and_strings(read(name))
            for name in tracked(*CODE) if room_of(name) not in ("tests/", "")}
    words = {name: called(text) for name, text in code.items()}
    targets = {name: [target for _, target in includes(name)] for name in code}
    defined = {}
    for name, text in code.items():
        for function in re.findall(r"^(?!static\b)[A-Za-z_][\w *]*[ *](\w+)\([^;{}]*\)\n\{", text, re.M):
            defined.setdefault(function, set()).add(module_of(name))
    graph = {}
    for name, text in code.items():
        seen, left = set(), [name]
        while left:
            left += [target for target in targets.get(left.pop(), ()) if target not in seen]
            seen.update(left)
        declared = set().union(*(words.get(header, ()) for header in seen))
        own = set(re.findall(r"^static [^\n(]*?(\w+)\(", text, re.M))
        of = graph.setdefault(module_of(name), set())
        for function in words[name] & declared - own:
            if len(defined.get(function, ())) == 1:
                of |= defined[function] - {module_of(name)}
    return graph


def rings(graph):
    """Groups of nodes that reach each other (Tarjan's strongly connected components)."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for to in sorted(graph.get(node, ())):
            if to not in order:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], order[to])
        if low[node] == order[node]:
            ring = [stack.pop()]
            while ring[-1] != node:
                ring.append(stack.pop())
            if len(ring) > 1:
                found.append(sorted(ring))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def room_graph(graph):
    rooms = {}
    for module, targets in graph.items():
        of = rooms.setdefault(room_of(module + "."), set())
        of |= {room_of(target + ".") for target in targets}
    return {room: to - {room} for room, to in rooms.items()}


def matches(module, pattern):
    """As fnmatch, with a list of alternatives in braces."""
    before, _, rest = pattern.partition("{")
    alternatives, _, after = rest.partition("}")
    return any(fnmatch.fnmatch(module, before + part + after) for part in alternatives.split(","))


def check_rings():
    """no ring of files or of rooms, by includes or by calls, but for what recurs"""
    graph = module_graph()
    for ring in rings(graph) + rings(room_graph(graph)):
        yield "a ring: " + ", ".join(ring)
    for ring in rings(call_graph()):
        if not any(all(matches(module, pattern) for module in ring) for pattern in RECURSION):
            yield "a ring by calls: " + ", ".join(ring)


def print_graph():
    """Rooms with their modules and arrows, then what is wrong with them."""
    graph = module_graph()
    rooms = room_graph(graph)
    for room in (room for room in ROOMS if room in rooms):
        count = sum(room_of(module + ".") == room for module in graph)
        print(f"{room:18} {count:3} modules -> {' '.join(sorted(rooms[room])) or '-'}")
    arrows = sum(map(len, graph.values()))
    upward = list(check_includes())
    ring_list = list(check_rings())
    for fault in upward + ring_list:
        print(fault)
    print(f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between them; "
          f"{len(graph)} modules, {arrows} arrows; {len(upward)} upward, {len(ring_list)} rings")
    return 1 if upward or ring_list else 0


def check_below_main():
    """nothing below main exits, and the engine neither prints nor opens sockets"""
    for name in tracked(*CODE):
        if not name.startswith(("lib/", "engine/", "api/")):
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
        if not text.removeprefix(f"/* {LICENCE} */\n").startswith("/*"):
            yield f"{name}:2: the first comment should say what the file is for"
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            yield f"{name}: the guard is not {guard}"


def check_licence():
    """each source names its licence in its first two lines"""
    for name in tracked(*CODE, ".py", ".sh", ".cmake", ".lua", ".js", ".css"):
        if LICENCE not in "".join(read(name).splitlines(keepends=True)[:2]):
            yield f"{name}:1: expected a line \"{LICENCE}\""


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


def anchors(path):
    """What a link may name of a document: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links():
    """links between our documents lead somewhere"""
    for name in tracked(".md"):
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", read(name)):
            path = (ROOT / name).parent / target if target else ROOT / name
            if re.match(r"[a-z]+:", target):
                continue
            if not path.exists():
                yield f"{name}: {target} does not exist"
            elif anchor and anchor not in anchors(path):
                yield f"{name}: {target} has no heading #{anchor}"


def quoted(name):
    """(line number, text) of what a document says as code: in backticks, or in a plain block."""
    block = None
    for number, line in enumerate(read(name).splitlines(), 1):
        if line.lstrip().startswith("```"):
            block = line.strip().removeprefix("```") if block is None else None
        elif block == "":
            yield number, line
        elif block is None and not line.startswith("    "):
            for text in re.findall(r"`([^`]+)`", line):
                yield number, text


def braces(pattern):
    """state.{c,h} -> state.c, state.h"""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if not found:
        return [pattern]
    return [whole for part in found.group(1).split(",")
            for whole in braces(pattern[:found.start()] + part + pattern[found.end():])]


def words_of_tree(names):
    """Every word of the tree but of its documents."""
    words = set()
    for name in names:
        if name.endswith((*CODE, ".py", ".sh", ".yaml", ".txt", ".json", ".cmake", ".in", "Makefile")):
            words |= set(re.findall(r"\w+", read(name)))
    return words


def constants(document):
    """(line number, name) of what a document calls by a name such as STATE_PARTS, outside of sessions
    of a shell. A name that a * continues is a prefix."""
    block = None
    for number, line in enumerate(read(document).splitlines(), 1):
        if line.lstrip().startswith("```"):
            block = line.strip().removeprefix("```") if block is None else None
        elif not block:
            for found in re.finditer(r"(?<![\w$/.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![\w*])", line):
                yield number, found.group()


def check_names():
    """files, functions, structs and constants that documents name exist"""
    names = tracked("")
    words = words_of_tree(names)
    structs = set(re.findall(r"struct (\w+)", "".join(map(read, tracked(*CODE)))))

    def matching(document, pattern):
        """Files that a document means: below its own folder, the root, or any folder."""
        pattern = os.path.normpath(pattern)
        folder = os.path.dirname(document)
        for whole in (os.path.join(folder, pattern), pattern, "*/" + pattern):
            found = fnmatch.filter(names, whole)
            if found:
                return found
        return []

    for document in tracked(".md"):
        for number, constant in constants(document):
            if constant not in words:
                yield f"{document}:{number}: {constant}: nothing has that name"
        for number, text in quoted(document):
            where = f"{document}:{number}: {text.strip()}"
            for found in re.finditer(f"({SOURCE_NAME})(?::([a-z_]\\w*))?", text):
                if found.group(1).startswith(FOREIGN):
                    continue
                for pattern in braces(found.group(1)):
                    files = matching(document, pattern)
                    if not files:
                        yield f"{where}: no file {pattern}"
                    elif found.group(2) and not any(
                            re.search(rf"\b{found.group(2)}\(", read(file)) for file in files):
                        yield f"{where}: no function {found.group(2)} in {files[0]}"
            for struct in re.findall(r"^struct (\w+)$", text):
                if struct not in structs:
                    yield f"{where}: no such struct"
            if re.fullmatch(r"[a-z]\w*_\w+(\(\))?", text) and text.rstrip("()") not in words:
                yield f"{where}: nothing has that name"


def check_figures():
    """FIGURES.md is what loadtest/figures.py writes"""
    result = subprocess.run([sys.executable, "loadtest/figures.py", "--check"], cwd=ROOT,
                            capture_output=True, text=True)
    if result.returncode:
        yield from (result.stdout + result.stderr).splitlines()


def paragraphs(name):
    """(line number, lines) of each paragraph or list item; no tables, code, headings or quotes."""
    block, lines, start = False, [], 0
    for number, line in enumerate([*read(name).splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            block = not block
        skipped = block or not line.strip() or line.lstrip().startswith(("```", "|", "#", ">", "!["))
        skipped = skipped or (not lines and line.startswith("    "))
        item = re.match(r" *([-*]|\d+\.) ", line)
        if (skipped or item) and lines:
            yield start, lines
            lines = []
        if not skipped:
            start = start if lines else number
            lines.append(line)


def check_paragraphs():
    """paragraphs of documents stay short"""
    for name in tracked(".md"):
        for number, lines in paragraphs(name):
            words = len(" ".join(lines).split())
            if words > PARAGRAPH_WORDS:
                yield f"{name}:{number}: a paragraph of {words} words (at most {PARAGRAPH_WORDS})"
            if len(lines) > PARAGRAPH_LINES:
                yield f"{name}:{number}: a paragraph of {len(lines)} lines (at most {PARAGRAPH_LINES})"
            for place, line in enumerate(lines, number):
                if len(line) > LINE_COLUMNS:
                    yield f"{name}:{place}: {len(line)} columns (at most {LINE_COLUMNS})"


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
    for check in [check_format, check_python, check_includes, check_rings, check_below_main, check_sizes,
                  check_headers, check_licence, check_words, check_links,
                  check_names, check_figures, check_paragraphs, check_scripts]:
        faults = list(check())
        for fault in faults:
            print(fault)
        print(f"{'FAILED' if faults else 'ok':6} {check.__doc__}")
        passed, failed = passed + (not faults), failed + bool(faults)
    print(f"lint: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(print_graph() if sys.argv[1:] == ["--graph"] else main())
