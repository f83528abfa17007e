# SPDX-License-Identifier: Apache-2.0
"""Reads the table of lib/text/tokenizer.tsv, and makes the changes that they tell."""

import copy
import json
import re

from tokenizer_mutations import ROOT, added, byte_level, load, sequence

TEXT = (ROOT / "lib" / "text" / "tokenizer.tsv").read_text()


def cells(section):
    for line in TEXT.splitlines()[1:]:
        of, *rest = line.split("\t")
        if of == section:
            yield rest


def expanded(tried):
    """`added` and `first` as the changes that they stand for; all else as it is."""
    new = json.loads(tried)
    tokens = new.pop("added", [])
    for i, token in enumerate([tokens] if isinstance(tokens, dict) else tokens, 1):
        whole = {**added(999, "fox"), **token}
        new["added_tokens." + "-" * i] = {key: value for key, value in whole.items() if value != "(absent)"}
    if "first" in new:
        new["pre_tokenizer"] = sequence("pretokenizers", new.pop("first"), byte_level(regex=False))
    return json.dumps(new)


def rows(section):
    """Of tokenizer.json (field, here, to, tried), of Patterns (expression, here), of
    tokenizer_config.json (key, here, tried, as), one for each change that is tried."""
    for first, here, last, *_ in cells(section):
        if section == "Patterns":
            yield from ((expression, here) for expression in re.findall("`([^`]+)`", first))
            continue
        for name, values in re.findall(r"([^`;]+): ((?:`[^`]+` ?)+)", first):
            for tried in map(expanded, re.findall("`([^`]+)`", values)):
                name = name.strip()
                yield (name, here, last, tried) if section == "tokenizer.json" else (
                    name, here, tried, last and expanded(last.strip("`")))


def bases():
    plain = load(
        "neox",
        normalizer=None,
        pre_tokenizer=byte_level(),
        decoder=byte_level(),
        post_processor=None,
        added_tokens=[added(0, "<|endoftext|>", special=True)],
    )
    return {"plain": plain, "bytes": load("neox"), "pieces": load("llama"), "unigram": load("unigram")}


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
