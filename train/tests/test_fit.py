# SPDX-License-Identifier: Apache-2.0
"""From a text to an exported model: tokenizer, training, interruption, decay, export."""

import argparse
import bz2
import gzip
import json
import lzma
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers

import train
import train.fit
from train.checkpoint import load_model, load_tensors, save_model
from train.config import parse_config, read_config
from train.documents import read_documents, text_files
from train.evaluate import evaluate
from train.export import export
from train.finite import NotFinite
from train.fit import Windows, build, fit, make_optimizers, parse_arguments, window_loss
from train.init import new_tensors
from train.model.model import Model
from train.schedule import Schedule
from train.tokenizer import (
    END_OF_TEXT,
    END_OF_TEXT_ID,
    encode_documents,
    encode_files,
    train_tokenizer,
)


def arguments(folder, **changes):
    args = parse_arguments(
        [
            *("--config", str(folder / "config.json"), "--data", str(folder / "train.u16")),
            *("--run", str(folder / "run"), "--steps=12", "--warmup=2", "--decay=4", "--batch=2"),
            *("--parts=2", "--window=32", "--threads=1", "--log-every=1", "--save-seconds=1e9"),
        ]
    )
    return argparse.Namespace(**{**vars(args), **changes})


@pytest.fixture
def prepared(tmp_path, raw_config, text):
    tokenizer = train_tokenizer([text], 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids, _ = encode_documents(tokenizer, [text])
    ids.tofile(tmp_path / "train.u16")
    (tmp_path / "config.json").write_text(json.dumps(raw_config))
    return tmp_path


def test_taps_and_steps_are_no_matrices(prepared, raw_config):
    """Muon has the projections; AdamW, without weight decay, what is no matrix."""
    for name, mixer in (("a", {"gate": "gated_delta"}), ("b", {"gate": "mamba2"})):
        raw_config["mixers"][name] = {"kind": "linear", "conv": {"width": 4}, **mixer}
    (prepared / "config.json").write_text(json.dumps(raw_config))
    args = arguments(prepared)
    model = build(args, 0)
    adam, muon = make_optimizers(model, args)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert by_muon == {name for name in names.values() if name.endswith("proj.weight")}
    assert all(group["weight_decay"] == 0 for group in adam.param_groups)
    small = {names[id(p)].rsplit(".attn.")[-1] for group in adam.param_groups for p in group["params"]}
    assert small >= {"conv.weight", "conv.bias", "A_log", "D", "a_proj.bias", "dt_proj.bias"}


def losses(output):
    return [json.loads(line)["loss"] for line in output.splitlines() if line.startswith("{")]


def test_tokenizer_keeps_every_text(text):
    tokenizer = train_tokenizer([text], 300)
    assert tokenizer.token_to_id(END_OF_TEXT) == END_OF_TEXT_ID
    everything = "".join(map(chr, range(0x3000))) + " e\u0301 \u212b \U0001f408 \ud7ff"
    for x in (text, everything, "", " ", "  a", "\n\n \t"):
        assert tokenizer.decode(tokenizer.encode(x).ids) == x
    vocabulary = tokenizer.get_vocab()
    assert all(byte in vocabulary for byte in pre_tokenizers.ByteLevel.alphabet())
    assert len(pre_tokenizers.ByteLevel.alphabet()) == 256 and max(vocabulary.values()) < 300


def test_reads_every_kind_of_file(tmp_path):
    lines = "".join(json.dumps({"text": t}) + "\n" for t in ("one", "two"))
    (tmp_path / "a.txt").write_bytes(b"plain\r\n")
    (tmp_path / "b.jsonl").write_text(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "d.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    (tmp_path / "e.jsonl.bz2").write_bytes(bz2.compress(b"") + bz2.compress(lines.encode()))
    (tmp_path / "ignored.bin").write_bytes(b"\xff")
    assert list(read_documents(text_files(tmp_path))) == ["plain\r\n"] + ["one", "two"] * 4
    (tmp_path / "b.jsonl").write_text('{"body": 1}\n')
    with pytest.raises(ValueError, match="b.jsonl:1"):
        list(read_documents([tmp_path / "b.jsonl"]))


def test_files_become_tokens_side_by_side(tmp_path, text):
    tokenizer = train_tokenizer([text], 300)
    parts = [text[:100], "", text[100:250], text[250:]]
    for i, part in enumerate(parts):
        line = json.dumps({"text": part}) + "\n" if part else ""
        (tmp_path / f"{i}.jsonl").write_text(line)
    whole, size = encode_documents(tokenizer, [part for part in parts if part])
    for jobs in (1, 3):
        ids, bytes_read = encode_files(tokenizer, text_files(tmp_path), jobs)
        assert np.array_equal(ids, whole) and bytes_read == size


def test_windows_come_once_an_epoch(tmp_path):
    np.arange(101, dtype=np.uint16).tofile(tmp_path / "x.u16")
    windows = Windows(tmp_path / "x.u16", 10, seed=1)
    starts = [int(row[0]) for step in range(4) for row in windows.batch(step, 5)]
    assert sorted(starts[:10]) == sorted(starts[10:]) == list(range(0, 100, 10))
    assert starts[:10] != starts[10:]
    assert torch.equal(windows.batch(0, 1)[0], torch.arange(starts[0], starts[0] + 11))


def test_a_batch_is_cut_from_the_file(tmp_path):
    """Also over the end of an epoch, of more windows than there are, and with ids above 32767."""
    tokens = np.random.default_rng(3).integers(0, 2**16, 47).astype(np.uint16)
    tokens.tofile(tmp_path / "x.u16")
    windows = Windows(tmp_path / "x.u16", 5, seed=2)
    rows = torch.cat([windows.batch(step, 13) for step in range(3)])
    assert rows.dtype == torch.int64 and rows.shape == (39, 6)
    orders = [np.random.default_rng([2, epoch]).permutation(9) for epoch in range(5)]
    for row, place in zip(rows, np.concatenate(orders)):
        assert np.array_equal(row, tokens[5 * place : 5 * place + 6])


def test_schedule():
    schedule = Schedule(steps=100, warmup=10, decay=20)
    assert [schedule.at(s) for s in (0, 9, 50, 80, 90, 100)] == [0.1, 1, 1, 1, 0.5, 0]
    schedule.decay_now(40, 10)
    assert (schedule.steps, schedule.at(40), schedule.at(45)) == (50, 1, 0.5)
    schedule.decay_now(45)
    assert schedule.steps == 50


def test_a_schedule_planned_anew():
    schedule = Schedule(steps=1000, warmup=10, decay=400)
    schedule.replan(20, 180, 0.4)
    assert (schedule.steps, schedule.decay, schedule.at(119), schedule.at(160)) == (200, 80, 1, 0.5)
    schedule.replan(160, 20, 0.4)  # has begun: from 0.5 to 0 in 20 steps
    assert [schedule.at(s) for s in (160, 170, 180)] == [0.5, 0.25, 0]
    schedule.replan(170, 40, 0.4)
    assert [schedule.at(s) for s in (170, 190, 210)] == [0.25, 0.125, 0]
    schedule.replan(210, 40, 0.4)  # is over
    assert schedule.steps == 210
    late = Schedule(steps=1000, warmup=10, decay=400)
    late.replan(100, 10, 0.4)  # would have begun at 66
    assert [late.at(s) for s in (100, 105, 110)] == [1, 0.5, 0]
    late = Schedule(steps=1000, warmup=10, decay=400)
    late.replan(100, -7, 0.4)
    assert late.steps == 101
    late.replan(100, 5000, 0.4)
    assert late.steps == 1000
    rising = Schedule(steps=1000, warmup=100, decay=400)
    rising.replan(49, 25, 0.4)  # in the warm-up: never above the rate it had
    assert [rising.at(s) for s in (49, 74)] == [0.5, 0]


@pytest.mark.parametrize("kind, decay", (("wsd", 20), ("cosine", None), ("inverse_sqrt", None)))
def test_a_plan_that_follows_another(kind, decay):
    """The rate goes to that of a run of the new steps, and rises to it as in a warm-up."""
    old = Schedule(100, 10, decay, kind)
    for step in (5, 50, 90, 100):
        new, whole = Schedule(200, 10, decay, kind), Schedule(200, 10, decay, kind)
        said = new.resume(step, vars(old))
        assert said.startswith(f"goes on from step {step} to 200, not 100: ")
        rates = [new.at(s) for s in range(step, 201)]
        assert rates[0] <= old.at(step) + 0.1 and max(np.diff(rates)) <= 0.1 + 1e-9
        assert rates[10:] == [whole.at(s) for s in range(step + 10, 201)]
        again = Schedule(200, 10, decay, kind)  # interrupted, with the same --steps
        assert again.resume(step + 1, vars(new)) == f"goes on from step {step + 1} of 200"
        assert [again.at(s) for s in range(step, 201)] == rates
    risen = Schedule(200, 10, decay, kind)
    risen.resume(50, vars(old))
    if kind != "cosine":  # had not begun to fall: as if it had been planned so
        assert [risen.at(s) for s in range(50, 201)] == [whole.at(s) for s in range(50, 201)]


def test_a_plan_with_nothing_left_says_so():
    old = Schedule(100, 10, 20)
    for steps, said in ((100, "all 100 steps are done; to go on"), (80, "100 steps are done: --steps 80")):
        plan = Schedule(steps, 10, 20)
        assert plan.resume(100, vars(old)).startswith(said) and plan.steps <= 100
    old.decay_now(40, 10)
    plan = Schedule(100, 10, 20)
    assert "all 50 steps are done, of 100: the run was ended early" in plan.resume(50, vars(old))
    plan = Schedule(100, 10, 20)
    plan.resume(45, vars(old))
    assert (plan.steps, plan.at(45)) == (50, 0.5)  # in the decay that was asked for


def test_a_run_goes_on_with_more_steps(prepared, capsys):
    fit(arguments(prepared, steps=30, decay=10))
    first = capsys.readouterr().out
    saved = (prepared / "run/state.pt").read_bytes()
    for steps, said in ((30, "all 30 steps are done"), (20, "30 steps are done: --steps 20 leaves nothing")):
        fit(arguments(prepared, steps=steps, decay=10, resume=True, compile=True))
        output = capsys.readouterr().out
        assert said in output and "compiles" not in output and not losses(output)
        assert (prepared / "run/state.pt").read_bytes() == saved
    fit(arguments(prepared, steps=60, decay=10, resume=True))
    output = capsys.readouterr().out
    assert "goes on from step 30 to 60, not 30: the rate goes from 0 of its peak to that of" in output
    lines = [json.loads(line) for line in output.splitlines() if line[0] == "{"]
    assert [line["step"] for line in lines] == list(range(31, 61))
    assert lines[-1]["loss"] < losses(first)[-1] and lines[-1]["rate"] == 0
    fit(arguments(prepared, steps=2, decay=1))
    assert "there is a run; this one begins anew" in capsys.readouterr().out


def test_a_resumed_run_has_the_rates_that_are_said(prepared, capsys):
    fit(arguments(prepared, steps=4, lr=1e-3))
    fit(arguments(prepared, steps=8, lr=0.0, muon_lr=0.0, muon_decay=0.0, resume=True))
    one = torch.load(prepared / "run/state.pt")
    fit(arguments(prepared, steps=12, lr=0.0, muon_lr=0.0, muon_decay=0.0, resume=True))
    other = torch.load(prepared / "run/state.pt")
    assert (one["step"], other["step"]) == (8, 12)
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def test_a_run_of_another_config_is_refused(prepared, raw_config):
    fit(arguments(prepared, steps=1))
    with pytest.raises(ValueError, match="state.pt: expected a run of this --config and --optimizer, got"):
        fit(arguments(prepared, steps=2, resume=True, optimizer="adamw"))
    (prepared / "config.json").write_text(json.dumps({**raw_config, "intermediate_size": 32}))
    with pytest.raises(ValueError, match="state.pt: expected a run of this .*mlp.gate_proj.weight"):
        fit(arguments(prepared, steps=2, resume=True))


def test_training_learns_and_can_be_interrupted(prepared, capsys):
    fit(arguments(prepared, steps=60, decay=20))
    whole = losses(capsys.readouterr().out)
    assert whole[-1] < whole[0] - 1.5
    with pytest.raises(KeyboardInterrupt):
        interrupted = arguments(
            prepared, steps=60, decay=20, run=prepared / "again", save_seconds=0
        )
        stop_at(interrupted, 31)
    capsys.readouterr()
    fit(arguments(prepared, steps=60, decay=20, run=prepared / "again", resume=True))
    assert losses(capsys.readouterr().out) == whole[30:]


def stop_at(args, step):
    """Runs fit, interrupted while it makes its step-th batch."""
    original = Windows.batch

    def batch(self, number, size):
        if number == step - 1:
            raise KeyboardInterrupt
        return original(self, number, size)

    Windows.batch = batch
    try:
        fit(args)
    finally:
        Windows.batch = original


def test_training_goes_on_from_a_checkpoint(prepared, capsys):
    fit(arguments(prepared, steps=60, decay=20))
    first = losses(capsys.readouterr().out)
    files = (prepared / name for name in ("run/state.pt", "config.json", "tokenizer.json"))
    export(*files, prepared / "out", "f32")
    fit(arguments(prepared, run=prepared / "more", start=prepared / "out"))
    assert losses(capsys.readouterr().out)[0] < first[0] - 1.5


def test_decay_now(prepared, capsys):
    (prepared / "run").mkdir()
    (prepared / "run" / "decay-now").write_text("3")
    fit(arguments(prepared, steps=1000, decay=100))
    assert len(losses(capsys.readouterr().out)) == 4
    assert not (prepared / "run" / "decay-now").exists()


@pytest.mark.parametrize("slip", (b"soon", b"-3", b"\xff"))
def test_a_slip_in_decay_now_ends_no_run(prepared, capsys, slip):
    (prepared / "run").mkdir()
    (prepared / "run" / "decay-now").write_bytes(slip)
    fit(arguments(prepared))
    output = capsys.readouterr().out
    assert "decay-now: expected a number of steps, got another thing" in output and len(losses(output)) == 12
    assert not (prepared / "run" / "decay-now").exists()


class Clock:
    """In the place of fit's time: a step takes what `seconds` says."""

    def __init__(self, monkeypatch, seconds):
        self.now = 0.0
        original = Windows.batch

        def batch(windows, step, size):
            self.now += seconds(step)
            return original(windows, step, size)

        monkeypatch.setattr(train, "STARTED", 0.0)
        monkeypatch.setattr(train.fit, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(Windows, "batch", batch)


@pytest.mark.parametrize(
    "seconds, least, most",
    (
        (lambda step: 1.0, 40, 40),  # keeps its pace
        (lambda step: 11.0 if step == 0 else 1.0, 30, 30),  # compiles first
        (lambda step: 1.0 if step < 32 else 4.0, 33, 35),  # slower when the decay has begun
        (lambda step: 4.0 if step < 8 else 1.0, 16, 16),  # faster
    ),
)
def test_a_run_ends_in_time(prepared, capsys, monkeypatch, seconds, least, most):
    clock = Clock(monkeypatch, seconds)
    fit(arguments(prepared, steps=10**6, decay=None, seconds=40.0))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert least <= lines[-1]["step"] <= most and clock.now <= 44
    rates = [line["rate"] for line in lines]
    top = rates.index(1.0)
    assert all(a >= b for a, b in zip(rates[top:], rates[top + 1 :])) and rates[-1] == 0
    assert torch.load(prepared / "run/state.pt")["step"] == lines[-1]["step"]


def test_seconds_go_with_the_plan_that_they_change(prepared):
    for changes in ({"decay": 4}, {"decay": None, "schedule": "cosine"}, {"decay": None, "seed": [1, 2]}):
        with pytest.raises(ValueError, match="--seconds: expected"):
            fit(arguments(prepared, seconds=9.0, **changes))


def test_numbers_read_with_the_log_are_those_of_the_steps(prepared, capsys):
    fit(arguments(prepared))
    of_steps = capsys.readouterr().out
    fit(arguments(prepared, check="line", run=prepared / "lines"))
    assert losses(capsys.readouterr().out) == losses(of_steps)
    one, other = (torch.load(prepared / run / "state.pt")["model"] for run in ("run", "lines"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("check, last", (("step", 7), ("line", 4)))
def test_a_number_that_is_not_finite_ends_the_run(prepared, monkeypatch, check, last):
    """The saved state is of a step before it, also where the numbers are read later."""
    calls = []

    def loss(model, ids):
        calls.append(ids)
        return window_loss(model, ids) * (math.nan if len(calls) == 8 else 1)

    monkeypatch.setattr(train.fit, "window_loss", loss)
    with pytest.raises(NotFinite, match="step 8: loss nan"):
        fit(arguments(prepared, parts=1, log_every=4, save_seconds=-1, check=check))
    state = torch.load(prepared / "run/state.pt")
    assert state["step"] == last
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


@pytest.mark.parametrize("factor", (1, 3, 0, math.nan))
def test_compiled_code_with_other_gradients_ends_the_run(prepared, monkeypatch, factor):
    monkeypatch.setattr(
        torch, "compile", lambda function: lambda model, ids: function(model, ids) * factor
    )
    args = arguments(prepared, compile=True)
    if factor == 1:
        fit(args)
        compiled = torch.load(prepared / "run/state.pt")["model"]
        fit(arguments(prepared))
        plain = torch.load(prepared / "run/state.pt")["model"]
        assert all(torch.equal(compiled[name], plain[name]) for name in plain)
    else:
        with pytest.raises(ValueError, match="--compile: a gradient of norm"):
            fit(args)


def test_where_compiling_fails_a_run_goes_on_without(prepared, capsys, monkeypatch):
    def compiled(model, ids):
        raise RuntimeError("no working C++ compiler\nfound")

    monkeypatch.setattr(torch, "compile", lambda function: compiled)
    fit(arguments(prepared, compile=True))
    output = capsys.readouterr().out
    said = "# trains without --compile, which failed: no working C++ compiler found\n"
    assert output.index("# compiles (torch.compile): ") < output.index(said) < output.index('{"step": 1,')
    assert len(losses(output)) == 12


def test_a_run_says_that_it_compiles(prepared, capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    fit(arguments(prepared, compile=True))
    output = capsys.readouterr().out
    assert output.index("# compiles (") < output.index("# compiled in ") < output.index('{"step": 1,')


def test_adamw_trains_too(prepared, capsys):
    fit(arguments(prepared, steps=30, optimizer="adamw"))
    seen = losses(capsys.readouterr().out)
    assert seen[-1] < seen[0] - 0.5


@pytest.mark.parametrize("dtype, tolerance", (("f32", 1e-6), ("bf16", 0.05)))
def test_export(prepared, text, dtype, tolerance):
    fit(arguments(prepared))
    export(
        prepared / "run" / "state.pt",
        prepared / "config.json",
        prepared / "tokenizer.json",
        prepared / "out",
        dtype,
    )
    model, raw = load_model(prepared / "out")
    assert "shapes" not in raw
    trained = torch.load(prepared / "run" / "state.pt")["model"]
    for name, value in model.state_dict().items():
        assert torch.allclose(value, trained[name], rtol=2**-8 if dtype == "bf16" else 0, atol=0), (
            name
        )
    tokenizer = Tokenizer.from_file(str(prepared / "out" / "tokenizer.json"))
    whole = evaluate(model, tokenizer, [text])
    assert (
        sum(b["tokens"] for b in whole["loss_by_position"])
        == whole["tokens"]
        == whole["scored_tokens"]
    )
    assert whole["bytes"] == len(text.encode())


def test_a_preset_without_ends_of_texts_gets_the_documents(prepared, raw_config):
    (prepared / "config.json").write_text(
        json.dumps({**raw_config, "bos_token_id": None, "eos_token_id": None})
    )
    fit(arguments(prepared, steps=1))
    files = (prepared / name for name in ("run/state.pt", "config.json", "tokenizer.json"))
    export(*files, prepared / "out", "f32")
    for name in ("config.json", "generation_config.json"):
        made = json.loads((prepared / "out" / name).read_text())
        assert (made["bos_token_id"], made["eos_token_id"]) == (END_OF_TEXT_ID, END_OF_TEXT_ID)
    assert END_OF_TEXT in (prepared / "out" / "tokenizer_config.json").read_text()


def test_export_has_the_runs_own_position(prepared, raw_config):
    """A permutation is drawn, and a checkpoint that a run began with may have angles."""
    raw_config["mixers"]["a"]["position"] = {"type": "lrpe_permutation"}
    raw_config["mixers"]["b"]["position"] = {"type": "lrpe_orthogonal"}
    (prepared / "config.json").write_text(json.dumps(raw_config))
    config, raw = read_config(prepared / "config.json")
    tensors = new_tensors(config, raw["shapes"], seed=3)
    tensors["model.layers.1.attn.position.theta"] = torch.linspace(0.1, 0.9, 4)
    shipped = {key: value for key, value in raw.items() if key != "shapes"}
    save_model(prepared / "start", Model(config, tensors), shipped, "f32")
    fit(arguments(prepared, start=prepared / "start", steps=2, decay=1, warmup=1))
    export(prepared / "run/state.pt", prepared / "config.json", prepared / "tokenizer.json",
           prepared / "model", "f32")
    got = load_tensors(prepared / "model")
    name = "model.layers.0.attn.position.permutation"
    assert torch.equal(got[name], tensors[name])
    assert not torch.equal(got[name], new_tensors(config, raw["shapes"])[name])
    assert got["model.layers.1.attn.position.theta"].shape == (4,)
    trained = torch.load(prepared / "run/state.pt")["model"]
    assert torch.equal(got["model.layers.1.attn.position.theta"],
                       trained["layers.1.attn.position.lrpe.theta"])


def test_a_new_cosformer_has_its_angle(raw_config):
    raw_config["max_position_embeddings"] = 128
    raw_config["mixers"]["a"] = {"kind": "linear", "feature_map": "relu",
                                 "position": {"type": "lrpe_unitary"}}
    config = parse_config({key: value for key, value in raw_config.items() if key != "shapes"})
    tensors = new_tensors(config, raw_config["shapes"])
    theta = tensors["model.layers.0.attn.position.theta"]
    assert torch.allclose(theta, torch.full((8,), math.pi / 256))
