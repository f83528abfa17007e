# SPDX-License-Identifier: Apache-2.0
"""The tools of POST /v1/responses, and the calls in its replies."""

import json

import pytest
from responses_helpers import (CUSTOM, LARK, RESPONSES, SPACE, TOOL, bare, calls_of, counted,
                               custom, events, patch, said, streamed, text_of, user)
from test_chat_tools import FORMATS, Conversation, Reciting

pytestmark = pytest.mark.builds("dev", "asan")  # TSan: the streams of test_messages.py


@pytest.mark.parametrize("ours, schema", [
    (custom("lark", LARK), {"description": f"Text of this Lark grammar:\n{LARK}",
                            "pattern": '^(?:(?:(?:(?:ab)|(?:c\\")){2,2}(?:\\n)))$'}),
    ({**CUSTOM, "format": {"type": "text"}}, {}),
    ({**CUSTOM, "format": None}, {}),
    (custom("lark", "start: x\nx: x"), {"description": "Text of this Lark grammar:\nstart: x\nx: x"}),
    (custom("regex", "(?<=a)b"), {"description": "Text of this regular expression:\n(?<=a)b"}),
])
def test_what_the_model_sees_of_a_custom_tool(chat_server, ours, schema):
    theirs = chat_server.post("/tokenize", {"messages": [user("hi")], "tools": [patch(**schema)]}).json()
    assert counted(chat_server, input="hi", tools=[ours])["input_tokens"] == theirs["count"]


def test_what_is_allowed_is_what_the_model_sees(chat_server):
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]}
    both = counted(chat_server, input="hi", tools=[TOOL, SPACE])["input_tokens"]
    one = counted(chat_server, input="hi", tools=[TOOL, SPACE], tool_choice=allowed)["input_tokens"]
    assert both > one == counted(chat_server, input="hi", tools=[SPACE])["input_tokens"]


@pytest.mark.parametrize("choice, names", [
    ("required", {("weather", None), ("find", "maps"), ("patch", None)}),
    ({"type": "function", "name": "weather"}, {("weather", None)}),
    ({"type": "function", "name": "find"}, {("find", "maps")}),
    ({"type": "function", "name": "find", "namespace": "maps"}, {("find", "maps")}),
    ({"type": "custom", "name": "patch"}, {("patch", None)}),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
     {("patch", None)}),
])
def test_demanded_calls(chat_server, choice, names):
    fields = {"tools": [TOOL, SPACE, CUSTOM], "tool_choice": choice, "max_output_tokens": 600,
              "temperature": 1, "seed": 1}
    whole = said(chat_server, **fields)
    assert bare(streamed(chat_server, **fields)) == bare(whole)
    calls = calls_of(whole)
    assert calls and len({item["call_id"] for item in calls}) == len(calls)
    for item in calls:
        assert (item["name"], item.get("namespace")) in names
        if item["type"] == "function_call":
            assert json.loads(item["arguments"])["city"] in ("Oslo", "Rome") and item["status"] == "completed"
        else:
            assert item["input"] in ("abab\n", 'abc"\n', 'c"ab\n', 'c"c"\n') and item["name"] == "patch"
    one = said(chat_server, **fields, parallel_tool_calls=False)
    assert len(calls_of(one)) == 1


def test_arguments_come_in_parts(chat_server):
    reply = chat_server.post(RESPONSES, {
        "input": "hi", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 600, "temperature": 1,
        "seed": 1, "parallel_tool_calls": False, "stream": True})
    parts = [event["delta"] for event in events(reply.content) if event["type"].endswith("arguments.delta")]
    assert len(parts) > 3 and json.loads("".join(parts))["city"] in ("Oslo", "Rome")


@pytest.mark.builds("dev")
def test_a_grammar_in_lark_is_kept_to(chat_server):
    fields = {"tools": [custom("lark", LARK)], "tool_choice": "required", "parallel_tool_calls": False,
              "max_output_tokens": 600, "temperature": 1}
    texts = {calls_of(said(chat_server, **fields, seed=seed))[0]["input"] for seed in range(8)}
    assert len(texts) > 1 and texts <= {"abab\n", 'abc"\n', 'c"ab\n', 'c"c"\n'}


def test_a_call_that_is_cut_is_none(chat_server):
    """What a stream has told of it is not done."""
    for most in (30, 60, 90):
        for ask in (said, streamed):
            cut = ask(chat_server, tools=[TOOL], tool_choice="required", max_output_tokens=most)
            assert (cut["output"], cut["status"]) == ([], "incomplete")


def parts_of(response):
    """(thoughts, text, calls) of a reply."""
    return ([item["content"][0]["text"] for item in response["output"] if item["type"] == "reasoning"],
            text_of(response), [(c["name"], json.loads(c["arguments"])) for c in calls_of(response)])


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
    tools = [{"type": "function", **function["function"]} for function in wanted.tools]
    fields = {"input": chat["messages"], "tools": tools, "max_output_tokens": 1000}
    whole, stream = said(reciting.server, **fields), streamed(reciting.server, **fields)
    thoughts = [wanted.reasoning] if wanted.reasoning else []
    calls = [] if wanted.broken else wanted.calls
    assert calls_of(whole) == [] if wanted.broken else parts_of(whole) == (thoughts, wanted.content, calls)
    assert bare(stream) == bare(whole) and whole["status"] == "completed"
    assert whole["usage"]["output_tokens_details"] == stream["usage"]["output_tokens_details"]
    assert bool(thoughts) <= (whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0)
    bare_id = whole["id"].removeprefix("resp_")
    assert [item["call_id"] for item in calls_of(whole)] == [
        f"call_{bare_id}_{i}" for i in range(len(calls))]
    hidden = said(reciting.server, **fields, include_reasoning=False)
    rest = [item["type"] for item in whole["output"] if item["type"] != "reasoning"]
    assert [item["type"] for item in hidden["output"]] == (rest or ["message"])


def test_many_tools(chat_server):
    """They are read in time that grows with their number."""
    tools = [{"type": "custom", "name": f"c{i}"} for i in range(5000)]
    tools.append({**SPACE, "tools": [{"type": "function", "name": f"f{i}"} for i in range(5000)]})
    allowed = [{"type": "custom", "name": f"c{i}"} for i in range(4999)] + [
        {"type": "function", "name": f"f{i}"} for i in range(5000)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    few = {"type": "allowed_tools", "mode": "auto", "tools": allowed[:1]}
    count = counted(chat_server, input="hi", tools=tools, tool_choice=few)["input_tokens"]
    assert count == counted(chat_server, input="hi", tools=tools[:1])["input_tokens"]
    assert counted(chat_server, input="hi", tools=tools, tool_choice=choice)["input_tokens"] > 100_000
