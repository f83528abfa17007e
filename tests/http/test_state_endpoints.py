# SPDX-License-Identifier: Apache-2.0
"""State files over HTTP, GET /v1/state, and who may see what."""

import ctypes
import random
import struct

import httpx
import pytest

from harness import GOLDEN, check_error, request_bytes, wait_until
from session_helpers import GREEDY, Session, imported, position, put


# State files

def test_there_and_back(server):
    session = Session(server, "file")
    for turn in range(3):
        session.append(f"turn {turn} ", max_tokens=5)
        moved = imported(server, f"file-{turn}", session.export(), session.ids)
        reply = moved.append("and on", max_tokens=4)
        # The state came along: what is computed is the last token and the new ones.
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == len(session.ids) - 1
        moved.delete()
    session.delete()


def test_to_another_server(server, server_factory):
    session = Session(server, "moves")
    session.append("some words to move", max_tokens=5)
    file = session.export()
    other = server_factory(threads=1)
    moved = imported(other, "moved", file, session.ids)
    reply = moved.append(" and on", max_tokens=5)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == len(session.ids) - 1
    session.append(" and on", max_tokens=5)
    assert moved.ids == session.ids
    assert other.get("/v1/sessions/moved/state").content == session.export()


def test_an_empty_session(server):
    server.complete(prompt="x", session_id="empty", max_tokens=1)
    assert server.post("/v1/sessions/empty/rewind", {"position": 0}).status_code == 200
    file = server.get("/v1/sessions/empty/state").content
    copy = imported(server, "empty-2", file, [])
    copy.append("from nothing", max_tokens=3)


def test_the_state_at_the_very_end_travels(server, server_factory):
    """Though it has no logits, with which one could go on without a token."""
    server.complete(prompt=[40] * 400, session_id="at-the-end", max_tokens=0)
    other = server_factory()
    put(other, "moved", server.get("/v1/sessions/at-the-end/state").content)
    put(other, "again", other.get("/v1/sessions/moved/state").content)
    for name in ("moved", "again"):
        reply = other.complete(prompt=[3], session_id=name, max_tokens=1)
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 400, name


def test_an_import_may_be_as_long_as_a_completion(server, server_factory):
    session = Session(server, "long")
    session.append([40] * 200, max_tokens=1)
    file = session.export()
    assert put(server_factory(max_model_len=201), "long", file).status_code in (200, 201)
    reply = put(server_factory(max_model_len=200), "long", file)
    check_error(reply, 400, code="context_length_exceeded")
    assert "201 tokens" in reply.json()["error"]["message"]


def test_existing_target(server):
    session = Session(server, "target")
    session.append("here first", max_tokens=2)
    check_error(put(server, "target", session.export()), 409, "session_exists", "id")
    session.get()


def sampled_damage(file):
    draw = random.Random(1)
    yield b""
    for length in sorted({*range(1, 16), len(file) - 1,
                          *(draw.randrange(len(file)) for _ in range(60))}):
        yield file[:length]
    yield file + b"\0"
    for _ in range(150):
        at = draw.randrange(len(file))
        yield file[:at] + bytes([file[at] ^ 1 << draw.randrange(8)]) + file[at + 1:]
    yield bytes(len(file))
    yield b'{"session": 1}'


def test_damaged_files(server):
    session = Session(server, "whole")
    session.append("a few tokens", max_tokens=3)
    whole = session.export()  # a use: the second in which it is may be another one
    before = server.get("/v1/sessions").json()
    tree = server.get("/v1/state").json()["tree"]
    for file in sampled_damage(whole):
        error = check_error(put(server, "damaged", file), 400, "invalid_state_file")
        assert "state file" in error["message"]
    assert server.get("/v1/sessions").json() == before
    assert server.get("/v1/state").json()["tree"] == tree
    session.append(" still fine", max_tokens=3)


def test_of_another_model(server, server_factory):
    other = server_factory(model=GOLDEN / "regla")
    foreign = Session(other, "foreign")
    foreign.append("elsewhere", max_tokens=2)
    error = check_error(put(server, "foreign", foreign.export()), 400, "invalid_state_file")
    assert "model" in error["message"]
    assert position(server, "foreign") is None


def test_of_a_newer_version(server):
    session = Session(server, "version")
    session.append("x", max_tokens=1)
    file = bytearray(session.export())
    version, head_bytes = struct.unpack_from("<II", file, 8)
    assert version == 1
    struct.pack_into("<I", file, 8, 3)
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, (ctypes.c_char_p, ctypes.c_size_t)
    head = bytes(file[:head_bytes - 8])
    struct.pack_into("<Q", file, head_bytes - 8, xxh3(head, len(head)))
    error = check_error(put(server, "newer", bytes(file)), 400, "invalid_state_file")
    assert "version 3 is newer" in error["message"]


def test_limit_of_an_import(server_factory):
    server = server_factory(max_state_bytes=1024, max_body_bytes=4096)
    check_error(put(server, "large", b"x" * 1025), 413, "request_too_large")
    check_error(put(server, "small", b"x" * 1024), 400, "invalid_state_file")
    # The limit is of that endpoint only.
    reply = server.http.post("/v1/completions", content=b"x" * 4000,
                             headers={"Content-Type": "application/json"})
    check_error(reply, 400, "invalid_json")

    def chunks():
        for _ in range(64):
            yield b"x" * 64
    with pytest.raises(httpx.TransportError):  # in the middle of a body there is no way to reply
        put(server, "chunked", chunks())


def test_an_import_that_stops_halfway(server):
    session = Session(server, "half")
    session.append("x", max_tokens=1)
    file = session.export()
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/sessions/half-2/state", file, method="PUT")[:-10])
    assert position(server, "half-2") is None
    # And one in pieces, each a chunk of its own.
    reply = put(server, "pieces", (file[i:i + 1000] for i in range(0, len(file), 1000)))
    assert reply.status_code == 201
    assert position(server, "pieces") == len(session.ids)


def test_head_of_an_export(server):
    session = Session(server, "head")
    session.append("x", max_tokens=1)
    reply = server.http.head("/v1/sessions/head/state")
    assert reply.status_code == 200 and reply.content == b""
    assert int(reply.headers["content-length"]) == len(session.export())


def test_exports_share_the_memory_of_bodies(server_factory):
    server = server_factory(max_body_memory=100000)
    server.complete(prompt=[1, 2, 3], session_id="big", max_tokens=4)
    reply = server.get("/v1/sessions/big/state")
    check_error(reply, 503, "out_of_memory")
    # What it held is given back when its connection has seen the end, after the last byte.
    wait_until(lambda: server.metric("regla_request_body_bytes") == 0, "the memory is free")
    server.complete(prompt=[4], session_id="big", max_tokens=4)


# GET /v1/state

def adds_up(state):
    device = state["device"]
    assert device["total"] == device["used"] + device["cached"] + device["free"]
    for tier in state["tiers"].values():
        assert 0 <= tier["bytes"] <= tier["budget_bytes"] or tier["budget_bytes"] == 0
    parts = state["parts"]
    assert parts["checkpoints"] == parts["recurrent"] + parts["kv"] + parts["logits"]
    return state


def test_state(server_factory):
    server = server_factory()
    empty = adds_up(server.get("/v1/state").json())
    assert empty["object"] == "state" and empty["store"] is None
    assert empty["tree"]["checkpoints"] == 0 and empty["device"]["cached"] == 0
    assert set(empty["tiers"]) == {"device", "host", "disk"}
    assert set(empty["sessions"]) == {"device", "host", "disk", "none"}
    sessions = [Session(server, f"state-{number}") for number in range(3)]
    for session in sessions:
        session.append(session.name, max_tokens=3)
    state = adds_up(server.get("/v1/state").json())
    assert sum(state["sessions"].values()) == 3
    assert state["tree"]["checkpoints"] >= 3 and state["device"]["cached"] > 0
    assert state["device"]["used"] == 0
    for session in sessions:
        session.delete()
    state = adds_up(server.get("/v1/state").json())
    assert sum(state["sessions"].values()) == 0
    check_error(server.post("/v1/state", {}), 405)


# Owners

ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}


@pytest.fixture
def shared(server_factory):
    """A server of two API keys. Its metrics want a key, so the harness cannot look at its end."""
    server = server_factory(api_key="alice,bob")
    server.ends_clean = False
    yield server
    server.http.headers.update(ALICE)
    server.ends_clean = True


def test_sessions_belong_to_their_key(shared):
    def complete(headers, **fields):
        return shared.post("/v1/completions", {"max_tokens": 4, **GREEDY, **fields}, headers=headers)
    text = "a text that both of them send, word for word"
    first = complete(ALICE, prompt=text, session_id="name").json()
    other = complete(BOB, prompt=text, session_id="name").json()
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert first["choices"][0]["token_ids"] == other["choices"][0]["token_ids"]
    again = complete(ALICE, prompt=text).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    complete(ALICE, prompt="x", session_id="alices")
    for method, path, body in (("GET", "", None), ("DELETE", "", None), ("GET", "/state", None),
                               ("POST", "/fork", {"id": "stolen"}),
                               ("POST", "/rewind", {"position": 0})):
        reply = shared.http.request(method, "/v1/sessions/alices" + path, json=body, headers=BOB)
        check_error(reply, 404, "session_not_found")
    reply = complete(BOB, prompt="x", session_id="alices", store=False).json()
    assert reply["usage"]["prompt_tokens"] == len(reply["choices"][0]["prompt_token_ids"])

    def names(headers):
        return {s["id"] for s in shared.get("/v1/sessions", headers=headers).json()["data"]}
    assert names(ALICE) == {"name", "alices"} and names(BOB) == {"name"}
    # Names are per key: as a target another key's session is no obstacle.
    assert shared.post("/v1/sessions/name/fork", {"id": "alices"}, headers=BOB).status_code == 201
    file = shared.get("/v1/sessions/name/state", headers=BOB).content
    assert b"alice" not in file and b"bob" not in file
    reply = shared.http.put("/v1/sessions/bobs/state", content=file, headers=ALICE)
    assert reply.status_code == 201
    assert names(ALICE) == {"name", "alices", "bobs"} and names(BOB) == {"name", "alices"}
    shared.http.delete("/v1/sessions/name", headers=BOB)
    assert names(ALICE) == {"name", "alices", "bobs"}
    assert shared.get("/v1/sessions").status_code == 401


def test_a_key_given_twice_is_one_owner(server_factory):
    server = server_factory(api_key="alice,bob,alice")
    server.ends_clean = False
    server.post("/v1/completions", {"prompt": "x", "session_id": "s"}, headers=ALICE)
    assert server.get("/v1/sessions/s", headers=ALICE).status_code == 200
    server.http.headers.update(ALICE)
    server.ends_clean = True


def test_quota_of_a_key(server_factory):
    probe = server_factory()
    probe.complete(prompt=[1] * 10, session_id="s", max_tokens=4)
    one = probe.get("/v1/sessions/s").json()["bytes"]
    server = server_factory(session_quota=3 * one + one // 2)
    for number in range(3):
        server.complete(prompt=[number] * 10, session_id=f"s{number}", max_tokens=4)
    reply = server.post("/v1/completions", {"prompt": [9] * 10, "session_id": "s3"})
    error = check_error(reply, 429, "session_quota")
    assert str(3 * one + one // 2) in error["message"]
    assert reply.headers["x-should-retry"] == "false" and "retry-after" not in reply.headers
    check_error(server.post("/v1/sessions/s0/fork", {"id": "s3"}), 429, "session_quota")
    check_error(put(server, "s3", server.get("/v1/sessions/s0/state").content), 429, "session_quota")
    # What one can need counts from the start: max_tokens too.
    server.refuse(429, prompt=[9], session_id="s0", max_tokens=4000)
    server.complete(prompt=[9], session_id="s0", max_tokens=4)
    server.complete(prompt=[9] * 10, max_tokens=4)
    assert server.http.delete("/v1/sessions/s1").status_code == 204
    server.complete(prompt=[9] * 10, session_id="s3", max_tokens=4)


def test_time_to_live(server_factory):
    server = server_factory(session_ttl="1s")
    server.complete(prompt="soon gone", session_id="mortal", max_tokens=2)
    # Looking at it keeps it no longer alive.
    wait_until(lambda: position(server, "mortal") is None, "it dies")
    assert server.get("/v1/sessions").json()["data"] == []
    server.complete(prompt="soon gone", session_id="mortal", max_tokens=2)
    wait_until(lambda: server.get("/v1/sessions").json()["data"] == [], "it dies")
    assert position(server, "mortal") is None
    Session(server, "mortal").append("afresh", max_tokens=2)


def test_prefix_reuse_can_be_switched_off(server_factory):
    server = server_factory(**{"no-prefix-cache": True})
    for _ in range(2):
        usage = server.complete(prompt="twice the same", max_tokens=2)["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_miss_reason": "disabled"}
    session = Session(server, "kept")
    session.append("some words", max_tokens=3)
    session.append(" and more", max_tokens=3)
