# SPDX-License-Identifier: Apache-2.0
"""Tools with defer_loading in POST /v1/messages: the model sees each where a message refers to it."""

import json

import harness
import pytest
from messages_helpers import (CALL, CALLED, CHAT, COUNT, FUNCTION, TOOL, assistant, prompt_tokens, result,
                              said, text, user)

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

CLOCK = {"name": "clock", "description": "Of a city.", "input_schema": {
    "type": "object", "properties": {"hour": {"type": "integer", "minimum": 10, "maximum": 20}},
    "required": ["hour"], "additionalProperties": False}}
LATER = {**CLOCK, "defer_loading": True}
OTHER = {**LATER, "name": "other"}
AS_TEXT = json.dumps({"type": "function", "function": {
    "name": "clock", "description": "Of a city.", "parameters": CLOCK["input_schema"]}},
    separators=(",", ":"))
FOUND = {"type": "tool_reference", "tool_name": "clock"}
ASKED = [user("hi"), assistant(CALL)]


def count(server, **fields):
    reply = server.post(COUNT, {"messages": [user("hi")], **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()["input_tokens"]


def test_it_is_not_in_the_prompt(chat_server):
    plain = count(chat_server, tools=[TOOL])
    assert count(chat_server, tools=[LATER, TOOL, OTHER]) == plain < count(chat_server, tools=[CLOCK, TOOL])
    reply = said(chat_server, tools=[LATER, TOOL])
    assert "warnings" not in reply and prompt_tokens(reply["usage"]) == plain


def test_who_sends_its_mark(chat_server):
    """A client of chats takes no tool out of the prompt by it."""
    body = {"messages": [user("hi")], "tools": [FUNCTION, {**FUNCTION, "shown by a message": True}]}
    for path in (CHAT, "/tokenize", "/apply-template"):
        error = harness.check_error(chat_server.post(path, {**body, "max_tokens": 1}), 400,
                                    "unsupported_parameter", "tools")
        assert error["message"].startswith('tools[1]: "shown by a message"')


def test_whom_nobody_could_find(chat_server):
    """All of them, or beside a search that the server does not carry out: they are as others."""
    assert count(chat_server, tools=[LATER, OTHER]) == count(
        chat_server, tools=[CLOCK, {**CLOCK, "name": "other"}])
    hosted = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert count(chat_server, tools=[hosted, LATER, TOOL]) == count(chat_server, tools=[CLOCK, TOOL])


@pytest.mark.parametrize("content, told", [
    ([FOUND], AS_TEXT), ([text("Found:"), FOUND, text("One.")], f"Found:\n{AS_TEXT}\nOne."),
    ([FOUND, FOUND], f"{AS_TEXT}\n[tool_reference: clock]")])
def test_a_message_shows_it(chat_server, content, told):
    reply = said(chat_server, tools=[LATER, TOOL, OTHER], messages=[*ASKED, user(result(1, content))])
    chat = [user("hi"), {**assistant(""), "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": told}]
    theirs = chat_server.post(CHAT, {"messages": chat, "max_tokens": 8, "temperature": 0,
                                     "tools": [FUNCTION]}).json()
    assert reply["content"] == [text(theirs["choices"][0]["message"]["content"])]
    assert theirs["usage"]["prompt_tokens"] == prompt_tokens(reply["usage"])
    assert theirs["usage"]["prompt_tokens_details"]["cache_miss_reason"] == "none"


def test_the_prefix_stays(chat_server):
    """Wherever in the list the client puts what was found."""
    fields = {"system": "Here the prefix stays."}
    before = said(chat_server, **fields, tools=[TOOL, OTHER], messages=ASKED[:1])
    after = said(chat_server, **fields, tools=[LATER, TOOL, OTHER], messages=[
        *ASKED, user(result(1, [FOUND]))])["usage"]
    assert after["cache_read_input_tokens"] >= prompt_tokens(before["usage"]) - 1


@pytest.mark.parametrize("template", ["hermes", "qwen_xml"])
def test_which_can_be_demanded(server_factory, template):
    """What was found, with the types of its parameters; else only by name."""
    server = server_factory(chat_template=harness.ROOT / f"tests/data/chat/{template}.jinja", reasoning="off")

    def called(choice, messages, tools):
        for seed in range(3):
            reply = said(server, tools=tools, tool_choice=choice, messages=messages, max_tokens=400,
                         temperature=1, seed=seed)
            yield from (block for block in reply["content"] if block["type"] == "tool_use")
    found = [*ASKED, user(result(1, [FOUND]))]
    unseen = [{**TOOL, "name": "other", "defer_loading": True}, TOOL, LATER]
    assert {block["name"] for block in called({"type": "any"}, ASKED[:1], unseen)} == {"weather"}
    for messages in found, ASKED[:1]:
        calls = list(called({"type": "tool", "name": "clock"}, messages, unseen))
        assert calls and {block["name"] for block in calls} == {"clock"}
        assert all(10 <= block["input"]["hour"] <= 20 for block in calls)
