# SPDX-License-Identifier: Apache-2.0
"""Each format of tool calls that api.md lists from the table of words (api/chat_words.c): a row of
FORMS. Found whole and streamed, cut off, demanded, beside a response_format, and back as messages; by a
model that recites what a model of that family would write (recital.py)."""

import json
import random

import pytest
from recital import EOS
from test_chat_tools import FORMATS, Conversation, Reciting, calls_of, functions_of, gathered, is_json

pytestmark = pytest.mark.builds("dev", "asan")

NUMBER = 12  # conversations of each
SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
KIMI = [f"<|tool_call{word}|>" for word in (
    "s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")]


def as_json(value):
    return json.dumps(value, ensure_ascii=False)


def as_text(value):
    return value if isinstance(value, str) else as_json(value)


def as_gemma(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{as_gemma(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_gemma, value)) + "]"
    return as_json(value)


def llama(calls):
    return "; ".join(f'{{"name": "{name}", "parameters": {as_json(given)}}}' for name, given in calls)


def llama4(calls):
    return "[" + ", ".join(
        f"{name}({', '.join(f'{key}={as_json(value)}' for key, value in given.items())})"
        for name, given in calls) + "]"


def glm(calls):
    return "\n".join(f"<tool_call>{name}\n" + "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{as_text(value)}</arg_value>\n"
        for key, value in given.items()) + "</tool_call>" for name, given in calls)


def minimax(calls):
    return "<minimax:tool_call>\n" + "".join(f'<invoke name="{name}">\n' + "".join(
        f'<parameter name="{key}">{as_text(value)}</parameter>\n' for key, value in given.items())
        + "</invoke>\n" for name, given in calls) + "</minimax:tool_call>"


def gemma(calls):
    return "".join(f"<|tool_call>call:{name}" + as_gemma(given) + "<tool_call|>" for name, given in calls)


def deepseek(calls):
    return SECTION[0] + "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{as_json(given)}<｜tool▁call▁end｜>"
        for name, given in calls) + SECTION[1]


def dsml(calls):
    return "<｜DSML｜function_calls>\n" + "".join(f'<｜DSML｜invoke name="{name}">\n' + "".join(
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{as_text(value)}</｜DSML｜parameter>\n" for key, value in given.items())
        + "</｜DSML｜invoke>\n" for name, given in calls) + "</｜DSML｜function_calls>"


def fenced(calls):
    return SECTION[0] + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{as_json(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls) + SECTION[1]


def kimi(calls):
    return KIMI[0] + "".join(f"{KIMI[2]}functions.{name}:{i}{KIMI[3]}{as_json(given)}{KIMI[4]}"
                             for i, (name, given) in enumerate(calls)) + KIMI[1]


def mistral(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{as_json(given)}" for name, given in calls)


def mistral_ids(calls):
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]Abc12345{i}[ARGS]{as_json(given)}"
                   for i, (name, given) in enumerate(calls))


DEEPSEEK = dict.fromkeys([*SECTION, "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"], True)
# Of each format: how calls are written, its template, and markers: whether they are special tokens.
FORMS = {
    "Llama 3": (llama, "llama", {"<|python_tag|>": True}),
    "Llama 3, text": (llama, "llama", {}),
    "Llama 4": (llama4, "llama4", {"<|python_start|>": True, "<|python_end|>": True}),
    "GLM 4.5": (glm, "glm", {"<tool_call>": False, "</tool_call>": False, "<arg_key>": False}),
    "GLM 4.5, special": (glm, "glm", dict.fromkeys(["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                                    "<arg_value>", "</arg_value>"], True)),
    "MiniMax M2": (minimax, "minimax", {"<minimax:tool_call>": True, "</minimax:tool_call>": True}),
    "Gemma 4": (gemma, "gemma", dict.fromkeys(
        ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"], True)),
    "Gemma 4, text": (gemma, "gemma", {}),
    "DeepSeek V3.1": (deepseek, "deepseek", DEEPSEEK),
    "DeepSeek V3.1, text": (deepseek, "deepseek", {}),
    "DeepSeek V3": (fenced, "deepseek_fenced", DEEPSEEK),
    "DeepSeek V3.2": (dsml, "deepseek_dsml", {"｜DSML｜": True}),
    "DeepSeek V3.2, text": (dsml, "deepseek_dsml", {}),
    "Kimi K2": (kimi, "kimi", dict.fromkeys(KIMI, True)),
    "Mistral v13": (mistral, "mistral_args", {"[TOOL_CALLS]": True, "[ARGS]": True}),
    "Mistral v11": (mistral_ids, "mistral_ids", dict.fromkeys(["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"], True)),
}
BARE = ("Llama 3", "Llama 4")  # without markers, so that text is not before a call
THOUGHT = "<|channel>thought\nHm, <b.\n<channel|>"  # of Gemma 4
# Whose JSON has no <, which the model cannot recite then.
TAME = ("Llama 4", "GLM", "MiniMax", "Gemma", "DeepSeek V3.2")
WEATHER = {"type": "object", "required": ["city", "days"], "additionalProperties": False, "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}, "tags": {"type": "array"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "time", "parameters": {
             "type": "object", "properties": {}}}}]
GIVEN = [("weather", {"city": "Oslo \"世\"", "days": 3, "tags": [2, [1]]}), ("time", {})]
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
    "a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}}}


class Spoken(Conversation):
    """A conversation of random calls in one of these formats."""

    def __init__(self, form, number):
        write = FORMS[form][0]
        rng = random.Random(f"{form} {number}")
        count = 1 if number % 4 == 0 else rng.randint(1, 3)
        self.calls, self.tools = [], []
        for i in range(count):
            other = Conversation("hermes", rng.randint(0, 99) * 10)  # whose tenth are broken
            arguments = other.calls[0][1]
            tool = json.loads(json.dumps(other.tools[0]))
            tool["function"]["name"] = f"get_{i}"
            if form.startswith("Gemma"):
                arguments = {key: value for key, value in arguments.items() if not odd(value)}
            self.calls.append((f"get_{i}", arguments))
            self.tools.append(tool)
        before = "" if form.startswith(BARE) else rng.choice(["", "Let me see.", "Gleich, 世! <b [T"])
        after = rng.choice(["", "That is it."])
        self.text = before + write(self.calls) + ("\n" + after if after else "")
        self.content = before + ("\n" if before and after else "") + after


def odd(value):
    """Keys that cannot be written without quotes."""
    return isinstance(value, dict) and any(not key.isalnum() for key in value)


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    from conftest import finish
    write, template, markers = FORMS[request.param]
    FORMATS[request.param] = (template, markers)
    spoken = [Spoken(request.param, i) for i in range(NUMBER)]
    texts = [one.text for one in spoken] + [
        write(GIVEN[:1]), write([("weather", {"city": "a", "days": 77})]), write(GIVEN),
        json.dumps({"a": write([("time", {})])}), THOUGHT + write(GIVEN)]
    if template == "minimax":  # whose prompt opens reasoning
        texts = [f"</think>\n\n{text}" for text in texts]
    running = Reciting(tmp_path_factory.mktemp("form"), request.param, texts)
    running.spoken, running.name = spoken, request.param
    del FORMATS[request.param]
    running.fields = {"chat_template_kwargs": {"enable_thinking": False}}
    yield running
    finish(running.server)


def ask(form, number, **fields):
    whole = form.ask(number, **form.fields, **fields).json()["choices"][0]
    message, reason, _ = gathered(form.ask(number, stream=True, **form.fields, **fields))
    assert message["content"] == (whole["message"]["content"] or "")
    assert functions_of(message) == functions_of(whole["message"])
    assert reason == whole["finish_reason"]
    return whole


def test_found_whole_and_streamed(form):
    for number, wanted in enumerate(form.spoken):
        choice = ask(form, number, tools=wanted.tools)
        assert calls_of(choice["message"]) == wanted.calls, number
        assert choice["message"]["content"] == (wanted.content or None), number
        assert choice["finish_reason"] == "tool_calls"


def test_a_cut_call_is_not_delivered(form):
    told = 0
    count = len(form.ask(NUMBER, tools=TOOLS, return_token_ids=True, **form.fields).json()[
        "choices"][0]["token_ids"])
    for length in range(1, count - 1, 6):
        choice = ask(form, NUMBER, tools=TOOLS, max_tokens=length)
        assert choice["finish_reason"] == "length"
        for function in functions_of(choice["message"]):
            whole = is_json(function["arguments"])
            assert not whole or json.loads(function["arguments"]) == GIVEN[0][1]
            told += not whole
    assert told > 0


def test_demanded_as_the_model_writes_them(form):
    """What the template writes is what the grammar admits, token by token."""
    for number, given in ((NUMBER, GIVEN[:1]), (NUMBER + 2, GIVEN)):
        free = ask(form, number, tools=TOOLS, return_token_ids=True)
        if form.name.startswith("Llama 3") and len(given) > 1:  # whose template takes one
            continue
        demanded = ask(form, number, tools=TOOLS, tool_choice="required", return_token_ids=True)
        assert calls_of(demanded["message"]) == given == calls_of(free["message"])
        ids = [one["token_ids"] for one in (demanded, free)]  # a grammar that is at its end needs no EOS
        assert [token for token in ids[0] if token != EOS] == [token for token in ids[1] if token != EOS]
        assert demanded["finish_reason"] == "tool_calls"


def test_demanded_calls_meet_the_schema(form):
    named = {"type": "function", "function": {"name": "weather"}}
    choice = ask(form, NUMBER + 1, tools=TOOLS, tool_choice=named, max_tokens=400)
    assert choice["message"]["content"] is None
    (name, arguments), = calls_of(choice["message"])
    assert name == "weather" and arguments["city"] == "a" and arguments["days"] == 7


def test_a_marker_in_a_text_of_a_format_is_no_call(form):
    choice = ask(form, NUMBER + 3, tools=TOOLS, response_format=FORM, max_tokens=600)
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith('{"a": "')
    if not form.name.startswith(TAME) and not any(FORMS[form.name][2].values()):
        assert choice["finish_reason"] == "stop"
        assert json.loads(choice["message"]["content"]) == {"a": FORMS[form.name][0]([("time", {})])}


def test_the_thought_channel(form):
    """Of Gemma 4 alone; for the others it is content."""
    message = ask(form, NUMBER + 4, tools=TOOLS)["message"]
    if form.name.startswith("Gemma"):
        assert (message["reasoning_content"], message["content"]) == ("Hm, <b.\n", None)
        assert calls_of(message) == GIVEN
    else:
        assert message["content"].startswith(THOUGHT)


def test_back_as_messages(form):
    """With the results; what the template then writes is what the model wrote."""
    number = NUMBER if form.name.startswith("Llama 3") else NUMBER + 2
    given = GIVEN[:1] if number == NUMBER else GIVEN
    message = form.message(number, tools=TOOLS, **form.fields)["message"]
    post = form.server.post
    for change in (lambda name: name, lambda name: f"toolu_{name}"):  # also ids of another server
        calls = [{**call, "id": change(call["id"])} for call in message["tool_calls"]]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "4"} for call in calls]
        history = [{"role": "user", "content": "q"}, {**message, "tool_calls": calls}, *results]
        reply = post("/tokenize", {"messages": history, "tools": TOOLS}).json()
        assert "tokens" in reply, reply
        text = post("/detokenize", {"tokens": reply["tokens"]}).json()["prompt"]
        written = FORMS[form.name][0](given)
        assert written in text or change("") and form.name == "Mistral v11", text
