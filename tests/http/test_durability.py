# SPDX-License-Identifier: Apache-2.0
"""--state-dir: what is acknowledged is on disk, what is not was not made, and nothing waits for a disk
that does not answer."""

import contextlib
import json
import sqlite3
import subprocess
import threading
import time

import pytest

from faults import ENOMEM, ENOSPC, Faults
from harness import BINARY, GOLDEN, RawReply, START_SECONDS, check_error, request_bytes, wait_until
from session_helpers import GREEDY, Session, is_free, position
from stress_helpers import in_pool, kill, size

MODEL = GOLDEN / "hybrid_regla"
TURNS = size("DURABLE_TURNS", 60, 30, 1200)

pytestmark = [pytest.mark.builds("dev"),  # what is preloaded stands before a sanitizer's allocator
              pytest.mark.long]


@pytest.fixture
def faults(tmp_path):
    return Faults(tmp_path)


def turn(server, name, prompt=(5, 6), **fields):
    headers = fields.pop("headers", None)
    return server.post("/v1/completions", {**GREEDY, "prompt": list(prompt), "session_id": name,
                                           "max_tokens": 2, **fields}, headers=headers)


def positions(server):
    return {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}


@pytest.mark.parametrize("ops", ["fsync", "write", "write|fsync"])
@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
def test_what_the_disk_refuses_was_not_made(server_factory, faults, tmp_path, ops, stream):
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder, environment=faults.environment)
    assert turn(server, "kept").json()["session"]["durable"] is True
    with faults.during(ops):
        for name, before in (("kept", 4), ("new", None)):
            key = {"Idempotency-Key": f"{name} key"}
            reply = turn(server, name, stream=stream, headers=key)
            if stream:
                *frames, error = [json.loads(frame[6:]) for frame in reply.content.split(b"\n\n")
                                  if frame.startswith(b"data: {")]
                assert error["error"]["code"] == "store_failed" and frames
                assert reply.content.endswith(b"data: [DONE]\n\n")
            else:
                check_error(reply, 503, "store_failed")
                assert reply.headers["retry-after"]
            assert position(server, name) == before
            check_error(server.get("/ready"), 503, "store_failed")
        assert server.get("/health").status_code == 200
        assert server.complete(prompt=[5], max_tokens=1)
        for method, path, body in (("POST", "/fork", {"id": "copy"}), ("POST", "/rewind", {"position": 1}),
                                   ("DELETE", "", None)):
            check_error(server.http.request(method, "/v1/sessions/kept" + path, json=body), 503,
                        "store_failed")
    assert positions(server) == {"kept": 4}
    wait_until(lambda: server.get("/ready").status_code == 200, "it is tried again")
    again = turn(server, "kept", stream=stream, headers={"Idempotency-Key": "kept key"})
    assert again.status_code == 200 and "idempotent-replayed" not in again.headers
    kill(server)
    server = server_factory(state_dir=folder)
    assert positions(server) == {"kept": 8}


def test_faults_under_load(server_factory, faults, tmp_path):
    """Every acknowledged turn is there, and no other, after a kill."""
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder, environment=faults.environment)
    held, statuses, lock = {}, [], threading.Lock()

    def client(number):
        for step in range(TURNS // 6):
            name = f"c{number}-{step % 3}"
            reply = turn(server, name, [5 + number, 6 + step], expected_position=held.get(name, 0))
            with lock:
                statuses.append(reply.status_code)
            if reply.status_code == 200:
                held[name] = reply.json()["session"]["position"]
            else:
                check_error(reply, 503, "store_failed")
    for ops, every, error in (("fsync", 3, 5), ("write", 5, ENOSPC), ("write|fsync", 4, ENOSPC)):
        with faults.during(ops, every, error):
            in_pool(6, 6, client)
    assert set(statuses) == {200, 503}
    kill(server)
    server = server_factory(state_dir=folder)
    assert positions(server) == held


def test_turns_share_commits(server_factory, faults, tmp_path):
    """While a commit is under way turns gather for the next."""
    server = server_factory(state_dir=tmp_path / "state", environment=faults.environment)
    faults.slow(0.25)
    faults.set("fsync", every=1 << 30)  # counts
    began = faults.calls()
    in_pool(16, 16, lambda number: [turn(server, f"s{number}").raise_for_status() for _ in range(10)])
    syncs = faults.calls() - began
    assert 0 < syncs < 160 / 3, f"{syncs} syncs for 160 turns"


def test_memory_answers_first_and_says_so(server_factory, faults, tmp_path):
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder, environment=faults.environment,
                            session_durability="memory")
    faults.slow(5)
    began = time.monotonic()
    for number in range(3):
        reply = turn(server, "fast")
        assert reply.json()["session"]["durable"] is False
        assert reply.json()["session"]["position"] == 4 * (number + 1)
    assert time.monotonic() - began < 4
    faults.slow(0)
    wait_until(lambda: server.get("/v1/sessions/fast").json()["durable"], "it is written")
    assert server.http.delete("/v1/sessions/fast").status_code == 204
    turn(server, "saved at the end".replace(" ", "-")).raise_for_status()
    server.stop()
    server = server_factory(state_dir=folder)
    assert positions(server) == {"saved-at-the-end": 4}


def test_the_end_tells_what_is_not_saved(server_factory, faults, tmp_path):
    server = server_factory(state_dir=tmp_path / "state", environment=faults.environment,
                            session_durability="memory")
    server.ends_clean = False
    with faults.during("write|fsync"):
        for number in range(3):
            turn(server, f"s{number}").raise_for_status()
        server.process.terminate()
        assert server.process.wait(START_SECONDS) == 1
    assert "3 sessions could not be saved to --state-dir" in server.tail()


@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
def test_a_disk_that_hangs_does_not_hold_up_the_end(server_factory, faults, tmp_path, stream):
    server = server_factory(state_dir=tmp_path / "state", environment=faults.environment,
                            drain_timeout=2)
    turn(server, "there").raise_for_status()
    server.ends_clean = False
    faults.slow(60)
    replies = []

    def ask(method, path, body):
        with server.connect() as connection:
            connection.sendall(request_bytes(path, body, method=method))
            reply = RawReply(connection)
            status, headers = reply.head()
            replies.append((path, status, reply.body(headers)))
    asked = [("POST", "/v1/completions", {**GREEDY, "prompt": [5], "session_id": "a", "max_tokens": 2,
                                          "stream": stream}),
             ("DELETE", "/v1/sessions/there", {})]
    threads = [threading.Thread(target=ask, args=one) for one in asked]
    for thread in threads:
        thread.start()
    wait_until(lambda: not is_free(server, "a") and not is_free(server, "there"),
               "both wait for the disk")
    began = time.monotonic()
    server.process.terminate()
    assert server.process.wait(START_SECONDS) == 1
    assert time.monotonic() - began < 3
    for thread in threads:
        thread.join()
    assert len(replies) == 2
    for path, status, body in replies:
        assert b'"code":"draining"' in body
        assert status == (200 if stream and path == "/v1/completions" else 503)
    assert "2 sessions may not be on disk as they are" in server.tail()


def test_an_idempotency_key_survives(server_factory, tmp_path):
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    turn(server, "s").raise_for_status()
    asked = [("/v1/completions", {**GREEDY, "prompt": [7], "session_id": "s", "max_tokens": 3}),
             ("/v1/completions", {**GREEDY, "prompt": [8], "session_id": "s", "max_tokens": 3,
                                  "stream": True}),
             ("/v1/completions", {"prompt": "no session", "max_tokens": 3}),
             ("/v1/sessions/s/fork", {"id": "t"}),
             ("/v1/sessions/s/rewind", {"position": 5}),
             ("/v1/completions", {"prompt": [7], "max_tokens": -2})]
    first = [server.post(path, body, headers={"Idempotency-Key": f"key {i}"})
             for i, (path, body) in enumerate(asked)]
    assert [reply.status_code for reply in first] == [200, 200, 200, 201, 200, 400]

    def stored():
        with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as database:
            return database.execute("SELECT count(*) FROM reply WHERE status > 0").fetchone()[0]
    wait_until(lambda: stored() == len(asked), "the stream's and the error's are written soon after")
    held = positions(server)
    kill(server)
    server = server_factory(state_dir=folder)
    for i, (path, body) in enumerate(asked):
        again = server.post(path, body, headers={"Idempotency-Key": f"key {i}"})
        assert again.headers["idempotent-replayed"] == "true"
        assert (again.status_code, again.content) == (first[i].status_code, first[i].content)
        other = server.post(path, {**body, "user": "me"}, headers={"Idempotency-Key": f"key {i}"})
        check_error(other, 422, "idempotency_mismatch")
    assert positions(server) == held


def test_a_turn_whose_reply_is_lost_is_not_made_twice(server_factory, tmp_path):
    """The server died between the commit of the turn and that of its reply."""
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    turn(server, "s", headers={"Idempotency-Key": "lost"}).raise_for_status()
    kill(server)
    with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as database:
        assert database.execute("UPDATE reply SET status = 0, length = 0").rowcount == 1
        database.commit()
    server = server_factory(state_dir=folder)
    check_error(turn(server, "s", headers={"Idempotency-Key": "lost"}), 409, "idempotency_reply_lost")
    assert positions(server) == {"s": 4}


def test_without_memory_for_the_body_nothing_is_kept(server_factory, faults):
    """Whichever allocation fails: never a 400, and the same request succeeds later."""
    server = server_factory(environment=faults.environment, threads=1)
    body = {"prompt": "It was", "max_tokens": 2, "stop": ["x", "y"], "logit_bias": {"5": 1.5}}
    seen = set()
    for every in range(2, 40):
        faults.set("malloc", every, ENOMEM)
        with contextlib.suppress(Exception):  # what libmicrohttpd cannot answer it hangs up on
            status = server.post("/v1/completions", body, headers={"Idempotency-Key": f"key {every}"},
                                 timeout=5).status_code
            seen.add(status)
        fired = faults.fired()
        faults.off()
        assert fired > 0
        again = server.post("/v1/completions", body, headers={"Idempotency-Key": f"key {every}"})
        assert again.status_code == 200, again.text
    assert 503 in seen and 400 not in seen


def test_a_copy_of_a_server_that_works(server_factory, tmp_path):
    folder, copy = tmp_path / "state", tmp_path / "copy"
    server = server_factory(state_dir=folder)
    for number in range(20):
        turn(server, f"s{number}").raise_for_status()
    before, stop = positions(server), threading.Event()

    def client():
        while not stop.is_set():
            turn(server, "busy").raise_for_status()
    thread = threading.Thread(target=client)
    thread.start()
    try:
        made = subprocess.run([BINARY, "sessions", "backup", folder, copy], capture_output=True, text=True)
    finally:
        stop.set()
        thread.join()
    assert made.returncode == 0, made.stderr
    refused = subprocess.run([BINARY, "sessions", "backup", folder, copy], capture_output=True, text=True)
    assert refused.returncode == 1 and "File exists" in refused.stderr
    server.stop()
    other = server_factory(state_dir=copy)
    there = positions(other)
    assert there.items() >= before.items() and there.keys() <= {*before, "busy"}
    Session(other, "new").append("some words", max_tokens=3)


def test_orphans_are_told_and_removed(server_factory, tmp_path):
    folder, bob = tmp_path / "state", {"Authorization": "Bearer bob"}
    server = server_factory(state_dir=folder, api_key="alice,bob")
    server.ends_clean = False  # /metrics wants a key
    for number, key in enumerate(["alice", "alice", "bob"]):
        turn(server, f"s{number}", headers={"Authorization": f"Bearer {key}"}).raise_for_status()

    def sessions(*words):
        done = subprocess.run([BINARY, "sessions", "orphans", folder, *words], capture_output=True,
                              text=True)
        return done.returncode, done.stdout + done.stderr
    status, said = sessions("--api-key", "bob", "--remove")
    assert status == 1 and "another server uses it" in said
    server.stop()
    server = server_factory(state_dir=folder, api_key="bob")
    server.ends_clean = False
    server.wait_logged("2 sessions in --state-dir belong to none of the API keys")
    server.stop()
    told = sessions("--api-key", "bob")
    assert told[0] == 0 and told[1].startswith("2 sessions of 8 tokens belong to no key, 1 to one\n")
    status, said = sessions("--remove")
    assert status == 1 and "--without-api-key" in said
    secret = (folder / "secret").read_bytes()
    (folder / "secret").unlink()
    status, said = sessions("--api-key", "bob", "--remove")
    assert status == 1 and "no owner is known" in said
    (folder / "secret").write_bytes(secret)
    assert sessions("--api-key", "bob", "--remove")[0] == 0
    assert sessions("--api-key", "bob")[1].startswith("0 sessions of 0 tokens belong to no key, 1")
    server = server_factory(state_dir=folder, api_key="bob")
    server.ends_clean = False
    listed = server.get("/v1/sessions", headers=bob).json()["data"]
    assert [session["id"] for session in listed] == ["s2"]
    assert "belong to none" not in server.whole_log()
