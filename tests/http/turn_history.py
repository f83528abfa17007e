# SPDX-License-Identifier: Apache-2.0
"""What clients saw of sessions that several servers share, and whether one session could have shown it
to all of them: a check of linearizability, for turns that name the position that they expect."""

import bisect
from dataclasses import dataclass, field
from itertools import accumulate

READ, MADE, CLAIMED, UNKNOWN, REFUSED, MISMATCH = (
    "read", "made", "claimed", "unknown", "refused", "mismatch")


@dataclass
class Event:
    """What one client asked for, and learned. Times are of one clock.

    READ      the session was at `start`
    MADE      a turn of `length` tokens from `start` was acknowledged: `tokens`, all of them
    CLAIMED   a turn was asked for again, and had been made before; `tokens` are its first ones, or all
    UNKNOWN   nobody said whether such a turn was made; `tokens` are those of its prompt
    REFUSED   it was said that it was not
    MISMATCH  it was said that the session is not at `start`"""

    kind: str
    asked: float
    answered: float
    start: int
    length: int = 0
    tokens: list = field(default_factory=list)
    text: str = ""  # of what was generated, where the turn was acknowledged

    @property
    def end(self):
        return self.start + self.length

    def is_turn(self):
        return self.kind in (MADE, UNKNOWN)


class History:
    """Of one session. tokens: those that it holds at the end."""

    def __init__(self, events, tokens):
        self.events, self.tokens = events, tokens
        self.found = []  # what contradicts that each turn took effect once, at one moment
        self.turns = self._made()

    def _made(self):
        """The turns that the session is made of, one for each; of equal ones, the first that was asked."""
        begin = {}
        for event in sorted(filter(Event.is_turn, self.events), key=lambda e: (e.kind != MADE, e.asked)):
            if self.tokens[event.start:event.start + len(event.tokens)] == event.tokens:
                begin.setdefault(event.start, event)
        turns, at = [], 0
        while at < len(self.tokens):
            if at not in begin:
                self.found.append(f"what begins at {at} was asked for by nobody")
                break
            turns.append(begin[at])
            at = turns[-1].end
        return turns

    def violations(self):
        for event in self.events:
            there = self.tokens[event.start:event.start + len(event.tokens)] == event.tokens
            if event.kind in (MADE, CLAIMED) and not there:
                self.found.append(f"the turn at {event.start} was acknowledged, and is not there")
        self._overlaps()
        self._forgotten()
        self._too_early()
        return self.found

    def _overlaps(self):
        turns = sorted((e for e in self.events if e.kind == MADE), key=lambda e: e.start)
        for one, other in zip(turns, turns[1:], strict=False):
            if other.start < one.end:
                self.found.append(f"the turns at {one.start} and {other.start} were both acknowledged")

    def _forgotten(self):
        """A position that was seen is there for whoever asks later."""
        known = sorted((e.answered, e.end) for e in self.events if e.kind in (READ, MADE, CLAIMED))
        times = [answered for answered, _ in known]
        deepest = [0, *accumulate((at for _, at in known), max)]
        for event in self.events:
            before = deepest[bisect.bisect_left(times, event.asked)]
            if event.kind in (READ, MADE) and event.start < before:
                self.found.append(f"{before} was seen before a {self._what(event)} at {event.start} "
                                  "was asked for")

    def _too_early(self):
        """Nobody sees a turn, or refers to it, before it and those behind which it stands were asked."""
        asked, latest = {0: float("-inf")}, float("-inf")
        next_end = {}
        for turn in self.turns:
            same = [e.asked for e in self.events
                    if e.kind == UNKNOWN and e.start == turn.start and e.tokens == turn.tokens]
            latest = max(latest, min([turn.asked, *same]))
            asked[turn.end] = latest
            next_end[turn.start] = turn.end
        for event in self.events:
            at = event.start
            if event.kind in (MISMATCH, CLAIMED):
                at = next_end.get(event.start)
            elif event.kind not in (READ, MADE):
                continue
            if at is None:
                self.found.append(f"no longer at {event.start}, a client was told, and no turn begins there")
            elif at not in asked:
                self.found.append(f"a {self._what(event)} at {at}, where no turn ends")
            elif event.answered < asked[at]:
                self.found.append(f"a {self._what(event)} at {event.start} was answered before the turn "
                                  f"to {at} was asked for")

    @staticmethod
    def _what(event):
        return "read" if event.kind == READ else "turn"


def violations(events, tokens):
    return History(events, tokens).violations()
