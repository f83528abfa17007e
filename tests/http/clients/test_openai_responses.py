# SPDX-License-Identifier: Apache-2.0
"""openai's client, unmodified: POST /v1/responses, whole, streamed and parsed."""

import json

import harness
import openai
import pydantic
import pytest
from openai.types import responses
from responses_helpers import CUSTOM, HOSTED, SPACE, TOOL, bare, events, gathered

pytestmark = pytest.mark.builds("dev")  # what the client makes of replies

SAID = {"max_output_tokens": 12, "instructions": "Be brief.", "input": "Wie geht's? 世", "temperature": 0}
TOOLS = [TOOL, SPACE, CUSTOM]


@pytest.fixture(scope="module")
def client(chat_server):
    return openai.OpenAI(base_url=chat_server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The shipped model, with a template that shows how calls are written."""
    from conftest import finish, start
    server = start(tmp_path_factory.mktemp("shipped"), model=harness.shipped_model(),
                   chat_template=harness.ROOT / "tests/data/chat/hermes.jinja", reasoning="off")
    yield server
    finish(server)


def raw(server, stream=False, **fields):
    """The server's own reply to what the client sends."""
    reply = server.post("/v1/responses", {**fields, "model": server.model_id, "stream": stream})
    assert reply.status_code == 200, reply.text
    return gathered(events(reply.content)) if stream else reply.json()


def plain(response):
    return bare(response.to_dict())


def test_a_response(chat_server, client):
    response = client.responses.create(model=chat_server.model_id, **SAID)
    assert plain(response) == bare(raw(chat_server, **SAID))
    assert response.output_text == response.output[0].content[0].text
    assert response._request_id.startswith("req-")


def test_a_stream(chat_server, client):
    names, words = [], ""
    with client.responses.stream(model=chat_server.model_id, **SAID) as stream:
        for event in stream:
            names.append(event.type)
            words += event.delta if event.type == "response.output_text.delta" else ""
            if event.type == "response.incomplete":
                last = event.response
    assert words == last.output_text
    assert bare(raw(chat_server, **SAID)) == bare(raw(chat_server, True, **SAID)) == plain(last)
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.incomplete"


EXTRA = {"warnings", "cache_miss_reason", "diverged_at"}  # regla's own
BEYOND = {"store", "bytes", "name"}  # those that OpenAI's replies have, and its types lack


def extras(found):
    """Members that the client's types have not, at any depth."""
    if isinstance(found, list):
        return set().union(*map(extras, found))
    if not isinstance(found, pydantic.BaseModel):
        return set()
    return set(found.model_extra or {}).union(*(extras(value) for _, value in found))


@pytest.mark.parametrize("more", [
    {},
    {"tools": [*TOOLS, HOSTED], "tool_choice": "required", "max_output_tokens": 600, "temperature": 1,
     "seed": 1},
    {"tools": TOOLS, "tool_choice": {"type": "custom", "name": "patch"}, "max_output_tokens": 600},
    {"tools": TOOLS, "tool_choice": {"type": "function", "name": "find"}, "max_output_tokens": 600},
    {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2},
    {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}, "frobnicate": 1},
    {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}}},
])
def test_replies_have_the_clients_types(chat_server, more):
    fields = {**SAID, **more}
    response = responses.Response.model_validate(raw(chat_server, **fields))
    assert extras(response) <= EXTRA | BEYOND
    event_type = pydantic.TypeAdapter(responses.ResponseStreamEvent)
    for event in events(chat_server.post("/v1/responses", {**fields, "stream": True}).content):
        assert extras(event_type.validate_python(event)) <= EXTRA | BEYOND


def test_counting(chat_server, client):
    asked = {key: SAID[key] for key in ("instructions", "input")}
    count = client.responses.input_tokens.count(model=chat_server.model_id, tools=TOOLS, **asked)
    response = client.responses.create(model=chat_server.model_id, tools=TOOLS, tool_choice="auto", **SAID)
    assert count.input_tokens == response.usage.input_tokens


def once(stream):
    """Its events without what is said while nothing else comes."""
    return list({event.sequence_number: event for event in reversed(list(stream))}.values())[::-1]


def test_a_stream_that_runs(chat_server, client):
    """Retrieved as it is by then, and as events to its end."""
    fields = {**SAID, "max_output_tokens": 100_000, "extra_body": {"ignore_eos": True}}
    told = client.responses.create(model=chat_server.model_id, stream=True, **fields)
    begun = [next(told) for _ in range(8)]
    name = begun[0].response.id
    now = client.responses.retrieve(name)
    assert (now.status, now.output[0].status) == ("in_progress", "in_progress")
    assert extras(now) <= EXTRA | BEYOND
    again = [client.responses.retrieve(name, stream=True, starting_after=after) for after in (0, 5)]
    cancelled = client.responses.cancel(name)
    told = once([*begun, *told])
    assert [once(stream) for stream in again] == [told[1:], told[6:]]
    assert told[-1].response == cancelled == client.responses.retrieve(name)


def test_a_kept_stream(chat_server, client):
    """Retrieved as events, from the beginning and from behind one of them."""
    told = client.responses.create(model=chat_server.model_id, stream=True, **SAID)
    told = once(told)
    name = told[0].response.id
    for after in (None, 0, 3, len(told) - 2, len(told) - 1):
        behind = openai.NOT_GIVEN if after is None else after
        again = list(client.responses.retrieve(name, stream=True, starting_after=behind))
        assert again == told[0 if after is None else after + 1:]
        assert set().union(*map(extras, again)) <= EXTRA | BEYOND


class Weather(pydantic.BaseModel):
    """Of a city."""
    city: str
    rain: bool


def test_a_text_is_parsed(shipped):
    client = openai.OpenAI(base_url=shipped.url + "/v1", api_key="none", max_retries=0)
    for seed in range(8):  # some write white space without end
        response = client.responses.parse(
            model=shipped.model_id, input="What is the weather in Oslo?", text_format=Weather,
            max_output_tokens=600, extra_body={"seed": seed})
        if response.status == "completed":
            break
    assert isinstance(response.output_parsed, Weather)
    assert json.loads(response.output_text) == response.output_parsed.model_dump()


def test_a_tool(shipped):
    """A turn with a call, whole and streamed, and one with its result."""
    client = openai.OpenAI(base_url=shipped.url + "/v1", api_key="none", max_retries=0)
    weather = {"type": "function", **openai.pydantic_function_tool(Weather)["function"]}
    asked = {"model": shipped.model_id, "max_output_tokens": 600, "tools": [weather],
             "tool_choice": "required", "parallel_tool_calls": False,
             "input": [{"role": "user", "content": "What is the weather in Oslo?"}]}
    for seed in range(8):
        asked["extra_body"] = {"seed": seed}
        response = client.responses.create(**asked)
        if response.status == "completed":
            break
    call, = [item for item in response.output if item.type == "function_call"]
    Weather.model_validate_json(call.arguments)
    with client.responses.stream(**asked) as stream:
        parts = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        last = stream.get_final_response()
    assert "".join(parts) == call.arguments == last.output[0].arguments
    answer = client.responses.create(**{**asked, "tool_choice": "none", "max_output_tokens": 8, "input": [
        *asked["input"], *response.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]})
    assert answer.output[0].type == "message"


def test_errors_become_the_clients(chat_server, client):
    for fields, error, words in [
            ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
            ({"model": "gpt-9"}, openai.NotFoundError, "gpt-9"),
            ({"previous_response_id": "resp_1"}, openai.NotFoundError, "there is no response"),
            ({"input": []}, openai.BadRequestError, "input: an empty list")]:
        with pytest.raises(error, match=words) as raised:
            client.responses.create(**{"model": chat_server.model_id, **SAID, **fields})
        assert raised.value.param in words or raised.value.param in fields


def test_kept_responses(chat_server, client):
    """Gone on from, retrieved, listed, cancelled and deleted."""
    model = chat_server.model_id
    first = client.responses.create(model=model, **SAID)
    second = client.responses.create(model=model, **{**SAID, "input": "And to Rome?"},
                                     previous_response_id=first.id)
    assert second.previous_response_id == first.id
    details = second.usage.input_tokens_details
    assert details.cached_tokens >= first.usage.total_tokens - 1 and details.cache_miss_reason == "none"
    for made in (first, second):
        assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
        assert extras(made) <= EXTRA | BEYOND
    items = client.responses.input_items.list(second.id, order="asc")
    item, = items.data
    assert (item.role, item.content[0].text) == ("user", "And to Rome?") and not items.has_more
    assert [each.id for each in client.responses.input_items.list(second.id)] == [item.id]
    assert extras(item) <= BEYOND
    count = client.responses.input_tokens.count(
        model=model, input="And to Rome?", previous_response_id=first.id, instructions=SAID["instructions"])
    assert count.input_tokens == second.usage.input_tokens
    with pytest.raises(openai.BadRequestError):  # it has ended
        client.responses.cancel(second.id)
    stream = client.responses.create(model=model, input="hi", stream=True, max_output_tokens=100_000,
                                     extra_body={"ignore_eos": True})
    name = next(stream).response.id
    while next(stream).type != "response.output_text.delta":
        pass
    cancelled = client.responses.cancel(name)
    assert cancelled.status == "cancelled" and cancelled.output_text
    *_, last = stream
    assert last.response.to_dict() == cancelled.to_dict()
    assert client.responses.delete(second.id) is None
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel,
                client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(second.id)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model=model, input="hi", previous_response_id=second.id)
    assert (unknown.value.code, unknown.value.param) == (
        "previous_response_not_found", "previous_response_id")
