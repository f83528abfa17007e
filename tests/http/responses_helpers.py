# SPDX-License-Identifier: Apache-2.0
"""Requests of /v1/responses, and what its replies and streams must be, whatever is in them."""

import json

import contract
import harness
from harness import check_error

RESPONSES, COUNT, CHAT = "/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions"
TEMPLATE = harness.ROOT / "tests/clients/chat.jinja"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}
TOOL = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": SCHEMA,
        "strict": False}
SPACE = {"type": "namespace", "name": "maps", "description": "Of the world.", "tools": [
    {"type": "function", "name": "find", "parameters": SCHEMA}]}
CUSTOM = {"type": "custom", "name": "patch", "description": "Writes.", "format": {
    "type": "grammar", "syntax": "regex", "definition": "(ab|c\"){2}\n"}}
LARK = 'start: ("ab" | "c\\"")~2 LF\n%import common.LF'
HOSTED = {"type": "web_search"}
# Of capitals alone, which the tokenizer makes again of the text.
TURN = {"max_output_tokens": 6, "ignore_eos": True, "temperature": 0,
        "allowed_token_ids": list(range(66, 92))}


def custom(syntax, definition):
    """A custom tool whose text is of a grammar."""
    return {**CUSTOM, "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


def function(name, parameters, description=None):
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


FUNCTION = function("weather", SCHEMA, "Of a city.")
FOUND = function("maps__find", SCHEMA, "Of the world.")


def patch(**schema):
    return function("patch", {"type": "object", "properties": {"input": {"type": "string", **schema}},
                              "required": ["input"], "additionalProperties": False}, "Writes.")


PATCH = patch(pattern="^(?:(ab|c\"){2}\n)$")


def message(role, *content):
    return {"role": role, "content": content[0] if isinstance(content[0], str) else list(content)}


def user(*content):
    return message("user", *content)


def assistant(*content):
    return message("assistant", *content)


def part(words, kind="input_text", **more):
    return {"type": kind, "text": words, **more}


def call(number, name="weather", arguments='{"city": "Oslo"}', **more):
    return {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name,
            "arguments": arguments, **more}


def output(number, words, kind="function_call_output"):
    return {"type": kind, "call_id": f"call_{number}", "output": words}


def thought(words, **more):
    return {"type": "reasoning", "id": "rs_1", "summary": [],
            "content": [part(words, "reasoning_text")] if words else None, **more}


def called(number, name="weather", arguments='{"city": "Oslo"}'):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(number, words):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": words}


def said(server, path=RESPONSES, **fields):
    """The reply to a request that must succeed."""
    reply = server.post(path, {"input": "hi", "temperature": 0, "max_output_tokens": 8, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def counted(server, **fields):
    reply = server.post(COUNT, fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def text_of(response):
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")


def calls_of(response):
    return [item for item in response["output"] if item["type"].endswith("_call")]


def bare(response):
    """Without what differs each time: the id, times, and what was read from the cache."""
    name = response["id"].removeprefix("resp_")
    changing = ("id", "created_at", "completed_at", "usage")
    response = {key: value for key, value in response.items() if key not in changing}
    return json.loads(json.dumps(response).replace(name, "ID"))


def repeats_progress(found, number, first=0):
    """Whether that event is said while nothing else comes; the first event has that number."""
    event = found[number]
    return event["type"] == "response.in_progress" and (
        event["sequence_number"] != 1 or first > 1 or
        any(before["type"] == event["type"] for before in found[:number]))


def events(body, first=0):
    """The events of a stream, whose names are their types, in order from that number on; each as
    openapi.json has it. What is said while nothing else comes has the number of the event before, which
    may be one before the first."""
    assert body.endswith(b"\n\n") and b"\r" not in body
    found, behind = [], first
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}" and data.startswith("data: {")
        repeats, told = repeats_progress(found, len(found) - 1, first), found[-1]["sequence_number"]
        behind += not repeats
        assert told == behind - 1 or (repeats and told < first)
        if harness.CONTRACT:
            contract.check("POST", RESPONSES, {}, None, 200, "text/event-stream",
                           data.removeprefix("data: ").encode(), {})
    return found


TEXT = {"reasoning": "reasoning_text", "message": "output_text"}
CALL = {"function_call": ("function_call_arguments", "arguments"),
        "custom_tool_call": ("custom_tool_call_input", "input")}


def check_item(found):
    """The events of one item: they stand in order, and add up to it."""
    item, last = found[0]["item"], found[-1]["item"]
    assert found[0]["type"].endswith("output_item.added") and found[-1]["type"].endswith("output_item.done")
    assert last["id"] == item["id"]
    inner = found[1:-1]
    assert {event["item_id"] for event in inner} == {item["id"]}
    deltas = "".join(event.get("delta", "") for event in inner)
    if item["type"] in TEXT:
        name = TEXT[item["type"]]
        assert item["content"] == [] and item["status"] == "in_progress"
        assert [event["type"] for event in inner] == [
            "response.content_part.added", *[f"response.{name}.delta"] * (len(inner) - 3),
            f"response.{name}.done", "response.content_part.done"]
        assert inner[0]["part"]["text"] == "" and last["content"] == [inner[-1]["part"]]
        assert deltas == inner[-2]["text"] == inner[-1]["part"]["text"]
        if item["type"] == "message":
            logprobs = [entry for event in inner[1:-2] for entry in event["logprobs"]]
            assert logprobs == inner[-2]["logprobs"] == inner[-1]["part"]["logprobs"]
    else:
        name, member = CALL[item["type"]]
        assert item[member] == "" and last == {**item, member: deltas} | (
            {"status": "completed"} if "status" in item else {})
        assert [event["type"] for event in inner] == [f"response.{name}.delta"] * (len(inner) - 1) + [
            f"response.{name}.done"]
        assert inner[-1][member] == deltas
        assert item["type"] != "function_call" or inner[-1]["name"] == item["name"]
    return last


def gathered(found):
    """The response that a stream's events add up to."""
    first, last = found[0], found[-1]
    assert first["type"] == "response.created" and found[1]["type"] == "response.in_progress"
    assert first["response"]["status"] == "in_progress" and first["response"]["output"] == []
    response = last["response"]
    assert last["type"] == f"response.{response['status'].replace('cancelled', 'incomplete')}"
    told = ("id", "model", "tools", "tool_choice", "instructions", "metadata", "text", "reasoning")
    for event in found:
        if event["type"] == "response.in_progress":
            assert all(event["response"][key] == response[key] for key in told)
    groups = {}
    for event in found[1:-1]:
        if event["type"] != "response.in_progress":
            groups.setdefault(event["output_index"], []).append(event)
    assert list(groups) == list(range(len(groups)))
    done = [group for group in groups.values() if group[-1]["type"] == "response.output_item.done"]
    assert response["output"] == [check_item(group) for group in done]
    for group in groups.values():  # a call that was cut off is never done
        assert group in done or group[0]["item"]["type"] in CALL or response["status"] == "failed"
    return response


def streamed(server, **fields):
    reply = server.post(RESPONSES, {"input": "hi", "temperature": 0, "max_output_tokens": 8, "stream": True,
                                    **fields})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
    found = events(reply.content)
    response = gathered(found)
    if response["store"] and response["status"] != "failed":
        assert told_again(server, response["id"]) == as_kept(found)
    return response


def as_kept(found):
    """The events of a stream as they are told again: without log-probabilities, warnings, and what
    was said while nothing else came."""
    kept = [event for number, event in enumerate(found) if not repeats_progress(found, number)]
    kept = json.loads(json.dumps(kept), object_hook=lambda value: {
        **value, **({"logprobs": []} if "logprobs" in value else {})})
    kept[-1]["response"].pop("warnings", None)
    return kept


def told_again(server, name, after=None, **options):
    """The events of a kept response, behind that number."""
    query = {"stream": "true", **({} if after is None else {"starting_after": after})}
    reply = server.get(f"{RESPONSES}/{name}", params=query, **options)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].split(";")[0] == "text/event-stream"
    return events(reply.content, 0 if after is None else after + 1) if reply.content else []


def path(response, rest=""):
    return f"{RESPONSES}/{response if isinstance(response, str) else response['id']}{rest}"


def get(server, response, status=200, rest="", **options):
    reply = server.get(path(response, rest), **options)
    assert reply.status_code == status, reply.text
    return reply.json()


def unknown(server, response, **options):
    """Nothing is kept of it, whatever is asked."""
    name = response if isinstance(response, str) else response["id"]
    for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        reply = server.http.request(method, path(name, rest), **options)
        error = check_error(reply, 404, "response_not_found", "response_id")
        assert error["message"] == f'there is no response "{name}"'
    for stream in (False, True):
        body = {"input": "hi", "previous_response_id": name, "stream": stream}
        check_error(server.post(RESPONSES, body, **options), 404, "previous_response_not_found",
                    "previous_response_id")
    del body["stream"]
    check_error(server.post(COUNT, body, **options), 404, "previous_response_not_found",
                "previous_response_id")


def name_of(got):
    """Of the response whose stream begins so."""
    return json.loads(got.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]


def items(*exchange):
    """What a conversation of these inputs and responses is when it is sent whole."""
    whole = []
    for part in exchange:
        whole += part["output"] if isinstance(part, dict) else [user(part)] if isinstance(part, str) else part
    return whole


def same_text(response, whole):
    assert text_of(response) == text_of(whole)
    assert response["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def usage(response):
    details = response["usage"]["input_tokens_details"]
    return response["usage"]["input_tokens"], details["cached_tokens"], details["cache_miss_reason"]


def check_goes_on(server, first, words="a", **fields):
    """A response that goes on from that to `words`; its reply is what the conversation gives that is sent
    whole, and all but the new tokens come from a state."""
    second = said(server, **TURN, input="b", previous_response_id=first["id"], **fields)
    assert second["previous_response_id"] == first["id"]
    held = first["usage"]["total_tokens"] - 1  # the last token was drawn, and not computed
    assert usage(second)[1] >= held and usage(second)[2] == "none"
    whole = said(server, **TURN, input=items(words, first, "b"), store=False, **fields)
    same_text(second, whole)
    count = counted(server, input="b", previous_response_id=first["id"], **fields)
    assert count == {"object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"]}
    return second
