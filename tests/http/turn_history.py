# SPDX-License-Identifier: Apache-2.0
"""What clients saw of sessions that several servers share, and whether one session could have shown it
to all of them: a check of linearizability, for turns that name the position that they expect."""

from dataclasses import dataclass, field


@dataclass
class Event:
    """A turn: from `start` to `end`, or (end None) not known to have been made. Or a read of `start`.
    Times are of one clock: when it was asked, and when it was answered."""

    asked: float
    answered: float
    start: int
    end: int | None = None
    tokens: list = field(default_factory=list)  # of the turn, where it was acknowledged
    read: bool = False


def violations(events, tokens):
    """What contradicts that each turn took effect once, at a moment between its question and its
    answer. tokens: those that the session holds at the end."""
    found = []
    turns = sorted((e for e in events if not e.read and e.end is not None), key=lambda e: e.start)
    for turn in turns:
        if tokens[turn.start:turn.end] != turn.tokens:
            found.append(f"the turn at {turn.start} was acknowledged, and is not there")
    for one, other in zip(turns, turns[1:], strict=False):
        if other.start < one.end:
            found.append(f"the turns at {one.start} and {other.start} were both acknowledged")
    # A position that was seen is there for whoever asks later.
    known = sorted((e.answered, e.start if e.read else e.end) for e in events
                   if e.read or e.end is not None)
    for event in events:
        if event.end is None and not event.read:
            continue
        before = max((at for answered, at in known if answered < event.asked), default=0)
        if event.start < before:
            found.append(f"{before} was seen before a {'read' if event.read else 'turn'} at "
                         f"{event.start} was asked for")
    return found
