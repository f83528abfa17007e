# SPDX-License-Identifier: Apache-2.0
"""The openai and the anthropic client, unmodified, against models that write as gpt-oss and Qwen 3.5 do:
reasoning, content and calls apart, whole and streamed, and the turn after."""

import json

import anthropic
import openai
import pytest
from harmony_texts import MARKERS, TEXTS
from test_channels import TOOLS
from test_chat_tools import FORMATS, FIRST, Reciting

pytestmark = pytest.mark.builds("dev")  # what the clients make of replies

QWEN_CALL = """<tool_call>
<function=weather>
<parameter=city>
Oslo "世"
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
# Of each: its format, and replies: what the model writes, its reasoning, content and calls.
MODELS = {
    "harmony": ("harmony", dict.fromkeys(MARKERS, True), {
        name: TEXTS[name] for name in ("thinks", "answers", "calls", "preamble")}),
    "qwen3.5": (*FORMATS["qwen"], {
        "thinks": ("So, 世.</think>\n\nYes, <b>.", "So, 世.", "Yes, <b>.", []),
        "calls": (f"I need it.</think>\n\n{QWEN_CALL}", "I need it.", "", TEXTS["calls"][3]),
        "preamble": (f"So.</think>\n\nI look.\n\n{QWEN_CALL}", "So.", "I look.", TEXTS["calls"][3])}),
}
ANTHROPIC_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
                   for tool in TOOLS]
RESPONSES_TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    from conftest import finish
    template, markers, replies = MODELS[request.param]
    FORMATS[request.param] = template, markers
    running = Reciting(tmp_path_factory.mktemp("apart"), request.param,
                       [text for text, *_ in replies.values()])
    del FORMATS[request.param]
    running.replies = replies
    yield running
    finish(running.server)


def said(model, name):
    """The message that leads to the reply."""
    place = list(model.replies).index(name)
    body = {"messages": [{"role": "user", "content": ""}], "tools": TOOLS}
    count = model.server.post("/tokenize", body).json()["count"]
    return [{"role": "user", "content": "x" * (FIRST + model.begins[place] + 1 - count)}]


def test_openai_chat(model):
    client = openai.OpenAI(base_url=model.server.url + "/v1", api_key="none", max_retries=0)
    for name, (_, reasoning, content, calls) in model.replies.items():
        fields = {"model": model.server.model_id, "temperature": 0, "max_tokens": 1000, "tools": TOOLS,
                  "messages": said(model, name)}
        choice = client.chat.completions.create(**fields).choices[0]
        with client.chat.completions.stream(**fields) as stream:
            thought = "".join(getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
                              for event in stream if event.type == "chunk" and event.chunk.choices)
            streamed = stream.get_final_completion().choices[0]
        assert (choice.message.reasoning_content if reasoning else "") == thought == reasoning
        for one in (choice, streamed):
            made = [(call.function.name, json.loads(call.function.arguments))
                    for call in one.message.tool_calls or []]
            assert made == calls and (one.message.content or "") == content
            assert one.finish_reason == ("tool_calls" if calls else "stop")
        if calls:
            client.chat.completions.create(**{**fields, "max_tokens": 1, "messages": [
                *fields["messages"], choice.message.to_dict(),
                {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "Rain."}]})


def test_openai_responses(model):
    client = openai.OpenAI(base_url=model.server.url + "/v1", api_key="none", max_retries=0)
    for name, (_, reasoning, content, calls) in model.replies.items():
        fields = {"model": model.server.model_id, "temperature": 0, "max_output_tokens": 1000,
                  "tools": RESPONSES_TOOLS, "input": said(model, name)}
        whole = client.responses.create(**fields)
        with client.responses.stream(**fields) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            streamed = stream.get_final_response()
        assert text == content
        for one in (whole, streamed):
            thoughts = [part.text for item in one.output if item.type == "reasoning" for part in item.content]
            assert "".join(thoughts) == reasoning and one.output_text == content
            assert [(item.name, json.loads(item.arguments)) for item in one.output
                    if item.type == "function_call"] == calls
        if calls:
            made = next(item for item in whole.output if item.type == "function_call")
            client.responses.create(**{**fields, "max_output_tokens": 1, "input": [
                *fields["input"], *(item.to_dict() for item in whole.output),
                {"type": "function_call_output", "call_id": made.call_id, "output": "Rain."}]})


def test_anthropic(model):
    client = anthropic.Anthropic(base_url=model.server.url, api_key="none", max_retries=0)
    for name, (_, reasoning, content, calls) in model.replies.items():
        fields = {"model": model.server.model_id, "extra_body": {"temperature": 0}, "max_tokens": 1000,
                  "tools": ANTHROPIC_TOOLS, "messages": said(model, name)}
        whole = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for one in (whole, streamed):
            told = {"thinking": "", "text": "", "tool_use": []}
            for block in one.content:
                if block.type == "tool_use":
                    told["tool_use"].append((block.name, block.input))
                else:
                    told[block.type] += getattr(block, block.type)
            assert told == {"thinking": reasoning, "text": content, "tool_use": calls}
            assert one.stop_reason == ("tool_use" if calls else "end_turn")
        if calls:
            used = next(block for block in whole.content if block.type == "tool_use")
            client.messages.create(**{**fields, "max_tokens": 1, "messages": [
                *fields["messages"], {"role": "assistant", "content": whole.content},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": used.id, "content": "Rain."}]}]})
