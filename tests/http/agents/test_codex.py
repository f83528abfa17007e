# SPDX-License-Identifier: Apache-2.0
"""Codex (`codex exec`): POST /v1/responses."""

import json

import pytest
from agent import Agent, finish, program
from harness import wait_until

VERSION = "0.163.0"
CODEX = program("codex_cli_bin", "bin", "codex")
ARGUMENTS = {"exec_command": {"cmd": "cat note.txt"}}
CONFIG = """model = "{model}"
model_provider = "regla"

[model_providers.regla]
name = "regla"
base_url = "{url}/v1"
env_key = "REGLA_API_KEY"
wire_api = "responses"
"""
EXEC = ("exec", "--json", "--skip-git-repo-check")


@pytest.fixture
def codex(talk, folder):
    """Its home has the configuration that its users are told to write. A turn is codex.run(*EXEC, prompt),
    the next one codex.run("exec", "resume", "--last", *EXEC[1:], prompt)."""
    agent = Agent(folder, [CODEX], {"REGLA_API_KEY": "none"})
    (agent.home / ".codex").mkdir()
    (agent.home / ".codex" / "config.toml").write_text(
        CONFIG.format(model=talk.server.model_id, url=talk.url))
    return agent


def test_its_version(codex):
    assert codex.run("--version").output == f"codex-cli {VERSION}\n"


def test_where_it_asks(talk, codex):
    process = codex.start(*EXEC, "Tell me something.")
    asked = wait_until(lambda: talk.requests("/v1/responses"), "it asks")[0]
    process.kill()
    finish(process)
    body = json.loads(asked.body)
    assert (asked.method, body["model"], body["stream"]) == ("POST", talk.server.model_id, True)
    assert asked.headers["authorization"] == "Bearer none"
