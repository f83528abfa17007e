# SPDX-License-Identifier: Apache-2.0
"""Kept responses: what a reply of /v1/responses was is told again, and a conversation goes on from it as
if it had been sent whole, after a restart and on another server too."""

import json
import threading

import pytest
from harness import check_error
from responses_helpers import (CUSTOM, RESPONSES, SPACE, TEMPLATE, TOOL, TURN, as_kept, assistant, call,
                               calls_of, check_goes_on, counted, events, gathered, get, items, message,
                               output, path, said, same_text, streamed, told_again, unknown, usage, user)
from responses_helpers import bare as without_id
from session_helpers import put
from stress_helpers import kill


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
