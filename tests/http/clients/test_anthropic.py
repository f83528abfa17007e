# SPDX-License-Identifier: Apache-2.0
"""anthropic's client, unmodified: POST /v1/messages and /v1/messages/count_tokens."""

import json

import anthropic
import harness
import pydantic
import pytest
from messages_helpers import SCHEMA, TOOL, events, gathered

pytestmark = pytest.mark.builds("dev")  # what the client makes of replies

SAID = {"max_tokens": 12, "system": "Be brief.", "messages": [{"role": "user", "content": "Wie geht's? 世"}],
        "extra_body": {"seed": 7}}


@pytest.fixture(scope="module")
def client(chat_server):
    return anthropic.Anthropic(base_url=chat_server.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The shipped model, with a template that shows how calls are written."""
    from conftest import finish, start
    server = start(tmp_path_factory.mktemp("shipped"), model=harness.shipped_model(),
                   chat_template=harness.ROOT / "tests/data/chat/hermes.jinja", reasoning="off")
    yield server
    finish(server)


def plain(message):
    """All that a reply says, but its id and what was read from the cache."""
    found = message.to_dict() if hasattr(message, "to_dict") else message
    usage = found["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    told = ("type", "text", "name", "input", "thinking")
    content = [{key: value for key, value in block.items() if key in told}
               for block in found["content"]]
    return content, found["stop_reason"], found["stop_sequence"], prompt, usage["output_tokens"]


def raw(server, stream=False, **fields):
    """The server's own reply to what the client sends."""
    body = {key: value for key, value in fields.items() if key != "extra_body"} | fields.get("extra_body", {})
    reply = server.post("/v1/messages", {**body, "model": server.model_id, "stream": stream})
    assert reply.status_code == 200, reply.text
    return gathered(events(reply.content)) if stream else reply.json()


def test_a_message(chat_server, client):
    message = client.messages.create(model=chat_server.model_id, **SAID)
    assert plain(message) == plain(raw(chat_server, **SAID))
    assert isinstance(message.content[0], anthropic.types.TextBlock)
    assert message._request_id.startswith("req-")


def test_a_stream(chat_server, client):
    with client.messages.stream(model=chat_server.model_id, **SAID) as stream:
        words = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert words == message.content[0].text
    assert plain(message) == plain(raw(chat_server, **SAID)) == plain(raw(chat_server, True, **SAID))
    names = [event.type for event in client.messages.create(model=chat_server.model_id, stream=True, **SAID)]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]


EXTRA = {"warnings", "session", "cache_miss_reason", "diverged_at"}  # regla's own


def extras(found):
    """Members that the client's types have not, at any depth."""
    if isinstance(found, list):
        return set().union(*map(extras, found))
    if not isinstance(found, pydantic.BaseModel):
        return set()
    return set(found.model_extra or {}).union(*(extras(value) for _, value in found))


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 300},
                                  {"frobnicate": 1}])
def test_replies_have_the_clients_types(chat_server, more):
    fields = {**SAID, **more}
    message = anthropic.types.Message.model_validate(raw(chat_server, **fields))
    assert extras(message) <= EXTRA
    event_type = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)
    body = {key: value for key, value in fields.items() if key != "extra_body"}
    for event in events(chat_server.post("/v1/messages", {**body, "stream": True}).content):
        assert extras(event_type.validate_python(event)) <= EXTRA


def test_counting(chat_server, client):
    asked = {key: SAID[key] for key in ("system", "messages")}
    count = client.messages.count_tokens(model=chat_server.model_id, tools=[TOOL], **asked)
    message = client.messages.create(model=chat_server.model_id, tools=[TOOL], **SAID)
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_a_tool(shipped):
    """A turn with a call, whole and streamed, and one with its result."""
    client = anthropic.Anthropic(base_url=shipped.url, api_key="none", max_retries=0)
    asked = {"model": shipped.model_id, "max_tokens": 600, "tools": [TOOL],
             "tool_choice": {"type": "tool", "name": "weather"},
             "thinking": {"type": "disabled"},
             "messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}
    for seed in range(8):  # some write white space without end
        asked["extra_body"] = {"seed": seed}
        message = client.messages.create(**asked)
        if message.stop_reason == "tool_use":
            break
    call, = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use" and call.name == TOOL["name"]
    assert call.input["city"] in SCHEMA["properties"]["city"]["enum"]
    with client.messages.stream(**asked) as stream:
        parts = "".join(event.partial_json for event in stream if event.type == "input_json")
        assert plain(stream.get_final_message()) == plain(message)
    assert json.loads(parts) == call.input
    asked |= {"tool_choice": {"type": "none"}, "messages": [
        *asked["messages"], {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}]}]}
    asked["max_tokens"] = 8
    answer = client.messages.create(**asked)
    assert answer.content[0].type == "text"


def test_errors_become_the_clients(chat_server, client):
    for fields, error, words in [
            ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
            ({"model": "claude-9"}, anthropic.NotFoundError, "claude-9"),
            ({"messages": []}, anthropic.BadRequestError, "messages: an empty list")]:
        with pytest.raises(error, match=words) as raised:
            client.messages.create(**{"model": chat_server.model_id, **SAID, **fields})
        assert raised.value.body["type"] == "error"
        assert raised.value.request_id.startswith("req-")
