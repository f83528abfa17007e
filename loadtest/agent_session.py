#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coding agent's session on a hybrid, by /v1/messages: a long system text and tools, results of
tools, a line of billing that changes with each request, a message of role system in each turn; beside
it requests for a title and two subagents. What each turn computes of its prompt, and when its first
token comes. With --peer llama-server gets the same requests, with the line of billing and without.

A turn may compute what is new in it and one interval of checkpoints; its first token may take 1.2
times what `regla bench` reads as many tokens in, at that depth, right after the session."""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import agent_model
import httpx
from measure import ROOT, Failure, find_binary, machine, median, run

import harness

TOKENIZER = ROOT / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MOST_TIMES = 1.2
TITLES, SUBAGENTS = (1, 11, 21), (7, 17)  # after which turns
REPLY_TOKENS = 16
REQUEST_SECONDS = 3600
WORDS = ("file line error test build cache server token state model parse write read open close index value "
         "branch commit merge result failed passed expected got order thread queue memory header request "
         "reply stream event folder name type list count number begin end change").split()


def words(source, count):
    return " ".join(source.choice(WORDS) for _ in range(count))


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


class Ours:
    name = "regla"

    def __init__(self, options, binary, folder):
        harness.BINARY, harness.START_SECONDS = binary, 600
        self.server = harness.Server(folder / "server.log", options.model, threads=0,
                                     checkpoint_interval=options.interval)

    def ask(self, body):
        return ask(self.server.url, self.server.model_id, body)

    def stop(self):
        self.server.stop()


class Theirs:
    name = "llama-server"

    def __init__(self, options, folder):
        self.port = harness.unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(folder / "peer.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [options.peer, "-m", options.model, "--host", "127.0.0.1", "--port", str(self.port), "--jinja",
             "-c", str(2 * options.tokens), *options.peer_flag], stdout=self.log, stderr=subprocess.STDOUT)
        harness.wait_until(self._is_ready, "llama-server is ready", 600)

    def _is_ready(self):
        if self.process.poll() is not None:
            raise Failure(f"{self.process.args[0]} exited {self.process.returncode}")
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def ask(self, body):
        return ask(self.url, "model", body)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def ask(url, model, body):
    """{prompt, computed: tokens; first: seconds; text} of a streamed message."""
    body = {"model": model, "max_tokens": REPLY_TOKENS, "temperature": 0, "stream": True, **body}
    began, first, usage, text = time.monotonic(), None, {}, ""
    with httpx.stream("POST", f"{url}/v1/messages", json=body, timeout=REQUEST_SECONDS, trust_env=False,
                      headers={"anthropic-version": "2023-06-01"}) as reply:
        if reply.status_code != 200:
            raise Failure(f"{url}: {reply.status_code} {reply.read().decode()[:400]}")
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["type"] == "error":
                raise Failure(f"{url}: {event}")
            usage |= {key: value for key, value in
                      (event.get("message") or event).get("usage", {}).items() if value is not None}
            if event["type"] in ("content_block_delta", "message_delta") and first is None:
                first = time.monotonic() - began
            text += event.get("delta", {}).get("text", "")
    computed = usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
    return {"prompt": computed + usage.get("cache_read_input_tokens", 0), "computed": computed,
            "first": first, "text": text}


def session(server, options, billing):
    """The turns, each a dictionary."""
    source = random.Random(options.seed)
    agent = Agent(server, source, 1500, 8, billing)
    turns = []
    for number in range(options.turns):
        left = (options.tokens - agent.before) / (options.turns - number)
        turns.append(agent.turn(max(20, int(left * 0.75) - 60)))
        turns[-1] |= {"turn": number + 1, "server": server.name}
        print(json.dumps({key: round(value, 3) if isinstance(value, float) else value
                          for key, value in turns[-1].items()}), flush=True)
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


def check(binary, options, turns):
    """Whether no turn but the first computes too much, and the first token of some comes in time."""
    later = turns[1:]
    over = max(turn["computed"] - turn["new"] for turn in later)
    picked = later[:: max(1, len(later) // options.checked)][: options.checked]
    ratios = [turn["first"] * pace(binary, options, turn) / turn["computed"] for turn in picked]
    print(json.dumps({"most_beyond_new": over, "interval": options.interval,
                      "first_token_over_bench": [round(ratio, 3) for ratio in ratios],
                      "median": round(median(ratios), 3)}), flush=True)
    return over <= options.interval and median(ratios) <= MOST_TIMES


def summary(turns):
    later = turns[1:]
    print(json.dumps({"server": turns[0]["server"], "turns": len(turns), "prompt": turns[-1]["prompt"],
                      "computed": sum(turn["computed"] for turn in later),
                      "new": sum(turn["new"] for turn in later),
                      "first_token_s": {"median": round(median([turn["first"] for turn in later]), 3),
                                        "most": round(max(turn["first"] for turn in later), 3)}}), flush=True)


def measure(options, binary, folder):
    servers = [(lambda: Ours(options, binary, folder), True)]
    if options.peer:
        servers += [(lambda: Theirs(options, folder), True), (lambda: Theirs(options, folder), False)]
    well = True
    for start, billing in servers:
        server = start()
        try:
            turns = session(server, options, billing)
        finally:
            server.stop()
        print(f"{server.name}{'' if billing else ', without the line of billing'}:", file=sys.stderr)
        summary(turns)
        if isinstance(server, Ours):
            well = check(binary, options, turns)
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary")
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "agent" / "qwen3.5-0.8b-q8.gguf",
                        help="a GGUF file with a chat template; made if it is not there (%(default)s)")
    parser.add_argument("--peer", help="llama-server's program, such as build/peers/bin/llama-server")
    parser.add_argument("--peer-flag", action="append", default=[], help="one of its flags; may come again")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=20000, help="of the last prompt, about")
    parser.add_argument("--interval", type=int, default=512, help="of checkpoints")
    parser.add_argument("--checked", type=int, default=5, help="turns whose time is compared with bench's")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
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
