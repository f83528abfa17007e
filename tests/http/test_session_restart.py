# SPDX-License-Identifier: Apache-2.0
"""--state-dir: sessions survive a restart, a kill, a drain; a disk without room; nothing is left."""

import contextlib
import signal
import sqlite3
import struct
import threading

import httpx
import pytest

from harness import START_SECONDS, check_error, request_bytes, wait_until
from session_helpers import GREEDY, Session, busy_session, cold, position, put, same
from stress_helpers import session_rows


def kill(server):
    server.ends_clean = False
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(START_SECONDS)


def files(folder, ending=""):
    return sorted(path for path in folder.rglob("*" + ending)
                  if path.is_file() and path.name not in ("lock", "secret"))


def at(server, session):
    """The session, on a server that was started later."""
    return Session(server, session.name, session.ids)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_restart(server_factory, tmp_path, killed):
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    sessions = [Session(server, f"s{number}") for number in range(4)]
    for session in sessions:
        session.append(f"a session of number {session.name}", max_tokens=6)
        session.append(" that goes on", max_tokens=6)
    sessions.append(sessions[0].fork("forked"))
    sessions[1].rewind(5)
    sessions.pop(2).delete()
    before = server.get("/v1/sessions").json()["data"]
    if killed:
        kill(server)
    else:
        server.stop()
    server = server_factory(state_dir=folder)
    after = server.get("/v1/sessions").json()["data"]
    # Where a state is and how many lie on the way may change; what a session is does not.
    for name in ("id", "position", "created", "bytes"):
        assert [s[name] for s in after] == [s[name] for s in before], name
    for session in sessions:
        at(server, session).append(" after the restart", max_tokens=5)


def test_an_imported_state_is_its_sessions_alone(server_factory, tmp_path):
    """Of other weights, it has other bits than are computed here: nobody's prompt goes on from it."""
    prompt = list(range(20, 60))
    strange = server_factory(weights="q8")
    session = Session(strange, "far")
    session.append(prompt, max_tokens=0)
    there = strange.complete(prompt=[60], session_id="far", store=False, max_tokens=8, **GREEDY)
    server = server_factory(state_dir=tmp_path / "state")
    expected = cold(server, prompt + [60])
    assert expected["logprobs"]["token_logprobs"] != there["choices"][0]["logprobs"]["token_logprobs"]
    for name in ("near", "nearer"):
        assert put(server, name, session.export()).status_code == 201
    for restarted in (False, True):
        reply = server.complete(prompt=prompt + [60], max_tokens=8, **GREEDY)
        same(reply["choices"][0], expected)
        if not restarted:
            assert server.post("/v1/sessions/near/fork", {"id": "fork"}).status_code == 201
        for name in ("near", "nearer", "fork"):
            reply = server.complete(prompt=[60], session_id=name, store=False, max_tokens=8, **GREEDY)
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt)
        same(server.complete(prompt=prompt + [60], max_tokens=8, **GREEDY)["choices"][0], expected)
        same(server.complete(prompt=prompt + [60], session_id=f"own {restarted}".replace(" ", "-"),
                             max_tokens=8, **GREEDY)["choices"][0], expected)
        if not restarted:
            server.stop()
            server = server_factory(state_dir=tmp_path / "state")


def test_owners_after_a_restart(server_factory, tmp_path):
    """Whose a session is does not depend on the order of the keys."""
    bodies = {"alice": "of alice", "bob": "of bob"}
    server = server_factory(state_dir=tmp_path / "state", api_key="alice,bob")
    server.ends_clean = False
    for key, prompt in bodies.items():
        reply = server.post("/v1/completions", {"prompt": prompt, "session_id": "mine",
                                                "max_tokens": 0},
                            headers={"Authorization": f"Bearer {key}"})
        assert reply.status_code == 200
    server.stop()
    server = server_factory(state_dir=tmp_path / "state", api_key="carol,bob,alice")
    server.ends_clean = False
    for key in bodies:
        reply = server.post("/v1/completions", {"prompt": "", "session_id": "mine", "max_tokens": 0,
                                                "store": False},
                            headers={"Authorization": f"Bearer {key}"}).json()
        assert reply["usage"]["prompt_tokens"] > 0
    check_error(server.get("/v1/sessions/mine", headers={"Authorization": "Bearer carol"}), 404)
    server.http.headers["Authorization"] = "Bearer alice"
    server.ends_clean = True
    assert not any(key.encode() in path.read_bytes() for path in files(tmp_path / "state")
                   for key in bodies)


def test_deletion_leaves_no_row_and_no_word(server_factory, tmp_path):
    """Nor any of what the sessions held, in any file."""
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    secrets = [list(range(10 + 50 * number, 50 + 50 * number)) for number in range(5)]
    for number, ids in enumerate(secrets):
        session = Session(server, f"s{number}")
        session.append(ids, max_tokens=5)
        session.append("and on", max_tokens=5, headers={"Idempotency-Key": f"key {number}"})

    def found(ids):
        words = struct.pack(f"<{len(ids)}i", *ids)
        return [path for path in files(folder) if words in path.read_bytes()]
    assert len(session_rows(folder)) == 5
    assert all(found(ids) for ids in secrets)
    server.post("/v1/sessions/s4/rewind", {"position": 0})
    assert not found(secrets[4])  # its checkpoints too
    for number, ids in enumerate(secrets):
        Session(server, f"s{number}").delete()
        assert not found(ids)
        assert len(session_rows(folder)) == 4 - number
        assert not [path for path in files(folder)
                    if f"s{number}\n".encode() in path.read_bytes()]
    server.stop()
    assert not files(folder, ".tmp")
    server = server_factory(state_dir=folder)
    assert server.get("/v1/sessions").json()["data"] == []


def test_a_deletion_that_fails_is_told_and_may_be_repeated(server_factory, tmp_path):
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    session = Session(server, "stubborn")
    session.append("some words", max_tokens=5)
    with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else can write
        error = check_error(server.http.delete("/v1/sessions/stubborn"), 503, "store_failed")
        assert "locked" in error["message"]
        check_error(server.get("/ready"), 503, "store_failed")
        session.get()
    wait_until(lambda: server.get("/ready").status_code == 200, "it is tried again")
    session.append(" and on", max_tokens=5)
    session.delete()
    server.stop()
    server = server_factory(state_dir=folder)
    assert server.get("/v1/sessions").json()["data"] == []


def test_drain_saves_what_runs(server_factory, tmp_path):
    server = server_factory(state_dir=tmp_path / "state", drain_timeout=0)
    session = Session(server, "running")
    session.append("before", max_tokens=4)
    body = {**GREEDY, "prompt": " it runs", "max_tokens": 200000, "stream": True,
            "session_id": "running"}
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", body))
        wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        wait_until(lambda: connection.recv(4096), "it streams")
        server.ends_clean = False  # it is not idle
        server.stop()
    server = server_factory(state_dir=tmp_path / "state")
    held = position(server, "running")
    assert held > len(session.ids)
    # As if cancelled: the prompt, and what was generated until then.
    reply = server.complete(prompt="", session_id="running", max_tokens=0)
    assert reply["usage"]["prompt_tokens"] == held
    prompt = server.complete(prompt=" it runs", session_id="new", max_tokens=0, store=False,
                             return_token_ids=True)["choices"][0]["prompt_token_ids"]
    assert held >= len(session.ids) + len(prompt) - 1
    check_error(server.post("/v1/sessions/running/rewind", {"position": held + 1}), 400)
    moved = server.post("/v1/sessions/running/rewind", {"position": len(session.ids)})
    assert moved.status_code == 200
    at(server, session).append(" it runs", max_tokens=5)


@pytest.mark.long
def test_kills_under_load(server_factory, tmp_path):
    """What had been answered is there as it was, or one unfinished request further."""
    folder = tmp_path / "state"
    known = {}
    for generation in range(4):
        server = server_factory(state_dir=folder)
        for name, ids in known.items():
            held = position(server, name)
            assert held is not None and held >= len(ids), (generation, name)
            choice = server.complete(prompt="", session_id=name, store=False, max_tokens=3,
                                     **GREEDY)["choices"][0]
            if held == len(ids):
                same(choice, cold(server, ids, 3))
            server.post(f"/v1/sessions/{name}/rewind", {"position": len(ids)})
        stop = threading.Event()

        def client(name):
            turn = 0
            while not stop.is_set():
                turn += 1
                try:
                    reply = server.complete(prompt=f" {turn}", session_id=name, max_tokens=4,
                                            **GREEDY)
                except httpx.TransportError:  # killed meanwhile
                    return
                choice = reply["choices"][0]
                known[name] = (known.get(name, []) + choice["prompt_token_ids"]
                               + choice["token_ids"])
                assert reply["session"]["position"] == len(known[name])
        names = [f"g{generation}-c{number}" for number in range(4)] + list(known)[:2]
        threads = [threading.Thread(target=client, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(len(known.get(name, ())) > 10 * (generation + 1) for name in names),
                   "some turns")
        kill(server)
        stop.set()
        for thread in threads:
            thread.join()
    assert not files(folder, ".rejected")


def test_full_disk(server_factory, tmp_path):
    """What has no room is refused and was not made; the metric and a line of the log say so."""
    folder, room = tmp_path / "state", 128 << 10
    server = server_factory(state_dir=folder, disk_state=room)
    held = {}
    for number in range(60):
        body = {**GREEDY, "prompt": f"turn {number}", "session_id": f"s{number % 45}", "max_tokens": 6}
        reply = server.post("/v1/completions", body)
        name, before = body["session_id"], held.get(body["session_id"])
        if reply.status_code == 200:
            held[name] = reply.json()["session"]["position"]
        else:
            check_error(reply, 503, "store_failed")
            assert position(server, name) == before
    assert 5 < len(held) < 45
    check_error(server.post("/v1/completions", {"prompt": "x", "session_id": "one-more"}), 503,
                "store_failed")
    state = server.get("/v1/state").json()["store"]
    assert state["full"] and state["failures"] > 0
    server.wait_metric(1, "regla_store_full")
    assert sum(path.stat().st_size for path in files(folder) if path.suffix != ".db-shm") <= room * 1.2
    assert "sessions cannot be written to disk" in server.whole_log()
    kill(server)
    server = server_factory(state_dir=folder, disk_state=room)
    assert {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]} == held
    for name in held:
        Session(server, name).delete()
    assert server.get("/v1/state").json()["store"]["session_files"] == 0


@pytest.mark.parametrize("removed", [False, True], ids=["", "lock removed"])
def test_two_servers_do_not_share_a_directory(server_factory, tmp_path, removed):
    server_factory(state_dir=tmp_path / "state")
    if removed:
        (tmp_path / "state" / "lock").unlink()
    second = server_factory(state_dir=tmp_path / "state", wait=False)
    second.ends_clean = False
    assert second.process.wait(START_SECONDS) == 1
    assert str(tmp_path / "state") in second.tail()


def test_what_is_damaged_is_set_aside(server_factory, tmp_path):
    """A row with another checksum is left out; a database that is none is renamed."""
    folder = tmp_path / "state"
    server = server_factory(state_dir=folder)
    for number in range(3):
        Session(server, f"s{number}").append("some words", max_tokens=3)
    server.stop()
    with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as database:
        (at, tokens), = database.execute("SELECT at, tokens FROM session LIMIT 1")
        database.execute("UPDATE session SET tokens = ? WHERE at = ?",
                         (bytes([tokens[0] ^ 1]) + tokens[1:], at))
        database.commit()
    server = server_factory(state_dir=folder)
    assert len(server.get("/v1/sessions").json()["data"]) == 2
    assert "is damaged: it is left alone" in server.tail(1 << 20)
    name = server.get("/v1/sessions").json()["data"][0]["id"]
    server.complete(prompt="", session_id=name, max_tokens=3)
    server.stop()
    (folder / "sessions.db").write_bytes(b"no database at all" * 1000)
    server = server_factory(state_dir=folder)
    assert server.get("/v1/sessions").json()["data"] == []
    assert "sessions.db.rejected" in server.tail(1 << 20)
    assert [path.name for path in files(folder, ".rejected")] == ["sessions.db.rejected"]
    Session(server, "new").append("some words", max_tokens=3)


def test_busy_while_it_is_written(server_factory, tmp_path):
    """With a store, too, a session is free before the last byte of a reply."""
    server = server_factory(state_dir=tmp_path / "state")
    for turn in range(25):
        fields = {"prompt": f"turn {turn}", "session_id": "quick", "max_tokens": 2}
        (server.stream if turn % 2 else server.complete)(**fields)
    with busy_session(server, "quick"):
        pass
    assert position(server, "quick") > 50
