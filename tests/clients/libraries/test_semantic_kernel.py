# SPDX-License-Identifier: Apache-2.0
"""semantic-kernel's OpenAITextCompletion, by itself and in a kernel."""

import asyncio

import pytest
from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.open_ai import (
    OpenAITextCompletion,
    OpenAITextPromptExecutionSettings,
)
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments

PROMPT = "Once upon a time"


@pytest.fixture
def service(server):
    client = AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0)
    return OpenAITextCompletion(ai_model_id=server.model, service_id="here", async_client=client)


def settings(**fields):
    return OpenAITextPromptExecutionSettings(
        service_id="here", **{"max_tokens": 8, "temperature": 0, **fields})


def contents(service, prompt, **fields):
    return asyncio.run(service.get_text_contents(prompt, settings(**fields)))


def test_text(server, service):
    (content,) = contents(service, PROMPT)
    expected = server.complete(prompt=PROMPT)
    assert content.text == expected["choices"][0]["text"]
    assert content.metadata["usage"].completion_tokens == expected["usage"]["completion_tokens"]


def test_several_choices(server, service):
    got = contents(service, PROMPT, number_of_responses=2, best_of=2, temperature=1, logprobs=1,
                   seed=4)
    expected = server.complete(prompt=PROMPT, n=2, temperature=1, seed=4)
    assert [content.text for content in got] == [c["text"] for c in expected["choices"]]
    assert all(content.metadata["logprobs"].tokens for content in got)


def test_stream(server, service):
    async def text():
        return "".join([part.text async for parts in service.get_streaming_text_contents(
            PROMPT, settings()) for part in parts])
    assert asyncio.run(text()) == server.text(PROMPT)


def test_in_a_kernel(server, service):
    kernel = Kernel()
    kernel.add_service(service)
    result = asyncio.run(kernel.invoke_prompt(PROMPT,
                                              arguments=KernelArguments(settings=settings())))
    assert str(result) == server.text(PROMPT)


def test_errors_become_its_exceptions(service, too_long):
    with pytest.raises(ServiceResponseException, match="maximum context length") as refused:
        contents(service, too_long)
    assert refused.value.__cause__.code == "context_length_exceeded"
