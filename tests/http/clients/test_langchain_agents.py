# SPDX-License-Identifier: Apache-2.0
"""langchain-openai's chat model with use_responses_api, and langchain-anthropic's, unmodified."""

import asyncio
import functools
import json
import operator

import anthropic
import openai
import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

import harness
import script

pytestmark = pytest.mark.builds("dev")  # what the clients make of replies

KEY = "sk-scripted"
SAID = [SystemMessage("Be brief."), HumanMessage("Wie geht's? 世")]
SCHEMA = {"properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object"}
TOOLS = {
    "responses": {"type": "function", "name": "weather", "description": "Weather of a city.",
                  "parameters": SCHEMA},
    "messages": {"name": "weather", "input_schema": SCHEMA, "description": "Weather of a city."}}
ERRORS = {"responses": openai, "messages": anthropic}


@tool
def weather(city: str) -> str:
    """Weather of a city."""


class Weather(pydantic.BaseModel):
    """Of a city."""
    city: str
    rain: bool


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("scripted")
    begun = start(folder, model=script.write(folder / "model", script.LINES),
                  environment={"REGLA_API_KEY": KEY})
    begun.http.headers["Authorization"] = f"Bearer {KEY}"
    yield begun
    finish(begun)


@pytest.fixture(params=TOOLS)
def api(request):
    return request.param


@pytest.fixture
def llm(api, monkeypatch):
    """llm(server, **options)"""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def create(server, **options):
        options = {"model": server.model_id, "api_key": KEY, "max_retries": 3, "max_tokens": 1000, **options}
        if api == "responses":
            return ChatOpenAI(base_url=server.url + "/v1", use_responses_api=True, **options)
        return ChatAnthropic(base_url=server.url, **options)

    return create


@pytest.fixture
def raw(api):
    """raw(server, said, **fields): (thoughts, text, calls, tokens of the prompt and the reply), as the server
    tells them."""
    def ask(server, said, **fields):
        name = "max_output_tokens" if api == "responses" else "max_tokens"
        fields = {name: fields.pop("max_tokens", 1000), **fields}
        if api == "responses":
            fields["input"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
        else:
            fields |= {"system": "Be brief.", "messages": [{"role": "user", "content": said}]}
        reply = server.post(f"/v1/{api}", fields)
        assert reply.status_code == 200, reply.text
        return (read_response if api == "responses" else read_message)(reply.json())

    return ask


def read_response(reply):
    def texts(kind):
        return "".join(item["content"][0]["text"] for item in reply["output"] if item["type"] == kind)
    calls = [(item["name"], json.loads(item["arguments"])) for item in reply["output"]
             if item["type"] == "function_call"]
    usage = reply["usage"]
    return texts("reasoning"), texts("message"), calls, (usage["input_tokens"], usage["output_tokens"])


def read_message(reply):
    def texts(kind):
        return "".join(block[kind] for block in reply["content"] if block["type"] == kind)
    calls = [(block["name"], block["input"]) for block in reply["content"] if block["type"] == "tool_use"]
    usage = reply["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return texts("thinking"), texts("text"), calls, (prompt, usage["output_tokens"])


def read(said):
    """The same of a message of LangChain's."""
    thoughts = "".join(  # those of responses come as they were, beside their empty summary
        block.get("thinking") or "".join(part["text"] for part in block.get("content") or [])
        for block in said.content
        if isinstance(block, dict) and block["type"] in ("thinking", "reasoning"))
    usage = said.usage_metadata
    return (thoughts, said.text, [(call["name"], call["args"]) for call in said.tool_calls],
            (usage["input_tokens"], usage["output_tokens"]))


def joined(parts):
    return functools.reduce(operator.add, parts)


def asked(words):
    return [SAID[0], HumanMessage(words)]


def test_all_that_it_sends_reaches_the_template(chat_server, llm, raw, api):
    model = llm(chat_server, max_tokens=8, temperature=0)
    plain = raw(chat_server, "Wie geht's? 世", max_tokens=8, temperature=0)
    tools = raw(chat_server, "Wie geht's? 世", max_tokens=8, temperature=0, tools=[TOOLS[api]])
    assert tools[1] != plain[1]
    assert read(model.invoke(SAID)) == plain
    assert read(model.bind_tools([weather]).invoke(SAID)) == tools

    async def streamed():
        return [part async for part in model.astream(SAID)]
    assert read(joined(asyncio.run(streamed()))) == plain


@pytest.mark.parametrize("words", ["[think]", "[call]", "[calls]"])
def test_thoughts_and_calls(scripted, llm, raw, api, words):
    """Whole, streamed, and with their results in the next turn."""
    expected = raw(scripted, words, tools=[TOOLS[api]])
    model = llm(scripted).bind_tools([weather])
    said = model.invoke(asked(words))
    assert read(said) == expected
    assert read(joined(model.stream(asked(words))))[1:] == expected[1:]
    results = [ToolMessage("Rain.", tool_call_id=call["id"]) for call in said.tool_calls]
    turn = [*asked(words), said, *results, HumanMessage("[json]")]
    assert model.invoke(turn).text == raw(scripted, "[json]")[1]


@pytest.mark.parametrize("method, words", [("function_calling", "[typed]"), ("json_schema", "[json]")])
def test_types(scripted, llm, method, words):
    """By a call that is demanded, and by a schema of the text."""
    model = llm(scripted).with_structured_output(Weather, method=method)
    assert model.invoke(words) == Weather(city="Oslo", rain=True)


def test_errors_are_the_clients(scripted, chat_server, server_factory, llm, api):
    small = server_factory(max_model_len=64, chat_template=harness.ROOT / "tests/clients/chat.jinja")

    def refusals():
        return chat_server.metric("regla_requests_total", status="400")
    before, errors = refusals(), ERRORS[api]
    long = {"responses": "maximum context length", "messages": "prompt is too long"}[api]
    with pytest.raises(errors.BadRequestError, match=long):
        llm(small).invoke("word " * 200)
    with pytest.raises(errors.BadRequestError, match="top_p"):
        llm(chat_server, top_p=7).invoke(SAID)
    harness.wait_until(lambda: refusals() >= before + 1, "the refusal to be counted")
    with pytest.raises(errors.NotFoundError, match="gpt-9"):
        llm(chat_server, model="gpt-9").invoke(SAID)
    with pytest.raises(errors.AuthenticationError):
        llm(scripted, api_key="sk-wrong").invoke(SAID)
    assert refusals() == before + 1
