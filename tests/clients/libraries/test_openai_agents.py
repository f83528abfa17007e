# SPDX-License-Identifier: Apache-2.0
"""openai-agents: runs with tools, handoffs and types, by its default model, which speaks /v1/responses, and
by its chat model."""

import asyncio

import agents
import openai
import pydantic
import pytest

agents.set_tracing_disabled(True)
MODELS = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}


FUNCTION = {"name": "weather", "description": "Weather of a city.", "parameters": {
    "properties": {"city": {"title": "City", "type": "string"}}, "required": ["city"],
    "title": "weather_args", "type": "object", "additionalProperties": False}, "strict": True}
WEATHER = {"responses": {"type": "function", **FUNCTION}, "chat": {"type": "function", "function": FUNCTION}}


class Weather(pydantic.BaseModel):
    city: str
    rain: bool


@pytest.fixture(params=MODELS)
def api(request):
    return request.param


@pytest.fixture
def agent(api):
    """agent(server, **members): where the model is the server's."""
    def create(server, key=None, model=None, **members):
        client = openai.AsyncOpenAI(base_url=server.url, api_key=key or server.key, max_retries=3)
        return agents.Agent(**{"name": "Agent", "instructions": "Be brief.",
                               "model": MODELS[api](model or server.model, client), **members})

    return create


def run(agent, said):
    return asyncio.run(agents.Runner.run(agent, said))


@pytest.fixture
def raw(api):
    """raw(server, said, **fields): (thoughts, text, calls, tokens of the prompt and the reply), as the server
    tells them."""
    def ask(server, said, max_tokens=None, **fields):
        if api == "chat":
            cut = {"max_tokens": max_tokens or 1000}
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
            reply = server.chat(messages, **cut, **fields)
            message, usage = reply["choices"][0]["message"], reply["usage"]
            calls = [call["function"] for call in message.get("tool_calls", [])]
            tokens = usage["prompt_tokens"], usage["completion_tokens"]
            return message.get("reasoning_content"), message["content"] or "", calls, tokens
        cut = {"max_output_tokens": max_tokens} if max_tokens else {}
        reply = server.respond(said, instructions="Be brief.", **cut, **fields)
        found = {kind: [item for item in reply["output"] if item["type"] == kind]
                 for kind in ("reasoning", "message", "function_call")}
        texts = {kind: "".join(item["content"][0]["text"] for item in found[kind])
                 for kind in ("reasoning", "message")}
        tokens = reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]
        return texts["reasoning"], texts["message"], found["function_call"], tokens

    return ask


def thoughts(result):
    """The chat's are summaries to this library."""
    return "".join(part.text for item in result.new_items if item.type == "reasoning_item"
                   for part in (item.raw_item.content or item.raw_item.summary))


def test_a_text_with_thoughts(scripted, agent, raw):
    result = run(agent(scripted), "[think]")
    thought, text, _, tokens = raw(scripted, "[think]")
    assert (thoughts(result), result.final_output) == (thought, text)
    usage = result.raw_responses[0].usage
    assert (usage.input_tokens, usage.output_tokens) == tokens
    assert usage.total_tokens == sum(tokens)


def test_all_that_it_sends_reaches_the_template(server, agent, raw, api):
    @agents.function_tool
    def weather(city: str) -> str:
        """Weather of a city."""

    text = raw(server, "Wie geht's? 世", max_tokens=8, tools=[WEATHER[api]])[1]
    assert text != raw(server, "Wie geht's? 世", max_tokens=8)[1]
    # To this library a response that is cut is none.
    settings = agents.ModelSettings(temperature=0, max_tokens=8, extra_body={"stop": [text[3:]]})
    result = run(agent(server, tools=[weather], model_settings=settings), "Wie geht's? 世")
    assert result.final_output == text[:3]


@pytest.mark.parametrize("said, cities", [("[call]", ["Oslo"]), ("[calls]", ["Bonn", "Oslo", "Rome"])])
@pytest.mark.parametrize("streamed", [False, True])
def test_calls(scripted, agent, raw, said, cities, streamed, api):
    """Their results come back to the model, which then has nothing but a text."""
    thought, text, expected, _ = raw(scripted, said, tools=[WEATHER[api]])
    asked = []

    @agents.function_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "Rain."

    async def stream():
        result = agents.Runner.run_streamed(agent(scripted, tools=[weather]), said)
        parts = [event.data.delta async for event in result.stream_events()
                 if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        return result, "".join(parts)
    if streamed:
        result, words = asyncio.run(stream())
        assert words == text + result.final_output
    else:
        result = run(agent(scripted, tools=[weather]), said)
    assert sorted(asked) == cities and result.final_output == raw(scripted, "Rain.")[1]
    calls = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    assert [(call.name, call.arguments) for call in calls] == [
        (call["name"], call["arguments"]) for call in expected]
    assert thoughts(result) == thought
    outputs = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert [item.raw_item["call_id"] for item in outputs] == [call.call_id for call in calls]


def test_a_demanded_call(scripted, agent):
    @agents.function_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return city
    result = run(agent(scripted, tools=[weather], tool_use_behavior="stop_on_first_tool",
                       model_settings=agents.ModelSettings(tool_choice="required")), "[demanded]")
    assert result.final_output == "Oslo"


def test_a_handoff(scripted, agent):
    clerk = agent(scripted, name="clerk")
    result = run(agent(scripted, handoffs=[clerk]), "[handoff]")
    assert result.last_agent is clerk and result.final_output == "It rains."


def test_a_type(scripted, agent):
    assert run(agent(scripted, output_type=Weather), "[json]").final_output == Weather(city="Oslo", rain=True)


def test_a_second_turn(scripted, agent):
    """With all items of the first, thoughts and calls among them."""
    @agents.function_tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return "Rain."
    first = run(agent(scripted, tools=[weather]), "[call]")
    second = run(agent(scripted, tools=[weather]),
                 [*first.to_input_list(), {"role": "user", "content": "[think]"}])
    assert second.final_output == "It rains in Oslo. 世"


def test_errors_are_the_openai_clients(server, scripted, agent, too_long):
    before = server.refusals()
    with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
        run(agent(server), too_long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        run(agent(server, model_settings=agents.ModelSettings(temperature=7)), "Hi")
    assert server.refusals() == before + 2
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        run(agent(server, model="gpt-9"), "Hi")
    with pytest.raises(openai.AuthenticationError):
        run(agent(scripted, key="sk-wrong"), "Hi")
