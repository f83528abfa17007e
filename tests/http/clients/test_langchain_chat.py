# SPDX-License-Identifier: Apache-2.0
"""langchain-openai's chat model, unmodified."""

import asyncio

import harness
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.builds("dev")  # what the client makes of replies

SAID = [SystemMessage("Be brief."), HumanMessage("Wie geht's? 世")]
SENT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie geht's? 世"}]


@tool
def weather(city: str, days: int = 1) -> str:
    """Weather of a "city"."""
    return f"{city}: {days}"


TOOL = {"type": "function", "function": {
    "name": "weather", "description": 'Weather of a "city".',
    "parameters": {"properties": {"city": {"type": "string"}, "days": {"default": 1, "type": "integer"}},
                   "required": ["city"], "type": "object"}}}


@pytest.fixture
def reply(chat_server):
    """reply(messages, **fields): what the server says when asked directly."""
    def ask(messages, **fields):
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}
        got = chat_server.post("/v1/chat/completions", body)
        assert got.status_code == 200, got.text
        return got.json()

    return ask


@pytest.fixture
def llm(chat_server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)

    def create(**options):
        return ChatOpenAI(model=chat_server.model_id, base_url=chat_server.url + "/v1", api_key="none",
                          **{"max_retries": 0, "max_tokens": 8, "temperature": 0, **options})

    return create


def text(answer):
    return answer["choices"][0]["message"]["content"]


def test_invoke(llm, reply):
    expected = reply(SENT)
    said = llm().invoke(SAID)
    assert said.content == text(expected)
    usage = expected["usage"]
    assert said.usage_metadata["input_tokens"] == usage["prompt_tokens"]
    assert said.usage_metadata["output_tokens"] == usage["completion_tokens"]
    assert said.response_metadata["finish_reason"] == expected["choices"][0]["finish_reason"]


def test_stream_is_what_invoke_says(llm):
    whole = llm().invoke(SAID)
    parts = list(llm(stream_usage=True).stream(SAID))
    assert "".join(part.content for part in parts) == whole.content
    usage = [part.usage_metadata for part in parts if part.usage_metadata]
    assert [one["output_tokens"] for one in usage] == [whole.usage_metadata["output_tokens"]]


def test_async(llm, reply):
    """In one loop: langchain-openai keeps its connections."""
    async def both():
        streamed = "".join([part.content async for part in llm().astream(SAID)])
        return (await llm().ainvoke(SAID)).content, streamed

    expected = text(reply(SENT))
    assert asyncio.run(both()) == (expected, expected)


def test_several_choices_and_logprobs(llm, reply):
    options = {"n": 2, "seed": 5, "temperature": 1}
    result = llm(**options, logprobs=True, top_logprobs=2).generate([SAID])
    choices = reply(SENT, **options)["choices"]
    assert [one.text for one in result.generations[0]] == [one["message"]["content"] for one in choices]
    content = result.generations[0][0].generation_info["logprobs"]["content"]
    assert len(content) == 8 and all(len(entry["top_logprobs"]) == 2 for entry in content)


def test_tools_reach_the_template(llm, reply):
    """With tool_choice auto; what a model must write to call one is the template's business."""
    expected = text(reply(SENT, tools=[TOOL]))
    assert llm().bind_tools([weather]).invoke(SAID).content == expected


def test_calls_and_results_reach_the_template(llm, reply):
    call = {"name": "weather", "args": {"city": "Ulm", "days": 2}, "id": "call_1"}
    said = [*SAID, AIMessage("", tool_calls=[call]), ToolMessage("21 degrees", tool_call_id="call_1")]
    sent = [*SENT,
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Ulm", "days": 2}'}}]},
            {"role": "tool", "content": "21 degrees", "tool_call_id": "call_1"}]
    assert llm().invoke(said).content == text(reply(sent))


def test_parts_and_stop(llm, reply):
    parts = [HumanMessage([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]
    whole = llm().invoke(parts).content
    assert whole == text(reply([{"role": "user", "content": "one\ntwo"}]))
    stop = whole[3]
    assert llm().invoke(parts, stop=[stop]).content == whole.partition(stop)[0]


@pytest.mark.parametrize("options, said, param", [
    ({"temperature": 7}, SAID, "temperature"),
    ({}, [HumanMessage([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}])], "messages"),
])
def test_refusals_are_not_tried_again(chat_server, llm, options, said, param):
    def refusals():
        return chat_server.metric("regla_requests_total", status="400")

    before = refusals()
    with pytest.raises(openai.BadRequestError) as refused:
        llm(max_retries=3, **options).invoke(said)
    assert refused.value.param == param
    with pytest.raises(openai.BadRequestError):
        list(llm(max_retries=3, **options).stream(said))
    harness.wait_until(lambda: refusals() >= before + 2, "both refusals to be counted")
    assert refusals() == before + 2
