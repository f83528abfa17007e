# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: the reply to the text that the template makes of the messages, in the
chat API's shape."""

import json
import shutil
import struct
import threading
import time

import openai
import pytest

from harness import GOLDEN, check_error, read_frames
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

CHAT = "/v1/chat/completions"
TEMPLATE = """{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% for name in ('reasoning_content', 'thinking', 'reasoning') if m[name] is defined %}({{ m[name] }})
{%- endfor %}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}
{%- for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}
{%- endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}
{%- if mood is defined %}{{ mood }}{% endif %}{% if documents %}{{ documents | tojson }}{% endif %}
{%- if reasoning_effort is defined %}effort {{ reasoning_effort }}{% endif %}"""
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie geht's? 世"}]
BOS = "<|endoftext|>"  # which no tokenizer_config.json names
TEXT = "<system>Be brief.\n<user>Wie geht's? 世\n<assistant>"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "own.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory, template):
    from conftest import finish, start
    running = start(tmp_path_factory.mktemp("chat-server"), chat_template=template)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(server, **fields):
    reply = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refuse(server, code, param, **fields):
    reply = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 4, **fields})
    check_error(reply, 400, code, param)
    return reply.json()["error"]["message"]


def complete(server, prompt, **fields):
    return server.complete(prompt=prompt, add_special_tokens=False, max_tokens=8, temperature=0, **fields)


def test_the_same_as_a_completion_of_the_text(server):
    ours = chat(server, logprobs=True, top_logprobs=3, return_token_ids=True)
    theirs = complete(server, BOS + TEXT, logprobs=3, return_token_ids=True)
    choice, other = ours["choices"][0], theirs["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": other["text"], "refusal": None}
    assert choice["token_ids"] == other["token_ids"]
    assert ours["prompt_token_ids"] == other["prompt_token_ids"] and "prompt_token_ids" not in choice
    assert choice["finish_reason"] == other["finish_reason"]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == other["logprobs"]["token_logprobs"]
    joined = b"".join(bytes(entry["bytes"]) for entry in content)
    assert joined.decode(errors="replace") == choice["message"]["content"]
    for entry, tokens in zip(content, other["logprobs"]["top_logprobs"], strict=True):
        assert len(entry["top_logprobs"]) == 3
        best = max(tokens.values())
        assert entry["top_logprobs"][0]["logprob"] == best
    assert ours["object"] == "chat.completion" and ours["id"].startswith("chatcmpl-")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert ours["usage"][name] == theirs["usage"][name]


def test_tokenize(server):
    reply = server.post("/tokenize", {"messages": MESSAGES}).json()
    expected = server.post("/tokenize", {"prompt": BOS + TEXT, "add_special_tokens": False}).json()
    assert reply["tokens"] == expected["tokens"] and reply["tokens"]
    both = server.post("/tokenize", {"messages": MESSAGES, "prompt": "x"})
    check_error(both, 400, "invalid_value", "messages")


@pytest.mark.parametrize("fields, text", [
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                {"type": "text", "text": "b"}]}]},
     "<user>a\nb\n<assistant>"),
    ({"messages": [{"role": "user", "content": None, "name": None}]}, "<user>\n<assistant>"),
    ({"messages": [{"role": "user", "content": [
        "a", {"text": "b"}, {"type": "input_text", "text": "c"},
        {"type": "output_text", "text": "d", "annotations": []}, {"type": "refusal", "refusal": "e"}]}]},
     "<user>a\nb\nc\nd\ne\n<assistant>"),
    ({"messages": [{"role": "developer", "content": "a"}]}, "<system>a\n<assistant>"),
    ({"add_generation_prompt": False}, TEXT.removesuffix("<assistant>")),
    ({"chat_template_kwargs": {"mood": "glad"}}, TEXT + "glad"),
    ({"tools": [{"type": "function"}]}, TEXT.replace("<assistant>", '[{"type": "function"}]<assistant>')),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c "}],
      "continue_final_message": True}, "<user>a\n<assistant>b c "),
    ({"documents": [{"title": "t"}]}, TEXT + '[{"title": "t"}]'),
    ({"reasoning_effort": "low"}, TEXT + "effort low"),
    *(({"messages": [{"role": "assistant", "content": "a", name: "b"}]},
       "<assistant>a\n(b)(b)" + ("(b)" if name == "reasoning" else "") + "<assistant>")
      for name in ("reasoning_content", "thinking", "reasoning")),
    ({"messages": [{"role": "assistant", "reasoning_content": "a", "thinking": "b", "reasoning": "c"}]},
     "<assistant>\n(a)(b)(c)<assistant>"),
    *(({"messages": [{"role": "assistant",
                      "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]},
       f"<assistant>\nf{text}<assistant>")
      for arguments, text in (('{"b": [1], "a": "x"}', "b=[1];a=x;"), ({"b": 2}, "b=2;"), ("", ""),
                              ('{"b": [1, "x', "b=[1, 'x'];"), ("ls -l", "arguments=ls -l;"))),
])
def test_what_the_template_sees(server, fields, text):
    reply = server.post("/tokenize", {"messages": MESSAGES, **fields})
    expected = server.post("/tokenize", {"prompt": BOS + text, "add_special_tokens": False})
    assert reply.json()["tokens"] == expected.json()["tokens"]
    assert server.post("/apply-template", {"messages": MESSAGES, **fields}).json()["prompt"] == BOS + text


def test_apply_template_warns_of_what_no_chat_has(server):
    body = {"messages": MESSAGES, "model": server.model_id, "temperature": 1, "max_tokens": 3, "mirostat": 2,
            "guided_regex": "a", "response_format": {"type": "text"}, "parallel_tool_calls": True}
    assert "warnings" not in server.post("/apply-template", body).json()
    reply = server.post("/apply-template", {**body, "temprature": 1})
    warning, = reply.json()["warnings"]
    assert "temprature" in warning and warning in reply.headers["X-Regla-Warning"]


def test_apply_template_refuses_what_a_chat_refuses(server):
    for code, status, param, fields in (
            ("missing_required_parameter", 400, "messages", {}),
            ("missing_required_parameter", 400, "messages", {"prompt": "x"}),
            ("invalid_type", 400, "messages", {"messages": "x"}),
            ("invalid_value", 400, "chat_template_kwargs",
             {"messages": MESSAGES, "chat_template_kwargs": {"tools": []}}),
            ("model_not_found", 404, "model", {"messages": MESSAGES, "model": "other"})):
        check_error(server.post("/apply-template", fields), status, code, param)


def test_the_template_in_props(server):
    props = server.get("/props").json()
    assert props["chat_template"] == TEMPLATE and props["eos_token"] == props["bos_token"] == BOS


def test_streams(server):
    whole = chat(server, n=2, seed=1, temperature=1, logprobs=True)
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 1, "n": 2, "seed": 1, "logprobs": True,
            "stream": True, "stream_options": {"include_usage": True}}
    frames = read_frames(server.post(CHAT, body).content)
    for index, choice in enumerate(whole["choices"]):
        choices = [frame["choices"][0] for frame in frames if frame["choices"]]
        own = [one for one in choices if one["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in frame["delta"] for frame in own[1:])
        assert "".join(frame["delta"].get("content", "") for frame in own) == choice["message"]["content"]
        reasons = [frame["finish_reason"] for frame in own if frame["finish_reason"]]
        assert reasons == [choice["finish_reason"]]
        streamed = [entry for frame in own if frame["logprobs"] for entry in frame["logprobs"]["content"]]
        assert streamed == choice["logprobs"]["content"]
    assert frames[-1]["choices"] == [] and frames[-1]["usage"]["completion_tokens"] > 0
    assert all(frame["usage"] is None for frame in frames[:-1])
    assert {frame["object"] for frame in frames} == {"chat.completion.chunk"}


def test_ids_in_a_stream(server):
    whole = chat(server, return_token_ids=True)
    body = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "stream": True, "return_token_ids": True}
    first, *others = read_frames(server.post(CHAT, body).content)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in frame for frame in others)
    ids = [id for frame in others for id in frame["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert chat(server)["prompt_token_ids"] is None


def test_prompt_logprobs(server):
    fields = {"prompt_logprobs": 2, "return_token_ids": True}
    ours, theirs = chat(server, **fields), complete(server, BOS + TEXT, **fields)
    assert ours["prompt_logprobs"] == theirs["choices"][0]["prompt_logprobs"]
    assert chat(server)["prompt_logprobs"] is None
    body = {"messages": MESSAGES, "max_tokens": 2, "stream": True, "prompt_logprobs": 0}
    first, *others = read_frames(server.post(CHAT, body).content)
    own = [entry and dict(list(entry.items())[:1]) for entry in ours["prompt_logprobs"]]
    assert first["prompt_logprobs"] == own
    assert not any("prompt_logprobs" in frame for frame in others)


def test_listed_ids_stand_behind_the_token_itself(server):
    fields = {"logprobs": True, "max_tokens": 1, "return_tokens_as_token_ids": True,
              "allowed_token_ids": [42]}
    for listed, expected in ([7, 9], [42, 7, 9]), ([7, 42], [7, 42]):
        choice = chat(server, **fields, logprob_token_ids=listed)["choices"][0]
        entry = choice["logprobs"]["content"][0]
        assert entry["token"] == "token_id:42"
        top = [one["token"] for one in entry["top_logprobs"]]
        assert sorted(top) == sorted(f"token_id:{id}" for id in expected) and len(top) == len(expected)


def test_stop_strings(server):
    text = chat(server)["choices"][0]["message"]["content"]
    stop = text[len(text) // 2]
    choice = chat(server, stop=stop)["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["message"]["content"] == text.split(stop)[0]


def test_without_a_number_of_tokens_what_has_room(server_factory, template):
    server = server_factory(chat_template=template, max_model_len=64)
    reply = server.post(CHAT, {"messages": MESSAGES, "ignore_eos": True}).json()
    assert reply["usage"]["total_tokens"] == 64
    check_error(server.post(CHAT, {"messages": MESSAGES, "max_tokens": 64}), 400, "context_length_exceeded")
    long = {"messages": [{"role": "user", "content": "Tell me more. " * 50}], "ignore_eos": True}
    check_error(server.post(CHAT, long), 400, "context_length_exceeded")
    for least in (1, 3):
        reply = server.post(CHAT, {**long, "truncate_prompt_tokens": -1, "min_tokens": least})
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": 64 - least, "completion_tokens": least, "total_tokens": 64,
            "prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": 0}}
    for least in (60, 3000):
        reply = server.post(CHAT, {"messages": MESSAGES, "min_tokens": least})
        check_error(reply, 400, "context_length_exceeded")


@pytest.mark.builds("dev")
def test_a_reply_without_max_tokens_goes_to_the_end(server_factory, template):
    """Of the context, or where there is none to the flag's limit; also where several share memory."""
    body = {"messages": MESSAGES, "temperature": 0, "ignore_eos": True}
    server = server_factory(chat_template=template, default_max_tokens=2500)
    assert server.post(CHAT, body).json()["usage"]["completion_tokens"] == 2500
    assert server.post(CHAT, {**body, "min_tokens": 2600}).json()["usage"]["completion_tokens"] == 2600
    usage = server.post(CHAT, {**body, "n": 2}).json()["usage"]
    assert usage["completion_tokens"] == 5000
    limited = server_factory(chat_template=template, default_max_tokens=9, max_model_len=3000)
    assert limited.post(CHAT, body).json()["usage"]["total_tokens"] == 3000
    small = server_factory(chat_template=template, state_memory="4M", default_max_tokens=10**9)
    replies = [small.post(CHAT, {**body, "n": n, "stop_token_ids": list(range(0, 256, 2))})
               for n in (1, 8)]
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]


def test_min_tokens_raise_the_default(server):
    reply = server.post(CHAT, {"messages": MESSAGES, "min_tokens": 2100})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] >= 2100


def test_equal_conversations_share_their_prefix(server):
    long = [{"role": "user", "content": "Tell me more of it. " * 20}]
    first = chat(server, messages=long)
    answer = first["choices"][0]["message"]["content"]
    again = chat(server, messages=long)
    assert again["choices"][0]["message"]["content"] == answer
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("code, param, fields", [
    ("missing_required_parameter", "messages", {"messages": None}),
    ("invalid_type", "messages", {"messages": "hi"}),
    ("invalid_value", "messages", {"messages": []}),
    ("invalid_type", "messages", {"messages": ["hi"]}),
    ("invalid_type", "messages", {"messages": [{"content": "x"}]}),
    ("invalid_type", "messages", {"messages": [{"role": "user", "content": 5}]}),
    ("unsupported_parameter", "messages",
     {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("unsupported_parameter", "messages",
     {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}),
    ("invalid_type", "messages", {"messages": [{"role": "assistant", "tool_calls": [{"function": "f"}]}]}),
    ("invalid_type", "tools", {"tools": "x"}),
    ("invalid_type", "chat_template_kwargs", {"chat_template_kwargs": []}),
    ("invalid_value", "chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
    ("invalid_value", "continue_final_message",
     {"continue_final_message": True, "add_generation_prompt": True}),
    ("invalid_value", "top_logprobs", {"top_logprobs": 2}),
    ("invalid_type", "logprobs", {"logprobs": 2}),
    ("unsupported_parameter", "prompt", {"prompt": "x"}),
    ("invalid_value", "tool_choice", {"tool_choice": "required"}),
    ("unsupported_parameter", "functions", {"functions": [{}]}),
    ("invalid_value", "response_format", {"response_format": {"type": "xml"}}),
    ("unsupported_parameter", "echo", {"echo": True}),
    ("unsupported_parameter", "store", {"store": True}),
    ("unsupported_parameter", "chat_template", {"chat_template": "x"}),
    ("invalid_value", "temperature", {"temperature": 3}),
])
def test_refused(server, code, param, fields):
    refuse(server, code, param, **fields)


def test_asks_for_nothing(server):
    chat(server, tool_choice="auto", response_format={"type": "text"}, store=False,
         modalities=["text"], metadata={},
         service_tier="auto", parallel_tool_calls=True, functions=[], user="u")


def test_errors_of_the_template(server_factory, tmp_path):
    path = tmp_path / "strict.jinja"
    path.write_text("{% if messages[0].role != 'user' %}\n"
                    "{{ raise_exception('begin with the user') }}{% endif %}{{ messages[0].content + 1 }}")
    server = server_factory(chat_template=path)
    message = refuse(server, "invalid_value", "messages")
    assert message == "strict.jinja: line 2, column 4: the template refuses this: begin with the user"
    message = refuse(server, "invalid_value", "messages", messages=MESSAGES[1:])
    assert message.startswith("strict.jinja: line 2, column 79: unsupported operand types for +")


@threads
def test_a_template_that_never_ends(server_factory, tmp_path):
    path = tmp_path / "endless.jinja"
    path.write_text("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    server = server_factory(chat_template=path)
    assert "the template takes" in refuse(server, "invalid_value", "messages")
    assert server.get("/health").status_code == 200


@pytest.mark.builds("dev")  # of time; what the threads share, other chats test
def test_others_do_not_wait_for_a_slow_template(server_factory, tmp_path):
    """Three chats hold each as long as a rendering may take; short requests are done meanwhile."""
    path = tmp_path / "slow.jinja"
    path.write_text("{% set a = messages[0].content %}{% set b = a[:a|length//2] ~ 'b' %}"
                    "{% if a|length > 99 %}{% for i in range(99999) %}{% set x = a.find(b) %}{% endfor %}"
                    "{% endif %}hi")
    server = server_factory(chat_template=path)
    replies, waits, began = [], [], time.monotonic()
    short = (("/v1/completions", {"prompt": "It", "max_tokens": 1}), ("/tokenize", {"prompt": "It"}),
             (CHAT, {"messages": MESSAGES, "max_tokens": 1}), ("/tokenize", {"messages": MESSAGES}))

    def long_chat():
        replies.append(server.post(CHAT, {"messages": [{"role": "user", "content": "a" * 800_000}]}))
    chats = [threading.Thread(target=long_chat) for _ in range(3)]
    for thread in chats:
        thread.start()
    while any(thread.is_alive() for thread in chats):
        for path, body in short:
            sent = time.monotonic()
            assert server.post(path, body).status_code == 200
            waits.append(time.monotonic() - sent)
    took = time.monotonic() - began
    for reply in replies:
        check_error(reply, 400, "invalid_value", "messages")
        assert "slow.jinja: line 1" in reply.json()["error"]["message"]
        assert "of processor time" in reply.json()["error"]["message"]
    assert max(waits) < took / 3, (max(waits), took)
    assert len(waits) >= 12


@threads
def test_templates_take_of_the_memory_of_bodies(server_factory, tmp_path):
    path = tmp_path / "takes.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ 'a' * (n or 0) }}")
    small = server_factory(chat_template=path, max_body_memory="2M")
    messages = [{"role": "user", "content": "a" * 50_000}]
    for _ in range(3):
        reply = small.post("/tokenize", {"messages": messages, "chat_template_kwargs": {"n": 0}})
        assert reply.status_code == 200, reply.text
    reply = small.post("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"n": 1_200_000}})
    check_error(reply, 413, "request_too_large", "messages")
    assert "--max-body-memory" in reply.json()["error"]["message"]
    assert small.metric("regla_request_body_bytes") < 100_000


def test_a_file_that_is_no_template(server_factory, tmp_path):
    path = tmp_path / "broken.jinja"
    path.write_text("\n{% frobnicate %}")
    with pytest.raises(AssertionError, match="broken.jinja: line 2, column 4: the tag frobnicate is not"):
        server_factory(chat_template=path)


def copy_of(folder, **files):
    shutil.copytree(GOLDEN / "hybrid_regla", folder)
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    return folder


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "config:{{ messages[0].content }}"}


@pytest.mark.parametrize("files, tools, text", [
    ({"tokenizer_config__json": CONFIG}, None, "config:Be brief."),
    ({"tokenizer_config__json": CONFIG, "chat_template__jinja": "file"}, None, "file"),
    ({"tokenizer_config__json": {**CONFIG, "chat_template": [
        {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}}, None, "d"),
    ({"tokenizer_config__json": {**CONFIG, "chat_template": [
        {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}}, [{}], "t"),
    ({"chat_template__jinja": "file", "additional_chat_templates/tool_use__jinja": "for tools",
      "additional_chat_templates/rag__jinja": "{% other"}, None, "file"),
    ({"chat_template__jinja": "file", "additional_chat_templates/tool_use__jinja": "for tools"}, [{}],
     "for tools"),
    ({"tokenizer_config__json": {**CONFIG, "chat_template": None},
      "chat_template__json": {"chat_template": "processor"}}, [{}], "processor"),
])
def test_where_a_model_has_its_template(server_factory, tmp_path, files, tools, text):
    server = server_factory(model=copy_of(tmp_path / "model", **files))
    reply = server.post("/tokenize", {"messages": MESSAGES, "tools": tools}).json()
    expected = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
    assert reply["tokens"] == expected["tokens"]


def gguf_with(key, text, original):
    """A GGUF file of one more key, whose bytes keep the data's alignment; `text` ends in a comment."""
    size = 8 + len(key) + 4 + 8 + len(text) + len("{##}")
    text += "{#" + " " * (-size % 32) + "#}"
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", original)
    entry = struct.pack(f"<Q{len(key)}sIQ", len(key), key.encode(), 8, len(text)) + text.encode()
    return struct.pack("<4sIQQ", magic, version, tensors, keys + 1) + entry + original[24:]


def test_the_templates_of_a_gguf_file(server_factory, tmp_path):
    """The file is the only model of its folder, which names it."""
    folder = tmp_path / "model"
    folder.mkdir()
    original = (GOLDEN / "gpt_neox_tf4" / "model.gguf").read_bytes()
    template = "{{ bos_token }}gguf:{{ messages[0].content }}{{ eos_token }}"
    for key, text in ("tokenizer.chat_template", template), ("tokenizer.chat_template.tool_use", "tools"):
        original = gguf_with(key, text, original)
    for name in ("model-Q8_0.gguf", "mmproj-model.gguf"):
        (folder / name).write_bytes(original)
    server = server_factory(model=folder)
    assert server.get("/v1/models").json()["data"][0]["id"] == "model-Q8_0"
    reply = server.post("/tokenize", {"messages": MESSAGES}).json()
    expected = server.post("/tokenize", {"prompt": "gguf:Be brief.", "add_special_tokens": False}).json()
    config = json.loads((GOLDEN / "gpt_neox_tf4" / "config.json").read_text())
    assert reply["tokens"] == [config["bos_token_id"], *expected["tokens"], config["eos_token_id"]]
    reply = server.post("/tokenize", {"messages": MESSAGES, "tools": [{}]}).json()
    expected = server.post("/tokenize", {"prompt": "tools", "add_special_tokens": False}).json()
    assert reply["tokens"] == expected["tokens"]
    assert chat(server)["choices"][0]["message"]
    shutil.copyfile(folder / "model-Q8_0.gguf", folder / "model-F32.gguf")
    result = regla("info", folder)
    assert result.returncode == 1
    assert "expected one model, got 2 GGUF files, such as model-F32.gguf: name one" in result.stderr


@pytest.mark.parametrize("said, tokens", [
    (None, ("<|endoftext|>", "<|endoftext|>")),
    ({"eos_token": "a"}, ("<|endoftext|>", "a")),
    ({"bos_token": None, "eos_token": {"__type": "AddedToken", "content": "a"}}, ("", "a")),
])
def test_a_templates_tokens_are_those_of_the_model(server_factory, tmp_path, said, tokens):
    """As /tokenizer_info has them, unless tokenizer_config.json says others."""
    files = {"chat_template__jinja": "{{ bos_token }}|{{ eos_token }}"}
    if said:
        files["tokenizer_config__json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **said}
    server = server_factory(model=copy_of(tmp_path / "model", **files))
    info = server.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<|endoftext|>", "<|endoftext|>")
    reply = server.post("/tokenize", {"messages": MESSAGES, "return_token_strs": True}).json()
    text = server.post("/detokenize", {"tokens": reply["tokens"]}).json()["prompt"]
    assert text == f"{tokens[0]}|{tokens[1]}"


def test_parts_for_a_template_that_takes_them(server_factory, tmp_path):
    server = server_factory(model=copy_of(tmp_path / "model", chat_template__jinja=PARTS))
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    reply = server.post("/tokenize", {"messages": [{"role": "user", "content": parts}]}).json()
    expected = server.post("/tokenize", {"prompt": "[a][b]", "add_special_tokens": False}).json()
    assert reply["tokens"] == expected["tokens"]


def test_parts_for_the_template_that_takes_tools(server_factory, tmp_path):
    config = {**CONFIG, "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"},
                                          {"name": "tool_use", "template": PARTS}]}
    server = server_factory(model=copy_of(tmp_path / "model", tokenizer_config__json=config))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for tools, text in (([{}], "[a][b]"), ([], "a\nb")):
        reply = server.post("/tokenize", {"messages": [{"role": "user", "content": parts}], "tools": tools})
        expected = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert reply.json()["tokens"] == expected["tokens"]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_call_without_text_has_an_empty_one(server_factory, tmp_path, content):
    path = tmp_path / "joins.jinja"
    path.write_text("{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}")
    server = server_factory(chat_template=path)
    call = {"role": "assistant", **content, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    reply = server.post("/tokenize", {"messages": [MESSAGES[1], call]})
    assert reply.status_code == 200, reply.text
    text = "user:Wie geht's? 世;assistant:;"
    expected = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    assert reply.json()["tokens"] == expected.json()["tokens"]
    thought = {"role": "assistant", **content, "reasoning_content": "so"}
    reply = server.post("/tokenize", {"messages": [MESSAGES[1], thought]})
    assert reply.json()["tokens"] == expected.json()["tokens"]
    for without in ({"role": "assistant", "content": None}, {**call, "role": "user", "content": None}):
        assert "no attribute 'content'" in refuse(server, "invalid_value", "messages", messages=[without])


def test_a_model_whose_template_cannot_be_used(server_factory, tmp_path):
    server = server_factory(model=copy_of(tmp_path / "model", chat_template__jinja="{% include 'x' %}"))
    message = refuse(server, "unsupported_parameter", "messages")
    assert message == "messages: chat_template.jinja: line 1, column 4: the tag include is not supported"
    assert complete(server, "x")["choices"]


def test_the_openai_client(server, client):
    reply = client.chat.completions.create(model=server.model_id, messages=MESSAGES, max_completion_tokens=6,
                                           temperature=0, logprobs=True, top_logprobs=2)
    text = reply.choices[0].message.content
    assert reply.choices[0].message.role == "assistant"
    assert len(reply.choices[0].logprobs.content) == reply.usage.completion_tokens
    stream = client.chat.completions.create(model=server.model_id, messages=MESSAGES, max_completion_tokens=6,
                                            temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
