# SPDX-License-Identifier: Apache-2.0
"""tool_choice that demands calls: models with random weights, and the shipped one, write calls of the
tools whose arguments meet their schemas, in every format, whole and streamed."""

import json
import random

import jsonschema
import numpy as np
import pytest
from constraints import check_json, random_schema
from recital import TEMPLATES, Recital
from test_chat_tools import CHAT, FORMATS, HERMES, OPENS, THINK, calls_of, gathered

import harness
from harness import check_error
from stress_helpers import size

pytestmark = pytest.mark.builds("dev", "asan")

NUMBER = size("CALLS", 20, 4, 200)  # requests of each format
XML = ("qwen",)
PYTHON = ("lfm", "olmo")
ALL = {**FORMATS, "qwen special": ("qwen_xml", dict.fromkeys(HERMES, True)),
       "granite text": ("granite", {}), "nemotron special": ("nemotron", dict.fromkeys(
           ["<TOOLCALL>", "</TOOLCALL>", *THINK], True))}
REFUSED = ("names that this model's calls can have", "expected none here", "what some text can match")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "required": ["city"], "additionalProperties": False, "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}
TIME = {"type": "function", "function": {"name": "time"}}


def write_random(folder, name):
    """A model that writes anything."""
    template, markers = ALL[name]
    recital = Recital(markers)
    return recital.write(folder / "model", template, 9000, np.random.default_rng(len(name))), recital


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [
        {"type": "function", "function": {"name": name}} for name in names]}}


class Writing:
    def __init__(self, folder, name):
        from conftest import start
        self.name = name
        self.kind = next((kind for kind in (XML, PYTHON) if name.split()[0] in kind), None)
        model, self.recital = write_random(folder, name)
        self.server = start(folder, model=model)
        # Reasoning, strings and lists end soon.
        self.bias = {str(self.recital.ids.get(word, 1 + ord(word[0]))): 6
                     for word in ('"', "]", "}", "</think>", "\n")}
        if not self.ends_reasoning():  # it would never end, so <think> is to be unlikely
            self.bias[str(1 + ord("h"))] = -20

    def body(self, seed, tools, choice, **fields):
        kwargs = {} if self.ends_reasoning() else {"enable_thinking": False}
        return {"messages": [{"role": "user", "content": "x"}], "temperature": 1, "seed": seed,
                "max_tokens": 1500, "tools": tools, "tool_choice": choice, "logit_bias": self.bias,
                "chat_template_kwargs": kwargs, **fields}

    def ends_reasoning(self):
        return self.recital.markers.get("</think>") is True

    def ask(self, *given, **fields):
        return self.server.post(CHAT, self.body(*given, **fields))


@pytest.fixture(scope="module", params=ALL)
def writing(request, tmp_path_factory):
    from conftest import finish
    running = Writing(tmp_path_factory.mktemp("writing"), request.param)
    yield running
    finish(running.server)


def functions_of(message):
    """Of all calls, also of one that was cut off."""
    return [call["function"] for call in message.get("tool_calls", [])]


def random_tools(dice):
    tools = []
    for i in range(dice.randint(1, 4)):
        schema = {}
        while schema.get("type") != "object":
            schema = random_schema(dice)
        tools.append({"type": "function", "function": {"name": f"do_{i}", "parameters": schema}})
    return tools


def check_calls(message, tools):
    """Every call is of a tool and its arguments meet its schema."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0})
               for tool in tools}
    calls = message["tool_calls"]
    assert message["content"] is None and 1 <= len(calls) <= 32
    for call in calls:
        assert call["function"]["name"] in schemas, call
        arguments = check_json(call["function"]["arguments"], schemas[call["function"]["name"]])
        assert isinstance(arguments, dict)
    return calls


def test_random_tools(writing):
    """Whole and streamed are equal; nothing but max_tokens cuts a call."""
    done = refused = asked = 0
    for seed in range(4 * NUMBER):
        if seed >= NUMBER and done >= max(1, NUMBER // 4):
            break
        asked += 1
        dice = random.Random(f"{writing.name} {seed}")
        tools = random_tools(dice)
        named = dice.choice(tools)["function"]["name"] if seed % 3 == 2 else None
        choice = {"type": "function", "function": {"name": named}} if named else "required"
        several = seed % 3 == 0
        fields = {} if several else {"parallel_tool_calls": False}
        reply = writing.ask(seed, tools, choice, **fields)
        if reply.status_code == 400:  # a name or a schema that such calls cannot have
            message = reply.json()["error"]["message"]
            assert writing.kind and any(word in message for word in REFUSED), message
            check_error(reply, 400, "unsupported_parameter", "tools")
            refused += 1
            continue
        assert reply.status_code == 200, reply.text
        whole = reply.json()["choices"][0]
        stream, reason, _ = gathered(writing.ask(seed, tools, choice, stream=True, **fields))
        assert stream["content"] == (whole["message"]["content"] or "")
        assert stream["reasoning_content"] == whole["message"].get("reasoning_content", "")
        assert functions_of(stream) == functions_of(whole["message"])
        assert reason == whole["finish_reason"]
        if whole["finish_reason"] == "length":
            continue
        assert whole["finish_reason"] == "tool_calls", whole
        calls = check_calls(whole["message"], tools)
        assert several or len(calls) == 1
        assert not named or {call["function"]["name"] for call in calls} == {named}
        done += 1
    assert done >= max(1, NUMBER // 4), (done, refused, asked)
    # Of a few seeds, which are all that sanitizers have time for, all but one may be refused.
    assert asked < 20 or refused <= asked * 3 // 4, (done, refused, asked)


def test_the_only_way_to_write(writing):
    """A constant is written in full, whatever the markers are."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "required": ["a", "b"], "additionalProperties": False, "properties": {
            "a": {"const": "</parameter>x<" if writing.kind is not XML else "x<y>"},
            "b": {"enum": [[1, {"c": "</parameter>\n</function>"}]]}}}}}]
    message = writing.ask(1, tools, "required", parallel_tool_calls=False).json()["choices"][0]["message"]
    a = tools[0]["function"]["parameters"]["properties"]["a"]["const"]
    assert calls_of(message) == [("f", {"a": a, "b": [1, {"c": "</parameter>\n</function>"}]})]


def test_any_arguments(writing):
    """Objects of any keys, which may come again: the last one counts."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}, TIME]
    done = 0
    for seed in range(NUMBER):
        choice = writing.ask(seed, tools, "required").json()["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        for call in check_calls(choice["message"], tools):
            pairs = json.loads(call["function"]["arguments"], object_pairs_hook=list)
            assert len({key for key, _ in pairs}) == len(pairs)
            done += 1
    assert done > 0


def test_values_behind_references(writing):
    """Optional[IntEnum], as pydantic writes it: each branch may come."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "required": ["x", "y"], "additionalProperties": False,
        "$defs": {"I": {"enum": [7], "type": "integer"}}, "properties": {
            "x": {"$ref": "#/$defs/I"},
            "y": {"anyOf": [{"$ref": "#/$defs/I"}, {"type": "null"}]}}}}}]
    values = set()
    for seed in range(60):
        choice = writing.ask(seed, tools, "required", parallel_tool_calls=False).json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            (_, arguments), = calls_of(choice["message"])
            assert arguments["x"] == 7
            values.add(arguments["y"])
        if len(values) == 2:
            break
    assert values == {7, None}


def test_a_call_that_is_cut_off(writing):
    """No content, and what there is of it; each length goes on with the one before."""
    fields = {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}}
    whole = writing.ask(1, [WEATHER], "required", return_token_ids=True, **fields).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    (function,), told = functions_of(whole["message"]), []
    for length in range(1, len(whole["token_ids"]) - 1, 7):
        reply = writing.ask(1, [WEATHER], "required", **fields | {"max_tokens": length}).json()["choices"][0]
        assert reply["message"]["content"] is None and reply["finish_reason"] == "length"
        told += functions_of(reply["message"])
    assert told and {one["name"] for one in told} == {"weather"}
    if "reasoning_content" not in whole["message"]:
        assert all(function["arguments"].startswith(one["arguments"]) for one in told)


def test_several_choices(writing):
    """Each is calls, or cut; in one reply of ten at least, not all are cut."""
    for seed in range(10):
        choices = writing.ask(seed, [WEATHER, TIME], "required", n=4, logprobs=True).json()["choices"]
        reasons = {choice["finish_reason"] for choice in choices}
        assert reasons <= {"tool_calls", "length"}
        for choice in choices:
            if choice["finish_reason"] == "tool_calls":
                check_calls(choice["message"], [WEATHER, TIME])
        if "tool_calls" in reasons:
            return
    raise AssertionError("all calls were cut")


def test_in_a_session(writing):
    """Whose text is rendered later."""
    for seed in range(3):
        fields = {"session_id": f"s{seed}", "store": True}
        reply = writing.ask(seed, [WEATHER], "required", parallel_tool_calls=False, **fields)
        choice = reply.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls", choice
        check_calls(choice["message"], [WEATHER])


def test_none_stays_none(writing):
    reply = writing.ask(1, [WEATHER], "none", max_tokens=20).json()
    assert "tool_calls" not in reply["choices"][0]["message"]


@pytest.mark.parametrize("writing", ["hermes"], indirect=True)
@pytest.mark.parametrize("code, param, fields, words", [
    ("invalid_value", "tool_choice", {"tool_choice": "any"},
     'expected auto, none, required, a function or allowed_tools, got "any"'),
    ("invalid_type", "tool_choice", {"tool_choice": 7}, "expected a string or an object, got a number"),
    ("missing_required_parameter", "tool_choice", {"tool_choice": {}}, "tool_choice.type is required"),
    ("unsupported_parameter", "tool_choice", {"tool_choice": {"type": "custom"}}, 'got "custom"'),
    ("missing_required_parameter", "tool_choice", {"tool_choice": {"type": "allowed_tools"}},
     "tool_choice.allowed_tools is required"),
    ("invalid_value", "tool_choice", {"tool_choice": allowed("any", "weather")},
     'auto or required, got "any"'),
    ("missing_required_parameter", "tool_choice", {"tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice.allowed_tools.tools"),
    ("invalid_value", "tool_choice", {"tool_choice": allowed("required", "weather", "g")}, 'got "g"'),
    ("invalid_value", "tool_choice", {"tool_choice": allowed("auto", "weather", "g")}, 'got "g"'),
    ("missing_required_parameter", "tool_choice", {"tool_choice": {"type": "function"}},
     "tool_choice.function"),
    ("invalid_type", "tool_choice", {"tool_choice": {"type": "function", "function": {"name": 1}}},
     "tool_choice.function.name: expected a string, got a number"),
    ("invalid_value", "tool_choice", {"tool_choice": {"type": "function", "function": {"name": "g"}}},
     'got "g"'),
    ("invalid_value", "tool_choice", {"tool_choice": "required", "tools": []}, "expected tools"),
    ("invalid_value", "tool_choice", {"tool_choice": "required", "tools": None}, "expected tools"),
    ("invalid_value", "tool_choice",
     {"tool_choice": "required", "structured_outputs": {"json_object": True}},
     "not allowed with structured_outputs"),
    ("unsupported_parameter", "tools", {"tool_choice": "required", "tools": [{"type": "custom"}]},
     "tools[0].type"),
    ("invalid_type", "tools",
     {"tool_choice": "required", "tools": [WEATHER, {"type": "function", "function": {}}]},
     "tools[1].function.name: expected a string, got none"),
    ("invalid_value", "tools", {"tool_choice": "required", "tools": [WEATHER, {
        "type": "function", "function": {"name": "f", "parameters": []}}]},
     "tools[1].function.parameters: $: expected a schema"),
    ("invalid_value", "tools", {"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "f", "parameters": {"properties": {"a": {"uniqueItems": 1}}}}}]},
     "tools[0].function.parameters: $.properties.a.uniqueItems"),
])
def test_refused(writing, code, param, fields, words):
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [WEATHER], **fields}
    reply = writing.server.post(CHAT, body)
    check_error(reply, 400, code, param)
    assert words in reply.json()["error"]["message"]


@pytest.mark.parametrize("writing, function, words", [
    ("qwen", {"name": "a<b"}, "tools[0].function.name"),
    ("lfm", {"name": "a b"}, "tools[0].function.name"),
    ("lfm", {"name": "f", "parameters": {"required": ["a b"]}},
     "tools[0].function.parameters: $.required"),
    ("olmo", {"name": "f", "parameters": {"anyOf": [{"type": "object"}]}},
     "tools[0].function.parameters: $.anyOf"),
], indirect=["writing"])
def test_what_a_syntax_cannot_say(writing, function, words):
    reply = writing.ask(1, [{"type": "function", "function": function}], "required")
    check_error(reply, 400, "unsupported_parameter", "tools")
    assert words in reply.json()["error"]["message"]


def test_a_template_without_calls(tmp_path_factory):
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    server = start(folder, chat_template=folder / "plain.jinja")
    try:
        reply = server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [WEATHER],
                                   "tool_choice": "required"})
        check_error(reply, 400, "unsupported_parameter", "tool_choice")
    finally:
        finish(server)


@pytest.mark.parametrize("writing", indirect=True, argvalues=[
    name for name, (_, markers) in ALL.items() if markers.get("</think>")])
def test_a_form_behind_reasoning(writing):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for seed in range(5):
        for thinking in (True, False):
            body = writing.body(seed, [], "auto", response_format=form)
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
            choice = writing.server.post(CHAT, body).json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
            if not thinking and writing.name.split()[0] in OPENS:  # the prompt closes it
                assert "reasoning_content" not in choice["message"]


FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"],
    "additionalProperties": False}}}


@pytest.mark.builds("dev")
def test_tools_beside_a_format(writing):
    """The text is calls or meets the schema; where calls are demanded they win."""
    kinds = set()
    for seed in range(40):
        bias = {**writing.bias, str(1 + ord("{")): 12 if seed % 2 else -12}  # that the format begins with
        choice = writing.ask(seed, [WEATHER, TIME], "auto", response_format=FORM,
                             logit_bias=bias).json()["choices"][0]
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        kinds.add(choice["finish_reason"])
        if message["content"] is None:
            check_calls(message, [WEATHER, TIME])
        else:
            assert "tool_calls" not in message
            jsonschema.validate(json.loads(message["content"]), FORM["json_schema"]["schema"])
        if len(kinds) == 2:
            break
    assert kinds == {"stop", "tool_calls"}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        alone = writing.ask(3, [WEATHER, TIME], choice).json()["choices"][0]
        assert functions_of(alone["message"])
        beside = writing.ask(3, [WEATHER, TIME], choice, response_format=FORM).json()["choices"][0]
        assert functions_of(beside["message"]) == functions_of(alone["message"])
    for seed in range(9):
        none = writing.ask(seed, [WEATHER], "none", response_format=FORM,
                           logit_bias={**writing.bias, str(1 + ord("{")): 12}).json()["choices"][0]
        assert "tool_calls" not in none["message"]
        if none["finish_reason"] == "stop":
            jsonschema.validate(json.loads(none["message"]["content"]), FORM["json_schema"]["schema"])
            break
    assert none["finish_reason"] == "stop"


@pytest.mark.builds("dev")
def test_allowed_tools(writing):
    """Demanded: only calls of these, and the model sees all. Else it sees these."""
    done = 0
    for seed in range(6):
        choice = writing.ask(seed, [WEATHER, TIME], allowed("required", "time")).json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            check_calls(choice["message"], [TIME])
            assert {one["name"] for one in functions_of(choice["message"])} == {"time"}
            done += 1
    assert done > 0

    def seen(tools, choice):
        body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice}
        return writing.server.post("/tokenize", body).json()["tokens"]
    assert seen([WEATHER, TIME], allowed("required", "time")) == seen([WEATHER, TIME], "auto")
    assert seen([WEATHER, TIME], allowed("auto", "time")) == seen([TIME], "auto")


@pytest.mark.long
@pytest.mark.builds("dev")
@pytest.mark.parametrize("template", sorted({template for template, _ in FORMATS.values()}))
def test_the_shipped_model(tmp_path_factory, template):
    """A vocabulary with tokens of several bytes; no marker is a token."""
    from conftest import finish, start
    server = start(tmp_path_factory.mktemp("shipped"), model=harness.shipped_model(),
                   chat_template=TEMPLATES / f"{template}.jinja", reasoning="off")
    try:
        done = 0
        for seed in range(NUMBER):
            reply = server.post(CHAT, {
                "messages": [{"role": "user", "content": "x"}], "temperature": 1, "seed": seed,
                "max_tokens": 600, "tools": [WEATHER, TIME], "tool_choice": "required",
                "parallel_tool_calls": seed % 4 == 0,
                "chat_template_kwargs": {"enable_thinking": False}})
            choice = reply.json()["choices"][0]
            if choice["finish_reason"] == "tool_calls":
                check_calls(choice["message"], [WEATHER, TIME])
                done += 1
            else:
                assert choice["finish_reason"] == "length"
        assert done > NUMBER // 2
    finally:
        finish(server)
