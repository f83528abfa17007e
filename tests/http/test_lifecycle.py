# SPDX-License-Identifier: Apache-2.0
"""Start and end: flags, the capacity table, refusals at start, drain, signals."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from harness import BINARY, GOLDEN, SLOWNESS, RawReply, request_bytes, unused_port, wait_until
from test_concurrency import ENDLESS

HYBRID = GOLDEN / "hybrid_regla"


def regla(*arguments, environment=None, timeout=60):
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout * SLOWNESS, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(environment or {})})


@pytest.mark.builds("dev", "asan")
def test_help_names_every_flag_with_its_default():
    result = regla("serve", "--help")
    assert result.returncode == 0
    for flag in ("--model", "--host", "--port", "--max-model-len", "--threads", "--max-queue",
                 "--max-connections", "--api-key", "--log-level"):
        assert flag in result.stdout
    assert "default 127.0.0.1; env REGLA_HOST" in result.stdout
    assert "default 8000; env REGLA_PORT" in result.stdout
    # As many as the table has, each with its variable.
    table = (BINARY.parents[2] / "cli" / "command_serve.c").read_text()
    flags = re.findall(r'^    \{"([a-z-]+)", OPTION_', table, re.MULTILINE)
    shown = re.findall(r"^  --(?:no-)?([a-z-]+)", result.stdout, re.MULTILINE)
    assert len(flags) > 30 and set(flags) <= set(shown)
    assert result.stdout.count("env REGLA_") == len(shown)


@pytest.mark.builds("dev", "asan")
def test_environment_variables(server_factory):
    server = server_factory(environment={"REGLA_MAX_MODEL_LEN": "77"})
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 77
    both = server_factory(environment={"REGLA_MAX_MODEL_LEN": "77"}, max_model_len=78)
    assert both.get("/v1/models").json()["data"][0]["max_model_len"] == 78


@pytest.mark.builds("dev", "asan")
def test_wrong_flags_are_one_line():
    for arguments in (["serve"], ["serve", "--model"], ["serve", "--model", HYBRID, "--port", "x"],
                      ["serve", "--model", HYBRID, "--port", "70000"], ["no-such-command"],
                      ["serve", "--model", HYBRID, "--no-such-flag", "1"],
                      ["serve", "--model", HYBRID, "--threads", "-1"],
                      ["serve", "--model", HYBRID, "--max-queue", "9999999999999999999999"]):
        result = regla(*arguments)
        assert result.returncode == 2, (arguments, result.returncode)
        assert result.stdout == "" and result.stderr.startswith("regla"), arguments
        assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr


@pytest.mark.builds("dev", "asan")
def test_wrong_environment_variable_is_named():
    result = regla("serve", "--model", HYBRID, environment={"REGLA_PORT": "many"})
    assert result.returncode in (1, 2) and "REGLA_PORT" in result.stderr


@pytest.mark.builds("dev", "asan")
def test_port_in_use(server):
    result = regla("serve", "--model", HYBRID, "--port", server.port)
    assert result.returncode == 1 and str(server.port) in result.stderr


@pytest.mark.builds("dev", "asan")
def test_capacity_table(server_factory):
    log = server_factory().tail().lower()
    for word in ("weights", "state", "kv", "texts"):
        assert word in log


@pytest.mark.builds("dev")
@pytest.mark.parametrize("flags, warned", [
    ({"host": "0.0.0.0"}, True), ({"host": "localhost"}, False),
    ({"host": "0.0.0.0", "api_key": "sesame"}, False)])
def test_warning_where_others_may_use_it(server_factory, flags, warned):
    server = server_factory(**flags)
    assert ("without --api-key" in server.tail()) == warned
    server.http.headers["Authorization"] = "Bearer sesame"


def test_warning_when_less_fits_than_asked_for(server_factory):
    server = server_factory(state_memory=4 * 1024 * 1024, max_model_len=1000000)
    assert "warn" in server.tail().lower()


@pytest.mark.builds("dev", "asan")
def test_json_logs(server_factory):
    server = server_factory(log_format="json", log_level="info")
    server.complete(prompt="x", max_tokens=1, request_id="logged-one", user="somebody")
    server.wait_idle()
    server.stop()
    lines = [line for line in server.tail(100000).splitlines() if line]
    records = [json.loads(line) for line in lines]
    assert all({"time", "level", "event"} <= set(record) for record in records)
    logged, = [record for record in records if record.get("id") == "logged-one"]
    assert (logged["event"], logged["user"], logged["status"]) == ("completion", "somebody", 200)


@pytest.mark.builds("dev", "asan")
def test_a_start_that_fails_says_so_in_the_format_of_the_log():
    for flags in ([], ["--log-format", "json"], ["--log-format", "json", "--log-level", "off"]):
        done = regla("serve", "--model", HYBRID, "--port", 0, "--state-memory", 100, *flags)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        if len(flags) == 2:
            record = json.loads(last)
            assert record["level"] == "error"
            last = "regla serve: " + record["text"]
        assert last.startswith("regla serve: --state-memory: "), done.stderr


def test_the_memory_that_a_refused_start_asks_for_is_enough(server_factory):
    done = regla("serve", "--model", HYBRID, "--port", 0, "--state-memory", 100)
    needed = re.search(r"needs (\d+) bytes of state memory", done.stderr)[1]
    server = server_factory(model=HYBRID, state_memory=needed)
    assert server.complete(prompt=[1], max_tokens=1)


def test_sigterm_drains(server_factory):
    """The running request finishes, the server exits 0."""
    server = server_factory()
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {
            **ENDLESS, "max_tokens": 1000 if SLOWNESS == 1 else 300}))
        reply = RawReply(connection)
        reply.head()
        server.process.send_signal(signal.SIGTERM)
        body = b"".join(reply.chunks())
    assert body.endswith(b"data: [DONE]\n\n") and b'"finish_reason": "length"' in body.replace(
        b'"finish_reason":"length"', b'"finish_reason": "length"')
    assert server.process.wait(10 * SLOWNESS) == 0
    steps = re.search(r"(\d+) steps: each ([\d.]+) ms on the device, and ([\d.]+) ms until the host",
                      server.tail())
    assert steps and int(steps[1]) >= 300 and float(steps[2]) > 0 and float(steps[3]) > 0, server.tail()


def test_drain_has_a_deadline(server_factory):
    server = server_factory(drain_timeout=1)
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", ENDLESS))
        reply = RawReply(connection)
        reply.head()
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        body = b"".join(reply.chunks())
    assert server.process.wait(10 * SLOWNESS) == 0
    assert 0.7 < time.monotonic() - began < 2.5 * SLOWNESS  # a quarter of it is for the end
    assert b'"length"' not in body  # it was not left to run to its end


def test_second_sigterm_exits_at_once(server_factory):
    server = server_factory(drain_timeout=3600, stall_timeout=3600)
    server.ends_clean = False
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", ENDLESS))
    RawReply(connection).head()
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.get("/ready").status_code == 503, "it drains")
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(30 * SLOWNESS)
    connection.close()


def test_idle_connections_do_not_hold_the_drain(server_factory):
    server = server_factory(drain_timeout=3600, idle_timeout=3600, request_timeout=3600)
    idle = [server.connect() for _ in range(5)]
    idle[0].sendall(b"POST /v1/comp")
    assert server.get("/health").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30 * SLOWNESS) == 0
    for connection in idle:
        connection.close()


def test_the_start_says_about_how_long_the_longest_text_takes(server_factory):
    said = re.compile(r"longest +\d+ tokens: [\d.]+ MiB, and about [1-9]\d* (ms|s|min|h|days) to read as a "
                      r"prompt; --max-model-len limits it\n")
    short, long = (said.search(server_factory(state_memory=memory).tail())[1] for memory in ("1M", "256M"))
    assert short in ("ms", "s") and long in ("s", "min", "h")  # some 1,000 and 300,000 tokens
    assert "longest" not in server_factory(max_model_len=100).tail()


def test_sigint_stops_too(server_factory):
    server = server_factory()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(10 * SLOWNESS) == 0


def test_an_interrupt_that_was_ignored_at_the_start_stays_so(server_factory):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `regla serve &` has it in a script
    try:
        server = server_factory()
    finally:
        signal.signal(signal.SIGINT, before)
    server.process.send_signal(signal.SIGINT)  # of two signals that wait it would be the first
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10 * SLOWNESS) == 0
    assert "signal 15: draining" in server.tail() and "signal 2" not in server.tail()


def test_restart_on_the_same_port(server_factory):
    port = unused_port()
    for _ in range(2):
        server = server_factory(port=port)
        server.complete(prompt="x", max_tokens=1)
        server.stop()
