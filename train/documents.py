# SPDX-License-Identifier: Apache-2.0
"""Reads training texts: plain text (a file is one document) or JSONL with a "text" field (a line is
one document), either of them bare, .gz, .xz or .bz2; a folder stands for the files in it and in its
folders. Texts are UTF-8, or what a byte order mark at their head says; the mark is no text.
"""

import bz2
import gzip
import lzma
import os
import sys
import zlib
from collections import Counter
from itertools import chain
from pathlib import Path

from train.files import decode, encoding_of, must_exist, parse_object

_OPEN = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_SUFFIXES = (".md", *(kind + end for kind in (".txt", ".jsonl") for end in ("", *_OPEN)))


def _fail(error):
    raise error


def _inside(folder):
    """The files in a folder and in its folders, but hidden ones and cards of models."""
    for at, folders, names in os.walk(folder, onerror=_fail):
        folders[:] = (name for name in folders if name[0] != ".")
        yield from (Path(at, name) for name in names if name[0] != "." and name != "README.md")


def text_files(path):
    """The files a path stands for: itself, or a folder's text files in the order of their names.
    What else is in the folder is said: somebody may miss it."""
    path = must_exist(path)
    if not path.is_dir():
        return [path]
    inside = sorted(_inside(path))
    files = [p for p in inside if p.name.lower().endswith(_SUFFIXES)]
    if not files:
        raise ValueError(f"{path}: expected a text ({', '.join(_SUFFIXES)}), found none")
    left = Counter(p.suffix.lower() or p.name for p in set(inside).difference(files))
    if left:
        kinds = ", ".join(f"{count} {kind}" for kind, count in left.most_common(5))
        print(f"# {path}: {len(files)} texts; left aside as no texts: {kinds}", file=sys.stderr)
    return files


def training_files(paths, without=()):
    """The files of these paths but those that are held out."""
    held_out = {file.resolve() for path in without for file in text_files(path)}
    files = [file for path in paths for file in text_files(path) if file.resolve() not in held_out]
    if not files:
        raise ValueError(f"{' '.join(map(str, paths))}: expected a text that is not held out, found none")
    return files


def _lines(path, file):
    """The lines of a file, in UTF-8."""
    first = file.readline()
    if encoding_of(first) in ("utf-16", "utf-32"):
        yield from decode(path, first + file.read()).encode().splitlines()
        return
    for part in chain([first], file):
        yield from part.splitlines()


def _texts(path, file):
    """The "text" of each line of JSONL."""
    for number, line in enumerate(_lines(path, file), 1):
        line = decode(path, line, number)
        if not line.strip():
            continue
        text = parse_object(line, path, number).get("text")
        if not isinstance(text, str):
            raise ValueError(f'{path}:{number}: expected a "text" string, got {line.strip()[:40]}')
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            raise ValueError(f"{path}:{number}: expected text, got {half}, half a character") from None
        yield text.removeprefix("\ufeff")


def read_documents(paths):
    """Yields every document of the files that is not empty, as a string."""
    for path in map(Path, paths):
        end = path.suffix.lower()
        bare = path.with_suffix("") if end in _OPEN else path
        try:
            with _OPEN.get(end, open)(path, "rb") as file:
                if bare.suffix.lower() == ".jsonl":
                    yield from filter(None, _texts(path, file))
                elif text := decode(path, file.read()):
                    yield text
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise ValueError(f"{path}: expected a whole {end} file, got: {error}") from None
