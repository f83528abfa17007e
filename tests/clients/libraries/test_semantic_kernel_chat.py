# SPDX-License-Identifier: Apache-2.0
"""semantic-kernel's OpenAIChatCompletion, by itself and in a kernel."""

import asyncio

import pytest
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments


@pytest.fixture
def service(server):
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=3)
    return OpenAIChatCompletion(ai_model_id=server.model, service_id="here", async_client=client)


@pytest.fixture
def said(chat):
    history = ChatHistory(system_message=chat[0]["content"])
    history.add_user_message(chat[1]["content"])
    return history


def settings(**fields):
    return OpenAIChatPromptExecutionSettings(
        service_id="here", **{"max_tokens": 8, "temperature": 0, **fields})


def contents(service, history, **fields):
    return asyncio.run(service.get_chat_message_contents(history, settings(**fields)))


def test_text(server, service, said):
    (content,) = contents(service, said)
    expected = server.chat()
    assert content.content == expected["choices"][0]["message"]["content"]
    assert content.metadata["usage"].completion_tokens == expected["usage"]["completion_tokens"]


def test_several_choices(server, service, said):
    got = contents(service, said, number_of_responses=2, temperature=1, seed=4)
    expected = server.chat(n=2, temperature=1, seed=4)
    assert [one.content for one in got] == [c["message"]["content"] for c in expected["choices"]]


def test_stream(server, service, said):
    async def text():
        return "".join([part.content async for parts in service.get_streaming_chat_message_contents(
            said, settings()) for part in parts])
    assert asyncio.run(text()) == server.said()


def test_in_a_kernel(server, service):
    kernel = Kernel()
    kernel.add_service(service)
    result = asyncio.run(kernel.invoke_prompt("Hi", arguments=KernelArguments(settings=settings())))
    assert str(result) == server.said([{"role": "user", "content": "Hi"}])


def test_errors_become_its_exceptions(server, service, said, too_long):
    before = server.refusals()
    said.add_user_message(too_long)
    with pytest.raises(ServiceResponseException, match="maximum context length") as refused:
        contents(service, said)
    assert refused.value.__cause__.code == "context_length_exceeded"
    assert server.refusals() == before + 1
