# SPDX-License-Identifier: Apache-2.0
"""`regla study`: what it writes, that it goes on after a kill, what it refuses."""

import csv
import json
import shutil
import signal
import subprocess

import pytest

from harness import BINARY, wait_until
from test_lifecycle import regla

COLUMNS = ("system length batch repeat total_s ttft_s tokens_per_second weights_bytes "
           "recurrent_bytes kv_bytes workspace_bytes process_peak_bytes device_peak_bytes").split()
DEFAULT = ["softmax", "fast_decay", "regla", "hybrid_regla", "transnormer_t1", "transnormer_t2"]
KV_BYTES_PER_TOKEN = 6 * 2 * 768 * 2  # layers, keys and values, width, f16
PAGE_TOKENS = 64
# Each point loads a model of 100 million weights: too long where every access is checked.
plain = pytest.mark.builds("dev")
pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server


def rows_of(out):
    with open(out / "study.csv", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


@plain
def test_quick_study(tmp_path):
    out = tmp_path / "study"
    command = [BINARY, "study", "--quick", "--turns", "2", "--out", out]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    rows = rows_of(out)
    assert [(row["length"], row["system"]) for row in rows] == [
        (length, system) for length in ("64", "256") for system in DEFAULT]
    for row in rows:
        tokens = 5 + int(row["length"]) - 1  # the last token is never fed
        pages = -(-tokens // PAGE_TOKENS)
        if row["system"] == "softmax":
            assert int(row["kv_bytes"]) == pages * PAGE_TOKENS * KV_BYTES_PER_TOKEN
            assert row["recurrent_bytes"] == "0"
        if row["system"] == "regla":
            assert row["kv_bytes"] == "0"
        assert 0 < float(row["ttft_s"]) < float(row["total_s"])
        assert int(row["process_peak_bytes"]) > int(row["weights_bytes"])
    for system in ("regla", "fast_decay", "transnormer_t1"):
        assert len({row["recurrent_bytes"] for row in rows if row["system"] == system}) == 1
    saved = json.loads((out / "study.json").read_text())
    assert len(saved["points"]) == len(rows) and saved["settings"]["cores"] >= 1
    assert sorted((turns["length"], turns["system"]) for turns in saved["turns"]) == sorted(
        (int(row["length"]), row["system"]) for row in rows)
    for turns in saved["turns"]:
        assert turns["batch"] == 1
        for key in ("tokens_per_second", "read_before", "read_after"):
            assert len(turns[key]) == 2 and min(turns[key]) > 0
    for name in ("time", "memory", "state", "speed"):
        assert (out / f"{name}-b1.svg").read_text().lstrip().startswith("<?xml")
        assert (out / f"{name}-b1.png").read_bytes().startswith(b"\x89PNG")
    assert "time per token" in result.stdout and "growth with length" in result.stdout
    assert "left" in result.stderr  # the progress
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0 and again.stdout == result.stdout  # nothing is measured again
    assert json.loads((out / "study.json").read_text())["turns"] == saved["turns"]


@plain
def test_goes_on_after_a_kill(tmp_path):
    out = tmp_path / "study"
    command = [BINARY, "study", "--systems", "regla,la_elu", "--lengths", "2,4", "--repeat", "2",
               "--turns", "0", "--batch", "1,3", "--out", out]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def has_some_lines():
        assert process.poll() is None
        table = out / "study.csv"
        return table.exists() and table.read_text().count("\n") > 3  # a header, three points
    wait_until(has_some_lines, "three points", 300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = rows_of(out)
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert f"holds {len(before)} of 16 points: going on" in result.stderr
    rows = rows_of(out)
    assert rows[:len(before)] == before
    assert len({(r["system"], r["length"], r["batch"], r["repeat"]) for r in rows}) == len(rows) == 16
    assert (out / "time-b3.png").exists()
    other = subprocess.run([*command, "--weights", "q8"], capture_output=True, text=True, timeout=60)
    assert other.returncode == 1 and "choose another --out" in other.stderr
    assert rows_of(out) == rows


def small(out, binary=BINARY):
    command = [binary, "study", "--systems", "regla", "--lengths", "2", "--repeat", "1", "--turns", "0",
               "--quiet", "--out", out]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@plain
def test_without_regla_plot_there_are_tables(tmp_path):
    alone, out, plot = tmp_path / "regla", tmp_path / "study", BINARY.parent / "regla-plot"
    shutil.copy(BINARY, alone)
    result = small(out, alone)
    assert result.returncode == 0 and "study.json and no plots" in result.stdout
    assert "no plots: there is no regla-plot beside this program" in result.stderr
    assert len(rows_of(out)) == 1 and not list(out.glob("*.svg"))
    assert subprocess.run([plot, out], timeout=60).returncode == 0  # which draws them later
    drawn = {path: path.read_bytes() for path in out.glob("*.svg")}
    assert len(drawn) == 4
    result = small(out)  # and draws the same when the study does
    assert result.returncode == 0 and "study.json and plots" in result.stdout, result.stderr
    assert {path: path.read_bytes() for path in out.glob("*.svg")} == drawn
    (tmp_path / "regla-plot").symlink_to("/bin/false")
    result = small(out, alone)
    assert "memory" in result.stdout  # what was measured is told all the same
    assert result.returncode == 1 and "regla-plot ended with status 1" in result.stderr


@pytest.mark.parametrize("arguments, message", [
    ([], "expected directories of studies; usage: regla-plot DIR..."), (["--nope"], "unknown flag --nope"),
    (["/tmp/regla-there-is-no-such-directory"], "study.json: No such file"),
])
def test_regla_plot_refuses(arguments, message):
    result = subprocess.run([BINARY.parent / "regla-plot", *arguments], capture_output=True, text=True,
                            timeout=60)
    assert result.returncode in (1, 2) and f"regla-plot: {message}" in result.stderr.replace(
        "/tmp/regla-there-is-no-such-directory/", ""), result.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--systems", "regla,nope"], 'unknown system "nope"'),
    (["--systems", ""], "expected names, got nothing"),
    (["--batch", "1,x"], '--batch: expected numbers from 1 to 4096, got "x"'),
    (["--systems", "all,regla"], "expected all alone, or names"),
    (["--systems", "regla,softmax,regla"], "--systems: expected each once, got regla twice"),
    (["--batch", "4,1,4"], "--batch: expected each once, got 4 twice"),
    (["--batch", "4,"], '--batch: expected numbers from 1 to 4096, got ""'),
    (["--batch", ""], "--batch: expected numbers, got nothing"),
    (["--quick", "--lengths", "8"], "expected --quick or --lengths, got both"),
    (["--quick", "--repeat", "5"], "expected --quick or --repeat, got both"),
    (["--lengths", "64,32"], "expected rising numbers, got 32 after 64"),
    (["--turns", "-1"], "--turns: expected"),
    (["--lengths", "0"], "--lengths: expected numbers from 1"),
    (["--point", "regla:64"], "expected system:length:batch:repeat"),
    (["--point", "regla:64:1:0"], "expected system:length:batch:repeat"),
])
def test_refuses(tmp_path, arguments, message):
    result = regla("study", "--out", tmp_path / "study", *arguments)
    assert result.returncode in (1, 2) and message in result.stderr, result.stderr
    assert not (tmp_path / "study").exists()


def test_refuses_another_directory(tmp_path):
    (tmp_path / "study.csv").write_text("name,age\n")
    result = regla("study", "--out", tmp_path)
    assert result.returncode == 1 and "expected a line of a study" in result.stderr
    assert (tmp_path / "study.csv").read_text() == "name,age\n"


@plain
def test_what_cannot_fit_is_said_before_it_is_measured():
    result = regla("study", "--point", "softmax:16777216:4096:1", "--state-memory", "1G",
                   timeout=300)
    assert result.returncode == 1 and "4096 texts of 16777216 tokens need " in result.stderr
    assert result.stderr.rstrip().endswith("the budget is 1073741824 in all")


def make_file(path):
    path.write_text("mine")


def make_file_above(path):
    path.mkdir()
    make_file(path / "a")


def make_a_directory_of_the_csv(path):
    (path / "study.csv").mkdir(parents=True)


@pytest.mark.parametrize("make, below, message", [
    (make_file, "", "--out: {out}: expected a directory, got a file"),
    (lambda out: None, "a/b", '--out: "{out}/a/b": expected its parent to be a directory, got'),
    (make_file_above, "a/b", '--out: "{out}/a/b": cannot make this directory: Not a directory'),
    (make_a_directory_of_the_csv, "", "{out}/study.csv: Is a directory"),
])
def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path, make, below, message):
    out = tmp_path / "it"
    make(out)
    result = regla("study", "--out", out / below)
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert message.format(out=out) in result.stderr
