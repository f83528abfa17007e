# SPDX-License-Identifier: Apache-2.0
"""Kept responses: what a reply of /v1/responses was is told again, and a conversation goes on from it as
if it had been sent whole, after a restart and on another server too."""

import contextlib
import itertools
import json
import random
import sqlite3
import threading
import time

import httpx
import pytest

from faults import Faults
from harness import SLOWNESS, check_error, wait_until
from redis_store import turn
from session_helpers import put
from stress_helpers import in_pool, kill, session_rows, size
from responses_helpers import (COUNT, CUSTOM, RESPONSES, SPACE, TEMPLATE, TOOL, as_kept, assistant,
                               call, calls_of, counted, events, gathered, message, output, said,
                               streamed, text_of, told_again, user)
from responses_helpers import bare as without_id

# Of capitals alone, which the tokenizer makes again of the text.
TURN = {"max_output_tokens": 6, "ignore_eos": True, "temperature": 0,
        "allowed_token_ids": list(range(66, 92))}


def path(response, rest=""):
    return f"{RESPONSES}/{response if isinstance(response, str) else response['id']}{rest}"


def get(server, response, status=200, rest="", **options):
    reply = server.get(path(response, rest), **options)
    assert reply.status_code == status, reply.text
    return reply.json()


def unknown(server, response, **options):
    """Nothing is kept of it, whatever is asked."""
    name = response if isinstance(response, str) else response["id"]
    for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        reply = server.http.request(method, path(name, rest), **options)
        error = check_error(reply, 404, "response_not_found", "response_id")
        assert error["message"] == f'there is no response "{name}"'
    for stream in (False, True):
        body = {"input": "hi", "previous_response_id": name, "stream": stream}
        check_error(server.post(RESPONSES, body, **options), 404, "previous_response_not_found",
                    "previous_response_id")
    del body["stream"]
    check_error(server.post(COUNT, body, **options), 404, "previous_response_not_found",
                "previous_response_id")


def usage(response):
    details = response["usage"]["input_tokens_details"]
    return response["usage"]["input_tokens"], details["cached_tokens"], details["cache_miss_reason"]


def items(*exchange):
    """What a conversation of these inputs and responses is when it is sent whole."""
    whole = []
    for part in exchange:
        whole += part["output"] if isinstance(part, dict) else [user(part)] if isinstance(part, str) else part
    return whole


def same_text(response, whole):
    assert text_of(response) == text_of(whole)
    assert response["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def check_goes_on(server, first, words="a", **fields):
    """A response that goes on from that to `words`; its reply is what the conversation gives that is sent
    whole, and all but the new tokens come from a state."""
    second = said(server, **TURN, input="b", previous_response_id=first["id"], **fields)
    assert second["previous_response_id"] == first["id"]
    held = first["usage"]["total_tokens"] - 1  # the last token was drawn, and not computed
    assert usage(second)[1] >= held and usage(second)[2] == "none"
    whole = said(server, **TURN, input=items(words, first, "b"), store=False, **fields)
    same_text(second, whole)
    count = counted(server, input="b", previous_response_id=first["id"], **fields)
    assert count == {"object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"]}
    return second


def test_it_is_told_again(chat_server):
    for fields in ({}, {"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.7}, {
            "tools": [TOOL, SPACE, CUSTOM], "include": ["reasoning.encrypted_content"]}):
        reply = chat_server.post(RESPONSES, {"input": "hi", **TURN, **fields})
        told = chat_server.get(path(reply.json()))
        assert told.content == reply.content and reply.json()["store"] is True
        assert told.headers["content-type"] == "application/json"
        stream = streamed(chat_server, **{**TURN, **fields})
        assert get(chat_server, stream) == stream
    # Without what the model would make anew.
    logprobs = said(chat_server, **TURN, include=["message.output_text.logprobs"], no_such_field=1)
    told = get(chat_server, logprobs)
    assert logprobs.pop("warnings") and logprobs["output"][0]["content"][0].pop("logprobs")
    assert told["output"][0]["content"][0].pop("logprobs") == [] and told == logprobs
    ended = said(chat_server, max_output_tokens=30, ignore_eos=True, stop=[" ", "e", "a", "o"])
    assert get(chat_server, ended) == ended



def test_a_conversation_goes_on(chat_server):
    first = said(chat_server, **TURN, input="a")
    second = check_goes_on(chat_server, first)
    third = said(chat_server, **TURN, input="c", previous_response_id=second["id"])
    assert usage(third)[1] >= second["usage"]["total_tokens"] - 1 and usage(third)[2] == "none"
    whole = said(chat_server, **TURN, input=items("a", first, "b", second, "c"), store=False)
    same_text(third, whole)
    stream = streamed(chat_server, **TURN, input="c", previous_response_id=second["id"])
    assert without_id(stream) == without_id(third)
    # From the first it goes on as before.
    check_goes_on(chat_server, first)


def test_calls_and_their_outputs(chat_server):
    """A call is in the response before, its output in the request."""
    wanted = {"tools": [TOOL, SPACE, CUSTOM]}
    for choice in ({"type": "function", "name": "weather"}, {"type": "custom", "name": "patch"}):
        first = said(chat_server, **wanted, input="a", max_output_tokens=600, temperature=1, seed=1,
                     tool_choice=choice, parallel_tool_calls=False)
        made, = calls_of(first)
        assert get(chat_server, first) == first
        told = [{"type": made["type"] + "_output", "call_id": made["call_id"], "output": "Rain."}]
        more = {**TURN, **wanted, "tool_choice": "none"}
        for ask in (said, streamed):
            second = ask(chat_server, **more, input=told, previous_response_id=first["id"])
            same_text(second, said(chat_server, **more, input=items("a", first, told), store=False))
        for fields in ({}, {"store": False}):
            wrong = {"input": [{**told[0], "call_id": "call_1"}],
                     "previous_response_id": first["id"], **fields}
            for stream in (False, True):
                error = check_error(chat_server.post(RESPONSES, {**wrong, "stream": stream}), 400)
                assert error["message"] == (
                    'input: 2: call_id: expected that of a call before it, got "call_1"')


def test_instructions_are_those_of_the_request(chat_server):
    """Those of the response before do not count: the front changes where they do."""
    first = said(chat_server, **TURN, input=[message("developer", "D"), user("a")], instructions="I")
    asked = [message("developer", "D"), user("a")]
    for now in ("I", "J", None):
        second = said(chat_server, **TURN, input="b", previous_response_id=first["id"], instructions=now)
        whole = said(chat_server, **TURN, input=items(asked, first, "b"), instructions=now, store=False)
        same_text(second, whole)
        assert second["instructions"] == now
        assert (usage(second)[2] == "none") == (now == "I")
        third = said(chat_server, **TURN, input=[message("developer", "E"), user("c")],
                     previous_response_id=second["id"], instructions=now)
        whole = said(chat_server, **TURN, instructions=now, store=False, input=items(
            asked, first, "b", second, [message("developer", "E"), user("c")]))
        same_text(third, whole)


def test_two_go_on_at_once(chat_server):
    first = said(chat_server, **TURN, input="fork")
    made = []

    def go_on(words):
        made.append(said(chat_server, **TURN, input=words, previous_response_id=first["id"]))
    threads = [threading.Thread(target=go_on, args=(f"branch {i % 4}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len({each["id"] for each in made}) == 8
    for each in made:
        assert usage(each)[1] >= first["usage"]["total_tokens"] - 1 and usage(each)[2] == "none"
        assert get(chat_server, each) == each


@pytest.mark.builds("dev")
def test_the_oldest_turns_go(server_factory):
    """Of what the model sees: they are kept all the same."""
    server = server_factory(max_model_len=300, chat_template=TEMPLATE)
    last, said_before = None, []
    for number in range(8):
        words = str(number) * 40
        asked = {**TURN, "instructions": "I", "truncation": "auto"}
        reply = said(server, **asked, input=words, previous_response_id=last and last["id"])
        said_before.append(words)
        same_text(reply, said(server, **asked, input=items(*said_before), store=False))
        said_before.append(reply)
        last = reply
    assert "oldest turns are left out" in last["warnings"][0]
    check_error(server.post(RESPONSES, {"input": "x", "previous_response_id": last["id"]}), 400,
                "context_length_exceeded")


def test_store_false_keeps_nothing(chat_server):
    first = said(chat_server, **TURN, input="a")
    for previous in (None, first["id"]):
        for ask in (said, streamed):
            reply = ask(chat_server, **TURN, input="b", store=False, previous_response_id=previous)
            assert reply["store"] is False and reply["previous_response_id"] == previous
            unknown(chat_server, reply)
    kept = said(chat_server, **TURN, input="b", previous_response_id=first["id"])
    same_text(kept, reply)


def test_a_deleted_one_is_gone(chat_server):
    first = said(chat_server, **TURN, input="a")
    second = check_goes_on(chat_server, first)
    reply = chat_server.http.delete(path(first))
    assert reply.status_code == 200
    assert reply.json() == {"id": first["id"], "object": "response", "deleted": True}
    unknown(chat_server, first)
    # What went on from it has all of it.
    third = said(chat_server, **TURN, input="c", previous_response_id=second["id"])
    whole = said(chat_server, **TURN, input=items("a", first, "b", second, "c"), store=False)
    same_text(third, whole)
    for name in ("resp_1", "resp_" + "0" * 32, "x", "resp_%22", "resp_" + "a" * 130):
        if name.startswith("resp_") and "%" not in name and len(name) < 129:
            unknown(chat_server, name)
        else:
            check_error(chat_server.get(path(name)), 404, "response_not_found")


def test_of_another_key(server_factory, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("mine\nyours\n")
    server = server_factory(api_key_file=keys, chat_template=TEMPLATE)
    mine, yours = ({"headers": {"Authorization": f"Bearer {key}"}} for key in ("mine", "yours"))
    first = server.post(RESPONSES, {"input": "a", **TURN}, **mine).json()
    unknown(server, first, **yours)
    assert get(server, first, **mine) == first
    server.http.headers.update(mine["headers"])
    assert server.post(RESPONSES, {"input": "b", **TURN, "previous_response_id": first["id"]},
                       **mine).status_code == 200


def test_after_a_restart(server_factory, tmp_path):
    flags = {"state_dir": tmp_path / "state", "chat_template": TEMPLATE}
    server = server_factory(**flags)
    first = said(server, **TURN, input="a")
    second = streamed(server, **TURN, input="b", previous_response_id=first["id"])
    gone = said(server, **TURN, input="gone")
    assert server.http.delete(path(gone)).status_code == 200
    kill(server)
    server = server_factory(**flags, reasoning="off")  # whatever a parser would make of it now
    assert get(server, first) == first and get(server, second) == second
    unknown(server, gone)
    again = said(server, **TURN, input="b", previous_response_id=first["id"])
    assert without_id(again) == without_id(second)
    check_goes_on(server, first)


def test_on_another_server(redis, server_factory):
    one, other = (server_factory(store=redis.location, chat_template=TEMPLATE) for _ in range(2))
    first = said(one, **TURN, input="a")
    second = said(other, **TURN, input="b", previous_response_id=first["id"])
    whole = said(one, **TURN, input=items("a", first, "b"), store=False)
    same_text(second, whole)
    for server in (one, other):
        assert get(server, first) == first and get(server, second) == second
        assert server.get("/v1/sessions").json()["data"] == []
    read = said(one, **TURN, input="c", previous_response_id=second["id"], store=False)
    third = streamed(one, **TURN, input="c", previous_response_id=second["id"])
    same_text(third, read)
    assert one.http.delete(path(second)).status_code == 200
    unknown(other, second)
    assert get(other, third) == third


def test_the_items_of_a_request(chat_server):
    asked = [message("developer", "D"), user("a"), {"type": "message", "id": "msg_mine", **assistant("b")},
             call(1), output(1, "Rain."), user("c")]
    response = said(chat_server, **TURN, input=asked, tools=[TOOL])
    bare = response["id"].removeprefix("resp_")

    def listed(**query):
        return get(chat_server, response, rest="/input_items", params=query)
    page = listed(order="asc")
    ids = [item["id"] for item in page["data"]]
    assert ids == [f"msg_{bare}_in_0", f"msg_{bare}_in_1", "msg_mine", "fc_1", f"fco_{bare}_in_4",
                   f"msg_{bare}_in_5"]
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == (
        "list", False, ids[0], ids[-1])
    assert page["data"][1]["content"] == [{"type": "input_text", "text": "a"}]
    assert page["data"][2]["content"] == [{"type": "output_text", "text": "b", "annotations": []}]
    assert page["data"][3] == {**call(1), "status": "completed"}
    assert [item["id"] for item in listed()["data"]] == ids[::-1]
    for order, wanted in (("asc", ids), ("desc", ids[::-1])):
        after, found = {}, []
        while True:
            page = listed(order=order, limit=4, **after)
            found += [item["id"] for item in page["data"]]
            after = {"after": page["last_id"]}
            if not page["has_more"]:
                break
        assert found == wanted
    last = listed(after=ids[0])
    assert (last["data"], last["first_id"], last["last_id"], last["has_more"]) == ([], None, None, False)
    for query in ({"limit": 0}, {"limit": "x"}, {"limit": 101}, {"order": "up"}, {"after": "msg_other"},
                  {"after": ""}):
        reply = chat_server.get(path(response, "/input_items"), params=query)
        check_error(reply, 400, "invalid_value", *query)
    text = said(chat_server, **TURN, input="hi", previous_response_id=response["id"])
    item, = get(chat_server, text, rest="/input_items")["data"]
    assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": "hi"}])


def test_a_stream_is_told_again(chat_server):
    """With the numbers it had, from behind any of them; `streamed` compares all of each stream."""
    body = {"input": "hi", "stream": True, "tools": [TOOL, SPACE, CUSTOM], "tool_choice": "required",
            "max_output_tokens": 600, "temperature": 1, "seed": 1}
    found = events(chat_server.post(RESPONSES, body).content)
    name, kept = found[0]["response"]["id"], as_kept(found)
    assert len(kept) > 20
    for after in (0, 1, 2, 7, len(kept) - 2):
        assert told_again(chat_server, name, after) == kept[after + 1:]
    assert told_again(chat_server, name, len(kept) - 1) == told_again(chat_server, name, 10**15) == []
    streamed(chat_server, include=["message.output_text.logprobs"], ignore_eos=True)
    streamed(chat_server, include=["message.output_text.logprobs"], stop=["e", " ", "a", "o", "t"])
    for most in (30, 60, 90):  # calls that are cut
        for tool in (TOOL, CUSTOM):
            streamed(chat_server, tools=[tool], tool_choice="required", max_output_tokens=most)


def test_what_had_no_stream_is_told_as_one(chat_server):
    """Each item in one delta."""
    for fields in (TURN, {"tools": [TOOL, SPACE, CUSTOM], "tool_choice": "required", "temperature": 1,
                          "seed": 1, "max_output_tokens": 600}):
        response = said(chat_server, **fields)
        found = told_again(chat_server, response["id"])
        assert gathered(found) == response == found[-1]["response"]
        deltas = [event["output_index"] for event in found if event["type"].endswith(".delta")]
        assert deltas == list(range(len(response["output"])))


def test_a_count_behind_a_response_warns(chat_server):
    first = said(chat_server, **TURN)
    for more in ({}, {"previous_response_id": first["id"]}):
        assert "tempertaure" in json.dumps(counted(chat_server, input="b", tempertaure=1, **more)["warnings"])


def test_bad_queries(chat_server):
    response = said(chat_server, **TURN)
    for query in ({"starting_after": 3}, {"stream": "false", "starting_after": 3}, {"stream": "yes"},
                  {"stream": "true", "starting_after": -1}, {"stream": "true", "starting_after": "x"},
                  {"stream": "true", "starting_after": ""}, {"stream": "true", "starting_after": "9" * 30},
                  {"stream": "true", "starting_after": 2**63 - 1}):
        reply = chat_server.get(path(response), params=query)
        wrong = "stream" if query.get("stream") == "yes" else "starting_after"
        check_error(reply, 400, "invalid_value", wrong)
    assert get(chat_server, response, params={"stream": "false"}) == response
    for query in ({"include": "message.output_text.logprobs"}, {"include[]": "x"}):
        for rest in ("", "/input_items"):
            reply = chat_server.get(path(response, rest), params=query)
            check_error(reply, 400, "unsupported_parameter", "include")


def test_cancel(chat_server):
    """Of a stream that runs: what it said is kept, and can be gone on from."""
    body = {**TURN, "input": "a", "max_output_tokens": 100_000, "stream": True}
    with chat_server.http.stream("POST", RESPONSES, json=body) as reply:
        parts = reply.iter_bytes()
        got = b""
        while b"output_text.delta" not in got:
            got += next(parts)
        name = name_of(got)
        for query in ({}, {"stream": "true"}):
            error = check_error(chat_server.get(path(name), params=query), 409, "session_busy", "response_id")
            assert error["message"].startswith(f'the response "{name}" is still being made')
        cancelled = chat_server.post(path(name, "/cancel"))
        got += b"".join(parts)
    assert cancelled.status_code == 200, cancelled.text
    last = gathered(events(got))
    assert cancelled.json() == last == get(chat_server, name) and last["status"] == "cancelled"
    assert told_again(chat_server, name) == as_kept(events(got))
    second = said(chat_server, **TURN, input="b", previous_response_id=name)
    same_text(second, said(chat_server, **TURN, input=items("a", last, "b"), store=False))
    error = check_error(chat_server.post(path(second, "/cancel")), 400, "invalid_value", "response_id")
    assert "which has ended" in error["message"]
    # One that is not kept.
    with chat_server.http.stream("POST", RESPONSES, json={**body, "store": False}) as reply:
        parts = reply.iter_bytes()
        got = next(parts)
        name = name_of(got)
        check_error(chat_server.post(path(name, "/cancel")), 409, "cancelled")
        got += b"".join(parts)
    assert gathered(events(got))["status"] == "cancelled"
    unknown(chat_server, name)


def test_cancel_at_any_place(chat_server):
    """Within a character too: the stream's end counts tokens that have told nothing, as what is kept does."""
    for number in range(24):
        body = {**TURN, "input": f"a{number}", "temperature": 1, "max_output_tokens": 100_000, "stream": True,
                "allowed_token_ids": [66, 0x91, 0xF1]}  # "A", parts of a character of four bytes
        with chat_server.http.stream("POST", RESPONSES, json=body) as reply:
            parts = reply.iter_bytes()
            got = b""
            while got.count(b"output_text.delta") <= number % 6:
                got += next(parts)
            cancelled = chat_server.post(path(name_of(got), "/cancel"))
            got += b"".join(parts)
        assert cancelled.json() == gathered(events(got)), number


def name_of(got):
    """Of the response whose stream begins so."""
    return json.loads(got.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]


def test_cancel_of_one_that_waits(server_factory):
    """It has said nothing: nothing of it is kept."""
    server = server_factory(max_running=1, chat_template=TEMPLATE)
    body = {**TURN, "input": "a", "max_output_tokens": 100_000, "stream": True}
    with server.http.stream("POST", RESPONSES, json=body) as first:
        running = first.iter_bytes()
        begun = next(running)
        with server.http.stream("POST", RESPONSES, json=body) as waits:
            parts = waits.iter_bytes()
            got = next(parts)
            check_error(server.post(path(name_of(got), "/cancel")), 409, "cancelled")
            got += b"".join(parts)
        assert gathered(events(got))["status"] == "cancelled"
        unknown(server, name_of(got))
        assert server.post(path(name_of(begun), "/cancel")).status_code in (200, 409)
        begun += b"".join(running)
    assert gathered(events(begun))["status"] == "cancelled"


def test_a_client_that_leaves(chat_server):
    """What was said until then is kept, as of a session."""
    body = {**TURN, "input": "leaves", "max_output_tokens": 100_000, "stream": True}
    with chat_server.http.stream("POST", RESPONSES, json=body) as reply:
        got = b""
        for part in reply.iter_bytes():
            got += part
            if b"output_text.delta" in got:
                break
    name = name_of(got)
    wait_until(lambda: chat_server.get(path(name)).status_code == 200, "it is kept")
    assert get(chat_server, name)["status"] == "cancelled"


def test_names_of_responses_are_no_sessions(chat_server):
    response = said(chat_server, **TURN)
    name = response["id"]
    chat_server.complete(prompt="x", session_id="other", max_tokens=1)
    body = {"prompt": "x", "max_tokens": 1, "session_id": name}
    headers = {"X-Session-Id": name}
    file = chat_server.get("/v1/sessions/other/state").content
    for reply, param in (
            (chat_server.post("/v1/completions", body), "session_id"),
            (chat_server.post("/v1/completions", {**body, "session_id": "resp_"}), "session_id"),
            (chat_server.post("/v1/completions", {"prompt": "x"}, headers=headers), "X-Session-Id"),
            (chat_server.post("/v1/chat/completions", {"messages": [user("x")], "session_id": name}),
             "session_id"),
            (chat_server.post("/v1/sessions/other/fork", {"id": "resp_1"}), "id"),
            (chat_server.post(f"/v1/sessions/{name}/fork", {"id": "fork"}), "id"),
            (chat_server.post(f"/v1/sessions/{name}/rewind", {"position": 1}), "id"),
            (chat_server.get(f"/v1/sessions/{name}"), "id"),
            (chat_server.get(f"/v1/sessions/{name}/tokens"), "id"),
            (chat_server.get(f"/v1/sessions/{name}/state"), "id"),
            (chat_server.http.delete(f"/v1/sessions/{name}"), "id"),
            (put(chat_server, "resp_2", file), "id")):
        error = check_error(reply, 400, "invalid_value", param)
        assert "names that begin with resp_ are those of responses" in error["message"]
    assert [card["id"] for card in chat_server.get("/v1/sessions").json()["data"]] == ["other"]
    assert get(chat_server, response) == response


def test_a_salt(chat_server):
    """Without `store` it goes first: nothing is kept under one."""
    reply = said(chat_server, **TURN, cache_salt="s")
    assert reply["store"] is False and reply["warnings"] == [
        "cache_salt: the response is not kept: store is false with it"]
    unknown(chat_server, reply)
    first = said(chat_server, **TURN)
    for fields in ({"store": True}, {"previous_response_id": first["id"]}):
        check_error(chat_server.post(RESPONSES, {"input": "a", "cache_salt": "s", **fields}), 400,
                    "invalid_value", "cache_salt")


def test_a_repeated_request_is_one_response(chat_server):
    for stream in (False, True):
        body = {**TURN, "input": "hi", "stream": stream}
        key = {"Idempotency-Key": f"kept {stream}"}
        first, again = (chat_server.post(RESPONSES, body, headers=key) for _ in range(2))
        assert first.content == again.content and again.headers["idempotent-replayed"] == "true"
        response = gathered(events(first.content)) if stream else first.json()
        assert get(chat_server, response) == response


def forget_replies(folder):
    """As if the server had ended after the turn and before its reply was kept."""
    with contextlib.closing(sqlite3.connect(folder / "sessions.db", timeout=30)) as database, database:
        database.execute("UPDATE reply SET status = 0, length = 0, error = ''")


def check_repeats(server, before):
    """What was asked of the server before it ended is told again; what was deleted is not made again."""
    kept, deleted = before
    for (headers, body), response in kept:
        for _ in range(2):  # made of the response, then kept as any reply
            again = server.post(RESPONSES, body, headers=headers)
            assert again.status_code == 200 and again.headers["idempotent-replayed"] == "true"
            told = gathered(events(again.content)) if body["stream"] else again.json()
            assert told == response
        other = server.post(RESPONSES, {**body, "input": "other"}, headers=headers)
        check_error(other, 422, "idempotency_mismatch")
    for headers, body in deleted:
        check_error(server.post(RESPONSES, body, headers=headers), 409, "idempotency_reply_lost")


def ask_with_keys(server):
    """Requests with a key, and their responses; and those whose responses were deleted."""
    kept, deleted = [], []
    for number in range(6):
        body = {**TURN, "input": f"key {number}", "stream": number % 2 == 1, "previous_response_id":
                kept[0][1]["id"] if number > 1 else None}
        request = {"Idempotency-Key": f"key {number}"}, body
        reply = server.post(RESPONSES, body, headers=request[0])
        response = gathered(events(reply.content)) if body["stream"] else reply.json()
        kept.append((request, response))
    for request, response in kept[4:]:
        assert server.http.delete(path(response)).status_code == 200
        deleted.append(request)
    assert server.http.delete(path(kept[0][1])).status_code == 200  # of which two go on
    deleted.append(kept[0][0])
    return kept[1:4], deleted


@pytest.mark.builds("dev", "asan")
def test_a_lost_reply_is_made_of_the_response(server_factory, tmp_path):
    folder = tmp_path / "state"
    flags = {"state_dir": folder, "chat_template": TEMPLATE}
    server = server_factory(**flags)
    before = ask_with_keys(server)
    kill(server)
    forget_replies(folder)
    server = server_factory(**flags)
    rows = len(session_rows(folder))
    check_repeats(server, before)
    assert len(session_rows(folder)) == rows


def test_a_lost_reply_in_a_store(own_redis, server_factory):
    """On another server, too. What was deleted there is made anew, by the same name."""
    flags = {"store": own_redis.location, "chat_template": TEMPLATE}
    one, other = (server_factory(**flags) for _ in range(2))
    kept, deleted = ask_with_keys(one)
    for key in own_redis.keys("*:idem"):
        own_redis.ask("DEL", key)
    check_repeats(other, (kept, []))
    headers, body = deleted[-1]
    anew = other.post(RESPONSES, body, headers=headers)
    assert anew.status_code == 200 and "idempotent-replayed" not in anew.headers
    assert is_kept(one, anew.json())


# What is kept for how long


def is_kept(server, response):
    return server.get(path(response)).status_code == 200


def test_time_to_live(server_factory):
    """Of responses one of their own: looking at one keeps it no longer alive."""
    server = server_factory(response_ttl="1s", chat_template=TEMPLATE)
    server.complete(prompt="stays", session_id="stays", max_tokens=1)
    response = said(server, **TURN)
    wait_until(lambda: not is_kept(server, response), "it dies")
    unknown(server, response)
    assert server.get("/v1/sessions/stays").status_code == 200
    other = server_factory(session_ttl="1s", response_ttl=0, chat_template=TEMPLATE)
    other.complete(prompt="goes", session_id="goes", max_tokens=1)
    response = said(other, **TURN)
    wait_until(lambda: other.get("/v1/sessions/goes").status_code == 404, "it dies")
    assert get(other, response) == response


def test_time_to_live_in_a_store(own_redis, server_factory):
    """By the store's clock: it is none for who asks, and is swept with its name."""
    flags = {"store": own_redis.location, "chat_template": TEMPLATE, "session_ttl": 24 * 3600}
    server = server_factory(**flags, response_ttl=30 * SLOWNESS)
    turn(server, "stays")
    response = said(server, **TURN)
    row, = own_redis.keys(f"regla:{{*:{response['id']}}}")
    names, = own_redis.keys("*:responses")
    assert get(server, response) == response
    hour_ago = int(own_redis.ask("TIME")[0]) - 3600
    for key in (row, *own_redis.keys("regla:*:stays}")):
        own_redis.ask("HSET", key, "used", hour_ago * 1000)
    own_redis.ask("ZADD", names, hour_ago, response["id"])
    unknown(server, response)
    wait_until(lambda: not own_redis.keys(row.decode() + "*"), "it is swept")
    wait_until(lambda: not own_redis.keys("*:responses"), "its name is, too: a set without names is none")
    assert [card["id"] for card in server.get("/v1/sessions").json()["data"]] == ["stays"]


def one_page(server_factory):
    """What a session of few tokens counts."""
    probe = server_factory(chat_template=TEMPLATE)
    probe.complete(prompt=[1] * 10, session_id="s", max_tokens=4)
    return probe.get("/v1/sessions/s").json()["bytes"]


def check_quota(server, other, tick):
    """Four responses fit, or what leaves as much room; those go first that were unused for longest, and
    no session goes."""
    made = []
    for number in range(4):
        made.append(said(server, **TURN, input=str(number)))
        tick()
    assert all(is_kept(other, each) for each in made)
    # A use, though nothing of it is kept.
    said(server, **TURN, input="b", store=False, previous_response_id=made[0]["id"])
    tick()
    made.append(said(server, **TURN, input="4"))
    assert [is_kept(other, each) for each in made] == [True, False, True, True, True]
    server.complete(prompt=[2] * 10, session_id="s0", max_tokens=4)
    assert [is_kept(other, each) for each in made] == [True, False, False, True, True]
    for number in range(1, 4):
        server.complete(prompt=[2] * 10, session_id=f"s{number}", max_tokens=4)
    assert not any(is_kept(other, each) for each in made)
    # Sessions do not go for a response.
    error = check_error(server.post(RESPONSES, {"input": "x", **TURN}), 429, "session_quota")
    assert "session-quota allows" in error["message"]
    assert len(server.get("/v1/sessions").json()["data"]) == 4
    assert said(server, **TURN, store=False)["store"] is False


@pytest.mark.parametrize("flags", [{}, {"state_dir": "state"}], ids=["memory", "state-dir"])
def test_quota(server_factory, tmp_path, flags):
    page = one_page(server_factory)
    flags = {name: tmp_path / folder for name, folder in flags.items()}
    server = server_factory(**flags, session_quota=9 * page // 2, chat_template=TEMPLATE)
    check_quota(server, server, lambda: None)


def test_quota_in_a_store(own_redis, server_factory):
    page = one_page(server_factory)
    flags = {"store": own_redis.location, "session_quota": 9 * page // 2, "chat_template": TEMPLATE}
    server, other = (server_factory(**flags) for _ in range(2))

    def tick():
        """The store notes uses by the second."""
        now = own_redis.ask("TIME")[0]
        wait_until(lambda: own_redis.ask("TIME")[0] != now, "a second is over")
    check_quota(server, other, tick)


# What was acknowledged


@pytest.mark.builds("dev")
def test_what_the_disk_refuses_is_not_kept(server_factory, tmp_path):
    """And is not acknowledged: a stream tells so in its last event."""
    faults = Faults(tmp_path)
    server = server_factory(state_dir=tmp_path / "state", chat_template=TEMPLATE,
                            environment=faults.environment)
    first = said(server, **TURN)
    with faults.during("fsync"):
        body = {**TURN, "input": "b", "previous_response_id": first["id"]}
        check_error(server.post(RESPONSES, body), 503, "store_failed")
        failed = streamed(server, **body)
        assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
        check_error(server.http.delete(path(first)), 503, "store_failed")
    unknown(server, failed)
    wait_until(lambda: server.get("/ready").status_code == 200, "it is tried again")
    assert get(server, first) == first
    check_goes_on(server, first, "hi")


@pytest.mark.builds("dev")
@pytest.mark.long
def test_what_a_shutdown_ends_is_not_kept(server_factory, tmp_path):
    flags = {"state_dir": tmp_path / "state", "chat_template": TEMPLATE}
    server = server_factory(**flags, drain_timeout=3)
    server.ends_clean = False
    body = {**TURN, "input": "a", "max_output_tokens": 1_000_000, "stream": True}
    with server.http.stream("POST", RESPONSES, json=body) as reply:
        parts = reply.iter_bytes()
        got = next(parts)
        server.process.terminate()
        got += b"".join(parts)
    failed = gathered(events(got))
    assert failed["status"] == "failed" and "shutting down" in failed["error"]["message"]
    assert server.process.wait(60) == 0
    unknown(server_factory(**flags), failed)


class Conversations:
    """Clients that go on from responses, with a key for each request, until the server is gone."""

    def __init__(self):
        self.dice, self.numbers = random.Random(7), itertools.count()
        self.told, self.open = {}, []  # what was acknowledged; requests that were not
        self.stop, self.again = False, 0

    def learn(self, reply):
        stream = reply.headers["content-type"].startswith("text/event-stream")
        response = gathered(events(reply.content)) if stream else reply.json()
        assert self.told.setdefault(response["id"], response) == response

    def talk(self, server):
        while not self.stop:
            number = next(self.numbers)
            previous = self.dice.choice([None, *self.told]) if self.dice.random() < 0.9 else None
            request = ({"Idempotency-Key": str(number)},
                       {**TURN, "input": str(number % 5), "stream": number % 2 == 0,
                        "previous_response_id": previous})
            self.open.append(request)
            try:
                reply = server.post(RESPONSES, request[1], headers=request[0])
            except httpx.TransportError:
                return
            assert reply.status_code == 200, reply.text
            self.learn(reply)
            self.open.remove(request)

    def repeat(self, server):
        """What was not acknowledged: it was made, and is told again, or it is made now."""
        for headers, body in self.open:
            reply = server.post(RESPONSES, body, headers=headers)
            while reply.status_code == 409:  # of a store: until the lease of the server that died ends
                assert check_error(reply, 409)["code"] in ("idempotency_in_flight", "session_busy")
                time.sleep(0.2)
                reply = server.post(RESPONSES, body, headers=headers)
            assert reply.status_code == 200, reply.text
            self.again += reply.headers.get("idempotent-replayed") == "true"
            self.learn(reply)
        self.open = []


def kill_soon(server, clients, faults, within):
    """At any time, or while a commit is under way, which takes long then."""
    time.sleep(clients.dice.uniform(0.05, 0.4))
    if within:
        wait_until(faults.syncs, "a commit")
    kill(server)


@pytest.mark.long
@pytest.mark.builds("dev")
def test_killed_at_any_time(server_factory, tmp_path):
    """None that was acknowledged is lost, and none is there twice, whatever key comes again."""
    folder, faults = tmp_path / "state", Faults(tmp_path)
    clients, within, kills = Conversations(), 0, size("RESPONSE_KILLS", 6, 6, 100)
    flags = {"state_dir": folder, "chat_template": TEMPLATE, "environment": faults.environment}
    for number in range(kills):
        server = server_factory(**flags)
        before = clients.dice.sample(sorted(clients.told), min(30, len(clients.told)))
        clients.repeat(server)
        for name in before:
            assert get(server, name) == clients.told[name]
        assert len(session_rows(folder)) == len(clients.told)
        slow = number % 2 == 1
        faults.slow(slow * 0.1)
        killer = threading.Thread(target=kill_soon, args=(server, clients, faults, slow))
        killer.start()
        in_pool(6, 6, lambda _, server=server: clients.talk(server))
        killer.join()
        faults.slow(0)
        within += faults.syncs() > 0
        faults.forget_syncs()
    assert 10 * within >= 3 * kills, f"{within} of {kills} kills were within a commit"
    server = server_factory(**flags)
    clients.repeat(server)
    assert clients.told and len(session_rows(folder)) == len(clients.told)
    for name, response in clients.told.items():
        assert get(server, name) == response
    print(f"\n{kills} kills, {within} within a commit; {len(clients.told)} responses, "
          f"{clients.again} of them told again to a key that came again")


@pytest.mark.long
@pytest.mark.builds("dev")
def test_killed_at_any_time_in_a_store(own_redis, server_factory):
    """The same where another server is asked again, once the lease of the dead one has ended."""
    clients, kills = Conversations(), size("RESPONSE_KILLS", 6, 6, 100)
    flags = {"store": own_redis.location, "chat_template": TEMPLATE, "lease": 1}
    server = server_factory(**flags)
    for _ in range(kills):
        killer = threading.Thread(target=lambda server=server: (
            time.sleep(clients.dice.uniform(0.05, 0.4)), kill(server)))
        killer.start()
        in_pool(6, 6, lambda _, server=server: clients.talk(server))
        killer.join()
        server = server_factory(**flags)
        clients.repeat(server)
        rows = [key for key in own_redis.keys("regla:{*:resp_*}") if own_redis.ask("HEXISTS", key, "version")]
        assert len(rows) == len(clients.told)
    for name, response in clients.told.items():
        assert get(server, name) == response
    print(f"\n{kills} kills; {len(clients.told)} responses, {clients.again} of them told again to a key "
          "that came again")
