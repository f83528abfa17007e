# SPDX-License-Identifier: Apache-2.0
"""Reads files that a user gives. An error names the file, the line where there is one, what was
expected and what was there; `told` ends a program with it."""

import codecs
import errno
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

# What a file may begin with that is no text. Longer ones first: UTF-16's is the head of UTF-32's.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def words(error):
    """An error in one line. An OSError's begins with the file, as the others do."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def told(program, *kinds):
    """What a user can mend, and errors of these kinds, end the program with one sentence."""
    try:
        yield
    except (ValueError, OSError, *kinds) as error:
        sys.exit(f"{program}: {words(error)}")


def must_exist(path):
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return path


def encoding_of(data):
    """By the mark at the head of the bytes; else UTF-8."""
    return next((name for mark, name in MARKS if data.startswith(mark)), "utf-8")


def decode(path, data, line=1):
    """The text of bytes that begin at this line of a file, without a mark at their head."""
    encoding = encoding_of(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].decode(error.encoding, "replace").count("\n")
        name = encoding.removesuffix("-sig").upper()
        hint = "" if name != "UTF-8" else (
            "; `iconv -f WINDOWS-1252 -t UTF-8` makes it of Western texts of Windows"
        )
        raise ValueError(
            f"{path}:{line}: expected {name}, got the byte 0x{error.object[error.start]:02x} "
            f"({error.reason}){hint}"
        ) from None
    if "\0" in text:
        line += text[: text.index("\0")].count("\n")
        raise ValueError(f"{path}:{line}: expected text, got a zero byte (UTF-16 without a mark?)")
    return text


def read_text(path):
    return decode(path, Path(path).read_bytes())


def parse_object(text, path, line=1):
    """The JSON object that a text is, which begins at this line of a file."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"{path}:{line}: expected JSON, got too deep a nesting") from None
    except ValueError as error:
        line += getattr(error, "lineno", 1) - 1
        column = f", column {error.colno}" if hasattr(error, "colno") else ""
        said = getattr(error, "msg", error) if text.strip() else "nothing"
        raise ValueError(f"{path}:{line}{column}: expected JSON, got: {said}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}:{line}: expected a JSON object, got {text.strip()[:40]}")
    return value


def read_object(path):
    """The JSON object in a file."""
    return parse_object(read_text(path), path)
