# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses and /v1/responses/input_tokens: what replies say of their request, how they end,
and what is refused or left aside. The reply is the chat's, in the shape of OpenAI's Responses API."""

import json

import harness
import pytest
from harness import check_error
from responses_helpers import (CHAT, COUNT, CUSTOM, HOSTED, RESPONSES, SPACE, TEMPLATE, TOOL, bare, events,
                               call, custom, message, output, part, said, streamed, text_of,
                               thought, user)

pytestmark = pytest.mark.builds("dev", "asan")  # TSan: the streams of test_messages.py


# Replies

def test_what_a_reply_says_again(chat_server):
    given = {"instructions": "Be brief.", "metadata": {"a": "b"}, "prompt_cache_key": "k", "user": "u",
             "safety_identifier": "s", "max_output_tokens": 3, "temperature": 0.7, "top_p": 0.5,
             "parallel_tool_calls": False, "tools": [TOOL, SPACE, CUSTOM], "tool_choice": "none",
             "text": {"format": {"type": "text"}, "verbosity": "low"}, "truncation": "disabled",
             "reasoning": {"effort": None, "summary": "auto"}, "max_tool_calls": 2}
    reply = said(chat_server, **given, store=True, service_tier="flex", client_metadata={"x": 1},
                 prompt_cache_retention="24h", stream_options={"include_obfuscation": False},
                 background=False)
    assert {key: reply[key] for key in given} == given and "warnings" not in reply
    assert (reply["store"], reply["service_tier"], reply["background"]) == (True, "default", False)
    assert (reply["id"][:5], reply["object"], reply["model"]) == ("resp_", "response", chat_server.model_id)
    plain = said(chat_server, temperature=None)
    assert (plain["temperature"], plain["top_p"], plain["max_output_tokens"]) == (1, 1, 8)
    assert (plain["tool_choice"], plain["tools"], plain["parallel_tool_calls"]) == ("auto", [], True)


def test_how_a_text_ends(chat_server):
    whole = said(chat_server, max_output_tokens=30, ignore_eos=True)
    words = text_of(whole)
    assert (whole["status"], whole["completed_at"]) == ("incomplete", None)
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in whole["output"]] == ["incomplete"]
    stop = next(c for c in words if c.isascii() and c.isprintable())
    for ask in (said, streamed):
        ended = ask(chat_server, max_output_tokens=30, ignore_eos=True, stop=[stop])
        assert (ended["status"], ended["incomplete_details"]) == ("completed", None)
        assert ended["completed_at"] >= ended["created_at"]
        assert [item["status"] for item in ended["output"]] == ["completed"]
        assert text_of(ended) == words[:words.index(stop)]  # perhaps none: it is a message all the same


@pytest.mark.builds("dev")
def test_a_text_of_a_format(chat_server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}
    named = {"type": "json_schema", "name": "a", "schema": schema, "strict": True, "description": "A."}
    for kind in (named, {"type": "json_object"}):
        reply = said(chat_server, max_output_tokens=400, temperature=1, seed=3, text={"format": kind})
        assert reply["text"] == {"format": kind}
        theirs = chat_server.post(CHAT, {
            "messages": [user("hi")], "max_tokens": 400, "temperature": 1, "seed": 3, "response_format": {
                "type": kind["type"], **({"json_schema": {"name": "a", "schema": schema}}
                                         if kind is named else {})}}).json()
        assert text_of(reply) == theirs["choices"][0]["message"]["content"]
        if reply["status"] == "completed" and kind is named:
            assert json.loads(text_of(reply))["a"] in (1, 2)


def test_logprobs(chat_server):
    """Those of the chat."""
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, stream = said(chat_server, **fields), streamed(chat_server, **fields)
    assert bare(whole) == bare(stream) and whole["top_logprobs"] == 2
    theirs = chat_server.post(CHAT, {"messages": [user("hi")], "temperature": 0, "max_tokens": 8,
                                     "logprobs": True, "top_logprobs": 2}).json()
    assert whole["output"][0]["content"][0]["logprobs"] == theirs["choices"][0]["logprobs"]["content"]
    assert len(whole["output"][0]["content"][0]["logprobs"]) == 8


@pytest.mark.parametrize("name", [
    "seed", "stop", "min_tokens", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "ignore_eos",
    "structured_outputs", "documents", "chat_template_kwargs", "include_reasoning", "cache_salt", "user",
    "request_id", "priority", "stream", "temperature", "top_p", "top_k", "parallel_tool_calls"])
def test_fields_that_are_as_in_chats(chat_server, name):
    """A wrong value gets the chat's words."""
    for value in (-7.5, [[]]):
        theirs = chat_server.post(CHAT, {"messages": [user("hi")], "max_tokens": 8, name: value})
        ours = chat_server.post(RESPONSES, {"input": "hi", "max_output_tokens": 8, name: value})
        assert ours.status_code == theirs.status_code
        if theirs.status_code == 400:
            assert ours.json() == theirs.json()
            return
    raise AssertionError("it takes anything")


# Errors

BAD = [
    ({"input": None}, "input is required"),
    ({"input": 7}, "input: expected a string or a list of items, got "),
    ({"input": []}, "input: an empty list"),
    ({"input": ["hi"]}, "input: 0: expected an object, got a string"),
    ({"input": [{}]}, "input: 0: type: expected a string, got none"),
    ({"input": [{"type": "message", "content": "a"}]}, "input: 0: role: expected a string, got none"),
    ({"input": [message("tool", "a")]},
     'input: 0: role: expected user, assistant, system or developer, got "tool"'),
    ({"input": [user("a"), {"role": "user"}]},
     "input: 1: content: expected a string or a list of parts, got none"),
    ({"input": [user(7)]}, "input: 0: content: 0: expected an object, got "),
    ({"input": [user(part("a"), {"text": "a"})]}, "input: 0: content: 1: type: expected a string, got none"),
    ({"input": [user(part(None))]}, "input: 0: content: 0: text: expected a string, got null"),
    ({"input": [user({"type": "sound"})]}, 'input: 0: content: 0: the type "sound" is not supported'),
    ({"input": [{"type": "item_reference", "id": "msg_7"}]},
     'input: 0: item_reference is not supported: no items are stored, got "msg_7"'),
    ({"input": [{"id": "msg_7"}]}, "input: 0: item_reference is not supported"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]},
     'input: 0: items of the type "web_search_call" are not supported'),
    ({"input": [output(1, "a")]},
     'input: 0: call_id: expected that of a call before it, got "call_1"'),
    ({"input": [call(1), output(2, "a")]}, "input: 1: call_id: expected that of a call before it"),
    ({"input": [call(1), {**output(1, "a"), "call_id": 1}]}, "input: 1: call_id: expected a string, got "),
    ({"input": [call(1), output(1, None)]}, "input: 1: output: expected a string or a list of parts, got "),
    ({"input": [call(1), output(1, [7])]}, "input: 1: output: 0: expected an object, got "),
    ({"input": [user("a"), call(1)]}, "input: 1: a call: expected its output behind it, got none"),
    ({"input": [call(1, arguments={"a": "b"})]}, "input: 0: arguments: expected a string, got an object"),
    ({"input": [call(1, name=None)]}, "input: 0: name: expected a string, got "),
    ({"input": [call(1, namespace=7)]}, "input: 0: namespace: expected a string, got "),
    ({"input": [{**call(1), "call_id": None}]}, "input: 0: call_id: expected a string, got "),
    ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "b"}]},
     "input: 0: input: expected a string, got none"),
    ({"input": [{"type": "reasoning", "content": "a"}]}, "input: 0: content: expected a list of parts, got "),
    ({"input": [thought(None, summary=[part("a")])]}, "input: 0: summary: 0: type: expected summary_text"),
    ({"input": [thought(None, encrypted_content=7)]}, "input: 0: encrypted_content: expected a string, got "),
    ({"instructions": ["a"]}, "instructions: expected a string, got a list"),
    ({"max_output_tokens": 0}, "max_output_tokens: "),
    ({"max_output_tokens": "8"}, "max_output_tokens: "),
    ({"tools": {}}, "tools: expected a list"),
    ({"tools": [7]}, "tools: 0: a tool: expected an object"),
    ({"tools": [{"name": "a"}]}, "tools: 0: type: expected a string, got none"),
    ({"tools": [{"type": "function"}]}, "tools: 0: name: expected a string, got none"),
    ({"tools": [{"type": "function", "name": "a\0b"}]}, "tools: 0: name: expected no U+0000"),
    ({"tools": [TOOL, {**TOOL, "parameters": 7}]}, "tools: 1: parameters: expected an object"),
    ({"tools": [{**TOOL, "description": 7}]}, "tools: 0: description: expected a string"),
    ({"tools": [{**SPACE, "tools": None}]}, "tools: 0: tools: expected a list, got n"),
    ({"tools": [{**SPACE, "name": None}]}, "tools: 0: name: expected a string"),
    ({"tools": [{**SPACE, "tools": [TOOL, {"type": "function"}]}]}, "tools: 0: tools: 1: name: expected"),
    ({"tools": [TOOL, {**CUSTOM, "name": "weather"}]}, 'tools: 1: name: "weather" is that of another tool'),
    ({"tools": [{**TOOL, "name": "maps__find"}, SPACE]}, 'tools: 1: tools: 0: name: "maps__find" is that of'),
    ({"tools": [SPACE, {**TOOL, "name": "maps__find"}]}, 'tools: 1: name: "maps__find" is that of another'),
    ({"tools": [{**CUSTOM, "format": "text"}]}, "tools: 0: format: expected an object"),
    ({"tools": [{**CUSTOM, "format": {"type": "x"}}]}, "tools: 0: format.type: expected text or grammar"),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "x"}}]}, "tools: 0: format.syntax: "),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}}]},
     "tools: 0: format.definition: "),
    ({"tools": [TOOL], "tool_choice": 7}, "tool_choice: expected a string or an object"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice: expected auto, none, required, or an object"),
    ({"tools": [TOOL], "tool_choice": {}}, "tool_choice.type: expected a string, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name: expected a string, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "b"}},
     'tool_choice.name: expected that of one of tools, got "b"'),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "name": "weather"}},
     "tool_choice.name: expected that"),
    ({"tools": [CUSTOM], "tool_choice": {"type": "function", "name": "patch"}},
     "tool_choice.name: expected that"),
    ({"tools": [HOSTED], "tool_choice": {"type": "web_search"}},
     'tool_choice.type: tools of the type "web_search" are not supported'),
    ({"tools": [HOSTED], "tool_choice": "required"},
     "tool_choice: required: expected tools that can be called, got those of the type web_search"),
    ({"tool_choice": "required"}, "tool_choice: required: expected tools that can be called, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "x", "tools": []}},
     "tool_choice.mode: expected auto or required"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
     "tool_choice.tools: expected a list, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
     "tool_choice: required: expected tools that can be called, got none"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "b"}]}}, "tool_choice.name: expected that of one of tools"),
    ({"text": 7}, "text: expected an object"),
    ({"text": {"format": 7}}, "text.format: expected an object"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type: expected text, json_object or json_schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema: expected an object"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity: expected low, medium or high"),
    ({"reasoning": "high"}, "reasoning: expected an object"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort: expected none, minimal, low, medium, high, xhigh"),
    ({"reasoning": {"summary": 7}}, "reasoning.summary: expected auto, concise or detailed"),
    ({"include": "logprobs"}, "include: expected a list of strings"),
    ({"include": [7]}, "include: expected a list of strings"),
    ({"top_logprobs": 2}, "top_logprobs is only allowed with message.output_text.logprobs in include"),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs: "),
    ({"include": ["message.output_text.logprobs"], "tools": [TOOL]},
     "include: message.output_text.logprobs is not supported beside tools"),
    ({"truncation": "some"}, "truncation: expected auto or disabled"),
    ({"metadata": {"a": 1}}, "metadata.a: expected a string"),
    ({"metadata": []}, "metadata: expected an object"),
    ({"store": "yes"}, "store: "),
    ({"stream_options": True}, "stream_options: expected an object"),
    ({"context_management": {}}, "context_management: expected a list"),
    ({"previous_response_id": 7}, "previous_response_id: expected a string"),
    ({"conversation": "conv_1"}, "conversation is not supported"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt is not supported"),
    ({"background": True}, "background is not supported: use stream"),
    ({"n": 2}, "n is not supported: this is the responses API"),
    ({"messages": []}, "messages is not supported: this is the responses API"),
    ({"max_tokens": 5}, "max_tokens is not supported: this is the responses API"),
    ({"session_id": "a"}, "session_id is not supported"),
    ({"temperature": 3}, "temperature: "),
]


@pytest.mark.parametrize("fields, words", BAD)
def test_bad_input(chat_server, fields, words):
    """The status is one of its own, stream or not."""
    for stream in (False, True):
        body = {"input": "hi", "max_output_tokens": 8, "stream": stream, **fields}
        reply = chat_server.post(RESPONSES, body)
        error = check_error(reply, 400)
        assert error["message"].startswith(words) and error["param"] in words


def test_other_errors(chat_server):
    unknown = chat_server.post(RESPONSES, {"input": "hi", "model": "gpt-9"})
    error = check_error(unknown, 404, "model_not_found")
    assert "hybrid_regla" in error["message"]
    json_type = {"content-type": "application/json"}
    for path in (RESPONSES, COUNT):
        check_error(chat_server.http.post(path, content=b'{"input": [', headers=json_type), 400)
        check_error(chat_server.http.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415)
        check_error(chat_server.post(path, {"input": "hi", "tools": [7]}), 400)
    deep = '{"input": [{"role": "user", "content": ' + "[" * 64 + "]" * 64 + "}]}"
    check_error(chat_server.http.post(RESPONSES, content=deep.encode(), headers=json_type), 400)
    named = chat_server.post(RESPONSES, {"input": "hi"}, headers={"X-Session-Id": "a"})
    check_error(named, 400, "unsupported_parameter", "X-Session-Id")


def test_a_body_that_is_cut_short(chat_server):
    harness.check_cut_short(chat_server, RESPONSES, {"input": "hi", "max_output_tokens": 8, "stream": True})


@pytest.mark.long
@pytest.mark.builds("dev")
def test_ten_thousand_tools_that_are_demanded(chat_server):
    """Are more than a grammar may have, which is said before the prompt is computed."""
    tools = [{**TOOL, "name": f"f{i}"} for i in range(10_000)]
    asked = {"input": "hi", "tools": tools, "tool_choice": "required"}
    error = check_error(chat_server.post(RESPONSES, asked), 400, "unsupported_parameter", "tools")
    assert error["message"].startswith("tool_choice: expected a grammar of at most ")


def test_a_prompt_that_is_too_long(server_factory):
    """In a stream its end tells it: there clients look for it."""
    server = server_factory(max_model_len=64, chat_template=TEMPLATE)
    long = {"input": "x" * 100, "max_output_tokens": 8}
    error = check_error(server.post(RESPONSES, long), 400, "context_length_exceeded")
    many = {"input": "hi", "tools": [{**TOOL, "name": f"f{i}"} for i in range(10_000)]}
    check_error(server.post(RESPONSES, many), 400, "context_length_exceeded")
    failed = streamed(server, **long)
    assert (failed["status"], failed["output"], failed["usage"]) == ("failed", [], None)
    assert failed["error"] == {"code": "context_length_exceeded", "message": error["message"]}
    more = said(server, max_output_tokens=128000, ignore_eos=True)  # as many as there is room for
    assert more["status"] == "incomplete" and more["usage"]["total_tokens"] == 64
    assert said(server, max_output_tokens=None, ignore_eos=True)["usage"]["total_tokens"] == 64


# What is left aside

@pytest.mark.parametrize("fields, warning", [
    ({"tools": [{**TOOL, "strict": True}]}, "tools: strict of a tool"),
    ({"tools": [{**TOOL, "output_schema": {}}]}, "tools: output_schema of a tool"),
    ({"tools": [custom("lark", "start: A")]},
     "tools: 1 custom with a format that is not enforced here, though the model sees it: line 1: expected"),
    ({"tools": [custom("lark", "start: x\nx: x?"), TOOL]}, "tools: 1 custom with a format that is not"),
    ({"tools": [custom("regex", "(?<=a)b")]}, "tools: 1 custom with a format that is not enforced here"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode: no field that is known here"),
    ({"text": {"style": "x"}}, "text.style: no field that is known here"),
    ({"text": {"format": {"type": "text", "x": 1}}}, "text.format.x: no field that is known here"),
    ({"include": ["file_search_call.results"]}, 'include: "file_search_call.results": there is no such'),
    ({"context_management": [{"type": "compaction"}]}, "context_management: nothing is compacted here"),
    ({"stream_options": {"x": 1}}, "stream_options.x: no field that is known here"),
    ({"frobnicate": 7}, "frobnicate: no field that is known here"),
])
def test_warnings(chat_server, fields, warning):
    for ask in (said, streamed):
        told, = ask(chat_server, **fields)["warnings"]
        assert told.startswith(warning)
    before = chat_server.metric("regla_warnings_total")
    assert chat_server.post(RESPONSES, {"input": "hi", "max_output_tokens": 1, **fields}).headers[
        "x-regla-warning"].startswith(warning)
    chat_server.wait_metric(before + 1, "regla_warnings_total")


@pytest.mark.parametrize("fields, warning", [
    ({"tools": [TOOL, HOSTED]}, "tools: 1 are left out, the first of the type \"web_search\""),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort: the model's chat template has no place for it"),
])
def test_what_agents_always_say(chat_server, fields, warning):
    """The header has it, and not the reply."""
    for stream in (False, True):
        body = {"input": "hi", "max_output_tokens": 1, "stream": stream, **fields, "frobnicate": 7}
        reply = chat_server.post(RESPONSES, body)
        unknown = "frobnicate: no field that is known here; it is ignored"
        assert reply.headers["x-regla-warning"].startswith(f"{unknown}; {warning}")
        told = events(reply.content)[-1]["response"] if stream else reply.json()
        assert told["warnings"] == [unknown]
