#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does a server with default flags stay inside the memory that a control group leaves?

    memory_table.py BINARY [--model DIR] [--limits 40,100,...] [--prompts N] [--state-dir]

As root. For each limit (MiB) it makes a control group, of version 1 or 2, whichever has the memory
controller here, starts a server in it, and sends prompts of 3,000 ids that share nothing. One row a limit:
what the server answered, and the group's peak against its limit, with the pages of files that the kernel
would drop ("peak") and without ("in use", looked at after each prompt). Program and model are copied by the
group first, so that the pages of their files count too. Exits with 1 if a server was killed or did not start.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup")
LIMITS = "40,100,300,1000,4000"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy says


def hand_on(above):
    """Of version 2: the groups in this one get the controller. One with processes of its own cannot."""
    control = above / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory")


def version():
    """The version of control groups that limits memory here; None: there is none that we may use."""
    found = 1 if (CGROUPS / "memory/memory.limit_in_bytes").exists() else 2
    if found == 2 and not (CGROUPS / "cgroup.controllers").exists():
        return None
    if found == 2 and "memory" not in (CGROUPS / "cgroup.controllers").read_text().split():
        return None
    probe = (CGROUPS / "memory" if found == 1 else CGROUPS) / f"regla-probe-{os.getpid()}"
    try:
        if found == 2:
            hand_on(CGROUPS)
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return None
    return found


class Group:
    """A control group with a limit of so many MiB (None: without), inside `parent` or at the top."""

    def __init__(self, name, mib, parent=None):
        self.version = version()
        top = CGROUPS / "memory" if self.version == 1 else CGROUPS
        self.parent = parent
        self.path = (parent.path if parent else top) / f"regla-{name}-{os.getpid()}"
        self.path.mkdir()
        if self.version == 2:
            hand_on(self.path.parent)
        if mib is not None:
            self.limit = mib << 20
            limit = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
            (self.path / limit).write_text(str(self.limit))
            if self.version == 2:
                (self.path / "memory.swap.max").write_text("0")

    def start(self, command, **options):
        """A process in the group."""
        entry = ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]
        return subprocess.Popen([*entry, *map(str, command)], **options)

    def peak(self):
        """Bytes; None where the kernel does not say."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.path / name).read_text())
        except FileNotFoundError:  # before Linux 5.19
            return None

    def in_use(self):
        """Bytes, without pages of files."""
        name = "total_rss" if self.version == 1 else "anon"
        lines = (self.path / "memory.stat").read_text().split("\n")
        return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [name])

    def remove(self):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:  # its last process is going
                time.sleep(0.1)
        raise RuntimeError(f"{self.path} is still in use")


class Server:
    """A server in a group, with default flags and others."""

    def __init__(self, group, binary, model, *flags):
        self.url = None  # until it says its port
        self.vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        handle, self.log = tempfile.mkstemp(suffix=".log")
        self.process = group.start([binary, "serve", "--model", model, "--port", 0, *flags],
                                   stderr=handle)
        os.close(handle)

    def text(self):
        return Path(self.log).read_text()

    def ready(self, seconds=60):
        """Whether it is, or has ended."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            listening = re.search(r"listening on (http://127\.0\.0\.1:\d+)\b", self.text())
            try:
                if listening:
                    DIRECT.open(f"{listening[1]}/ready", timeout=5).read()
                    self.url = listening[1]
                    return True
            except OSError:
                pass
            time.sleep(0.05)
        return False

    def post(self, path, body, timeout=600):
        """The status; 0: the server has gone."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        try:
            with DIRECT.open(request, timeout=timeout) as reply:
                reply.read()
                return reply.status
        except urllib.error.HTTPError as error:
            error.read()
            return error.code
        except OSError:
            return 0

    def complete(self, tokens, dice, **fields):
        ids = [dice.randrange(1, self.vocabulary) for _ in range(tokens)]
        return self.post("/v1/completions", {"prompt": ids, "max_tokens": 2, **fields})

    def end(self):
        """How it ended: its exit code, negative for a signal."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def discard(self):
        """Ends it at once, if it runs, and removes its log."""
        self.process.kill()
        self.process.wait()
        Path(self.log).unlink()


def copy_in(group, folder, binary, model):
    """Copies that the group has read: what is in memory of them counts as the group's."""
    group.start(["cp", "-rL", binary, model, folder]).wait(60)
    return Path(folder) / Path(binary).name, Path(folder) / Path(model).name


def serve(group, folder, options, dice):
    """What a server has answered: how many of each status, its end, and the most that was in use."""
    binary, model = copy_in(group, folder, options.binary, options.model)
    flags = ["--state-dir", f"{folder}/state"] if options.state_dir else []
    server = Server(group, binary, model, *flags, *options.flags)
    started, statuses, most = server.ready(), {}, 0
    for _ in range(options.prompts if started else 0):
        fields = {"session_id": f"s{dice.randrange(20)}"} if options.state_dir else {}
        status = server.complete(options.tokens, dice, **fields)
        statuses[status] = statuses.get(status, 0) + 1
        most = max(most, group.in_use())
        if status == 0:
            break
    code = server.end()
    log = [line for line in server.text().splitlines() if " completion " not in line]
    server.discard()
    return log, statuses, code, most


def row(mib, options):
    """One row of the table: whether all is well, and its cells."""
    group = Group("table", mib)
    try:
        with tempfile.TemporaryDirectory() as folder:
            log, statuses, code, most = serve(group, folder, options, random.Random(mib))
        if options.verbose:
            print(*log, sep="\n", file=sys.stderr)
        states = re.search(r"([0-9.]+) for states and", "\n".join(log))
        peaks = ["-" if peak is None else f"{peak / 2**20:.1f}" for peak in (group.peak(), most)]
        answers = ", ".join(f"{n} × {status}" for status, n in sorted(statuses.items()))
        return code == 0 and 0 not in statuses, [
            f"{mib}", *peaks, states[1] if states else "-",
            answers or log[-1], "yes" if code == -signal.SIGKILL else "no"]
    finally:
        group.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", type=Path, default=ROOT / "models/regla-books-7.7m")
    parser.add_argument("--limits", default=LIMITS, help=f"MiB ({LIMITS})")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=3000, help="of a prompt (3000)")
    parser.add_argument("--state-dir", action="store_true", help="with sessions, in a directory")
    parser.add_argument("--verbose", action="store_true", help="the server's log")
    parser.add_argument("flags", nargs="*", help="further flags of the server, after --")
    options = parser.parse_args()
    if version() is None:
        sys.exit("control groups that limit memory: expected to be root, and to have the memory controller")
    print(f"control groups version {version()}, {options.prompts} prompts of {options.tokens} ids")
    print("| limit, MiB | peak | in use | states | answers | killed |\n|---|---|---|---|---|---|")
    well = True
    for mib in map(int, options.limits.split(",")):
        good, cells = row(mib, options)
        well &= good
        print("| " + " | ".join(cells) + " |", flush=True)
    sys.exit(not well)


if __name__ == "__main__":
    main()
