# SPDX-License-Identifier: Apache-2.0
"""pydantic-ai: its models of OpenAI's responses and of Anthropic's messages."""

import asyncio

import anthropic
import openai
import pydantic
import pytest
from pydantic_ai import Agent, exceptions
from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.output import NativeOutput, ToolOutput
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

SCHEMA = {"additionalProperties": False, "properties": {"city": {"type": "string"}}, "required": ["city"],
          "type": "object"}
WEATHER = {
    "responses": {"type": "function", "name": "weather", "parameters": SCHEMA,
                  "description": "Weather of a city."},
    "messages": {"name": "weather", "description": "Weather of a city.", "input_schema": SCHEMA}}


class Weather(pydantic.BaseModel):
    city: str
    rain: bool


@pytest.fixture(params=WEATHER)
def api(request):
    return request.param


@pytest.fixture
def agent(api):
    """agent(server, **members): where the model is the server's."""
    def create(server, key=None, model=None, **members):
        options = {"api_key": key or server.key, "max_retries": 3}
        if api == "responses":
            client = openai.AsyncOpenAI(base_url=server.url, **options)
            chosen = OpenAIResponsesModel(
                model or server.model, provider=OpenAIProvider(openai_client=client))
        else:
            client = anthropic.AsyncAnthropic(base_url=server.host, **options)
            chosen = AnthropicModel(  # it takes schemas of texts for Claude's own, unless it is told
                model or server.model, provider=AnthropicProvider(anthropic_client=client),
                profile=ModelProfile(supports_json_schema_output=True))
        return Agent(chosen, **{"instructions": "Be brief.", **members})

    return create


@pytest.fixture
def raw(api):
    """raw(server, said, **fields): (thoughts, text, calls, tokens of the prompt and the reply), as the server
    tells them."""
    def ask(server, said, max_tokens=1000, **fields):
        if api == "messages":
            reply = server.message([{"role": "user", "content": said}], system="Be brief.",
                                   max_tokens=max_tokens, **fields)
            blocks, usage = reply["content"], reply["usage"]
            return ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
                    "".join(block["text"] for block in blocks if block["type"] == "text"),
                    [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
                    (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]))
        reply = server.respond(said, instructions="Be brief.", max_output_tokens=max_tokens, **fields)
        items, usage = reply["output"], reply["usage"]
        return ("".join(item["content"][0]["text"] for item in items if item["type"] == "reasoning"),
                "".join(item["content"][0]["text"] for item in items if item["type"] == "message"),
                [(item["name"], pydantic.TypeAdapter(dict).validate_json(item["arguments"]))
                 for item in items if item["type"] == "function_call"],
                (usage["input_tokens"], usage["output_tokens"]))

    return ask


def made(result, kind):
    """The parts of that kind, of all that the run has got and sent."""
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, kind)]


def test_a_text_with_thoughts(scripted, agent, raw):
    result = agent(scripted).run_sync("[think]")
    thought, text, _, tokens = raw(scripted, "[think]")
    assert result.output == text
    assert (result.usage.input_tokens, result.usage.output_tokens) == tokens
    part, = made(result, ThinkingPart)
    assert (part.content or "".join(part.provider_details["raw_content"])) == thought


def test_all_that_it_sends_reaches_the_template(server, agent, raw, api):
    def weather(city: str) -> str:
        """Weather of a city."""
    settings = {"temperature": 0, "max_tokens": 8}
    result = agent(server, tools=[weather], model_settings=settings).run_sync("Wie geht's? 世")
    expected = raw(server, "Wie geht's? 世", 8, tools=[WEATHER[api]])
    assert result.output == expected[1] != raw(server, "Wie geht's? 世", 8)[1]
    assert result.usage.output_tokens == expected[3][1]


@pytest.mark.parametrize("said, cities, streamed", [  # a stream with a text before its calls ends at the text
    ("[call]", ["Oslo"], False), ("[calls]", ["Bonn", "Oslo", "Rome"], False),
    ("[calls]", ["Bonn", "Oslo", "Rome"], True)])
def test_calls(scripted, agent, raw, api, said, cities, streamed):
    """Their results come back to the model, which then has nothing but a text."""
    asked = []

    def weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "Rain."

    async def stream(caller):
        async with caller.run_stream(said) as result:
            parts = [part async for part in result.stream_text(delta=True, debounce_by=None)]
            assert "".join(parts) == await result.get_output()
            return result
    caller = agent(scripted, tools=[weather])
    result = asyncio.run(stream(caller)) if streamed else caller.run_sync(said)
    thought, text, calls, _ = raw(scripted, said, tools=[WEATHER[api]])
    assert sorted(asked) == cities
    parts = made(result, ToolCallPart)
    assert [(part.tool_name, part.args_as_dict()) for part in parts] == calls
    returned = [part.tool_call_id for part in made(result, ToolReturnPart)]
    assert returned == [part.tool_call_id for part in parts]
    assert "".join(part.content for part in made(result, TextPart)) == text + raw(scripted, "Rain.")[1]


def test_types(scripted, agent):
    """By a call that is demanded, and by a schema of the text."""
    weather = Weather(city="Oslo", rain=True)
    call, text = ToolOutput(Weather, name="Weather"), NativeOutput(Weather)
    assert agent(scripted, output_type=call).run_sync("[typed]").output == weather
    assert agent(scripted, output_type=text).run_sync("[json]").output == weather


def test_a_second_turn(scripted, agent):
    """With all of the first, thoughts and calls among them."""
    def weather(city: str) -> str:
        """Weather of a city."""
        return "Rain."
    caller = agent(scripted, tools=[weather])
    first = caller.run_sync("[call]")
    assert caller.run_sync("[think]", message_history=first.all_messages()).output == "It rains in Oslo. 世"


def test_errors_become_its_exceptions(server, scripted, agent, too_long):
    before = server.refusals()
    with pytest.raises(exceptions.ModelContextWindowExceededError):
        agent(server).run_sync(too_long)
    with pytest.raises(exceptions.ModelRequestRejectedError, match="temperature"):
        agent(server, model_settings={"temperature": 7}).run_sync("Hi")
    assert server.refusals() == before + 2
    with pytest.raises(exceptions.ModelNotFoundError, match="gpt-9"):
        agent(server, model="gpt-9").run_sync("Hi")
    with pytest.raises(exceptions.ModelAuthenticationError):
        agent(scripted, key="sk-wrong").run_sync("Hi")
