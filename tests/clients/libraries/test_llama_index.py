# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex's OpenAILike for completions."""

import asyncio

import openai
import pytest
from llama_index.llms.openai_like import OpenAILike

PROMPT = "Once upon a time"


@pytest.fixture
def ask(server):
    def create(**fields):
        return OpenAILike(model=server.model, api_base=server.url, api_key="none", max_retries=0,
                          is_chat_model=False, context_window=512,
                          **{"max_tokens": 8, "temperature": 0, **fields})

    return create


def test_text(server, ask):
    reply = ask().complete(PROMPT)
    expected = server.complete(prompt=PROMPT)
    assert reply.text == expected["choices"][0]["text"]
    assert reply.raw.usage.completion_tokens == expected["usage"]["completion_tokens"]
    assert asyncio.run(ask().acomplete(PROMPT)).text == reply.text


def test_stream(server, ask):
    parts = list(ask().stream_complete(PROMPT))
    assert parts[-1].text == "".join(part.delta for part in parts) == server.text(PROMPT)

    async def last():
        async for part in await ask().astream_complete(PROMPT):
            text = part.text
        return text
    assert asyncio.run(last()) == server.text(PROMPT)


def test_logprobs(ask):
    reply = ask(logprobs=True, top_logprobs=2).complete(PROMPT)
    assert len(reply.logprobs) == reply.raw.usage.completion_tokens
    assert all(len(top) in (2, 3) for top in reply.logprobs)


def test_chat_is_one_prompt(server, ask):
    """Its chat, of a model that has none, is a completion of the messages."""
    from llama_index.core.llms import ChatMessage
    said = ask().chat([ChatMessage(role="user", content="Hello")]).message.content
    assert said == server.text("user: Hello\nassistant: ")


def test_errors_are_the_openai_clients(ask, too_long):
    with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
        ask().complete(too_long)
    assert refused.value.code == "context_length_exceeded"
