# SPDX-License-Identifier: Apache-2.0
"""The requests that vllm bench serve, guidellm and aiperf really send (tests/clients/requests,
recorded by `make test-clients`), sent again byte for byte, the answers read by each client's rules
(tests/clients/README.md names the files these were rewritten from)."""

import json

import harness
import pytest

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

RECORDED = sorted((harness.ROOT / "tests" / "clients" / "requests").glob("*.json"))
PLACEHOLDER = json.dumps("MODEL")


class Answer:
    """What a client keeps of a streamed answer."""

    def __init__(self):
        self.text = ""
        self.iterations = 0
        self.prompt_tokens = None
        self.output_tokens = None


class VllmBench:
    """Cuts network reads into events as they come, each read stripped of white space first."""

    @staticmethod
    def read_stream(reply):
        answer, buffer = Answer(), ""
        for piece in reply.iter_raw():
            buffer += piece.strip().decode("utf-8")
            *events, buffer = buffer.split("\n\n")
            if VllmBench.is_whole(buffer):
                events, buffer = [*events, buffer], ""
            for event in events:
                VllmBench.take(answer, event.strip())
        assert answer.iterations > 0, "Never received a valid chunk"
        return answer

    @staticmethod
    def is_whole(text):
        content = text.removeprefix("data: ").strip()
        if not text.startswith("data: ") or not content:
            return False
        try:
            return content == "[DONE]" or json.loads(content) is not None
        except json.JSONDecodeError:
            return False

    @staticmethod
    def take(answer, event):
        if not event or event.startswith(":") or event == "data: [DONE]":
            return
        frame = json.loads(event.removeprefix("data: "))
        if frame.get("choices"):
            answer.text += frame["choices"][0].get("text") or ""
            answer.iterations += 1
        elif frame.get("usage"):
            answer.output_tokens = frame["usage"].get("completion_tokens")
            answer.prompt_tokens = frame["usage"].get("prompt_tokens")


class Guidellm:
    """Line by line; leaves at [DONE]; the last usage counts; an error frame fails the request."""

    @staticmethod
    def read_stream(reply):
        answer, finished = Answer(), False
        for line in reply.iter_lines():
            if not line.strip():
                continue
            if line == "data: [DONE]":
                finished = True
                break
            assert line.startswith("data:"), line
            frame = json.loads(line[len("data:"):].strip())
            assert not frame.get("error"), frame
            text = frame["choices"][0].get("text") if frame["choices"] else None
            answer.text += text or ""
            answer.iterations += bool(text)
            if frame.get("usage"):
                answer.prompt_tokens = frame["usage"]["prompt_tokens"]
                answer.output_tokens = frame["usage"]["completion_tokens"]
        assert finished
        assert answer.text.strip() or answer.output_tokens, "empty response payload"
        return answer

    @staticmethod
    def read_plain(body):
        return [body["choices"][0]["text"]], body["usage"]


class Aiperf:
    """By the standard's rules for events; only objects of type text_completion count."""

    @staticmethod
    def read_stream(reply):
        assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
        answer = Answer()
        for event in reply.read().split(b"\n\n"):
            fields = [line.partition(":") for line in event.decode("utf-8").split("\n") if line]
            assert all(name == "data" for name, _, _ in fields), event
            data = "\n".join(value.strip() for _, _, value in fields)
            if data in ("", "[DONE]"):
                continue
            frame = json.loads(data)
            assert frame["object"] in ("text_completion", "completion")
            if frame["choices"]:
                text = frame["choices"][0].get("text")
                answer.text += text or ""
                answer.iterations += bool(text)
            if frame.get("usage"):
                answer.prompt_tokens = frame["usage"]["prompt_tokens"]
                answer.output_tokens = frame["usage"]["completion_tokens"]
        return answer

    @staticmethod
    def read_plain(body):
        assert body["object"] in ("text_completion", "completion")
        return [choice["text"] for choice in body["choices"]], body["usage"]


CLIENTS = {"vllm": VllmBench, "guidellm": Guidellm, "aiperf": Aiperf}


def test_all_clients_are_recorded():
    assert {path.stem.split("_")[0] for path in RECORDED} == set(CLIENTS)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_replay(server, path):
    recorded = json.loads(path.read_text())
    for line in recorded["also_asked"]:
        method, asked = line.split(" ")
        if method == "GET":  # vllm asks /tokenize what lm_eval does: tested there
            assert server.get(asked).status_code == 200
    for request in recorded["requests"]:
        replay(server, CLIENTS[recorded["client"]], request)


def replay(server, client, request):
    assert PLACEHOLDER in request["body"]
    body = request["body"].replace(PLACEHOLDER, json.dumps(server.model_id))
    sent = json.loads(body)
    reference = server.complete(**{**sent, "stream": False, "stream_options": None})
    texts = [choice["text"] for choice in reference["choices"]]
    with server.http.stream(request["method"], request["path"], content=body.encode(),
                            headers=request["headers"]) as reply:
        assert reply.status_code == 200, reply.read()
        if sent.get("stream"):
            answer = client.read_stream(reply)
            check_stream(answer, sent, reference)
            got, usage = [answer.text], reference["usage"]
        else:
            got, usage = client.read_plain(json.loads(reply.read()))
    if is_deterministic(sent):
        assert got == texts
    if sent.get("ignore_eos"):
        assert usage["completion_tokens"] == sent["max_tokens"] * len(texts)


def check_stream(answer, sent, reference):
    assert answer.prompt_tokens == reference["usage"]["prompt_tokens"]
    assert 1 <= answer.output_tokens <= sent["max_tokens"]
    assert answer.iterations <= answer.output_tokens
    if sent.get("ignore_eos"):
        assert answer.output_tokens == sent["max_tokens"]
    if is_deterministic(sent):
        assert answer.output_tokens == reference["usage"]["completion_tokens"]


def is_deterministic(sent):
    return sent.get("temperature") == 0 or sent.get("seed") is not None


@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
def test_every_client_reads_the_same_stream(server, client):
    """Text with characters of several bytes, half of them cut between tokens."""
    sent = {"model": server.model_id, "prompt": "Schöne Grüße ☃", "max_tokens": 24, "seed": 11,
            "ignore_eos": True}
    expected = server.complete(**sent)
    body = {**sent, "stream": True, "stream_options": {"include_usage": True}}
    with server.http.stream("POST", "/v1/completions", json=body) as reply:
        answer = client.read_stream(reply)
    assert answer.text == expected["choices"][0]["text"]
    assert answer.output_tokens == 24
    assert answer.prompt_tokens == expected["usage"]["prompt_tokens"]


def test_continuous_usage_is_on_every_frame(server):
    frames = server.stream(prompt="A b c", max_tokens=6, ignore_eos=True, seed=3,
                           stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [frame["usage"]["completion_tokens"] for frame in frames]
    assert counts == sorted(counts) and counts[-1] == 6
    assert frames[-1]["choices"] == []
    assert all(frame["choices"] for frame in frames[:-1])
    assert len({frame["usage"]["prompt_tokens"] for frame in frames}) == 1
