# SPDX-License-Identifier: Apache-2.0
"""instructor over openai's client."""

from typing import Literal

import instructor
import openai
import pydantic
import pytest


class Answer(pydantic.BaseModel):
    yes: Literal["yes", "no"]
    sure: bool


@pytest.fixture
def ask(server, chat):
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

    def create(mode=instructor.Mode.JSON_SCHEMA, function="create", **fields):
        completions = instructor.from_openai(client, mode=mode).chat.completions
        return getattr(completions, function)(**{
            "model": server.model, "messages": chat, "max_tokens": 8, "temperature": 0, "max_retries": 3,
            "response_model": None, **fields})

    return create


def test_text(server, ask):
    expected = server.chat()
    reply = ask()
    assert reply.choices[0].message.content == expected["choices"][0]["message"]["content"]
    assert reply.usage.completion_tokens == expected["usage"]["completion_tokens"]


def test_stream(server, ask):
    parts = ask(stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == server.said()


def test_tools_reach_the_template(server, ask, tool):
    assert ask(tools=[tool]).choices[0].message.content == server.said(tools=[tool])


def test_a_model_is_what_comes(ask):
    assert ask(response_model=Answer, max_tokens=64).yes in ("yes", "no")


def test_a_model_is_the_arguments_of_a_call(ask):
    """A named tool_choice."""
    answer = ask(mode=instructor.Mode.TOOLS, response_model=Answer, max_tokens=170, temperature=1, seed=1,
                 messages=[{"role": "user", "content": "x"}])
    assert answer.yes in ("yes", "no")


def test_refusals_are_not_tried_again(server, ask):
    before = server.refusals()
    with pytest.raises(Exception, match="temperature"):
        ask(temperature=7)
    assert server.refusals() == before + 1
