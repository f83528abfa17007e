# SPDX-License-Identifier: Apache-2.0
"""What the other tests rely on."""

import subprocess
import sys
from pathlib import Path

import pytest

import harness

pytestmark = pytest.mark.builds("dev")


class Clock:
    """Of a machine on which every pause takes so long."""

    def __init__(self, pause):
        self.now, self.pause = 0, pause

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += self.pause


@pytest.mark.parametrize("pause, looks", [(3600, 10), (0.25, 40)])
def test_a_wait_ends_by_the_time_in_which_it_could_look(monkeypatch, pause, looks):
    monkeypatch.setattr(harness, "time", Clock(pause))
    for last in (looks, looks + 1):
        answers = iter([None] * last + ["found"])
        if last == looks:
            assert harness.wait_until(lambda: next(answers), "it is", 10 / harness.SLOWNESS) == "found"
        else:
            with pytest.raises(AssertionError, match="not after 10.* s: it is"):
                harness.wait_until(lambda: next(answers), lambda: "it is", 10 / harness.SLOWNESS)


def test_a_wait_looks_once_more_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(harness, "time", Clock(3600))
    answers = iter([None, "found"])
    assert harness.wait_until(lambda: next(answers), "it is", 1 / harness.SLOWNESS) == "found"


@pytest.mark.long
@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_children_of_a_runner_that_ignores_interrupts_do_not(tmp_path, name):
    """`pytest &` in a script: the runner goes on ignoring them, and what it tests can be sent one."""
    (tmp_path / "test_child.py").write_text(
        "import os, signal, subprocess\n"
        "def test_child():\n"
        f"    os.kill(os.getpid(), signal.SIG{name})\n"  # would end pytest with status 2
        f"    child = subprocess.run(['sh', '-c', 'kill -{name} $$'])\n"
        f"    assert child.returncode == -signal.SIG{name}\n")
    done = subprocess.run(
        ["sh", "-c", f'trap "" {name}; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", "-p",
         "no:cacheprovider", "-p", "no:xdist", "-p", "conftest", tmp_path],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=harness.START_SECONDS)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
