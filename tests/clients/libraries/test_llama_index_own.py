# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex's OpenAIResponses and its Anthropic."""

import asyncio
import json

import anthropic
import openai
import pydantic
import pytest
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAIResponses

ERRORS = {"responses": openai, "messages": anthropic}


class Weather(pydantic.BaseModel):
    """Of a city."""
    city: str
    rain: bool


def weather(city: str) -> str:
    """Weather of a city."""
    return f"Rain in {city}."


@pytest.fixture(params=ERRORS)
def api(request):
    return request.param


@pytest.fixture
def llm(api):
    """llm(server, **options)"""
    def create(server, max_tokens=1000, **options):
        name = server.model if api == "responses" else server.claude
        options = {"model": name, "api_key": server.key, "max_retries": 3, "temperature": 0, **options}
        if api == "responses":
            return OpenAIResponses(api_base=server.url, max_output_tokens=max_tokens, context_window=512,
                                   **options)
        return Anthropic(base_url=server.host, max_tokens=max_tokens, **options)

    return create


@pytest.fixture
def raw(api):
    """raw(server, said, **fields): (thoughts, text, calls), as the server tells them."""
    def ask(server, said, max_tokens=1000, **fields):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
        if api == "responses":
            reply = server.respond(messages, max_output_tokens=max_tokens, **fields)
            items = reply["output"]
            return ("".join(item["content"][0]["text"] for item in items if item["type"] == "reasoning"),
                    "".join(item["content"][0]["text"] for item in items if item["type"] == "message"),
                    [(item["name"], json.loads(item["arguments"])) for item in items
                     if item["type"] == "function_call"], reply["usage"]["output_tokens"])
        reply = server.message(messages[1:], system="Be brief.", max_tokens=max_tokens, **fields)
        blocks = reply["content"]
        return ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
                "".join(block["text"] for block in blocks if block["type"] == "text"),
                [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
                reply["usage"]["output_tokens"])

    return ask


def asked(words):
    return [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=words)]


def read(reply):
    blocks = reply.message.blocks
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    return ("".join(block.content for block in blocks if isinstance(block, ThinkingBlock)),
            "".join(block.text for block in blocks if isinstance(block, TextBlock)),
            [(call.tool_name, json.loads(call.tool_kwargs) if isinstance(call.tool_kwargs, str)
              else call.tool_kwargs) for call in calls])


@pytest.fixture
def tools(api):
    """The tool, as the library sends it."""
    tool = FunctionTool.from_defaults(weather)
    function = tool.metadata.to_openai_tool()["function"]
    theirs = {"responses": {"type": "function", **function},
              "messages": {"name": function["name"], "description": function["description"],
                           "input_schema": tool.metadata.get_parameters_dict()}}
    return tool, [theirs[api]]


def test_all_that_it_sends_reaches_the_template(server, llm, raw, tools):
    ask, said = llm(server, 8), "Wie geht's? 世"
    expected = raw(server, said, 8)
    reply = ask.chat(asked(said))
    raw_usage = reply.raw["usage"] if isinstance(reply.raw, dict) else reply.raw.usage
    assert (*read(reply), raw_usage.output_tokens) == expected
    parts = list(ask.stream_chat(asked(said)))
    assert "".join(part.delta for part in parts) == expected[1]

    async def both():
        text = "".join([part.delta async for part in await ask.astream_chat(asked(said))])
        return text, (await ask.achat(asked(said))).message.content
    assert asyncio.run(both()) == (expected[1], expected[1])
    tool, theirs = tools
    with_tools = raw(server, said, 8, tools=theirs)
    assert with_tools[1] != expected[1]
    assert read(ask.chat_with_tools([tool], chat_history=asked(said))) == with_tools[:3]


@pytest.mark.parametrize("words", ["[think]", "[call]", "[calls]"])
def test_thoughts_and_calls(scripted, llm, raw, tools, words):
    """Whole and streamed."""
    tool, theirs = tools
    ask, expected = llm(scripted), raw(scripted, words, tools=theirs)[:3]
    options = {"chat_history": asked(words), "allow_parallel_tool_calls": True}
    assert read(ask.chat_with_tools([tool], **options)) == expected
    last = list(ask.stream_chat_with_tools([tool], **options))[-1]
    assert read(last) == expected


def test_a_call_and_its_result(scripted, llm, tools):
    tool, ask = tools[0], llm(scripted)
    said = asked("[call]")
    reply = ask.chat_with_tools([tool], chat_history=list(said))
    call, = ask.get_tool_calls_from_response(reply)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Oslo"})
    result = ChatMessage(role="tool", content=tool(**call.tool_kwargs).content,
                         additional_kwargs={"tool_call_id": call.tool_id})
    turn = [*said, reply.message, result]
    assert ask.chat(turn).message.content == "It rains."


def test_a_demanded_call(scripted, llm, tools):
    reply = llm(scripted).chat_with_tools([tools[0]], chat_history=asked("[demanded]"), tool_required=True)
    assert read(reply)[2] == [("weather", {"city": "Oslo"})]


def test_a_type(scripted, llm, api):
    """By a schema of the text, and by a call that is demanded."""
    words = PromptTemplate("[json]" if api == "responses" else "[typed]")
    assert llm(scripted).structured_predict(Weather, words) == Weather(city="Oslo", rain=True)


def test_errors_are_the_clients(server, scripted, llm, api, too_long):
    errors, before = ERRORS[api], server.refusals()
    long = {"responses": "maximum context length", "messages": "prompt is too long"}[api]
    with pytest.raises(errors.BadRequestError, match=long):
        llm(server).chat(asked(too_long))
    with pytest.raises(errors.BadRequestError, match="top_p"):
        llm(server, additional_kwargs={"top_p": 7}).chat(asked("Hi"))
    assert server.refusals() == before + 2
    other = {"responses": "gpt-5", "messages": "claude-3-5-haiku-20241022"}[api]
    with pytest.raises(errors.NotFoundError, match=other):
        llm(server, model=other).chat(asked("Hi"))
    with pytest.raises(errors.AuthenticationError):
        llm(scripted, api_key="sk-wrong").chat(asked("Hi"))
