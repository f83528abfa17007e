# SPDX-License-Identifier: Apache-2.0
"""Renders the chat templates that packages ship, by jinja2 as transformers sets it up and by ours,
on the conversations of tests/data/jinja. Every text must be the same, byte for byte, and we may
refuse only what jinja2 refuses.

    cmake --build build/dev --target render_templates
    python tests/scripts/check_package_templates.py build/dev/render_templates PLACE...

A place is a folder (an environment's site-packages, an unpacked sdist), a wheel or an sdist. In it
these count as templates: files *.jinja, `chat_template` in JSON and GGUF files, and strings of
Python files that loop over messages. Needs transformers (5.24.0), and gguf for GGUF files.
"""

import ast
import functools
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import make_chat_templates as reference

LONG = 20000  # characters of a message, which would be much for cases.json
ENDINGS = (".jinja", ".jinja2", ".json", ".py", ".gguf")


def files(place):
    """(name, function that reads it) of all files of a place that may have templates."""
    if place.is_dir():
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.name.endswith(ENDINGS):
                yield str(path.relative_to(place)), path.read_bytes
    elif place.suffix == ".whl":
        with zipfile.ZipFile(place) as archive:
            for name in archive.namelist():
                if name.endswith(ENDINGS):
                    yield name, functools.partial(archive.read, name)
    else:
        with tarfile.open(place) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(ENDINGS):
                    yield member.name, archive.extractfile(member).read


def looks_like_one(text):
    return "messages" in text and "{%" in text and "%}" in text


def of_json(name, value):
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "chat_template" and isinstance(item, str):
                yield name, item
            else:
                yield from of_json(f"{name}: {key}", item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and set(item) == {"name", "template"}:
                yield f"{name}: {item['name']}", item["template"]
            else:
                yield from of_json(name, item)


def of_python(name, text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and looks_like_one(node.value):
            yield f"{name}:{node.lineno}", node.value


def of_gguf(name, content):
    import gguf
    path = pathlib.Path("/dev/shm") / f"check_package_templates.{pathlib.PurePath(name).name}"
    path.write_bytes(content)
    try:
        field = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
    finally:
        path.unlink()
    if field:
        yield name, field.contents()


def templates(name, read):
    if name.endswith(".gguf"):
        yield from of_gguf(name, read())
        return
    text = io.TextIOWrapper(io.BytesIO(read()), encoding="utf-8", errors="strict")
    try:
        text = text.read()
        if name.endswith((".jinja", ".jinja2")):
            if looks_like_one(text):
                yield name, text
        elif "chat_template" in text and name.endswith(".json"):
            yield from of_json(name, json.loads(text))
        elif name.endswith(".py") and looks_like_one(text):
            yield from of_python(name, text)
    except (UnicodeDecodeError, ValueError, SyntaxError):
        return  # not UTF-8, JSON or Python: no template


def conversations():
    given = json.loads((reference.OUT / "conversations.json").read_text(encoding="utf-8"))
    long = {**given[1], "messages": [{**message, "content": message["content"] * (LONG // 10)}
                                     for message in given[1]["messages"]]}
    return [*given, long]


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, source, contexts):
        request = {"source": source, "contexts": contexts, "now": reference.NOW}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        return list(zip(reply["texts"], reply["errors"]))


def compare(ours, name, source, contexts):
    """How many texts differ, are the same, and are refused by both."""
    counts = [0, 0, 0]
    for i, (context, (text, error)) in enumerate(zip(contexts, ours.render(source, contexts))):
        expected = reference.render(source, context)
        counts[0 if text != expected else 1 if text is not None else 2] += 1
        if text != expected:
            print(f"{name}: conversation {i}: {error or 'another text'}")
            print(f"  expected: {expected!r:.1500}\n  got:      {text!r:.1500}")
    return counts


def main(program, *places):
    reference.chat_template_utils.datetime = reference.FixedTime
    ours, contexts, seen = Ours(program), conversations(), {}
    sums, by_place = [0, 0, 0], {}
    for place in places:
        for name, read in files(pathlib.Path(place)):
            for where, source in templates(name, read):
                if source not in seen:
                    seen[source] = where
                    by_place[place] = by_place.get(place, 0) + 1
                    sums = [a + b for a, b in zip(sums, compare(ours, where, source, contexts))]
    for place, count in by_place.items():
        print(f"{count:5d} {place}")
    print(f"check_package_templates: {len(seen)} templates on {len(contexts)} conversations: "
          f"{sums[0]} differ, {sums[1]} have the same text, {sums[2]} are refused by both")
    return 1 if sums[0] or not seen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
