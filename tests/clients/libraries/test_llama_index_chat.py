# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex's OpenAILike for chats."""

import asyncio

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


@pytest.fixture
def ask(server):
    def create(**fields):
        return OpenAILike(model=server.model, api_base=server.url, api_key="none", is_chat_model=True,
                          is_function_calling_model=True, context_window=512,
                          **{"max_tokens": 8, "temperature": 0, "max_retries": 0, **fields})

    return create


@pytest.fixture
def said(chat):
    return [ChatMessage(**message) for message in chat]


def test_text(server, ask, said):
    reply, expected = ask().chat(said), server.chat()
    assert reply.message.content == expected["choices"][0]["message"]["content"]
    assert reply.raw.usage.completion_tokens == expected["usage"]["completion_tokens"]


def test_stream_and_async(server, ask, said):
    parts = list(ask().stream_chat(said))
    assert parts[-1].message.content == "".join(part.delta for part in parts) == server.said()

    async def both():
        async for part in await ask().astream_chat(said):
            text = part.message.content
        return text, (await ask().achat(said)).message.content
    assert asyncio.run(both()) == (server.said(), server.said())


def test_logprobs(ask, said):
    reply = ask(logprobs=True, top_logprobs=2).chat(said)
    assert len(reply.logprobs) == reply.raw.usage.completion_tokens
    assert all(len(top) == 2 for top in reply.logprobs)


def test_a_completion_is_a_chat(server, ask):
    assert ask().complete("Hi").text == server.said([{"role": "user", "content": "Hi"}])


def test_tools_reach_the_template(server, ask, said, tool):
    assert ask().chat(said, tools=[tool]).message.content == server.said(tools=[tool])


def test_errors_are_the_openai_clients(server, ask, said, too_long):
    with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
        ask().chat([ChatMessage(role="user", content=too_long)])
    assert refused.value.code == "context_length_exceeded"
    before = server.refusals()
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ask(max_retries=3, additional_kwargs={"temperature": 7}).chat(said)
    assert server.refusals() == before + 1
