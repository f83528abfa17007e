# SPDX-License-Identifier: Apache-2.0
"""A folder and the GGUF file of the same checkpoint are one model to clients: tokens, templates, what
ends a text, embeddings, the author's sampling, logits. And sampling that an author recommends."""

import json
import shutil
import struct
import subprocess

import pytest

from harness import BINARY, GOLDEN

pytestmark = pytest.mark.builds("dev")  # loading, and one request after another

KINDS = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "text": (8, None), "u64": (10, "Q")}
DEFAULT = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}"
TOOLS = "with tools: " + DEFAULT
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
CHAT = [{"role": "user", "content": "It was a dark night"}]


def packed(kind, value):
    if kind == "text":
        return struct.pack("<Q", len(value)) + value.encode()
    return struct.pack("<" + KINDS[kind][1], value)


def with_keys(original, keys):
    """The bytes of a GGUF file with more keys, and one that fills up to the data's alignment."""
    def entry(key, kind, value):
        return packed("text", key) + struct.pack("<I", KINDS[kind][0]) + packed(kind, value)
    more = b"".join(entry(key, kind, value) for key, (kind, value) in keys.items())
    fill = -(len(more) + len(entry("general.fill", "text", ""))) % 32
    more += entry("general.fill", "text", "x" * fill)
    magic, version, tensors, count = struct.unpack_from("<4sIQQ", original)
    return struct.pack("<4sIQQ", magic, version, tensors, count + len(keys) + 1) + more + original[24:]


def with_control(original, ids):
    """The bytes of a GGUF file in which these tokens are of the type CONTROL."""
    key = b"tokenizer.ggml.token_type"
    first = original.index(key) + len(key) + 4 + 4 + 8
    changed = bytearray(original)
    for id_ in ids:
        changed[first + 4 * id_:first + 4 * id_ + 4] = packed("i32", 3)
    return bytes(changed)


def folder_of(path, generation, **tokenizer):
    shutil.copytree(GOLDEN / "dense_qwen3", path, ignore=shutil.ignore_patterns("*.gguf"))
    (path / "generation_config.json").write_text(json.dumps(generation))
    if tokenizer:
        (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return path


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """(folder, file) as servers."""
    from conftest import finish, start
    base = tmp_path_factory.mktemp("forms")
    folder = folder_of(base / "folder",
                       {"bos_token_id": 0, "eos_token_id": [0, 5], "do_sample": True, **SAMPLING},
                       tokenizer_class="PreTrainedTokenizerFast", bos_token="<|endoftext|>",
                       chat_template=[{"name": "default", "template": DEFAULT},
                                      {"name": "tool_use", "template": TOOLS}])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"<{id_}>": id_ for id_ in range(275, 279)}  # which the file has
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    file = base / "model.gguf"
    names = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
    keys = {"general.sampling." + names.get(key, key): ("i32" if key == "top_k" else "f32", value)
            for key, value in SAMPLING.items()}
    keys |= {"tokenizer.ggml.eot_token_id": ("u32", 5), "tokenizer.ggml.eom_token_id": ("u32", 2**32 - 1),
             "tokenizer.ggml.padding_token_id": ("u32", 2**32 - 1), "qwen3.pooling_type": ("u32", 3),
             "qwen3.expert_count": ("u32", 0), "tokenizer.chat_template": ("text", DEFAULT),
             "tokenizer.chat_template.tool_use": ("text", TOOLS)}
    original = with_control((GOLDEN / "dense_qwen3" / "model.gguf").read_bytes(), [0, 274])
    file.write_bytes(with_keys(original, keys))
    servers = [start(tmp_path_factory.mktemp("server"), model=model, served_model_name="one")
               for model in (folder, file)]
    yield servers
    for server in servers:
        finish(server)


def both(forms, path, body):
    """What both reply, which must be the same but for ids and times."""
    replies = []
    for server in forms:
        reply = server.post(path, body)
        differing = ("id", "created", "system_fingerprint", "timings")
        replies.append({key: value for key, value in reply.json().items() if key not in differing})
    assert replies[0] == replies[1], (path, body)
    return replies[0]


def test_both_forms_are_one_model(forms):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for text in ("It was a dark night,\n and 1234 <|endoftext|><unused274> über 世", " ", "x" * 300):
        assert both(forms, "/tokenize", {"prompt": text})["tokens"]
    assert both(forms, "/tokenize", {"messages": CHAT})["tokens"][-1] == 0
    with_tools = both(forms, "/tokenize", {"messages": CHAT, "tools": tools})
    assert both(forms, "/detokenize", {"tokens": with_tools["tokens"]})["prompt"].startswith("with tools")
    for body in ({"messages": CHAT}, {"messages": CHAT, "tools": tools}):
        assert both(forms, "/apply-template", body)["prompt"].endswith("It was a dark night<|endoftext|>")
    infos = [server.get("/tokenizer_info").json() for server in forms]
    assert infos[0] == infos[1] and infos[0]["eos_token"] == "<|endoftext|>"
    for end in (0, 5):
        body = {"prompt": "It", "max_tokens": 4, "logit_bias": {str(end): 100}, "temperature": 0}
        assert both(forms, "/v1/completions", body)["choices"][0]["finish_reason"] == "stop"
    assert "error" in both(forms, "/v1/embeddings", {"input": "It"})
    cards = [server.get("/v1/models").json()["data"][0] for server in forms]
    assert cards[0]["default_sampling_params"] == cards[1]["default_sampling_params"] == SAMPLING
    for name in ("family", "layer_types", "parameters", "dtype", "kv_bytes_per_token"):
        assert cards[0][name] == cards[1][name]
    body = {"prompt": "It was", "max_tokens": 16, "logprobs": 5, "prompt_logprobs": 3, "seed": 7,
            "n": 4, "ignore_eos": True, "return_token_ids": True}
    said = both(forms, "/v1/completions", body)
    assert both(forms, "/v1/completions", {**body, **SAMPLING})["choices"] == said["choices"]
    others = both(forms, "/v1/completions", {**body, "temperature": 1.5, "top_k": 0})
    assert others["choices"] != said["choices"]
    body = {"messages": CHAT, "max_tokens": 16, "seed": 3}
    assert (both(forms, "/v1/chat/completions", body)["choices"]
            == both(forms, "/v1/chat/completions", {**body, **SAMPLING})["choices"])


def test_the_log_says_the_sampling(forms):
    for server, source in zip(forms, ("generation_config.json", "general.sampling")):
        said = ", ".join(f"{key} {SAMPLING[key]:g}" for key in
                         ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))
        assert f"{said} by {source}, where requests say nothing" in server.tail(20000)
        assert "not applied" not in server.tail(20000)


@pytest.mark.parametrize("generation, flags, params", [
    ({"temperature": 0.7, "max_new_tokens": 5, "top_k": 50}, {}, {"temperature": 0.7, "top_k": 50}),
    ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, {}, {"temperature": 0, "top_p": 0.9}),
    ({"temperature": 7, "top_p": None, "min_p": "x", "top_k": 1.5, "repetition_penalty": 1.3}, {},
     {"repetition_penalty": 1.3}),
    (SAMPLING, {"generation_config": "off"}, {}),
    ({}, {}, {}),
])
def test_which_defaults_count(server_factory, tmp_path, generation, flags, params):
    server = server_factory(model=folder_of(tmp_path / "model", generation), **flags)
    assert server.get("/v1/models").json()["data"][0]["default_sampling_params"] == params
    body = {"prompt": "It was", "max_tokens": 12, "seed": 5, "ignore_eos": True}
    usual = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    assert server.complete(**body)["choices"] == server.complete(**body, **{**usual, **params})["choices"]
    for key, value in generation.items():
        wrong = key in usual and not (key in params or flags or value is None)
        assert (f"generation_config.json: {key}: expected" in server.tail(20000)) == wrong, key
    assert ("where requests say nothing" in server.tail(20000)) == bool(params)


def test_keys_of_config_json_count_without_the_other_file(server_factory, tmp_path):
    folder = folder_of(tmp_path / "model", {})
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 0.9}
    (folder / "config.json").write_text(json.dumps(config))
    card = server_factory(model=folder).get("/v1/models").json()["data"][0]
    assert card["default_sampling_params"] == {"top_p": 0.9}


def test_commands_sample_as_the_author_says(tmp_path):
    folder = folder_of(tmp_path / "model", {"temperature": 0.5, "top_k": 3}, chat_template=DEFAULT,
                       tokenizer_class="PreTrainedTokenizerFast")
    fixed = ["--max-tokens", "24", "--seed", "9", "--ignore-eos"]

    def text(command, *more):
        rest = ["--prompt", "It was"] if command == "generate" else []
        result = subprocess.run([str(BINARY), command, str(folder), *rest, *fixed, *more],
                                input="It was\n", capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout
    for command in ("generate", "chat"):
        said = text(command)
        assert said == text(command, "--temperature", "0.5", "--top-p", "1", "--top-k", "3")
        own = text(command, "--generation-config", "off")
        assert own == text(command, "--temperature", "0.8", "--top-p", "0.95", "--top-k", "0")
        assert own != said and text(command, "--top-k", "-1") != said
