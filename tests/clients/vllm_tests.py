# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's own tests run (run.sh has them), and what the model says to their questions."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
from script import Line, call

# Those that their files and ours (vllm/tests/utils.py) ask for.
MODELS = ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "claude-3-7-sonnet-latest"]
WEATHER = call("get_current_weather", country="Germany", unit="fahrenheit")
EVENT = json.dumps({"event_name": "Science fair", "date": "Friday", "participants": ["Alice", "Bob"]})
PLAN = json.dumps({"name": "John Smith", "email": "john@example.com", "plan_interest": "Enterprise",
                   "demo_requested": True})
LINES = [
    Line("1+1", "It is 2.", "One and one more."),
    Line("13 * 24", "312. QED", "Ten times 24, and three times 24."),
    Line("Multiply the result by 2", "30. QED.", "Twice 15."),
    Line("science fair", EVENT, "An event."),
    Line("Extract the key information", PLAN),
    Line("weather is in Berlin and the forecast", WEATHER, "The weather, then, and after it the forecast."),
    Line("weather is in Berlin?", WEATHER, "The weather, then."),
    Line("weather like in Paris", call("get_weather", latitude=48.9, longitude=2.4), "Where is Paris?"),
    Line("weather like in New York", call("get_current_weather", location="New York"), "A call."),
    Line("weather in Dallas", call("get_current_weather", city="Dallas")),
    Line("Call get_weather for Berlin and get_time for Tokyo",
         call("get_weather", location="Berlin") + "\n" + call("get_time", location="Tokyo"), "Two calls."),
    Line("Call the get_weather function", call("get_weather", location="Berlin"), "As it says."),
    Line("Cache coverage sentinel", "ok", length=2000),
    Line("Moby Dick", "Call me Ishmael. " * 20),
    Line("What is my real name again", "Mark", "What did they say?"),
    Line("What is my name again", "John", "What did they say?"),
    Line("", "I am well, and how are you?", "A greeting."),
]
# By file, the tests that run; None: all. README.md says why not the others. The first: of what it says
# nothing may have been read from a cache.
TESTS = {
    "entrypoints/anthropic/test_messages.py": [
        "test_anthropic_streaming", "test_simple_messages", "test_system_message", "test_anthropic_tool_call",
        "test_anthropic_tool_call_streaming", "test_anthropic_structured_output"],
    "entrypoints/openai/responses/test_basic.py": None,
    "entrypoints/openai/responses/test_structured_output.py": None,
    "entrypoints/openai/responses/test_function_call.py": None,
    "entrypoints/openai/responses/test_simple.py": [
        "test_basic", "test_reasoning_item", "test_streaming_output_consistency", "test_streaming_logprobs",
        "test_streaming_reasoning_tokens_e2e", "test_non_streaming_reasoning_tokens_e2e", "test_max_tokens",
        "test_extra_sampling_params", "test_streaming_types"],
    "entrypoints/openai/responses/test_stateful.py": [
        "test_previous_response_id", "test_two_responses_with_same_prev_id"],
    "entrypoints/openai/chat_completion/test_include_reasoning.py": None,
    "tool_use/test_chat_completions.py": [
        "test_chat_completion_without_tools", "test_chat_completion_with_tools",
        "test_response_format_with_tool_choice_required"],
}


def chosen(folder):
    """What pytest is told to run, of the tests that are in this folder."""
    for file, names in TESTS.items():
        yield from [folder / file] if names is None else [f"{folder / file}::{name}" for name in names]
