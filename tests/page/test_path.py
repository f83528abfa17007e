# SPDX-License-Identifier: Apache-2.0
"""The page below a path, which a proxy takes away (deploy/README.md), and while the server loads."""

import http.server
import json
import threading

import httpx
import pytest

from listener import Listener


@pytest.fixture
def proxied(server):
    """What the page's address is then. Twice the server says that it loads its model."""
    error = {"message": "loading", "type": "server_error", "param": None, "code": "loading"}
    still_loads = [json.dumps({"error": error}).encode()] * 2

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            if not self.path.startswith("/regla/"):
                return self.send_error(404)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/v1/models") and still_loads:
                return self.answer(503, {"Content-Type": "application/json"}, still_loads.pop())
            reply = httpx.request(self.command, server.url + self.path.removeprefix("/regla"), content=body,
                                  headers={"Content-Type": self.headers.get("Content-Type", "")})
            return self.answer(reply.status_code, {
                name: reply.headers[name] for name in ("Content-Type", "Content-Security-Policy")
                if name in reply.headers}, reply.content)

        def answer(self, status, headers, body):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = forward

        def log_message(self, *_):
            pass

    with Listener(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever).start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def test_below_a_path(server, proxied, page):
    page.hosts.add(proxied)
    page.driver.get(f"http://{proxied}/regla/")
    page.allowed.append("503")
    page.wait(lambda: page.text("#card") == "The server loads its model.", "that it loads")
    page.wait(lambda: page.text("#model") == server.model_id, "the model's name")
    page.generate("It was a dark night, and", 6)
    assert len(page.all(".token")) == 6 and not page.alert()
    for part in ("sessions", "curves"):
        page.one(f"#tab-{part}").click()
        page.wait(lambda: page.all(f"#{part} button, #{part} svg"), part)
