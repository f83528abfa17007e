# SPDX-License-Identifier: Apache-2.0
"""What a hostile or unlucky client must not be able to do to the others."""

import json
import select
import subprocess
import time

import pytest

from harness import BINARY, GOLDEN, SLOWNESS, RawReply, check_error, request_bytes, wait_until

# A megabyte of it takes a JSON parser a tenth of a second.
VALUES = b'{"prompt":[' + b"1," * 4_000_000 + b'-1],"max_tokens":1}'


def wait_for_bodies(server):
    """Until no body is held."""
    wait_until(lambda: server.metric("regla_request_body_bytes") == 0, "no body is held", 20)


def test_a_long_body_does_not_stall_the_event_loop(server_factory):
    """With one HTTP thread others are answered while it is parsed."""
    server = server_factory(http_threads=1)
    for path, status in (("/v1/completions", 400), ("/detokenize", 400)):
        body = VALUES if path == "/v1/completions" else VALUES.replace(b"prompt", b"tokens")
        for _ in range(5):  # we may be slower than it now and then, if others use the machine
            server.get("/health")
            hostile = server.connect()
            hostile.sendall(request_bytes(path, body))
            for _ in range(3):
                assert server.get("/health").status_code == 200
            others_first = not select.select([hostile], [], [], 0)[0]
            assert RawReply(hostile).head()[0] == status
            hostile.close()
            if others_first:
                break
        assert others_first, f"{path}: parsed before the others"
    wait_for_bodies(server)


def test_a_long_body_is_refused_as_a_short_one_is(server):
    filler = " " * 100_000
    for body, code in (('{"prompt": "x", "max_tokens": -2}', "invalid_value"), ('{"a": }', "invalid_json"),
                       ('{"prompt": "x", "model": "other"}', "model_not_found")):
        replies = [server.http.post("/v1/completions", content=body + rest,
                                    headers={"Content-Type": "application/json"})
                   for rest in ("", filler)]
        assert replies[0].json() == replies[1].json()
        assert replies[0].status_code == replies[1].status_code
        check_error(replies[1], replies[0].status_code, code=code)
    fields = {"prompt": [40] * 20, "max_tokens": 4, "seed": 3, "user": "u" * 50_000}
    short = server.complete(**{**fields, "user": "u"})["choices"]
    assert server.complete(**fields)["choices"] == short
    assert server.stream(**fields)[-1]["choices"][0]["finish_reason"] == short[0]["finish_reason"]


def test_a_client_that_leaves_while_its_body_is_parsed(server):
    for pause in (0, 0.02, 0.2):
        hostile = server.connect()
        hostile.sendall(request_bytes("/v1/completions", VALUES))
        time.sleep(pause)
        hostile.close()
    wait_for_bodies(server)
    server.wait_idle()


def test_a_long_reply_is_whole(server):
    """Written by another thread than a short one."""
    fields = {"prompt": "abc", "max_tokens": 40, "n": 6, "logprobs": 5, "seed": 1, "echo": True,
              "ignore_eos": True}
    choices = server.complete(**fields)["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    frames = server.stream(**fields)
    for choice in choices:
        tokens = [token for frame in frames for part in frame["choices"]
                  if part["index"] == choice["index"] for token in part["logprobs"]["tokens"]]
        assert choice["logprobs"]["tokens"] == tokens


def test_learned_positions_are_named(server_factory):
    learned = server_factory(model=GOLDEN / "sliding_parallel_learned")
    limit = json.loads((learned.model / "config.json").read_text())["max_position_embeddings"]
    message = learned.refuse(400, prompt=[40] * limit, max_tokens=1)["message"]
    assert "learned positions" in message and "--max-model-len" not in message
    shorter = server_factory(model=GOLDEN / "sliding_parallel_learned", max_model_len=8)
    assert "--max-model-len" in shorter.refuse(400, prompt=[40] * 8, max_tokens=1)["message"]


@pytest.mark.long
def test_stop_tokens_given_a_million_times_cost_no_more_than_once(server):
    """They were searched for every token of every text, on the thread that all share."""
    fields = {"prompt": "abc", "max_tokens": 50, "min_tokens": 50, "n": 8, "seed": 5}
    once = server.complete(**fields, stop_token_ids=[7])["choices"]
    fastest = float("inf")
    for _ in range(5):  # others may use the machine
        reply = server.complete(**fields, stop_token_ids=[7] * 1_500_000)
        assert reply["choices"] == once
        fastest = min(fastest, reply["timings"]["decode_ms"])
        if fastest < 200 * SLOWNESS:
            return
    raise AssertionError(f"decoding takes {fastest} ms at least")


def test_all_tokens_banned_is_the_clients_mistake(server):
    every = list(range(275))
    error = server.refuse(400, prompt="abc", min_tokens=1, max_tokens=2, stop_token_ids=every)
    assert error["param"] == "stop_token_ids"
    # Without min_tokens the first one ends it.
    reply = server.complete(prompt="abc", max_tokens=2, stop_token_ids=every)
    assert reply["usage"]["completion_tokens"] == 1


def test_memory_that_hides_outside_of_the_prompt_counts_in_the_queue(server_factory):
    small = server_factory(max_queue_tokens=5000)
    for fields in ({"user": "u" * 100_000}, {"cache_salt": "s" * 100_000},
                   {"stop": [chr(200 + i) for i in range(2000)]}):
        check_error(small.post("/v1/completions", {"prompt": "a", **fields}), 400,
                    code="context_length_exceeded")
    small.complete(prompt="a", user="u" * 10_000, max_tokens=1)
    assert "u" * 129 not in small.wait_logged("u" * 100)


def test_replies_that_are_held_have_a_budget(server_factory):
    """128 texts with 20 logprobs a token would take all memory there is, given time."""
    small = server_factory(max_body_memory="1M")
    fields = {"prompt": [40] * 4, "max_tokens": 400, "n": 20, "logprobs": 20, "ignore_eos": True}
    for too_much in (fields, {"prompt": [40] * 8000, "max_tokens": 0, "echo": True, "logprobs": 20}):
        reply = small.post("/v1/completions", too_much)
        check_error(reply, 503, code="out_of_memory")
        assert int(reply.headers["retry-after"]) >= 1
        wait_for_bodies(small)
    check_error(small.post("/v1/completions", {"prompt": "a", "stop": ["x" * 60_000]}), 503,
                code="out_of_memory")
    wait_for_bodies(small)
    frames = small.stream(**{**fields, "n": 1, "logprobs": None})
    assert frames[-1]["choices"][0]["finish_reason"] == "length"
    assert small.complete(**{**fields, "n": 1})["usage"]["completion_tokens"] == 400
    wait_for_bodies(small)
    small.wait_idle()


def test_replies_of_the_tokenizer_have_a_budget(server_factory):
    """Clients that do not read hold what they asked for."""
    small = server_factory(max_body_memory="4M")
    body = {"prompt": "a" * 60_000, "return_token_strs": True}
    clients = []
    for _ in range(16):
        clients.append(small.connect(receive_buffer=4096))
        clients[-1].sendall(request_bytes("/tokenize", body))
    wait_until(lambda: small.metric("regla_request_body_bytes") > 1_000_000, "a reply is held")
    statuses = sorted(RawReply(client).head()[0] for client in clients)
    assert statuses[0] == 200 and statuses[-1] == 503, statuses
    for client in clients:
        client.close()
    wait_for_bodies(small)
    assert small.post("/tokenize", body).json()["count"] >= 60_000


def unread_stream(server, key, **fields):
    """A stream that is to be recorded, whose client does not read it."""
    client = server.connect(receive_buffer=4096)
    client.sendall(request_bytes("/v1/completions", {
        "prompt": "x", "stream": True, "ignore_eos": True, "logprobs": 20, "seed": 3, **fields},
        headers=[f"Idempotency-Key: {key}"]))
    return client


@pytest.mark.builds("dev", "asan")
def test_what_a_recorded_stream_is_behind_has_a_budget(server_factory):
    """Its text runs on without its reader, as far as there is memory."""
    small = server_factory(max_body_memory="4M")
    with unread_stream(small, "big", n=8, max_tokens=100_000) as client:
        wait_until(lambda: small.metric("regla_generated_tokens_total") > 0, "it runs")
        wait_until(lambda: small.metric("regla_requests_running") == 0, "it has ended")
        reply = RawReply(client)
        reply.head()
        rest = b"".join(reply.chunks())
    assert rest.endswith(b"data: [DONE]\n\n") and b"out_of_memory" in rest[-1000:], rest[-1000:]
    wait_for_bodies(small)


def slowest_beside_a_reader(server, key):
    """The longest that anybody waits while a client reads what it is megabytes behind."""
    with unread_stream(server, key, n=8, max_tokens=1500 // SLOWNESS) as client:
        wait_until(lambda: server.metric("regla_request_body_bytes") > 1_000_000 // SLOWNESS, "it is behind")
        wait_until(lambda: server.metric("regla_requests_running") == 0, "it has ended")
        worst, read = 0, b""
        client.settimeout(30 * SLOWNESS)
        while not read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            more = client.recv(1 << 20)
            assert more
            read = read[-100:] + more
            began = time.monotonic()
            assert server.get("/health").status_code == 200
            worst = max(worst, time.monotonic() - began)
    wait_for_bodies(server)
    return worst


@pytest.mark.long
def test_what_a_stream_is_behind_does_not_stall_the_event_loop(server_factory):
    """Megabytes wait to be made frames of; with one HTTP thread others are answered meanwhile. What
    only the machine's other work made late is not late every time."""
    server = server_factory(http_threads=1)
    waits = []
    while len(waits) < 3 and min(waits, default=1) >= 0.5:
        waits.append(slowest_beside_a_reader(server, f"long {len(waits)}"))
    assert min(waits) < 0.5, waits


def test_bodies_that_never_end_do_not_end_texts_that_run(server_factory):
    server = server_factory(max_body_memory="16M")
    clients = []
    for _ in range(4):
        clients.append(server.connect())
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        clients[-1].sendall(f"{head}Content-Length: {8 << 20}\r\n\r\n".encode())
        try:
            clients[-1].settimeout(5 * SLOWNESS)
            clients[-1].sendall(b" " * ((8 << 20) - 1))
        except (TimeoutError, ConnectionError):
            pass  # refused
    wait_until(lambda: server.metric("regla_request_body_bytes") >= 8 << 20, "they are read")

    def complete():
        """None while so much of them is being read that a body, however short, is refused."""
        reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2000, "n": 2,
                                                "ignore_eos": True, "logprobs": 2, "seed": 1})
        if reply.status_code == 429:
            check_error(reply, 429, code="queue_full")
            return None
        return reply

    reply = wait_until(complete, "it is served")
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 4000
    for client in clients:
        client.close()
    wait_for_bodies(server)


@pytest.mark.builds("dev", "asan")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"],
                                       ["info", str(GOLDEN / "hybrid_regla")],
                                       ["check", str(GOLDEN / "hybrid_regla")]])
def test_output_that_is_lost_is_a_failure(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE,
                              timeout=60 * SLOWNESS)
    assert done.returncode == 1 and b"standard output" in done.stderr
    assert subprocess.run([BINARY, *arguments], stdout=subprocess.DEVNULL,
                          timeout=60 * SLOWNESS).returncode == 0
