# SPDX-License-Identifier: Apache-2.0
"""Sessions: whatever was done to one, it goes on as a run of its tokens from the beginning would."""

import itertools
import random

import openai
import pytest

from harness import GOLDEN, check_error, request_bytes, text_of, wait_until
from session_helpers import (GREEDY, Session, busy_session, cold, imported, is_free, position, same)

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")


# Continued, forked, rewound, moved

def test_turns_equal_one_run(server):
    session = Session(server, "turns")
    first = session.append("Once upon a time")
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for turn in range(5):
        before = len(session.ids)
        usage = session.append(f" and turn {turn}")["usage"]
        # All but the last token, which was drawn and not yet computed, is there.
        assert usage["prompt_tokens_details"]["cached_tokens"] == before - 1
        assert usage["prompt_tokens_details"]["cache_miss_reason"] == "none"
    view = session.get()
    assert view["checkpoints"] >= 1
    assert view["bytes"] == view["recurrent_bytes"] + view["kv_bytes"] > 0
    assert view["tier"] == "device"
    assert view["created"] <= view["used"]
    session.delete()


def test_an_empty_prompt_goes_on(server):
    session = Session(server, "goes-on")
    session.append("The beginning", max_tokens=6)
    session.append("", max_tokens=6)
    session.append("", max_tokens=1)
    assert session.ids == session.ids[:-13] + cold(server, session.ids[:-13], 13)["token_ids"]
    session.delete()


def test_only_a_prompt(server):
    session = Session(server, "prompt-only")
    reply = session.append("First this", max_tokens=0)
    assert reply["choices"][0]["text"] == ""
    session.append(" then that", max_tokens=0)
    session.append("", max_tokens=0)
    before = len(session.ids)
    usage = session.append(" and now", max_tokens=4)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == before
    session.delete()


def test_token_ids_are_appended_as_they_are(server):
    session = Session(server, "ids")
    session.append([5, 6, 7], max_tokens=3)
    session.append([8], max_tokens=3)
    assert session.ids[:3] == [5, 6, 7] and session.ids[6] == 8
    session.delete()


def test_truncate_prompt_tokens_cuts_the_new_prompt(server):
    session = Session(server, "cut")
    session.append([1, 2, 3], max_tokens=2)
    before = list(session.ids)
    session.append([4, 5, 6, 7], max_tokens=2, truncate_prompt_tokens=2)
    assert session.ids[:7] == before + [6, 7]
    session.delete()


@pytest.mark.parametrize("case", ["hybrid_regla", "gpt_neox_tf5", "regla", "gla", "sliding_t5"])
def test_random_histories(server_factory, case):
    """Forks, rewinds to any position, exports and imports at random points of a few lives."""
    server = server_factory(model=GOLDEN / case)
    draw = random.Random(case)
    vocabulary = 200
    limit = server.get("/v1/models").json()["data"][0]["max_model_len"] or 10 ** 9
    sessions = [Session(server, "s0")]
    for step in range(30):
        session = draw.choice(sessions)
        what = draw.choice(["append", "append", "fork", "rewind", "move", "delete"])
        if what == "append" or not session.ids:
            if len(session.ids) < limit - 40:
                session.append([draw.randrange(vocabulary) for _ in range(draw.randint(1, 20))],
                               max_tokens=draw.randint(0, 9))
        elif what == "fork":
            sessions.append(session.fork(f"s{step + 1}"))
        elif what == "rewind":
            session.rewind(draw.randint(0, len(session.ids)))
        elif what == "move":
            file = session.export()
            sessions.append(imported(server, f"s{step + 1}", file, session.ids))
        elif len(sessions) > 1:
            session.delete()
            sessions.remove(session)
    for session in sessions:
        if 0 < len(session.ids) < limit - 40:
            session.append("", max_tokens=3)
    listed = server.get("/v1/sessions").json()
    assert listed["object"] == "list"
    alive = {session.name: len(session.ids) for session in sessions if session.ids}
    assert {s["id"]: s["position"] for s in listed["data"] if s["position"]} == alive


def test_rewind_to_every_position(server):
    session = Session(server, "rewound")
    session.append("abcdefgh", max_tokens=6)
    whole = list(session.ids)
    for cut in range(len(whole), -1, -1):
        session.rewind(cut)
        fork = session.fork(f"rewound-{cut}")
        fork.append("xy", max_tokens=3)
        fork.delete()
    session.append("afresh", max_tokens=3)
    session.delete()


# What a session holds afterwards

def test_eos_or_stop_token_is_not_held(server):
    ids = cold(server, "to be stopped", 12)["token_ids"]
    stop = ids[5]
    reply = server.complete(prompt="to be stopped", session_id="stop-token", max_tokens=12,
                            stop_token_ids=[stop], **GREEDY)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["token_ids"] == ids[:ids.index(stop) + 1]
    held = choice["prompt_token_ids"] + choice["token_ids"][:-1]
    assert reply["session"]["position"] == len(held)
    Session(server, "stop-token", held).append(" and on", max_tokens=4)


def test_tokens_of_a_stop_string_are_held(server):
    biased = {"logit_bias": {"100": 100}, **GREEDY}
    whole = server.complete(prompt="strings", max_tokens=5, **biased)["choices"][0]["text"]
    stop = whole[1:3]
    reply = server.complete(prompt="strings", session_id="stop-string", max_tokens=30, stop=stop,
                            **biased)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    held = choice["prompt_token_ids"] + choice["token_ids"]
    assert reply["session"]["position"] == len(held)
    Session(server, "stop-string", held).append(" and on", max_tokens=4)


def test_store_false_leaves_it_as_it_was(server):
    session = Session(server, "read")
    session.append("what is there", max_tokens=4)
    before = session.get()
    for _ in range(2):
        reply = server.complete(prompt=" more", session_id="read", store=False, max_tokens=5,
                                **GREEDY)
        choice = reply["choices"][0]
        same(choice, cold(server, session.ids + choice["prompt_token_ids"], 5))
        assert reply["session"]["position"] == len(session.ids)
    assert session.get()["position"] == before["position"]
    session.append(" more", max_tokens=5)
    reply = server.complete(prompt="nobody", session_id="never-made", store=False, max_tokens=2)
    assert "session" not in reply
    assert position(server, "never-made") is None


@threads
def test_client_that_leaves(server):
    session = Session(server, "left")
    session.append("before", max_tokens=4)
    context = len(session.ids)
    with busy_session(server, "left", prompt=" after") as stream:
        frames = list(itertools.islice(stream, 20))
    seen = [token for frame in frames for choice in frame["choices"]
            for token in choice["token_ids"]]
    prompt = frames[0]["choices"][0]["prompt_token_ids"]
    held = position(server, "left")
    generated = held - context - len(prompt)
    assert generated >= len(seen) > 0
    session.ids += prompt
    # Only a beginning is compared: it may have gone on for long before its client was missed.
    known = min(generated, 200)
    expected = cold(server, session.ids, known)["token_ids"]
    assert seen == expected[:len(seen)]
    session.ids += expected
    session.rewind(len(session.ids))
    session.append(" and back", max_tokens=4)


@threads
def test_client_that_leaves_the_queue(server_factory):
    server = server_factory(max_running=1)
    session = Session(server, "waits")
    session.append("before", max_tokens=4)
    with busy_session(server, "runs"):
        for name in ("waits", "never-made"):
            with server.connect() as connection:
                connection.sendall(request_bytes("/v1/completions", {
                    "prompt": "in the queue", "session_id": name, "max_tokens": 5}))
                wait_until(lambda: server.metric("regla_requests_waiting") == 1, "it waits")
                check_error(server.post("/v1/sessions/waits/fork", {"id": "x"})
                            if name == "waits" else
                            server.http.delete("/v1/sessions/never-made"), 409, "session_busy")
            wait_until(lambda: server.metric("regla_requests_waiting") == 0, "it has left")
    assert position(server, "never-made") is None
    session.get()
    session.append(" after", max_tokens=4)


@threads
def test_cancelled_by_request(server):
    with busy_session(server, "asked", headers=("X-Request-Id: to-be-cancelled",)) as stream:
        assert server.post("/v1/requests/to-be-cancelled/cancel").status_code == 200
        frames = list(stream)
        assert frames[-1]["error"]["code"] == "cancelled"
        # Free before the last byte of the reply.
        assert is_free(server, "asked")
    seen = [token for frame in frames[:-1] for choice in frame["choices"]
            for token in choice["token_ids"]]
    prompt = frames[0]["choices"][0]["prompt_token_ids"]
    assert position(server, "asked") >= len(prompt) + len(seen)


@threads
def test_free_before_the_last_byte(server):
    """A client that sends its next turn as soon as it has the whole reply never meets a busy session."""
    for turn in range(60):
        fields = {"prompt": f"turn {turn}", "session_id": "quick", "max_tokens": 2}
        if turn % 2:
            server.complete(**fields)
        else:
            server.stream(**fields)
    assert server.complete(prompt="", max_tokens=0, session_id="quick")["session"]["position"] > 120


def test_prompt_that_is_too_long_leaves_it_as_it_was(server_factory):
    server = server_factory(max_model_len=40)
    session = Session(server, "short")
    session.append("0123456789", max_tokens=5)
    error = server.refuse(400, prompt="x" * 20, session_id="short", max_tokens=10)
    assert error["code"] == "context_length_exceeded"
    assert "the session holds 15 tokens, the prompt has 20 tokens and " in error["message"]
    session.get()
    error = server.refuse(400, prompt="x" * 50, session_id="fresh", max_tokens=1)
    assert error["code"] == "context_length_exceeded"
    assert position(server, "fresh") is None
    session.append("abc", max_tokens=5)


# expected_position, busy, names

def test_expected_position(server):
    reply = server.complete(prompt="start", session_id="expected", expected_position=0, max_tokens=3)
    held = reply["session"]["position"]
    for wrong in (0, held - 1, held + 1, 2 ** 40):
        error = server.refuse(412, prompt="x", session_id="expected", expected_position=wrong)
        assert error["code"] == "position_mismatch" and error["param"] == "expected_position"
        assert f"position {held}," in error["message"]
    error = server.refuse(412, prompt="x", session_id="expected-new", expected_position=3)
    assert "position 0," in error["message"]
    assert position(server, "expected-new") is None
    server.complete(prompt="x", session_id="expected", expected_position=held, max_tokens=1)
    error = server.refuse(412, prompt="x", session_id="expected", expected_position=held,
                          store=False)
    assert error["code"] == "position_mismatch"


@threads
def test_busy(server):
    with busy_session(server, "busy"):
        error = server.refuse(409, prompt="x", session_id="busy")
        assert error["code"] == "session_busy"
        reply = server.post("/v1/sessions/busy/fork", {"id": "busy-2"})
        check_error(reply, 409, "session_busy")
        assert "x-should-retry" not in reply.headers and "retry-after" in reply.headers
        check_error(server.post("/v1/sessions/busy/rewind", {"position": 0}), 409, "session_busy")
        check_error(server.get("/v1/sessions/busy/state"), 409, "session_busy")
        check_error(server.http.delete("/v1/sessions/busy"), 409, "session_busy")
        assert position(server, "busy-2") is None
    assert position(server, "busy") > 0
    assert server.http.delete("/v1/sessions/busy").status_code == 204


def test_names(server):
    for name in ("a", "A-z_0.9", "x" * 128):
        server.complete(prompt="x", session_id=name, max_tokens=0)
        assert position(server, name) > 0
        assert server.http.delete(f"/v1/sessions/{name}").status_code == 204
    for name in ("", "x" * 129, "a b", "a/b", "ä", "a\u0000b"):
        error = server.refuse(400, prompt="x", session_id=name)
        assert error["code"] == "invalid_value" and error["param"] == "session_id"
    for path in ("/v1/sessions/a%20b", "/v1/sessions/" + "x" * 129, "/v1/sessions/%C3%A4"):
        check_error(server.get(path), 400, "invalid_value", "id")
        check_error(server.http.delete(path), 400, "invalid_value", "id")
    server.complete(prompt="x", session_id="named", max_tokens=0)
    for body in ({"id": "a b"}, {"id": ""}, {"id": "x" * 129}):
        check_error(server.post("/v1/sessions/named/fork", body), 400, "invalid_value", "id")


@pytest.mark.parametrize("fields, param", [
    ({"n": 2}, "n"), ({"best_of": 2}, "best_of"), ({"prompt": ["a", "b"]}, "prompt"),
    ({"cache_salt": "s"}, "cache_salt"), ({"session_id": None, "expected_position": 0},
                                          "expected_position"),
    ({"session_id": 5}, "session_id"), ({"expected_position": "5"}, "expected_position"),
    ({"expected_position": -1}, "expected_position"), ({"store": "no"}, "store"),
    ({"max_tokens": 0, "session_id": None}, "max_tokens")])
def test_fields_that_do_not_go_together(server, fields, param):
    error = server.refuse(400, **{"prompt": "x", "session_id": "refused", **fields})
    assert error["param"] == param
    assert position(server, "refused") is None


@pytest.mark.parametrize("method, path, body, status, code", [
    ("GET", "", None, 404, "session_not_found"), ("DELETE", "", None, 404, "session_not_found"),
    ("POST", "/fork", {"id": "y"}, 404, "session_not_found"),
    ("POST", "/rewind", {"position": 0}, 404, "session_not_found"),
    ("GET", "/state", None, 404, "session_not_found"),
    ("POST", "/fork", {}, 400, "missing_required_parameter"),
    ("POST", "/fork", {"id": 1}, 400, "invalid_type"),
    ("POST", "/rewind", {}, 400, "missing_required_parameter"),
    ("POST", "/rewind", {"position": -1}, 400, "invalid_value"),
    ("POST", "", {}, 405, "method_not_allowed"), ("GET", "/fork", None, 405, "method_not_allowed"),
    ("DELETE", "/state", None, 405, "method_not_allowed"), ("GET", "/other", None, 404, "unknown_url")])
def test_refusals_of_the_session_endpoints(server, method, path, body, status, code):
    reply = server.http.request(method, "/v1/sessions/nobody" + path, json=body)
    check_error(reply, status, code)
    assert position(server, "y") is None


def test_rewind_and_fork_refusals(server):
    session = Session(server, "here")
    session.append("some tokens", max_tokens=2)
    error = check_error(server.post("/v1/sessions/here/rewind", {"position": len(session.ids) + 1}),
                        400, "invalid_value", "position")
    assert str(len(session.ids)) in error["message"]
    reply = server.post("/v1/sessions/here/fork", {"id": "here"})
    check_error(reply, 409, "session_exists")
    assert reply.headers["x-should-retry"] == "false"
    session.get()
    session.delete()


# Echo, streams, the openai client

def test_echo_is_of_the_own_prompt(server):
    session = Session(server, "echo")
    session.append("unheard", max_tokens=3)
    reply = server.complete(prompt="heard", session_id="echo", store=False, echo=True, max_tokens=3,
                            **{**GREEDY, "logprobs": 1})
    choice = reply["choices"][0]
    plain = cold(server, session.ids + choice["prompt_token_ids"], 3)
    assert choice["text"] == "heard" + plain["text"]
    own = len(choice["prompt_token_ids"])
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == own + 3
    assert logprobs["token_logprobs"][0] is None and logprobs["text_offset"][0] == 0
    # The others are those of the same tokens in a run from the beginning.
    whole = cold(server, session.ids + choice["prompt_token_ids"], 3, echo=True, logprobs=1)
    assert logprobs["token_logprobs"][1:] == whole["logprobs"]["token_logprobs"][len(session.ids) + 1:]
    reply = server.complete(prompt="heard", session_id="echo", store=False, echo=True, max_tokens=0)
    assert reply["choices"][0]["text"] == "heard"
    session.get()


def test_streams_say_the_session_with_the_usage(server):
    fields = {"session_id": "streamed", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    plain = server.stream(prompt="one", **fields)
    assert all("session" not in frame for frame in plain)
    frames = server.stream(prompt=" two", stream_options={"include_usage": True}, **fields)
    assert all("session" not in frame for frame in frames[:-1])
    assert frames[-1]["session"]["position"] == frames[-1]["usage"]["total_tokens"]
    again = server.complete(prompt="one", **{**fields, "session_id": "whole"})
    assert text_of(plain) == again["choices"][0]["text"]


def test_a_reply_without_room_leaves_the_session_as_it_was(server_factory):
    server = server_factory(max_body_memory="1M")
    held = server.complete(prompt="x", session_id="kept", max_tokens=3)["session"]["position"]
    for _ in range(2):
        reply = server.http.post("/v1/completions", json={
            "prompt": "y", "session_id": "kept", "max_tokens": 2400, "ignore_eos": True,
            "logprobs": 20}, headers={"Idempotency-Key": "again"})
        check_error(reply, 503, code="out_of_memory")
        assert server.get("/v1/sessions/kept").json()["position"] == held


def test_the_openai_client(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)

    def complete(**extra):
        return client.completions.create(model=server.model_id, prompt="hello", max_tokens=4,
                                         temperature=0, extra_body={"session_id": "openai", **extra})
    first = complete()
    held = first.session["position"]
    complete(expected_position=held)
    with pytest.raises(openai.APIStatusError) as refused:
        complete(expected_position=held)
    assert refused.value.status_code == 412
    with pytest.raises(openai.BadRequestError):
        complete(session_id="no such name")


def test_the_session_in_a_header(server):
    """X-Session-Id means session_id: proxies choose a server by it."""
    headers, body = {"X-Session-Id": "headed"}, {"prompt": [5, 6], "max_tokens": 2, "ignore_eos": True}
    reply = server.post("/v1/completions", body, headers=headers)
    assert reply.json()["session"] == {**reply.json()["session"], "id": "headed", "position": 4}
    reply = server.post("/v1/completions", {**body, "session_id": "headed", "expected_position": 4},
                        headers=headers)
    assert reply.json()["session"]["position"] == 8
    check_error(server.post("/v1/completions", {**body, "session_id": "other"}, headers=headers),
                400, "invalid_value", "session_id")
    check_error(server.post("/v1/completions", {**body, "session_id": 5}, headers=headers),
                400, "invalid_type", "session_id")
    for wrong in ("", "a b", "x" * 129, ".."):
        check_error(server.post("/v1/completions", body, headers={"X-Session-Id": wrong}),
                    400, "invalid_value", "X-Session-Id")
    check_error(server.post("/v1/completions", {**body, "n": 2}, headers=headers), 400,
                "invalid_value", "n")
    key = {"Idempotency-Key": "headed"}
    assert server.post("/v1/completions", body, headers={**headers, **key}).status_code == 200
    check_error(server.post("/v1/completions", body, headers={"X-Session-Id": "other", **key}), 422,
                "idempotency_mismatch")
    assert position(server, "headed") == 12
