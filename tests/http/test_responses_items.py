# SPDX-License-Identifier: Apache-2.0
"""The input of POST /v1/responses: a request says what a chat says that has the same messages."""

import json

import pytest
from harness import check_error
from responses_helpers import (CHAT, CUSTOM, FOUND, FUNCTION, PATCH, RESPONSES, SPACE, TEMPLATE,
                               TOOL, assistant, bare, call, called, counted, message, output, part,
                               said, streamed, text_of, thought, tool, user)
from test_chat_tools import Reciting

pytestmark = pytest.mark.builds("dev", "asan")  # TSan: the streams of test_messages.py


SAME = [
    ({"input": "hi"}, [user("hi")]),
    ({"input": [user("hi")]}, [user("hi")]),
    ({"input": [{"type": "message", "id": "msg_1", **user(part("hi"))}]}, [user("hi")]),
    ({"input": [user(part("a"), part("b"))]}, [user("a\nb")]),
    ({"input": [user("a"), user("b")]}, [user("a\nb")]),
    ({"input": [{"role": "user", "content": []}]}, [user("")]),
    ({"input": ""}, [user("")]),
    ({"instructions": "Be brief.", "input": "hi"}, [message("system", "Be brief."), user("hi")]),
    ({"instructions": "Be", "input": [message("developer", part("brief.")), message("system", "Now."),
                                      user("env"), user("hi")]},
     [message("system", "Be\nbrief.\nNow."), user("env\nhi")]),
    ({"input": [user("a"), message("system", "S"), assistant("b"), user("c")]},
     [user("a"), message("system", "S"), assistant("b"), user("c")]),
    ({"input": [user("a"), {"type": "message", "status": "completed", "phase": "final_answer", **assistant(
        part("b", "output_text", annotations=[], logprobs=[]), {"type": "refusal", "refusal": "c"})},
        user("d")]}, [user("a"), assistant("bc"), user("d")]),
    ({"input": [user("a"), thought("Hm."), assistant("b"), user("c")]},
     [user("a"), {**assistant("b"), "reasoning_content": "Hm."}, user("c")]),
    ({"input": [user("a"), thought(None, summary=[part("So.", "summary_text")]), assistant("b"), user("c")]},
     [user("a"), {**assistant("b"), "reasoning_content": "So."}, user("c")]),
    ({"tools": [TOOL], "input": "hi"}, [user("hi")]),
    ({"tools": [TOOL], "input": [
        user("hi"), thought("Hm."), assistant("Let me see."), call(1), call(2, arguments='{"city": "Rome"}'),
        output(1, "Rain."), output(2, [part("Sun."), part("Hot.")]), assistant("Wet."), user("Go on.")]},
     [user("hi"), {**assistant("Let me see."), "reasoning_content": "Hm.", "tool_calls": [
         called(1), called(2, arguments='{"city": "Rome"}')]},
      tool(1, "Rain."), tool(2, "Sun.\nHot."), assistant("Wet."), user("Go on.")]),
    ({"tools": [SPACE], "input": [user("hi"), call(1, "find", namespace="maps"), output(1, "Here.")]},
     [user("hi"), {**assistant(""), "tool_calls": [called(1, "maps__find")]}, tool(1, "Here.")]),
    ({"tools": [CUSTOM], "input": [
        user("hi"), {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": "abab\n"},
        output(1, "Done.", "custom_tool_call_output")]},
     [user("hi"), {**assistant(""), "tool_calls": [called(1, "patch", '{"input": "abab\\n"}')]},
      tool(1, "Done.")]),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "weather"}, {"type": "web_search"}]}, "input": "hi"}, [user("hi")]),
]
FUNCTIONS = {"weather": FUNCTION, "maps": FOUND, "patch": PATCH}


@pytest.mark.parametrize("ours, chat", SAME)
def test_the_same_as_a_chat(chat_server, ours, chat):
    """An equal prompt computes nothing again, and has the same reply."""
    fields = {"tools": [FUNCTIONS[tool["name"]] for tool in ours["tools"]]} if "tools" in ours else {}
    for drawn in ({}, {"temperature": 1, "seed": 5, "top_p": 0.9, "top_k": 40}):
        reply = said(chat_server, **ours, **drawn)
        theirs = chat_server.post(CHAT, {"messages": chat, "max_tokens": 8, "temperature": 0, **fields,
                                         **drawn}).json()
        choice, usage = theirs["choices"][0], theirs["usage"]
        assert text_of(reply) == choice["message"]["content"]
        assert reply["usage"]["input_tokens"] == usage["prompt_tokens"]
        assert reply["usage"]["output_tokens"] == usage["completion_tokens"]
        assert reply["usage"]["total_tokens"] == usage["total_tokens"]
        assert usage["prompt_tokens_details"]["cache_miss_reason"] == "none"
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1
        assert "warnings" not in reply
        assert bare(streamed(chat_server, **ours, **drawn)) == bare(reply)
    assert counted(chat_server, **ours) == {"object": "response.input_tokens",
                                            "input_tokens": usage["prompt_tokens"]}


@pytest.mark.parametrize("picture", [
    {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
    {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"}])
def test_what_is_no_text_is_a_line(chat_server, picture):
    line = f"[{picture['type']} left out]"
    plain = counted(chat_server, input=[user(f"a\n{line}\nb")])
    told = counted(chat_server, input=[user(part("a"), picture, part("b"))])
    assert told["input_tokens"] == plain["input_tokens"] and "warnings" not in plain
    words = f"input: 1 of {picture['type']}: this model reads text; a line stands in the place of each"
    assert told["warnings"] == [words]
    stream = streamed(chat_server, input=[user("hi"), call(1), output(1, [picture])], tools=[TOOL])
    assert stream["warnings"] == [words]


DEVELOPER = """{% for m in messages %}<{{ 'developer' if m.role == 'developer' else m.role }}>{{ m.content }}
{%- endfor %}<assistant>"""


@pytest.mark.builds("dev")
def test_a_developer_whom_the_template_knows(server_factory, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text(DEVELOPER)
    server = server_factory(chat_template=path)
    for items, chat in [
            ([message("developer", "D"), user("a")], [message("developer", "D"), user("a")]),
            ([message("developer", "D"), message("system", "S"), user("a")],
             [message("developer", "D\nS"), user("a")])]:
        reply = said(server, input=items)
        theirs = server.post(CHAT, {"messages": chat, "max_tokens": 8, "temperature": 0}).json()
        assert theirs["usage"]["prompt_tokens_details"]["cache_miss_reason"] == "none"
        assert theirs["usage"]["prompt_tokens"] == reply["usage"]["input_tokens"]


KNOBS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>
{%- if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"""
EFFORT = """{%- if reasoning_effort is defined %}{{ {'low': '12', 'none': '123'}[reasoning_effort] }}
{%- endif %}"""


@pytest.mark.builds("dev")
def test_effort_reaches_the_template(server_factory, tmp_path):
    def ends(knobs, *efforts):
        path = tmp_path / "own.jinja"
        path.write_text(knobs)
        server = server_factory(chat_template=path)
        plain = counted(server, input="hi")["input_tokens"]
        found = [counted(server, input="hi", **fields) for fields in efforts]
        assert all("warnings" not in reply for reply in found)
        return [reply["input_tokens"] - plain for reply in found]
    low, none = ({"reasoning": {"effort": effort, "summary": "auto"}} for effort in ("low", "none"))
    own = {**none, "chat_template_kwargs": {"enable_thinking": True}}
    assert ends(KNOBS, low, none, own) == [len("True"), len("False"), len("True")]
    assert ends(KNOBS + EFFORT, low, none) == [len("True12"), len("False123")]


THINKS = "hermes special"


@pytest.mark.builds("dev")
def test_thoughts_come_back(tmp_path_factory):
    """As they were told, sealed, or both: the model sees the same. Their tokens have no logprobs."""
    from conftest import finish
    texts = ["<think>Hm, 世.</think>\n\nSo it is.", "<think>It goes on"]
    reciting = Reciting(tmp_path_factory.mktemp("recital"), THINKS, texts)
    try:
        chat = json.loads(reciting.ask(0).request.content)
        fields = {"input": chat["messages"], "include": [
            "reasoning.encrypted_content", "message.output_text.logprobs"], "max_output_tokens": 1000}
        whole = said(reciting.server, **fields)
        assert bare(streamed(reciting.server, **fields)) == bare(whole)
        reasoning, answer = whole["output"]
        assert reasoning["content"][0]["text"] == "Hm, 世." and "Hm" not in reasoning["encrypted_content"]
        tokens = "".join(entry["token"] for entry in answer["content"][0]["logprobs"])
        assert tokens.strip().startswith("So") and "Hm" not in tokens
        counts = [counted(reciting.server, input=[user("a"), item, answer, user("b")])["input_tokens"]
                  for item in (reasoning, {**reasoning, "content": None}, {**reasoning, "content": []},
                               {**reasoning, "encrypted_content": None})]
        assert len(set(counts)) == 1
        other = counted(reciting.server, input=[
            user("a"), {**reasoning, "content": None, "encrypted_content": "gAAAA"}, answer, user("b")])
        assert other["warnings"][0].startswith("input: 1 of reasoning with nothing but an encrypted_content")
        chat = json.loads(reciting.ask(1).request.content)
        cut = {**fields, "input": chat["messages"], "max_output_tokens": 10}
        whole = said(reciting.server, **cut)
        assert bare(streamed(reciting.server, **cut)) == bare(whole)
        assert [(item["type"], item["status"]) for item in whole["output"]] == [("reasoning", "incomplete")]
    finally:
        finish(reciting.server)


def test_turns_reuse_their_prefix(chat_server):
    """Each turn sends back all that was told."""
    items, read, before = [], [], 0
    for turn in range(4):
        items.append(user(part(f"Turn {turn}: and what then?")))
        reply = said(chat_server, input=items, tools=[TOOL], max_output_tokens=12, store=False,
                     prompt_cache_key="one", instructions="You are here to reuse.")
        read.append(reply["usage"]["input_tokens_details"]["cached_tokens"])
        if turn > 0:
            assert read[turn] > read[turn - 1] and read[turn] >= before
        before = reply["usage"]["input_tokens"] - 1
        items += reply["output"]


def turns(count, words="{} x"):
    """A conversation of so many turns, which ends with a user's message."""
    items = [message("developer", "D")]
    for i in range(count):
        items += [user(words.format(i)), call(i), output(i, "o"), assistant(f"a{i}")]
    return [*items, user("And now?")]


def check_shortened(server, count, kept, **fields):
    """With `truncation` as many turns are left as are kept: the reply is theirs."""
    more = {"instructions": "I", "tools": [TOOL], "max_output_tokens": 40, "ignore_eos": True, **fields}
    items = turns(count)
    left = [items[0], *items[len(items) - 1 - 4 * kept:]]
    wanted = said(server, **more, input=left)
    for ask in (said, streamed):
        got = ask(server, **more, input=items, truncation="auto")
        assert got["output"][0]["content"] == wanted["output"][0]["content"]
        assert got["usage"]["input_tokens"] == wanted["usage"]["input_tokens"]
        assert got["truncation"] == "auto" and got["warnings"] == [
            f"truncation: the {count - kept} oldest turns are left out: there is no room for them"]
    one_more = [items[0], *items[len(items) - 1 - 4 * (kept + 1):]]
    return counted(server, input=one_more, instructions="I", tools=[TOOL])["input_tokens"]


@pytest.mark.builds("dev")
def test_the_oldest_turns_go(server_factory):
    """So many that there is room for the reply, and no more."""
    server = server_factory(max_model_len=1000, chat_template=TEMPLATE)
    assert check_shortened(server, 20, 5) + 40 > 1000
    assert check_shortened(server, 20, 3, max_output_tokens=500) + 250 > 1000
    assert check_shortened(server, 20, 1, max_output_tokens=900, min_tokens=500) + 500 > 1000
    check_shortened(server, 1500, 5)
    whole = said(server, input=turns(2), truncation="auto")
    assert "warnings" not in whole
    last = said(server, input="x" * 800, truncation="auto", ignore_eos=True, max_output_tokens=900)
    assert last["usage"]["total_tokens"] == 1000 and "warnings" not in last
    long = {"input": [*turns(3), user("x" * 1000)], "truncation": "auto", "max_output_tokens": 8}
    check_error(server.post(RESPONSES, long), 400, "context_length_exceeded")
    assert streamed(server, **long)["error"]["code"] == "context_length_exceeded"


@pytest.mark.builds("dev")
def test_a_body_that_nests_deep_is_read_again(server_factory):
    """As deep as a body may; a chat has its tools one deeper."""
    server = server_factory(max_model_len=1000, chat_template=TEMPLATE)
    deep = {}
    for _ in range(60):
        deep = {"a": deep}
    fields = {"tools": [{**TOOL, "parameters": deep}], "max_output_tokens": 4, "ignore_eos": True}
    for kept in (False, True):
        cut = said(server, **fields, input=turns(20), truncation="auto", store=kept)
        assert "oldest turns are left out" in cut["warnings"][0]
    first = said(server, **fields)
    after = said(server, **fields, previous_response_id=first["id"])
    assert after["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    fields["tools"][0]["parameters"] = {"a": deep}
    error = check_error(server.post(RESPONSES, {**fields, "input": "hi"}), 400, None)
    assert "nested more than 64 deep" in error["message"]
