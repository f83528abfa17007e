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
pytestmark = [pytest.mark.builds("dev", "asan"), pytest.mark.long]  # processes without a server


def rows_of(out):
    with open(out / "study.csv", newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def study(out, *arguments, timeout=600):
    """A study on one thread: two wait for each other where other tests keep the cores busy."""
    return subprocess.run([BINARY, "study", "--threads", "1", "--out", out, *arguments],
                          capture_output=True, text=True, timeout=timeout)


def pretend(out, systems, lengths, batches):
    """Writes the lines of points, as if they had been measured: one load of a model less for each."""
    out.mkdir(exist_ok=True)
    with open(out / "study.csv", "a") as file:
        if file.tell() == 0:
            file.write(",".join(COLUMNS) + "\n")
        for length in lengths:
            for batch in batches:
                for system in systems:
                    file.write(f"{system},{length},{batch},1,1.5,0.5,{length},1000,2000,3000,4000,5000,0\n")


def saved_in(out):
    return json.loads((out / "study.json").read_text())


def turns_of(out):
    return {(turns["system"], turns["length"], turns["batch"]): turns for turns in saved_in(out)["turns"]}


def test_quick_means_two_lengths_of_the_default_systems(tmp_path):
    pretend(tmp_path, DEFAULT, (64, 256), (1,))
    result = study(tmp_path, "--quick", "--turns", "0")
    assert result.returncode == 0, result.stderr
    assert "holds 12 of 12 points: going on" in result.stderr
    assert [(point["length"], point["system"]) for point in saved_in(tmp_path)["points"]] == [
        (length, system) for length in (64, 256) for system in DEFAULT]


@plain
def test_study(tmp_path):
    out = tmp_path / "study"
    systems, lengths = ("softmax", "regla", "fast_decay"), ("2", "61")  # of one page, and of two
    arguments = ["--systems", ",".join(systems), "--lengths", ",".join(lengths), "--repeat", "1",
                 "--turns", "2"]
    result = study(out, *arguments)
    assert result.returncode == 0, result.stderr
    rows = rows_of(out)
    assert [(row["length"], row["system"]) for row in rows] == [
        (length, system) for length in lengths for system in systems]
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
    for system in ("regla", "fast_decay"):
        assert len({row["recurrent_bytes"] for row in rows if row["system"] == system}) == 1
    saved = saved_in(out)
    assert len(saved["points"]) == len(rows) and saved["settings"]["cores"] >= 1
    assert sorted((turns["length"], turns["system"]) for turns in saved["turns"]) == sorted(
        (int(row["length"]), row["system"]) for row in rows)
    for turns in saved["turns"]:
        assert turns["batch"] == turns["measurement"] == 1
        for key in ("tokens_per_second", "read_before", "read_after"):
            assert len(turns[key]) == 2 and min(turns[key]) > 0
    for name in ("time", "memory", "state", "speed"):
        assert (out / f"{name}-b1.svg").read_text().lstrip().startswith("<?xml")
        assert (out / f"{name}-b1.png").read_bytes().startswith(b"\x89PNG")
    assert "time per token" in result.stdout and "growth with length" in result.stdout
    assert "left" in result.stderr  # the progress
    again = study(out, *arguments, timeout=60)
    assert again.returncode == 0 and again.stdout == result.stdout  # nothing is measured again
    assert saved_in(out)["turns"] == saved["turns"]


@plain
def test_a_released_shape_is_a_system():
    command = [BINARY, "study", "--weights", "q8", "--point", "mamba2-130m:3:1:1"]
    line = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert line.startswith("mamba2-130m,3,1,1,")


def kill_when(arguments, out, condition, what):
    process = subprocess.Popen([BINARY, "study", "--threads", "1", "--out", out, *arguments],
                               stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def has_come():
        assert process.poll() is None
        return condition()
    wait_until(has_come, what, 300)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@plain
def test_goes_on_after_a_kill(tmp_path):
    out = tmp_path / "study"
    arguments = ["--systems", "regla,la_elu", "--lengths", "2", "--repeat", "1", "--turns", "0",
                 "--batch", "1,3"]
    table = out / "study.csv"
    kill_when(arguments, out,  # a header, two points
              lambda: table.exists() and table.read_text().count("\n") > 2, "two points")
    before = rows_of(out)
    result = study(out, *arguments)
    assert result.returncode == 0, result.stderr
    assert f"holds {len(before)} of 4 points: going on" in result.stderr
    rows = rows_of(out)
    assert rows[:len(before)] == before
    assert len({(r["system"], r["length"], r["batch"], r["repeat"]) for r in rows}) == len(rows) == 4
    assert (out / "time-b3.png").exists()
    other = study(out, *arguments, "--weights", "q8", timeout=60)
    assert other.returncode == 1 and "choose another --out" in other.stderr
    assert rows_of(out) == rows


@plain
def test_turns_that_were_measured_stay(tmp_path):
    """After a kill, and beside a run with other systems."""
    def arguments(systems, batches):
        return ["--systems", systems, "--batch", batches, "--lengths", "2", "--repeat", "1", "--turns",
                "1"]
    pretend(tmp_path, ("regla",), (2,), (1, 3))
    table = tmp_path / "study.json"
    kill_when(arguments("regla", "1,3"), tmp_path, lambda: table.exists() and turns_of(tmp_path),
              "turns of a batch")
    first = turns_of(tmp_path)
    assert list(first) == [("regla", 2, 1)]
    assert study(tmp_path, *arguments("regla", "1,3")).returncode == 0
    both = turns_of(tmp_path)
    assert both == first | {("regla", 2, 3): both["regla", 2, 3]}
    pretend(tmp_path, ("la_elu",), (2,), (1,))
    assert study(tmp_path, *arguments("la_elu", "1")).returncode == 0
    apart = turns_of(tmp_path)
    assert apart == both | {("la_elu", 2, 1): apart["la_elu", 2, 1]}
    assert {(point["system"], point["batch"]) for point in saved_in(tmp_path)["points"]} == {
        ("regla", 1), ("regla", 3), ("la_elu", 1)}
    # What is to be compared is measured at the same time; the rest stays.
    assert study(tmp_path, *arguments("la_elu,regla", "1")).returncode == 0
    beside = turns_of(tmp_path)
    assert beside["regla", 2, 3] == both["regla", 2, 3]
    assert [beside[system, 2, 1]["measurement"] for system in ("la_elu", "regla")] == [4, 4]
    assert [turns["measurement"] for turns in apart.values()] == [3, 1, 2]


def test_more_than_plots_can_show_is_refused(tmp_path):
    pretend(tmp_path, ("regla",), range(1, 17), (1,))
    before = (tmp_path / "study.csv").read_text()
    result = study(tmp_path, "--systems", "regla", "--lengths", "17")
    assert result.returncode == 1 and "study.csv has points of others: choose another --out: expected " \
        "at most 64 systems, 16 lengths and 16 batches in one study" in result.stderr
    assert (tmp_path / "study.csv").read_text() == before


def small(out, binary=BINARY):
    command = [binary, "study", "--systems", "regla", "--lengths", "2", "--repeat", "1", "--turns", "0",
               "--threads", "1", "--quiet", "--out", out]
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
