# SPDX-License-Identifier: Apache-2.0
"""--host: several addresses, IPv6, and Unix sockets: their files, and who is behind them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

from harness import (BINARY, ENDLESS, GOLDEN, SLOWNESS, RawReply, ask, check_a_full_look,
                     check_error, request_bytes, shipped_model, wait_until)
from test_places import wait_for_few

pytestmark = pytest.mark.builds("dev")

HYBRID = GOLDEN / "hybrid_regla"


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


@pytest.fixture
def path(tmp_path_factory):
    """Short: the address of a Unix socket holds 107 bytes."""
    folder = tmp_path_factory.mktemp("s")
    if len(str(folder)) > 90:
        pytest.skip(f"{folder} is too long for a Unix socket")
    yield folder / "s"
    shutil.rmtree(folder)


def connect(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30 * SLOWNESS)
    connection.connect(str(path))
    return connection


def get(path, target="/health", host="localhost"):
    """The status, through a Unix socket."""
    with connect(path) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return RawReply(connection).head()[0]


def ask_ipv6(port):
    with socket.create_connection(("::1", port), 30 * SLOWNESS) as connection:
        return ask(connection)


def refused(path, *more):
    """What a server says that cannot listen there."""
    done = subprocess.run([BINARY, "serve", "--model", HYBRID, "--port", "0", "--host", f"unix:{path}",
                           *map(str, more)], capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@needs_ipv6
def test_several_addresses(server_factory, path):
    server = server_factory(host=["127.0.0.1, [::1]", f"unix:{path}"])
    port = server.port
    assert f"listening on http://127.0.0.1:{port}, http://[::1]:{port}, unix:{path}," in server.tail()
    assert server.get("/health").status_code == 200
    assert ask_ipv6(port) == 200
    assert get(path) == 200
    assert "without --api-key" not in server.tail()


@needs_ipv6
def test_all_addresses(server_factory):
    """:: takes IPv4 along, but not from an address of IPv4 beside it."""
    for hosts in ("::", "0.0.0.0,::", "[::],127.0.0.1", "localhost,127.0.0.1,127.0.0.1"):
        server = server_factory(host=hosts)
        assert server.get("/health").status_code == 200, hosts
        assert hosts[0] == "l" or ask_ipv6(server.port) == 200, hosts
        assert ("without --api-key" in server.tail()) == (hosts[0] != "l")


def test_the_environment_names_addresses_too(server_factory, path):
    environment = {"REGLA_HOST": f"unix:{path},127.0.0.1"}
    arguments = [BINARY, "serve", "--model", HYBRID, "--port", "0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **environment}) as process:
        line = next(line for line in process.stderr if "listening" in line)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert re.search(rf"listening on http://127\.0\.0\.1:\d+, unix:{path}, loading", line)
    flags = server_factory(host="127.0.0.1", environment=environment)
    assert "unix:" not in flags.tail()


def test_addresses_that_cannot_be(server, path):
    for host, words in (("", "--host"), (",", "--host"), ("no.such.name.invalid", "--host no.such"),
                        ("[::1", "--host"), ("unix:", "1 to 107"), (f"unix:/{'x' * 107}", "got 108"),
                        ("unix:/no/such/folder/s", "/no/such/folder/s: cannot open its folder")):
        done = subprocess.run([BINARY, "serve", "--model", HYBRID, "--port", "0", "--host", host],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and words in done.stderr.splitlines()[-1], done.stderr
    # A second address that is in use: nothing is left of the first.
    message = refused(path, "--host", "127.0.0.1", "--port", server.port)
    assert f"cannot listen on 127.0.0.1 port {server.port}" in message and not path.exists()


def test_the_mode_of_a_socket(server_factory, path):
    old = os.umask(0o077)
    try:
        for flags, mode in (({}, 0o660), ({"socket_mode": "666"}, 0o666), ({"socket_mode": "600"}, 0o600)):
            server = server_factory(host=["127.0.0.1", f"unix:{path}"], **flags)
            assert path.stat().st_mode & 0o777 == mode
            server.stop()
            assert not path.exists()
    finally:
        os.umask(old)


@pytest.mark.builds("dev", "asan", "tsan")
def test_what_a_killed_server_left_is_replaced(server_factory, path):
    host = ["127.0.0.1", f"unix:{path}"]
    killed = server_factory(host=host)
    killed.ends_clean = False
    killed.process.kill()
    killed.process.wait()
    assert path.is_socket()
    server = server_factory(host=host)
    assert get(path) == 200
    assert "another process listens there" in refused(path)
    assert get(path) == 200
    server.stop()
    assert not path.exists()


def test_nothing_but_a_dead_socket_is_removed(path):
    path.write_text("mine")
    assert "got another file" in refused(path) and path.read_text() == "mine"
    path.unlink()
    path.mkdir()
    assert "got another file" in refused(path) and path.is_dir()
    path.rmdir()
    path.symlink_to("nowhere")
    assert "got another file" in refused(path) and path.is_symlink()
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        assert "another process listens there" in refused(path) and path.is_socket()


def test_a_file_that_is_not_ours_any_more_stays(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"])
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        server.stop()
        assert path.is_socket()


def test_two_servers_that_start_at_once(path):
    """Exactly one has the socket in the end, whoever finds what was left there first."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    arguments = [BINARY, "serve", "--model", HYBRID, "--host", f"unix:{path}"]
    servers = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    try:
        wait_until(lambda: sum(server.poll() is None for server in servers) == 1, "one is left")
        wait_until(lambda: get(path, "/ready") == 200, "it serves")
    finally:
        for server in servers:
            server.terminate()
    said = [server.communicate()[1] for server in servers]
    assert sum("another process listens there" in text for text in said) == 5, said
    assert sorted(server.returncode for server in servers) == [0, 1, 1, 1, 1, 1] and not path.exists()


def test_the_file_is_removed_while_loading_too(server_factory, big_model, path):
    server = server_factory(model=big_model, host=["127.0.0.1", f"unix:{path}"], wait=False)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0 and not path.exists()
    server.ends_clean = False


def test_a_name_is_checked_where_pages_reach(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"])
    check_error(server.get("/v1/models", headers={"Host": "evil.example"}), 403)
    assert get(path, "/v1/models", "evil.example") == 200
    server_factory(host=["127.0.0.1", f"unix:{path}2"], allowed_hosts="a.example")
    assert get(f"{path}2", "/v1/models", "evil.example") == 403
    assert get(f"{path}2", "/v1/models", "a.example") == 200


@pytest.mark.builds("dev", "asan", "tsan")
def test_who_leaves_is_noticed(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"])
    for stream in (False, True):
        with connect(path) as connection:
            connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": stream}))
            wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        server.wait_idle()


@pytest.mark.builds("dev", "asan", "tsan")
def test_a_slow_request_is_cut(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"], request_timeout=1)
    with connect(path) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-")
        began = time.monotonic()
        while time.monotonic() - began < 20 * SLOWNESS:
            try:
                connection.sendall(b"a")
            except OSError:
                break
            time.sleep(0.1)
        assert 0.8 < time.monotonic() - began < 5 * SLOWNESS
    with connect(path) as connection:  # which idles meanwhile
        assert ask(connection) == 200
        time.sleep(1.5)
        assert ask(connection) == 200
    assert server.get("/health").status_code == 200


def test_a_full_look_at_unix_sockets_is_answered_at_once(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"], http_threads=1)
    check_a_full_look(server, [connect(path) for _ in range(128)])


@pytest.mark.builds("dev", "asan", "tsan")
def test_the_limit_of_connections_is_that_of_all_addresses(server_factory, path):
    server = server_factory(host=["127.0.0.1", f"unix:{path}"], max_connections=8, http_threads=3)
    server.http.headers["Connection"] = "close"
    assert server.get("/health").status_code == 200
    crowd = [connect(path) if i % 2 else server.connect() for i in range(8)]
    for connection in crowd:
        assert ask(connection) == 200
    # For whom two go. Which of them have waited longest, the threads that answered may see otherwise than we.
    with server.connect() as late, connect(path) as later:
        assert ask(late) == ask(later) == 200
        rest = wait_for_few(crowd, 6)
        assert len(rest) == 6 and ask(*rest) == 200
    for connection in crowd:
        connection.close()


def test_the_start_says_little(server_factory):
    """At most twelve lines, the last with an address where a browser finds the page. One names the
    formats, and what it costs where activations are rounded."""
    shipped = shipped_model()
    for model, more in ((shipped, {"weights": "q4"}), (HYBRID, {}),
                        (HYBRID, {"no_page": True, "max_model_len": 100})):
        server = server_factory(model=model, **more)
        lines = server.tail(100_000).splitlines()
        last = next(i for i, line in enumerate(lines) if " ready: " in line)
        told = [line for line in lines[:last + 1] if " warn " not in line]
        assert len(told) <= 12, "\n".join(told)
        formats, = re.findall(
            r" weights +[\d.]+ \w+ as (\w+)(?: of regla\.q4)?, KV as (\w+), activations as (\w+)(.*)$",
            "\n".join(told), re.MULTILINE)
        assert formats[:2] == (("q4", "f16") if more.get("weights") else ("f32", "f32")), formats
        assert (formats[2] == "f32") == (formats[3] == ""), formats
        if formats[3]:
            assert re.match(r" \(with SmolLM2 [\d.]+ % of the likeliest .*, mean divergence [\d.e-]+ nats\)$",
                            formats[3]), formats
        page = re.search(r"; try it at (http://127\.0\.0\.1:\d+/)$", lines[last])
        assert bool(page) == ("no_page" not in more)
        if page:
            assert "text/html" in server.get(page[1]).headers["content-type"]


@pytest.mark.parametrize("host, page", [
    ("0.0.0.0", "http://localhost:"), ("::", "http://localhost:"), ("localhost", "http://")])
@needs_ipv6
def test_the_page_is_where_a_browser_finds_it(server_factory, host, page):
    server = server_factory(host=host)
    line = next(line for line in server.tail().splitlines() if " ready: " in line)
    assert line.split("; try it at ")[1].startswith(page)


def test_a_server_of_files_only_names_no_page(path):
    with subprocess.Popen([BINARY, "serve", "--model", HYBRID, "--host", f"unix:{path}"],
                          stderr=subprocess.PIPE, text=True) as process:
        line = next(line for line in process.stderr if " ready: " in line)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert line.endswith(f" on unix:{path}\n")
