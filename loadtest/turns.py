#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time to the first token of turn 30 of a chat beside that of turn 2, where each computes equally
many tokens: all that a conversation resent whole, or kept in a session, adds to a turn. Of a model
so large that its weights are most of the work: a folder with random weights (peer_model.py makes one
of a preset) and the tokenizer of another. Conversations take turns, since others use the machine."""

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

from measure import Failure, find_binary, machine, median, serving, shipped_model, spread

TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
CHAT = "/v1/chat/completions"
TURNS = (2, 30)
MOST = 1.2  # turn 30 over turn 2


def assemble(folder, model, tokenizer):
    """The model with another's tokenizer, by links."""
    for file in Path(model).resolve().iterdir():
        if not file.name.startswith("tokenizer"):
            (folder / file.name).symlink_to(file)
    (folder / "tokenizer.json").symlink_to(Path(tokenizer).resolve() / "tokenizer.json")
    (folder / "chat.jinja").write_text(TEMPLATE)


def user(text):
    return {"role": "user", "content": text}


class Talk:
    """A conversation that is one turn short of the one that is measured."""

    def __init__(self, server, name, turns, session):
        self.server, self.name, self.turns, self.session = server, name, turns, session
        self.messages = []
        for turn in range(turns - 1):
            self.messages.append(user(f"Question {turn + 10} of conversation {name}?"))
            answer = self._ask(self.messages if not session else self.messages[-1:], True)[2]
            self.messages.append({"role": "assistant", "content": answer})

    def _ask(self, messages, keeps):
        body = {"messages": messages, "max_tokens": 4, "ignore_eos": True, "stream": True, "temperature": 0,
                "stream_options": {"include_usage": True}}
        if self.session:
            body |= {"session_id": self.name, "store": keeps}
        began, came, frames = time.monotonic(), None, []
        with self.server.http.stream("POST", CHAT, json=body, timeout=600) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                frames.append(json.loads(line.removeprefix("data: ")))
                if came is None and any(c["delta"].get("content") for c in frames[-1]["choices"]):
                    came = time.monotonic() - began
        usage = frames[-1]["usage"]
        text = "".join(c["delta"].get("content", "") for frame in frames for c in frame["choices"])
        return came, usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], text

    def measure(self, number):
        """(seconds until the first token, tokens computed) of a turn that is not kept."""
        question = user(f"And {number}: {'what of all this is to be said, and of whom? ' * 3}")
        return self._ask([question] if self.session else [*self.messages, question], False)[:2]


def compare(server, session, options):
    """Of each conversation the medians; then those of all."""
    talks = [Talk(server, f"talk-{turns}-{number}", turns, session)
             for number in range(options.conversations) for turns in TURNS]
    numbers = itertools.count(2000 if session else 1000)  # the tree keeps what the other way asked
    for talk in talks:
        talk.measure(next(numbers))
    points = {turns: [] for turns in TURNS}
    for repeat in range(options.repeat):
        for talk in talks[::1 if repeat % 2 else -1]:
            points[talk.turns].append(talk.measure(next(numbers)))
    counts = {turns: sorted({count for _, count in points[turns]}) for turns in TURNS}
    times = {turns: median([came for came, _ in points[turns]]) for turns in TURNS}
    second, last = (times[turns] for turns in TURNS)
    print(json.dumps({
        "way": "session" if session else "resent whole", "computed": counts,
        "median_ms": {turns: round(1e3 * times[turns], 2) for turns in TURNS},
        "spread": {turns: round(spread([came for came, _ in points[turns]]), 3) for turns in TURNS},
        "ratio": round(last / second, 3), "measured": len(points[TURNS[0]])}), flush=True)
    return last <= MOST * second


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="its folder")
    parser.add_argument("--tokenizer", default=shipped_model(), help="a folder with a tokenizer.json")
    parser.add_argument("--binary")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--conversations", type=int, default=4, help="of each of the two turns")
    parser.add_argument("--repeat", type=int, default=10, help="of each conversation")
    parser.add_argument("--checkpoint-interval", type=int, default=4096)
    options = parser.parse_args()
    try:
        binary = find_binary(options.binary)
        print(json.dumps(machine(binary)))
        with tempfile.TemporaryDirectory() as folder:
            assemble(Path(folder), options.model, options.tokenizer)
            with serving(binary, model=folder, weights=options.weights,
                         chat_template=Path(folder) / "chat.jinja",
                         checkpoint_interval=options.checkpoint_interval) as server:
                well = [compare(server, session, options) for session in (False, True)]
    except Failure as failure:
        sys.exit(f"turns: {failure}")
    sys.exit(0 if all(well) else f"turns: expected at most {MOST} times turn {TURNS[0]}, got more")


if __name__ == "__main__":
    main()
