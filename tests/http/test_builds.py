# SPDX-License-Identifier: Apache-2.0
"""loadtest/builds.py: two builds of the engine in turns, with engines that only pretend."""

import json
import subprocess
import sys

import pytest

from harness import ROOT

sys.path.append(str(ROOT / "loadtest"))
import builds
from measure import Failure

pytestmark = pytest.mark.builds("dev")  # the tools of loadtest/, in Python

# A side that says how long its steps took, and how fast memory is: it changes after CHANGES.
PRETENDS = """
#include "loadtest/builds/side.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int measured;
static void note(const char *what, int tokens)
{
    FILE *log = fopen(getenv("SIDES"), "a");
    fprintf(log, "%s " NAME " %d\\n", what, tokens);
    fclose(log);
}
int side_open(const struct side_test *test, char message[SIDE_MESSAGE])
{
    note("open", 0);
    if (strcmp(test->preset, "regla-160m") == 0 && test->texts == 2 && test->depth == 8)
        return 0;
    snprintf(message, SIDE_MESSAGE, "preset: unknown %s", test->preset);
    return -1;
}
int side_run(int tokens, double *seconds, char message[SIDE_MESSAGE])
{
    note("run", tokens);
    *seconds = tokens * STEP * (measured > CHANGES ? 0.5 : 1);
    return 0;
}
int side_measure(double *bandwidth, char message[SIDE_MESSAGE])
{
    *bandwidth = measured++ < CHANGES ? 30e9 : 60e9;
    return 0;
}
void side_close(void)
{
    note("close", 0);
}
"""
OPTIONS = ["regla-160m", "f32", "f16", "f32", "tg", 64, 8, 2, 1]


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    folder = tmp_path_factory.mktemp("builds")
    patch = pytest.MonkeyPatch()
    patch.setattr(builds, "BUILDS", folder)
    yield builds.build_turns()
    patch.undo()


def side(folder, name, step, changes=1000):
    path = folder / f"{name}.so"
    subprocess.run([*builds.COMPILER, "-Wno-unused-parameter", "-shared", "-fPIC", f"-I{ROOT}", "-x", "c",
                    "-",
                    "-o", path, f'-DNAME="{name}"', f"-DSTEP={step}", f"-DCHANGES={changes}"],
                   input=PRETENDS, text=True, check=True)
    return path


def test_a_side_compiles_with_this_tree():
    subprocess.run([*builds.COMPILER, "-Werror", "-D_GNU_SOURCE", "-fsyntax-only", f"-I{ROOT}",
                    builds.SOURCES / "side.c"], check=True)


def test_turns(turns, tmp_path, monkeypatch):
    monkeypatch.setenv("SIDES", str(tmp_path / "sides"))
    old, new = side(tmp_path, "old", 0.005), side(tmp_path, "new", 0.004)
    found = json.loads(builds.run([turns, old, new, *OPTIONS]))
    assert len(found) == 1 and found[0]["pairs"] > 8
    assert found[0]["bandwidth_gbps"] == 30 and found[0]["old"] == pytest.approx(400)
    assert found[0]["new"] == pytest.approx(500) and found[0]["ratio"] == pytest.approx(1.25)
    lines = (tmp_path / "sides").read_text().splitlines()
    # 64 tokens first, to see how long they take, then slices of 10 of 5 ms; who is first changes
    assert lines[:4] == ["open old 0", "open new 0", "run old 64", "run new 64"]
    assert lines[4:8] == ["run old 10", "run new 10", "run new 10", "run old 10"]
    assert [line for line in lines if "run" not in line] == \
        (["open old 0", "open new 0", "close old 0", "close new 0"]
         + ["open new 0", "open old 0", "close old 0", "close new 0"]) * 3


def test_paces_of_memory_are_told_apart(turns, tmp_path, monkeypatch):
    monkeypatch.setenv("SIDES", str(tmp_path / "sides"))
    old, new = side(tmp_path, "old", 0.005, changes=8), side(tmp_path, "new", 0.004)
    slow, fast = json.loads(builds.run([turns, old, new, *OPTIONS]))
    assert (slow["bandwidth_gbps"], fast["bandwidth_gbps"]) == (30, 60)
    assert 1 <= slow["pairs"] <= 7  # of eight measurements, and in the last one's pair it changed
    assert slow["ratio"] == pytest.approx(1.25) and fast["ratio"] == pytest.approx(0.625)


def test_what_is_no_build_is_said(turns, tmp_path, monkeypatch):
    monkeypatch.setenv("SIDES", str(tmp_path / "sides"))
    old = side(tmp_path, "old", 0.005)
    with pytest.raises(Failure, match="missing.so: .*cannot open"):
        builds.run([turns, old, tmp_path / "missing.so", *OPTIONS])
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-o", other, "-x", "c", "-"], input="int x;", text=True, check=True)
    with pytest.raises(Failure, match="other.so: it is no build of side.c"):
        builds.run([turns, old, other, *OPTIONS])
    with pytest.raises(Failure, match="preset: unknown regla-161m"):
        builds.run([turns, old, old, "regla-161m", *OPTIONS[1:]])
    with pytest.raises(Failure, match="expected at least one token and one text"):
        builds.run([turns, old, old, *OPTIONS[:5], 0, *OPTIONS[6:]])
    with pytest.raises(Failure, match="usage: turns OLD.so NEW.so"):
        builds.run([turns, old, old])


def test_what_is_no_commit_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(builds, "BUILDS", tmp_path)
    assert builds.main(["no-such-commit"]) == 1
    assert "expected a commit, or a folder of sources, got 'no-such-commit'" in capsys.readouterr().err
    for name in ("a/regla", "b/regla"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "CMakeLists.txt").touch()
    assert builds.tree_of(tmp_path / "a/regla")[0] != builds.tree_of(tmp_path / "b/regla")[0]
    monkeypatch.setattr(builds, "build", builds.tree_of)
    assert builds.main([str(ROOT)]) == 1
    assert "expected two builds" in capsys.readouterr().err


def test_what_does_not_compile_is_said(tmp_path):
    log = tmp_path / "build.log"
    (tmp_path / "bad.c").write_text("int f(void) { return 1 }\n")
    builds.compile_with(log, ["cc", "--version"])
    with pytest.raises(Failure, match=r"bad.c:1:23: error: expected .*build.log\)"):
        builds.compile_with(log, ["cc", "-c", tmp_path / "bad.c", "-o", tmp_path / "bad.o"])
    with pytest.raises(Failure, match="false failed"):
        builds.compile_with(log, ["false"])


def test_the_table(capsys, monkeypatch):
    answers = iter(['[{"bandwidth_gbps": 30.5, "old": 100, "new": 110, "ratio": 1.1, "low": 1.05, '
                    '"high": 1.15, "pairs": 7}]', "[]"])
    asked = []
    monkeypatch.setattr(builds, "run", lambda command: asked.append(command) or next(answers))
    options = builds.parse(["HEAD", "--weights", "bf16,q8", "--tests", "tg32@8000x16"])
    assert not builds.measure("turns", "a.so", "b.so", options)
    assert asked[0][:9] == ["turns", "a.so", "b.so", "regla-160m", "bf16", "f16", "f32", "tg", 32]
    assert asked[0][9:] == [8000, 16, 30]
    _, line, none = capsys.readouterr().out.splitlines()
    assert line.split() == ["bf16", "tg32@8000x16", "30.5", "GB/s", "100.0", "110.0", "1.100", "1.050",
                            "to", "1.150,", "of", "7", "pairs"]
    assert none.split() == ["q8", "tg32@8000x16", "no", "pair", "at", "one", "pace", "in", "30", "s"]
