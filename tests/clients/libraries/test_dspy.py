# SPDX-License-Identifier: Apache-2.0
"""DSPy's LM with model_type "text": as a function, and below one of its modules."""

import asyncio

import dspy
import pytest

PROMPT = "Once upon a time"


@pytest.fixture
def ask(server):
    def create(**fields):
        return dspy.LM(f"text-completion-openai/{server.model}", model_type="text",
                       api_base=server.url, api_key="none", cache=False, num_retries=0,
                       **{"max_tokens": 8, "temperature": 0, **fields})

    return create


def as_sent(prompt):
    """DSPy gives a completion the messages of a chat, one after the other."""
    return prompt + "\n\nBEGIN RESPONSE:"


def test_text(server, ask):
    assert ask()(PROMPT) == [server.text(as_sent(PROMPT))]
    lm = ask()
    lm(PROMPT)
    assert lm.history[-1]["usage"]["completion_tokens"] == 8


def test_several_choices(server, ask):
    expected = server.complete(prompt=as_sent(PROMPT), n=2, seed=4, temperature=1)
    assert ask(n=2, seed=4, temperature=1)(PROMPT) == [
        choice["text"] for choice in expected["choices"]]


def test_async(server, ask):
    assert asyncio.run(ask().acall(PROMPT)) == [server.text(as_sent(PROMPT))]


def test_a_module_gets_what_was_generated(server, ask):
    """Our models follow no format: what comes is told, with the text. DSPy then asks for JSON, which
    its client for completions does not know; so not here."""
    lm, adapter = ask(max_tokens=16), dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=lm, adapter=adapter), pytest.raises(dspy.utils.exceptions.AdapterParseError) as told:
        dspy.Predict("question -> answer")(question="Who came?")
    assert lm.history[-1]["outputs"] == [told.value.lm_response]


def test_errors_become_its_exceptions(ask, too_long):
    with pytest.raises(Exception, match="maximum context length") as refused:
        ask()(too_long)
    assert "ContextWindowExceeded" in type(refused.value).__name__
    with pytest.raises(Exception, match="temperature"):
        ask(temperature=7)(PROMPT)
