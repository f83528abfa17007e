# SPDX-License-Identifier: Apache-2.0
"""What one API key can do to another. The first key queues long requests, and one text as long as may be;
the second asks for short ones, one after the other. Prints what the second waited, and the tokens per second
of both together. Several binaries are measured in turns.

    python3 loadtest/fairness.py --binary build/release/regla --model models/regla-books-7.7m
"""

import argparse
import json
import os
import re
import resource
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

KEYS = ["first", "second"]
ROOT = Path(__file__).resolve().parents[1]


class Server:
    def __init__(self, binary, model, queue, flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            [binary, "serve", "--model", str(model), "--port", "0", "--max-queue", str(queue),
             "--max-connections", str(2 * queue + 100), "--log-level", "info", *flags],
            stdout=self.log, stderr=self.log,
            env={**os.environ, "REGLA_API_KEY": ",".join(KEYS)})
        ready = None
        while not ready:
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.05)
            ready = re.search(r"ready: .* on http://[^ ]*:(\d+)", Path(self.log.name).read_text())
        self.port = int(ready[1])

    def ask(self, key, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def begin(self, key, body):
        """A request that is sent, and not read."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        body = json.dumps(body).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
        connection.sendall(head.encode() + body)
        return connection

    def counts(self):
        text = self.ask(KEYS[0], "/metrics")[1].decode()
        return {name: float(value) for name, value in re.findall(r"^(regla_\w+)\{[^}]*\} (\S+)$", text, re.M)}

    def limit(self):
        refused = self.ask(KEYS[0], "/v1/completions", {"prompt": [1], "max_tokens": 10**9})[1]
        return int(re.search(rb"length is (\d+)", refused)[1])

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGTERM)
        self.process.kill()
        self.process.wait()


def at(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def measure(binary, options):
    server = Server(binary, options.model, options.queued + 16, options.flag)
    long = {"max_tokens": options.tokens, "ignore_eos": True, "temperature": 1, "top_p": 1, "top_k": 0}
    connections = []
    if options.to_the_limit:
        most = server.limit() - 50
        connections.append(server.begin(KEYS[0], {**long, "prompt": [1], "max_tokens": most}))
    prompts = [[2 + (number * 7919 + place * (number % 31 + 1)) % 4000 for place in range(options.prompt)]
               for number in range(options.queued)]

    def send():
        connections.extend([server.begin(KEYS[0], {**long, "prompt": prompt}) for prompt in prompts])
    sending = threading.Thread(target=send)
    sending.start()
    if not options.burst:
        sending.join()
    waits, replies, statuses = [], [], []
    began, before = time.monotonic(), server.counts()
    while time.monotonic() - began < options.seconds:
        if not options.short:
            time.sleep(0.1)
            continue
        asked = time.monotonic()
        fields = {"prompt": [5, 6, len(waits) + 7], "max_tokens": 1, "ignore_eos": True}
        status, reply = server.ask(KEYS[1], "/v1/completions", fields)
        replies.append(time.monotonic() - asked)
        statuses.append(status)
        if status == 200:
            waits.append(json.loads(reply)["timings"]["queue_ms"] / 1e3)
        time.sleep(0.02)
    after, took = server.counts(), time.monotonic() - began
    sending.join()
    server.end()
    for connection in connections:
        connection.close()
    done = {name: after[name] - before.get(name, 0) for name in after}
    steps = max(done["regla_engine_steps_total"], 1)
    row = {"binary": str(binary), "tokens_per_s": round(done["regla_batch_tokens_sum"] / took, 1),
           "generated_per_s": round(done["regla_generated_tokens_total"] / took, 1),
           "step_s": round(done["regla_engine_step_seconds_total"] / steps, 4),
           "set_aside": done.get("regla_texts_set_aside_total", 0)}
    if replies:
        row |= {"short": len(replies), "refused": sum(status == 429 for status in statuses),
                "failed": sum(status not in (200, 429) for status in statuses),
                "wait_p50_s": round(at(waits or [float("inf")], 0.5), 4),
                "wait_p99_s": round(at(waits or [float("inf")], 0.99), 4),
                "reply_first_s": round(replies[0], 4),
                "reply_p50_s": round(at(replies, 0.5), 4), "reply_p99_s": round(at(replies, 0.99), 4)}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", action="append", required=True)
    parser.add_argument("--model", default=ROOT / "models/regla-books-7.7m")
    parser.add_argument("--queued", type=int, default=2000, help="long requests of the first key")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of their prompts")
    parser.add_argument("--tokens", type=int, default=400, help="tokens that they generate")
    parser.add_argument("--no-limit", dest="to_the_limit", action="store_false",
                        help="leave the longest text out")
    parser.add_argument("--burst", action="store_true",
                        help="the second key asks while the long requests come in")
    parser.add_argument("--no-short", dest="short", action="store_false", help="no second key")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[],
                        help="of the server, as --flag=--max-running=8")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rates = {binary: [] for binary in options.binary}
    for _ in range(options.turns):
        for binary in options.binary:
            row = measure(binary, options)
            rates[binary].append(row["tokens_per_s"])
            print(json.dumps(row), flush=True)
    for binary, values in rates.items():
        print(f"{binary}: median of {len(values)}: {statistics.median(values)} tokens/s")


if __name__ == "__main__":
    main()
