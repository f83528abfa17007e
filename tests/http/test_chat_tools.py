# SPDX-License-Identifier: Apache-2.0
"""Reasoning and tool calls in the replies of chats: 50 conversations of each format, whole and
streamed, by a model that recites what a model of that family would write (recital.py)."""

import json
import random

import openai
import pytest
from recital import Recital

from harness import check_error, read_frames

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

CHAT = "/v1/chat/completions"
FIRST = 1500  # the longest prompt but for its filling
NUMBER = 50

# Of each format: its template; its markers, and whether they are special tokens.
THINK = {"<think>": False, "</think>": False}
HERMES = {"<tool_call>": False, "</tool_call>": False, **THINK}
FORMATS = {
    "hermes": ("hermes", HERMES),
    "hermes special": ("hermes", dict.fromkeys(HERMES, True)),
    "smollm": ("smollm", {}),
    "qwen": ("qwen_xml", HERMES),
    "granite": ("granite", {"<|tool_call|>": True}),
    "nemotron": ("nemotron", {"<TOOLCALL>": False, "</TOOLCALL>": False, **THINK}),
    "lfm": ("lfm", dict.fromkeys(["<|tool_call_start|>", "<|tool_call_end|>", *THINK], True)),
    "olmo": ("olmo", {}),
    "mistral": ("mistral", {"[TOOL_CALLS]": True}),
    "cohere": ("cohere", {"<|START_ACTION|>": True, "<|END_ACTION|>": True}),
}
OPENS = ("qwen", "nemotron")  # whose prompt opens reasoning
REASONS = ("hermes", "hermes special", "smollm", "lfm", *OPENS)

TEXTS = ["Oslo", "", 'a "quoted" word', "two\nlines", "back\\slash", "世界 – Zürich", "it's <b>", '{"a": 1',
         "</function>", "[1, 2)", "\ttab", "None", "🙂 <tool_call>", "</think>", "12", "<|x|>"]
VALUES = [0, -17, 2.5, 1e300, True, False, None, [], [1, "b", [None]], {}, {"k": {"é": [True, "'"]}}, {"": 1}]


def kind(value):
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
             list: "array", dict: "object"}
    return kinds[type(value)]


def write_call(name, function, arguments, rng):
    if name == "qwen":
        parameters = "".join(
            f"<parameter={key}>\n{as_qwen(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<function={function}>\n{parameters}</function>"
    if name in ("lfm", "olmo"):
        write = repr if name == "lfm" else lambda value: json.dumps(value, ensure_ascii=rng.random() < .5)
        return f"{function}({', '.join(f'{key}={write(value)}' for key, value in arguments.items())})"
    written = json.dumps(arguments, ensure_ascii=rng.random() < .5)
    if name == "cohere":
        number = function.removeprefix("get_")
        return f'{{"tool_call_id": "{number}", "tool_name": "{function}", "parameters": {written}}}'
    return f'{{"name": "{function}", "arguments": {written}}}'


def as_qwen(value):
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, float)) else str(value)


def write_calls(name, calls):
    if name == "granite":
        return f"<|tool_call|>[{', '.join(calls)}]"
    if name == "mistral":
        return f"[TOOL_CALLS][{', '.join(calls)}]"
    if name == "cohere":
        listed = ",\n".join(f"    {call}" for call in calls)
        return f"<|START_ACTION|>[\n{listed}\n]<|END_ACTION|>"
    if name == "nemotron":
        return f"<TOOLCALL>[{', '.join(calls)}]</TOOLCALL>"
    if name == "lfm":
        return f"<|tool_call_start|>[{', '.join(calls)}]<|tool_call_end|>"
    if name == "olmo":
        return "<function_calls>" + "\n".join(calls) + "</function_calls>"
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


class Conversation:
    """What the model writes, and what the reply is to be."""

    def __init__(self, name, number):
        rng = random.Random(f"{name} {number}")
        self.calls, self.tools, written = [], [], []
        broken = number % 10 == 9
        for i in range(1 if broken else rng.randint(1, 3)):
            function = f"get_{i}"
            keys = rng.sample(["city", "limit", "deep", "flag", "note_2"], rng.randint(0, 4))
            arguments = {key: rng.choice(TEXTS + VALUES) for key in keys}
            properties = {key: {"type": kind(value)} for key, value in arguments.items()}
            self.tools.append({"type": "function", "function": {
                "name": function, "parameters": {"type": "object", "properties": properties}}})
            self.calls.append((function, arguments))
            written.append(write_call(name, function, arguments, rng))
        before = rng.choice(["", "Let me see.", "Gleich, 世! <b", "Two\n\nlines <tool"])
        after = rng.choice(["", "", "That is it."])
        text = write_calls(name, written)
        self.markup = text
        if broken:
            ends = text.rindex(")") if name == "lfm" else len(text) * 2 // 3
            text = text[:ends] if name != "olmo" else text.replace("(", "((", 1)
        self.text = before + ("\n\n" if before else "") + text + ("\n" + after if after else "")
        self.content = before + ("\n" if before and after else "") + after
        self.broken = broken
        self.reasoning = rng.choice(["", "Hm, <tool_call>?", "\nSo…\n\n"]) if name in REASONS else ""
        if self.reasoning and name not in OPENS:
            self.text = f"<think>{self.reasoning}</think>\n\n{self.text}"
        elif name in OPENS:
            self.text = f"{self.reasoning}</think>\n\n{self.text}"


class Reciting:
    """A server whose model recites texts."""

    def __init__(self, folder, name, texts, **flags):
        from conftest import start
        template, markers = FORMATS[name]
        recital = Recital(markers)
        self.begins = [recital.add(text) for text in texts]
        self.server = start(folder, model=recital.write(folder / "model", template, FIRST), **flags)

    def ask(self, number, status=200, **fields):
        """A chat whose reply is the text of that number."""
        body = {"messages": [{"role": "user", "content": ""}], "temperature": 0, "max_tokens": 1000, **fields}
        given = self.server.post("/tokenize", body)
        assert given.status_code == 200, given.text
        wanted = FIRST + self.begins[number] + 1
        filling = "x" * (wanted - given.json()["count"])
        body["messages"] = [{"role": "user", "content": filling}, *body["messages"][1:]]
        reply = self.server.post(CHAT, body)
        assert reply.status_code == status, reply.text
        return reply

    def message(self, number, **fields):
        return self.ask(number, **fields).json()["choices"][0]


def gathered(reply, index=0):
    """What a stream's deltas add up to: (message, finish_reason, usage)."""
    frames = read_frames(reply.content)
    message, reason = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for frame in frames:
        for choice in frame["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            assert reason is None, "a frame after the last"
            reason = choice["finish_reason"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key, "")
            for call in delta.get("tool_calls", []):
                add_part(message["tool_calls"], call)
    return message, reason, frames[-1].get("usage")


def add_part(calls, part):
    """The first part of a call has its id and name, the others only more of its arguments."""
    if "id" in part:
        assert part["index"] == len(calls)
        calls.append(part)
    else:
        assert part["index"] == len(calls) - 1 and part.keys() == {"index", "function"}
        assert part["function"].keys() == {"arguments"}
        calls[-1]["function"]["arguments"] += part["function"]["arguments"]


def functions_of(message):
    return [call["function"] for call in message.get("tool_calls", [])]


def calls_of(message):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])]


@pytest.fixture(scope="module", params=FORMATS)
def reciting(request, tmp_path_factory):
    from conftest import finish
    conversations = [Conversation(request.param, i) for i in range(NUMBER)]
    running = Reciting(tmp_path_factory.mktemp("recital"), request.param, [c.text for c in conversations])
    running.name, running.conversations = request.param, conversations
    yield running
    finish(running.server)


@pytest.mark.builds("dev")
def test_calls_whole_and_streamed(reciting):
    called = cut = 0
    for number, wanted in enumerate(reciting.conversations):
        fields = {"tools": wanted.tools}
        whole = reciting.ask(number, **fields).json()
        choice, message = whole["choices"][0], whole["choices"][0]["message"]
        calls = message.get("tool_calls", [])
        assert message.get("reasoning_content", "") == wanted.reasoning, number
        if wanted.broken:
            cut += check_cut(wanted, message)
        else:
            assert message["content"] == (wanted.content or None), number
            assert calls_of(message) == wanted.calls, number
        assert choice["finish_reason"] == ("stop" if wanted.broken else "tool_calls")
        name = whole["id"].removeprefix("chatcmpl-")
        assert [call["id"] for call in calls] == [f"call_{name}_0_{i}" for i in range(len(calls))]
        stream, reason, usage = gathered(
            reciting.ask(number, stream=True, stream_options={"include_usage": True}, **fields))
        assert stream["content"] == (message["content"] or "")
        assert stream["reasoning_content"] == message.get("reasoning_content", "")
        assert functions_of(stream) == functions_of(message)
        assert reason == choice["finish_reason"]
        cached = {"prompt_tokens_details": None}
        assert usage | cached == whole["usage"] | cached
        called += bool(calls) and not wanted.broken
    assert called == NUMBER - NUMBER // 10
    assert cut > 0


def check_cut(wanted, message):
    """A call that goes wrong before its arguments begin is content; later it is cut off there."""
    calls = message.get("tool_calls", [])
    if not calls:
        assert wanted.markup[:20] in message["content"]
        return 0
    function, arguments = wanted.calls[0]
    assert [call["function"]["name"] for call in calls] == [function]
    assert not is_json(calls[0]["function"]["arguments"])
    return 1


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.builds("dev")
def test_calls_in_a_session(reciting):
    """Whose prompt is rendered later, behind the session's history."""
    for number in (0, 1, 9):
        wanted = reciting.conversations[number]
        alone = reciting.message(number, tools=wanted.tools)
        for stream in (False, True):
            session = f"{reciting.name.replace(' ', '-')}-{number}-{stream}"
            reply = reciting.ask(number, tools=wanted.tools, session_id=session, stream=stream)
            if stream:
                message, reason, _ = gathered(reply)
            else:
                choice = reply.json()["choices"][0]
                message, reason = choice["message"], choice["finish_reason"]
            assert functions_of(message) == functions_of(alone["message"])
            assert (message["content"] or None) == alone["message"]["content"]
            assert message.get("reasoning_content", "") == wanted.reasoning
            assert reason == alone["finish_reason"]


@pytest.mark.builds("dev")
def test_without_tools_a_call_is_text(reciting):
    wanted = reciting.conversations[0]
    behind = wanted.text.split("</think>\n\n")[-1] if "</think>" in wanted.text else wanted.text
    for marker, special in FORMATS[reciting.name][1].items():
        if special and "think" not in marker:
            behind = behind.replace(marker, "")
    for fields in ({}, {"tools": []}, {"tools": wanted.tools, "tool_choice": "none"}):
        message = reciting.message(0, **fields)["message"]
        assert message["content"] == behind and "tool_calls" not in message


@pytest.mark.builds("dev")
def test_calls_come_back_as_messages(reciting):
    """A reply with calls is a message of the next request. Templates write it as the model did."""
    leaves_out = reciting.name in ("granite", "smollm")  # calls, of the history
    post, equal = reciting.server.post, 0
    for number in [i for i, c in enumerate(reciting.conversations) if not c.broken][:15]:
        wanted = reciting.conversations[number]
        message = reciting.message(number, tools=wanted.tools)["message"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "4"}
                   for call in message["tool_calls"]]
        history = [{"role": "user", "content": "q"}, message, *results]
        tokens = post("/tokenize", {"messages": history, "tools": wanted.tools}).json()
        assert "tokens" in tokens, tokens
        text = post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"]
        assert leaves_out or all(function in text for function, _ in wanted.calls)
        equal += wanted.markup in text
    # Others have letters that JSON may escape, or quotes that Python may choose.
    assert equal > 3 or leaves_out


@pytest.mark.builds("dev")
def test_the_openai_client(reciting):
    wanted = reciting.conversations[0]
    client = openai.OpenAI(base_url=reciting.server.url + "/v1", api_key="none", max_retries=0)
    body = {"messages": [{"role": "user", "content": ""}], "tools": wanted.tools}
    count = reciting.server.post("/tokenize", body).json()["count"]
    body["messages"][0]["content"] = "x" * (FIRST + reciting.begins[0] + 1 - count)
    fields = {"model": reciting.server.model_id, "temperature": 0, "max_tokens": 1000, **body}
    reply = client.chat.completions.create(**fields)
    message = reply.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert [(name, json.loads(arguments)) for name, arguments in calls] == wanted.calls
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert [(call.function.name, call.function.arguments) for call in streamed.message.tool_calls] == calls
    assert (streamed.message.content or "") == (message.content or "")
    assert streamed.finish_reason == reply.choices[0].finish_reason == "tool_calls"


# One server with texts of its own.

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f"}}]
OWN = {
    "reasons": "<think>\nSo, 世.\n</think>\n\nYes.",
    "never ends": "<think>Well" + ", well" * 20,
    "two": f"Both.\n{CALL}\n{CALL}",
    "reasons and calls": f"<think>Hm</think>\n\n{CALL}",
    "plain": "Yes, <b>.",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    from conftest import finish
    running = Reciting(tmp_path_factory.mktemp("own"), "hermes special", list(OWN.values()))
    running.ask_for = lambda name, **fields: running.ask(list(OWN).index(name), **fields)
    running.choice = lambda name, **fields: running.ask_for(name, **fields).json()["choices"][0]
    yield running
    finish(running.server)


def test_reasoning_is_counted(own):
    reply = own.ask_for("reasons").json()
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("\nSo, 世.\n", "Yes.")
    count = 2 + len("\nSo, 世.\n".encode())  # the markers are tokens of it
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": count}
    frames = read_frames(own.ask_for("reasons", stream=True, stream_options={
        "include_usage": True, "continuous_usage_stats": True}).content)
    counts = [frame["usage"]["completion_tokens_details"]["reasoning_tokens"] for frame in frames]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == count
    assert {frame["usage"]["completion_tokens_details"]["reasoning_tokens"] for frame in read_frames(
        own.ask_for("plain", stream=True, stream_options={
            "include_usage": True, "continuous_usage_stats": True}).content)} == {0}


def test_running_usage_of_several_choices_never_falls(own):
    frames = read_frames(own.ask_for("reasons", stream=True, n=3, stream_options={
        "include_usage": True, "continuous_usage_stats": True}).content)
    for count in (lambda usage: usage["completion_tokens"],
                  lambda usage: usage["completion_tokens_details"]["reasoning_tokens"]):
        counts = [count(frame["usage"]) for frame in frames]
        assert counts == sorted(counts) and counts[0] == 0 and counts[-1] > 0


def test_reasoning_that_does_not_end(own):
    reply = own.ask_for("never ends", max_tokens=20).json()
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == OWN["never ends"].removeprefix("<think>")[:19]
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
    message, reason, _ = gathered(own.ask_for("never ends", max_tokens=20, stream=True))
    assert message["reasoning_content"] == choice["message"]["reasoning_content"]
    assert message["content"] == "" and reason == "length"


def test_a_call_cut_off_is_text(own):
    for length in range(1, len(CALL)):
        choice = own.choice("two", tools=TOOLS, max_tokens=length)
        message, reason, _ = gathered(own.ask_for("two", tools=TOOLS, max_tokens=length, stream=True))
        assert choice["finish_reason"] == reason == "length"
        assert message["content"] == (choice["message"]["content"] or "")
        assert len(message["tool_calls"]) == len(choice["message"].get("tool_calls", []))
        if not message["tool_calls"]:
            text = OWN["two"].encode()
            assert text.startswith(choice["message"]["content"].encode())


def test_several_choices(own):
    choices = own.ask_for("two", tools=TOOLS, n=3).json()["choices"]
    reply = own.ask_for("two", tools=TOOLS, n=3, stream=True)
    ids = set()
    for choice in choices:
        message, reason, _ = gathered(reply, choice["index"])
        assert message["content"] == choice["message"]["content"] == "Both."
        assert calls_of(message) == calls_of(choice["message"]) == [("f", {"a": 1})] * 2
        assert reason == choice["finish_reason"] == "tool_calls"
        ids |= {call["id"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 6


def test_one_call_of_several(own):
    choice = own.choice("two", tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(choice["message"]) == [("f", {"a": 1})] and choice["message"]["content"] == "Both."
    message, _, _ = gathered(own.ask_for("two", tools=TOOLS, parallel_tool_calls=False, stream=True))
    assert calls_of(message) == [("f", {"a": 1})]


def test_logprobs_are_of_all_tokens(own):
    reply = own.ask_for("reasons and calls", tools=TOOLS, logprobs=True, return_token_ids=True).json()
    choice = reply["choices"][0]
    assert choice["message"]["content"] is None and choice["message"]["reasoning_content"] == "Hm"
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"]) == reply["usage"]["completion_tokens"]
    frames = read_frames(own.ask_for("reasons and calls", tools=TOOLS, logprobs=True, return_token_ids=True,
                                     stream=True).content)
    choices = [frame["choices"][0] for frame in frames]
    assert [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]] == entries
    assert [i for c in choices for i in c.get("token_ids") or []] == choice["token_ids"]


def test_stop_strings_see_all_of_the_text(own):
    choice = own.choice("reasons", stop="Yes")
    assert choice["message"]["content"] is None and choice["stop_reason"] == "Yes"
    choice = own.choice("two", tools=TOOLS, stop="</tool_call>")
    assert calls_of(choice["message"]) == [("f", {"a": 1})]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", "</tool_call>")


def test_a_stream_makes_no_frames_of_what_is_held_back(own):
    frames = read_frames(own.ask_for("reasons and calls", tools=TOOLS, stream=True).content)
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert [list(delta) for delta in deltas] == [
        ["role", "content"], [], ["reasoning_content", "reasoning"], ["reasoning_content", "reasoning"],
        *[["tool_calls"]] * len(calls), []]
    assert len(calls) > 2 and sum("id" in part for (part,) in calls) == 1
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)


def test_reasoning_that_is_not_wanted(own):
    """vLLM's include_reasoning: reasoning is generated and counted, and not told."""
    told = own.choice("reasons and calls", tools=TOOLS)["message"]
    hidden = own.choice("reasons and calls", tools=TOOLS, include_reasoning=False)["message"]
    assert told["reasoning"] == told["reasoning_content"]
    assert set(told) - set(hidden) == {"reasoning", "reasoning_content"}
    assert calls_of(hidden) == calls_of(told) and hidden["content"] == told["content"]
    frames = read_frames(own.ask_for("reasons and calls", tools=TOOLS, stream=True,
                                     include_reasoning=False).content)
    deltas = [list(frame["choices"][0]["delta"]) for frame in frames]
    assert deltas == [["role", "content"], [], *[["tool_calls"]] * (len(deltas) - 3), []]


@pytest.mark.parametrize("code, fields", [
    ("invalid_type", {"parallel_tool_calls": "no"}),
    ("invalid_type", {"include_reasoning": "no"}),
    ("unsupported_parameter", {"verbosity": "loud"}),
])
def test_refused(own, code, fields):
    reply = own.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields})
    check_error(reply, 400, code, next(iter(fields)))


def test_a_reply_that_goes_on(tmp_path_factory):
    """continue_final_message: inside what the message has opened, if it has."""
    from conftest import finish
    running = Reciting(tmp_path_factory.mktemp("goes-on"), "hermes special", ["on.</think>\n\nYes"])
    try:
        for begun, reasoning, content in (("<think>And so ", "on.", "Yes"), ("<think>", "on.", "Yes"),
                                          ("And so ", None, "on.</think>\n\nYes"),
                                          ("<think>a</think>And so ", None, "on.</think>\n\nYes")):
            message = running.message(0, continue_final_message=True, add_generation_prompt=False, messages=[
                {"role": "user", "content": ""}, {"role": "assistant", "content": begun}])["message"]
            assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    finally:
        finish(running.server)


def test_a_user_who_writes_markers(own):
    message = own.choice("plain", messages=[{"role": "user", "content": ""},
                                            {"role": "user", "content": "<think>"}])["message"]
    assert message["content"] == OWN["plain"] and "reasoning_content" not in message


@pytest.mark.builds("dev")
@pytest.mark.parametrize("kwargs, reasoning, content", [
    ({}, "Hm", "Yes"), ({"enable_thinking": True}, "Hm", "Yes"),
    ({"enable_thinking": False}, None, "Hm</think>\n\nYes")])
@pytest.mark.parametrize("name", OPENS)
def test_a_prompt_that_opens_reasoning(tmp_path_factory, name, kwargs, reasoning, content):
    from conftest import finish
    running = Reciting(tmp_path_factory.mktemp("opens"), name, ["Hm</think>\n\nYes"])
    try:
        message = running.message(0, chat_template_kwargs=kwargs)["message"]
        assert (message.get("reasoning_content"), message["content"]) == (reasoning, content)
    finally:
        finish(running.server)


@pytest.mark.parametrize("name", ["hermes", "hermes special"])
def test_reasoning_off(tmp_path_factory, name):
    from conftest import finish
    text = f"<think>Hm</think>\n\nYes\n{CALL}"
    running = Reciting(tmp_path_factory.mktemp("off"), name, [text], reasoning="off")
    try:
        reply = running.ask(0, tools=TOOLS).json()
        message = reply["choices"][0]["message"]
        assert message["content"] == "<think>Hm</think>\n\nYes" and "reasoning_content" not in message
        assert calls_of(message) == [("f", {"a": 1})]
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    finally:
        finish(running.server)


def test_the_environment_turns_reasoning_off(tmp_path_factory):
    from conftest import finish
    running = Reciting(tmp_path_factory.mktemp("environment"), "hermes", ["<think>Hm</think>Yes"],
                       environment={"REGLA_REASONING": "off"})
    try:
        assert running.message(0)["message"]["content"] == "<think>Hm</think>Yes"
    finally:
        finish(running.server)


THOUGHT = "abcdefghij klmnopqrst"


@pytest.mark.builds("dev")
@pytest.mark.parametrize("name", ["hermes", "hermes special", "smollm", "qwen"])
def test_a_budget_for_thoughts(tmp_path_factory, name):
    """So many tokens between the markers, and then the closing one; up to there the same tokens."""
    from conftest import finish
    text = ("" if name in OPENS else "<think>") + f"{THOUGHT}</think>\n\nYes, it is so."
    running = Reciting(tmp_path_factory.mktemp("budget"), name, [text])
    try:
        free = running.message(0, return_token_ids=True)
        assert free["message"]["reasoning_content"] == THOUGHT
        post = running.server.post
        closing = post("/tokenize", {"prompt": "</think>", "add_special_tokens": False}).json()["tokens"]
        for budget in (0, 1, 7, len(THOUGHT), 500):
            for fields in ({"thinking_token_budget": budget}, {"reasoning_budget_tokens": budget},
                           {"thinking": {"type": "enabled", "budget_tokens": budget}}):
                told = running.message(0, return_token_ids=True, **fields)
                check_budget(told, free, closing, budget)
            several = running.ask(0, return_token_ids=True, n=3, thinking_token_budget=budget).json()
            several = several["choices"]
            assert all(choice["token_ids"] == told["token_ids"] for choice in several)
            stream, _, usage = gathered(running.ask(0, stream=True, thinking_token_budget=budget,
                                                    stream_options={"include_usage": True}))
            assert stream["reasoning_content"] == told["message"].get("reasoning_content", "")
            assert stream["content"] == (told["message"]["content"] or "")
            assert usage["completion_tokens"] == len(told["token_ids"])
        assert running.message(0, return_token_ids=True, reasoning_budget_tokens=-1) == free
        messages = json.loads(running.ask(0).request.content)["messages"]
        thinking = {"type": "enabled", "budget_tokens": 7}
        blocks = post("/v1/messages", {"messages": messages, "max_tokens": 1000, "temperature": 0,
                                       "thinking": thinking}).json()["content"]
        assert blocks[0] == {"type": "thinking", "thinking": THOUGHT[:7], "signature": ""}
        assert blocks[1]["text"].endswith("Yes, it is so.")
    finally:
        finish(running.server)


@pytest.mark.builds("dev")
@pytest.mark.parametrize("name", ["hermes", "hermes special", "smollm"])
def test_a_budget_within_a_character(tmp_path_factory, name):
    """A constraint lets no marker into a character: the budget waits for its end."""
    from conftest import finish
    running = Reciting(tmp_path_factory.mktemp("within"), name,
                       ['<think>\u00e9\u4e16\U0001f642</think>\n\n{"city": "Oslo"}'])
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [{}]}}}
    try:
        for fields in ({"response_format": form}, {"tools": TOOLS, "tool_choice": "required"}):
            for budget, thought in enumerate(["", "\u00e9", "\u00e9", *["\u00e9\u4e16"] * 3]):
                message = running.message(0, thinking_token_budget=budget, **fields)["message"]
                assert message.get("reasoning_content", "") == thought
    finally:
        finish(running.server)


def check_budget(told, free, closing, budget):
    ids, usual = told["token_ids"], free["token_ids"]
    reasoning = told["message"].get("reasoning_content", "")
    if budget >= len(THOUGHT):
        assert ids == usual and reasoning == THOUGHT
        return
    assert reasoning == THOUGHT[:budget]
    same = next(i for i, (a, b) in enumerate(zip(ids, usual, strict=False)) if a != b)
    assert ids[same:same + len(closing)] == closing
    assert told["message"]["content"].endswith("Yes, it is so.")


@pytest.mark.parametrize("code, fields", [
    ("invalid_value", {"thinking_token_budget": -1}),
    ("invalid_value", {"reasoning_budget_tokens": -2}),
    ("invalid_type", {"thinking_token_budget": "3"}),
    ("invalid_type", {"thinking": 3}),
    ("invalid_value", {"thinking_token_budget": 5, "max_tokens": 4}),
    ("invalid_value", {"thinking_token_budget": 5, "reasoning_budget_tokens": 6}),
    ("unsupported_parameter", {"thinking": {"type": "adaptive"}}),
])
def test_budgets_that_are_refused(own, code, fields):
    reply = own.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, **fields})
    check_error(reply, 400, code)
