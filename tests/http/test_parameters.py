# SPDX-License-Identifier: Apache-2.0
"""Every parameter of api/parameters.md is what the table says: honoured, refused by name unless its
value asks for nothing, or harmless. What is in no table is ignored, counted and logged."""

import json
import re
import subprocess

import pytest
from harness import BINARY, ROOT

SAID = (ROOT / "api" / "parameters.md").read_text()
ROWS = [[cell.strip() for cell in line[1:-1].split("|")] for line in SAID.splitlines()
        if line.startswith("| `")]
TABLE = {row[0].strip("`"): row[2] for row in ROWS}
NOTHING = [(row[0].strip("`"), json.loads(value)) for row in ROWS
           for value in re.findall(r"\S+", row[3].strip("`")) if row[2] == "refused"]
SMALL = {"prompt": [5], "max_tokens": 1}


def named(kind):
    return [name for name, what in TABLE.items() if what == kind]


def test_the_document_is_the_programs_table():
    table = subprocess.run([BINARY, "help", "--parameters"], capture_output=True, text=True,
                           check=True).stdout
    assert SAID.endswith(table), "regla help --parameters >api/parameters.md, behind its head"


@pytest.mark.parametrize("name", named("refused") + ["guided_something"])
def test_refused(server, name):
    for value in ("x", 7, [1], {"a": 1}):
        assert server.refuse(400, **SMALL, **{name: value})["code"] == "unsupported_parameter"
    assert server.refuse(400, **SMALL, **{name: "x"})["param"] == name


@pytest.mark.parametrize("name, value", NOTHING)
def test_asks_for_nothing(server, name, value):
    assert server.complete(**SMALL, **{name: value})
    assert server.complete(**SMALL, **{name: None})


def test_harmless(server):
    before = server.metric("regla_unknown_fields_total")
    drawn = {"prompt": [5], "max_tokens": 6, "seed": 3, "temperature": 1.5, "top_p": 0.5,
             "presence_penalty": 1, "repetition_penalty": 1.2, "ignore_eos": True}
    plain = server.complete(**drawn)["choices"]
    for name in named("harmless"):
        for value in (0, "x", [1], True):
            assert server.complete(**drawn, **{name: value})["choices"] == plain
    assert server.metric("regla_unknown_fields_total") == before


@pytest.mark.parametrize("name", named("honoured"))
def test_honoured_has_tests(name):
    """Some test beside this one sends it: name=... or "name": ..."""
    sends = re.compile(rf'(?<![\w.]){name}=|\\?"{name}\\?":|\("{name}", ')
    files = {*(ROOT / "tests" / "http").rglob("*.py"), *(ROOT / "tests" / "unit").glob("test_compl*.c")}
    assert any(sends.search(file.read_text()) for file in files - {ROOT / "tests/http/test_parameters.py"}
               ) or f"def test_{name}" in (ROOT / "tests/http/test_parameters.py").read_text()


def test_what_nobody_knows_is_counted_and_logged(server):
    before = server.metric("regla_unknown_fields_total")
    server.complete(**SMALL, temprature=0.5, frobnicate=None, another=[])
    assert server.metric("regla_unknown_fields_total") == before + 2
    assert "unknown_field=temprature" in server.tail()


# What came with the table

def test_max_completion_tokens(server):
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 3}):
        reply = server.complete(prompt=[5], ignore_eos=True, **fields)
        assert reply["usage"]["completion_tokens"] == 3
    error = server.refuse(400, prompt=[5], max_tokens=3, max_completion_tokens=4)
    assert error["param"] == "max_completion_tokens"


def test_truncation_side(server):
    def kept(**fields):
        choice = server.complete(prompt=list(range(5, 15)), max_tokens=1, return_token_ids=True,
                                 **fields)["choices"][0]
        return choice["prompt_token_ids"]
    assert kept(truncate_prompt_tokens=3) == [12, 13, 14]
    assert kept(truncate_prompt_tokens=3, truncation_side="left") == [12, 13, 14]
    assert kept(truncate_prompt_tokens=3, truncation_side="right") == [5, 6, 7]
    assert kept(truncate_prompt_tokens=30, truncation_side="right") == list(range(5, 15))
    assert kept(truncate_prompt_tokens=-1) == list(range(5, 15))  # nothing limits it
    assert server.refuse(400, **SMALL, truncation_side="middle")["param"] == "truncation_side"
    for value in (0, -2):
        assert server.refuse(400, **SMALL, truncate_prompt_tokens=value
                             )["param"] == "truncate_prompt_tokens"


def test_a_prompt_is_cut_to_what_leaves_room(server_factory):
    server = server_factory(max_model_len=20)
    for side, expected in (("left", list(range(20, 35))), ("right", list(range(5, 20)))):
        choice = server.complete(prompt=list(range(5, 35)), max_tokens=5, return_token_ids=True,
                                 truncate_prompt_tokens=-1, truncation_side=side)["choices"][0]
        assert choice["prompt_token_ids"] == expected
    error = server.refuse(400, prompt=list(range(5, 35)), max_tokens=20, truncate_prompt_tokens=-1)
    assert error["message"].startswith("This model's maximum context length is 20 tokens")


def test_usage_in_every_frame_needs_include_usage(server):
    alone = server.stream(**SMALL, stream_options={"continuous_usage_stats": True})
    assert all(frame.get("usage") is None for frame in alone)
    both = server.stream(**SMALL, stream_options={"continuous_usage_stats": True,
                                                  "include_usage": True})
    assert all(frame["usage"] for frame in both)
