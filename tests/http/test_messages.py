# SPDX-License-Identifier: Apache-2.0
"""POST /v1/messages and /v1/messages/count_tokens: a request says what a chat says, and the reply is
the chat's, in the shape of Anthropic's API."""

import contextlib
import json
import re
import socket
import time

import contract
import harness
import pytest
from harness import wait_until
from test_chat_tools import FORMATS, Conversation, Reciting

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
JSON = {"content-type": "application/json"}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "Of a city.",
                                             "parameters": SCHEMA}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
OTHER = {**CALL, "id": "toolu_2", "input": {"city": "Rome"}}
CALLED = {"id": "toolu_1", "type": "function", "function": {
    "name": "weather", "arguments": '{"city": "Oslo"}'}}
ELSE = {"id": "toolu_2", "type": "function", "function": {
    "name": "weather", "arguments": '{"city": "Rome"}'}}


def user(*content):
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content):
    return {**user(*content), "role": "assistant"}


def text(words, **more):
    return {"type": "text", "text": words, **more}


def result(number, content, **more):
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def said(server, path=MESSAGES, **fields):
    """The reply to a request that must succeed."""
    body = {"messages": [user("hi")], "temperature": 0, **fields}
    if path == MESSAGES:
        body = {"max_tokens": 8, **body}
    reply = server.post(path, body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    return reply.json()


def prompt_tokens(usage):
    return (usage["input_tokens"] + usage["cache_creation_input_tokens"]
            + usage["cache_read_input_tokens"])


def check_error(reply, status, kind="invalid_request_error"):
    """The message of an error in Anthropic's shape."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == reply.headers["request-id"]
    return body["error"]["message"]


def events(body):
    """The events of a stream, whose names are their types; each as openapi.json has it."""
    assert body.endswith(b"\n\n") and b"\r" not in body
    found = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}" and data.startswith("data: {")
        if harness.CONTRACT and found[-1]["type"] != "error":
            contract.check("POST", MESSAGES, {}, None, 200, "text/event-stream",
                           data.removeprefix("data: ").encode(), {})
    return found


def gathered(found):
    """The message that a stream's events add up to; they come in order."""
    start, *rest = [event for event in found if event["type"] != "ping"]
    assert start["type"] == "message_start" and start["message"]["content"] == []
    message, open_block, ended = start["message"], None, False
    for event in rest:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None and event["index"] == len(message["content"])
            open_block = event["content_block"]
            message["content"].append(open_block)
            parts = ""
        elif kind == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            delta = event["delta"]
            assert delta.pop("type") in {"thinking": ("thinking_delta", "signature_delta"),
                                         "text": ("text_delta",),
                                         "tool_use": ("input_json_delta",)}[open_block["type"]]
            (name, value), = delta.items()
            if name == "partial_json":
                parts += value
            else:
                open_block[name] += value
        elif kind == "content_block_stop":
            assert event["index"] == len(message["content"]) - 1
            if open_block["type"] == "tool_use":
                open_block["input"] = parsed(parts)
            open_block = None
        elif kind == "message_delta":
            assert open_block is None
            message |= event["delta"] | {"usage": event["usage"]}
            message |= {key: event[key] for key in ("warnings",) if key in event}
            ended = True
        else:
            assert kind == "message_stop" and ended and event is rest[-1]
    return message


def parsed(text):
    """None of a call that was cut off: its parts are no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def streamed(server, **fields):
    reply = server.post(MESSAGES, {"max_tokens": 8, "messages": [user("hi")], "temperature": 0,
                                   "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
    return gathered(events(reply.content))


# What the model sees

@pytest.mark.parametrize("ours, chat", [
    ({"messages": [user("hi")]}, [user("hi")]),
    ({"messages": [user(text("hi", cache_control={"type": "ephemeral"}))]}, [user("hi")]),
    ({"messages": [user(text("a"), text("b"))]}, [user("a\nb")]),
    ({"messages": [user("a"), user("b")]}, [user("a\nb")]),
    ({"messages": [user("")]}, [user("")]),
    ({"messages": [{"role": "user", "content": []}]}, [user("")]),
    ({"system": "Be brief.", "messages": [user("hi")]},
     [{"role": "system", "content": "Be brief."}, user("hi")]),
    ({"system": [text("x-anthropic-billing-header: cc_version=1; cch=3fa10;"), text("Be"), text("brief.")],
      "messages": [user("hi")]}, [{"role": "system", "content": "Be\nbrief."}, user("hi")]),
    ({"system": [text("x-anthropic-billing-header: 7")], "messages": [user("hi")]}, [user("hi")]),
    ({"messages": [user("a"), {"role": "system", "content": "S"}, assistant("b"), user("c")]},
     [user("a"), {"role": "system", "content": "S"}, assistant("b"), user("c")]),
    ({"messages": [user("a"), assistant(text("b"), text("\nc")), user("d")]},
     [user("a"), assistant("b\nc"), user("d")]),
    ({"tools": [TOOL], "messages": [user("hi")]}, [user("hi")]),
    ({"tools": [{**TOOL, "type": "custom", "defer_loading": True}], "messages": [
        user("hi"), assistant(text("Let me see."), CALL, OTHER),
        user(text("Go on."), result(1, "Rain."), result(2, [text("Sun."), text("Hot.")]))]},
     [user("hi"), {**assistant("Let me see."), "tool_calls": [CALLED, ELSE]},
      {"role": "tool", "tool_call_id": "toolu_1", "content": "Rain."},
      {"role": "tool", "tool_call_id": "toolu_2", "content": "Sun.\nHot."}, user("Go on.")]),
    ({"tools": [TOOL], "messages": [user("hi"), assistant(CALL), user(
        result(1, "no network", is_error=True))]},
     [user("hi"), {**assistant(""), "tool_calls": [CALLED]},
      {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no network"}]),
    ({"messages": [user("hi"), assistant(
        {"type": "thinking", "thinking": "Hm.", "signature": ""}, text("b")), user("c")]},
     [user("hi"), {**assistant("b"), "reasoning_content": "Hm."}, user("c")]),
    ({"messages": [user("hi"), assistant("It is")]}, [user("hi"), assistant("It is")]),
])
def test_the_same_as_a_chat(chat_server, ours, chat):
    """An equal prompt computes nothing again."""
    fields = {"tools": [FUNCTION]} if "tools" in ours else {}
    if chat[-1]["role"] == "assistant":
        fields["continue_final_message"] = True
    for drawn in ({}, {"temperature": 1, "seed": 5, "top_p": 0.9, "top_k": 40}):
        reply = said(chat_server, **ours, **drawn)
        theirs = chat_server.post(CHAT, {"messages": chat, "max_tokens": 8, "temperature": 0, **fields,
                                         **drawn}).json()
        choice, usage = theirs["choices"][0], theirs["usage"]
        assert reply["content"] == [text(choice["message"]["content"])]
        assert prompt_tokens(reply["usage"]) == usage["prompt_tokens"]
        assert reply["usage"]["output_tokens"] == usage["completion_tokens"]
        assert usage["prompt_tokens_details"]["cache_miss_reason"] == "none"
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1
        assert "warnings" not in reply
        assert streamed(chat_server, **ours, **drawn)["content"] == reply["content"]
    counted = chat_server.post(COUNT, ours)
    assert counted.json() == {"input_tokens": usage["prompt_tokens"]}


@pytest.mark.parametrize("block, line", [
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
     "[image left out]"),
    ({"type": "document", "source": {"type": "url", "url": "http://x"}}, "[document left out]"),
    ({"type": "tool_reference", "tool_name": "weather"}, "[tool_reference: weather]"),
    ({"type": "web_search_tool_result", "tool_use_id": "x", "content": []},
     "[web_search_tool_result left out]"),
])
def test_what_is_no_text_is_a_line(chat_server, block, line):
    counts = []
    for content in ([text("a"), block, text("b")], [text(f"a\n{line}\nb")]):
        reply = chat_server.post(COUNT, {"messages": [user(*content)]}).json()
        counts.append(reply["input_tokens"])
        assert ("warnings" in reply) == (len(content) > 1)
    assert counts[0] == counts[1]
    reply = said(chat_server, tools=[TOOL], messages=[
        user("hi"), assistant(CALL), user(result(1, [block, text("b")]))])
    assert block["type"] in reply["warnings"][0]
    stream = streamed(chat_server, messages=[user(block)])
    assert stream["warnings"] == [f"messages: 1 of {block['type']}: this model reads text; a line stands "
                                  "in the place of each"]


FIRST_ONLY = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"""
ALTERNATING = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}
<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"""
DROPPING = """{% for m in messages %}{% if m.role == 'system' and loop.first or m.role != 'system' %}
<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}<assistant>"""


@pytest.mark.builds("dev")
@pytest.mark.parametrize("template, chat", [
    (FIRST_ONLY, [{"role": "system", "content": "S"}, user("a\nT"), assistant("b"), user("c\nU")]),
    (DROPPING, [{"role": "system", "content": "S"}, user("a\nT"), assistant("b"), user("c\nU")]),
    (ALTERNATING, [user("S\na\nT"), assistant("b"), user("c\nU")]),
])
def test_a_system_message_that_the_template_does_not_take(server_factory, tmp_path, template, chat):
    """It stays where it is, as a user's text."""
    path = tmp_path / "own.jinja"
    path.write_text(template)
    server = server_factory(chat_template=path)
    ours = {"system": "S", "messages": [
        user("a"), {"role": "system", "content": [text("T")]}, assistant("b"), user("c"),
        {"role": "system", "content": "U"}]}
    reply = said(server, **ours)
    theirs = server.post(CHAT, {"messages": chat, "max_tokens": 8, "temperature": 0}).json()
    assert theirs["usage"]["prompt_tokens_details"]["cache_miss_reason"] == "none"
    assert theirs["usage"]["prompt_tokens"] == prompt_tokens(reply["usage"])
    assert reply["content"] == [text(theirs["choices"][0]["message"]["content"])]


KNOBS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>
{%- if enable_thinking is defined %}{{ enable_thinking }}{% endif %}
{%- if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"""


@pytest.mark.builds("dev")
def test_thinking_and_effort_reach_the_template(server_factory, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text(KNOBS)
    server = server_factory(chat_template=path)

    def end(**fields):
        body = {"messages": [user("hi")], **fields}
        reply = server.post(COUNT, body).json()
        return reply["input_tokens"] - plain, reply.get("warnings", [])
    plain = 0
    plain, _ = end()
    assert end(thinking={"type": "adaptive", "display": "omitted"}) == (len("True"), [])
    assert end(thinking={"type": "disabled"}) == (len("False"), [])
    assert end(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=4000) == (len("True"), [])
    own = {"chat_template_kwargs": {"enable_thinking": True}}
    assert end(thinking={"type": "disabled"}, **own) == (len("True"), [])
    assert end(output_config={"effort": "high"}) == (len("high"), [])
    assert end(output_config={"effort": "high"}, reasoning_effort="low") == (len("low"), [])


# Replies

def test_how_a_text_ends(chat_server):
    whole = said(chat_server, max_tokens=30, ignore_eos=True)
    words = whole["content"][0]["text"]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("max_tokens", None)
    stop = next(c for c in words if c.isascii() and c.isprintable())
    for ask in (said, streamed):
        ended = ask(chat_server, max_tokens=30, ignore_eos=True, stop_sequences=[stop])
        assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", stop)
        before = words[:words.index(stop)]
        assert ended["content"] == ([text(before)] if before else [])
    assert whole["type"] == "message" and whole["role"] == "assistant"
    assert whole["model"] == chat_server.model_id and whole["id"].startswith("msg_")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"},
                                    {"type": "any", "disable_parallel_tool_use": True}])
def test_demanded_calls(chat_server, choice):
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 400, "temperature": 1, "seed": 1,
              "stop_token_ids": [], "logit_bias": {}}
    whole, stream = said(chat_server, **fields), streamed(chat_server, **fields)
    stream["content"] = [block for block in stream["content"] if block.get("input", {}) is not None]
    assert stream["content"] == [dict(block, id=other["id"]) for block, other in zip(
        whole["content"], stream["content"], strict=True)]
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert calls and len({call["id"] for call in calls}) == len(calls)
    for call in calls:
        assert call["name"] == "weather" and call["input"]["city"] in ("Oslo", "Rome")
        assert call["id"].startswith("toolu_")
    assert whole["stop_reason"] == stream["stop_reason"] in ("tool_use", "max_tokens")


def test_a_call_that_is_cut_is_none(chat_server):
    for ask in (said, streamed):
        cut = ask(chat_server, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=30)
        assert (cut["content"], cut["stop_reason"]) == ([], "max_tokens")


@pytest.mark.builds("dev")
def test_an_output_of_a_schema(chat_server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}
    for fields in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                   {"output_format": {"type": "json_schema", "schema": schema}}):
        reply = said(chat_server, max_tokens=400, temperature=1, seed=3, **fields)
        if reply["stop_reason"] == "end_turn":
            assert json.loads(reply["content"][0]["text"])["a"] in (1, 2)


def as_blocks(conversation):
    """What a reply's content is, but for the places of texts and ids."""
    thoughts = [conversation.reasoning] if conversation.reasoning else []
    return thoughts, conversation.content, conversation.calls


@pytest.mark.builds("dev")
@pytest.mark.parametrize("name", FORMATS)
def test_thoughts_and_calls_whole_and_streamed(tmp_path_factory, name):
    from conftest import finish
    conversations = [Conversation(name, i) for i in range(20)]
    reciting = Reciting(tmp_path_factory.mktemp("recital"), name, [c.text for c in conversations])
    try:
        for number, wanted in enumerate(conversations):
            check_recited(reciting, number, wanted)
    finally:
        finish(reciting.server)


def check_recited(reciting, number, wanted):
    """The prompt is as long as a chat's that has the same messages and tools."""
    chat = json.loads(reciting.ask(number, tools=wanted.tools).request.content)
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
             for tool in wanted.tools]
    fields = {"messages": chat["messages"], "tools": tools, "max_tokens": 1000}
    whole, stream = said(reciting.server, **fields), streamed(reciting.server, **fields)
    blocks = whole["content"]
    calls = [b for b in blocks if b["type"] == "tool_use"]
    name = whole["id"].removeprefix("msg_")
    if wanted.broken:
        assert not calls
    else:
        assert ([b["thinking"] for b in blocks if b["type"] == "thinking"],
                "".join(b["text"] for b in blocks if b["type"] == "text"),
                [(b["name"], b["input"]) for b in calls]) == as_blocks(wanted)
        assert [b["id"] for b in calls] == [f"toolu_{name}_{i}" for i in range(len(wanted.calls))]
    assert whole["stop_reason"] == ("end_turn" if wanted.broken else "tool_use")
    # A whole reply has no object of a call that was cut off; a stream has what was told.
    stream["content"] = [b for b in stream["content"] if b.get("input", {}) is not None]
    for block in stream["content"]:
        if block["type"] == "tool_use":
            block["id"] = block["id"].replace(stream["id"].removeprefix("msg_"), name)
    assert stream["content"] == blocks and stream["stop_reason"] == whole["stop_reason"]
    for display in ("omitted", "updates"):
        for ask in (said, streamed):
            hidden = ask(reciting.server, **fields, thinking={"type": "adaptive", "display": display})
            check_hidden(reciting.server, fields, hidden["content"], stream["content"])
    without = said(reciting.server, **fields, include_reasoning=False)["content"]
    assert [b["type"] for b in without] == [b["type"] for b in blocks if b["type"] != "thinking"]


def check_hidden(server, fields, hidden, shown):
    """Of a thought there is no text, and its signature has all of it for the model."""
    assert [b["type"] for b in hidden if b.get("input", {}) is not None] == [b["type"] for b in shown]
    for block, whole in zip([b for b in hidden if b["type"] == "thinking"],
                            [b for b in shown if b["type"] == "thinking"], strict=True):
        assert block["thinking"] == "" and whole["thinking"] not in block["signature"]
        counts = [server.post(COUNT, {"messages": [
            *fields["messages"], assistant(thought, text("a")), user("b")]}).json()
            for thought in (block, whole)]
        assert counts[0] == counts[1] and "warnings" not in counts[0]


THOUGHTS = """{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}|{{ m.content }}
{%- endfor %}<assistant>"""


def sealed(words):
    return "rt1." + "".join("ghijklmnopqrstuv"[byte >> 4] + "ghijklmnopqrstuv"[byte & 15]
                            for byte in words.encode())


@pytest.mark.builds("dev")
def test_a_thought_that_was_not_shown_comes_back(server_factory, tmp_path):
    """Within a loop of tools as well: what the model sees is what it thought."""
    path = tmp_path / "own.jinja"
    path.write_text(THOUGHTS)
    server = server_factory(chat_template=path)

    def count(**block):
        block = {"type": "thinking", "thinking": "", "signature": "", **block}
        told = server.post(COUNT, {"tools": [TOOL], "messages": [
            user("a"), assistant(block, CALL), user(result(1, "Rain."))]}).json()
        return told["input_tokens"], [warning for warning in told.get("warnings", [])
                                      if not warning.startswith("tools: the model")]
    whole, none = count(thinking="Hm, 世."), count()
    assert whole[0] == none[0] + len("Hm, 世.".encode()) and whole[1] == none[1] == []
    assert count(signature=sealed("Hm, 世.")) == whole
    assert count(thinking="Hm, 世.", signature=sealed("another")) == whole
    assert count(signature=None) == none
    assert count(type="redacted_thinking", data="EqQBCg") == (
        none[0], ["messages: 1 of redacted_thinking: the model does not see them"])
    for other in ("EqQBCkYIARgC", "rt1.gz", "rt1.g", sealed("Hm")[:-1], "rt1." + "vv" * 3):
        assert count(signature=other) == (none[0], [
            "messages: 1 of thinking have no text, and a signature that was not made here: the model "
            "does not see them"])


def test_turns_reuse_their_prefix(chat_server):
    """Whatever changes in the billing header, and wherever cache_control is."""
    messages, read, before = [], [], 0
    for turn in range(4):
        messages.append(user(text(f"Turn {turn}: and what then?", cache_control={"type": "ephemeral"})))
        reply = said(chat_server, messages=messages, tools=[TOOL], max_tokens=12, system=[
            text(f"x-anthropic-billing-header: cch={turn};"), text("You are here to reuse.")])
        read.append(reply["usage"]["cache_read_input_tokens"])
        if turn > 0:
            assert read[turn] > read[turn - 1] and read[turn] >= before
        before = prompt_tokens(reply["usage"]) - 1
        messages[-1] = user(messages[-1]["content"][0]["text"])
        messages.append({"role": "assistant", "content": reply["content"]})


def test_sessions(chat_server):
    first = said(chat_server, session_id="of-messages")
    second = said(chat_server, session_id="of-messages", messages=[user("And then?")])
    assert second["session"]["position"] > first["session"]["position"]
    assert second["usage"]["cache_read_input_tokens"] >= first["session"]["position"] - 1


def test_a_quota_shortens_no_reply_whose_length_is_named(server_factory):
    """Only what names none is promised 2,048 tokens."""
    template = harness.ROOT / "tests" / "clients" / "chat.jinja"
    server = server_factory(chat_template=template, session_quota=4_000_000)  # 896 bytes a token
    asked = {"messages": [user("hi")], "session_id": "s"}
    assert server.post(CHAT, {**asked, "max_tokens": 8000}).status_code == 429
    message = check_error(server.post(MESSAGES, {**asked, "max_tokens": 8000}), 429, "rate_limit_error")
    assert "session-quota allows" in message
    said(server, **asked, max_tokens=2048)


@pytest.mark.parametrize("name", [
    "seed", "min_tokens", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "ignore_eos", "response_format",
    "structured_outputs", "documents", "chat_template_kwargs", "include_reasoning", "session_id",
    "expected_position", "store", "cache_salt", "user", "request_id", "priority", "stream", "temperature",
    "top_p", "top_k"])
def test_fields_that_are_as_in_chats(chat_server, name):
    """A wrong value gets the chat's words."""
    for value in (-7.5, [[]]):
        body = {"messages": [user("hi")], "max_tokens": 8, name: value}
        theirs = chat_server.post(CHAT, body)
        ours = chat_server.post(MESSAGES, body)
        assert ours.status_code == theirs.status_code
        if theirs.status_code == 400:
            assert check_error(ours, 400) == theirs.json()["error"]["message"]
            return
    raise AssertionError("it takes anything")


# Errors

BAD = [
    ({"max_tokens": None}, "max_tokens is required"),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"max_tokens": "8"}, "max_tokens: "),
    ({"messages": None}, "messages is required"),
    ({"messages": []}, "messages: an empty list"),
    ({"messages": "hi"}, "messages: expected a list, got a string"),
    ({"messages": ["hi"]}, "messages: 0: expected an object, got a string"),
    ({"messages": [{"content": "hi"}]}, "messages: 0: role: expected a string, got none"),
    ({"messages": [{"role": "tool", "content": "hi"}]},
     'messages: 0: role: expected user, assistant or system, got "tool"'),
    ({"messages": [{"role": "user"}]},
     "messages: 0: content: expected a string or a list of blocks, got none"),
    ({"messages": [user("a"), user(7)]}, "messages: 1: content: 0: a block: expected an object, got "),
    ({"messages": [user({"text": "a"})]}, "messages: 0: content: 0: type: expected a string, got none"),
    ({"messages": [user(text(None))]}, "messages: 0: content: 0: text: expected a string, got null"),
    ({"messages": [user({"type": "sound"})]},
     'messages: 0: content: 0: type: expected text or tool_result, got "sound"'),
    ({"messages": [user(CALL)]},
     'messages: 0: content: 0: type: expected text or tool_result, got "tool_use"'),
    ({"messages": [assistant(result(1, "a"))]},
     'messages: 0: content: 0: type: expected text, tool_use or thinking, got "tool_result"'),
    ({"messages": [user("a"), user(result(1, "a"))]},
     'messages: 1: content: 0: tool_use_id: expected the id of a tool_use before it, got "toolu_1"'),
    ({"messages": [assistant(CALL), user(result(1, 7))]},
     "messages: 1: content: 0: content: expected a string or a list of blocks, got "),
    ({"messages": [assistant(CALL), user(result(1, [CALL]))]}, "messages: 1: content: 0: type: "),
    ({"messages": [assistant(CALL), user(result(1, "a", is_error=1))]},
     "messages: 1: content: 0: is_error: expected true or false, got "),
    ({"messages": [assistant({**CALL, "input": "{}"})]},
     "messages: 0: content: 0: input: expected an object, got a string"),
    ({"messages": [assistant({**CALL, "id": None})]}, "messages: 0: content: 0: id: "),
    ({"messages": [user("hi"), assistant(CALL)]}, "messages: 1: tool_use: expected a user's message"),
    ({"messages": [assistant({"type": "thinking"}), user("a")]}, "messages: 0: content: 0: thinking: "),
    ({"system": 7}, "system: expected a string or a list of blocks, got "),
    ({"system": [{"type": "image"}]}, 'system: 0: type: expected text, got "image"'),
    ({"system": [{"type": "text"}]}, "system: 0: text: expected a string, got none"),
    ({"stop_sequences": "a"}, "stop_sequences: expected a list of strings"),
    ({"stop_sequences": [""]}, "stop_sequences: item 0: "),
    ({"stop_sequences": [7]}, "stop_sequences: item 0: "),
    ({"tools": {}}, "tools: expected a list"),
    ({"tools": [7]}, "tools: 0: a tool: expected an object"),
    ({"tools": [{"input_schema": {}}]}, "tools: 0: name: expected a string, got none"),
    ({"tools": [{"name": "a"}]}, "tools: 0: input_schema: expected an object, got none"),
    ({"tools": [{"name": "a", "type": 7}]}, "tools: 0: type: "),
    ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice: expected an object, got a string"),
    ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type: expected a string, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type: expected auto, any, tool or none"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name: expected a string, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "b"}},
     "tool_choice.name: expected that of one"),
    ({"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
     "disable_parallel_tool_use: "),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type: any: expected tools that can be called, got none"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
     "tool_choice.type: any: expected tools that can be called, got those of the type web_search_20250305"),
    ({"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}],
      "tool_choice": {"type": "tool", "name": "bash"}},
     'tool_choice.name: the tool "bash" is of the type "bash_20250124", which is not supported'),
    ({"thinking": True}, "thinking: expected an object"),
    ({"thinking": {}}, "thinking.type is required"),
    ({"thinking": {"type": "on"}}, 'thinking.type: expected enabled, adaptive or disabled, got "on"'),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
    ({"thinking": {"type": "enabled", "budget_tokens": 8}},
     "thinking.budget_tokens: expected less than max_tokens, 8"),
    ({"thinking": {"type": "enabled", "budget_tokens": "8"}}, "budget_tokens: "),
    ({"thinking": {"type": "adaptive", "display": 7}}, "thinking.display: expected a string, got "),
    ({"output_config": {"effort": "huge"}}, "output_config.effort: "),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type: "),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema: "),
    ({"context_management": []}, "context_management: expected an object"),
    ({"container": "c"}, "container is not supported: no code runs here"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
    ({"n": 2}, "n is not supported"),
    ({"stop": "a"}, "stop is not supported"),
    ({"prompt": "a"}, "prompt is not supported"),
    ({"temperature": 3}, "temperature: "),
    ({"seed": "x"}, "seed: "),
]


@pytest.mark.parametrize("fields, message", BAD)
def test_bad_input(chat_server, fields, message):
    body = {"messages": [user("hi")], "max_tokens": 8, **fields}
    for stream in (False, True):
        assert message in check_error(chat_server.post(MESSAGES, {**body, "stream": stream}), 400)


def test_shapes_of_errors(chat_server):
    body = {"messages": [user("hi")], "max_tokens": 8}
    assert "hybrid_regla" in check_error(chat_server.post(MESSAGES, {**body, "model": "claude"}), 404,
                                         "not_found_error")
    for path in (MESSAGES, COUNT):
        bad = chat_server.http.post(path, content=b'{"messages": [', headers=JSON)
        check_error(bad, 400)
        check_error(chat_server.http.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415)
    deep = '{"max_tokens": 8, "messages": [{"role": "user", "content": ' + "[" * 64 + "]" * 64 + "}]}"
    check_error(chat_server.http.post(MESSAGES, content=deep.encode(), headers=JSON), 400)


def test_a_prompt_that_is_too_long(server_factory):
    server = server_factory(max_model_len=64, chat_template=harness.ROOT / "tests/clients/chat.jinja",
                            max_body_bytes=3_000_000)
    long = {"messages": [user("x" * 100)], "max_tokens": 8}
    count = server.post(COUNT, long).json()["input_tokens"]
    for stream in (False, True):
        reply = server.post(MESSAGES, {**long, "stream": stream})
        assert check_error(reply, 400) == f"prompt is too long: {count} tokens > 63 maximum"
    many = {**long, "tools": [{**TOOL, "name": f"f{i}"} for i in range(10_000)]}
    assert check_error(server.post(MESSAGES, many), 400).startswith("prompt is too long: ")
    more = said(server, max_tokens=128000, ignore_eos=True)  # as many as there is room for
    assert more["stop_reason"] == "max_tokens"
    assert prompt_tokens(more["usage"]) + more["usage"]["output_tokens"] == 64
    large = server.http.post(MESSAGES, json={"messages": [user("x" * 3_100_000)], "max_tokens": 8})
    check_error(large, 413, "request_too_large")


def test_keys(server_factory):
    server = server_factory(api_key="secret", chat_template=harness.ROOT / "tests/clients/chat.jinja")
    for path in (MESSAGES, COUNT):
        body = {"messages": [user("hi")], "max_tokens": 2}
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            headers |= {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b-2025-01-01"}
            assert server.post(path + "?beta=true", body, headers=headers).status_code == 200
        for headers in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer wrong"}):
            check_error(server.post(path, body, headers=headers), 401, "authentication_error")
    server.http.headers["x-api-key"] = "secret"  # for the metrics read at the end


def test_an_error_is_kept_in_its_shape(chat_server):
    body = {"messages": [user("hi")], "max_tokens": 0}
    first, again = (chat_server.post(MESSAGES, body, headers={"Idempotency-Key": "of messages"})
                    for _ in range(2))
    assert first.status_code == again.status_code == 400 and again.headers["idempotent-replayed"] == "true"
    assert again.json()["error"] == first.json()["error"] and again.json()["request_id"] is None


@threads
def test_a_stream_that_is_cancelled(chat_server):
    body = {"messages": [user("hi")], "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    named = {"X-Request-Id": "of-messages"}
    with chat_server.http.stream("POST", MESSAGES, json=body, headers=named) as reply:
        parts = reply.iter_bytes()
        got = next(parts)
        assert chat_server.post("/v1/requests/of-messages/cancel").status_code == 200
        got += b"".join(parts)
    found = events(got)
    assert found[0]["type"] == "message_start"
    assert [event["type"] for event in found if event["type"] in ("error", "message_stop")] == ["error"]
    assert found[-1]["type"] == "error" and found[-1]["request_id"] == "of-messages"


@threads
def test_a_stream_that_waits_has_pings(server_factory):
    server = server_factory(max_running=1, chat_template=harness.ROOT / "tests/clients/chat.jinja")
    body = {"messages": [user("hi")], "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with server.connect() as first, server.connect() as waits:
        first.sendall(harness.request_bytes(MESSAGES, body))
        first.recv(100)
        waits.sendall(harness.request_bytes(MESSAGES, {**body, "max_tokens": 2}))
        wait_until(lambda: server.metric("regla_requests_waiting") == 1, "it waits")
        waits.shutdown(socket.SHUT_WR)
        reply = harness.RawReply(waits)
        status = reply.head()[0]
        if status == 100:  # asked whether it has left (test_half_close.py)
            status = reply.head()[0]
        assert status == 200
        chunks = reply.chunks()
        got = next(chunks)
        # What was read from the cache is not known yet.
        assert [event["type"] for event in events(got)] == ["message_start", "ping"]
        assert "cache_miss_reason" not in events(got)[0]["message"]["usage"]
        first.close()
        found = events(got + b"".join(chunks))
    assert gathered(found)["stop_reason"] == "max_tokens"


@pytest.mark.long
@pytest.mark.builds("dev")
def test_no_stream_is_silent_for_ten_seconds(server_factory):
    """In the queue, where no token comes: each kind of stream says that it goes on."""
    server = server_factory(max_running=1, chat_template=harness.ROOT / "tests/clients/chat.jinja")
    body = {"messages": [user("hi")], "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}
    kinds = [("/v1/completions", {"prompt": "x", "stream": True}, [":\n\n"]), (CHAT, body, [":\n\n"]),
             (MESSAGES, body, ["event: message_start\n", "event: ping\n"]),
             ("/v1/responses", {"input": "hi", "max_output_tokens": 100_000, "stream": True},
              ["event: response.created\n", "event: response.in_progress\n"])]
    with server.connect() as first, contextlib.ExitStack() as stack:
        first.sendall(harness.request_bytes(MESSAGES, body))
        first.recv(100)
        waiting, began = [], time.monotonic()
        for path, asked, _ in kinds:
            waiting.append(stack.enter_context(server.connect()))
            waiting[-1].settimeout(12)
            waiting[-1].sendall(harness.request_bytes(path, asked))
        for connection, (_, _, texts) in zip(waiting, kinds, strict=True):
            reply = harness.RawReply(connection)
            assert reply.head()[0] == 200
            chunks = reply.chunks()
            assert [next(chunks).decode().startswith(text) for text in texts] == [True] * len(texts)
        assert 7 < time.monotonic() - began < 10


# What is left aside

@pytest.mark.parametrize("fields, warning", [
    ({"tools": [{**TOOL, "strict": True}]}, "tools: strict of a tool"),
    ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools: input_examples of a tool"),
    ({"thinking": {"type": "adaptive", "display": "highlights"}},
     'thinking.display: "highlights" is not known here'),
    ({"output_config": {"task_budget": {}}}, "output_config.task_budget: no field that is known here"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
     "context_management: nothing is cleared here"),
    ({"messages": [assistant({"type": "redacted_thinking", "data": "x"}, text("a")), user("b")]},
     "messages: 1 of redacted_thinking"),
    ({"frobnicate": 7}, "frobnicate: no field that is known here"),
])
def test_warnings(chat_server, fields, warning):
    for ask in (said, streamed):
        told, = ask(chat_server, **fields)["warnings"]
        assert told.startswith(warning)
    before = chat_server.metric("regla_warnings_total")
    assert chat_server.post(MESSAGES, {"messages": [user("hi")], "max_tokens": 1, **fields}).headers[
        "x-regla-warning"].startswith(warning)
    chat_server.wait_metric(before + 1, "regla_warnings_total")


@pytest.mark.parametrize("fields, warning", [
    ({"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}, "tools: 1 are left out"),
    ({"thinking": {"type": "disabled"}}, "thinking.type: the model's chat template has no place"),
    ({"output_config": {"effort": "high"}}, "output_config.effort: the model's chat template has no place"),
])
def test_what_agents_always_say(chat_server, fields, warning):
    """The header has it, and the log once."""
    for stream in (False, True):
        body = {"messages": [user("hi")], "max_tokens": 1, "stream": stream, **fields}
        before = chat_server.metric("regla_warnings_total")
        reply = chat_server.post(MESSAGES, body)
        assert reply.headers["x-regla-warning"].startswith(warning)
        assert warning.encode() not in reply.content and b"warnings" not in reply.content
        chat_server.wait_metric(before + 1, "regla_warnings_total")
        chat_server.wait_logged(f"id={reply.headers['x-request-id']}")
    line = re.escape(reply.headers["x-regla-warning"]) + ".*said once for each API key"
    assert len(re.findall(line, chat_server.whole_log())) == 1


def test_what_is_harmless(chat_server):
    plain = said(chat_server)
    reply = said(chat_server, metadata={"user_id": "{}"}, service_tier="auto", mcp_servers=[], container=None,
                 cache_control={"type": "ephemeral"}, thinking={"type": "adaptive", "display": "summarized"},
                 context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, tools=[])
    assert reply["content"] == plain["content"] and "warnings" not in reply
