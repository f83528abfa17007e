# SPDX-License-Identifier: Apache-2.0
"""LiteLLM's completion, which is a chat, as "openai" and as "hosted_vllm"."""

import asyncio

import litellm
import pytest


@pytest.fixture(params=["openai", "hosted_vllm"])
def ask(request, server, chat):
    def create(function=litellm.completion, **fields):
        return function(model=f"{request.param}/{server.model}", api_base=server.url, api_key="none",
                        **{"messages": chat, "max_tokens": 8, "temperature": 0, "max_retries": 0, **fields})

    return create


def test_text(server, ask):
    expected, reply = server.chat(), ask()
    assert reply.choices[0].message.content == expected["choices"][0]["message"]["content"]
    assert reply.choices[0].finish_reason == expected["choices"][0]["finish_reason"]
    assert reply.usage.completion_tokens == expected["usage"]["completion_tokens"]
    assert reply.usage.prompt_tokens == expected["usage"]["prompt_tokens"]


def test_stream(server, ask):
    frames = list(ask(stream=True, stream_options={"include_usage": True}))
    parts = [choice.delta.content or "" for frame in frames for choice in frame.choices]
    assert "".join(parts) == server.said()
    assert frames[-1].usage.completion_tokens == server.chat()["usage"]["completion_tokens"]


def test_async(server, ask):
    assert asyncio.run(ask(litellm.acompletion)).choices[0].message.content == server.said()


def test_several_choices_and_stop(server, ask):
    reply = ask(n=2, seed=4, temperature=1, logprobs=True, top_logprobs=2)
    expected = server.chat(n=2, seed=4, temperature=1)
    assert [choice.message.content for choice in reply.choices] == [
        choice["message"]["content"] for choice in expected["choices"]]
    assert all(len(entry.top_logprobs) == 2 for entry in reply.choices[0].logprobs.content)
    stop = server.said()[3]
    assert ask(stop=[stop]).choices[0].message.content == server.said().partition(stop)[0]


def test_tools_calls_and_results_reach_the_template(server, ask, chat, tool):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    messages = [*chat, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}]
    reply = ask(messages=messages, tools=[tool])
    assert reply.choices[0].message.content == server.said(messages, tools=[tool])


def test_errors_become_its_exceptions(server, ask, too_long):
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(messages=[{"role": "user", "content": too_long}])
    before = server.refusals()
    with pytest.raises(litellm.BadRequestError) as refused:
        ask(temperature=7, max_retries=3)
    assert not isinstance(refused.value, litellm.ContextWindowExceededError)
    assert server.refusals() == before + 1
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/no-such-model", messages=[{"role": "user", "content": "x"}],
                           api_base=server.url, api_key="none", max_retries=0)
