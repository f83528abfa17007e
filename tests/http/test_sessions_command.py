# SPDX-License-Identifier: Apache-2.0
"""`regla sessions`: what it says of a directory, a store and a server, and what it does to them."""

import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest

from harness import BINARY, GOLDEN, unused_port, wait_until
from redis_failover import Pair
from redis_store import Cluster, Redis
from session_helpers import GREEDY, Session, cold, same

pytestmark = pytest.mark.builds("dev", "asan")
MODEL = GOLDEN / "hybrid_regla"


def regla(*words, environment=None, ok=True):
    """What it prints, if it is to go well; else what it says is wrong."""
    done = subprocess.run([BINARY, "sessions", *map(str, words)], capture_output=True, text=True,
                          env={"PATH": "/usr/bin", **(environment or {})}, timeout=300)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stderr


def listed(*words, **how):
    return {each["id"]: each for each in json.loads(regla("list", *words, "--json", **how))["data"]}


def shown(place, name, *words):
    return json.loads(regla("show", place, name, "--json", *words))


def moved(*words, ok=True):
    return json.loads(regla(*words, "--json")) if ok else regla(*words, ok=False)


@pytest.fixture
def redis(tmp_path):
    running = Redis(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def folder(tmp_path, server_factory):
    """A directory with three sessions, one longer than a row of the database, and their tokens."""
    where = tmp_path / "state"
    server = server_factory(state_dir=where)
    sessions = [Session(server, name) for name in ("one", "two", "long")]
    for session in sessions:
        session.append("some words of " + session.name, max_tokens=5)
    sessions[2].append([5, 6, 7] * 400, max_tokens=3)
    server.stop()
    return where, {session.name: session.ids for session in sessions}


def go_on(server, tokens):
    """Each session has its tokens, and goes on as a run from the beginning would."""
    for name, ids in tokens.items():
        assert server.get(f"/v1/sessions/{name}/tokens").json()["tokens"] == ids
        reply = server.complete(session_id=name, prompt=[9, 8], max_tokens=6, **GREEDY)
        same(reply["choices"][0], cold(server, [*ids, 9, 8], 6))


def test_list_and_show(folder):
    where, tokens = folder
    for words in ([where], ["--state-dir", where]):
        assert {name: each["position"] for name, each in listed(*words).items()} == {
            name: len(ids) for name, ids in tokens.items()}
    assert all(shown(where, name)["tokens"] == ids for name, ids in tokens.items())
    text = regla("list", where)
    assert "3 sessions of" in text and ", 0 damaged" in text and "long" in text
    text = regla("show", where, "one")
    assert f"tokens       {len(tokens['one'])}\n" in text
    assert 'no session "none"\n' in regla("show", where, "none", ok=False)
    assert "of such an --owner" in regla("show", where, "one", "--owner", "0" * 32, ok=False)
    assert listed(where, environment={"REGLA_STORE": "redis://other", "REGLA_STATE_DIR": "other"})
    assert listed(where, "--owner", "0" * 32) == {}
    owner = listed(where)["one"]["owner"]
    assert len(listed(where, "--owner", owner[:6])) == 3
    assert len(listed(where, "--fingerprint", "0" * 32)) == 0


@pytest.mark.builds("dev")
def test_a_move_waits_for_replicas(folder, tmp_path):
    """What they do not have stays where it was; what is there already may not be with them."""
    where, tokens = folder
    pair = Pair(tmp_path)
    try:
        words = ["move", where, "--to", pair.master.location, "--store-replicas", 1]
        pair.other.pause()
        told = moved(*words, ok=False)
        assert "0 of 1 replicas of the store have it" in told
        assert pair.master.keys("regla:{*:*:*}") and set(listed(where)) == set(tokens)
        assert "0 of 1 replicas" in moved(*words, ok=False)  # the first one, which is there already
        assert set(listed(where)) == set(tokens)
        pair.other.resume()
        done = moved(*words)
        assert done["written"] == 2 and done["already_there"] == 1 and listed(where) == {}
        pair.master.kill()
        pair.other.ask("REPLICAOF", "NO", "ONE")
        assert set(listed(pair.other.location)) == set(tokens)
    finally:
        pair.stop()


def test_a_round_trip(folder, redis, tmp_path, server_factory):
    """From a directory to a store and back: the same tokens, and the same next text."""
    where, tokens = folder
    before = listed(where)
    done = moved("move", where, "--to", redis.location)
    assert done["written"] == 3 and done["left"] == {"other": 0, "busy": 0, "damaged": 0, "of_no_key": 0}
    assert listed(where) == {}
    there = listed("--store", redis.location)
    for each in (before, there):
        for session in each.values():
            assert session.pop("used") >= session["created"]  # in a store its time begins anew
    assert there == before
    assert [path for path in where.rglob("*.state")] == []  # what its checkpoints held has gone, too
    server = server_factory(store=redis.location)
    assert {each["id"] for each in server.get("/v1/sessions").json()["data"]} == set(tokens)
    go_on(server, tokens)
    server.stop()
    after = {name: shown(redis.location, name)["tokens"] for name in tokens}
    assert all(after[name][:len(ids)] == ids and len(after[name]) == len(ids) + 8
               for name, ids in tokens.items())
    back = tmp_path / "back"
    assert moved("move", redis.location, "--to", back)["written"] == 3
    assert redis.keys("regla:{*:*:*}*") == []  # of rows, tokens and turns
    go_on(server_factory(state_dir=back), after)


def test_a_copy_can_be_made_again_and_replaces_only_if_asked(folder, redis):
    where, tokens = folder
    assert moved("copy", where, "--to", redis.location)["written"] == 3
    again = moved("copy", where, "--to", redis.location)
    assert (again["written"], again["already_there"]) == (0, 3)
    row, = redis.keys("*:one}")
    redis.ask("DEL", row, row + b":t")
    assert moved("copy", where, "--to", redis.location)["written"] == 1
    back = where.parent / "other"
    assert moved("copy", redis.location, "--to", back)["written"] == 3
    assert moved("copy", redis.location, "--to", back)["already_there"] == 3
    assert len(listed(where)) == 3
    assert {name: shown(back, name)["tokens"] for name in tokens} == tokens


def test_another_of_the_name_stays(folder, redis, server_factory):
    where, tokens = folder
    regla("copy", where, "--to", redis.location)
    server = server_factory(store=redis.location)
    Session(server, "one", tokens["one"]).append([4], max_tokens=1)
    server.stop()
    newer = shown(redis.location, "one")["tokens"]
    said = moved("move", where, "--to", redis.location, ok=False)
    assert "1 are there already with other tokens (--replace)" in said
    assert list(listed(where)) == ["one"]
    assert shown(redis.location, "one")["tokens"] == newer
    assert moved("move", where, "--to", redis.location, "--replace")["written"] == 1
    assert shown(redis.location, "one")["tokens"] == tokens["one"]
    go_on(server_factory(store=redis.location), {"one": tokens["one"]})


def test_a_place_is_not_moved_onto_itself(folder, redis, tmp_path):
    """Else all sessions would be there already, and then removed where they were."""
    where, tokens = folder
    tcp, port = tmp_path / "tcp", unused_port()
    tcp.mkdir()
    by_tcp = Redis(tcp, port=port)
    (tmp_path / "link").symlink_to(redis.socket)
    (tmp_path / "other").symlink_to(where)
    try:
        for store in (redis, by_tcp):
            regla("copy", where, "--to", store.location)
        for here, there in ((redis.location, redis.location), (redis.location, f"unix:{tmp_path}/link"),
                            (f"redis://127.0.0.1:{port}", f"redis://localhost:{port}"),
                            (by_tcp.location, f"redis://127.0.0.1:{port}"),
                            (where, where), (where, tmp_path / "other")):
            for verb in ("move", "copy"):
                said = moved(verb, here, "--to", there, ok=False)
                assert "are the same place" in said and str(there) in f"unix:{said}", said
            assert set(listed(here)) == set(tokens)
        # Another database of the same server is another place.
        other = f"redis://127.0.0.1:{port}/1"
        assert moved("move", by_tcp.location, "--to", other)["written"] == 3
        assert set(listed(other)) == set(tokens) and listed(by_tcp.location) == {}
    finally:
        by_tcp.stop()


def test_a_cluster_is_not_moved_onto_itself(folder, tmp_path):
    where, tokens = folder
    cluster = Cluster(tmp_path)
    try:
        regla("copy", where, "--to", cluster.location)
        said = moved("move", cluster.location, "--to", f"redis://127.0.0.1:{cluster.nodes[1].port}", ok=False)
        assert "are the same place" in said
        assert set(listed(cluster.location)) == set(tokens)
    finally:
        cluster.stop()


def test_an_export_is_the_servers(folder, redis, tmp_path, server_factory):
    """Bit for bit, by a server that runs, from the directory, and from a store beside a server."""
    where, tokens = folder
    server = server_factory(state_dir=where)
    expected = {name: server.get(f"/v1/sessions/{name}/state").content for name in tokens}
    for name in tokens:
        regla("export", "--url", server.url, name, tmp_path / f"{name}.url")
        assert (tmp_path / f"{name}.url").read_bytes() == expected[name]
    said = regla("export", where, "one", tmp_path / "refused", "--model", MODEL, ok=False)
    assert "another server uses it" in said and not (tmp_path / "refused").exists()
    server.stop()
    for name in tokens:
        regla("export", where, name, tmp_path / f"{name}.file", "--model", MODEL)
        assert (tmp_path / f"{name}.file").read_bytes() == expected[name]
    assert "File exists" in regla("export", where, "one", tmp_path / "one.file", "--model", MODEL, ok=False)
    regla("copy", where, "--to", redis.location)
    server = server_factory(store=redis.location)
    server.complete(session_id="one", prompt=[5], max_tokens=3)
    wait_until(lambda: redis.keys("*:state"), "its state is in the store")
    regla("export", redis.location, "one", tmp_path / "one.store", "--model", MODEL)
    assert (tmp_path / "one.store").read_bytes() == server.get("/v1/sessions/one/state").content


def test_an_export_changes_nothing(folder, tmp_path, server_factory):
    """No state of other formats goes, none for which another --disk-state has no room, no file that
    is strange, and no session for its age. Nor does an import remove any."""
    where, tokens = folder
    for path in where.rglob("*.state"):
        path.unlink()
    server = server_factory(state_dir=where, weights="q8")
    server.complete(session_id="one", prompt=[9, 8], max_tokens=6, **GREEDY)
    exported = server.get("/v1/sessions/one/state").content
    server.stop()
    states = next(where.rglob("*.state")).parent
    for name in ("left.tmp", "strange"):
        (states / name).write_bytes(b"x")
    files = {path: path.read_bytes() for path in states.iterdir()}
    times = {path: path.stat().st_mtime_ns for path in files}
    before = listed(where)
    tight = {"REGLA_WEIGHTS": "f32", "REGLA_DISK_STATE": "1", "REGLA_SESSION_TTL": "0.001"}
    done = subprocess.run([BINARY, "sessions", "export", where, "one", tmp_path / "bare", "--model", MODEL],
                          capture_output=True, text=True, env=tight, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("of the session one: its tokens\n")
    assert "bare has no state: there is none that this server would compute the same" in done.stderr
    assert listed(where) == before and {path: path.stat().st_mtime_ns for path in times} == times
    regla("import", where, "copy", tmp_path / "bare", "--model", MODEL, environment=tight)
    assert {path: path.read_bytes() for path in files} == files
    said = regla("export", where, "one", tmp_path / "whole", "--model", MODEL,
                 environment={"REGLA_WEIGHTS": "q8"})
    assert said.endswith("its tokens and its state\n")
    assert (tmp_path / "whole").read_bytes() == exported
    assert {path: path.read_bytes() for path in files} == files
    assert set(listed(where)) == {*tokens, "copy"}


def test_an_export_that_is_stopped_leaves_nothing(folder, redis, tmp_path):
    """Its server has ended, and the directory of its socket is gone. It waits for a store meanwhile."""
    where, _ = folder
    regla("copy", where, "--to", redis.location)

    def server_of(process):
        """(id, directory of its socket) once it has become one"""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "--host" in words:
                return child, Path(words[words.index("--host") + 1].removeprefix("unix:")).parent
        return None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        redis.pause()
        done = subprocess.Popen([BINARY, "sessions", "export", redis.location, "one", tmp_path / "out",
                                 "--model", MODEL], stdin=subprocess.DEVNULL)
        server, own = wait_until(lambda done=done: server_of(done), "its server begins")
        assert own.is_dir() and own.name.startswith("regla-sessions-")
        done.send_signal(number)
        redis.resume()
        assert done.wait(60) == -number
        assert not own.exists() and not Path(f"/proc/{server}").exists()
    assert not (tmp_path / "out").exists()


def test_an_import(folder, redis, tmp_path, server_factory):
    where, tokens = folder
    file = tmp_path / "long.state"
    regla("export", where, "long", file, "--model", MODEL)
    regla("import", where, "again", file, "--model", MODEL)
    assert shown(where, "again")["tokens"] == tokens["long"] and shown(where, "again")["imported"]
    assert "session_exists" not in regla("import", where, "new", file, "--model", MODEL)
    assert "409" in regla("import", where, "new", file, "--model", MODEL, ok=False)
    regla("import", redis.location, "again", file, "--model", MODEL)
    server = server_factory(store=redis.location)
    regla("import", server.url, "by-url", file)
    go_on(server, {"again": tokens["long"], "by-url": tokens["long"]})
    file.write_bytes(file.read_bytes()[:-100])
    assert "400" in regla("import", server.url, "torn", file, ok=False)
    said = regla("export", where, "none", tmp_path / "none", "--model", MODEL, ok=False)
    assert f'{where}: 404: there is no session "none" of this key and model' in said
    said = regla("import", where, "torn", file, "--model", tmp_path / "none", ok=False)
    assert "a server on it does not start" in said


def test_a_server_is_asked(folder, server_factory):
    where, tokens = folder
    server = server_factory(state_dir=where, api_key="alice")
    server.ends_clean = False  # /metrics wants a key
    assert "401" in regla("list", server.url, ok=False)
    assert regla("list", server.url, "--api-key", "alice") .endswith("\n0 sessions\n")
    server.stop()
    server = server_factory(state_dir=where)
    assert {each["id"] for each in json.loads(regla("list", server.url, "--json"))["data"]} == set(tokens)
    assert "\n3 sessions\n" in regla("list", "--url", server.url)
    assert json.loads(regla("show", server.url, "two"))["position"] == len(tokens["two"])
    regla("delete", server.url, "two")
    assert "404" in regla("show", server.url, "two", ok=False)
    assert set(listed(where)) == {"one", "long"}


def test_a_directory_in_use_is_read_but_not_changed(folder, redis, tmp_path, server_factory):
    where, tokens = folder
    server = server_factory(state_dir=where)
    for words in (["delete", where, "one"], ["move", where, "--to", redis.location], ["repair", where],
                  ["copy", redis.location, "--to", where]):
        said = regla(*words, ok=False)
        assert f"another server uses it (process {server.process.pid})" in said
    assert set(listed(where)) == set(tokens)
    assert shown(where, "one")["tokens"] == tokens["one"]
    assert moved("copy", where, "--to", redis.location)["written"] == 3
    regla("backup", where, tmp_path / "copy")
    assert set(listed(tmp_path / "copy")) == set(tokens)
    go_on(server, tokens)


def test_a_backup_of_a_store_that_servers_use(folder, redis, tmp_path, server_factory):
    """Each session in it is as after one of its turns."""
    where, tokens = folder
    regla("copy", where, "--to", redis.location)
    server, stop = server_factory(store=redis.location), threading.Event()
    positions = [len(tokens["one"])]

    def client():
        while not stop.is_set():
            reply = server.complete(session_id="one", prompt=[5], max_tokens=2, ignore_eos=True)
            positions.append(reply["session"]["position"])
    thread = threading.Thread(target=client)
    thread.start()
    try:
        regla("backup", redis.location, tmp_path / "copy")
    finally:
        stop.set()
        thread.join()
    ids = shown(tmp_path / "copy", "one")["tokens"]
    assert len(ids) in positions and len(positions) > 1
    assert server.get("/v1/sessions/one/tokens").json()["tokens"][:len(ids)] == ids
    said = regla("backup", redis.location, tmp_path / "copy", ok=False)
    assert "expected a new directory" in said
    go_on(server_factory(state_dir=tmp_path / "copy"), {**tokens, "one": ids})


def test_a_deletion_leaves_nothing(folder, redis, server_factory):
    where, tokens = folder
    regla("copy", where, "--to", redis.location)
    for place in (where, redis.location):
        regla("delete", place, "long")
        assert set(listed(place)) == {"one", "two"}
        assert 'no session "long"' in regla("delete", place, "long", ok=False)
    needle = b"".join(token.to_bytes(4, "little") for token in tokens["long"][:12])
    assert not any(needle in path.read_bytes() for path in where.rglob("*") if path.is_file())
    assert not any(b"long" in key for key in redis.keys("*"))
    names, = redis.keys("*}:sessions")
    assert sorted(redis.ask("ZRANGE", names, 0, -1)) == [b"one", b"two"]  # by the second of the copy
    go_on(server_factory(state_dir=where), {"one": tokens["one"], "two": tokens["two"]})


def test_a_deletion_that_fails_leaves_the_session(folder, redis):
    """With its name in its owner's list, and without a lease."""
    where, _ = folder
    regla("copy", where, "--to", redis.location)
    redis.ask("ACL", "SETUSER", "default", "-del")
    regla("delete", redis.location, "one", ok=False)
    names, = redis.keys("*}:sessions")
    assert redis.ask("ZSCORE", names, "one")
    row, = redis.keys("*:one}")
    assert not redis.ask("HGET", row, "holder")
    redis.ask("ACL", "SETUSER", "default", "+del")
    regla("delete", redis.location, "one")


def test_a_session_that_a_server_works_on_stays(folder, redis):
    where, _ = folder
    regla("copy", where, "--to", redis.location)
    row, = redis.keys("*:one}")
    redis.ask("HSET", row, "holder", "another", "until", "9" * 13)
    assert "is busy" in regla("delete", redis.location, "one", ok=False)
    said = moved("move", redis.location, "--to", where.parent / "new", ok=False)
    assert "1 are busy or have changed" in said
    assert list(listed(redis.location)) == ["one"]
    assert json.loads(regla("repair", redis.location, "--json"))["busy"] == 1


def test_owners_go_along(redis, tmp_path, server_factory):
    """By the secret where the other place is new; else by the keys."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        server = server_factory(state_dir=folder, api_key="alice,bob")
        server.ends_clean = False
        for key in ("alice", "bob"):
            server.post("/v1/completions", {"session_id": f"{folder.name}", "prompt": key, "max_tokens": 3},
                        headers={"Authorization": f"Bearer {key}"}).raise_for_status()
        server.stop()
    assert "2 sessions \"first\", of other owners or models" in regla("show", first, "first", ok=False)
    assert moved("copy", first, "--to", redis.location)["written"] == 2
    said = moved("copy", second, "--to", redis.location, "--api-key", "alice", ok=False)
    assert "1 belong to none of the keys" in said
    assert moved("copy", second, "--to", redis.location, "--api-key", "alice,bob")["written"] == 1
    server = server_factory(store=redis.location, api_key="alice,bob")
    server.ends_clean = False
    for key in ("alice", "bob"):
        reply = server.http.get("/v1/sessions", headers={"Authorization": f"Bearer {key}"})
        assert {each["id"] for each in reply.json()["data"]} == {"first", "second"}
    owner = [each["owner"] for each in json.loads(regla("list", first, "--json"))["data"]][0]
    regla("delete", first, "first", "--owner", owner)
    assert len(json.loads(regla("list", first, "--json"))["data"]) == 1


def damage(folder, name):
    with contextlib.closing(sqlite3.connect(folder / "sessions.db")) as database:
        changed = database.execute("UPDATE session SET sum = sum + 1 WHERE meta LIKE ?",
                                   [f"%\nid {name}\n%"])
        assert changed.rowcount == 1
        database.commit()


def test_a_directory_is_repaired(folder, server_factory):
    where, tokens = folder
    assert json.loads(regla("repair", where, "--json"))["whole"] == 3
    assert not (where / "sessions.db.rejected").exists()
    damage(where, "two")
    assert "3 sessions of" not in regla("list", where) and "1 damaged" in regla("list", where)
    done = json.loads(regla("repair", where, "--json"))
    assert (done["whole"], done["set_aside"]) == (2, 1)
    assert (where / "sessions.db.rejected").exists()
    assert json.loads(regla("repair", where, "--json"))["set_aside"] == 0
    go_on(server_factory(state_dir=where), {"one": tokens["one"], "long": tokens["long"]})


def test_a_corrupt_database_is_repaired(folder):
    where, _ = folder
    (where / "sessions.db").write_bytes(b"no database at all" * 1000)
    assert "`regla sessions repair` may mend it" in regla("list", where, ok=False)
    assert json.loads(regla("repair", where, "--json"))["whole"] == 0
    assert listed(where) == {} and (where / "sessions.db.rejected").exists()


def test_a_store_is_repaired(folder, redis, server_factory):
    where, tokens = folder
    regla("copy", where, "--to", redis.location)
    row, = redis.keys("*:two}")
    redis.ask("SETRANGE", row + b":t", 4, b"\x09\x00\x00\x00")
    names, = redis.keys("*}:sessions")
    redis.ask("ZREM", names, "one")
    redis.ask("ZADD", names, 1, "gone", 2, "two")
    redis.ask("HSET", row.replace(b":two}", b":died}"), "holder", "dead", "until", "1", "fence", "1")
    damaged = listed(redis.location)["two"]["damage"]
    assert "the store's session is damaged: expected checksum" in damaged
    assert "1 are damaged" in moved("copy", redis.location, "--to", where.parent / "new", ok=False)
    done = json.loads(regla("repair", redis.location, "--json"))
    assert done == {"whole": 2, "set_aside": 1, "leftovers": 1, "names": 3, "busy": 0}
    assert sorted(redis.ask("ZRANGE", names, 0, -1)) == [b"long", b"one"]
    aside = row.replace(b"regla:", b"regla:rejected:", 1)
    assert sorted(redis.keys("regla:rejected:*")) == sorted([aside, aside + b":t"])
    assert json.loads(regla("repair", redis.location, "--json")) == {
        "whole": 2, "set_aside": 0, "leftovers": 0, "names": 0, "busy": 0}
    go_on(server_factory(store=redis.location), {"one": tokens["one"], "long": tokens["long"]})


def test_after_an_older_copy_was_put_back_servers_go_on(redis, server_factory):
    """Without it the next turn would be refused."""
    server = server_factory(store=redis.location)
    older = Session(server, "older")
    older.append([5, 6], max_tokens=3)
    rows = {key: redis.ask("DUMP", key) for key in redis.keys("*:older}*")}
    kept = list(older.ids)
    older.append([7], max_tokens=2)
    for key, value in rows.items():
        redis.ask("RESTORE", key, 0, value, "REPLACE")
    assert json.loads(regla("repair", redis.location, "--json"))["whole"] == 1
    go_on(server, {"older": kept})


# ---- what is wrong ----

@pytest.mark.parametrize("words, said", [
    ([], "expected list, show, export"),
    (["lists", "x"], "did you mean list"),
    (["list"], "list: expected PLACE, got 0 operands"),
    (["list", ""], "list: expected PLACE, got an empty one"),
    (["orphans"], "orphans: expected PLACE, got 0 operands"),
    (["show", "x"], "show: expected PLACE ID, got 1 operand\n"),
    (["import", "x", "y"], "import: expected PLACE ID FILE, got 2 operands"),
    (["list", "x", "y"], "list: expected PLACE, got 2 operands"),
    (["list", "x", "--store", "redis://x"], "list: expected one place, got an operand and --store"),
    (["delete", "x", "y", "--url", "http://x"], "delete: expected one place, got an operand and --url"),
    (["move", "x", "--to", "y", "--owner", ""], '--owner: expected digits 0-9 a-f, got ""'),
    (["list", "x", "--fingerprint", "A"], '--fingerprint: expected digits 0-9 a-f, got "A"'),
    (["orphans", "http://x"], "orphans: expected a directory, got the URL"),
    (["show", "x", "a/b"], "expected the name of a session"),
    (["copy", "x"], "copy: expected --to PLACE"),
    (["list", "x", "--to", "y"], "list: expected no --to PLACE"),
    (["copy", "x", "--to", ""], "copy: expected --to PLACE"),
    (["move", "x", "--to", "http://h:1"], "--to: expected a directory or a store, got the URL"),
    (["backup", "x", "y", "--owner", "a"], "backup: expected no --owner"),
    (["backup", "x", "y", "--json"], "backup: expected no --json"),
    (["export", "x", "y", "z", "--owner", "a"], "export: expected no --owner"),
    (["export", "x", "y", "z", "--json"], "export: expected no --json"),
    (["repair", "x", "--fingerprint", "a"], "repair: expected no --fingerprint"),
    (["delete", "x", "y", "--json"], "delete: expected no --json"),
    (["orphans", "x", "--json"], "orphans: expected no --json"),
    (["list", "x", "--remove"], "list: expected no --remove"),
    (["list", "x", "--without-api-key"], "list: expected no --without-api-key"),
    (["delete", "x", "y", "--replace"], "delete: expected no --replace"),
    (["list", "http://127.0.0.1:1", "--owner", "a"], "list of a server: expected no --owner"),
    (["delete", "http://127.0.0.1:1", "x", "--fingerprint", "a"], "expected no --fingerprint"),
    (["list", "--store", "x"], "--store: expected redis://"),
    (["list", "--store", "redis://x", "--state-dir", "y"], "expected one of --state-dir, --store"),
    (["repair", "http://127.0.0.1:1"], "repair: expected a directory or a store, got the URL"),
    (["list", "https://127.0.0.1:1"], "expected http:// or unix:; for https:// ask with curl"),
    (["orphans", "redis://127.0.0.1"], "orphans: expected a directory, got a store"),
])
def test_wrong_usage_is_told(words, said):
    done = subprocess.run([BINARY, "sessions", *words], capture_output=True, text=True,
                          env={"PATH": "/usr/bin"})
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_key_with_a_line_break(folder):
    where, _ = folder
    for words in (["list", "http://127.0.0.1:1"], ["show", "http://127.0.0.1:1", "x"],
                  ["delete", "http://127.0.0.1:1", "x"], ["export", "http://127.0.0.1:1", "x", "y"]):
        done = subprocess.run([BINARY, "sessions", *words], capture_output=True, text=True,
                              env={"PATH": "/usr/bin", "REGLA_API_KEY": "a\nb"})
        assert done.returncode == 1 and "an API key has no line breaks" in done.stderr, done.stderr


def test_names_of_others_move_no_cursor(folder, redis):
    where, tokens = folder
    regla("copy", where, "--to", redis.location)
    row, = redis.keys("*:one}")
    redis.ask("HSET", row.replace(b":one}", b":\x1b[2J}"), "holder", "x", "until", "1")
    redis.ask("RENAME", row, row.replace(b":one}", b":a\nb}"))
    for words in (["list", redis.location], ["list", redis.location, "--json"], ["repair", redis.location]):
        said = regla(*words)
        assert "\x1b" not in said and "a\nb" not in said
    assert set(listed(redis.location)) == {"two", "long"}


def test_places_that_are_none(tmp_path):
    assert "expected a directory, got nothing" in regla("list", tmp_path / "none", ok=False)
    assert not (tmp_path / "none").exists()
    assert "got no sessions.db" in regla("list", tmp_path, ok=False)
    assert "got no sessions.db" in regla("delete", tmp_path, "x", ok=False)
    assert list(tmp_path.iterdir()) == []
    assert "redis://127.0.0.1:1" in regla("list", "redis://127.0.0.1:1", ok=False)
    assert "cannot connect" in regla("list", "http://127.0.0.1:1", ok=False)
    assert "expected --model PATH" in regla("export", tmp_path, "x", tmp_path / "y", ok=False)
    (tmp_path / "file").touch()
    assert "file/x: Not a directory" in regla("list", tmp_path / "file" / "x", ok=False)
    assert "expected a new directory" in regla("backup", tmp_path, f"unix:{tmp_path}/store", ok=False)


@contextlib.contextmanager
def answering(reply):
    """The URL of a server that answers one request, with these bytes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("reply, said", [
    (b"", "expected an HTTP reply, got 0 other bytes"),
    (b"no HTTP\r\n\r\n", "expected an HTTP reply"),
    (b"x" * 100000, "expected an HTTP reply"),
    (b"HTTP/1.1 200 OK\r\n\r\n{}", "with Content-Length"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}", "with Content-Length"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", "the reply ended at 2 of 10 bytes"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "expected a list of sessions"),
    (b'HTTP/1.1 500 X\r\nContent-Length: 35\r\n\r\n{"error": {"message": "the words"}}', "500: the words"),
    (b'HTTP/1.1 500 X\r\nContent-Length: 38\r\n\r\n{"error": {"message": "the\\u001b[2J"}}', "500: the?[2J"),
])
def test_hostile_replies(reply, said):
    with answering(reply) as url:
        assert said in regla("list", url, ok=False)


def test_hostile_names_in_replies():
    """Neither a list nor what is shown moves the cursor of a terminal."""
    sessions = [{"id": "\x1b[2J"}, {"tier": "disk"}, {"id": "fine", "tier": "a\nb"}, {"id": "\u009b2J"}]
    body = json.dumps({"data": sessions}, ensure_ascii=False)
    reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}".encode()
    with answering(reply) as url:
        lines = [line.split() for line in regla("list", url).splitlines()]
    ends = [(line[0], line[-1]) for line in lines[1:-1]]
    assert ends == [("?", "?"), ("?", "disk"), ("fine", "?"), ("?", "?")]
    for words in (["list", "--json"], ["show", "x"]):
        with answering(reply) as url:
            said = regla(words[0], url, *words[1:])
        assert said.isascii() and said[:-1].isprintable() and json.loads(said) == {"data": sessions}
    with answering(reply.replace(b"\\u001b", b"\x1b     ")) as url:
        assert "the reply: expected JSON" in regla("show", url, "x", ok=False)
