# SPDX-License-Identifier: Apache-2.0
"""The servers of agent_session.py, ours and llama-server, and its two requests: what a turn cost."""

import contextlib
import json
import subprocess
import time
from pathlib import Path

import httpx
from measure import Failure

import harness

REPLY_TOKENS = 16
REQUEST_SECONDS = 3600
ENDS = ("response.completed", "response.incomplete")
# As an agent has one: to make one for each request takes up to 0.2 s.
CLIENT = httpx.Client(timeout=REQUEST_SECONDS, trust_env=False, verify=False)


class Ours:
    """`regla serve`, whose log goes on where it is started again."""
    name = "regla"

    def __init__(self, options, binary, folder, name="server", **flags):
        harness.BINARY, harness.START_SECONDS = binary, 600
        self.starts = 0
        self.make = lambda: harness.Server(folder / f"{name}-{self.starts}.log", options.model, threads=0,
                                           checkpoint_interval=options.interval, **flags)
        self.server = self.make()

    def ask(self, body):
        return ask_messages(self.server.url, self.server.model_id, body)

    def respond(self, body):
        return ask_responses(self.server.url, self.server.model_id, body)

    def wait_written(self):
        """Until what the last turn left for a crash, or for another server, is there."""
        harness.wait_until(
            lambda: self.server.metric("regla_store_operations_waiting") == 0, "all is written", 60)

    def kill(self):
        """As a crash would; then it is started again."""
        self.server.ends_clean = False
        self.server.process.kill()
        self.server.process.wait()
        self.server.stop()
        self.starts += 1
        self.server = self.make()

    def stop(self):
        self.server.stop()


class Theirs:
    name = "llama-server"

    def __init__(self, options, folder):
        self.port = harness.unused_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(folder / "peer.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [options.peer, "-m", options.model, "--host", "127.0.0.1", "--port", str(self.port), "--jinja",
             "-c", str(2 * options.tokens), *options.peer_flag], stdout=self.log, stderr=subprocess.STDOUT)
        harness.wait_until(self._is_ready, "llama-server is ready", 600)

    def _is_ready(self):
        if self.process.poll() is not None:
            raise Failure(f"{self.process.args[0]} exited {self.process.returncode}")
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def ask(self, body):
        """By a connection of its own: it closes one that it has said to keep."""
        try:
            return ask_messages(self.url, "model", body, connection="close")
        except httpx.TransportError as error:
            said = Path(self.log.name).read_text(errors="replace").splitlines()[-5:]
            status = self.process.poll()
            raise Failure("\n".join([f"{self.name}: {error}; exit status {status}", *said])) from error

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


def stream(url, body, **headers):
    """(seconds since it was asked, event) of a streamed reply."""
    began = time.monotonic()
    with CLIENT.stream("POST", url, json={**body, "stream": True, "temperature": 0},
                       headers=headers) as reply:
        if reply.status_code != 200:
            raise Failure(f"{url}: {reply.status_code} {reply.read().decode()[:400]}")
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if event["type"] in ("error", "response.failed"):
                    raise Failure(f"{url}: {event}")
                yield time.monotonic() - began, event


def ask_messages(url, model, body, **headers):
    """{prompt, computed: tokens; first: seconds; text} of a message."""
    first, usage, text = None, {}, ""
    for came, event in stream(f"{url}/v1/messages", {"model": model, "max_tokens": REPLY_TOKENS, **body},
                              **headers, **{"anthropic-version": "2023-06-01"}):
        usage |= {key: value for key, value in (event.get("message") or event).get("usage", {}).items()
                  if value is not None}
        if event["type"] in ("content_block_delta", "message_delta") and first is None:
            first = came
        text += event.get("delta", {}).get("text", "")
    computed = usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
    return {"prompt": computed + usage.get("cache_read_input_tokens", 0), "computed": computed,
            "first": first, "text": text}


def ask_responses(url, model, body):
    """The same of a response; and its id."""
    first = None
    for came, event in stream(f"{url}/v1/responses",
                              {"model": model, "max_output_tokens": REPLY_TOKENS, **body}):
        if first is None and (event["type"].endswith(".delta") or event["type"] in ENDS):
            first = came
        if event["type"] in ENDS:
            ended = event["response"]
    prompt = ended["usage"]["input_tokens"]
    return {"prompt": prompt, "computed": prompt - ended["usage"]["input_tokens_details"]["cached_tokens"],
            "first": first, "id": ended["id"]}
