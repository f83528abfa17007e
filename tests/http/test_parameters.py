# SPDX-License-Identifier: Apache-2.0
"""Every parameter of api/parameters.md is what the table says: honoured, refused by name unless its
value asks for nothing, or harmless. What is in no table is ignored, counted and logged."""

import json
import math
import re
import sys

import pytest
from harness import BINARY, ROOT

sys.path.append(str(ROOT / "tests/scripts"))
from write_parameters import DOCUMENTS

pytestmark = pytest.mark.builds("dev")  # rows of a table that one parser goes by

SAID = (ROOT / "api" / "parameters.md").read_text()
OF_COMPLETIONS, REST = SAID.split("## Chats")
OF_CHATS, REST = REST.split("## Messages")
OF_MESSAGES, OF_RESPONSES = REST.split("## Responses")
CHAT = "/v1/chat/completions"
VOCAB, EOS = 275, 0  # of the golden model
SMALL = {"prompt": [5], "max_tokens": 1}


def rows(table):
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
            if line.startswith("| `")]


def named(kind, table=OF_COMPLETIONS):
    return [row[0].strip("`") for row in rows(table) if row[2] == kind]


def accepted(table):
    return [(row[0].strip("`"), json.loads(value)) for row in rows(table)
            for value in re.findall(r"\S+", row[3].strip("`")) if row[2] == "refused"]


@pytest.mark.parametrize("name", ["parameters.md", "openapi.json"])
def test_the_documents_are_the_programs_table(name):
    said = (ROOT / "api" / name).read_text()
    assert said == DOCUMENTS[name](said, BINARY), "tests/scripts/write_parameters.py BINARY writes it"


@pytest.mark.parametrize("name", named("refused") + ["guided_something"])
def test_refused(server, name):
    for value in ("x", 7, [1], {"a": 1}):
        assert server.refuse(400, **SMALL, **{name: value})["code"] == "unsupported_parameter"
    assert server.refuse(400, **SMALL, **{name: "x"})["param"] == name


@pytest.mark.parametrize("name, value", accepted(OF_COMPLETIONS))
def test_asks_for_nothing(server, name, value):
    assert server.complete(**SMALL, **{name: value})
    assert server.complete(**SMALL, **{name: None})


def chat_error(server, **fields):
    reply = server.post(CHAT, {"messages": [], **fields})
    assert reply.status_code == 400
    return reply.json()["error"]


@pytest.mark.parametrize("name", named("refused", OF_CHATS))
def test_a_chat_refuses(server, name):
    for value in ("x", 7, [1], {"a": 1}):
        error = chat_error(server, **{name: value})
        assert (error["code"], error["param"]) == ("unsupported_parameter", name)


@pytest.mark.parametrize("name, value", accepted(OF_CHATS) + [
    (name, 7) for name in named("harmless", OF_CHATS)])
def test_a_chat_accepts(server, name, value):
    """The model has no template, which is found out afterwards."""
    assert chat_error(server, **{name: value})["param"] == "messages"


# Of each API whose table has all that it takes: its path, what a body must have, and the list that is
# looked at afterwards.
APIS = [("/v1/messages", OF_MESSAGES, {"max_tokens": 1}, "messages"),
        ("/v1/responses", OF_RESPONSES, {}, "input")]
NOT_YET = {"stream", "temperature", "top_p", "top_k", "model", "parallel_tool_calls", "user"}  # as in chats


def names_of(table):
    return {row[0].strip("`") for row in rows(table)}


def others(table):
    """What only completions and chats have."""
    return sorted({*named("honoured"), *named("refused"), *named("honoured", OF_CHATS)} - names_of(table))


def message_of(server, api, **fields):
    path, _, body, items = api
    reply = server.post(path, {items: [], **body, **fields})
    assert reply.status_code == 400
    return reply.json()["error"]["message"]


@pytest.mark.parametrize("api, name", [
    (api, name) for api in APIS for name in [*named("refused", api[1]), *others(api[1]), "guided_something"]])
def test_others_refuse(server, api, name):
    assert message_of(server, api, **{name: "x"}).startswith(f"{name} is not supported: ")


@pytest.mark.parametrize("api, name, value", [
    (api, name, value) for api in APIS
    for name, value in accepted(api[1]) + [(name, 7) for name in named("harmless", api[1])]])
def test_others_accept(server, api, name, value):
    assert message_of(server, api, **{name: value}) == f"{api[3]}: an empty list"


@pytest.mark.parametrize("api, name", [(api, name) for api in APIS for name in named("honoured", api[1])])
def test_others_honour(server, api, name):
    """A value of no type that it has is found; those of chats, which are read after the list, in
    test_messages.py and test_responses.py."""
    of_chats = [row[0].strip("`") for row in rows(api[1]) if row[1] == "regla"]
    if name not in {*of_chats, *NOT_YET}:
        wrong = 7 if name == "store" else True
        assert message_of(server, api, **{name: wrong}).startswith((f"{name}: ", f"{name}."))


def test_harmless(server):
    before = server.metric("regla_unknown_fields_total")
    drawn = {"prompt": [5], "max_tokens": 6, "seed": 3, "temperature": 1.5, "top_p": 0.5,
             "presence_penalty": 1, "repetition_penalty": 1.2, "ignore_eos": True}
    plain = server.complete(**drawn)["choices"]
    for name in named("harmless"):
        for value in (0, "x", [1], True):
            assert server.complete(**drawn, **{name: value})["choices"] == plain
    server.complete(**drawn, request_id="the-last")
    server.wait_logged("id=the-last")
    assert server.metric("regla_unknown_fields_total") == before


@pytest.mark.parametrize("name", named("honoured"))
def test_honoured_has_tests(name):
    """Some test beside this one sends it: name=... or "name": ..."""
    sends = re.compile(rf'(?<![\w.]){name}=|\\?"{name}\\?":|\("{name}", ')
    files = {*(ROOT / "tests" / "http").rglob("*.py"), *(ROOT / "tests" / "unit").glob("test_compl*.c")}
    assert any(sends.search(file.read_text()) for file in files - {ROOT / "tests/http/test_parameters.py"}
               ) or f"def test_{name}" in (ROOT / "tests/http/test_parameters.py").read_text()


def test_what_nobody_knows_is_counted_and_logged(server):
    before = server.metric("regla_unknown_fields_total")
    server.complete(**SMALL, temprature=0.5, frobnicate=None, another=[])
    server.wait_logged('warning="temprature: ')
    server.wait_metric(before + 2, "regla_unknown_fields_total")


# What came with the table

def test_max_completion_tokens(server):
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 3}):
        reply = server.complete(prompt=[5], ignore_eos=True, **fields)
        assert reply["usage"]["completion_tokens"] == 3
    error = server.refuse(400, prompt=[5], max_tokens=3, max_completion_tokens=4)
    assert error["param"] == "max_completion_tokens"


def test_truncation_side(server):
    def kept(**fields):
        choice = server.complete(prompt=list(range(5, 15)), max_tokens=1, return_token_ids=True,
                                 **fields)["choices"][0]
        return choice["prompt_token_ids"]
    assert kept(truncate_prompt_tokens=3) == [12, 13, 14]
    assert kept(truncate_prompt_tokens=3, truncation_side="left") == [12, 13, 14]
    assert kept(truncate_prompt_tokens=3, truncation_side="right") == [5, 6, 7]
    assert kept(truncate_prompt_tokens=30, truncation_side="right") == list(range(5, 15))
    assert kept(truncate_prompt_tokens=-1) == list(range(5, 15))  # nothing limits it
    assert server.refuse(400, **SMALL, truncation_side="middle")["param"] == "truncation_side"
    for value in (0, -2):
        assert server.refuse(400, **SMALL, truncate_prompt_tokens=value
                             )["param"] == "truncate_prompt_tokens"


def test_a_prompt_is_cut_to_what_leaves_room(server_factory):
    server = server_factory(max_model_len=20)
    for side, expected in (("left", list(range(20, 35))), ("right", list(range(5, 20)))):
        choice = server.complete(prompt=list(range(5, 35)), max_tokens=5, return_token_ids=True,
                                 truncate_prompt_tokens=-1, truncation_side=side)["choices"][0]
        assert choice["prompt_token_ids"] == expected
    error = server.refuse(400, prompt=list(range(5, 35)), max_tokens=20, truncate_prompt_tokens=-1)
    assert error["message"].startswith("This model's maximum context length is 20 tokens")


def test_usage_in_every_frame_needs_include_usage(server):
    alone = server.stream(**SMALL, stream_options={"continuous_usage_stats": True})
    assert all(frame.get("usage") is None for frame in alone)
    both = server.stream(**SMALL, stream_options={"continuous_usage_stats": True,
                                                  "include_usage": True})
    assert all(frame["usage"] for frame in both)


# Drawing

def byte(character):
    """The golden model's token of one byte."""
    return 1 + ord(character)


def distribution(server, prompt):
    """Log-probabilities of all tokens behind the prompt, a part of the vocabulary at a time."""
    found = {}
    for first in range(0, VOCAB, 128):
        choice = server.complete(prompt=prompt, max_tokens=1, logprobs=0, ignore_eos=True,
                                 return_tokens_as_token_ids=True,
                                 logprob_token_ids=list(range(first, min(first + 128, VOCAB)))
                                 )["choices"][0]
        found |= {int(name.removeprefix("token_id:")): value
                  for name, value in choice["logprobs"]["top_logprobs"][0].items()}
    return [found[token] for token in range(VOCAB)]


def test_logprob_token_ids(server):
    fields = {"prompt": [40, 41], "max_tokens": 3, "ignore_eos": True, "seed": 1, "logprobs": 1,
              "return_tokens_as_token_ids": True, "return_token_ids": True}
    plain = server.complete(**fields)["choices"][0]
    choice = server.complete(**fields, echo=True, logprob_token_ids=[7, 274, 7])["choices"][0]
    assert choice["token_ids"] == plain["token_ids"]
    tops = choice["logprobs"]["top_logprobs"]
    assert tops[0] is None and len(tops[1]) <= 2  # of the prompt: the best
    for token, top in zip(choice["token_ids"], tops[2:], strict=True):
        assert set(top) == {f"token_id:{i}" for i in (7, 274, token)}
    assert choice["logprobs"]["token_logprobs"][2:] == plain["logprobs"]["token_logprobs"]
    streamed = server.stream(**fields, logprob_token_ids=[7, 274])
    assert [top for frame in streamed for top in frame["choices"][0]["logprobs"]["top_logprobs"]
            ] == tops[2:]
    everything = distribution(server, [40, 41])
    assert sum(map(math.exp, everything)) == pytest.approx(1, abs=1e-4)
    assert everything[7] == tops[2]["token_id:7"]
    for wrong in ({"logprobs": None}, {"logprob_token_ids": list(range(129))},
                  {"echo": True, "max_tokens": 0}):
        assert server.refuse(400, **{**fields, "logprob_token_ids": [7], **wrong}
                             )["param"] == "logprob_token_ids"


def test_prompt_logprobs(server):
    prompt = [40, 41, 42, 43]
    fields = {"prompt": prompt, "max_tokens": 2, "n": 2, "seed": 1, "ignore_eos": True}
    plain = server.complete(**fields)["choices"]
    echoed = server.complete(**fields, echo=True, logprobs=2, return_tokens_as_token_ids=True
                             )["choices"][0]["logprobs"]
    assert all(choice["prompt_logprobs"] is None for choice in plain)
    reply = server.complete(**fields, prompt_logprobs=4)
    assert reply["usage"]["prompt_tokens_details"]["cache_miss_reason"] == "disabled"
    for choice, other in zip(reply["choices"], plain, strict=True):
        assert choice["text"] == other["text"] and choice["logprobs"] is None
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        for at, (token, entry) in enumerate(zip(prompt[1:], rest, strict=True), 1):
            assert next(iter(entry)) == str(token)  # the token itself comes first
            assert len(entry) == 4 + (entry[str(token)]["rank"] > 4)
            assert {entry[id]["rank"] for id in entry} >= {1, 2, 3, 4}
            assert entry[str(token)]["logprob"] == echoed["token_logprobs"][at]
            assert entry[str(token)]["decoded_token"] == chr(token - 1)
            for name, logprob in echoed["top_logprobs"][at].items():
                token = name.removeprefix("token_id:")
                assert entry[token]["logprob"] == logprob
    # rank and log-probability, against all of the vocabulary
    everything = distribution(server, prompt[:2])
    entry = reply["choices"][0]["prompt_logprobs"][2][str(prompt[2])]
    assert entry["rank"] == 1 + sum(value > everything[prompt[2]] for value in everything)
    # beside an echo with fewer, or more
    for logprobs, own in ((1, 3), (3, 1)):
        both = server.complete(**fields, echo=True, logprobs=logprobs, prompt_logprobs=own)
        assert [len(top) for top in both["choices"][0]["logprobs"]["top_logprobs"][1:]
                ] >= [logprobs] * 3
        assert all(own <= len(entry) <= own + 1
                   for entry in both["choices"][0]["prompt_logprobs"][1:])
    # a stream takes 0 only, as in vLLM
    frames = [frame["choices"][0]
              for frame in server.stream(**fields | {"max_tokens": 8}, prompt_logprobs=0)]
    assert len(frames) > 2
    for index in (0, 1):
        own = [frame["prompt_logprobs"] for frame in frames if frame["index"] == index]
        assert [list(entry) for entry in own[0][1:]] == [[str(token)] for token in prompt[1:]]
        assert set(own[1:]) <= {None}
    assert server.refuse(400, **fields, stream=True, prompt_logprobs=1)["param"] == "prompt_logprobs"


def test_prompt_logprobs_of_a_session(server):
    session = {"session_id": "ranked", "max_tokens": 0}
    server.complete(prompt=[40, 41], **session)
    whole = server.complete(prompt=[40, 41, 42, 43], max_tokens=1, prompt_logprobs=1)
    more = server.complete(prompt=[42, 43], **session, prompt_logprobs=1)
    assert more["choices"][0]["prompt_logprobs"] == [None, whole["choices"][0]["prompt_logprobs"][3]]
    server.http.delete("/v1/sessions/ranked")


def test_allowed_token_ids(server):
    fields = {"prompt": [40], "max_tokens": 24, "return_token_ids": True, "seed": 5}
    for more in ({}, {"temperature": 0}, {"top_k": 5, "logit_bias": {"90": 100}},
                 {"presence_penalty": 2}):
        choice = server.complete(**fields, **more, allowed_token_ids=[70, 80, 70])["choices"][0]
        assert set(choice["token_ids"]) <= {70, 80} and len(choice["token_ids"]) == 24
    ended = server.complete(**fields, allowed_token_ids=[EOS])["choices"][0]
    assert ended["finish_reason"] == "stop" and ended["token_ids"] == [EOS]
    everything = list(range(VOCAB))
    assert server.complete(**fields, allowed_token_ids=everything)["choices"] == \
        server.complete(**fields)["choices"]
    for more in ({"min_tokens": 1}, {"min_tokens": 1, "stop_token_ids": everything}):
        error = server.refuse(400, **fields, allowed_token_ids=[EOS], **more)
        assert error["param"] == "allowed_token_ids" and "no token is left" in error["message"]


def test_bad_words(server):
    a, b = byte("a"), byte("b")
    fields = {"prompt": [40], "max_tokens": 64, "seed": 3, "allowed_token_ids": [a, b, byte("c")],
              "logit_bias": {str(a): 50, str(b): 50}}
    for stream in (False, True):
        def text(stream=stream, **more):
            if stream:
                return "".join(frame["choices"][0]["text"] for frame in server.stream(**fields, **more))
            return server.complete(**fields, **more)["choices"][0]["text"]
        plain = text()
        assert set(plain) == set("ab") and "ab" in plain and "bb" in plain
        assert text(bad_words=[]) == plain
        assert set(text(bad_words=["a"])) == {"b"}
        assert set(text(bad_words=[" \u3000b"])) == {"a"}  # white space before it does not count
        without = text(bad_words=["ab"])
        assert "ab" not in without and set(without) >= set("ab")
        without = text(bad_words=["ab", "bb", "aaa", "no such thing"], temperature=0)
        assert not any(word in without for word in ("ab", "bb", "aaa")) and len(without) == 64
    # the prompt's end is no part of a word
    assert server.complete(prompt=[a], max_tokens=1, temperature=0, bad_words=["ab"],
                           allowed_token_ids=[b])["choices"][0]["text"] == "b"
    # n texts look back each for itself
    several = server.complete(**fields, n=4, bad_words=["ab", "ba"])["choices"]
    assert all("ab" not in choice["text"] and "ba" not in choice["text"] for choice in several)


def test_bad_words_behind_a_space(server):
    """A word that has a token of its own behind a space is banned with both."""
    def tokens(text):
        return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}
                           ).json()["tokens"]
    texts = {token: server.post("/detokenize", {"tokens": [token]}).json()["prompt"]
             for token in range(257, VOCAB)}
    single = [(token, text.strip()) for token, text in texts.items()
              if text.startswith(" ") and len(tokens(text.strip())) == 1]
    assert single, "the vocabulary has none"
    for token, word in single:
        plain = tokens(word)
        reply = server.complete(prompt=[40], max_tokens=20, bad_words=[word], return_token_ids=True,
                                logit_bias={str(token): 100, str(plain[0]): 100}, ignore_eos=True)
        assert not {token, plain[0]} & set(reply["choices"][0]["token_ids"])


def test_bad_words_that_leave_nothing(server):
    a = byte("a")
    fields = {"prompt": [40], "max_tokens": 9, "allowed_token_ids": [a]}
    error = server.refuse(400, **fields, bad_words=["aaa"])
    assert error["param"] == "bad_words" and "no token is left" in error["message"]
    *frames, last = server.stream(**fields, bad_words=["aaa"])
    assert "".join(frame["choices"][0]["text"] for frame in frames) == "aa"
    assert last["error"]["param"] == "bad_words"
    assert server.refuse(400, **fields, bad_words=["a"])["param"] == "allowed_token_ids"
    for words in (["  "], ["x"] * 1025, ["long " * 4000] * 5):
        assert server.refuse(400, prompt=[40], max_tokens=1, bad_words=words)["param"] == "bad_words"


def test_typical_p(server):
    prompt, n = [40, 41], 100
    fields = {"prompt": prompt, "max_tokens": 1, "n": n, "seed": 8, "ignore_eos": True,
              "return_token_ids": True}
    logs = distribution(server, prompt)
    entropy = -sum(math.exp(value) * value for value in logs)
    nearest = sorted(range(VOCAB), key=lambda token: abs(-logs[token] - entropy))
    for share in (0.05, 0.5):
        mass, kept = 0.0, set()
        for token in nearest:  # the next ones may be as near, but for the last digits of logprobs
            if mass >= share * 1.001:
                break
            kept.add(token)
            mass += math.exp(logs[token])
        drawn = {choice["token_ids"][0]
                 for choice in server.complete(**fields, typical_p=share)["choices"]}
        assert drawn <= kept and len(drawn) > 1
    plain = server.complete(**fields)["choices"]
    assert server.complete(**fields, typical_p=1)["choices"] == plain
    assert not {choice["token_ids"][0] for choice in plain} <= kept
    assert server.complete(**fields, typical_p=0.5)["choices"] == \
        server.complete(**fields, typical_p=0.5, top_p=1, min_p=0)["choices"]
    assert server.refuse(400, **SMALL, typical_p=0)["param"] == "typical_p"


def test_null_fields_that_clients_read(server):
    whole = server.complete(**SMALL)["choices"][0]
    frame = server.stream(**SMALL)[0]["choices"][0]
    for choice in (whole, frame):
        assert [choice[name] for name in ("logprobs", "stop_reason", "token_ids", "prompt_token_ids",
                                          "prompt_logprobs")] == [None] * 5


def test_values_that_ask_for_nothing(server):
    plain = server.complete(**SMALL, seed=1)["choices"]
    for fields in ({"bad_words": []}, {"response_format": {"type": "text"}}, {"suffix": ""},
                   {"model": ""}, {"logits_processors": []}, {"typical_p": 1}, {"stop": []}):
        assert server.complete(**SMALL, seed=1, **fields)["choices"] == plain
