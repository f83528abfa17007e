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
    url = os.environ["REGLA_URL"] + "/v1"
    model = os.environ["REGLA_MODEL"]

    def post(self, path, fields):
        body = {"max_tokens": 8, "temperature": 0, **fields}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def complete(self, **fields):
        """What the library should make of it."""
        return self.post("/completions", fields)

    def chat(self, messages=CHAT, **fields):
        return self.post("/chat/completions", {"messages": messages, **fields})

    def said(self, messages=CHAT, **fields):
        return self.chat(messages, **fields)["choices"][0]["message"]["content"]

    def refusals(self):
        """How many requests it has refused: a library that tries again raises this by more than one."""
        with urllib.request.urlopen(os.environ["REGLA_URL"] + "/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith("regla_requests_total{") and 'status="400"' in line)

    def text(self, prompt, **fields):
        return self.complete(prompt=prompt, **fields)["choices"][0]["text"]


@pytest.fixture(scope="session")
def server():
    return Server()


@pytest.fixture(scope="session")
def chat():
    return CHAT


@pytest.fixture(scope="session")
def tool():
    return TOOL


@pytest.fixture(scope="session")
def too_long():
    return "word " * 2 * LIMIT
