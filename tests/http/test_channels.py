# SPDX-License-Identifier: Apache-2.0
"""gpt-oss's replies in channels (harmony): reasoning, content and calls apart in all three APIs, whole and
streamed; demanded calls, forms, a budget for thoughts, sessions; by a model that recites (recital.py), and
by a small gpt_oss with random weights, whose calls and forms meet their schemas all the same."""

import json
import shutil

import pytest
from recital import TEMPLATES, Recital
from test_chat_tools import FORMATS, Reciting, calls_of, functions_of, gathered, is_json
from test_messages import events
from test_messages import gathered as gathered_message

from harmony_texts import ANALYSIS, ARGUMENTS, CALLED, FINAL, GIVEN, MARKERS, NEXT, ROLE, TEXTS, THOUGHT

from harness import GOLDEN

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

WEATHER = {"type": "object", "required": ["city", "days"], "additionalProperties": False, "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "time", "parameters": {
             "type": "object", "properties": {}}}}]
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": WEATHER}}
NUMBERS = {name: number for number, name in enumerate(TEXTS)}
FORMATS_NAME = "harmony"


@pytest.fixture(scope="module")
def reciting(tmp_path_factory):
    from conftest import finish
    FORMATS[FORMATS_NAME] = ("harmony", dict.fromkeys(MARKERS, True))
    running = Reciting(tmp_path_factory.mktemp("channels"), FORMATS_NAME,
                       [text for text, *_ in TEXTS.values()])
    del FORMATS[FORMATS_NAME]
    yield running
    finish(running.server)


def ask(running, name, **fields):
    """Whole; the stream says the same."""
    reply = running.ask(NUMBERS[name], **fields).json()
    whole = reply["choices"][0]
    message, reason, usage = gathered(running.ask(NUMBERS[name], stream=True, **fields,
                                                  stream_options={"include_usage": True}))
    assert message["content"] == (whole["message"]["content"] or "")
    assert message["reasoning_content"] == whole["message"].get("reasoning_content", "")
    assert functions_of(message) == functions_of(whole["message"])
    assert reason == whole["finish_reason"]
    cached = {"prompt_tokens_details": None}
    assert usage | cached == reply["usage"] | cached
    return {**whole, "thoughts": usage["completion_tokens_details"]["reasoning_tokens"]}


@pytest.mark.parametrize("name", TEXTS)
def test_apart(reciting, name):
    text, reasoning, content, calls = TEXTS[name]
    choice = ask(reciting, name, tools=TOOLS)
    message = choice["message"]
    assert message.get("reasoning_content", "") == reasoning
    assert (message["content"] or "") == content
    assert calls_of(message) == calls
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    thoughts = len(Recital(dict.fromkeys(MARKERS, True)).encode(text[:text.rfind(NEXT) + len("<|end|>")]))
    assert choice["thoughts"] == (thoughts if name in ("thinks", "calls", "json", "budget") else
                                  choice["thoughts"] if reasoning else 0)


def body_of(reciting, name):
    """A request of the chat API whose reply is that text."""
    return json.loads(reciting.ask(NUMBERS[name], tools=TOOLS).request.content)


def blocks_of(message):
    return [(block["type"], block.get("thinking") or block.get("text") or block.get("input"))
            for block in message["content"]]


def test_messages(reciting):
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
             for tool in TOOLS]
    for name in ("thinks", "calls", "preamble"):
        messages = body_of(reciting, name)["messages"]
        body = {"messages": messages, "tools": tools, "max_tokens": 1000, "temperature": 0}
        whole = reciting.server.post("/v1/messages", body).json()
        streamed = gathered_message(events(reciting.server.post(
            "/v1/messages", {**body, "stream": True}).content))
        _, reasoning, content, calls = TEXTS[name]
        wanted = [("thinking", reasoning)] + [("text", content)] * bool(content) + [
            ("tool_use", given) for _, given in calls]
        assert blocks_of(whole) == blocks_of(streamed) == wanted
        assert whole["stop_reason"] == ("tool_use" if calls else "end_turn")


def test_responses(reciting):
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    for name in ("thinks", "calls", "preamble"):
        said = body_of(reciting, name)["messages"]
        body = {"input": said, "tools": tools, "max_output_tokens": 1000, "temperature": 0}
        reply = reciting.server.post("/v1/responses", body)
        assert reply.status_code == 200, reply.text
        frames = [json.loads(line.removeprefix("data: ")) for line in reciting.server.post(
            "/v1/responses", {**body, "stream": True}).text.splitlines() if line.startswith("data: {")]
        _, reasoning, content, calls = TEXTS[name]
        for items in (reply.json()["output"], frames[-1]["response"]["output"]):
            assert items[0]["type"] == "reasoning" and items[0]["content"][0]["text"] == reasoning
            told = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
            assert told == [content] * bool(content)
            called = [(item["name"], json.loads(item["arguments"])) for item in items
                      if item["type"] == "function_call"]
            assert called == calls


def test_cut_off(reciting):
    """By max_tokens: no word of a head is content, and no call is whole that is not."""
    text, reasoning, content, _ = TEXTS["preamble"]
    for length in range(1, len(Recital(dict.fromkeys(MARKERS, True)).encode(text)) - 1, 3):
        choice = ask(reciting, "preamble", tools=TOOLS, max_tokens=length)
        message = choice["message"]
        assert choice["finish_reason"] == "length"
        assert reasoning.startswith(message.get("reasoning_content", ""))
        assert content.startswith(message["content"] or "")
        assert not any(is_json(function["arguments"]) for function in functions_of(message)) or length > 130


def test_without_tools(reciting):
    message = ask(reciting, "calls")["message"]
    assert message["content"] == ARGUMENTS and "tool_calls" not in message


def test_demanded_as_the_model_writes_them(reciting):
    for name in ("calls", "only"):
        free = ask(reciting, name, tools=TOOLS, return_token_ids=True)
        demanded = ask(reciting, name, tools=TOOLS, tool_choice="required", return_token_ids=True)
        assert demanded["message"] | {"tool_calls": None} == free["message"] | {"tool_calls": None}
        assert calls_of(demanded["message"]) == CALLED and demanded["finish_reason"] == "tool_calls"
        assert demanded["token_ids"][:-1] == free["token_ids"][:len(demanded["token_ids"]) - 1]


def test_forms(reciting):
    for fields in ({"response_format": FORM}, {"response_format": FORM, "tools": TOOLS},
                   {"response_format": {"type": "json_object"}}):
        choice = ask(reciting, "json", **fields)
        assert choice["message"]["reasoning_content"] == "JSON."
        assert json.loads(choice["message"]["content"]) == GIVEN
    choice = ask(reciting, "calls", response_format=FORM, tools=TOOLS)
    assert calls_of(choice["message"]) == CALLED
    choice = ask(reciting, "answers", guided_choice=["Yes.", "No."])
    assert choice["message"]["content"] == "Yes." and "reasoning_content" not in choice["message"]


def test_a_budget_for_thoughts(reciting):
    """Then the message ends and another must follow: the recital goes on within it."""
    for budget in (0, 1, 7, len(THOUGHT) - 1):
        choice = ask(reciting, "budget", thinking_token_budget=budget)
        assert choice["message"].get("reasoning_content", "") == THOUGHT[:budget]
        assert choice["message"]["content"].endswith("Yes, it is so.")
    for budget in (len(THOUGHT) + 3, 500):
        choice = ask(reciting, "budget", thinking_token_budget=budget)
        assert choice["message"]["reasoning_content"] == THOUGHT
        assert choice["message"]["content"] == "Yes, it is so."
    for budget in (len("So.") + 2, len(ARGUMENTS)):  # a call is none of them, whatever its channel
        message = ask(reciting, "aside", thinking_token_budget=budget, tools=TOOLS)["message"]
        assert message["reasoning_content"] == "So." and calls_of(message) == CALLED
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a"]}}}
    for fields in ({"response_format": form}, {"response_format": form, "tools": TOOLS}):
        message = ask(reciting, "budget", thinking_token_budget=3, **fields)["message"]
        assert message["content"] == '"a"' and message["reasoning_content"] == THOUGHT[:3]


def written(server, messages, **fields):
    reply = server.post("/tokenize", {"messages": messages, **fields})
    assert reply.status_code == 200, reply.text
    return server.post("/detokenize", {"tokens": reply.json()["tokens"]}).json()["prompt"]


def test_back_as_messages(reciting):
    """Also a text beside a thought and a call, which the template refuses together."""
    for name, thought in (("calls", "I need it."), ("preamble", "So.\n\nI look.")):
        message = ask(reciting, name, tools=TOOLS)["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "4"}
        text = written(reciting.server, [{"role": "user", "content": "q"}, message, result], tools=TOOLS)
        assert text.endswith(
            f"{ANALYSIS}{thought}{NEXT} {ROLE}{ARGUMENTS}<|call|><|start|>functions.weather to=assistant"
            '<|channel|>commentary<|message|>"4"<|end|><|start|>assistant')


def test_in_a_session(reciting):
    """Whose replies are kept as they were written, which the template refuses as a content."""
    for name in ("thinks", "calls"):
        fields = {"session_id": f"s-{name}", "tools": TOOLS}
        first = reciting.message(NUMBERS[name], **fields)["message"]
        said = {"role": "user", "content": "And now?"}
        if name == "calls":
            said = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "4"}
        reply = reciting.server.post("/v1/chat/completions", {"messages": [said], "max_tokens": 1, **fields})
        assert reply.status_code == 200, reply.text


def test_a_text_goes_on(reciting):
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": "Yes"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    text = written(reciting.server, messages, **fields)
    assert text.endswith(f"{FINAL}Yes")
    reply = reciting.server.post("/v1/chat/completions", {
        "messages": messages, **fields, "guided_choice": [" and no"], "temperature": 0})
    assert reply.json()["choices"][0]["message"]["content"] == " and no"


def test_reasoning_off(tmp_path):
    from conftest import finish
    FORMATS[FORMATS_NAME] = ("harmony", dict.fromkeys(MARKERS, True))
    running = Reciting(tmp_path, FORMATS_NAME, [TEXTS["calls"][0]], reasoning="off")
    del FORMATS[FORMATS_NAME]
    try:
        message = running.message(0, tools=TOOLS)["message"]
        assert message["content"] == f"{ANALYSIS}I need it.<|end|>" and "reasoning_content" not in message
        assert calls_of(message) == CALLED
    finally:
        finish(running.server)


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory):
    """A small gpt_oss with a tokenizer that has the channels' tokens."""
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("gpt-oss")
    shutil.copytree(GOLDEN / "experts_gpt_oss", folder / "model")
    Recital(dict.fromkeys(MARKERS, True)).write_tokenizer(folder / "model" / "tokenizer.json")
    shutil.copyfile(TEMPLATES / "harmony.jinja", folder / "model" / "chat_template.jinja")
    server = start(folder, model=folder / "model")
    yield server
    finish(server)


def test_random_weights_meet_schemas(random_weights):
    """What they think is noise, too, and a budget ends it."""
    said = {"messages": [{"role": "user", "content": "q"}], "max_tokens": 400, "thinking_token_budget": 12}
    tools = [{"type": "function", "function": {"name": "pick", "parameters": {
        "type": "object", "required": ["n"], "additionalProperties": False,
        "properties": {"n": {"enum": [1, 22, 333]}, "flag": {"type": "boolean"}}}}}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": tools[0]["function"]["parameters"]}}
    thought = 0
    for seed in range(6):
        for fields in ({"tools": tools, "tool_choice": "required"}, {"response_format": form},
                       {"response_format": form, "tools": tools}):
            reply = random_weights.post("/v1/chat/completions", {**said, **fields, "seed": seed})
            assert reply.status_code == 200, reply.text
            choice = reply.json()["choices"][0]
            calls = calls_of(choice["message"])
            given = calls[0][1] if calls else json.loads(choice["message"]["content"])
            assert given["n"] in (1, 22, 333) and given.get("flag", True) in (True, False)
            assert bool(calls) == ("tool_choice" in fields) or "tools" in fields
            thought += "reasoning_content" in choice["message"]
    assert thought > 0


def test_metrics_count_experts(random_weights):
    """A step of one text reads two experts in each of two layers, its prompt's up to all five."""
    before = random_weights.metric("regla_experts_read_total")
    reply = random_weights.post("/v1/completions", {"prompt": "abc", "max_tokens": 9, "ignore_eos": True})
    assert reply.status_code == 200, reply.text
    grown = random_weights.metric("regla_experts_read_total") - before
    assert 8 * 4 + 4 <= grown <= 8 * 4 + 10
