# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions with stream: frames to the letter, and the same content as without."""

import json

import pytest

from harness import RawReply, read_frames, request_bytes, text_of
from test_completions import LETTERS, PROMPT, byte

pytestmark = pytest.mark.builds("dev", "asan")  # one stream after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

EURO = [byte(value) for value in "€".encode()]
BROKEN = {str(token): 100 for token in [*EURO, byte(ord("a"))]}
KEYS = {"id", "object", "created", "model", "system_fingerprint", "choices"}


def both(server, **fields):
    """(choices of the plain reply, frames of the stream) of the same request."""
    fields = {"prompt": PROMPT, "max_tokens": 40, "seed": 7, "ignore_eos": True, **fields}
    return server.complete(**fields)["choices"], server.stream(**fields)


def raw_stream(server, fields):
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {**fields, "stream": True}))
        reply = RawReply(connection)
        status, headers = reply.head()
        return status, headers, list(reply.chunks())


def test_bytes_on_the_wire(server):
    status, headers, chunks = raw_stream(
        server, {"prompt": PROMPT, "max_tokens": 5, "logit_bias": LETTERS, "seed": 7})
    assert status == 200
    assert headers["content-type"].split(";")[0] == "text/event-stream"
    assert headers["transfer-encoding"] == "chunked"
    assert "no-cache" in headers["cache-control"]
    assert headers["x-request-id"]
    body = b"".join(chunks)
    frames = read_frames(body)
    assert len(frames) == 5
    for frame in frames:
        assert KEYS <= set(frame) and frame["object"] == "text_completion"
        choice, = frame["choices"]
        assert len(choice["text"]) == 1
    assert len({frame["id"] for frame in frames}) == 1
    assert [frame["choices"][0]["finish_reason"] for frame in frames] == [None] * 4 + ["length"]
    assert b": ping" not in body and body.count(b"\n") == 12


@threads
def test_frames_come_while_tokens_are_made(server):
    """The first frame is there long before the last token."""
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}))
        reply = RawReply(connection)
        reply.head()
        chunks = reply.chunks()
        assert b"[DONE]" not in next(chunks)
        assert server.metric("regla_requests_running") == 1
    server.wait_idle()


def test_concatenates_to_the_plain_reply(server):
    choices, frames = both(server, logit_bias=LETTERS)
    assert text_of(frames) == choices[0]["text"]
    assert len(frames) == 40


@pytest.mark.parametrize("seed", range(6))
def test_never_half_a_character(server, seed):
    """A choice among the bytes of € and a letter: whole and broken characters at random."""
    choices, frames = both(server, logit_bias=BROKEN, seed=seed, max_tokens=60,
                           return_token_ids=True)
    text = choices[0]["text"]
    assert text_of(frames) == text
    ids = [i for frame in frames for c in frame["choices"] for i in c.get("token_ids") or []]
    assert ids == choices[0]["token_ids"]
    assert bytes(i - 1 for i in ids).decode("utf-8", errors="replace") == text


def test_whole_characters_of_many_tokens_arrive_whole(server):
    """€ over and over cannot be forced, but wherever one was drawn its frame holds all of it."""
    seen = 0
    for seed in range(40):
        frames = server.stream(prompt=PROMPT, seed=seed, max_tokens=40, logit_bias=BROKEN)
        seen += sum("€" in choice["text"] for frame in frames for choice in frame["choices"])
    assert seen > 0


def test_include_usage(server):
    fields = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True}
    frames = server.stream(stream_options={"include_usage": True}, **fields)
    assert [len(frame["choices"]) for frame in frames[-2:]] == [1, 0]
    usage = frames[-1]["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    assert all(frame.get("usage") is None for frame in frames[:-1])
    without = server.stream(**fields)
    assert all(frame["choices"] and frame.get("usage") is None for frame in without)


def test_continuous_usage_stats(server):
    frames = server.stream(prompt=PROMPT, max_tokens=6, seed=7, logit_bias=LETTERS,
                           stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [frame["usage"]["completion_tokens"] for frame in frames] == [1, 2, 3, 4, 5, 6, 6]
    assert frames[-1]["choices"] == []


def test_running_usage_of_several_choices_never_falls(server):
    frames = server.stream(prompt=PROMPT, max_tokens=6, seed=7, n=3, logit_bias=LETTERS,
                           stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == sorted(counts) and counts[-1] == 18


def test_eos_ends_on_a_frame_without_text(server):
    frames = server.stream(prompt=PROMPT, max_tokens=8, min_tokens=3, logit_bias={
        "0": 100, str(byte(ord("z"))): 60}, temperature=0)
    assert text_of(frames) == "zzz"
    last = frames[-1]["choices"][0]
    assert last["finish_reason"] == "stop" and last["text"] == ""
    assert all(frame["choices"][0]["finish_reason"] is None for frame in frames[:-1])


def test_stop_string_is_never_leaked(server):
    whole = both(server, logit_bias=LETTERS)[0][0]["text"]
    for length in (1, 2, 3, 7):
        stop = whole[15:15 + length]
        choices, frames = both(server, logit_bias=LETTERS, stop=stop)
        assert text_of(frames) == choices[0]["text"] == whole[:whole.index(stop)]
        last = frames[-1]["choices"][0]
        assert last["finish_reason"] == "stop" and last["stop_reason"] == stop
        assert sum(frame["choices"][0]["finish_reason"] is not None for frame in frames) == 1


def test_possible_stop_string_is_held_back_then_given(server):
    """Every prefix of the stop string appears in the text, the whole of it never."""
    whole = both(server, logit_bias=LETTERS)[0][0]["text"]
    choices, frames = both(server, logit_bias=LETTERS, stop=[whole[5:12] + "!", whole[-4:] + "!"])
    assert text_of(frames) == choices[0]["text"] == whole
    seen = ""
    for frame in frames[:-1]:
        seen += frame["choices"][0]["text"]
        assert not whole.startswith(seen + "!") and len(seen) <= len(whole)
    assert frames[-1]["choices"][0]["finish_reason"] == "length"


def test_tokens_come_with_their_text(server):
    """Those whose text is held back wait with it; offsets are those of the whole reply."""
    letters = {str(byte(ord(letter))): 100 for letter in "ab"}
    for seed in range(40):
        choices, frames = both(server, logit_bias=letters, stop=["bba", "abab"], logprobs=1, seed=seed,
                               max_tokens=12)
        whole, offsets, ids = choices[0]["logprobs"], [], []
        told = frames[0]["choices"][0]["logprobs"]["text_offset"][0]
        for frame in frames:
            choice, = frame["choices"]
            told += len(choice["text"])
            offsets += choice["logprobs"]["text_offset"]
            ids += choice["logprobs"]["tokens"]
            assert choice["finish_reason"] or all(offset < told for offset in offsets), (seed, frames)
        assert offsets == whole["text_offset"] and ids == whole["tokens"], (seed, frames)


def test_include_stop_string(server):
    whole = both(server, logit_bias=LETTERS)[0][0]["text"]
    stop = whole[15:19]
    choices, frames = both(server, logit_bias=LETTERS, stop=stop, include_stop_str_in_output=True)
    assert text_of(frames) == choices[0]["text"] == whole[:whole.index(stop) + 4]


def test_logprobs_of_frames_join_to_the_plain_arrays(server):
    for fields in ({"logit_bias": BROKEN}, {"logit_bias": LETTERS, "stop": "hh"}, {"echo": True}):
        choices, frames = both(server, logprobs=2, return_token_ids=True, **fields)
        joined = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        ids = []
        for frame in frames:
            choice, = frame["choices"]
            ids += choice.get("token_ids") or []
            for name, values in (choice["logprobs"] or {}).items():
                joined[name] += values
        assert joined == choices[0]["logprobs"]
        assert ids == choices[0]["token_ids"]


def test_echo_comes_first(server):
    choices, frames = both(server, echo=True, logit_bias=LETTERS)
    assert text_of(frames) == choices[0]["text"]
    assert frames[0]["choices"][0]["text"].startswith(PROMPT)


def test_echo_alone(server):
    frames = server.stream(prompt=PROMPT, max_tokens=0, echo=True)
    assert text_of(frames) == PROMPT
    assert frames[-1]["choices"][0]["finish_reason"] == "length"


@threads
def test_many_choices_in_one_stream(server):
    prompts = [PROMPT, "Another"]
    choices, frames = both(server, prompt=prompts, n=3, logit_bias=LETTERS, max_tokens=20)
    for choice in choices:
        assert text_of(frames, choice["index"]) == choice["text"]
    ends = [choice["index"] for frame in frames for choice in frame["choices"]
            if choice["finish_reason"]]
    assert sorted(ends) == list(range(6))
    assert all(len(frame["choices"]) == 1 for frame in frames)


def test_errors_before_the_first_frame_are_plain(server):
    reply = server.post("/v1/completions", {"prompt": "x", "stream": True, "temperature": 9})
    assert reply.status_code == 400
    assert reply.headers["content-type"].split(";")[0] == "application/json"
    assert json.loads(reply.content)["error"]["param"] == "temperature"


@threads
def test_connection_is_kept_after_a_stream(server):
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(request_bytes("/v1/completions", {
                "prompt": "x", "max_tokens": 3, "stream": True}))
            reply = RawReply(connection)
            assert reply.head()[0] == 200
            read_frames(b"".join(reply.chunks()))
