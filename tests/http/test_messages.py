# SPDX-License-Identifier: Apache-2.0
"""POST /v1/messages and /v1/messages/count_tokens: a request says what a chat says, and the reply is
the chat's, in the shape of Anthropic's API."""

import contextlib
import json
import socket
import threading
import time

import harness
import pytest
from harness import wait_until
from messages_helpers import (CALL, CALLED, CHAT, COUNT, ELSE, FUNCTION, MESSAGES, OTHER, TOOL, assistant,
                              check_error, events, gathered, prompt_tokens, result, said, streamed, text,
                              user)
from test_chat_tools import FORMATS, Conversation, Reciting

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")


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


# Streams

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


def read_on(connection):
    with contextlib.suppress(OSError):  # once it is closed here
        while connection.recv(1 << 16):
            pass


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
        threading.Thread(target=read_on, args=(first,), daemon=True).start()  # else it pauses for the others
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
