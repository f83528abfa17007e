# SPDX-License-Identifier: Apache-2.0
"""The streams of POST /v1/responses: how they wait, end, and come again."""

import json
import socket

import harness
import pytest
from harness import check_error, wait_until
from responses_helpers import CUSTOM, RESPONSES, TEMPLATE, TOOL, events, gathered, said, streamed

pytestmark = pytest.mark.builds("dev", "asan")  # TSan: the streams of test_messages.py


def test_a_reply_is_kept(chat_server):
    body = {"input": "hi", "max_output_tokens": 6, "temperature": 0}
    for stream in (False, True):
        key = {"Idempotency-Key": f"of responses {stream}"}
        first, again = (chat_server.post(RESPONSES, {**body, "stream": stream}, headers=key)
                        for _ in range(2))
        assert first.status_code == 200 and first.content == again.content
        assert again.headers["idempotent-replayed"] == "true"


def test_a_stream_that_is_cancelled(chat_server):
    body = {"input": "hi", "max_output_tokens": 100_000, "ignore_eos": True, "stream": True}
    named = {"X-Request-Id": "of-responses"}
    with chat_server.http.stream("POST", RESPONSES, json=body, headers=named) as reply:
        parts = reply.iter_bytes()
        got = next(parts)
        assert chat_server.post("/v1/requests/of-responses/cancel").status_code == 200
        got += b"".join(parts)
    cancelled = gathered(events(got))
    assert (cancelled["status"], cancelled["error"], cancelled["incomplete_details"]) == (
        "cancelled", None, None)
    assert [item["status"] for item in cancelled["output"]] == ["incomplete"]


def test_a_stream_that_waits_has_events(server_factory):
    """It begins before the model is asked; while it waits the client hears of it."""
    server = server_factory(max_running=1, chat_template=TEMPLATE)
    body = {"input": "hi", "max_output_tokens": 100_000, "ignore_eos": True, "stream": True}
    key = ["Idempotency-Key: waits"]
    with server.connect() as first, server.connect() as waits:
        first.sendall(harness.request_bytes(RESPONSES, body))
        first.recv(100)
        waits.sendall(harness.request_bytes(RESPONSES, {**body, "max_output_tokens": 2}, key))
        reply = harness.RawReply(waits)
        assert reply.head()[0] == 200
        chunks = reply.chunks()
        got = next(chunks)
        assert [event["type"] for event in events(got)] == ["response.created", "response.in_progress"]
        wait_until(lambda: server.metric("regla_requests_waiting") == 1, "it waits")
        waits.shutdown(socket.SHUT_WR)
        got += next(chunks)
        assert events(got)[-1]["type"] == "response.in_progress"
        first.close()
        got += b"".join(chunks)
    assert gathered(events(got))["status"] == "incomplete"
    kept = server.http.post(RESPONSES, content=json.dumps({**body, "max_output_tokens": 2}).encode(),
                            headers={"Idempotency-Key": "waits", "content-type": "application/json"})
    assert kept.content == got  # with the numbers of all


def test_what_a_stream_says_again_takes_memory(server_factory):
    """Its first two events stand in one buffer."""
    server = server_factory(max_body_memory="7M", chat_template=TEMPLATE)
    large = {"input": "hi", "store": False, "metadata": {"a": "x" * 1_500_000}}
    assert said(server, **large)["metadata"] == large["metadata"]
    reply = server.post(RESPONSES, {**large, "stream": True})
    check_error(reply, 503, "out_of_memory")
    large["metadata"]["a"] = "x" * 100_000
    assert streamed(server, **large)["metadata"] == large["metadata"]


@pytest.mark.builds("dev", "asan")
def test_a_client_that_leaves(chat_server):
    """At each event of a stream."""
    fields = {"tools": [TOOL, CUSTOM], "tool_choice": "required", "max_output_tokens": 400, "temperature": 1,
              "seed": 1, "stream": True, "input": "hi"}
    whole = chat_server.post(RESPONSES, fields)
    for count in range(1, len(events(whole.content))):
        with chat_server.http.stream("POST", RESPONSES, json=fields) as reply:
            got = b""
            for piece in reply.iter_bytes():
                got += piece
                if got.count(b"\n\n") >= count:
                    break
    chat_server.wait_idle()
