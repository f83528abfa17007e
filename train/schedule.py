# SPDX-License-Identifier: Apache-2.0
"""The learning rate, as a fraction of its peak, is a function of the step alone."""

import copy
import math

SCHEDULES = ("wsd", "cosine", "inverse_sqrt")


class Schedule:
    """Warm-up over `warmup` steps, then by `kind`: wsd is constant, with a linear decay to 0 in the
    last `decay` steps; cosine falls to 0 at `steps`; inverse_sqrt falls with the root of the step.
    """

    def __init__(self, steps, warmup, decay=None, kind="wsd"):
        if kind != "wsd" and decay is not None:
            raise ValueError(f"--decay: only with --schedule wsd, got {kind}")
        self.kind, self.steps, self.warmup = kind, steps, max(warmup, 1)
        self.whole = steps  # of the cosine, also where the run is ended early; most of any plan
        self.decay = 500 if kind == "wsd" and decay is None else decay
        self.resumed, self.rate_then = 0, 1.0  # where this plan followed another, and its rate

    def at(self, step):
        """Where a plan followed another, the rate rises from that one's by 1/warmup a step."""
        return min(self._planned(step), self.rate_then + (step + 1 - self.resumed) / self.warmup)

    def _planned(self, step):
        rising = (step + 1) / self.warmup
        falling = max(self.steps - step, 0) / self.decay if self.decay else 1.0
        if self.kind == "wsd":
            return min(rising, 1.0, falling)
        if rising < 1.0:
            return rising * min(falling, 1.0)
        if self.kind == "cosine":
            done = (step + 1 - self.warmup) / max(self.whole - self.warmup, 1)
            return (1 + math.cos(math.pi * min(done, 1.0))) / 2 * min(falling, 1.0)
        return (self.warmup / (step + 1)) ** 0.5 * min(falling, 1.0)

    def resume(self, step, saved):
        """Goes on by the saved plan (vars of a Schedule) after so many steps; if that was made for
        another number of steps, by this one. Returns what is to be said of it."""
        old = copy.copy(self)
        vars(old).update(saved)
        if old.whole == self.steps:
            vars(self).update(saved)
            if step < self.steps:
                return f"goes on from step {step} of {self.steps}"
            early = f", of {self.whole}: the run was ended early" if step < self.whole else ""
            return f"all {step} steps are done{early}; to go on, say other --steps"
        if self.steps <= step:
            return f"{step} steps are done: --steps {self.steps} leaves nothing to do"
        self.resumed, self.rate_then = step, old.at(step)
        return (
            f"goes on from step {step} to {self.steps}, not {old.steps}: the rate goes from "
            f"{self.rate_then:.4g} of its peak to that of a run of {self.steps} steps, by at most "
            f"1/{self.warmup} a step"
        )

    def decay_now(self, step, length=None):
        """Begins the linear decay to 0 at this step, if it has not begun."""
        length = length or self.decay or max(self.steps // 10, 1)
        if step < self.steps - (self.decay or 0):
            self.decay = length
            self.steps = step + length

    def replan(self, step, left, share):
        """wsd with `left` more steps, of at most those it was made with; the last `share` of all is
        the decay. One that has begun, or is late, goes on linearly from the rate it has."""
        if step >= self.steps:
            return
        rate, begun = self.at(step), step >= self.steps - self.decay
        self.steps = min(self.whole, step + max(left, 1))
        self.decay = max(round(self.steps * share), 1)
        if begun or step > self.steps - self.decay:
            self.decay = max(round((self.steps - step) / rate), 1)
