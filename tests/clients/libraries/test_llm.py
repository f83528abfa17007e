# SPDX-License-Identifier: Apache-2.0
"""The program `llm` and its Python API, with the server in extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm(server, tmp_path_factory):
    """Runs `llm` with these words; its output, less the line's end that it adds."""
    folder = tmp_path_factory.mktemp("llm")
    model = {"model_id": "here", "model_name": server.model, "api_base": server.url,
             "completion": True}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
    environment = {**os.environ, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}

    def run(*words, text=""):
        return subprocess.run([Path(sys.executable).with_name("llm"), *words], env=environment,
                              input=text, capture_output=True, text=True, timeout=60)

    return run


def test_lists_the_model(llm):
    assert "here" in llm("models").stdout


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_text(server, llm, flags):
    done = llm("-m", "here", PROMPT, "-o", "max_tokens", "8", "-o", "temperature", "0", *flags)
    assert (done.returncode, done.stdout) == (0, server.text(PROMPT) + "\n"), done.stderr
    usage = json.loads(llm("logs", "--json").stdout)[0]
    assert usage["response"] == server.text(PROMPT)


def test_options(server, llm):
    stop = server.text(PROMPT)[3]
    done = llm("-m", "here", PROMPT, "-o", "max_tokens", "8", "-o", "temperature", "0", "-o", "stop",
               stop, "-o", "seed", "3", "-o", "logit_bias", '{"5": -100}')
    expected = server.text(PROMPT, stop=stop, seed=3, logit_bias={"5": -100})
    assert (done.returncode, done.stdout) == (0, expected + "\n"), done.stderr


def test_an_error_is_told(llm, too_long):
    done = llm("-m", "here", text=too_long)
    assert done.returncode != 0 and "maximum context length is 512 tokens" in done.stderr
