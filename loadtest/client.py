# SPDX-License-Identifier: Apache-2.0
"""One streamed completion, as a client sees it."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp

# A slow client: what the kernel holds for it, and its pause after each piece that it reads.
SLOW_BUFFER_BYTES = 4096
SLOW_PAUSE_SECONDS = 0.05


@dataclass
class Outcome:
    kind: str = "ok"  # "left": the client closed the connection, as planned; else an error's kind
    slow: bool = False
    late: float = 0.0  # seconds between the arrival and the moment the client got to it
    first: float | None = None  # seconds from the arrival to the first token
    between: list = field(default_factory=list)  # seconds between consecutive tokens
    seconds: float = 0.0
    tokens: int = 0
    cached_tokens: int = 0
    position: int | None = None  # of its session
    detail: str = ""

    @property
    def is_error(self):
        return self.kind not in ("ok", "left")


class StreamError(Exception):
    def __init__(self, kind, detail=""):
        super().__init__(kind)
        self.kind, self.detail = kind, detail


class Reading:
    """Takes the frames of a stream apart: "data: {json}", an empty line, at last "data: [DONE]"."""

    def __init__(self, outcome, arrival, arrived):
        self.outcome, self.arrival, self.arrived = outcome, arrival, arrived
        self.rest = b""
        self.last = None
        self.done = False

    def take(self, data, now):
        *frames, self.rest = (self.rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for frame in frames:
            if frame.startswith(b"data: ") and not self.done:
                self._frame(frame[len(b"data: "):], now)

    def _frame(self, data, now):
        if data == b"[DONE]":
            self.done = True
            return
        try:
            said = json.loads(data)
        except ValueError:
            raise StreamError("broken frame", repr(data[:100])) from None
        if "error" in said:
            raise StreamError("error frame", json.dumps(said["error"]))
        if said.get("choices"):
            self._token(now)
        usage = said.get("usage")
        if usage:
            self.outcome.tokens = usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            self.outcome.cached_tokens = details.get("cached_tokens") or 0
        if said.get("session"):
            self.outcome.position = said["session"]["position"]

    def _token(self, now):
        outcome = self.outcome
        outcome.tokens += 1
        if outcome.first is None:
            outcome.first = now - self.arrived
        else:
            outcome.between.append(now - self.last)
        self.last = now

    def leaves(self):
        after = self.arrival.leaves_after
        return after is not None and self.outcome.tokens >= after


async def read_reply(response, reading):
    """Whether the client stayed to the end."""
    if reading.leaves():
        response.close()
        return False
    async for data in response.content.iter_any():
        reading.take(data, time.perf_counter())
        if reading.leaves():  # though a busy machine may have handed over the rest with it
            response.close()
            return False
        if reading.arrival.slow:
            await asyncio.sleep(SLOW_PAUSE_SECONDS)
    return True


async def complete(http, url, body, arrival, arrived):
    """Sends it and reads what comes; `arrived`: when it should have been sent (perf_counter)."""
    outcome = Outcome(slow=arrival.slow, late=time.perf_counter() - arrived)
    reading = Reading(outcome, arrival, arrived)
    buffer = {"read_bufsize": SLOW_BUFFER_BYTES} if arrival.slow else {}
    try:
        async with http.post(url + "/v1/completions", json=body, **buffer) as response:
            if response.status != 200:
                outcome.detail = (await response.text())[:300]
                outcome.kind = f"HTTP {response.status}"
            elif not await read_reply(response, reading):
                outcome.kind = "left"
            elif not reading.done:
                outcome.kind = "cut off"
            elif outcome.tokens != arrival.max_tokens:
                outcome.kind = "wrong count"
                outcome.detail = f"expected {arrival.max_tokens} tokens, got {outcome.tokens}"
    except StreamError as error:
        outcome.kind, outcome.detail = error.kind, error.detail
    except TimeoutError:
        outcome.kind = "timeout"
    except aiohttp.ClientConnectorError as error:
        outcome.kind, outcome.detail = "no connection", str(error)
    except aiohttp.ClientError as error:
        outcome.kind, outcome.detail = "cut off", repr(error)
    outcome.seconds = time.perf_counter() - arrived
    return outcome
