# SPDX-License-Identifier: Apache-2.0
"""A server with default flags inside a control group, or with ulimit -v or -d: it stays inside, or says
at the start what it would need."""

import random
import re
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

import harness
from harness import GOLDEN

sys.path.insert(0, str(harness.ROOT / "tests" / "scripts"))
import memory_table

pytestmark = [pytest.mark.builds("dev"), pytest.mark.long]  # the sanitizers take many times the memory

MODEL = GOLDEN / "hybrid_regla"
grouped = pytest.mark.skipif(memory_table.version() is None,
                             reason="needs root, and control groups with the memory controller")


class Ulimit:
    """In the place of a control group: a limit of the process's own."""

    def __init__(self, kind, limit):
        self.kind, self.limit = kind, limit

    def start(self, command, **options):
        return subprocess.Popen(list(map(str, command)), **options,
                                preexec_fn=lambda: resource.setrlimit(self.kind, (self.limit, self.limit)))


@contextmanager
def group(mib, parent=None, name="test"):
    made = memory_table.Group(name, mib, parent)
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def server(place, *flags):
    started = memory_table.Server(place, harness.BINARY, MODEL, "--log-level", "debug", *flags)
    try:
        yield started
    finally:
        started.discard()


def fill(started, prompts, tokens=3000):
    """Prompts that share nothing; the statuses that came."""
    dice = random.Random(1)
    return {started.complete(tokens, dice) for _ in range(prompts)}


def number_that_would(started):
    """Of a server that does not start: the MiB that its error names."""
    assert not started.ready()
    assert started.process.wait() == 1
    return int(re.search(r"; (\d+) MiB would do\n$", started.text())[1])


@grouped
def test_prompts_that_share_nothing_stay_inside_the_group():
    """Each state has 2.6 MiB; all defaults together used to be more than a GiB."""
    with group(24) as limited, server(limited) as started:
        assert started.ready(), started.text()
        assert fill(started, 14) == {200}
        assert started.end() == 0


@grouped
def test_what_others_in_a_group_above_have_is_not_left():
    with group(100, name="above") as above, group(None, above, "other") as others, group(None, above) as own:
        other = others.start([sys.executable, "-c", "x = b'x' * (60 << 20); print(flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        other.stdout.readline()
        try:
            with server(own) as started:
                assert started.ready(), started.text()
                left = float(re.search(r"memory +([\d.]+) MiB are left of the limit of the control groups "
                                       r"\(100.0 MiB\)", started.text())[1])
                assert left < 40
                assert fill(started, 12) == {200}
                assert started.end() == 0
        finally:
            other.communicate(b"\n")


@grouped
def test_a_group_that_is_too_small_is_refused_with_the_number_that_would_do():
    with group(7) as small, server(small) as started:
        enough = number_that_would(started)
    assert 7 < enough < 20
    with group(enough) as large, server(large) as started:
        assert started.ready(), started.text()
        assert fill(started, 2, tokens=200) == {200}
        assert started.end() == 0
    with group(enough) as large, server(large, "--host-state-memory", "1G") as started:
        assert 1024 < number_that_would(started) < 1100


@grouped
def test_large_requests_stay_inside_the_group():
    """Of all kinds at once: what does not fit gets a status, and the server goes on."""
    with group(60) as limited, server(limited) as started:
        assert started.ready(), started.text()
        for size in (10_000, 50_000, 100_000, 300_000):
            requests = [("/v1/completions", {"prompt": [1] * size, "max_tokens": 1}),
                        ("/v1/completions", {"prompt": "ab " * size, "max_tokens": 1}),
                        ("/tokenize", {"prompt": "ab" * size, "return_token_strs": True})]
            statuses = {started.post(path, body) for path, body in requests}
            assert statuses <= {200, 400, 413, 429, 503}, statuses
        wide = {"prompt": "a", "n": 100, "logprobs": 20, "max_tokens": 100, "ignore_eos": True}
        assert started.post("/v1/completions", wide) in {200, 503}
        assert fill(started, 2) == {200}
        assert started.end() == 0


@pytest.mark.parametrize("kind, name", [(resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")],
                         ids=["v", "d"])
def test_a_limit_of_the_process_is_kept(kind, name):
    with server(Ulimit(kind, 700 << 20)) as started:
        assert started.ready(), started.text()
        left = float(re.search(rf"memory +([\d.]+) MiB are left of ulimit {name} \(700.0 MiB\)",
                               started.text())[1])
        taken = float(re.search(r"memory +([\d.]+) MiB for connections, stacks", started.text())[1])
        assert taken < 50  # 8 MiB of one stack, and connections
        assert fill(started, 8) == {200}
        assert started.end() == 0
    # Enough for all that there is before memory is shared out, and no more.
    with server(Ulimit(kind, int(700 - left + 5) << 20)) as started:
        enough = number_that_would(started)
    with server(Ulimit(kind, enough << 20)) as started:
        assert started.ready(), started.text()
        assert fill(started, 4, tokens=200) == {200}
