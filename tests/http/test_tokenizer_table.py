# SPDX-License-Identifier: Apache-2.0
"""Every row of lib/text/tokenizer.tsv is what the table says, against Hugging Face's library; and
random changes of tokenizer.json files of known styles give the same as there, or are refused."""

import copy
import json
import random
import sys

import pytest
from harness import BINARY, ROOT

sys.path.insert(0, str(ROOT / "tests" / "scripts"))

from tokenizer_mutations import Regla, byte_level, compare, library_answers, mutate, sequence, split, styles
from tokenizer_table import bases, change, parsed, rows

pytestmark = [pytest.mark.builds("dev"), pytest.mark.long]  # some 1,500 processes
BASES = bases()
IDS = [5, 6, 7, 300, 301, 302, 259, 258]
STYLES = styles()
MUTATIONS = 60


def refusal(regla):
    with pytest.raises(ValueError) as caught:
        regla.answers([[]])
    return str(caught.value).split("tokenizer.json: ")[-1]


def answers(state, special=False):
    return library_answers(json.dumps(state), IDS, special)


@pytest.fixture(scope="module")
def plain_answers():
    whole = change(BASES["plain"], {"pre_tokenizer": byte_level(regex=False)})
    return {name: answers(state) for name, state in {**BASES, "whole": whole}.items()}


@pytest.mark.parametrize("field, here, base, tried", list(rows("tokenizer.json")))
def test_tokenizer_json(tmp_path, plain_answers, field, here, base, tried):
    state = change(BASES[base], parsed(tried))
    regla = Regla(BINARY, tmp_path)
    regla.file.write_text(json.dumps(state))
    if here == "refused":
        name = field.split(".")[-1].split(" ")[0].split("[")[0]
        assert name in refusal(regla) or field == "any other key"
        return
    lists, *expected = answers(state)
    assert regla.answers(lists) == tuple(expected)
    if here == "harmless":
        assert expected == list(plain_answers[base][1:])
    else:
        assert (lists, *expected) != plain_answers[base], "the change changes nothing"


@pytest.mark.parametrize("expression, here", [*rows("Patterns"), ("fo|o", "followed")])
def test_patterns(tmp_path, plain_answers, expression, here):
    state = change(
        BASES["plain"],
        {"pre_tokenizer": sequence("pretokenizers", split(expression, "Removed"), byte_level(regex=False))},
    )
    regla = Regla(BINARY, tmp_path)
    regla.file.write_text(json.dumps(state))
    if here == "refused":
        message = refusal(regla)
        assert "pattern" in message and ("is not supported" in message or "PCRE2" in message), message
        return
    lists, *expected = answers(state)
    assert regla.answers(lists) == tuple(expected)
    assert expression == "\\v" or expected != list(plain_answers["whole"][1:]), "it matches nowhere"


@pytest.mark.parametrize("key, here, tried, same", list(rows("tokenizer_config.json")))
def test_tokenizer_config_json(tmp_path, plain_answers, key, here, tried, same):
    (tmp_path / "tokenizer.json").write_text(json.dumps(BASES["plain"]))
    (tmp_path / "tokenizer_config.json").write_text(tried)
    regla = Regla(BINARY, tmp_path)
    regla.file = tmp_path
    if here == "refused":
        message = refusal(regla)
        assert key in message or (key == "auto_map" and "tokenizer_class" in message), message
        return
    as_json = parsed(same) or {}
    special = as_json.pop("encode_special_tokens", False)
    lists, *expected = answers(change(BASES["plain"], as_json), special)
    assert regla.answers(lists) == tuple(expected)
    if here == "harmless":
        assert expected == list(plain_answers["plain"][1:])


@pytest.mark.builds("dev", "asan")
def test_the_class_comes_from_the_model_where_the_file_has_none(tmp_path):
    """special_tokens_map.json and added_tokens.json are read, too."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(BASES["plain"]))
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true, "model_max_length": 1e30}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox"}')
    size = len(BASES["plain"]["model"]["vocab"])
    (tmp_path / "special_tokens_map.json").write_text(
        '{"pad_token": "fox", "cls_token": {"content": "dog"}}'
    )
    (tmp_path / "added_tokens.json").write_text(f'{{"lazy": {size + 3}}}')
    regla = Regla(BINARY, tmp_path)
    regla.file = tmp_path
    assert regla.encode("quick", False) == regla.encode(" quick", False) != []
    assert regla.encode("lazy", False) == [size]
    assert regla.encode("foxdog", False) == [size + 1, size + 2]


@pytest.mark.parametrize("name", STYLES)
def test_known_styles(tmp_path, name):
    """As they are, before they are changed at random."""
    result, message = compare(Regla(BINARY, tmp_path), STYLES[name], random.Random(name))
    assert result == "same", message


@pytest.mark.parametrize("part", range(4))
def test_random_changes(tmp_path, part):
    regla = Regla(BINARY, tmp_path)
    for i in range(part, MUTATIONS, 4):
        rng = random.Random(f"tests {i}")
        name = sorted(STYLES)[i % len(STYLES)]
        state = mutate(rng, copy.deepcopy(STYLES[name]))
        result, message = compare(regla, state, rng)
        assert not result.isupper(), f"{name} {i}: {result}: {message}"
