# SPDX-License-Identifier: Apache-2.0
"""What a request says and the server leaves aside is told: `warnings` in the reply or in a stream's
last frame, the header X-Regla-Warning, the log and a metric."""

import json

import openai
import pytest

from harness import RawReply, check_error, read_frames, request_bytes

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

CHAT = "/v1/chat/completions"
PLAIN = "{% for m in messages %}{{ m.content }}\n{% endfor %}"  # takes nothing but messages
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"where": {"type": "string", "format": "uri"}}}}}
HEADER = "X-Regla-Warning"
OOPS = "oops: no field that is known here; it is ignored"
UNSEEN = "the model's chat template has no place for it: the model does not see it"
SMALL = {"prompt": [5, 6], "max_tokens": 2, "ignore_eos": True}
SAY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "ignore_eos": True}
URI = {"type": "string", "format": "uri", "maxLength": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("warnings")
    (folder / "plain.jinja").write_text(PLAIN)
    running = start(folder, chat_template=folder / "plain.jinja")
    yield running
    finish(running)


def told(reply):
    """What it warns of, which its header says too."""
    warnings = reply.json().get("warnings", [])
    assert reply.status_code < 300 and reply.headers.get(HEADER, "") == "; ".join(warnings)
    return warnings


def last_told(reply):
    """The same of a stream, of which the last frame has it."""
    frames = read_frames(reply.content)
    assert not any("warnings" in frame for frame in frames[:-1])
    assert reply.headers.get(HEADER, "") == "; ".join(frames[-1].get("warnings", []))
    return frames[-1].get("warnings", [])


@pytest.mark.builds("dev")
def test_fields_that_nobody_knows(server):
    server.complete(**SMALL, session_id="kept")
    for path, body in (("/v1/completions", SMALL), (CHAT, SAY), ("/tokenize", {"prompt": "x"}),
                       ("/tokenize", {"messages": SAY["messages"]}),
                       ("/detokenize", {"tokens": [5]}),
                       ("/v1/sessions/kept/rewind", {"position": 2}),
                       ("/v1/sessions/kept/fork", {"id": "copy"})):
        before = server.metric("regla_unknown_fields_total")
        reply = server.post(path, {**body, "oops": [{}], "nothing": None})
        assert told(reply) == [OOPS], path
        server.wait_logged(f"id={reply.headers['x-request-id']}", f'warning="{OOPS}"')
        server.wait_metric(before + 1, "regla_unknown_fields_total")
        server.wait_metric(before + 1, "regla_warnings_total", about="field")
        assert server.http.delete("/v1/sessions/copy").status_code in (204, 404)
        assert told(server.post(path, body)) == [], path
    assert server.http.delete("/v1/sessions/kept").status_code == 204


@pytest.mark.parametrize("path, body", [("/v1/completions", SMALL), (CHAT, SAY)])
def test_the_last_frame_has_them(server, path, body):
    for fields in ({}, {"n": 3}, {"stream_options": {"include_usage": True}}, {"max_tokens": 1},
                   {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
        for oops in ({}, {"oops": 1}):
            reply = server.post(path, {**body, "stream": True, **fields, **oops})
            assert last_told(reply) == [OOPS] * len(oops)


@pytest.mark.builds("dev")
def test_openai_clients_read_it(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    fields = {"model": server.model_id, "messages": SAY["messages"], "max_tokens": 2,
              "extra_body": {"oops": 1}}
    assert client.chat.completions.create(**fields).warnings == [OOPS]
    *first, last = client.chat.completions.create(**fields, stream=True)
    assert last.warnings == [OOPS] and last.choices[0].finish_reason == "length"
    raw = client.chat.completions.with_raw_response.create(**fields)
    assert raw.headers[HEADER] == OOPS


def test_what_the_template_does_not_take(server):
    fields = {"tools": [TOOL], "documents": [{"text": "x"}], "reasoning_effort": "low",
              "chat_template_kwargs": {"mood": 1, "messages_seen": 2}}
    expected = [f"{name}: {UNSEEN}" for name in (
        "tools", "documents", "reasoning_effort", "chat_template_kwargs.mood",
        "chat_template_kwargs.messages_seen")]
    before = server.metric("regla_warnings_total", about="template")
    for more in ({}, {"session_id": "kept"}):
        assert told(server.post(CHAT, {**SAY, **fields, **more})) == expected
        assert last_told(server.post(CHAT, {**SAY, **fields, **more, "stream": True})) == expected
    assert told(server.post("/tokenize", {"messages": SAY["messages"], **fields})) == expected
    server.wait_metric(before + 25, "regla_warnings_total", about="template")
    for nothing in ({"tools": [TOOL], "tool_choice": "none"}, {"tools": []}, {"documents": []},
                    {"chat_template_kwargs": {}}, {"reasoning_effort": None}):
        assert told(server.post(CHAT, {**SAY, **nothing})) == [], nothing
    assert server.http.delete("/v1/sessions/kept").status_code == 204


@pytest.mark.builds("dev")
def test_what_the_template_takes(chat_server):
    fields = {"tools": [TOOL], "chat_template_kwargs": {}}
    assert told(chat_server.post(CHAT, {**SAY, **fields})) == []


@pytest.mark.builds("dev")
@pytest.mark.parametrize("function, broken", [
    ({"name": "f", "arguments": '{"a": 1}'}, 0), ({"name": "f"}, 0), ({"name": None, "arguments": {}}, 1),
    ({"name": "f", "arguments": '{"a": "b'}, 1), ({"name": "f", "arguments": "ls -l"}, 1)])
def test_past_calls_that_a_model_left_broken(chat_server, function, broken):
    call = {"role": "assistant", "tool_calls": [{"function": function}]}
    found = told(chat_server.post(CHAT, {**SAY, "messages": [*SAY["messages"], call, *SAY["messages"]]}))
    assert len(found) == broken
    assert all(text.startswith("messages: 1 tool_calls with no name") for text in found)


def test_keywords_that_are_not_enforced(server):
    expected = ["guided_json: keywords of its schema that are not enforced: format, x-"]
    schema = {**URI, "x-order": 1, "description": "d"}
    for _ in range(2):  # compiled, and found compiled
        assert told(server.post("/v1/completions", {**SMALL, "guided_json": schema})) == expected
    assert last_told(server.post("/v1/completions", {
        **SMALL, "guided_json": schema, "stream": True})) == expected
    assert told(server.post("/v1/completions", {**SMALL, "guided_json": {"maxLength": 3}})) == []
    chat = {**SAY, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": URI}}}
    warning, = told(server.post(CHAT, chat))
    assert warning.endswith(": keywords of its schema that are not enforced: format")


@pytest.mark.builds("dev")
def test_errors_have_the_header(server):
    for body in ({**SMALL, "oops": 1, "temperature": -1}, {**SMALL, "oops": 1, "guided_regex": "("}):
        reply = server.post("/v1/completions", body)
        check_error(reply, 400)
        assert reply.headers[HEADER] == OOPS and "warnings" not in reply.json()


@pytest.mark.builds("dev", "asan")
def test_names_are_hostile(server):
    names = ["a\r\nSet-Cookie: b=c\r\n\r\n", "\x01\x7f\x80\x9f", "größe 世界 😀", "", " ",
             "x" * 4_000_000, *map(str, range(30))]
    before = server.metric("regla_unknown_fields_total")
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {**SMALL, **dict.fromkeys(names, 1)}))
        reply = RawReply(connection)
        status, headers = reply.head()
        warnings = json.loads(reply.body(headers))["warnings"]
    header = headers[HEADER.lower()]
    assert status == 200 and header.isascii() and header.isprintable() and len(header) < 1024
    assert "set-cookie" not in headers and header.startswith("a??Set-Cookie: b=c????: no field")
    assert len(warnings) == 17 and "more" in warnings[-1] and max(map(len, warnings)) < 200
    assert warnings[2].startswith("größe 世界 😀: no field")
    server.wait_metric(before + len(names), "regla_unknown_fields_total")


@pytest.mark.builds("dev")
def test_a_repeated_reply_has_the_member(server):
    for stream in (False, True):
        key = {"Idempotency-Key": f"warned-{stream}"}
        first, second = (server.post("/v1/completions", {**SMALL, "oops": 1, "stream": stream},
                                     headers=key) for _ in range(2))
        assert OOPS.encode() in first.content and first.content == second.content
        assert second.headers["Idempotent-Replayed"] == "true" and HEADER not in second.headers
