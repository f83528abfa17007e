# SPDX-License-Identifier: Apache-2.0
"""A session on a lent GPU, rehearsed on a CPU: packing, training in a time, and what comes back."""

import argparse
import json
import re
import shutil
from pathlib import Path

import pytest

from train import gpu_session
from train.checkpoint import load_tensors
from train.documents import read_documents, text_files
from train.tokenizer import train_tokenizer


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": f"{i} Grüße, {i * i} mice.\r\n" * (20 + i)}) for i in range(40)]
    (folder / "a.jsonl").write_text("\n".join(lines[:25]) + "\n")
    (folder / "b.jsonl").write_text("\n".join(lines[25:]) + "\n")
    return folder


def pack(texts, folder, mib, without=()):
    gpu_session.pack(
        argparse.Namespace(data=texts, without=without, mib=mib, seed=0, folder=folder)
    )
    return list(read_documents(text_files(folder)))


def test_a_pack_has_what_fits(texts, tmp_path, capsys):
    whole = list(read_documents(text_files(texts)))
    assert sorted(pack(texts, tmp_path / "all", 1)) == sorted(whole)
    some = pack(texts, tmp_path / "all", 0.002)  # in the place of what was there
    size = sum(file.stat().st_size for file in (tmp_path / "all").iterdir())
    assert 0 < len(some) < 40 and set(some) < set(whole) and size <= 0.002 * 2**20
    assert f"{len(some)} of 40 documents" in capsys.readouterr().out
    held_out = pack(texts, tmp_path / "few", 1, [texts / "b.jsonl"])
    assert sorted(held_out) == sorted(whole[:25])
    with pytest.raises(SystemExit, match="room for a document"):
        pack(texts, tmp_path / "none", 1e-6)


@pytest.fixture
def session(tmp_path, texts, raw_config, monkeypatch):
    """Runs a session with a small model; returns its status and its log."""
    model = tmp_path / "model"
    model.mkdir()
    train_tokenizer(read_documents(text_files(texts)), 300).save(str(model / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(gpu_session, "MODEL", model)
    monkeypatch.setattr(gpu_session, "CONFIG", tmp_path / "config.json")
    monkeypatch.setattr(gpu_session, "BATCH", 2)
    recipe = [*gpu_session.RECIPE, "--batch", 2, "--window", 32, "--threads", 1]
    monkeypatch.setattr(gpu_session, "RECIPE", recipe)
    pack(texts, tmp_path / "packed", 1)

    def run(**changes):
        args = {"folder": tmp_path / "packed", "run": tmp_path / "run", "out": tmp_path / "out",
                "seconds": 1e6, "compile_share": 0.5, "epochs": 100, "steps": 6, "device": "cpu"}
        with pytest.raises(SystemExit) as ended:
            gpu_session.run(argparse.Namespace(**{**args, **changes}))
        return ended.value.code, (tmp_path / "out/train.log").read_text()

    return run


def test_a_session_trains_and_exports(session, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # --compile does nothing: this is about the rest
    status, log = session()
    assert status == 0 and '{"step": 6, "of": 6' in log and "without" not in log
    assert re.search(r"'check': 'line'.*'compile': True", log)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["model.safetensors", "train.log"]
    shutil.copy(tmp_path / "config.json", tmp_path / "out")
    assert load_tensors(tmp_path / "out")["model.embeddings.weight"].isfinite().all()


def test_a_session_goes_on_where_compiling_takes_too_long(session):
    status, log = session(compile_share=0)
    assert status == 0 and "no step with --compile" in log
    assert '{"step": 6, "of": 6' in log and re.search(r"'compile': False", log)


def test_a_session_that_fails_says_so(session, tmp_path):
    status, log = session(device="nonsense")
    assert status == 1 and "no state was saved" in log and "nonsense" in log
    assert not (tmp_path / "out/model.safetensors").exists()


def test_a_session_exports_the_last_state_of_a_run_that_ends_early(session, tmp_path, monkeypatch):
    """The rates are such that a loss is not finite after a while."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    wild = ["--lr", 1e30, "--clip", 0, "--warmup", 1000, "--log-every", 1, "--save-seconds", -1]
    monkeypatch.setattr(gpu_session, "RECIPE", [*gpu_session.RECIPE, *wild])
    status, log = session(steps=1000)
    assert status == 1 and "train.fit: step" in log and "exported" in log
    shutil.copy(tmp_path / "config.json", tmp_path / "out")
    assert load_tensors(tmp_path / "out")["model.embeddings.weight"].isfinite().all()
