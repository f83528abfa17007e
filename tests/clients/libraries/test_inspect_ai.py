# SPDX-License-Identifier: Apache-2.0
"""inspect-ai's model `openai-api`, by itself and below a task."""

import asyncio
import json

import openai
import pytest
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import generate
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams

SAID = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="Wie geht's? 世")]


@pytest.fixture
def model(server):
    return get_model(f"openai-api/regla/{server.model}", base_url=server.url, api_key="none", memoize=False,
                     config=GenerateConfig(max_tokens=8, temperature=0, max_retries=3))


@pytest.fixture
def ask(model):
    def generated(messages=SAID, tools=(), **config):
        return asyncio.run(model.generate(messages, list(tools), config=GenerateConfig(**config)))

    return generated


def test_text(server, ask):
    said, expected = ask(), server.chat()
    assert said.completion == expected["choices"][0]["message"]["content"]
    assert said.usage.output_tokens == expected["usage"]["completion_tokens"]
    reasons = {"length": "max_tokens", "stop": "stop"}
    assert said.stop_reason == reasons[expected["choices"][0]["finish_reason"]]


def test_several_choices_and_logprobs(server, ask):
    said = ask(num_choices=2, seed=4, temperature=1, logprobs=True, top_logprobs=2)
    expected = server.chat(n=2, seed=4, temperature=1)
    assert [choice.message.text for choice in said.choices] == [
        choice["message"]["content"] for choice in expected["choices"]]
    content = said.choices[0].logprobs.content
    assert content and all(len(entry.top_logprobs) == 2 for entry in content)


def test_calls_and_results(server, ask, chat):
    call = ToolCall(id="call_1", function="weather", arguments={"city": "Ulm"})
    said = ask([*SAID, ChatMessageAssistant(content="Wait.", tool_calls=[call]),
                ChatMessageTool(content="21 degrees", tool_call_id="call_1", function="weather")])
    arguments = json.dumps({"city": "Ulm"})
    assert said.completion == server.said([
        *chat, {"role": "assistant", "content": "Wait.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}])


def test_tools_reach_the_template(server, ask):
    tool = ToolInfo(name="ping", description="Pings.", parameters=ToolParams())
    assert ask(tools=[tool]).completion != ask().completion


def test_in_a_task(server, model, tmp_path):
    target = server.said([{"role": "user", "content": "Hi"}])
    task = Task(dataset=[Sample("Hi", target=target)], solver=generate(), scorer=match("exact"))
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.samples[0].output.completion == target


def test_too_long_is_a_reason_to_stop(ask, too_long):
    said = ask(too_long)
    assert said.stop_reason == "model_length" and "maximum context length" in said.completion


def test_refusals_are_not_tried_again(server, ask):
    before = server.refusals()
    with pytest.raises((openai.BadRequestError, RuntimeError), match="temperature"):
        ask(temperature=7)
    assert server.refusals() == before + 1
