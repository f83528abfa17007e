# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of engine/text/tokenizer.md, and makes the changes that they tell."""

import copy
import json
import re

from tokenizer_mutations import ROOT, added, byte_level, load

TEXT = (ROOT / "engine" / "text" / "tokenizer.md").read_text()


def rows(section):
    """The cells of a section's rows; `code` without its quotes."""
    part = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    for line in part.splitlines():
        if (
            line.startswith("| ")
            and not line.endswith("|---|")
            and not re.match(r"\| (field|key|expression) ", line)
        ):
            yield [cell.strip().strip("`") for cell in line[1:-1].split(" | ")]


def bases():
    plain = load(
        "neox",
        normalizer=None,
        pre_tokenizer=byte_level(),
        decoder=byte_level(),
        post_processor=None,
        added_tokens=[added(0, "<|endoftext|>", special=True)],
    )
    return {"plain": plain, "bytes": load("neox"), "pieces": load("llama")}


def change(state, tried):
    """The state with the values of `tried` at their paths."""
    state = copy.deepcopy(state)
    for path, value in tried.items():
        *parents, last = path.split(".")
        place = state
        for key in parents:
            place = place[int(key) if isinstance(place, list) else key]
        if isinstance(place, list) and last.startswith("-"):
            place.append(value)
        elif value == "(absent)":
            del place[int(last) if isinstance(place, list) else last]
        else:
            place[int(last) if isinstance(place, list) else last] = value
    return state


def parsed(cell):
    return json.loads(cell) if cell else None
