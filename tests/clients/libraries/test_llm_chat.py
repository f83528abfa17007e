# SPDX-License-Identifier: Apache-2.0
"""The program `llm` with the server as a model of chats in extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = ["-o", "max_tokens", "8", "-o", "temperature", "0"]
USER, MORE = {"role": "user", "content": "Hi"}, {"role": "user", "content": "More"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
def llm(server, tmp_path):
    """Runs `llm` with these words."""
    model = {"model_id": "here", "model_name": server.model, "api_base": server.url, "supports_tools": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*words, text=""):
        return subprocess.run([Path(sys.executable).with_name("llm"), *words], env=environment,
                              input=text, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_a_chat_that_goes_on(server, llm, flags):
    done = llm("-m", "here", "Hi", "-s", SYSTEM["content"], *FLAGS, *flags)
    expected = server.chat([SYSTEM, USER])
    said = expected["choices"][0]["message"]["content"]
    assert done.returncode == 0, done.stderr
    (logged,) = json.loads(llm("logs", "--json").stdout)
    assert (logged["response"], logged["output_tokens"]) == (said, expected["usage"]["completion_tokens"])
    assert llm("-c", "More", *FLAGS, *flags).returncode == 0
    assert json.loads(llm("logs", "--json", "-n", "1").stdout)[0]["response"] == server.said(
        [SYSTEM, USER, {"role": "assistant", "content": said}, MORE])


def test_options_and_tools(server, llm):
    stop = server.said([USER])[3]
    done = llm("-m", "here", "Hi", *FLAGS, "-o", "stop", stop, "-o", "seed", "3")
    assert (done.returncode, done.stdout) == (0, server.said([USER], stop=stop, seed=3) + "\n"), done.stderr
    done = llm("-m", "here", "Hi", "--no-stream", *FLAGS, "--functions", 'def ping() -> str:\n    "Pings."')
    assert done.returncode == 0, done.stderr
    assert json.loads(llm("logs", "--json", "-n", "1").stdout)[0]["response"] != server.said([USER])


def test_an_error_is_told(server, llm, too_long):
    before = server.refusals()
    done = llm("-m", "here", text=too_long)
    assert done.returncode != 0 and "maximum context length is 512 tokens" in done.stderr
    assert server.refusals() == before + 1
