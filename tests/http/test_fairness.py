# SPDX-License-Identifier: Apache-2.0
"""API keys share the server, whatever one of them asks for; and what must wait for memory or a place is
set aside and ends with the same bits."""

import random
import socket
import threading
import time

import pytest

from harness import (ENDLESS, GOLDEN, SLOWNESS, RawReply, begin_stream, read_frames, request_bytes, text_of,
                     wait_until)
from session_helpers import GREEDY, cold, same
from test_concurrency import in_threads
from test_prefix_reuse import check_accounts, some_ids, state_need

pytestmark = pytest.mark.long

KEYS = ["first", "second", "third"]
# Longer than what is reserved ahead (room.c), so that texts grow while they run.
GROWN = 900


def serve(server_factory, **flags):
    """With three keys; the first asks where nothing else is said."""
    server = server_factory(api_key=",".join(KEYS), **flags)
    server.http.headers["X-Api-Key"] = KEYS[0]
    return server


def ask(server, key, **fields):
    return server.post("/v1/completions", fields, headers={"X-Api-Key": key})


def begin(server, key, **fields):
    """A connection with a request that nobody waits for."""
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", fields, [f"X-Api-Key: {key}"]))
    return connection


def requests(count, longest):
    """Of all kinds: whatever belongs to a text must come back with it."""
    dice = random.Random(5)
    shared = some_ids(dice, 60)
    kinds = [{}, {"n": 3}, {"frequency_penalty": 1.5, "repetition_penalty": 1.2}, {"stop": ["Q", "zz"]},
             {"echo": True}, {"min_tokens": 20, "stop_token_ids": [7, 9]}, {"n": 2, "best_of": 4},
             {"bad_words": ["ab", "e"]}, {"prompt_logprobs": 1}, {"prompt": [shared + [3], [5, 6]]},
             {"regex": "[a-f]{1,600}"}]
    for number in range(count):
        kind = kinds[number % len(kinds)]
        tokens = dice.choice([longest, longest // 2, 30])
        yield {"prompt": (shared if number % 2 else []) + some_ids(dice, dice.choice([20, 150])),
               "max_tokens": tokens // (2 if "n" in kind or "prompt" in kind else 1), "seed": number,
               "temperature": 0.8, "logprobs": 2, "ignore_eos": True, "return_token_ids": True, **kind}


def choices(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def leave_at_random(server, number, fields):
    dice = random.Random(number)
    with begin(server, KEYS[number % 3], **{**fields, "stream": dice.random() < 0.5}):
        time.sleep(dice.random() * 0.5)


one_thread = pytest.mark.builds("dev", "asan")  # nothing is moved


@pytest.mark.parametrize("model, flags", [
    ("hybrid_regla", {}), pytest.param("hybrid_regla", {"host_state_memory": 0}, marks=one_thread),
    pytest.param("regla", {"no_prefix_cache": True, "host_state_memory": 0}, marks=one_thread),
    pytest.param("lfm2", {"max_running": 2}, marks=one_thread),
    ("softmax_rope", {"disk": True, "host_state_memory": 0, "max_running": 3})],
    ids=["host", "recomputed", "no_cache", "places", "disk"])
def test_texts_that_are_set_aside_end_with_the_same_bits(server_factory, tmp_path, model, flags):
    flags = dict(flags)
    model, grown = GOLDEN / model, GROWN if SLOWNESS == 1 else 600
    quiet = server_factory(model=model, no_prefix_cache=True)
    wanted = list(requests(15, grown))
    expected = [quiet.complete(**fields)["choices"] for fields in wanted]
    if flags.pop("disk", None):
        flags["state_dir"] = tmp_path / "states"
    server = serve(server_factory, model=model, state_memory=int(4.2 * state_need(quiet, grown + 150)),
                   **flags)

    def work(number):
        if number % 4 == 3:
            return leave_at_random(server, number, wanted[number // 4])
        place = number - (number + 1) // 4
        return choices(ask(server, KEYS[number % 3], **wanted[place])) == expected[place]
    for _ in range(20):  # where threads begin slowly, a crowd's first texts end before others come
        results = in_threads(4 * len(wanted) // 3, work)
        assert all(result in (True, None) for result in results), results
        if server.metric("regla_texts_set_aside_total") > 0:
            break
    assert server.metric("regla_texts_set_aside_total") > 0
    wait_until(lambda: not server.busy(), "at rest")
    check_accounts(server)
    if "no_prefix_cache" in flags:
        assert server.metric("regla_checkpoints") == 0


@pytest.mark.builds("dev")
def test_sessions_whose_turns_were_set_aside_survive_a_kill(server_factory, tmp_path):
    quiet = server_factory()
    flags = {"state_dir": tmp_path / "states", "host_state_memory": 0, "max_running": 2,
             "state_memory": int(3 * state_need(quiet, GROWN + 50))}
    server = serve(server_factory, **flags)
    server.ends_clean = False
    dice = random.Random(3)
    texts = [some_ids(dice, 40) for _ in range(9)]
    for number, ids in enumerate(texts):
        reply = ask(server, KEYS[number % 3], prompt=ids, session_id=f"s{number}", max_tokens=4, **GREEDY)
        texts[number] = ids + choices(reply)[0]["token_ids"]
    connections = [begin(server, KEYS[number % 3], prompt=[number + 1], session_id=f"s{number}",
                         max_tokens=GROWN, **GREEDY) for number in range(len(texts))]
    wait_until(lambda: server.metric("regla_texts_set_aside_total") > 3, "texts are set aside")
    server.process.kill()
    server.process.wait()
    for connection in connections:
        connection.close()
    again = serve(server_factory, **flags)
    for number, ids in enumerate(texts):
        held = again.get(f"/v1/sessions/s{number}/tokens", headers={"X-Api-Key": KEYS[number % 3]}).json()
        assert held["tokens"][:len(ids)] == ids
        reply = ask(again, KEYS[number % 3], prompt=[8], session_id=f"s{number}", max_tokens=8, **GREEDY)
        same(choices(reply)[0], cold(quiet, held["tokens"] + [8]))


def test_a_stream_that_is_set_aside_goes_on(server_factory):
    """One place, and two keys: each has its turns."""
    server = serve(server_factory, max_running=1)
    fields = {"max_tokens": 1500, "ignore_eos": True, "seed": 3}
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {**fields, "prompt": "x", "stream": True},
                                         [f"X-Api-Key: {KEYS[0]}"]))
        reply = RawReply(connection)
        reply.head()
        for number in range(4):
            assert len(choices(ask(server, KEYS[1], prompt=[40 + number], max_tokens=5))) == 1
        streamed = text_of(read_frames(b"".join(reply.chunks())))
    assert server.metric("regla_texts_set_aside_total") > 0
    assert streamed == server.complete(prompt="x", **fields)["choices"][0]["text"]


@pytest.mark.builds("dev")
@pytest.mark.parametrize("hog", [{"n": 128, "max_tokens": 300}, {"prompt": [[n] for n in range(200)]},
                                 {"prompt": [[n] * 700 for n in range(60)], "n": 2, "max_tokens": 3000}],
                         ids=["n", "prompts", "long"])
def test_a_short_request_of_another_key_begins_at_once(server_factory, hog):
    server = serve(server_factory, max_running=8, state_memory="40M")
    with begin(server, KEYS[0], **{**ENDLESS, "max_tokens": 5000, **hog}):
        wait_until(lambda: server.metric("regla_states") >= 8, "it has all places")
        waits = []
        for number in range(5):
            reply = ask(server, KEYS[1], prompt=[50 + number] * 20, max_tokens=2)
            waits.append(reply.json()["timings"]["queue_ms"])
        assert server.metric("regla_requests_running") == 1  # the first still runs
    assert sorted(waits)[2] < 300 * SLOWNESS, waits


@pytest.mark.builds("dev")
def test_a_text_to_the_limit_leaves_room(server_factory):
    """It takes what it has come to, and never the share of others."""
    server = serve(server_factory, state_memory="6M")
    error = server.refuse(400, prompt="x", max_tokens=10**9)
    limit = int(error["message"].split("length is ")[1].split()[0])
    budget = server.metric("regla_state_memory_budget_bytes")
    # Each is as long as may be: the second can only begin where the first has left.
    longest = {"prompt": [[7] * (limit - 40), [8] * (limit - 50)], "max_tokens": 40, "ignore_eos": True}
    with begin(server, KEYS[0], **longest):
        wait_until(lambda: server.metric("regla_memory_reserved_bytes") > 0.9 * budget, "it has all it may")
        for number in range(3):
            reply = ask(server, KEYS[1], prompt=[50 + number] * 30, max_tokens=3)
            assert reply.json()["timings"]["queue_ms"] < 500 * SLOWNESS
        assert server.metric("regla_requests_running") == 1
    assert choices(ask(server, KEYS[1], prompt=[9] * (limit - 1), max_tokens=1))


@pytest.mark.builds("dev")
def test_a_full_queue_is_full_for_its_key(server_factory):
    server = serve(server_factory, max_running=1, max_queue=4)
    with begin(server, KEYS[0], **ENDLESS):
        wait_until(lambda: server.metric("regla_requests_running") == 1, "it runs")
        waiting = [begin(server, KEYS[0], **ENDLESS) for _ in range(4)]
        wait_until(lambda: server.metric("regla_requests_waiting") == 4, "they wait")
        assert ask(server, KEYS[0], prompt="x", max_tokens=1).status_code == 429
        assert ask(server, KEYS[1], prompt="x", max_tokens=1).status_code == 200
        for connection in waiting:
            connection.close()


@pytest.mark.builds("dev")
def test_without_keys_addresses_share(server_factory):
    server = server_factory(max_running=1, max_queue=2)

    def complete_from(address):
        with socket.create_connection(("127.0.0.1", server.port), 60, (address, 0)) as connection:
            connection.sendall(request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 1}))
            return RawReply(connection).head()[0]
    streams = [server.connect() for _ in range(3)]
    for connection in streams:
        begin_stream(connection, prompt="x", max_tokens=200000, ignore_eos=True) \
            if connection is streams[0] else connection.sendall(request_bytes("/v1/completions", ENDLESS))
    wait_until(lambda: server.metric("regla_requests_waiting") == 2, "they wait")
    assert complete_from("127.0.0.1") == 429
    assert complete_from("127.0.0.2") == 200
    for connection in streams:
        connection.close()


@pytest.mark.builds("dev")
def test_two_keys_with_long_queues_get_equal_parts(server_factory):
    server = serve(server_factory, max_running=4)
    ended = {key: 0 for key in KEYS[:2]}
    over = threading.Event()

    def keep_asking(number):
        key = KEYS[0] if number < 14 else KEYS[1]
        while not over.is_set():
            choices(ask(server, key, prompt=[number + 1] * 30, max_tokens=500, ignore_eos=True))
            ended[key] += 1
            if min(ended.values()) >= 20 and sum(ended.values()) >= 60:
                over.set()
    in_threads(20, keep_asking)
    least, most = sorted(ended.values())
    assert most < 2 * least, ended
