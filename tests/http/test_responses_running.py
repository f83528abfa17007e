# SPDX-License-Identifier: Apache-2.0
"""Responses while they are made: read, cancelled, left by their clients."""

import contextlib
import socket

import pytest
from harness import check_error, request_bytes, wait_until
from responses_helpers import (CUSTOM, RESPONSES, TEMPLATE, TOOL, TURN, as_kept, call, events, gathered, get,
                               items, name_of, output, path, repeats_progress, said, same_text, text_of,
                               told_again, unknown, user)


LONG = {**TURN, "max_output_tokens": 100_000, "stream": True}


@contextlib.contextmanager
def running(server, said=b"output_text.delta", **fields):
    """(the response's name, all that its client has read): it has said that, and goes on."""
    with server.http.stream("POST", RESPONSES, json={**LONG, **fields}) as reply:
        parts, got = reply.iter_bytes(), bytearray()
        while said not in got:
            got += next(parts)
        yield name_of(bytes(got)), got, parts


@contextlib.contextmanager
def reading(server, name, after=None):
    """A reader of it, from behind that event on, which has begun: () -> its events, once all are there."""
    query = {"stream": "true", **({} if after is None else {"starting_after": after})}
    with server.http.stream("GET", path(name), params=query) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].split(";")[0] == "text/event-stream"

        def told():
            body = b"".join(reply.iter_bytes())
            first = 0 if after is None else after + 1
            found = events(body, first) if body else []
            # What is said while nothing else comes stands elsewhere for each.
            return [event for number, event in enumerate(found) if not repeats_progress(found, number, first)]
        yield told


def test_it_is_read_while_it_runs(chat_server):
    """As it is by then, and as a stream, from any event on, by any number of readers."""
    with contextlib.ExitStack() as stack:
        name, got, parts = stack.enter_context(running(chat_server, input="reads"))
        now = get(chat_server, name)
        assert (now["status"], now["usage"], now["completed_at"]) == ("in_progress", None, None)
        item, = now["output"]
        assert item["status"] == "in_progress"
        early = text_of(now)
        assert get(chat_server, name, params={"stream": "false"})["status"] == "in_progress"
        readers = [stack.enter_context(reading(chat_server, name, after)) for after in (None, 0, 1, 4, 30)]
        late = stack.enter_context(reading(chat_server, name, 10**15))
        while got.count(b"output_text.delta") < 100:
            got += next(parts)
        assert text_of(get(chat_server, name)).startswith(early)
        cancelled = chat_server.post(path(name, "/cancel"))
        got += b"".join(parts)
        told = as_kept(events(bytes(got)))
        for reader, first in zip(readers, (0, 1, 2, 5, 31)):
            assert reader() == told[first:]
        assert late() == []
    last = told[-1]["response"]
    assert cancelled.json() == get(chat_server, name) == last and text_of(last).startswith(early)


def test_its_items_are_there_while_it_runs(server_factory):
    """Also while it waits; they are what they are once it has ended."""
    server = server_factory(max_running=1, chat_template=TEMPLATE)

    def listed(name, **query):
        return get(server, name, rest="/input_items", params={"order": "asc", **query})

    before = said(server, **TURN, input="before")
    asked = [user("a"), call(1), output(1, "Rain."), user("c")]
    with running(server, input=asked, tools=[TOOL]) as (first, _, parts):
        page = listed(first)
        assert [item["type"] for item in page["data"]] == [
            "message", "function_call", "function_call_output", "message"]
        assert listed(first, limit=2, after="fc_1")["data"] == page["data"][2:]
        wrong = server.get(path(first, "/input_items"), params={"after": "x"})
        check_error(wrong, 400, "invalid_value", "after")
        with running(server, b"response.in_progress", input="goes on",
                     previous_response_id=before["id"]) as (second, _, rest):
            item, = listed(second)["data"]
            assert item["content"] == [{"type": "input_text", "text": "goes on"}]
            assert server.post(path(first, "/cancel")).status_code == 200
            b"".join(parts)
            while b"output_text.delta" not in next(rest):
                pass
            assert server.post(path(second, "/cancel")).status_code == 200
            b"".join(rest)
    assert listed(first) == page and listed(second)["data"] == [item]


def test_it_is_read_before_it_runs(server_factory):
    """Thoughts, calls and texts, with log-probabilities; each event is the one of its stream."""
    server = server_factory(max_running=1, chat_template=TEMPLATE)
    fields = {"tools": [TOOL, CUSTOM], "max_output_tokens": 400, "temperature": 1, "seed": 1, "input": "hi",
              "ignore_eos": False, "allowed_token_ids": None}
    for more in ({"tool_choice": "required"},
                 {"tools": [], "include": ["message.output_text.logprobs"], "no_such_field": 1}):
        with running(server, input="first") as (first, _, _):
            with running(server, b"response.in_progress", **{**fields, **more}) as (name, got, parts):
                now = get(server, name)
                assert (now["status"], now["output"]) == ("in_progress", [])
                with reading(server, name) as all_of, reading(server, name, 3) as some:
                    assert server.post(path(first, "/cancel")).status_code == 200
                    got += b"".join(parts)
                    told = as_kept(events(bytes(got)))
                    assert all_of() == told and some() == told[4:]
        assert told_again(server, name) == told and told[-1]["response"] == get(server, name)


def test_its_readers_keep_it_running(chat_server):
    """Its client has left: it is cancelled once they have, too."""
    server = chat_server
    with contextlib.ExitStack() as stack:
        with running(server, input="left", max_output_tokens=600) as (name, _, _):
            first, second = (stack.enter_context(reading(server, name, after)) for after in (None, 6))
        told = first()
        assert gathered(told)["status"] == "incomplete" and gathered(told) == get(server, name)
        assert second() == told[7:]
    with running(server, input="left") as (name, _, _):
        leaves = reading(server, name)
        leaves.__enter__()
    assert get(server, name)["status"] == "in_progress"
    leaves.__exit__(None, None, None)
    wait_until(lambda: get(server, name)["status"] == "cancelled", "it is cancelled")
    server.wait_idle()


def test_they_read_on_beside_a_client_that_stops(server_factory):
    """It reads no more, and stays: the response pauses, then goes on for those who read it."""
    server = server_factory(stall_timeout=1, chat_template=TEMPLATE)
    fields = {**LONG, "input": "stops", "max_output_tokens": 8000}
    with socket.socket() as stops:
        # Small segments, so that the kernel keeps little of the stream for it.
        stops.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        stops.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stops.settimeout(30)
        stops.connect(("127.0.0.1", server.port))
        stops.sendall(request_bytes(RESPONSES, fields))
        got = b""
        while b"output_text.delta" not in got:
            got += stops.recv(4096)
        with reading(server, name_of(got)) as told:
            response = gathered(told())
        assert response["status"] == "incomplete" and response["usage"]["output_tokens"] == 8000
    server.wait_idle()


def test_of_a_store(redis, server_factory):
    """Only the server that makes it has it by then."""
    one, other = (server_factory(store=redis.location, chat_template=TEMPLATE) for _ in range(2))
    for number in range(8):
        with running(one, input=str(number)) as (name, got, parts), reading(one, name) as reader:
            assert get(one, name)["status"] == "in_progress"
            for rest in ("", "/input_items"):
                check_error(other.get(path(name, rest)), 404, "response_not_found", "response_id")
            redis.ask("SCRIPT", "FLUSH")  # what is sent behind the commit is answered before it
            cancelled = one.post(path(name, "/cancel"))
            assert cancelled.status_code == 200, cancelled.text
            got += b"".join(parts)
            told = as_kept(events(bytes(got)))
            assert reader() == told
        assert get(other, name) == told[-1]["response"] == get(one, name)


def test_only_its_key_reads_it(server_factory, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    server = server_factory(chat_template=TEMPLATE, api_key_file=keys)
    server.http.headers["Authorization"] = "Bearer one"
    with running(server, input="a") as (name, _, _):
        for query in ({}, {"stream": "true"}):
            other = server.get(path(name), params=query, headers={"Authorization": "Bearer two"})
            check_error(other, 404, "response_not_found", "response_id")
        assert get(server, name)["status"] == "in_progress"


def test_cancel(chat_server):
    """Of a stream that runs: what it said is kept, and can be gone on from."""
    body = {**TURN, "input": "a", "max_output_tokens": 100_000, "stream": True}
    with chat_server.http.stream("POST", RESPONSES, json=body) as reply:
        parts = reply.iter_bytes()
        got = b""
        while b"output_text.delta" not in got:
            got += next(parts)
        name = name_of(got)
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
    wait_until(lambda: get(chat_server, name)["status"] == "cancelled", "it is kept")


@pytest.mark.builds("dev")
@pytest.mark.long
def test_what_a_shutdown_ends_is_not_kept(server_factory, tmp_path):
    flags = {"state_dir": tmp_path / "state", "chat_template": TEMPLATE}
    server = server_factory(**flags, drain_timeout=3)
    server.ends_clean = False
    with running(server, input="a", max_output_tokens=1_000_000) as (_, got, parts):
        server.process.terminate()
        # Nobody reads it until then, so that it pauses.
        wait_until(lambda: "cancelling 1 requests" in server.tail(), "the drain's deadline")
        got += b"".join(parts)
    failed = gathered(events(bytes(got)))
    assert failed["status"] == "failed" and "shutting down" in failed["error"]["message"]
    assert server.process.wait(60) == 0
    unknown(server_factory(**flags), failed)
