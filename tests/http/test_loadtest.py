# SPDX-License-Identifier: Apache-2.0
"""loadtest/: that its figures are of what happened, and that what it watches for is noticed."""

import argparse
import asyncio
import csv
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness import BINARY, GOLDEN, ROOT

LOADTEST = ROOT / "loadtest"
sys.path.append(str(LOADTEST))
import generator  # noqa: E402
import client  # noqa: E402
import load  # noqa: E402
import measure  # noqa: E402
import peer_model  # noqa: E402
import peers  # noqa: E402
import soak  # noqa: E402
from table import Table  # noqa: E402
from measure import Failure  # noqa: E402
from workload import Arrival, Lengths, Workload  # noqa: E402

FAKE = Path(__file__).with_name("fake_server.py")
wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
pytestmark = [pytest.mark.builds("dev"), pytest.mark.long]  # the tools of loadtest/, in Python


def test_an_agents_session(tmp_path):
    """By previous_response_id, after kill -9, on another server. Status 1 where a turn computes too
    much, as where no state was written before the crash."""
    for file in (GOLDEN / "hybrid_regla").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}")

    def session(parts, *more):
        ended = subprocess.run(
            [sys.executable, LOADTEST / "agent_session.py", "--binary", BINARY, "--model", tmp_path,
             "--parts", parts, "--turns", "4", "--tokens", "9000",
             "--branch", "2", "--branches", "3", "--every", "2", *more],
            capture_output=True, text=True, timeout=300)
        return ended.returncode, ended.stdout, ended.stderr
    status, table, told = session("responses,killed,store")
    assert status == 0, told
    assert table.count(" held\n") == 5 and "BROKEN" not in table, table
    status, table, told = session("killed", "--save-state-bytes", "1K")
    assert status == 1 and table.count(" BROKEN\n") == 2, (table, told)


NO_MATPLOTLIB = "no plots: the Python package matplotlib is missing; `make load-deps` installs it\n"


def run(script, *arguments, plots=False, environment=None):
    return subprocess.run([sys.executable, LOADTEST / script, "--binary", BINARY,
                           *([] if plots else ["--no-plots"]), *map(str, arguments)],
                          capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture
def without_matplotlib(tmp_path):
    """An environment as of who has not installed it."""
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "matplotlib.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')")
    return {**os.environ, "PYTHONPATH": str(absent)}


def saved(folder, name):
    return json.loads((folder / name).read_text())


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def fake_server():
    """fake_server(fault) -> (url, pid)"""
    started = []

    def start(fault):
        process = subprocess.Popen([sys.executable, FAKE, fault], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process.stdout.readline().strip(), process.pid

    yield start
    for process in started:
        process.terminate()
        process.wait()
        process.stdout.close()


# The load of a run.

def test_lengths():
    generated = random.Random(1)
    assert {Lengths("7").draw(generated) for _ in range(9)} == {7}
    assert {Lengths("uniform:2:4").draw(generated) for _ in range(99)} == {2, 3, 4}
    drawn = [Lengths("exponential:100").draw(generated) for _ in range(4000)]
    assert 90 < statistics.mean(drawn) < 110 and min(drawn) >= 1 and max(drawn) <= 1600
    drawn = [Lengths("lognormal:64:0.8:200").draw(generated) for _ in range(4000)]
    assert 60 < statistics.median(drawn) < 68 and max(drawn) == 200
    for text in ("x", "uniform:1", "fixed:", "normal:3", "-4", "lognormal:3"):
        with pytest.raises(ValueError, match="expected lengths"):
            Lengths(text)


def test_arrivals_are_poisson_and_the_same_again():
    workload = Workload(Lengths("4"), Lengths("8"), shared=0.5, prefix_tokens=16, sessions=0.25,
                        disconnect=0.25, slow=0.25, seed=3)
    arrivals = workload.arrivals(50, 100)
    gaps = [b.at - a.at for a, b in zip(arrivals, arrivals[1:])]
    # 5,000 arrivals: the mean of their gaps is within 5 % of 1 / rate at 3.5 standard deviations,
    # and an exponential distribution's deviation equals its mean.
    assert abs(statistics.mean(gaps) * 50 - 1) < 0.05 and abs(statistics.stdev(gaps) * 50 - 1) < 0.1
    assert workload.arrivals(50, 100) == arrivals
    assert workload.arrivals(50, 100, part=1) != arrivals

    def among(condition):
        return sum(map(condition, arrivals)) / len(arrivals)
    assert abs(among(lambda a: len(a.prompt) == 20) - 0.5) < 0.05
    assert abs(among(lambda a: a.in_session) - 0.25) < 0.05
    assert abs(among(lambda a: a.slow) - 0.25) < 0.05
    assert abs(among(lambda a: a.leaves_after is not None) - 0.25) < 0.05
    assert all(0 <= a.leaves_after < 8 for a in arrivals if a.leaves_after is not None)


@pytest.mark.parametrize("pieces", (1, 3))
def test_a_client_leaves_though_the_whole_reply_came_at_once(pieces):
    reply = b'data: {"choices": [{"text": "a"}]}\n\n' * 6 + b"data: [DONE]\n\n"

    async def parts():
        size = -(-len(reply) // pieces)
        for at in range(0, len(reply), size):
            yield reply[at:at + size]
    closed = []
    response = SimpleNamespace(content=SimpleNamespace(iter_any=parts), close=lambda: closed.append(1))

    def read(leaves_after):
        arrival = Arrival(0.0, [1], 6, leaves_after=leaves_after)
        return asyncio.run(client.read_reply(response, client.Reading(client.Outcome(), arrival, 0.0)))
    assert read(leaves_after=2) is False and closed == [1]
    assert read(leaves_after=None) is True and closed == [1]


def test_percentiles():
    assert generator.percentiles([]) == {"p50": None, "p90": None, "p95": None, "p99": None}
    assert generator.percentiles([0.001 * i for i in range(100, 0, -1)]) == pytest.approx(
        {"p50": 50, "p90": 90, "p95": 95, "p99": 99})
    assert generator.percentiles([2]) == {"p50": 2000, "p90": 2000, "p95": 2000, "p99": 2000}


@pytest.mark.parametrize("bearable, steps, expected", [
    (10, 8, (8, 10)), (0.3, 8, (0.25, 0.3)), (0, 4, (None, None)), (10**9, 3, (4, 4))])
def test_search_closes_in_on_the_highest_rate(monkeypatch, bearable, steps, expected):
    asked = []

    async def one_run(target, rate, options, part):
        asked.append(rate)
        return {"holds": rate <= bearable}
    monkeypatch.setattr(load, "one_run", one_run)
    options = argparse.Namespace(rate=1.0, search_steps=steps)
    runs, held = asyncio.run(load.search(None, options))
    assert len(runs) == len(asked) == steps
    low, high = expected
    assert held == low if low is None else low <= held <= high
    if 0 < bearable < 100:
        assert bearable / held < 1.1


# Against servers.

def test_load_with_clients_that_leave_and_read_slowly(tmp_path):
    result = run("load.py", "--model", GOLDEN / "hybrid_regla", "--out", tmp_path, "--rate", 25,
                 "--duration", 3, "--disconnect", 0.2, "--slow", 0.2, "--sessions", 0.3, "--shared",
                 0.4, "--prefix-tokens", 64, "--prefixes", 2, "--vocabulary", 200, "--max-tokens",
                 "uniform:4:24", "--timeout", 120)
    assert result.returncode == 0, result.stdout + result.stderr
    one, = saved(tmp_path, "load.json")["runs"]
    assert one["errors"] == {} and one["details"] == [] and one["target"] == "regla"
    assert one["requests"] == one["ok"] + one["left"] > 40
    assert one["left"] > 0 and one["slow"] > 0
    # Shared prefixes are long, and half of all tokens; sessions are counted whole.
    assert one["cached_tokens"] > 64 and one["prompt_tokens"] > 64
    for name in ("first_ms", "between_ms", "late_ms"):
        ranks = list(one[name].values())
        # Who is on time is 0.0 late, and tokens that are read together have no time between them.
        assert ranks == sorted(ranks) and (ranks[-1] > 0 or name != "first_ms")
    assert 0 <= one["good_share"] <= 1 and one["goodput"] <= one["ok"] / one["seconds"]
    assert "regla" in result.stdout and "none" in result.stdout
    row, = rows_of(tmp_path / "load.csv")
    assert row["target"] == "regla" and row["errors"] == "0"
    assert float(row["p99_first_ms"]) == one["first_ms"]["p99"]


def test_times_of_a_server_that_pauses(fake_server, tmp_path):
    url, _ = fake_server("pause")
    result = run("load.py", "--url", url, "--rate", 20, "--duration", 1, "--warm-up", 0, "--max-tokens", 9,
                 "--out", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    one, = saved(tmp_path, "load.json")["runs"]
    # 20 ms; two frames that a busy client reads together make another gap longer.
    assert one["between_ms"]["p99"] >= 20 and one["between_ms"]["p50"] > 0


def test_errors_by_kind(fake_server, tmp_path):
    kinds = {"refuse": "HTTP 429", "cut": "cut off", "error": "error frame", "short": "wrong count"}
    peers = []
    for fault in (*kinds, "none"):
        url, _ = fake_server(fault)
        peers += ["--peer", f"{fault}={url}/v1"]
    result = run("load.py", *peers, "--rate", 40, "--duration", 0.5, "--warm-up", 0, "--out",
                 tmp_path)
    assert result.returncode == 1, result.stderr
    found = {one["target"]: one for one in saved(tmp_path, "load.json")["runs"]}
    good = found.pop("none")
    assert good["errors"] == {} and good["ok"] == good["requests"] > 0
    for fault, one in found.items():
        assert one["errors"] == {kinds[fault]: one["requests"]}
        # All get the same.
        assert one["prompt_tokens"] == good["prompt_tokens"]
        assert not one["holds"] and one["goodput"] == 0


@pytest.mark.parametrize("mode, drawn", [
    (["--search", "--search-steps", 2], True), (["--soak", "--round-seconds", 0.1], True),
    ([], False)])
def test_load_without_matplotlib_keeps_its_figures(fake_server, tmp_path, without_matplotlib, mode, drawn):
    url, pid = fake_server("none")
    result = run("load.py", "--url", url, "--pid", pid, "--rate", 40, "--duration", 0.3, "--warm-up", 0,
                 "--out", tmp_path, *mode, plots=True, environment=without_matplotlib)
    assert result.returncode == 0, result.stdout + result.stderr
    # What has no plot misses nothing.
    assert result.stderr == (NO_MATPLOTLIB if drawn else "")
    runs = saved(tmp_path, "load.json")["runs"]
    assert len(rows_of(tmp_path / "load.csv")) == len(runs) > 0


def test_no_server(tmp_path):
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        gone = f"gone=http://127.0.0.1:{nobody.getsockname()[1]}"
        result = run("load.py", "--peer", gone, "--out", tmp_path)
    assert result.returncode == 1 and result.stderr.startswith("load: "), result.stderr


SOAK = ["--soak", "--duration", 1, "--round-seconds", 0.3, "--rate", 40, "--prompt-tokens", 4,
        "--max-tokens", 4]


def test_soak_of_our_server(tmp_path):
    # The cache of states fills while this runs, which is no leak: its bounds are tolerated.
    result = run("load.py", "--model", GOLDEN / "hybrid_regla", "--out", tmp_path, "--vocabulary",
                 200, "--disconnect", 0.2, "--state-memory", "8M", "--tolerated-mib", 32, *SOAK)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASS") == 3
    found = saved(tmp_path, "load.json")
    assert len(found["soak"]["samples"]) >= soak.LEAST_ROUNDS and found["runs"][0]["errors"] == {}


@pytest.mark.parametrize("fault, grown", [
    ("none", set()), ("leak", {"rss_bytes", "threads", "descriptors"})])
def test_soak_notices_growth(fake_server, tmp_path, fault, grown):
    url, pid = fake_server(fault)
    result = run("load.py", "--url", url, "--pid", pid, "--out", tmp_path, *SOAK)
    assert result.returncode == bool(grown), result.stdout + result.stderr
    for name in ("rss_bytes", "threads", "descriptors"):
        assert f"{'FAIL' if name in grown else 'PASS'}  {name}: " in result.stdout


@pytest.mark.parametrize("name, step, grown", [
    ("rss_bytes", 500, False), ("rss_bytes", 2000, True), ("threads", 1, True),
    ("descriptors", 1, True), ("descriptors", 0, False)])
def test_growth(name, step, grown):
    still = {"rss_bytes": 10**6, "threads": 9, "descriptors": 12}
    # Warm-up, however large, is no growth.
    samples = [{**still, name: 0}] * 2 + [{**still, name: still[name] + i * step} for i in range(8)]
    found = soak.growth(samples, 5000)
    assert {what for what, change in found.items() if change["grown"]} == ({name} if grown else set())


# The study over HTTP.

@wrk
def test_study_and_overhead(tmp_path, without_matplotlib):
    command = ["study.py", "--systems", "hybrid_regla", "--lengths", "70", "--repeat", 1, "--out", tmp_path]
    result = run(*command, plots=True, environment=without_matplotlib)
    assert result.returncode == 0 and result.stderr.endswith(NO_MATPLOTLIB), result.stderr
    rows = rows_of(tmp_path / "study.csv")
    assert [(row["side"], row["length"]) for row in rows] == [
        ("engine", "70"), ("http", "70")]
    engine, http = rows
    for column in ("weights_bytes", "recurrent_bytes", "kv_bytes"):
        assert engine[column] == http[column]
    assert 0 < float(http["ttft_s"]) < float(http["total_s"])
    assert 0 < float(http["step_s"]) <= float(http["total_s"])
    compared = saved(tmp_path, "study.json")["comparison"]
    assert [row["length"] for row in compared] == [70]
    assert all(row["engine_ms"] > 0 and row["http_ms"] > 0 for row in compared)
    assert run(*command).returncode == 0 and rows_of(tmp_path / "study.csv") == rows
    result = run("overhead.py", "--preset", "regla-6l", "--streams", "3", "--length", 8,
                 "--repeat", 1, "--out", tmp_path, plots=True, environment=without_matplotlib)
    assert result.returncode == 0 and result.stderr.endswith(NO_MATPLOTLIB), result.stderr
    found = saved(tmp_path, "overhead.json")["verdicts"]
    assert [row["streams"] for row in found] == [3]
    assert found[0]["own_cpu_us_per_token"] > 0 and found[0]["share_percent"] > 0
    assert 0 <= found[0]["outside_steps_percent"] < 100
    assert found[0]["device_ms"] > 0 and found[0]["host_ms"] > 0 and 0 < found[0]["texts_per_step"] <= 3
    assert ("PASS  3 streams: at least" in result.stdout) == (found[0]["share_percent"] >= 85)
    assert ("PASS  3 streams: the host" in result.stdout) == (found[0]["host_percent"] <= 10)


# Constrained output.

def test_constrained():
    result = subprocess.run(
        [sys.executable, LOADTEST / "constrained.py", "--binary", BINARY, "--model", measure.shipped_model(),
         "--texts", "3", "--length", "9", "--repeat", "1"], capture_output=True, text=True, timeout=300)
    assert result.returncode in (0, 1), result.stderr
    rows = [json.loads(line) for line in result.stderr.splitlines()[1:]]
    assert [row["texts"] for row in rows] == ["free", "seen", "new"]
    assert [row["compiled"] for row in rows] == [0, 0, 3]
    assert [row["mask_percent"] > 0 for row in rows] == [False, True, True]
    verdicts = [line[:4] for line in result.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert len(verdicts) == 3 and (result.returncode == 0) == ("FAIL" not in verdicts)


# Peers: what is read from the programs, not the programs, which take too long to build.

def test_tests_of_peers():
    assert peers.parse_test("tg64@2048x16") == {"test": "tg64@2048x16", "kind": "tg", "tokens": 64,
                                                "depth": 2048, "texts": 16}
    assert peers.parse_test("pp512") == {"test": "pp512", "kind": "pp", "tokens": 512, "depth": 0,
                                         "texts": 1}
    for text in ("", "pp", "tg64@", "xx8", "pp512x16"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected pp512, tg64"):
            peers.parse_test(text)


PAIRS = [{"regla": 110.0, "llama": 100.0, "share_of_limit": 0.8, "bandwidth_gbps": 33.0},
         {"regla": 60.0, "llama": 50.0, "share_of_limit": 0.9, "bandwidth_gbps": 50.0},
         {"regla": 90.0, "llama": 100.0, "share_of_limit": 0.7, "bandwidth_gbps": 40.0}]


def test_peers_in_turns(tmp_path, monkeypatch, capsys):
    """Programs that print what is known, the peer half as fast with its flash attention. The run is
    stopped in between and goes on."""
    ran = []

    def answer(command):
        ran.append(Path(command[0]).name)
        if command[0] == "turns":
            factor = {0: 1, 1: 0.5}[command[10]]
            return "".join(json.dumps({**pair, "llama": factor * pair["llama"]}) + "\n"
                           for pair in PAIRS)
        if command[0] == "bench":
            factor = {"off": 1, "on": 0.5}[command[command.index("-fa") + 1]]
            return json.dumps([{"samples_ts": [80 * factor, 100 * factor, 90 * factor]}])
        if command[0] == "batched":
            return "main: heading\n" + "".join(
                json.dumps({"speed_pp": 1.0, "speed_tg": speed}) + "\n" for speed in (7.0, 8.0, 9.0))
        return json.dumps({"bandwidth_gbps": 40.0, "results": [
            {"tokens_per_second": 45.0, "share_of_limit": 0.5}]})

    monkeypatch.setattr(peers, "run", answer)
    monkeypatch.setattr(peers.Others, "share", lambda self: 0)
    options = peers.parse(["--weights", "q8", "--tests", "tg64,tg8x16", "--rounds", "1",
                           "--programs", "1"])
    options.threads = 2
    setup = {"turns": "turns", "llama-bench": "bench", "llama-batched-bench": "batched",
             "regla": "regla", "directory": "m", "files": {"q8": "q8.gguf"}}
    table = Table(tmp_path / "peers.csv", peers.COLUMNS, peers.KEY, {})
    assert peers.measure(table, setup, options) == (0, 0)
    assert ran == 4 * ["turns"] + 2 * ["regla", "bench"] + 2 * ["regla", "batched"]
    found = peers.summary(table)
    assert [(row["way"], row["test"], row["flash"], row["ratio"], row["counts"]) for row in found] == [
        ("pairs", "tg64", "off", 1.1, True), ("pairs", "tg64", "on", 2.2, False),
        ("pairs", "tg8x16", "off", 1.1, True), ("pairs", "tg8x16", "on", 2.2, False),
        ("programs", "tg64", "off", 0.5, True), ("programs", "tg64", "on", 1.0, False),
        ("programs", "tg8x16", "off", 5.625, True), ("programs", "tg8x16", "on", 5.625, True)]
    assert found[0]["share_of_limit"] == 0.8 and found[0]["bandwidth_gbps"] == 40
    peers.report(found, 0, 0, options)
    assert capsys.readouterr().out.endswith("faster setting\nBEHIND q8 tg64 (programs): 0.500\n")
    options.programs, options.flash = 2, ["off"]
    del ran[:]
    peers.measure(Table(tmp_path / "peers.csv", peers.COLUMNS, peers.KEY, {}), setup, options)
    assert ran == ["bench", "regla", "batched", "regla"]  # who is first changes


def test_peers_write_their_own_types(tmp_path, monkeypatch):
    calls = []

    def answer(arguments, **_):
        calls.append(arguments)
        Path(arguments[3]).touch()

    monkeypatch.setattr(peers, "run", answer)
    setup = {"turns": "turns", "files": {"bf16": tmp_path / "m-bf16.gguf", "q8": tmp_path / "m-q8.gguf"}}
    labels = ["q8", "q4=Q4_K_M/auto", "q4=Q4_K_M"]
    peers.quantize(setup, labels)
    kept = tmp_path / "m-Q4_K_M.gguf"
    assert [call[1:3] + call[4:] for call in calls] == [["quantize", tmp_path / "m-bf16.gguf", "Q4_K_M"]]
    assert kept.exists() and [peers.file_of(setup, label) for label in labels[1:]] == [kept, kept]
    assert [peers.ours(label) for label in labels] == ["q8", "q4/auto", "q4"]
    with pytest.raises(peers.Failure, match="q4: expected one of bf16, q8.*q4=Q4_0"):
        peers.quantize(setup, ["q4/auto"])


def test_peers_give_regla_its_activations(monkeypatch):
    """After a slash: whole to `turns`, apart to `regla bench`, and the peer's file is of the weights."""
    ran = []

    def answer(command):
        ran.append([str(word) for word in command])
        return json.dumps({"regla": 1, "llama": 1, "share_of_limit": 1, "bandwidth_gbps": 1, "results": [{}]})

    monkeypatch.setattr(peers, "run", answer)
    options = peers.parse(["--weights", "q8/8bit", "--tests", "pp5"])
    setup = {"turns": "turns", "regla": "regla", "directory": "m", "files": {"q8": "q8.gguf"}}
    [test], [weights] = options.tests, options.weights
    peers.pairs_point(setup, weights, test, "off", options)
    peers.regla_bench(setup, weights, test, "off", options)
    assert ran[0][3:5] == ["q8.gguf", "q8/8bit"]
    assert [ran[1][ran[1].index(flag) + 1] for flag in ("--weights", "--activations")] == ["q8", "8bit"]


def test_settings_of_flash_attention(capsys):
    assert peers.parse([]).flash == ["off", "on"] and peers.parse(["--flash", "auto"]).flash == ["auto"]
    for text in ("0", "off,", "off,fast"):
        with pytest.raises(SystemExit):
            peers.parse(["--flash", text])
        assert "expected auto, off, on, got" in capsys.readouterr().err


def test_peers_refuse_an_engine_of_yesterday(tmp_path):
    turns, regla = tmp_path / "turns", tmp_path / "regla"
    for path in (turns, regla):
        path.touch()
        os.utime(path, (1000, 1000))
    peers.check_engine(turns, regla)
    os.utime(turns, (999, 999))
    with pytest.raises(peers.Failure, match="turns is older than .*regla, so is the engine in it"):
        peers.check_engine(turns, regla)


def test_rounds_of_peers_that_others_disturb(tmp_path, monkeypatch, capsys):
    """They are measured again, so often and no more, and counted."""
    shares = iter([0.5, 0.031, 0.03, 0, 0.9, 0.9, 0.9])
    ran = []
    monkeypatch.setattr(peers, "run", lambda command: ran.append(1) or json.dumps(PAIRS[0]))
    monkeypatch.setattr(peers.Others, "share", lambda self: next(shares))
    options = peers.parse(["--weights", "q8", "--tests", "tg64", "--rounds", "3", "--tries", "3",
                           "--most-others", "0.03", "--flash", "auto"])
    setup = {"turns": "turns", "directory": "m", "files": {"q8": "q8.gguf"}}
    table = Table(tmp_path / "peers.csv", peers.COLUMNS, peers.KEY, {})
    assert peers.measure(table, setup, options) == (5, 1)
    assert len(ran) == 7 and [row["round"] for row in table.rows] == [1, 2]
    said = capsys.readouterr().err
    assert said.count("dropped, others had") == 5 and "3.1 % of the processor" in said
    peers.report(peers.summary(table), 5, 1, options)
    assert "dropped in this run: 5 (" in (said := capsys.readouterr().out) and "rounds MISSING: 1 (" in said
    peers.report([], 0, 0, options)
    assert capsys.readouterr().out.endswith("nothing was measured\n")


def test_others_are_who_is_not_us(monkeypatch):
    """By two moments a second apart, on cores 0 and 2: 100 ticks of a core are a second."""
    before, after = ("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {} 5 5 900 3 0 0 0 0 0\ncpu1 {} 0 0 0 0 0 0 0 0 0\n"
                     "cpu2 5 5 5 900 3 {} 0 7 0 0\nintr 1\n".format(*worked)
                     for worked in ((50, 10, 0), (150, 99, 20)))
    texts, moments, ours = iter([before, after]), iter([7, 8]), iter([(1, 1, 1, 1, 9), (1, 1, 2, 1.1, 10)])
    monkeypatch.setattr(measure, "Path", lambda path: SimpleNamespace(read_text=lambda: next(texts)))
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(measure, "os", SimpleNamespace(
        sched_getaffinity=lambda pid: {0, 2}, times=lambda: next(ours), sysconf=lambda name: 100))
    assert measure.Others().share() == pytest.approx((1 + 0.2 - 1.1) / 2)


def test_model_of_peers():
    """Heads' q, k, v become all q, all k, all v; halves of a head become pairs; numbers become the
    nearest bf16."""
    name = "gpt_neox.layers.7.attention.query_key_value.weight"
    rows = peer_model.nearest_bf16(np.arange(12, dtype=np.float32)[:, None])
    config = {"model_type": "gpt_neox", "num_attention_heads": 2}
    converted = dict(peer_model.gguf_tensors(config, {name: rows}))
    assert converted["blk.7.attn_qkv.weight"][:, 0].tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    for model_type, order in (("llama", [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]), ("qwen3", range(12))):
        config = {"model_type": model_type, "head_dim": 6}
        name = "model.layers.3.self_attn.k_proj.weight"
        converted = dict(peer_model.gguf_tensors(config, {name: rows}))
        assert converted["blk.3.attn_k.weight"][:, 0].tolist() == list(order)
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-16], np.float32)
    bits = peer_model.nearest_bf16(values).astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [1.0, 1.0, 1 + 2**-6, -1 - 2**-7]
    config = peer_model.preset("gpt_neox-160m")
    assert sum(np.prod(shape) for shape in peer_model.shapes(config).values()) == 162322944
    with pytest.raises(Failure, match="regla-160m: expected a preset of model_type gpt_neox, llama"):
        peer_model.preset("regla-160m")


def test_table_goes_on(tmp_path):
    columns, key = ["name", "seconds"], ["name"]
    path = tmp_path / "t.csv"
    table = Table(path, columns, key, {"cores": 2, "commit": "a"})
    table.add({"name": "x", "seconds": 1.5})
    table.write_json()
    with open(path, "a") as file:
        file.write("y,2.")  # cut off by a crash
    table = Table(path, columns, key, {"cores": 2, "commit": "b"})
    assert table.has(name="x") and not table.has(name="y")
    assert table.values("seconds", name="x") == [1.5]
    assert path.read_text() == "name,seconds\nx,1.500000\n"
    with pytest.raises(Failure, match="measured with cores 2, this run has 4"):
        Table(path, columns, key, {"cores": 4})
    path.write_text("other,columns\n1,2\n")
    with pytest.raises(Failure, match="expected the columns name,seconds"):
        Table(path, columns, key, {"cores": 2})


def test_shares_of_two_shapes():
    def shares(*presets):
        return subprocess.run([sys.executable, LOADTEST / "shares.py", "--binary", BINARY, *presets,
                               "--rounds", "1", "--pp", "16", "--tg", "0", "--weights", "bf16"],
                              capture_output=True, text=True, timeout=300)
    result = shares("fast_decay-6l", "regla-6l")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[:2] + row[-1:] for row in rows] == [["bf16", "pp16", "points"]], result.stdout
    refused = shares("no-such-preset", "regla-6l")
    assert refused.returncode == 1 and "no-such-preset" in refused.stderr


def sed(script):
    return f"set -- $(printf '%s\\n' \"$@\" | sed '{script}')"


@pytest.mark.parametrize("change, said", [
    ("", "1 fingerprints, 64 tokens, "),
    (sed("0,/^f32$/s//bf16/"), "gla (f32 f32 f32), the text, token 1: old"),
    (sed("s/gla$/gla_gate/"), "gla (f32 f32 f32), fingerprint: old")])
def test_bits_of_two_builds(tmp_path, change, said):
    other = tmp_path / "regla"
    other.write_text(f"#!/bin/sh\n{change}\nexec {BINARY} \"$@\"\n")
    other.chmod(0o755)
    result = subprocess.run([sys.executable, LOADTEST / "bits.py", BINARY, other, "--models", "gla",
                             "--formats", "f32 f32 f32"], capture_output=True, text=True, timeout=300)
    assert said in result.stdout, result.stdout + result.stderr
    assert result.stdout.endswith("1 differ\n" if change else "the same\n")
    assert result.returncode == bool(change)
