# SPDX-License-Identifier: Apache-2.0
"""What the other tests rely on."""

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
