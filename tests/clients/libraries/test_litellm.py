# SPDX-License-Identifier: Apache-2.0
"""LiteLLM's text_completion, as "text-completion-openai" and as "hosted_vllm"."""

import asyncio

import litellm
import pytest

PROMPT = "Once upon a time"


@pytest.fixture(params=["text-completion-openai", "hosted_vllm"])
def ask(request, server):
    def create(function=litellm.text_completion, **fields):
        return function(model=f"{request.param}/{server.model}", api_base=server.url, api_key="none",
                        **{"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "max_retries": 0,
                           **fields})

    return create


def test_text(server, ask):
    expected = server.complete(prompt=PROMPT)
    reply = ask()
    assert reply.choices[0].text == expected["choices"][0]["text"]
    assert reply.choices[0].finish_reason == expected["choices"][0]["finish_reason"]
    assert reply.usage.completion_tokens == expected["usage"]["completion_tokens"]
    assert reply.usage.prompt_tokens == expected["usage"]["prompt_tokens"]


def test_stream(server, ask):
    frames = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text or "" for frame in frames for choice in frame.choices
                   ) == server.text(PROMPT)
    assert frames[-1].usage.completion_tokens == server.complete(prompt=PROMPT
                                                                 )["usage"]["completion_tokens"]


def test_async(server, ask):
    assert asyncio.run(ask(litellm.atext_completion)).choices[0].text == server.text(PROMPT)


def test_several_choices_and_stop(server, ask):
    reply = ask(n=2, seed=4, temperature=1, logprobs=2)
    expected = server.complete(prompt=PROMPT, n=2, seed=4, temperature=1)
    assert [choice.text for choice in reply.choices] == [
        choice["text"] for choice in expected["choices"]]
    assert len(reply.choices[0].logprobs.tokens) == len(reply.choices[0].logprobs.token_logprobs)
    stop = server.text(PROMPT)[3]
    assert ask(stop=[stop]).choices[0].text == server.text(PROMPT).partition(stop)[0]


def test_errors_become_its_exceptions(server, ask, too_long):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(prompt=too_long)
    with pytest.raises(litellm.BadRequestError) as refused:
        ask(temperature=7)
    assert not isinstance(refused.value, litellm.ContextWindowExceededError)
    with pytest.raises(litellm.NotFoundError):
        litellm.text_completion(model="text-completion-openai/no-such-model", prompt="x",
                                api_base=server.url, api_key="none", max_retries=0)
