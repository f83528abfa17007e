# SPDX-License-Identifier: Apache-2.0
"""DSPy's LM as it is by default: a chat."""

import asyncio

import dspy
import pytest


@pytest.fixture
def ask(server):
    def create(**fields):
        return dspy.LM(f"openai/{server.model}", api_base=server.url, api_key="none", cache=False,
                       **{"max_tokens": 8, "temperature": 0, "num_retries": 0, **fields})

    return create


def test_text(server, ask, chat):
    lm = ask()
    assert lm(messages=chat) == [server.said()]
    assert lm.history[-1]["usage"]["completion_tokens"] == server.chat()["usage"]["completion_tokens"]
    assert lm("Hi") == [server.said([{"role": "user", "content": "Hi"}])]


def test_several_choices_and_async(server, ask, chat):
    """For each choice of a chat DSPy asks once, here with the same seed."""
    assert ask(n=2, seed=4, temperature=1)(messages=chat) == [server.said(seed=4, temperature=1)] * 2
    assert asyncio.run(ask().acall(messages=chat)) == [server.said()]


def test_a_module_gets_what_was_generated(ask):
    """Our models follow no format: what comes is told, with the text. DSPy would then ask for JSON."""
    lm, adapter = ask(max_tokens=16), dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=lm, adapter=adapter), pytest.raises(dspy.utils.exceptions.AdapterParseError) as told:
        dspy.Predict("q -> a")(q="Who?")
    assert lm.history[-1]["outputs"] == [told.value.lm_response]


def test_errors_become_its_exceptions(server, ask, too_long):
    with pytest.raises(Exception, match="maximum context length") as refused:
        ask()(too_long)
    assert "ContextWindowExceeded" in type(refused.value).__name__
    before = server.refusals()
    with pytest.raises(Exception, match="temperature"):
        ask(temperature=7, num_retries=3)("Hi")
    assert server.refusals() == before + 1
