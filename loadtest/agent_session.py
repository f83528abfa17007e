#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coding agent's session on a hybrid: a long system text and tools, results of tools, messages of the
system, in four parts:

  messages    by /v1/messages, each turn sent whole, with a line of billing that changes; beside it
              requests for a title and two subagents. The first tokens of some turns are compared with
              what `regla bench` reads as many tokens in, at that depth, right after the session
  responses   by previous_response_id: what is new alone. Then branches off an early turn
  killed      the same with --state-dir, and kill -9 before some turns and branches
  store       the same with two servers of one Redis, which take turns

A turn may compute what is new in it and one interval of checkpoints, and its first token may take 1.2
times what bench says. With --peer llama-server gets the requests of `messages`, with the line of billing
and without. Status 1: something was more. `killed` and `store` wait until the state of the turn before is
written (--save-state-bytes)."""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import agent_kept
import agent_model
from agent_servers import Ours, Theirs
from agent_words import tell, turn_size, words
from measure import ROOT, Failure, find_binary, machine, median, run

TOKENIZER = ROOT / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MOST_TIMES = 1.2
TITLES, SUBAGENTS = (1, 11, 21), (7, 17)  # after which turns


def tool(source, name):
    return {"name": name, "description": words(source, 40),
            "input_schema": {"type": "object", "required": ["path"], "additionalProperties": False,
                             "properties": {"path": {"type": "string", "description": words(source, 10)},
                                            "limit": {"type": "integer", "description": words(source, 10)}}}}


class Agent:
    """One conversation, which goes on with what the server has answered."""

    def __init__(self, server, source, system_words, tools, billing=True):
        self.server, self.source, self.billing = server, source, billing
        self.system = words(source, system_words)
        self.tools = [tool(source, f"tool_{i}") for i in range(tools)]
        self.messages = []
        self.before = 0  # tokens of the last prompt

    def _billing(self):
        mark = f"{self.source.getrandbits(20):05x}"
        return {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.{mark}; cch={mark};"}

    def turn(self, size):
        """What is new: a result of so many words, and a message of the system."""
        content = [{"type": "text", "text": words(self.source, 30)}]
        if self.messages:
            last = self.messages[-1]["content"]
            call = f"toolu_{self.source.getrandbits(60):015x}"
            last.append({"type": "tool_use", "id": call, "name": "tool_0",
                         "input": {"path": words(self.source, 3)}})
            content.insert(0, {"type": "tool_result", "tool_use_id": call,
                               "content": words(self.source, size)})
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "system", "content": words(self.source, 20)})
        system = [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
        body = {"system": [self._billing(), *system] if self.billing else system, "messages": self.messages}
        if self.tools:
            body["tools"] = self.tools
        measured = self.server.ask(body)
        measured["new"] = measured["prompt"] - self.before
        self.before = measured["prompt"]
        said = {"type": "text", "text": measured.pop("text") or "."}
        self.messages.append({"role": "assistant", "content": [said]})
        return measured


def session(server, options, billing):
    """The turns, each a dictionary."""
    source = random.Random(options.seed)
    agent = Agent(server, source, 1500, 8, billing)
    turns = []
    for number in range(options.turns if isinstance(server, Ours) or not billing else options.peer_turns):
        turns.append(agent.turn(turn_size(options, agent.before, number)))
        tell(server, number, turns[-1])
        if number in TITLES:
            Agent(server, source, 40, 0, billing).turn(0)
        if number in SUBAGENTS:
            helper = Agent(server, source, 800, 4, billing)
            for _ in range(3):
                helper.turn(200)
    return turns


def pace(binary, options, turn):
    """Tokens per second of a prompt of as many tokens, behind as many as the turn did not compute."""
    depth = turn["prompt"] - turn["computed"]
    found = json.loads(run([binary, "bench", "--model", options.model, "--pp", turn["computed"], "--tg", 0,
                            "--depth", depth, "--repeat", 3, "--json"]))
    return found["results"][0]["tokens_per_second"]


def in_time(binary, options, turns):
    """Whether the first token of some turns comes in time."""
    picked = turns[:: max(1, len(turns) // options.checked)][: options.checked]
    ratios = [turn["first"] * pace(binary, options, turn) / turn["computed"] for turn in picked]
    print("  first token over bench:", *(f"{ratio:.3f}" for ratio in ratios),
          f"median {median(ratios):.3f}", flush=True)
    return median(ratios) <= MOST_TIMES


def row(options, part, turns, bounded=True):
    """A line of the table; whether no turn computes too much."""
    beyond = max(turn["computed"] - turn["new"] for turn in turns)
    well = beyond <= options.interval
    firsts = [turn["first"] for turn in turns]
    print(f"{part:<38} {len(turns):>5} {max(turn['prompt'] for turn in turns):>7} "
          f"{sum(turn['new'] for turn in turns):>7} {sum(turn['computed'] for turn in turns):>8} "
          f"{beyond:>6} {median(firsts):>8.3f} {max(firsts):>8.3f}  "
          f"{'-' if not bounded else 'held' if well else 'BROKEN'}", flush=True)
    return well or not bounded


def messages(options, binary, folder):
    """The same requests to ours and to the other: whether all is well with ours."""
    servers = [(lambda: Ours(options, binary, folder), True)]
    if options.peer:
        servers += [(lambda: Theirs(options, folder), True), (lambda: Theirs(options, folder), False)]
    well = True
    for start, billing in servers:
        server = start()
        try:
            turns = session(server, options, billing)[1:]
        finally:
            server.stop()
        ours = isinstance(server, Ours)
        name = f"messages, {server.name}{'' if billing else ', no billing'}"
        well = row(options, name, turns, bounded=ours) and well
        well = (not ours or in_time(binary, options, turns)) and well
    return well


def measure(options, binary, folder):
    print(f"{'':<38} turns  prompt     new computed beyond  first s     most  "
          f"bound: new and {options.interval}", flush=True)
    well = "messages" not in options.parts or messages(options, binary, folder)
    for part in filter(None, map(agent_kept.PARTS.get, options.parts)):
        for title, turns in part(options, binary, folder):
            well = row(options, title, turns) and well
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "agent" / "qwen3.5-0.8b-q8.gguf",
                        help="a GGUF file with a chat template; made if it is not there (%(default)s)")
    parser.add_argument("--peer", help="llama-server's program, such as build/peers/bin/llama-server")
    parser.add_argument("--peer-turns", type=int, help="its turns with the line of billing, each of which it "
                        "computes whole (all)")
    parser.add_argument("--peer-flag", action="append", default=[], help="one of its flags; may come again")
    parser.add_argument("--parts", default="messages,responses,killed,store",
                        type=lambda names: names.split(","), help="some of them (%(default)s)")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=20000, help="of the last prompt, about")
    parser.add_argument("--interval", type=int, default=512, help="of checkpoints")
    parser.add_argument("--checked", type=int, default=5, help="turns whose time is compared with bench's")
    parser.add_argument("--branch", type=int, default=10, help="the turn that branches go off")
    parser.add_argument("--branches", type=int, default=50)
    parser.add_argument("--every", type=int, default=5, help="turns from one crash, or move, to the next")
    parser.add_argument("--save-state-bytes", default="1G", help="of `killed` and `store` (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.peer_turns = options.peer_turns or options.turns
    try:
        binary = find_binary(options.binary)
        if not options.model.exists():
            options.model.parent.mkdir(parents=True, exist_ok=True)
            print(f"writing {options.model}", file=sys.stderr)
            agent_model.write(options.model, TOKENIZER)
        print(json.dumps(machine(binary)))
        with tempfile.TemporaryDirectory() as folder:
            well = measure(options, binary, Path(folder))
    except Failure as failure:
        sys.exit(f"agent_session: {failure}")
    sys.exit(0 if well else "agent_session: a turn computed more than is new and one interval, or its "
             f"first token took more than {MOST_TIMES} times as long as bench says")


if __name__ == "__main__":
    main()
