# SPDX-License-Identifier: Apache-2.0
"""LiteLLM's proxy in front: its /v1/responses and /v1/messages, by both of the server's."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

KEY = "sk-4f9a7c2e81b6d3059a6e4c7f12d8b35e"
START_SECONDS = 300  # it imports for some 30 s on a loaded machine
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {"responses": [{"type": "function", "name": "weather", "description": "Of a city.",
                        "parameters": SCHEMA}],
         "messages": [{"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}]}


def entry(name, provider, model, base, key):
    return {"model_name": name, "litellm_params": {
        "model": f"{provider}/{model}", "api_base": base, "api_key": key}}


@pytest.fixture(scope="module")
def proxy(server, scripted, tmp_path_factory):
    """Its address. Its models are named by the server's API that it uses, and by the server."""
    folder = tmp_path_factory.mktemp("proxy")
    models = []
    for name, to, key in (("scripted", scripted, scripted.key), ("random", server, "none"),
                          ("locked", scripted, "sk-wrong")):
        models += [entry(f"{name}-responses", "openai", to.model, to.url, key),
                   entry(f"{name}-messages", "anthropic", to.model, to.host, key)]
    models.append(entry("unknown-responses", "openai", "gpt-9", server.url, "none"))
    (folder / "config.yaml").write_text(json.dumps({"model_list": models}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [Path(sys.executable).parent / "litellm", "--config", folder / "config.yaml",
               "--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log,
                                   env={**os.environ, "LITELLM_MASTER_KEY": KEY})
        try:
            wait_ready(address, process, folder / "log")
            yield address
        finally:
            process.terminate()
            process.wait(60)


def wait_ready(address, process, log):
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(address + "/health/liveliness", timeout=10).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.2)


@pytest.fixture(params=TOOLS)
def api(request):
    return request.param


@pytest.fixture
def ask(proxy, api):
    """ask(model, said, **fields): the proxy's reply, as bytes."""
    def create(model, said, **fields):
        data = json.dumps(body(api, said, model, **fields)).encode()
        request = urllib.request.Request(f"{proxy}/v1/{api}", data, {
            "Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as reply:
            return reply.read()

    return create


def body(api, said, model, max_tokens=1000, **fields):
    if api == "responses":
        return {"model": model, "input": said, "max_output_tokens": max_tokens, **fields}
    return {"model": model, "messages": [{"role": "user", "content": said}], "max_tokens": max_tokens,
            **fields}


def read(api, reply):
    """(thoughts, text, calls)"""
    if api == "messages":
        blocks = reply["content"]
        return ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
                "".join(block["text"] for block in blocks if block["type"] == "text"),
                [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"])
    items = reply["output"]
    return ("".join(part["text"] for item in items if item["type"] == "reasoning"
                    for part in item.get("content") or []),
            "".join(item["content"][0]["text"] for item in items if item["type"] == "message"),
            [(item["name"], json.loads(item["arguments"])) for item in items
             if item["type"] == "function_call"])


def gathered(api, stream):
    """What the events of a stream add up to."""
    events = [json.loads(line.removeprefix("data:")) for line in stream.decode().splitlines()
              if line.startswith("data:") and line != "data: [DONE]"]
    if api == "responses":
        last = [event for event in events if event["type"] == "response.completed"][-1]["response"]
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(texts) == read(api, last)[1]
        return last
    blocks = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name != "type":
                    blocks[-1][name] += value
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(blocks[-1]["partial_json"])
    return {"content": blocks}


def expected(api, server, said, **fields):
    asked = body(api, said, server.model, **fields)
    return read(api, server.post(f"/{api}", asked))


@pytest.mark.parametrize("said", ["[think]", "[call]", "[calls]"])
def test_thoughts_and_calls(scripted, ask, api, said):
    """Whole and streamed, with the tools of the same API."""
    wanted = expected(api, scripted, said, tools=TOOLS[api])
    model = f"scripted-{api}"
    assert read(api, json.loads(ask(model, said, tools=TOOLS[api]))) == wanted
    assert read(api, gathered(api, ask(model, said, tools=TOOLS[api], stream=True))) == wanted


@pytest.mark.parametrize("said", ["[think]", "[call]", "[calls]"])
def test_from_one_api_to_the_other(scripted, ask, api, said):
    """Thoughts become another thing there."""
    wanted = expected(api, scripted, said, tools=TOOLS[api])
    other = {"responses": "scripted-messages", "messages": "scripted-responses"}[api]
    assert read(api, json.loads(ask(other, said, tools=TOOLS[api])))[1:] == wanted[1:]


def test_all_that_it_sends_reaches_the_template(server, ask, api):
    said, fields = "Wie geht's? 世", {"max_tokens": 16, "temperature": 0}  # of responses it takes no fewer
    wanted = expected(api, server, said, tools=TOOLS[api], **fields)
    assert wanted[1] != expected(api, server, said, **fields)[1]
    reply = ask(f"random-{api}", said, tools=TOOLS[api], **fields)
    assert read(api, json.loads(reply)) == wanted


def test_errors(server, ask, api, too_long):
    """Have the server's words and status, and are not tried again."""
    def refused(*given, **fields):
        with pytest.raises(urllib.error.HTTPError) as raised:
            ask(*given, **fields)
        return raised.value.code, raised.value.read().decode()
    before = server.refusals()
    words = {"responses": "maximum context length", "messages": "prompt is too long"}[api]
    status, told = refused(f"random-{api}", too_long)
    assert status == 400 and words in told
    status, told = refused(f"random-{api}", "Hi", top_p=7)
    assert status == 400 and "top_p" in told
    assert server.refusals() == before + 2
    assert refused(f"locked-{api}", "Hi")[0] == 401
    if api == "responses":
        status, told = refused("unknown-responses", "Hi")
        assert status == 404 and "gpt-9" in told
