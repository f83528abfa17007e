# SPDX-License-Identifier: Apache-2.0
"""The page below a path, which a proxy takes away (deploy/README.md)."""

import http.server
import threading

import httpx
import pytest


@pytest.fixture
def proxied(server):
    """What the page's address is then."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            if not self.path.startswith("/regla/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = httpx.request(self.command, server.url + self.path.removeprefix("/regla"), content=body,
                                  headers={"Content-Type": self.headers.get("Content-Type", "")})
            self.send_response(reply.status_code)
            for name in ("Content-Type", "Content-Security-Policy"):
                if name in reply.headers:
                    self.send_header(name, reply.headers[name])
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = forward

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever).start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def test_below_a_path(server, proxied, page):
    page.hosts.add(proxied)
    page.driver.get(f"http://{proxied}/regla/")
    page.wait(lambda: page.text("#model") == server.model_id, "the model's name")
    page.generate("It was a dark night, and", 6)
    assert len(page.all(".token")) == 6 and not page.alert()
    for part in ("sessions", "curves"):
        page.one(f"#tab-{part}").click()
        page.wait(lambda: page.all(f"#{part} button, #{part} svg"), part)
