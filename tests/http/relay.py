# SPDX-License-Identifier: Apache-2.0
"""Stands between a client and the server: passes everything on, and keeps what was said."""

import contextlib
import http.client
import http.server
import sys
import threading
import urllib.parse
from dataclasses import dataclass

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


@dataclass
class Exchange:
    method: str
    path: str
    headers: dict
    body: bytes  # as the client sent it
    status: int = 0
    reply_headers: dict = None
    reply: bytes = b""
    whole: bool = False  # the reply: False while it comes, and if the client left

    @property
    def plain_path(self):
        return self.path.partition("?")[0]


class Relay(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    target = None
    seen = None
    edit = None  # what is sent on in the place of an exchange's body

    def log_message(self, *arguments):
        pass

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        exchange = Exchange(self.command, self.path, dict(self.headers.items()), body)
        with self.lock:
            self.seen.append(exchange)
            if self.edit:
                body = self.edit(exchange)
        upstream = http.client.HTTPConnection(self.target, timeout=600)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body or None, headers)
            self.answer(exchange, upstream.getresponse())
        exchange.whole = True

    def answer(self, exchange, reply):
        exchange.status, exchange.reply_headers = reply.status, dict(reply.getheaders())
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if self.command == "HEAD":
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while data := reply.read1(65536):
            exchange.reply += data
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    do_HEAD = do_GET = do_POST = forward


class Listener(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients leave as they like
            super().handle_error(request, client_address)


@contextlib.contextmanager
def relay(target, edit=None):
    """Yields (url, list of exchanges). edit(exchange): the body for the server, in the order in which
    requests come."""
    seen = []
    handler = type("Handler", (Relay,), {
        "target": urllib.parse.urlsplit(target).netloc, "seen": seen,
        "edit": staticmethod(edit) if edit else None})
    with Listener(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_address[1]}", seen
        listener.shutdown()
