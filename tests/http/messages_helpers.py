# SPDX-License-Identifier: Apache-2.0
"""Requests of /v1/messages, and what its replies and streams must be, whatever is in them."""

import json

import contract
import harness

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
