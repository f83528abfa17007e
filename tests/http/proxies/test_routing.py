# SPDX-License-Identifier: Apache-2.0
"""Which server a proxy sends a request to, with haproxy-replicas.cfg and nginx-replicas.conf, in front of
servers that only say who they are: where a session goes, what happens when its server dies or drains, how
load is bounded, and that nothing is sent twice. `deploy/deps.sh proxies` unpacks the proxies."""

import collections
import concurrent.futures
import contextlib
import http.server
import json
import re
import subprocess
import threading

import httpx
import pytest
import yaml

from certificates import Certificate, needs_openssl
from harness import ROOT, unused_port, wait_until
from test_proxies import program
from unpacked import PROXIES

pytestmark = needs_openssl


class Named:
    """A server that answers with its number. `held`: it answers only when that is set. `cuts`: it hangs up
    once it has read a POST."""

    def __init__(self, number, port=0):
        self.number, self.ready, self.cuts, self.seen = number, True, False, []
        self.held = threading.Event()
        self.held.set()
        self.inside = 0
        named = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # a reply is sent at once

            def do_GET(self):
                if self.path == "/ready":
                    return self.say(200 if named.ready else 503)
                named.seen.append(self.path)
                return self.say(200)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                named.seen.append(self.headers.get("X-Session-Id"))
                named.inside += 1
                named.held.wait(60)
                named.inside -= 1
                if named.cuts:
                    self.close_connection = True
                    return None
                return self.say(200)

            def say(self, status):
                text = str(named.number).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64
            allow_reuse_address = True

            def process_request(self, request, address):
                named.connections.append(request)
                super().process_request(request, address)

            def handle_error(self, request, address):  # a connection that the test has ended
                pass
        self.connections = []
        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def die(self):
        """As a process does: nobody listens, and open connections end."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(2)


class Setup:
    """Three such servers behind a proxy, over plain HTTP in front."""

    def __init__(self, name, folder, front):
        self.servers = [Named(number) for number in range(3)]
        self.port, self.name = unused_port(), name
        file = {"haproxy": "haproxy-replicas.cfg", "nginx": "nginx-replicas.conf"}[name]
        text = (ROOT / "deploy" / "proxy" / file).read_text()
        for i, server in enumerate(self.servers):
            assert f"127.0.0.1:{8001 + i}" in text
            text = text.replace(f"127.0.0.1:{8001 + i}", f"127.0.0.1:{server.port}")
        if name == "haproxy":
            text = text.replace("bind :443 ssl crt /etc/ssl/regla/both.pem", f"bind 127.0.0.1:{self.port}")
            arguments = ["-db", "-f", "proxy.conf"]
        else:
            text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl")
            text = text.replace("/etc/ssl/regla/certificate.pem", str(front.path))
            text = text.replace("/etc/ssl/regla/key.pem", str(front.key))
            text = (f"daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;\n"
                    "events { worker_connections 256; }\n"
                    f"http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;\n"
                    f"fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n"
                    f"{text} }}\n")
            arguments = ["-c", str(folder / "proxy.conf"), "-e", "stderr"]
        (folder / "proxy.conf").write_text(text)
        self.log = open(folder / "proxy.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [program(name), *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, env=PROXIES.environment())
        scheme = "https" if name == "nginx" else "http"
        self.client = httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{self.port}", verify=False, trust_env=False, timeout=60,
            headers={"Host": "llm.example"}, limits=httpx.Limits(max_connections=64))
        wait_until(lambda: self.try_get() == 200, lambda: (folder / "proxy.log").read_text())

    def try_get(self):
        try:
            return self.client.get("/v1/models").status_code
        except httpx.TransportError:
            return 0

    def post(self, body=None, session=None, path="/v1/completions"):
        headers = {"X-Session-Id": session} if session else {}
        reply = self.client.post(path, json=body or {}, headers=headers)
        assert reply.status_code == 200, reply.text
        return int(reply.text)

    def sent(self, session):
        """Whether a reply came; else 502, or the connection was cut off."""
        try:
            reply = self.client.post("/v1/completions", json={}, headers={"X-Session-Id": session})
        except httpx.RemoteProtocolError:
            return False
        assert reply.status_code in (200, 502), reply.text
        return reply.status_code == 200

    def homes(self, names):
        """Where each of these sessions goes, by its header."""
        return {name: self.post(session=name) for name in names}

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        for server in self.servers:
            server.held.set()
            server.die()


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("front"), "llm.example")


@pytest.fixture(params=["haproxy", "nginx"])
def setup(request, tmp_path, front):
    running = Setup(request.param, tmp_path, front)
    yield running
    running.stop()


@pytest.fixture
def haproxy(tmp_path, front):
    running = Setup("haproxy", tmp_path, front)
    yield running
    running.stop()


NAMES = [f"session-{i}" for i in range(40)]
# nginx hashes the servers' ports, which chance gives. Of 40 sessions all of a dead server's went to one other
# server in 2 of 1500 rings; of 200 in none, and each server had 42 at least.
MANY = [f"session-{i}" for i in range(200)]


def test_a_session_goes_to_the_same_server(setup):
    """By the header and by the path; many are spread."""
    homes = setup.homes(MANY)
    assert setup.homes(MANY) == homes
    assert min(collections.Counter(homes.values()).values()) >= 20 and len(set(homes.values())) == 3
    for name, home in homes.items():
        assert int(setup.client.get(f"/v1/sessions/{name}").text) == home
        assert int(setup.client.get(f"/v1/sessions/{name}/state").text) == home
    # Without any name it is chance.
    assert len({setup.post() for _ in range(40)}) == 3


def test_a_dead_servers_sessions_go_to_others(setup):
    """To both, and all others stay where they are."""
    homes = setup.homes(MANY)
    setup.servers[1].die()
    # Who was being sent over an open connection is told, since nobody knows whether it arrived.
    told = [wait_until(lambda name=name: setup.sent(name), "it is sent elsewhere") for name in MANY]
    assert len(told) == len(MANY)
    # Once the proxy knows that it is dead, each has one new home.
    after = wait_until(lambda: (found := setup.homes(MANY)) == setup.homes(MANY) and found,
                       "each has a home")
    assert all(after[name] == home for name, home in homes.items() if home != 1)
    moved = [after[name] for name, home in homes.items() if home == 1]
    assert set(moved) == {0, 2}
    # Once it is back they return.
    setup.servers[1] = Named(1, setup.servers[1].port)
    wait_until(lambda: setup.homes(MANY) == homes, "they return")


def test_nothing_is_sent_twice(setup):
    """A request that has reached a server is not sent to another, since its turn may have been made."""
    homes = setup.homes(NAMES)
    victim = NAMES[0]
    for server in setup.servers:
        server.seen.clear()
    setup.servers[homes[victim]].cuts = True
    assert not setup.sent(victim)
    assert [len(server.seen) for server in setup.servers] == [i == homes[victim] for i in range(3)]


# ---- HAProxy reads bodies, asks /ready, and bounds load ----

def test_haproxy_finds_the_session_in_the_body(haproxy):
    homes = haproxy.homes(NAMES)
    for name, home in homes.items():
        assert haproxy.post({"prompt": [1], "session_id": name}) == home
        # Where a body is larger than its buffer the header still says.
        assert haproxy.post({"prompt": "x" * 300000}, session=name) == home
    assert haproxy.post({"prompt": "x" * 300000, "session_id": NAMES[0]}) in (0, 1, 2)


def chat(*texts):
    roles = ("system", "user", "assistant", "user")
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}


@pytest.mark.parametrize("make", [
    lambda i, end: {"prompt": f"document {i} " + "x" * 256 + end},
    lambda i, end: {"prompt": [f"document {i} " + "x" * 256 + end, "another"]},
    lambda i, end: chat("the same for all", f"question {i}", "an answer", "more" + end)])
def test_haproxy_keeps_prompts_that_begin_alike_together(haproxy, make):
    homes = [haproxy.post(make(i, "")) for i in range(30)]
    assert [haproxy.post(make(i, " and another end")) for i in range(30)] == homes
    assert len(set(homes)) == 3


def test_haproxy_gives_a_draining_server_nothing_new(haproxy):
    homes = haproxy.homes(NAMES)
    draining = haproxy.servers[2]
    draining.ready = False
    wait_until(lambda: 2 not in haproxy.homes(NAMES).values(), "it gets nothing new")
    draining.seen.clear()
    after = haproxy.homes(NAMES)
    assert draining.seen == []
    assert all(after[name] == home for name, home in homes.items() if home != 2)
    draining.ready = True
    wait_until(lambda: haproxy.homes(NAMES) == homes, "its sessions return")


def test_haproxy_bounds_what_one_server_gets(haproxy):
    """Though all are of one session, no server has more than its share of them."""
    home, requests = haproxy.post(session="hot"), 24
    for server in haproxy.servers:
        server.held.clear()
    with concurrent.futures.ThreadPoolExecutor(requests) as threads:
        replies = []
        for number in range(1, requests + 1):  # one by one: HAProxy counts those that have arrived
            replies.append(threads.submit(haproxy.post, None, "hot"))
            wait_until(lambda number=number: sum(server.inside for server in haproxy.servers) == number,
                       "it is inside")
        inside = [server.inside for server in haproxy.servers]
        for server in haproxy.servers:
            server.held.set()
        assert sorted(reply.result() for reply in replies) == sorted(
            number for number, count in enumerate(inside) for _ in range(count))
    file = (ROOT / "deploy" / "proxy" / "haproxy-replicas.cfg").read_text()
    factor = int(re.search(r"hash-balance-factor (\d+)", file)[1]) / 100
    assert 1 < factor < 3
    most = factor * requests / 3
    assert inside[home] == max(inside) and max(inside) <= most + 1


def test_the_proxy_of_the_compose_file_starts(tmp_path):
    """What it makes of haproxy-replicas.cfg is a configuration, with the servers by their names."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.replicas.yaml").read_text())
    script = compose["services"]["proxy"]["command"][0]
    script = script.replace("/etc/regla/", f"{ROOT}/deploy/proxy/")
    script = script.replace("/tmp/haproxy.cfg", str(tmp_path / "cfg"))
    script, found = re.subn(r"exec haproxy .*", "", script)
    assert found == 1
    subprocess.run(["sh", "-ec", script], check=True)
    text = (tmp_path / "cfg").read_text()
    assert "bind :8080\n" in text and "ssl crt" not in text
    assert [f"regla-{i}:8000" in text for i in (1, 2, 3)] == [True] * 3 and "127.0.0.1:800" not in text
    checked = subprocess.run(
        [program("haproxy"), "-c", "-f", tmp_path / "cfg"], capture_output=True, text=True, check=False,
        env=PROXIES.environment())
    assert checked.returncode == 0, checked.stderr
    assert json.dumps(compose["services"]["proxy"]["ports"]) == '["127.0.0.1:8080:8080"]'
