# SPDX-License-Identifier: Apache-2.0
"""A store that is reached by TLS (rediss://): whom a server believes, and what it says when it does not."""

import socket
import subprocess
import threading
import time

import pytest

import harness
from certificates import Certificate, needs_openssl
from harness import wait_until
from redis_store import LEASE, Cluster, Redis, position, program, start_refused, tls_settings, turn
from session_helpers import Session

pytestmark = needs_openssl


def has_tls():
    """Whether this redis-server was built with TLS."""
    linked = subprocess.run(["ldd", program()], capture_output=True, text=True, check=False, timeout=60)
    return "libssl" in linked.stdout


needs_tls = pytest.mark.skipif(not has_tls(), reason="this redis-server has no TLS")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("store-certificate"), "store")


@pytest.fixture
def secured(tmp_path, certificate):
    """With TLS on a TCP port; the test itself asks it over a Unix socket."""
    port = harness.unused_port()
    redis = Redis(tmp_path, **tls_settings(certificate, port))
    redis.port = port
    yield redis
    redis.stop()


@needs_tls
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_sessions_by_tls(secured, certificate, server_factory, host):
    """Everything that goes over a plain connection, states of several records too."""
    at = f"rediss://{host}:{secured.port}"
    servers = [server_factory(store=at, store_ca=certificate.path, lease=LEASE) for _ in range(2)]
    session = Session(servers[0], "secret", [])
    for i in range(4):
        session.server = servers[i % 2]
        session.append([10 + i, 11, 12], max_tokens=6)
    wait_until(lambda: secured.keys("*:state"), "the state is in the store")
    assert f"{at}/0" in servers[0].whole_log()
    tls = [row for row in secured.ask("CLIENT", "LIST").decode().splitlines() if "unix" not in row]
    assert tls, "nobody is connected by TCP"


@needs_tls
def test_its_sessions_are_looked_after(secured, certificate, server_factory, tmp_path):
    at = f"rediss://localhost:{secured.port}"
    server = server_factory(store=at, store_ca=certificate.path, lease=LEASE)
    assert turn(server, "listed").status_code == 200

    def sessions(*words, status=0):
        ended = subprocess.run([str(harness.BINARY), "sessions", *map(str, words)], capture_output=True,
                               text=True, check=False, timeout=60 * harness.SLOWNESS)
        assert ended.returncode == status, ended.stderr
        return ended.stdout + ended.stderr
    assert "listed" in sessions("list", at, "--store-ca", certificate.path)
    assert "not accepted for localhost" in sessions("list", at, status=1)
    sessions("copy", at, "--to", tmp_path / "copied", "--store-ca", certificate.path)
    assert "listed" in sessions("list", tmp_path / "copied", "--store-ca", certificate.path)
    server.stop()
    written = tmp_path / "session"
    sessions("export", at, "listed", written, "--store-ca", certificate.path, "--model",
             harness.GOLDEN / "hybrid_regla")
    assert written.stat().st_size > 0


@needs_tls
def test_a_store_that_comes_back(secured, certificate, server_factory):
    at = f"rediss://localhost:{secured.port}"
    server = server_factory(store=at, store_ca=certificate.path, lease=LEASE)
    assert turn(server, "returns").status_code == 200
    held = position(server, "returns")
    secured.kill()
    assert turn(server, "returns").status_code == 503
    secured.start()
    wait_until(lambda: server.get("/v1/sessions/returns").status_code == 200, "the store is back")
    assert position(server, "returns") == held


@pytest.mark.builds("dev", "asan")
@needs_tls
def test_who_is_not_believed(secured, certificate, tmp_path):
    other = Certificate(tmp_path, "other")
    at = f"rediss://localhost:{secured.port}"
    told = start_refused(store=at, store_ca=other.path)
    assert f"--store: {at}/0: TLS: its certificate is not accepted for localhost" in told
    assert "issuer is unknown" in told
    assert "not accepted" in start_refused(store=at)  # the system's CAs have not signed it
    named = f"rediss://127.0.0.2:{secured.port}"  # by a CA that is trusted, for another host
    told = start_refused(store=named, store_ca=certificate.path)
    assert "not accepted for 127.0.0.2" in told and "does not match" in told


@pytest.mark.builds("dev", "asan")
@needs_tls
def test_a_certificate_that_has_ended(tmp_path):
    ended, port = Certificate(tmp_path, "ended", days=-1), harness.unused_port()
    redis = Redis(tmp_path, **tls_settings(ended, port))
    try:
        assert "expired" in start_refused(store=f"rediss://localhost:{port}", store_ca=ended.path)
    finally:
        redis.stop()


@needs_tls
def test_a_store_that_asks_who_we_are(tmp_path, certificate, server_factory):
    port = harness.unused_port()
    redis = Redis(tmp_path, **tls_settings(certificate, port, clients="yes"))
    try:
        flags = {"store": f"rediss://localhost:{port}", "store_ca": certificate.path}
        told = start_refused(**flags)
        assert "Certificate is required" in told or "it may want a certificate (--store-cert)" in told
        server = server_factory(**flags, store_cert=certificate.path, store_key=certificate.key, lease=LEASE)
        assert turn(server, "known").status_code == 200
    finally:
        redis.stop()


@pytest.mark.builds("dev", "asan")
@needs_tls
def test_one_that_has_no_tls(own_redis_port):
    told = start_refused(store=f"rediss://127.0.0.1:{own_redis_port}")
    assert f"rediss://127.0.0.1:{own_redis_port}/0: no answer in time to the greeting of TLS" in told


@pytest.fixture
def own_redis_port(tmp_path):
    port = harness.unused_port()
    redis = Redis(tmp_path, port=port)
    yield port
    redis.stop()


@pytest.mark.builds("dev", "asan")
@needs_tls
def test_nothing_goes_to_whom_we_do_not_believe(certificate, tmp_path):
    """A password is not sent before the certificate is known to be the host's."""
    heard = []

    def listen(listener):
        connection, _ = listener.accept()
        connection.settimeout(30 * harness.SLOWNESS)
        try:
            heard.append(connection.recv(65536))  # the greeting
            connection.sendall(b"-NOAUTH\r\n")
            heard.append(connection.recv(65536))
        except OSError:  # it has hung up
            pass
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, args=(listener,), daemon=True)
        thread.start()
        start_refused(store=f"rediss://:hushhush@127.0.0.1:{listener.getsockname()[1]}",
                      store_ca=certificate.path)
        thread.join(30 * harness.SLOWNESS)
    assert heard and not any(b"hushhush" in some for some in heard)


@pytest.mark.builds("dev", "asan")
@needs_tls
def test_a_greeting_that_never_ends(certificate):
    """One that sends a byte now and then: the greeting has its time all the same."""
    over = threading.Event()

    def drip(listener):
        connection, _ = listener.accept()
        try:
            connection.sendall(b"\x16\x03\x03\x3f\xff")  # the head of a long record
            while not over.wait(0.2):
                connection.sendall(b"\x02")
        except OSError:
            pass
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        begun = time.monotonic()
        told = start_refused(store=f"rediss://127.0.0.1:{listener.getsockname()[1]}", lease=2,
                             store_ca=certificate.path)
        over.set()
    assert "no answer in time to the greeting of TLS" in told
    assert time.monotonic() - begun < 30 * harness.SLOWNESS


@needs_tls
def test_a_cluster_by_tls(tmp_path, certificate, server_factory):
    """Nodes that send commands on (MOVED, ASK) are reached by TLS, too."""
    cluster = Cluster(tmp_path, certificate)
    try:
        flags = {"store": cluster.location, "store_ca": certificate.path, "lease": LEASE}
        servers = [server_factory(**flags) for _ in range(2)]
        sessions = [Session(servers[0], f"c{i}", []) for i in range(4)]
        for session in sessions:
            session.append([7, 8, 9], max_tokens=4)
        slot = cluster.slot(cluster.keys("regla:*:c0}")[0])
        end = cluster.begin_to_move(slot)
        assert turn(servers[1], "c0").status_code == 503  # half of its keys are gone: TRYAGAIN
        end()
        sessions[0].server = servers[1]
        wait_until(lambda: servers[1].get("/v1/sessions/c0").status_code == 200, "it is in one place")
        sessions[0].append([7], max_tokens=4)  # MOVED
        names, = cluster.keys("*:sessions")
        end = cluster.begin_to_move(cluster.slot(names))
        for server in servers:  # ASK
            assert "c0" in [card["id"] for card in server.get("/v1/sessions").json()["data"]]
        end()
        for session in sessions[1:]:
            session.server = servers[1]
            session.append([7], max_tokens=4)
        assert f"rediss://127.0.0.1:{cluster.nodes[0].port}" in servers[0].whole_log()
    finally:
        cluster.stop()


@pytest.mark.parametrize("flags, said", [
    ({"store_ca": "/nowhere.pem"}, "--store-ca: expected --store rediss://"),
    ({"store": "redis://127.0.0.1:1", "store_ca": "/nowhere.pem"}, "--store-ca: expected --store rediss://"),
    ({"store": "rediss://127.0.0.1:1", "store_cert": "/nowhere.pem"}, "both, got --store-cert alone"),
    ({"store": "rediss://127.0.0.1:1", "store_ca": "/nowhere.pem"}, "--store-ca: /nowhere.pem: "),
    ({"store": "rediss://127.0.0.1:1", "store_ca": "/dev/null"}, "--store-ca: /dev/null: "),
    ({"store": "rediss://127.0.0.1:1", "store_cert": "/nowhere.pem", "store_key": "/nowhere.key"},
     "--store-cert /nowhere.pem, --store-key /nowhere.key: "),
])
@pytest.mark.builds("dev", "asan")
def test_files_that_cannot_be_used(flags, said):
    assert said in start_refused(**flags)
