# SPDX-License-Identifier: Apache-2.0
"""What one measurement needs: a server, a client that costs little, the engine alone, the machine."""

import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "http"))
import harness  # noqa: E402  (whose Server starts, reads and stops `regla serve`)

PROMPT_TOKENS = 5
WARM_UP_TOKENS = 16
VOCABULARY = 50304  # of every preset
POINT_SECONDS = 3600
START_SECONDS = 600  # of a large preset beside other work; beyond it something hangs


class Failure(Exception):
    """What went wrong, in a sentence for the user."""


def find_binary(given):
    found = Path(given) if given else ROOT / "build" / "release" / "regla"
    if not os.access(found, os.X_OK):
        raise Failure(f"{found} is not there: `make build`, or name it with --binary")
    return found.resolve()


def shipped_model():
    found = harness.shipped_model()
    if found is None:
        raise Failure("models/ holds no model: name one with --model, or a --preset")
    return found


def run(command, text=None):
    """The standard output of a command that must succeed. text: its standard input."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                            input=text, timeout=POINT_SECONDS)
    if result.returncode:
        raise Failure(f"{' '.join(map(str, command))}: {result.stderr.strip()[-400:]}")
    return result.stdout


@contextmanager
def serving(binary, **flags):
    """A `regla serve` of our own on a free port; it must end clean."""
    harness.BINARY, harness.START_SECONDS = binary, START_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        flags = {"model": ".", "threads": 0, **flags}
        server = harness.Server(Path(folder) / "server.log", **flags)
        try:
            yield server
        finally:
            server.stop()


def thread_seconds(pid):
    """CPU seconds of a process's threads, by their names."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            used = int((task / "schedstat").read_text().split()[0]) * 1e-9
        except OSError:
            continue  # it has ended
        seconds[name] = seconds.get(name, 0) + used
    return seconds


def own_seconds(server):
    """CPU seconds of the server without those in which the engine computes."""
    threads = thread_seconds(server.process.pid)
    return (sum(threads.values()) - threads.get("regla-compute", 0)
            - server.metric("regla_engine_step_cpu_seconds_total"))


class Others:
    """What everybody else has of the cores that we may use, from now on."""

    def __init__(self):
        self.cores = os.sched_getaffinity(0)
        self.began, self.before = time.monotonic(), self._seconds()

    def _seconds(self):
        """CPU seconds without our own and those of processes that we have waited for; what a
        hypervisor took is another's."""
        ticks = 0
        for line in Path("/proc/stat").read_text().splitlines():
            if (found := re.match(r"cpu(\d+) ", line)) and int(found[1]) in self.cores:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
                ticks += user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])

    def share(self):
        """Of 1: all of these cores, all the time."""
        return (self._seconds() - self.before) / len(self.cores) / (time.monotonic() - self.began)


def status_bytes(pid, field):
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M).group(1)) * 1024


class Replies:
    """wrk, running wrk.lua against a server: so many connections that ask again and again."""

    def __init__(self, url, streams, length, seed, temperature=0, vocabulary=VOCABULARY):
        if not shutil.which("wrk"):
            raise Failure("wrk is not there: `apt install wrk`")
        self.length = length
        self.process = subprocess.Popen(
            ["wrk", "-t1", f"-c{streams}", f"-d{POINT_SECONDS}", "-s", str(HERE / "wrk.lua"), url, "--",
             *map(str, (length, vocabulary, temperature, seed))],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGINT)
        self.process.stdout.close()
        self.process.wait()

    def take(self, count):
        """(sent, ended) of the next `count` replies, which must be whole."""
        times = []
        said = []
        for line in self.process.stdout:
            if not line.startswith("reply "):
                said.append(line)
                continue
            _, status, tokens, _, sent, ended = line.split()
            if int(status) != 200 or int(tokens) != self.length:
                raise Failure(f"expected a reply of 200 with {self.length} tokens, got {line!r}")
            times.append((float(sent), float(ended)))
            if len(times) == count:
                return times
        raise Failure(f"wrk ended after {len(times)} of {count} replies: {''.join(said)[-400:]}")


def machine(binary):
    """What the figures depend on."""
    processor = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    return {"processor": processor, "cores": len(os.sched_getaffinity(0)),
            "system": platform.system(), "release": platform.release(),
            "regla": run([binary, "--version"]).split()[-1], "commit": commit()}


def commit():
    """That of the tree, if it is one; the binary's is its builder's business."""
    result = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def draw(kind, figures, options):
    """A function of plots.py, unless --no-plots. Who lacks its package has the figures in files."""
    if options.no_plots:
        return
    try:
        import plots
    except ModuleNotFoundError as missing:
        print(f"no plots: the Python package {missing.name} is missing; `make load-deps` installs it",
              file=sys.stderr)
        return
    getattr(plots, kind)(figures, options.out)


def median(values):
    return statistics.median(values)


def spread(values):
    """(highest - lowest) / median, as `regla bench` has it."""
    return (max(values) - min(values)) / statistics.median(values)
