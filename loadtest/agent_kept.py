# SPDX-License-Identifier: Apache-2.0
"""A coding agent's session by previous_response_id: each turn sends what is new alone. Branches off an
early turn, crashes between turns, another server of a store."""

import json
import random

from agent_servers import Ours
from agent_words import tell, turn_size, words

from redis_store import Redis

STORE_BYTES = "2gb"  # what it has of states beyond that goes, the oldest first


def function(source, name):
    return {"type": "function", "name": name, "description": words(source, 40), "strict": False,
            "parameters": {"type": "object", "required": ["path"], "additionalProperties": False,
                           "properties": {"path": {"type": "string", "description": words(source, 10)},
                                          "limit": {"type": "integer", "description": words(source, 10)}}}}


class Conversation:
    """One that goes on from what the server has kept, or off it."""

    def __init__(self, source):
        self.source = source
        self.fixed = {"instructions": words(source, 1500),
                      "tools": [function(source, f"tool_{i}") for i in range(8)]}
        self.made = []  # of each turn what was measured

    def turn(self, server, size, after=None):
        """What is new: a call's result of so many words, a user's and a developer's message. after: the
        number of turns it goes on from (all)."""
        made = self.made[:after]
        items = [{"role": "user", "content": words(self.source, 30)},
                 {"role": "developer", "content": words(self.source, 20)}]
        body = {**self.fixed, "input": items}
        if made:
            call = f"call_{self.source.getrandbits(60):015x}"
            items[:0] = [{"type": "function_call", "call_id": call, "name": "tool_0",
                          "arguments": json.dumps({"path": words(self.source, 3)})},
                         {"type": "function_call_output", "call_id": call,
                          "output": words(self.source, size)}]
            body["previous_response_id"] = made[-1]["id"]
        measured = server.respond(body)
        measured["new"] = measured["prompt"] - (made[-1]["prompt"] if made else 0)
        if after is None:
            self.made.append(measured)
        return measured


def session(options, choose):
    """A conversation of all turns. choose(number): the server of a turn."""
    talk = Conversation(random.Random(options.seed))
    for number in range(options.turns):
        before = talk.made[-1]["prompt"] if talk.made else 0
        server = choose(number)
        tell(server, number, talk.turn(server, turn_size(options, before, number)))
    return talk


def branches(options, talk, server, count):
    return [talk.turn(server, 100, after=options.branch) for _ in range(count)]


def kept(options, binary, folder):
    """In memory; then the branches."""
    server = Ours(options, binary, folder)
    try:
        talk = session(options, lambda number: server)
        yield "previous_response_id", talk.made[1:]
        yield f"branches off turn {options.branch}", branches(options, talk, server, options.branches)
    finally:
        server.stop()


def killed(options, binary, folder):
    """With --state-dir: a crash before every fifth turn, and before some branches."""
    server = Ours(options, binary, folder, "killed", state_dir=folder / "state",
                  save_state_bytes=options.save_state_bytes)
    moved = []

    def choose(number):
        if number % options.every == 0 and number > 0:
            server.wait_written()
            server.kill()
            moved.append(number)
        return server
    try:
        talk = session(options, choose)
        yield "turns after kill -9", [talk.made[number] for number in moved]
        server.wait_written()
        server.kill()
        yield "branches after kill -9", branches(options, talk, server, options.every)
    finally:
        server.stop()


def shared(options, binary, folder):
    """Two servers of one store: every fifth turn goes to the other."""
    redis = Redis(folder, maxmemory=STORE_BYTES, maxmemory_policy="volatile-lru",
                  auto_aof_rewrite_percentage=0)
    servers, moved, last = [], [], [0]

    def choose(number):
        if number % options.every == 0 and number > 0:
            servers[last[0]].wait_written()
            last[0] = 1 - last[0]
            moved.append(number)
        return servers[last[0]]
    try:
        for name in ("one", "other"):
            servers.append(Ours(options, binary, folder, name, store=redis.location,
                                save_state_bytes=options.save_state_bytes))
        talk = session(options, choose)
        yield "turns on another server", [talk.made[number] for number in moved]
    finally:
        for server in servers:
            server.stop()
        redis.stop()


PARTS = {"responses": kept, "killed": killed, "store": shared}
