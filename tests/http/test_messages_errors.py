# SPDX-License-Identifier: Apache-2.0
"""What POST /v1/messages refuses, in Anthropic's shape, and what it takes with a warning."""

import re

import harness
import pytest
from messages_helpers import (CALL, COUNT, JSON, MESSAGES, TOOL, assistant, check_error, prompt_tokens,
                              result, said, streamed, text, user)

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

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


def test_a_body_that_is_cut_short(chat_server):
    body = {"messages": [user("hi")], "max_tokens": 8, "stream": True}
    for path in (MESSAGES, COUNT):
        harness.check_cut_short(chat_server, path, body)


@pytest.mark.long
@pytest.mark.builds("dev")
def test_ten_thousand_tools_that_are_demanded(chat_server):
    """Are more than a grammar may have, which is said before the prompt is computed."""
    tools = [{**TOOL, "name": f"f{i}"} for i in range(10_000)]
    error = check_error(chat_server.post(MESSAGES, {
        "messages": [user("hi")], "max_tokens": 8, "tools": tools, "tool_choice": {"type": "any"}}), 400)
    assert error.startswith("tool_choice: expected a grammar of at most ")


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
