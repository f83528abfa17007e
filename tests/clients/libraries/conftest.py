# SPDX-License-Identifier: Apache-2.0
"""Libraries that generate text, each unmodified and in an environment of its own, against the server
that tests/clients/libraries.py runs. Here only what all of their tests share; it imports nothing that
those environments lack."""

import json
import os
import urllib.request

import pytest

LIMIT = 512  # the server's --max-model-len
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie geht's? 世"}]
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Server:
    def __init__(self, host, model, key="none"):
        self.host, self.model, self.key = host, model, key
        self.url = host + "/v1"
        self.claude = os.environ["REGLA_CLAUDE"]  # its other name

    def post(self, path, fields):
        body = {"model": self.model, "temperature": 0, **fields}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {
            "Content-Type": "application/json", "Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def complete(self, **fields):
        """What the library should make of it."""
        return self.post("/completions", {"max_tokens": 8, **fields})

    def chat(self, messages=CHAT, **fields):
        return self.post("/chat/completions", {"messages": messages, "max_tokens": 8, **fields})

    def respond(self, said, **fields):
        return self.post("/responses", {"input": said, **fields})

    def message(self, messages, **fields):
        return self.post("/messages", {"messages": messages, "max_tokens": 1000, **fields})

    def said(self, messages=CHAT, **fields):
        return self.chat(messages, **fields)["choices"][0]["message"]["content"]

    def refusals(self, status=400):
        """How many requests it has refused: a library that tries again raises this by more than one."""
        request = urllib.request.Request(
            self.host + "/metrics", headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith("regla_requests_total{") and f'status="{status}"' in line)

    def text(self, prompt, **fields):
        return self.complete(prompt=prompt, **fields)["choices"][0]["text"]


@pytest.fixture(scope="session")
def server():
    """A model with random weights: whatever is lost of what a client sends changes what it says."""
    return Server(os.environ["REGLA_URL"], os.environ["REGLA_MODEL"])


@pytest.fixture(scope="session")
def scripted():
    """One that thinks and calls as tests/http/script.py has it; it asks for a key."""
    return Server(os.environ["REGLA_SCRIPTED_URL"], os.environ["REGLA_SCRIPTED_MODEL"],
                  os.environ["REGLA_SCRIPTED_KEY"])


@pytest.fixture(scope="session")
def chat():
    return CHAT


@pytest.fixture(scope="session")
def tool():
    return TOOL


@pytest.fixture(scope="session")
def too_long():
    return "word " * 2 * LIMIT
