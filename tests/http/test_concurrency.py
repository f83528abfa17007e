# SPDX-License-Identifier: Apache-2.0
"""Many texts at once: equal to what each is alone, fair, cancelled at once when their client goes."""

import json
import random
import socket
import statistics
import struct
import threading
import time

import harness
import pytest
from harness import (SLOWNESS, RawReply, check_error, read_frames, request_bytes, shipped_model,
                     text_of, wait_until)
from test_completions import LETTERS

ENDLESS = {**harness.ENDLESS, "stream": True}


def in_threads(count, work):
    """Runs work(0), …, work(count - 1) at once; returns their results, or raises their error."""
    results, errors = [None] * count, []

    def run(number):
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.long
def test_64_streams_equal_what_they_are_alone(server):
    def fields(number):
        return {"prompt": f"Stream {number}: " + "abc " * (number % 9), "seed": number,
                "max_tokens": 20 + number % 30, "logprobs": 1, "ignore_eos": True,
                "temperature": (number % 3) / 2}

    def content(frames):
        return [(choice["text"], choice["logprobs"]) for f in frames for choice in f["choices"]]
    alone = [content(server.stream(**fields(number))) for number in range(64)]
    together = in_threads(64, lambda number: content(server.stream(**fields(number))))
    for number in range(64):
        assert together[number] == alone[number], number


@pytest.mark.parametrize("case", ["lfm2", "delta_qwen3_5_text", "falcon_h1"])
def test_convolutions_see_their_own_text_alone(server_factory, case):
    """Texts of other lengths beside it, clients that leave halfway, and slots that were another's:
    what SGLang and mistral.rs got wrong with LFM 2."""
    server = server_factory(model=harness.GOLDEN / case, max_step_tokens=16, no_prefix_cache=True)
    dice = random.Random("convolutions")
    prompts = [[dice.randrange(1, 270) for _ in range(1 + number % 23)] for number in range(48)]

    def fields(number):
        return {"prompt": prompts[number], "seed": number, "max_tokens": 8 + number % 5, "logprobs": 2,
                "ignore_eos": True, "return_token_ids": True, "temperature": (number % 3) / 2}

    def leave(number):
        with server.connect() as connection:
            connection.sendall(request_bytes("/v1/completions", ENDLESS | {"prompt": prompts[number]}))
            RawReply(connection).head()
            time.sleep(0.01 * (number % 4))  # whenever it is, the others must not notice

    def work(number):
        return leave(number) if number % 4 == 3 else server.complete(**fields(number))["choices"]
    alone = [None if number % 4 == 3 else work(number) for number in range(48)]
    for _ in range(3):
        together = in_threads(48, work)
        for number in range(48):
            assert together[number] == alone[number], number
    server.wait_idle()


@pytest.mark.long
@pytest.mark.builds("dev", "asan")  # TSan: the streams of the small model
def test_64_streams_of_real_text(text_server):
    def fields(number):
        return {"prompt": ["Once upon a time", "The ship", "He said that", "In the garden"][number % 4],
                "seed": number, "max_tokens": 24}
    together = in_threads(64, lambda number: text_of(text_server.stream(**fields(number))))
    for number in range(0, 64, 7):
        alone = text_server.complete(**fields(number))["choices"][0]["text"]
        assert together[number] == alone


def test_seed_gives_the_same_tokens_under_load(server):
    def ask(seed):
        return server.complete(prompt="Load", seed=seed, max_tokens=50, logit_bias=LETTERS
                               )["choices"][0]["text"]
    quiet = ask(5)
    texts = in_threads(24, lambda number: ask(5 if number % 2 else number + 100))
    assert set(texts[1::2]) == {quiet}


def test_long_prompt_does_not_stall_the_others(server_factory):
    """While thousands of tokens are prefilled, a running stream goes on getting its tokens."""
    prompt_tokens = 8000 if SLOWNESS == 1 else 3000  # attention makes it quadratic
    server = server_factory(max_step_tokens=128)
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", ENDLESS))
        reply = RawReply(connection)
        reply.head()
        chunks = reply.chunks()
        for _ in range(5):
            next(chunks)
        server.complete(prompt=[40] * prompt_tokens, max_tokens=1)
    server.wait_idle()
    # Steps of at most 128 tokens, in each of which is one of the stream until its end.
    steps = server.metric("regla_engine_steps_total")
    assert server.metric("regla_batch_tokens_bucket", le="128") == steps
    assert server.metric("regla_generated_tokens_total") >= steps - 2 > prompt_tokens / 128


@pytest.mark.long
@pytest.mark.builds("dev")
@pytest.mark.skipif(shipped_model() is None, reason="no shipped model")
def test_small_requests_beside_a_million_ids(server_factory):
    """Steps are sized by time. On an idle machine a small request takes 6 to 13 ms; without that
    the chunks of the long prompt made it 300 to 1,500 ms."""
    server = server_factory(model=shipped_model())

    def median(count):
        def once():
            began = time.monotonic()
            server.complete(prompt=[5], max_tokens=2)
            return time.monotonic() - began
        return statistics.median(once() for _ in range(count))

    alone = median(20)
    with server.connect() as connection:
        ids = [n % 4000 for n in range(0, 7_000_000, 7)]
        connection.sendall(request_bytes("/v1/completions", {"prompt": ids, "max_tokens": 1}))
        wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        for _ in range(4):
            time.sleep(0.5)
            assert median(10) < max(6 * alone, 0.12)
        steps = server.metric("regla_engine_steps_total")
        time.sleep(0.5)
        assert server.metric("regla_engine_steps_total") > steps  # it goes on


@pytest.mark.builds("dev")
@pytest.mark.skipif(shipped_model() is None, reason="no shipped model")
def test_a_prompt_that_is_alone_is_read_in_longer_steps(server_factory):
    """Without a limit that is asked for, which holds for it too. Beside another text it does not get them."""
    def steps(beside, **flags):
        server = server_factory(model=shipped_model(), **flags)
        with server.connect() as connection:
            if beside:
                harness.begin_stream(connection)
            before = server.metric("regla_engine_steps_total")
            ids = [n % 4000 for n in range(0, 17_500, 7)]
            server.complete(prompt=ids, max_tokens=1)
            return server.metric("regla_engine_steps_total") - before

    alone = steps(beside=False)
    assert 2 * alone < steps(beside=False, max_step_ms=10)
    assert 2 * alone < steps(beside=True)


def test_requests_join_and_leave(server):
    """Short requests finish while a long one runs."""
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", ENDLESS))
        RawReply(connection).head()
        for _ in range(10):
            server.complete(prompt="y", max_tokens=3)
        assert server.metric("regla_requests_running") == 1
    server.wait_idle()


# Clients that leave


def test_disconnect_while_decoding(server):
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", ENDLESS))
    RawReply(connection).head()
    connection.close()
    server.wait_idle(2)


def test_disconnect_without_stream(server):
    """Nothing is written to it before its end: only the closed socket can tell."""
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": False}))
    wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
    connection.close()
    server.wait_idle(2)


def test_disconnect_while_prefilling(server_factory):
    server = server_factory(prefill_chunk=16)
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "prompt": [40] * 100000}))
    wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
    connection.close()
    server.wait_idle(3)
    assert server.metric("regla_generated_tokens_total") == 0


def test_disconnect_while_waiting(server_factory):
    server = server_factory(max_running=1)
    first, second = server.connect(), server.connect()
    first.sendall(request_bytes("/v1/completions", ENDLESS))
    RawReply(first).head()
    second.sendall(request_bytes("/v1/completions", ENDLESS))
    wait_until(lambda: server.metric("regla_requests_waiting") == 1, "it waits")
    second.close()
    wait_until(lambda: not server.metric("regla_requests_waiting"), "it is gone", 2)
    assert server.get("/load").json() == {"running": 1, "waiting": 0, "server_load": 1}
    first.close()
    server.wait_idle()


def leave_at_random(server, dice):
    """One client: some request, cut off at some moment, politely or by a reset."""
    fields = {"prompt": [40] * dice.choice([1, 30, 3000]), "max_tokens": dice.choice([5, 500, 50000]),
              "ignore_eos": True, "stream": dice.random() < 0.7, "n": dice.choice([1, 1, 3])}
    payload = request_bytes("/v1/completions", fields)
    connection = server.connect()
    if dice.random() < 0.2:
        payload = payload[:dice.randrange(len(payload))]
    try:
        connection.sendall(payload)
        time.sleep(dice.random() * 0.2)
        if dice.random() < 0.5:
            connection.settimeout(0.2)
            connection.recv(dice.choice([1, 500, 5000]))
    except (TimeoutError, ConnectionError):
        pass
    if dice.random() < 0.3:  # RST
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_200_clients_disconnect_at_random_moments(server):
    def clients(number):
        dice = random.Random(number)
        for _ in range(10):
            leave_at_random(server, dice)
    in_threads(20, clients)
    server.wait_idle()
    assert server.get("/load").json() == {"running": 0, "waiting": 0, "server_load": 0}
    # Leftover work would share the steps of a request that has the server to itself.
    names = ["regla_generated_tokens_total", "regla_engine_steps_total"]
    before = [server.metric(name) for name in names]
    server.complete(prompt=[41, 42, 43], max_tokens=30, ignore_eos=True)
    assert [server.metric(name) - was for name, was in zip(names, before)] == [30, 30]


# Cancelling by name


def test_cancel(server):
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", ENDLESS))
        reply = RawReply(connection)
        reply.head()
        chunks = reply.chunks()
        first = next(chunks)
        request = json.loads(first.split(b"\n\n")[0][len(b"data: "):])["id"]
        cancelled = server.post(f"/v1/requests/{request}/cancel")
        assert cancelled.status_code == 200, cancelled.text
        rest = b"".join(chunks)
        assert rest.endswith(b"data: [DONE]\n\n")
    server.wait_idle(2)
    # Its name is forgotten when its connection has seen the end, after the last byte.
    wait_until(lambda: server.post(f"/v1/requests/{request}/cancel").status_code != 200, "forgotten",
               10)
    check_error(server.post(f"/v1/requests/{request}/cancel"), 404)


def test_cancel_by_the_clients_own_name(server):
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "request_id": "my-name"}))
        reply = RawReply(connection)
        reply.head()
        assert server.post("/v1/requests/my-name/cancel").status_code == 200
        assert b"".join(reply.chunks()).endswith(b"data: [DONE]\n\n")
    server.wait_idle(2)


# Slow readers


def test_slow_reader_is_cancelled_and_disturbs_nobody(server_factory):
    """It never reads: the kernel's buffers and its ring fill, its text pauses, then is dropped."""
    server = server_factory(stall_timeout=2)
    connection = server.connect(receive_buffer=4096)
    connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "logprobs": 20}))
    wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
    for number in range(5):
        frames = server.stream(prompt="fast", max_tokens=20, seed=number, logit_bias=LETTERS)
        assert len(frames) == 20
    wait_until(lambda: not server.metric("regla_requests_running"), "it is dropped")
    assert server.busy() == {}
    connection.close()


@pytest.mark.long
def test_reader_that_lets_its_ring_fill_gets_everything(server):
    """A tiny model outruns any client: its texts wait for the reader instead of being cancelled."""
    fields = {**ENDLESS, "n": 8, "max_tokens": 250, "logprobs": 20, "seed": 3}
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request_bytes("/v1/completions", fields))
        time.sleep(1)
        assert server.metric("regla_requests_running") == 1
        reply = RawReply(connection)
        reply.head()
        frames = read_frames(b"".join(reply.chunks()))
    plain = server.complete(**{**fields, "stream": False})
    for choice in plain["choices"]:
        assert text_of(frames, choice["index"]) == choice["text"]


def test_reader_that_is_slow_but_steady_gets_everything(server_factory):
    """It takes longer over what the server has ready than one that reads nothing is waited for."""
    server = server_factory(stall_timeout=1)
    fields = {**ENDLESS, "n": 8, "max_tokens": 500, "logprobs": 20, "seed": 3}
    with socket.socket() as connection:
        # Small segments, so that the kernel keeps little of the stream for it.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request_bytes("/v1/completions", fields))
        read, began = b"", time.monotonic()
        while time.monotonic() - began < 4:
            read += connection.recv(4096)
            time.sleep(0.04)
        assert len(read) < 600_000  # or it was not slow
        while not read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            more = connection.recv(1 << 20)
            assert more, read[-500:]
            read += more
    assert b'"error"' not in read[-2000:], read[-2000:]
    assert read.count(b'"finish_reason":"length"') == 8


def test_a_prompt_goes_on_whatever_its_reader_does(server_factory):
    """Another client's text waits for the same prompt, which is computed once."""
    server = server_factory(stall_timeout=3600, max_step_tokens=96)
    prompt = [(31 * i + 7) % 200 for i in range(6000)]
    hog = {**ENDLESS, "prompt": [[3]] * 64 + [prompt], "max_tokens": 1500, "logprobs": 20}
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request_bytes("/v1/completions", hog))
        wait_until(lambda: server.metric("regla_generated_tokens_total") > 1000, "it generates")
        reply = server.complete(prompt=prompt + [9], max_tokens=4)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt)
    server.wait_idle()


def test_reader_that_pauses_gets_everything(server):
    with server.connect(receive_buffer=4096) as connection:
        connection.sendall(request_bytes("/v1/completions", {
            **ENDLESS, "max_tokens": 200, "seed": 3}))
        time.sleep(0.3)
        reply = RawReply(connection)
        reply.head()
        frames = read_frames(b"".join(reply.chunks()))
    plain = server.complete(prompt="x", max_tokens=200, seed=3, ignore_eos=True)
    assert text_of(frames) == plain["choices"][0]["text"]


# Memory


def test_requests_wait_for_memory_and_none_is_aborted(server_factory):
    """A budget of about two texts: eight requests all finish."""
    probe = server_factory()
    model = probe.get("/v1/models").json()["data"][0]
    tokens = 500 if SLOWNESS == 1 else 150
    need = model["state_bytes_per_text"] + (2 * tokens + 100) * model["kv_bytes_per_token"]
    probe.stop()
    server = server_factory(state_memory=int(2.5 * need))
    results = in_threads(8, lambda number: server.complete(
        prompt=[40] * tokens, max_tokens=tokens, ignore_eos=True, seed=number))
    assert all(reply["usage"]["completion_tokens"] == tokens for reply in results)
    error = server.refuse(400, prompt=[40], max_tokens=100000)
    assert error["code"] == "context_length_exceeded"
