# SPDX-License-Identifier: Apache-2.0
"""What the tests of sessions share: comparing with a run from the beginning, a session that is busy."""

import contextlib
import itertools
import json

from harness import RawReply, request_bytes, wait_until

salts = itertools.count()

# Greedy, so that a text is a function of its tokens alone; with all there is to compare.
GREEDY = {"temperature": 0, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}


def cold(server, ids, max_tokens=8, **fields):
    """The choice of a run from the beginning, which shares no prefix with any other."""
    reply = server.complete(prompt=ids, max_tokens=max_tokens, cache_salt=f"cold {next(salts)}",
                            **{**GREEDY, **fields})
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    return reply["choices"][0]


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def reason(reply):
    return reply["usage"]["prompt_tokens_details"]["cache_miss_reason"]


def same(choice, expected):
    """Text, tokens and log-probabilities to the last digit. Offsets are of the choice's own text."""
    assert choice["token_ids"] == expected["token_ids"]
    assert choice["text"] == expected["text"]
    assert choice["finish_reason"] == expected["finish_reason"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert choice["logprobs"][name] == expected["logprobs"][name], name


class Session:
    """A session, and the tokens that it ought to hold."""

    def __init__(self, server, name, ids=()):
        self.server = server
        self.name = name
        self.ids = list(ids)

    def append(self, prompt, max_tokens=8, **fields):
        """Continues it; the reply must equal a run of all its tokens from the beginning."""
        reply = self.server.complete(prompt=prompt, session_id=self.name, max_tokens=max_tokens,
                                     **{**GREEDY, **fields})
        choice = reply["choices"][0]
        context = self.ids + choice["prompt_token_ids"]
        if max_tokens:
            same(choice, cold(self.server, context, max_tokens))
        assert reply["usage"]["prompt_tokens"] == len(context)
        self.ids = context + choice["token_ids"]
        assert reply["session"]["id"] == self.name
        assert reply["session"]["position"] == len(self.ids)
        assert set(reply["session"]) == {"id", "position", "bytes", "tier", "durable"}
        return reply

    def path(self, rest=""):
        return f"/v1/sessions/{self.name}{rest}"

    def get(self):
        reply = self.server.get(self.path())
        assert reply.status_code == 200, reply.text
        assert reply.json()["position"] == len(self.ids)
        return reply.json()

    def fork(self, name):
        reply = self.server.post(self.path("/fork"), {"id": name})
        assert reply.status_code == 201, reply.text
        assert (reply.json()["id"], reply.json()["position"]) == (name, len(self.ids))
        return Session(self.server, name, self.ids)

    def rewind(self, position):
        reply = self.server.post(self.path("/rewind"), {"position": position})
        assert reply.status_code == 200, reply.text
        assert reply.json()["position"] == position
        self.ids = self.ids[:position]

    def export(self):
        reply = self.server.get(self.path("/state"))
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "application/octet-stream"
        return reply.content

    def delete(self):
        reply = self.server.http.delete(self.path())
        assert reply.status_code == 204, reply.text
        assert reply.content == b""


def imported(server, name, file, ids):
    reply = put(server, name, file)
    assert reply.status_code == 201, reply.text
    assert (reply.json()["id"], reply.json()["position"]) == (name, len(ids))
    return Session(server, name, ids)


def put(server, name, file, **options):
    return server.http.put(f"/v1/sessions/{name}/state", content=file,
                           headers={"Content-Type": "application/octet-stream"}, **options)


def position(server, name):
    """Of the session; None where there is none."""
    reply = server.get(f"/v1/sessions/{name}")
    return reply.json()["position"] if reply.status_code == 200 else None


def is_free(server, name):
    """Whether no request works on the session: one that would change nothing is let in."""
    reply = server.post("/v1/completions", {"prompt": "x", "session_id": name, "store": False,
                                            "max_tokens": 1})
    assert reply.status_code in (200, 409), reply.text
    return reply.status_code == 200


def frames_of(reply):
    """The frames of a stream as they come, parsed, without [DONE]."""
    rest = b""
    for chunk in reply.chunks():
        *whole, rest = (rest + chunk).split(b"\n\n")
        for frame in whole:
            assert frame.startswith(b"data: ")
            if frame != b"data: [DONE]":
                yield json.loads(frame[len(b"data: "):])


@contextlib.contextmanager
def busy_session(server, name, prompt="go on", headers=(), **fields):
    """A stream works on the session; yields its frames, of which one has come. Afterwards its client
    has left, and the session is free again."""
    with server.connect(receive_buffer=4096) as connection:
        body = {**GREEDY, "prompt": prompt, "max_tokens": 200000, "stream": True,
                "session_id": name, **fields}
        connection.sendall(request_bytes("/v1/completions", body, headers=headers))
        reply = RawReply(connection)
        status, _ = reply.head()
        assert status == 200
        frames = frames_of(reply)
        yield itertools.chain([next(frames)], frames)
    wait_until(lambda: is_free(server, name), f"session {name} is busy")
