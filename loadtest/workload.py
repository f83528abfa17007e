# SPDX-License-Identifier: Apache-2.0
"""What arrives, when, and how it behaves: all of it drawn before the run from one seed, so that two
servers, or two runs, get the same."""

import math
import random
from dataclasses import dataclass, field


class Lengths:
    """A distribution of lengths: "64", "uniform:16:128", "exponential:MEAN",
    "lognormal:MEDIAN:SIGMA"; a last ":MOST" bounds the latter two (by itself: 16 times the first
    number)."""

    def __init__(self, text):
        kind, *numbers = text.split(":")
        self.text = text
        try:
            self.numbers = [float(number) for number in numbers or [kind]]
        except ValueError:
            raise ValueError(f"expected lengths such as 64 or uniform:16:128, got {text!r}") from None
        self.kind = kind if numbers else "fixed"
        counts = {"fixed": (1,), "uniform": (2,), "exponential": (1, 2), "lognormal": (2, 3)}
        if len(self.numbers) not in counts.get(self.kind, ()) or min(self.numbers) <= 0:
            raise ValueError(f"expected lengths such as 64 or uniform:16:128, got {text!r}")

    def draw(self, generator):
        n = self.numbers
        if self.kind == "fixed":
            return int(n[0])
        if self.kind == "uniform":
            return generator.randint(int(n[0]), int(n[1]))
        needed = 1 if self.kind == "exponential" else 2
        most = n[needed] if len(n) > needed else 16 * n[0]
        value = (generator.expovariate(1 / n[0]) if self.kind == "exponential"
                 else generator.lognormvariate(math.log(n[0]), n[1]))
        return max(1, min(int(most), round(value)))

    def __str__(self):
        return self.text


@dataclass
class Arrival:
    at: float  # seconds after the start
    prompt: list
    max_tokens: int
    leaves_after: int | None = None  # of its tokens; it then closes the connection
    slow: bool = False  # it reads with pauses
    in_session: bool = False  # continues one of the sessions


@dataclass
class Workload:
    prompt_tokens: Lengths
    max_tokens: Lengths
    shared: float = 0.0  # share of prompts that begin with one of the shared prefixes
    prefix_tokens: int = 256
    prefixes: int = 4
    sessions: float = 0.0  # shares of requests
    disconnect: float = 0.0
    slow: float = 0.0
    vocabulary: int = 250
    seed: int = 0
    _prefixes: list = field(init=False, repr=False)

    def __post_init__(self):
        generator = random.Random(f"prefixes {self.seed}")
        self._prefixes = [self._ids(generator, self.prefix_tokens) for _ in range(self.prefixes)]

    def _ids(self, generator, count):
        return [generator.randrange(3, self.vocabulary) for _ in range(count)]

    def arrivals(self, rate, seconds, part=0):
        """A Poisson process: independent, exponential times between arrivals."""
        generator = random.Random(f"{self.seed} {part}")
        at = generator.expovariate(rate)
        found = []
        while at < seconds:
            found.append(self._arrival(generator, at))
            at += generator.expovariate(rate)
        return found

    def _arrival(self, generator, at):
        prompt = self._ids(generator, self.prompt_tokens.draw(generator))
        if generator.random() < self.shared:
            prompt = generator.choice(self._prefixes) + prompt
        arrival = Arrival(at, prompt, self.max_tokens.draw(generator))
        arrival.in_session = generator.random() < self.sessions
        behaviour = generator.random()
        if behaviour < self.disconnect:
            arrival.leaves_after = generator.randrange(arrival.max_tokens)
        elif behaviour < self.disconnect + self.slow:
            arrival.slow = True
        return arrival
