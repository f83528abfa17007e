# SPDX-License-Identifier: Apache-2.0
"""loadtest/cuda_transformers.py with false models in the place of theirs, and a false program in the
place of ours: that little time gives some points, and that what fails says why."""

import argparse
import contextlib
import csv
import sys
import time
from types import SimpleNamespace

import pytest

from harness import ROOT

sys.path.append(str(ROOT / "loadtest"))
import cuda_transformers

pytestmark = pytest.mark.builds("dev")  # the tools of loadtest/, in Python

TORCH = SimpleNamespace(
    cuda=SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None),
    _dynamo=SimpleNamespace(reset=lambda: None), no_grad=contextlib.nullcontext,
    randint=lambda low, high, shape, device: SimpleNamespace(shape=shape), ones_like=lambda like: like)


class Model:
    """Theirs. behave(batch, tokens) is what it does instead of generating."""

    config = None

    def __init__(self, behave):
        self.behave = behave

    def generate(self, prompt, max_new_tokens, **_):
        self.behave(prompt.shape[0], max_new_tokens)
        return SimpleNamespace(shape=(prompt.shape[0], prompt.shape[1] + max_new_tokens))


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Runs the comparison; regla is what a shell does with the arguments of `regla bench`."""
    cache = SimpleNamespace(reset=lambda: None)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(StaticCache=lambda **_: cache))
    monkeypatch.setattr(cuda_transformers, "LEAST_SECONDS", 0.05)
    loaded = []

    def with_theirs(seconds, regla, gpt_neox, gla=None, lengths=(8, 16), batches=(1, 4)):
        program = tmp_path / "regla"
        program.write_text(f"#!/bin/bash\necho \"$*\" >>{tmp_path}/asked\n{regla}\n"
                           "echo '{\"results\": [{\"tokens_per_second\": 100}]}'\n")
        program.chmod(0o755)
        for name, behave in (("gpt_neox", gpt_neox), ("gla", gla)):
            monkeypatch.setattr(cuda_transformers, name, lambda *_, name=name, behave=behave:
                                behave and (loaded.append(name) or Model(behave)))
        good = cuda_transformers.compare(TORCH, argparse.Namespace(
            regla=str(program), seconds=seconds, lengths=lengths, batches=batches, activations="f32",
            out=tmp_path / "out.csv"))
        with open(tmp_path / "out.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        asked = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
        return good, rows, asked, loaded

    return with_theirs


def quick(_batch, _tokens):
    time.sleep(0.01)


def test_each_point_is_ours_beside_theirs(compare, capsys):
    good, rows, asked, loaded = compare(60, "", quick, quick)
    assert good and loaded == ["gpt_neox", "gla"]
    points = [(row["length"], row["batch"], row["theirs"], row["regla"]) for row in rows]
    assert points == [(length, batch, theirs, ours) for length in ("8", "16")
                      for theirs, beside in (("gpt_neox", ("gpt_neox", "regla", "hybrid_regla")),
                                             ("gla", ("gla",)))
                      for batch in ("1", "4") for ours in beside]
    for row in rows:
        theirs = float(row["theirs_tokens_per_second"])
        assert 0 < theirs <= int(row["length"]) * int(row["batch"]) / 0.01 and row["failed"] == ""
        assert float(row["ratio"]) == pytest.approx(100 / theirs)
    assert "--preset gpt_neox-160m " in asked[0] and "--tg 8 --depth 16 --batch 1 " in asked[0]
    assert "--model " in asked[6] and len(asked) == len(rows)
    said = capsys.readouterr().out
    assert said.count("figure: ") == len(rows) and "figure: 8 tokens, batch 1: gpt_neox " in said


def test_what_fails_says_why_and_the_rest_goes_on(compare, capsys):
    def fails_at_four(batch, tokens):
        if batch == 4:
            raise ValueError("\nno such shape\nmore")
        quick(batch, tokens)

    fails = 'case "$*" in *" regla-160m"*) echo "regla: bench: no room" >&2; exit 3;; esac'
    good, rows, _, _ = compare(60, fails, fails_at_four, lengths=(8,))
    assert good
    by = {(row["batch"], row["regla"]): row for row in rows}
    assert by["1", "gpt_neox"]["failed"] == "" and by["1", "gpt_neox"]["ratio"]
    assert by["1", "regla"]["failed"] == "regla regla: status 3: regla: bench: no room"
    assert by["1", "regla"]["theirs_tokens_per_second"] and not by["1", "regla"]["ratio"]
    assert by["4", "gpt_neox"]["failed"] == "gpt_neox: ValueError: no such shape"
    assert by["4", "gpt_neox"]["regla_tokens_per_second"] == "100"
    assert by["4", "regla"]["failed"] == \
        "regla regla: status 3: regla: bench: no room; gpt_neox: ValueError: no such shape"
    assert "8 tokens, batch 4: gpt_neox: ValueError: no such shape\n" in capsys.readouterr().out


def test_who_takes_too_long_is_stopped_and_says_what_it_had_said(compare, monkeypatch):
    def hangs(batch, tokens):
        while batch == 1:
            time.sleep(0.01)

    monkeypatch.setattr(cuda_transformers, "BENCH_SECONDS", 0.5)
    good, rows, _, _ = compare(
        8, 'case "$*" in *hybrid*) echo "regla: waiting" >&2; exec sleep 60;; esac', hangs, lengths=(8,))
    assert good  # with batch 4
    by = {(row["batch"], row["regla"]): row for row in rows}
    assert by["1", "hybrid_regla"]["failed"].startswith(
        "regla hybrid_regla: stopped after 0.5 s: regla: waiting; ")
    assert "gpt_neox: stopped after " in by["1", "gpt_neox"]["failed"]
    assert by["1", "gpt_neox"]["regla_tokens_per_second"] == "100"
    assert by["4", "gpt_neox"]["failed"] == "" and by["4", "gpt_neox"]["ratio"]


def test_when_time_is_over_what_there_is_stays(compare, monkeypatch):
    calls = []
    monkeypatch.setattr(cuda_transformers.Clock, "left", lambda clock: 0 if calls else 60)
    good, rows, asked, _ = compare(60, "", lambda *call: calls.append(call))
    assert good and len(asked) == 3 and all(row["ratio"] and row["failed"] == "" for row in rows[:3])
    assert rows[-1]["failed"] == "regla hybrid_regla: out of time; gpt_neox: out of time"


def test_nothing_to_compare_is_a_failure(compare):
    def fails(_batch, _tokens):
        raise RuntimeError("no")

    good, rows, _, _ = compare(60, "", fails, lengths=(8,))
    assert not good and all(not row["ratio"] for row in rows)
