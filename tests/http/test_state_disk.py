# SPDX-License-Identifier: Apache-2.0
"""--state-dir in adversity: killed at any moment, a disk without room."""

import random
import shutil
import subprocess
import threading
import time

import pytest

from harness import GOLDEN, check_error, wait_until
from session_helpers import GREEDY, Session, cached, cold, position, put, same
from stress_helpers import (Oracle, check_rest, in_pool, kill, model_of, session_rows, size,
                            some_ids)

KILLS = size("KILLS", 4, 2, 200)
WRITERS = size("WRITERS", 4, 3, 8)
MODEL = GOLDEN / "hybrid_regla"


class Writer:
    """A client that changes sessions of its own until the server is gone. It knows what each holds
    by what has been answered, and by what has been asked and not answered."""

    def __init__(self, number):
        self.number = number
        self.dice = random.Random(number)
        self.answered = {}    # name -> tokens
        self.asked = None     # (name, tokens it may hold instead; None: it may be gone)
        self.made = 0
        self.changes = 0

    def run(self, server, oracle, stop):
        while not stop.is_set():
            try:
                self.change(server, oracle)
            except Gone:
                return

    def ask(self, server, method, path, name, after, **options):
        self.asked = (name, after)
        try:
            reply = server.http.request(method, path, **options)
        except Exception as error:  # killed meanwhile
            raise Gone from error
        assert reply.status_code in (200, 201, 204), reply.text
        self.asked = None
        if after is None:
            del self.answered[name]
        else:
            self.answered[name] = after
        self.changes += 1

    def change(self, server, oracle):
        names = sorted(self.answered)
        what = self.dice.choice(("go on", "go on", "go on", "fork", "rewind", "delete"))
        if len(names) > 6 or what == "delete" and len(names) > 2:
            name = self.dice.choice(names)
            self.ask(server, "DELETE", f"/v1/sessions/{name}", name, None)
        elif what == "rewind" and names:
            name = self.dice.choice(names)
            place = self.dice.randint(1, len(self.answered[name]))
            self.ask(server, "POST", f"/v1/sessions/{name}/rewind", name,
                     self.answered[name][:place], json={"position": place})
        elif what == "fork" and 0 < len(names) < 4:
            name, copy = self.dice.choice(names), self.name()
            self.ask(server, "POST", f"/v1/sessions/{name}/fork", copy,
                     list(self.answered[name]), json={"id": copy})
        else:
            name = self.dice.choice(names) if len(names) > 1 else self.name()
            held = self.answered.get(name, [])
            prompt = some_ids(self.dice, self.dice.randint(1, 12), 200)
            after = held + prompt + oracle.after(held + prompt, 3)["token_ids"]
            self.ask(server, "POST", "/v1/completions", name, after,
                     json={**GREEDY, "prompt": prompt, "max_tokens": 3, "session_id": name})

    def name(self):
        self.made += 1
        return f"w{self.number}-{self.made}"

    def settle(self, held, server, oracle):
        """After a restart: `held` {name: position} of the sessions that are there."""
        if self.asked:
            name, after = self.asked
            before = self.answered.get(name)
            lengths = {len(ids) if ids is not None else None: ids for ids in (before, after)}
            assert held.get(name) in lengths, (name, held.get(name), list(lengths))
            self.answered[name] = lengths[held.get(name)]
            if self.answered[name] is None:
                del self.answered[name]
            self.asked = None
        mine = {name: length for name, length in held.items()
                if name.startswith(f"w{self.number}-")}
        assert mine == {name: len(ids) for name, ids in self.answered.items()}
        for name in self.dice.sample(sorted(mine), min(2, len(mine))):
            reply = server.complete(prompt=[7], session_id=name, store=False, max_tokens=3,
                                    **GREEDY)
            same(reply["choices"][0], oracle.after(self.answered[name] + [7], 3))


class Gone(Exception):
    """The server does not answer any more."""


def test_killed_at_any_moment(server_factory, tmp_path):
    """What was answered is there as it was, or as the one request left it that was not answered."""
    folder = tmp_path / "state"
    oracle = Oracle(server_factory(model=MODEL, no_prefix_cache=True))
    dice = random.Random("kills")
    writers = [Writer(number) for number in range(WRITERS)]
    for generation in range(KILLS + 1):
        server = server_factory(model=MODEL, state_dir=folder)
        held = {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}
        for writer in writers:
            writer.settle(held, server, oracle)
        assert not list(folder.rglob("*.rejected"))
        if generation == KILLS:
            break
        stop, errors = threading.Event(), []

        def run(writer):
            try:
                writer.run(server, oracle, stop)
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        time.sleep(dice.uniform(0, 0.4))  # any moment will do: nothing waits for it
        kill(server)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
    print(f"{KILLS} kills, {sum(writer.changes for writer in writers)} changes answered, "
          f"{sum(len(writer.answered) for writer in writers)} sessions at the end")
    for writer in writers:
        for name in list(writer.answered):
            assert server.http.delete(f"/v1/sessions/{name}").status_code == 204
    check_rest(server)
    assert session_rows(folder) == []
    assert not list(folder.rglob("*.tmp"))


@pytest.fixture
def small_disk(tmp_path):
    """(folder, fill, clear): a file system of 1 MiB; where that may not be mounted, a budget of as
    much stands for it (fill and clear are None)."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    mounted = mount and subprocess.run([mount, "-t", "tmpfs", "-o", "size=1M", "regla", folder],
                                       capture_output=True).returncode == 0
    ballast = folder / "ballast"

    def fill():
        with open(ballast, "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
    yield (folder / "state", fill, ballast.unlink) if mounted else (folder / "state", None, None)
    if mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_disk_without_room(small_disk, server_factory, ends):
    """A turn that finds no room is refused, and its session is as before; /ready, a metric and a
    line of the log say so. With room again turns are taken again. What got a 200 is there."""
    folder, fill, clear = small_disk
    server = server_factory(model=MODEL, state_dir=folder, **({} if fill else {"disk_state": 100_000}))
    held, refused = {}, 0

    def turn(number):
        name = f"s{number}"
        reply = server.post("/v1/completions", {**GREEDY, "prompt": [7] * 20, "session_id": name,
                                                "max_tokens": 4})
        if reply.status_code == 200:
            choice = reply.json()["choices"][0]
            held[name] = held.get(name, []) + choice["prompt_token_ids"] + choice["token_ids"]
        else:
            check_error(reply, 503, "store_failed")
        assert position(server, name) == (len(held[name]) if name in held else None)
        return reply.status_code == 200
    assert turn(0)
    if fill:
        assert server.metric("regla_store_full") == 0
        fill()
    for number in range(300):
        if not turn(number % 100):
            refused += 1
            if refused == 1 and fill:
                check_error(server.get("/ready"), 503, "store_failed")
                server.wait_metric(1, "regla_store_full")
                assert server.complete(prompt=[7], max_tokens=1)
            if refused > 20:
                break
        elif fill:  # what its checkpoints gave up for it
            fill()
    assert refused > 0 and server.metric("regla_store_failures_total") > 0
    assert "sessions cannot be written to disk" in server.whole_log()
    if fill:
        clear()
        wait_until(lambda: server.get("/ready").status_code == 200, "it is tried again")
        assert turn(0) and turn(1)
    if ends == "stopped":
        server.stop()
    else:
        kill(server)
    server = server_factory(model=MODEL, state_dir=folder)
    listed = {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}
    assert listed == {name: len(ids) for name, ids in held.items()}
    for name, ids in list(held.items())[:5]:
        choice = server.complete(prompt=[7], session_id=name, max_tokens=3, **GREEDY)["choices"][0]
        same(choice, cold(server, ids + [7], 3))


def test_checkpoints_make_room_on_a_full_disk(small_disk, server_factory):
    """The budget allows more than the disk has."""
    folder, fill, _ = small_disk
    if not fill:
        pytest.skip("no file system may be mounted here")
    server = server_factory(model=GOLDEN / "regla", state_dir=folder, host_state_memory=20000,
                            state_memory=200_000)
    sessions = [Session(server, f"s{number}") for number in range(50)]
    for session in sessions:
        session.append([7 + len(session.name)] * 100, max_tokens=4)
    store = server.get("/v1/state").json()["store"]
    assert store["checkpoint_files"] > 0 and not store["full"]
    assert shutil.disk_usage(folder).free < 200_000  # 64 KiB of it stay reserved
    assert len(session_rows(folder)) == len(sessions)
    kill(server)
    server = server_factory(model=GOLDEN / "regla", state_dir=folder)
    listed = {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}
    assert listed == {session.name: len(session.ids) for session in sessions}


@pytest.mark.builds("dev", "asan")
def test_a_session_too_large_for_the_disk_keeps_no_other_from_it(server_factory, tmp_path):
    """Not even in the same commit."""
    server = server_factory(model=GOLDEN / "regla", state_dir=tmp_path / "state", disk_state=200_000,
                            max_body_bytes="8M")
    statuses = {}

    def make(number):
        body = {"prompt": [7] * (60_000 if number % 6 == 0 else 10), "session_id": f"s{number}",
                "max_tokens": 0}
        statuses[number] = server.post("/v1/completions", body).status_code
    in_pool(12, 12, make)
    assert statuses == {number: 200 if number % 6 else 503 for number in range(12)}
    kill(server)
    server = server_factory(model=GOLDEN / "regla", state_dir=tmp_path / "state")
    listed = {s["id"]: s["position"] for s in server.get("/v1/sessions").json()["data"]}
    assert listed == {f"s{number}": 10 for number in range(12) if number % 6}


def test_a_large_state_is_not_written_after_each_request(server_factory, tmp_path):
    """--save-state-bytes: after a crash its session is computed again."""
    flags = {"model": MODEL, "state_dir": tmp_path / "state"}
    model = model_of(server_factory(model=MODEL))
    page = 64 * model["kv_bytes_per_token"]
    lengths = {"long": 150, "short": 40}
    for most, written in ((model["state_bytes_per_text"] + page, ["short"]), ("16M", ["long", "short"])):
        server = server_factory(**flags, save_state_bytes=most)
        for name, length in lengths.items():
            server.complete(prompt=[length] * length, session_id=f"{name}-{most}", max_tokens=0)
        wait_until(lambda server=server, written=written: server.get("/v1/state").json()["store"][
            "checkpoint_files"] >= len(written), "files of states")
        kill(server)
        server = server_factory(**flags)
        for name, length in lengths.items():
            reply = server.complete(prompt=[8], session_id=f"{name}-{most}", max_tokens=1, **GREEDY)
            assert cached(reply) == (length if name in written else 0), (most, name)
        kill(server)
        shutil.rmtree(tmp_path / "state")


@pytest.mark.long
def test_checkpoints_make_room_for_sessions(server_factory, tmp_path):
    """However many sessions are written at once, and whatever is being removed meanwhile."""
    clients, turns = size("ROOM_CLIENTS", 32, 8, 32), size("ROOM_TURNS", 12, 5, 40)
    server = server_factory(model=GOLDEN / "regla", state_dir=tmp_path / "state",
                            disk_state=clients * 4096 + 200000, host_state_memory=50000)

    def talk(number):
        dice = random.Random(number)
        for _ in range(turns):
            server.complete(prompt=some_ids(dice, 10, 200), session_id=f"s{number}", max_tokens=1)
    in_pool(clients, clients, talk)
    assert "cannot be written" not in server.whole_log()
    assert server.get("/v1/state").json()["store"]["session_files"] == clients
    check_rest(server)

# Files that are read and find no room.

def image_bytes(server, tokens):
    model = model_of(server)
    return int(model["state_bytes_per_text"] + tokens * model["kv_bytes_per_token"])


def test_a_checkpoint_whose_logits_have_no_room_is_not_read_for_ever(server_factory, tmp_path):
    dice = random.Random(5)
    prompt = some_ids(dice, 300, 200)
    server = server_factory(state_dir=tmp_path / "state")
    for length in (280, 300):
        server.complete(**GREEDY, prompt=prompt[:length], max_tokens=3)
    expected = cold(server, prompt, 3)
    bytes_of = image_bytes(server, 320)
    server.stop()
    for more in (0, 500, 2200):
        server = server_factory(state_dir=tmp_path / "state", state_memory=1000000,
                                host_state_memory=bytes_of + more)
        same(server.complete(**GREEDY, prompt=prompt, max_tokens=3)["choices"][0], expected)
        server.stop()


def test_a_smaller_disk_state_holds_from_the_start(server_factory, tmp_path):
    dice = random.Random(9)
    server = server_factory(state_dir=tmp_path / "state")
    for number in range(12):
        server.complete(prompt=some_ids(dice, 200, 200), max_tokens=1, session_id=f"s{number}")
    server.stop()
    server = server_factory(state_dir=tmp_path / "state")
    had = server.get("/v1/state").json()["store"]
    server.stop()
    assert had["checkpoint_files"] >= 4
    server = server_factory(state_dir=tmp_path / "state", disk_state=had["bytes"] // 2)
    wait_until(lambda: server.get("/v1/state").json()["store"]["bytes"] <= had["bytes"] // 2,
               "checkpoints go")
    assert server.get("/v1/state").json()["store"]["session_files"] == 12


def test_an_export_that_no_tier_has_room_for_ends(server_factory, tmp_path):
    prompt = some_ids(random.Random(1), 3000, 200)
    server = server_factory(state_dir=tmp_path / "state")
    server.complete(**GREEDY, prompt=prompt, max_tokens=5, session_id="large")
    memory = image_bytes(server, 600)
    server.stop()
    server = server_factory(state_dir=tmp_path / "state", state_memory=memory, host_state_memory=0)
    exported = server.get("/v1/sessions/large/state", timeout=20)
    assert exported.status_code == 200
    server.stop()
    other = server_factory()
    assert put(other, "moved", exported.content).status_code in (200, 201)
    assert position(other, "moved") == 3005
