# SPDX-License-Identifier: Apache-2.0
"""A coding agent's program, with a home folder and an environment of its own, which are empty but for what
its users are told to set; and a relay before the server, which may demand what the model says."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from harness import ROOT, wait_until
from relay import relay

LIMIT = 200  # seconds for a run of an agent
# The shipped model, with a template that shows how calls are written.
SERVED = {"reasoning": "off", "chat_template": ROOT / "tests/data/chat/hermes.jinja"}


def program(package, *parts):
    """A program that a package brings with it."""
    folder, = find_spec(package).submodule_search_locations
    return Path(folder, *parts)


# What a request may have besides.

def says(text):
    return {"structured_outputs": {"choice": [text]}}


def writes(*called):
    """Calls of the functions (name, arguments), as its template has them."""
    return says("\n".join(
        f'<tool_call>\n{json.dumps({"name": name, "arguments": arguments})}\n</tool_call>'
        for name, arguments in called))


def calls(name):
    """Of the arguments that Script.arguments leaves."""
    return {"tool_choice": {"type": "tool", "name": name, "disable_parallel_tool_use": True}}


GOES_ON = {"ignore_eos": True}


@dataclass
class Script:
    """What the model says to the requests of each conversation, in their order; then "Done."."""
    arguments: dict  # {tool: {parameter: its only value}}, so that the model carries out nothing else
    waits: dict = field(default_factory=dict)  # {conversation: [what a request has besides]}

    def expect(self, *answers, conversation=None):
        self.waits.setdefault(conversation, []).extend(answers)

    def edit(self, exchange):
        """What the server gets; of another path what was sent."""
        schema = {"/v1/messages": "input_schema", "/v1/responses": "parameters"}.get(exchange.plain_path)
        if not schema:
            return exchange.body
        waits = self.waits.get(exchange.headers.get("x-claude-code-agent-id") and "subagent", [])
        body = {**json.loads(exchange.body), "temperature": 0, **(waits.pop(0) if waits else says("Done."))}
        for tool in body.get("tools", []):
            if tool.get("name") in self.arguments:
                tool[schema] = only(self.arguments[tool["name"]])
        return json.dumps(body).encode()


def only(values):
    return {"type": "object", "properties": {name: {"const": value} for name, value in values.items()},
            "required": list(values), "additionalProperties": False}


@dataclass
class Run:
    status: int
    output: str
    complaints: str

    @property
    def events(self):
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def of(self, **members):
        return [event for event in self.events if members.items() <= event.items()]


class Agent:
    """Its folders are the same for all tests, as they are in its prompts, and empty for each."""

    def __init__(self, folder, command, environment):
        self.home, self.work = folder / "home", folder / "work"
        for made in (self.home, self.work, folder / "tmp"):
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
        self.command = command
        self.environment = {"HOME": str(self.home), "TMPDIR": str(folder / "tmp"), **environment}

    def start(self, *arguments, stdin=subprocess.DEVNULL):
        return subprocess.Popen([*self.command, *arguments], cwd=self.work, env=self.environment, stdin=stdin,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def run(self, *arguments, stdin=None):
        process = self.start(*arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        return finish(process, stdin)


def finish(process, stdin=None):
    """What it has said, once it has ended; whatever it has started ends with it."""
    try:
        output, complaints = process.communicate(stdin and stdin.encode(), timeout=LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Run(process.returncode, output.decode(), complaints.decode())


class Talk:
    """A script, and what was sent and answered."""

    def __init__(self, server, arguments):
        self.server, self.script = server, Script(arguments)

    @contextlib.contextmanager
    def relayed(self):
        with relay(self.server.url, self.script.edit) as (self.url, self.exchanges):
            yield self

    def requests(self, path="/v1/messages"):
        return [each for each in self.exchanges if each.plain_path == path]

    def wait_whole(self):
        wait_until(lambda: all(each.whole for each in self.exchanges), "all replies")
