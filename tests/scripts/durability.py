# SPDX-License-Identifier: Apache-2.0
"""Measures what --state-dir costs, and that a full disk loses nothing: by hand, beside nothing else.

    python tests/scripts/durability.py slow     # turns a second of 32 sessions, by the time of a sync
    python tests/scripts/durability.py start    # exec to /ready with 10,000 sessions, after a kill
    python tests/scripts/durability.py enospc   # as root: 1,200 turns on 3 MB, then a kill

REGLA_BINARY names the program (build/release/regla). Each ends with status 1 if what it ought to show
does not hold, or if no call of the preloaded library (tests/http/shim.c) was hooked.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("REGLA_BINARY", "build/release/regla")
sys.path.insert(0, str(ROOT / "tests" / "http"))

from faults import Faults  # noqa: E402
from harness import Server, shipped_model  # noqa: E402

SECONDS, CLIENTS, SESSIONS, TURNS = 6, 32, 10_000, 1200


def start(folder, **options):
    return Server(Path(folder) / "log", shipped_model(), threads=1,
                  state_dir=Path(folder) / "state", **options)


def end(server):
    server.process.kill()
    server.process.wait()


def ask(connection, name, prompt):
    """The status of a turn."""
    body = {"prompt": prompt, "session_id": name, "max_tokens": 2, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    return reply.status


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def turns_a_second(folder, faults, seconds):
    server = start(folder, environment=faults.environment)
    faults.slow(seconds)
    faults.set("fsync", every=1 << 30)  # none fails: it counts
    until, took = time.monotonic() + SECONDS, []

    def client(number):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        while time.monotonic() < until:
            began = time.monotonic()
            assert ask(connection, f"s{number}", [5, 6]) == 200
            took.append(time.monotonic() - began)
    in_threads(CLIENTS, client)
    syncs = faults.calls()
    end(server)
    print(f"sync +{seconds * 1e3:.0f} ms: {len(took) / SECONDS:.0f} turns/s, median "
          f"{statistics.median(took) * 1e3:.0f} ms, {len(took) / max(syncs, 1):.1f} turns a sync")
    return len(took) / SECONDS if syncs else 0


def slow(folder):
    faults = Faults(folder)
    turns_a_second(Path(folder), faults, 0)
    return turns_a_second(Path(folder), faults, 0.02) >= 300


def start_many(folder):
    server = start(folder)

    def client(number):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for session in range(number, SESSIONS, 8):
            assert ask(connection, f"s{session}", [5 + session % 4000] * 20) == 200
    in_threads(8, client)
    end(server)
    took = []
    for _ in range(5):
        began = time.monotonic()
        server = start(folder)
        took.append(time.monotonic() - began)
        listed = len(server.get("/v1/sessions").json()["data"])
        end(server)
        assert listed == SESSIONS
    print(f"{SESSIONS} sessions: ready after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
    return statistics.median(took) < 1


def enospc(folder):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3M", "regla", folder], check=True)
    with tempfile.TemporaryDirectory() as logs:
        try:
            options = {"threads": 1, "state_dir": Path(folder) / "state"}
            server = Server(Path(logs) / "log", shipped_model(), **options)
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            statuses = {f"s{n}": ask(connection, f"s{n}", [5 + n] * 20) for n in range(TURNS)}
            end(server)
            server = Server(Path(logs) / "log", shipped_model(), **options)
            there = {session["id"] for session in server.get("/v1/sessions").json()["data"]}
            end(server)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    taken = {name for name, status in statuses.items() if status == 200}
    print(f"{TURNS} turns on 3 MB: {len(taken)} got 200, {len(statuses) - len(taken)} another; "
          f"{len(taken - there)} lost, {len(there - taken)} that were refused are there")
    return taken == there and set(statuses.values()) == {200, 503}


def main():
    commands = {"slow": slow, "start": start_many, "enospc": enospc}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if commands[sys.argv[1]](folder) else 1)


if __name__ == "__main__":
    main()
