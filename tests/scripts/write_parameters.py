#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what a build's `regla help` prints of the table of parameters (api/parameter_table.c) into
api/parameters.md, behind its head, and api/openapi.json, as the properties of requests. Standard
library only.

    tests/scripts/write_parameters.py [build/dev/regla]
"""

import json
import re
import subprocess
import sys
from pathlib import Path

API = Path(__file__).resolve().parents[2] / "api"
COLUMNS = 100


def printed(binary, what):
    return subprocess.run([binary, "help", what], capture_output=True, text=True, check=True).stdout


def pretty(value, indent, column):
    """The value as JSON, whose first line begins at the column: what has no room takes a line a part."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or column + len(line) < COLUMNS:
        return line
    inner, outer = " " * (indent + 2), " " * indent
    if isinstance(value, list):
        parts = [pretty(item, indent + 2, indent + 2) for item in value]
        return "[\n" + ",\n".join(inner + part for part in parts) + f"\n{outer}]"
    names = {json.dumps(name) + ": ": item for name, item in value.items()}
    parts = [name + pretty(item, indent + 2, indent + 2 + len(name)) for name, item in names.items()]
    return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{outer}}}"


def parameters(document, binary):
    head = document[:document.index("\n| parameter |") + 1]
    return head + printed(binary, "--parameters")


def openapi(document, binary):
    for schema, properties in json.loads(printed(binary, "--schemas")).items():
        place = re.compile(rf'(^      "{schema}": \{{\n(?:        .*\n)*?        "properties": )'
                           r"\{\n(?:          .*\n)*        \}", re.M)
        text = pretty(properties, 8, COLUMNS)
        document, count = place.subn(lambda found, text=text: found.group(1) + text, document)
        assert count == 1, schema
    return document


DOCUMENTS = {"parameters.md": parameters, "openapi.json": openapi}


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else "build/dev/regla"
    for name, written in DOCUMENTS.items():
        file = API / name
        file.write_text(written(file.read_text(), binary))


if __name__ == "__main__":
    main()
