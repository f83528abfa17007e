# SPDX-License-Identifier: Apache-2.0
"""regla bench: what it prints, on models too small for the figures to mean anything."""

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess

import pytest

from checkpoints import copy_of, read_tensors, write_tensors
from harness import BINARY, GOLDEN, SLOWNESS
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server

SHORT = ["--pp", "5", "--tg", "3", "--repeat", "1"]
FIELDS = {"model": str, "weights": str, "kv": str, "activations": str, "products": str, "unit": str,
          "test": str,
          "batch": int, "threads": int, "repeat": int, "tokens_per_second": float, "spread": float,
          "share_of_limit": float, "weights_gbps": float, "moved_gbps": float, "gflops": float}
PACE_COLUMNS = [f"pace{i}_{name}" for i in (1, 2) for name in (
    "gbps", "tokens_per_second", "share_of_limit", "low", "high", "slices")]
DEPTH_COLUMNS = ["of_depth_0", "of_depth_0_low", "of_depth_0_high"]


def bench(*arguments, model=GOLDEN / "hybrid_regla"):
    return subprocess.run([str(BINARY), "bench", "--model", str(model), *map(str, arguments)],
                          capture_output=True, text=True, timeout=120 * SLOWNESS)


def results_of(*arguments, **model):
    ran = bench("--json", *arguments, **model)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # not a terminal
    return json.loads(ran.stdout)


def check_result(result):
    compared = result.pop("of_depth_0", None)
    assert (compared is not None) == ("@" in result["test"])
    if compared is not None:
        assert 0 < compared["low"] <= compared["median"] <= compared["high"]
    paces = result.pop("paces", [])
    assert len(paces) <= (2 if result["test"].startswith("tg") else 0)
    for pace in paces:
        assert 0 < pace["low"] <= pace["share_of_limit"] <= pace["high"]
        assert pace["bandwidth_gbps"] > 0 and pace["tokens_per_second"] > 0
        assert 0 < pace["slices"]
    assert {name: type(value) for name, value in result.items()} == FIELDS
    assert result["model"] == "hybrid_regla" and result["repeat"] == 1
    assert result["tokens_per_second"] > 0 and result["share_of_limit"] > 0
    assert result["spread"] == 0  # of one run
    generates = result["test"].startswith("tg")
    assert (result["weights_gbps"] > 0) == generates
    assert (result["moved_gbps"] > result["weights_gbps"]) == generates
    assert result["gflops"] > 0


def test_json_has_every_combination():
    printed = results_of("--pp", "70", "--tg", "3", "--depth", "0,66", "--batch", "1,3",
                         "--repeat", "1")
    assert set(printed) == {"bandwidth_gbps", "peak_gflops", "results"}
    assert printed["bandwidth_gbps"] > 0 and printed["peak_gflops"] > 0
    for result in printed["results"]:
        check_result(result)
    seen = sorted((result["test"], result["batch"]) for result in printed["results"])
    assert seen == sorted((test + depth, batch) for test in ("pp70", "tg3") for depth in ("", "@66")
                          for batch in (1, 3))


def test_zero_leaves_a_kind_out_and_threads_and_formats_are_lists():
    results = results_of("--pp", "0", "--tg", "2", "--repeat", "1", "--threads", "2,1",
                         "--weights", "f32,q8")["results"]
    assert all(result["test"] == "tg2" for result in results)
    assert [(result["weights"], result["kv"], result["threads"]) for result in results] == [
        ("f32", "f32", 2), ("q8", "f16", 2), ("f32", "f32", 1), ("q8", "f16", 1)]


@pytest.mark.long
@pytest.mark.builds("dev")  # many measurements of the machine, and nothing else that is new
def test_runs_are_cut_into_slices():
    lists = ["--pp", "5", "--tg", "10,3", "--depth", "0,7", "--repeat", "3"]
    pairs = {"pp5@7": 3, "tg10@7": 3 * 3, "tg3@7": 3}
    results = results_of(*lists, "--slice", "4")["results"]
    assert {result["test"]: result["of_depth_0"]["pairs"]
            for result in results if "of_depth_0" in result} == pairs
    lines = bench(*lists, "--slice", "4").stdout.splitlines()
    told = [(line.split()[6], int(line.split()[-2])) for line in lines if line.endswith(" slices")]
    slices = {"tg10": 3 * 3, "tg10@7": 3 * 3, "tg3": 3, "tg3@7": 3}
    assert told  # in at least one of 24 slices memory kept its pace
    assert all(sum(count for name, count in told if name == test) <= slices[test] for test, _ in told)
    assert {line.split()[6]: int(line.split()[-2])
            for line in lines if line.endswith(" pairs")} == pairs


def test_weights_of_experts_are_those_that_steps_read(tmp_path):
    """All scores of a router of zeros tie, so each text goes to the same two of four experts."""
    folder = copy_of(tmp_path / "model", "experts_mixtral")
    header, data = read_tensors(folder / "model.safetensors")
    data = bytearray(data)
    routers = [name for name in header if name.endswith(".gate.weight")]
    assert routers
    for name in routers:
        first, end = header[name]["data_offsets"]
        data[first:end] = bytes(end - first)
    write_tensors(folder / "model.safetensors", header, data)
    results = results_of("--pp", "0", "--tg", "3", "--batch", "1,6", "--repeat", "2", model=folder)["results"]
    read = [result["weights_gbps"] / result["tokens_per_second"] * result["batch"] for result in results]
    assert read[1] == pytest.approx(read[0], rel=1e-4)


def test_a_terminal_is_told_how_far_it_is():
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [str(BINARY), "bench", "--model", str(GOLDEN / "regla"), "--pp", "10000", "--tg", "8",
             "--slice", "2", "--repeat", "2"], stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        told = b""
        try:
            while piece := terminal.read(4096):
                told += piece
        except OSError:  # how a terminal ends
            pass
        assert process.wait(timeout=60 * SLOWNESS) == 0
    lines = [line for line in re.split(r"[\r\n]+\x1b\[K", told.decode()) if line]
    assert [line for line in lines if line.startswith("warming up: 1")] == [
        "warming up: 1 of 2, pp10000 f32" + share for share in ("", ", 41%", ", 82%")]
    measured = [line for line in lines if line.startswith("measuring")]
    assert len(measured) == 2 * (1 + 4)  # runs of one slice and of four
    assert all(re.search(r", about \d+ s left in all$", line) for line in measured), measured
    assert [re.sub(", about.*", "", line) for line in measured[1:5]] == [
        "measuring: 2 of 2, tg8 f32" + share for share in ("", ", 25%", ", 50%", ", 75%")]


def test_table_with_operations():
    lines = bench(*SHORT, "--operations").stdout.splitlines()
    assert lines[0].startswith("hybrid_regla: memory reads at most ")
    assert [line.split()[6] for line in lines[3:5]] == ["pp5", "tg3"]
    assert [line.split()[4] for line in lines[-2:]] == ["pp5", "tg3"]
    for line in lines[-2:]:
        assert all(f" {kind} " in line for kind in ("product", "recurrence", "attention"))


def test_csv_and_json_agree_on_operations():
    rows = list(csv.DictReader(io.StringIO(
        bench(*SHORT, "--depth", "0,6", "--operations", "--csv").stdout)))
    assert [row["test"] for row in rows] == ["pp5", "tg3", "pp5@6", "tg3@6"]
    for row in rows:
        for name in DEPTH_COLUMNS:
            assert float(row[name]) > 0 if "@" in row["test"] else row[name] == ""
        for name, kind in FIELDS.items():
            kind(row[name])
        first, second = ([row[name] for name in PACE_COLUMNS[i:i + 6]] for i in (0, 6))
        assert all(map(float, first)) if any(first) else not any(second)
        assert not any(second) or float(first[0]) < float(second[0])
        assert row["test"].startswith("tg") or not any(first)
    [result] = results_of("--pp", "0", "--tg", "3", "--repeat", "1", "--operations")["results"]
    shares = result["operations"]
    assert list(rows[0]) == [*FIELDS, *DEPTH_COLUMNS, *PACE_COLUMNS, *shares]
    assert all(share >= 0 for share in shares.values()) and 0 < sum(shares.values()) <= 1


def test_csv_quotes_names(tmp_path):
    folder = tmp_path / 'a "b", c'
    shutil.copytree(GOLDEN / "hybrid_regla", folder)
    rows = list(csv.DictReader(io.StringIO(bench("--pp", "0", "--tg", "2", "--csv", model=folder).stdout)))
    assert [row["model"] for row in rows] == [folder.name]


@pytest.mark.parametrize("arguments, message", [
    (["--pp", "12,"], '--pp: item 2: expected an integer from 0 to 10000000, got ""'),
    (["--tg", "many"], '--tg: item 1: expected an integer from 0 to 10000000, got "many"'),
    (["--depth", "-5"], "--depth: item 1: expected an integer from 0"),
    (["--batch", "0"], "--batch: item 1: expected an integer from 1 to 4096"),
    (["--weights", "f32,int4"], "--weights: item 2: expected auto, f32, bf16, f16, q8, q6 or q4, got"),
    (["--kv", "q4"], "--kv: item 1: expected auto, f32, f16 or bf16"),
    (["--activations", "f32,4bit"], '--activations: item 2: expected auto, f32, 16bit or 8bit, got "4bit"'),
    (["--products", "own,cublas"], '--products: item 2: expected own or cublaslt, got "cublas"'),
    (["--threads", "1e9"], "--threads: item 1: "),
    (["--repeat", "0"], "--repeat: expected an integer from 1 to 1000"),
    (["--pp", "0", "--tg", "0"], "--pp, --tg: expected at least one length that is not 0"),
    (["--csv", "--json"], "expected --csv or --json, got both"),
    (["--preset", "regla-160m"], "expected --model or --preset, got both"),
    (["--batches", "1"], "unknown flag --batches (did you mean --batch?)"),
])
def test_wrong_usage(arguments, message):
    ran = bench(*arguments)
    assert ran.returncode == 2 and ran.stdout == ""
    assert message in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_needs_a_model():
    ran = regla("bench")
    assert ran.returncode == 2 and "expected --model or --preset, got none" in ran.stderr
    ran = regla("bench", "--preset", "regla-160b")
    assert ran.returncode == 2 and '--preset: there is no "regla-160b"' in ran.stderr
    ran = regla("bench", "--model", "/no/where")
    assert ran.returncode == 1 and "/no/where" in ran.stderr


def test_a_depth_past_the_positions_of_a_model_is_an_error():
    ran = bench("--depth", "100000", *SHORT, model=GOLDEN / "sliding_parallel_learned")
    assert ran.returncode == 1 and ran.stdout == ""
    assert "positions" in ran.stderr, ran.stderr
