# SPDX-License-Identifier: Apache-2.0
"""Libraries that generate text, each unmodified and in an environment of its own, against the server
that tests/clients/libraries.py runs. Here only what all of their tests share; it imports nothing that
those environments lack."""

import json
import os
import urllib.request

import pytest

LIMIT = 512  # the server's --max-model-len


class Server:
    url = os.environ["REGLA_URL"] + "/v1"
    model = os.environ["REGLA_MODEL"]

    def complete(self, **fields):
        """What the library should make of it."""
        body = {"max_tokens": 8, "temperature": 0, **fields}
        request = urllib.request.Request(self.url + "/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def text(self, prompt, **fields):
        return self.complete(prompt=prompt, **fields)["choices"][0]["text"]


@pytest.fixture(scope="session")
def server():
    return Server()


@pytest.fixture(scope="session")
def too_long():
    return "word " * 2 * LIMIT
