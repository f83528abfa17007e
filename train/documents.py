# SPDX-License-Identifier: Apache-2.0
"""Reads training texts: plain text (a file is one document) or JSONL with a "text" field (a line is
one document), either of them bare, .gz, .xz or .bz2; a folder stands for the files in it.
"""

import bz2
import gzip
import json
import lzma
from pathlib import Path

_OPEN = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_SUFFIXES = (".md", *(kind + end for kind in (".txt", ".jsonl") for end in ("", *_OPEN)))


def text_files(path):
    """The files a path stands for: itself, or a folder's text files in the order of their names."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES) and p.name != "README.md")


def read_documents(paths):
    """Yields every document of the files, as a string."""
    for path in paths:
        path = Path(path)
        opener = _OPEN.get(path.suffix, open)
        bare = path.with_suffix("") if path.suffix in _OPEN else path
        with opener(path, "rt", encoding="utf-8", errors="strict", newline="") as file:
            if bare.suffix != ".jsonl":
                yield file.read()
                continue
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                record = json.loads(line)
                if not isinstance(record.get("text"), str):
                    raise ValueError(f'{path}:{number}: no "text" string')
                yield record["text"]
