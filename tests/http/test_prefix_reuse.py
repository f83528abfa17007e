# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin on the states of others: the same digits as from nothing, only what is new is
computed, budgets hold, and nobody sees what is another's."""

import json
import random
import threading

import pytest

from harness import GOLDEN, SLOWNESS, RawReply, request_bytes, shipped_model, wait_until
from session_helpers import cached, reason
from test_concurrency import in_threads

INTERVAL = 16
# Full, block and sliding windows, running maxima, no KV at all, and what is served.
MODELS = [GOLDEN / name for name in ("softmax_rope", "regla", "hybrid_regla", "transnormer_t1",
                                     "block_kerple_dpfp", "sliding_t5", "gla", "deltanet",
                                     "lfm2", "delta_qwen3_5_text", "mamba2", "rwkv7", "granitemoehybrid",
                                     "falcon_h1")]
if SLOWNESS > 1:
    MODELS = MODELS[2:3]
elif shipped_model():
    MODELS.append(shipped_model())
# Long enough for others to come while it is computed; a sanitizer makes that of less.
LONG = 6000 if SLOWNESS == 1 else 1500


def vocab_size(model):
    return json.loads((model / "config.json").read_text())["vocab_size"]


def some_ids(dice, count, vocab=200):
    return [dice.randrange(1, vocab) for _ in range(count)]


def fields(prompt, **more):
    return {"prompt": prompt, "max_tokens": 10, "seed": 11, "temperature": 0.8, "logprobs": 2,
            "ignore_eos": True, "return_token_ids": True, **more}


def state_need(server, tokens):
    """Bytes of a text of so many tokens."""
    model = server.get("/v1/models").json()["data"][0]
    return model["state_bytes_per_text"] + (tokens + 64) * model["kv_bytes_per_token"]


def family_of_prompts(dice, vocab, count):
    """Each begins as an earlier one does, up to a random cut."""
    prompts = [some_ids(dice, 90, vocab)]
    while len(prompts) < count:
        earlier = dice.choice(prompts)
        prompts.append(earlier[:dice.randrange(len(earlier) + 1)]
                       + some_ids(dice, dice.randrange(1, 40), vocab))
    return prompts


def check_accounts(server):
    """Idle: free + cached is the budget, and nothing is used."""
    values = server.metrics()

    def value(name, **labels):
        wanted = set(labels.items())
        return sum(v for (n, pairs), v in values.items() if n == name and wanted <= pairs)
    cached_bytes = value("regla_state_bytes", tier="device")
    assert server.busy() == {}
    assert value("regla_state_memory_free_bytes") + cached_bytes == value(
        "regla_state_memory_budget_bytes")
    assert value("regla_state_bytes", tier="host") <= value(
        "regla_state_budget_bytes", tier="host")


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_cold_cached_evicted_and_dropped_are_the_same(server_factory, model):
    cold = server_factory(model=model, no_prefix_cache=True)
    need = int(state_need(cold, 200))
    warm = server_factory(model=model, checkpoint_interval=INTERVAL)
    evicting = server_factory(model=model, checkpoint_interval=INTERVAL, state_memory=3 * need)
    dropping = server_factory(model=model, checkpoint_interval=INTERVAL, state_memory=3 * need,
                              host_state_memory=2 * need)
    forgetful = server_factory(model=model, state_memory=3 * need, host_state_memory=0)
    dice = random.Random(model.name)
    prompts = family_of_prompts(dice, vocab_size(model), 12)
    reused = 0
    for number, prompt in enumerate(prompts + dice.sample(prompts, 4)):
        wanted = fields(prompt, n=1 + number % 3, seed=number)
        expected = cold.complete(**wanted)
        assert cached(expected) == 0 and reason(expected) == "disabled"
        for server in (warm, evicting, dropping, forgetful):
            reply = server.complete(**wanted)
            assert reply["choices"] == expected["choices"], (number, server.log_path)
            assert 0 <= cached(reply) <= len(prompt)
            reused += cached(reply) > 0
    assert reused > len(prompts)
    assert evicting.metric("regla_state_evictions_total") > 0
    assert forgetful.metric("regla_state_dropped_total") > 0
    for server in (warm, evicting, dropping, forgetful):
        check_accounts(server)
    assert cold.metric("regla_checkpoints") == 0


def test_reasons(server_factory):
    server = server_factory()
    dice = random.Random(1)
    text, other = some_ids(dice, 100), some_ids(dice, 50)
    reply = server.complete(**fields(text, max_tokens=1))
    assert (cached(reply), reason(reply)) == (0, "no_checkpoint")
    reply = server.complete(**fields(text, max_tokens=1))
    assert (cached(reply), reason(reply)) == (100, "none")
    reply = server.complete(**fields(text + other, max_tokens=1))
    assert (cached(reply), reason(reply)) == (100, "none")
    reply = server.complete(**fields(text + other[::-1], max_tokens=1))
    assert (cached(reply), reason(reply)) == (100, "diverged")
    reply = server.complete(**fields(text[:60] + other, max_tokens=1))
    assert (cached(reply), reason(reply)) == (0, "no_checkpoint")
    # Where two prompts part a checkpoint was kept.
    reply = server.complete(**fields(text[:60] + other[::-1], max_tokens=1))
    assert cached(reply) == 60
    lookups = {name: server.metric("regla_cache_lookups_total", result=name)
               for name in ("none", "no_checkpoint", "diverged", "evicted", "disabled")}
    assert lookups == {"none": 2, "no_checkpoint": 2, "diverged": 2, "evicted": 0, "disabled": 0}
    assert server.metric("regla_cached_tokens_total") == 100 + 100 + 100 + 60


def test_what_was_evicted_is_said_to_be(server_factory):
    probe = server_factory()
    server = server_factory(state_memory=int(2 * state_need(probe, 130)), host_state_memory=0)
    dice = random.Random(2)
    texts = [some_ids(dice, 100) for _ in range(4)]
    for text in texts:
        server.complete(**fields(text, max_tokens=1))
    reply = server.complete(**fields(texts[0], max_tokens=1))
    assert (cached(reply), reason(reply)) == (0, "evicted")


def test_scored_prompts_are_not_reused(server):
    text = some_ids(random.Random(3), 80)
    first = server.complete(**fields(text, echo=True))
    again = server.complete(**fields(text, echo=True))
    assert first["choices"] == again["choices"]
    assert (cached(again), reason(again)) == (0, "disabled")


def test_streams_say_what_was_cached(server):
    text = some_ids(random.Random(4), 80)
    frames = [server.stream(**fields(text, stream_options={"include_usage": True}))
              for _ in range(2)]
    assert [cached(each[-1]) for each in frames] == [0, 80]
    tokens = [[choice["token_ids"] for frame in each for choice in frame["choices"]]
              for each in frames]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("edited", [False, True], ids=["resent", "last message edited"])
@pytest.mark.parametrize("model", ["regla", "hybrid_regla"])
def test_a_growing_conversation_computes_what_is_new(server_factory, model, edited):
    """30 turns, the whole conversation sent each time."""
    interval = 64
    server = server_factory(model=GOLDEN / model, checkpoint_interval=interval)
    dice = random.Random(5)
    conversation = []
    for turn in range(30 if SLOWNESS == 1 else 12):
        message = some_ids(dice, 30)
        if edited and turn:
            # The user changes their mind about what they have just sent.
            server.complete(**fields(conversation + message[:20] + some_ids(dice, 10)))
        reply = server.complete(**fields(conversation + message))
        computed = reply["usage"]["prompt_tokens"] - cached(reply)
        # The last token that was generated has not been computed before.
        assert computed <= len(message) + 1 + interval, (turn, reply["usage"])
        if not edited and turn:
            assert computed == len(message) + 1
        conversation += message + reply["choices"][0]["token_ids"]
    cold = server_factory(model=GOLDEN / model, no_prefix_cache=True)
    assert cold.complete(**fields(conversation))["choices"] == server.complete(
        **fields(conversation))["choices"]


def test_equal_prompts_in_flight_are_computed_once(server_factory):
    server = server_factory(prefill_chunk=32, checkpoint_interval=10000)
    text = some_ids(random.Random(6), LONG // 3)
    replies = in_threads(8, lambda number: server.complete(**fields(text, n=1 + number % 2)))
    computed = sorted(len(text) - cached(reply) for reply in replies)
    assert computed == [0] * 7 + [len(text)]
    first = [reply["choices"][0] for reply in replies]
    assert all(choice == first[0] for choice in first)
    check_accounts(server)


def test_pages_that_choices_share_count_once(server_factory):
    """What one request held is no more than what all texts together ever did."""
    server = server_factory()
    server.complete(**fields(some_ids(random.Random(8), 300), n=4))
    held = server.metric("regla_generation_peak_memory_bytes")
    assert 0 < held <= sum(server.metric("regla_memory_peak_bytes", component=name)
                           for name in ("recurrent_state", "kv_cache"))


def test_prompts_in_flight_that_begin_alike_share_their_beginning(server_factory):
    server = server_factory(prefill_chunk=32, checkpoint_interval=10000)
    dice = random.Random(7)
    shared = some_ids(dice, LONG // 4)
    prompts = [shared + some_ids(dice, 20 + number) for number in range(6)]
    replies = in_threads(6, lambda number: server.complete(**fields(prompts[number])))
    computed = sum(len(prompt) - cached(reply) for prompt, reply in zip(prompts, replies))
    # Who comes when the first has passed the fork computes all: at most a few do.
    assert computed < 6 * len(shared) / 2
    alone = server_factory(no_prefix_cache=True)
    for prompt, reply in zip(prompts, replies):
        assert alone.complete(**fields(prompt))["choices"] == reply["choices"]
    check_accounts(server)


def test_those_who_wait_go_on_when_their_leader_is_cancelled(server_factory):
    """Twice: whom the second of them computes for, the others wait for."""
    server = server_factory(prefill_chunk=8, checkpoint_interval=100000)
    text = some_ids(random.Random(8), LONG)
    leaders = []
    for _ in range(2):
        leader = server.connect()
        leader.sendall(request_bytes("/v1/completions", fields(text, stream=True)))
        leaders.append(leader)
        wait_until(lambda: server.metric("regla_requests_running") == len(leaders), "it runs")
    results = [None] * 4

    def ask(number):
        results[number] = server.complete(**fields(text))
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.metric("regla_requests_running") == 6, "all wait")
    for leader in leaders:
        leader.close()
    for thread in threads:
        thread.join()
    assert all(result["choices"] == results[0]["choices"] for result in results)
    # Everything that was computed before the leaders left is used.
    assert sum(LONG - cached(result) for result in results) <= LONG
    server.wait_idle()
    check_accounts(server)


def test_a_request_that_was_cut_off_leaves_what_it_has_computed(server_factory):
    server = server_factory(prefill_chunk=16, checkpoint_interval=100000)
    text = some_ids(random.Random(9), 30)
    connection = server.connect()
    connection.sendall(request_bytes("/v1/completions", fields(
        text, max_tokens=100000, stream=True)))
    reply = RawReply(connection)
    reply.head()
    ids, rest = [], b""
    for chunk in reply.chunks():
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            ids += json.loads(frame[len(b"data: "):])["choices"][0]["token_ids"]
        if len(ids) >= 40:
            break
    connection.close()
    server.wait_idle()
    again = server.complete(**fields(text + ids))
    assert cached(again) >= len(text)
    more = server.complete(**fields(text + ids + some_ids(random.Random(10), 5)))
    assert cached(more) >= len(text + ids) - 1
    check_accounts(server)


def test_keys_and_salts_share_nothing(server_factory):
    server = server_factory(api_key="one,two", wait=False)
    server.http.headers["Authorization"] = "Bearer one"
    server.wait_ready()
    text = some_ids(random.Random(11), 64)

    def ask(key, **more):
        reply = server.post("/v1/completions", fields(text, **more),
                            headers={"Authorization": f"Bearer {key}"})
        assert reply.status_code == 200, reply.text
        return cached(reply.json())
    assert ask("one") == 0
    assert ask("one") == 64
    assert ask("two") == 0
    assert ask("two") == 64
    assert ask("one", cache_salt="a") == 0
    assert ask("one", cache_salt="b") == 0
    assert ask("two", cache_salt="a") == 0
    assert ask("one", cache_salt="a") == 64
    # The sums of /metrics tell a key only how much was cached of all.
    assert server.metric("regla_cached_tokens_total") == 3 * 64


def test_budgets_hold_at_every_sample(server_factory):
    """Clients beyond what the budgets hold; what is published never passes them."""
    probe = server_factory()
    need = int(state_need(probe, 300))
    host = 2 * need
    server = server_factory(state_memory=4 * need, host_state_memory=host, checkpoint_interval=32)
    budget = server.metric("regla_state_memory_budget_bytes")
    done = threading.Event()
    worst = []

    def sample():
        while not done.is_set():
            values = server.metrics()

            def value(name, **labels):
                wanted = set(labels.items())
                return sum(v for (n, p), v in values.items() if n == name and wanted <= p)
            used = value("regla_memory_reserved_bytes") + value("regla_state_bytes", tier="device")
            if used > budget or value("regla_state_bytes", tier="host") > host:
                worst.append(values)
            if value("regla_state_memory_free_bytes") < 0:
                worst.append(values)
    sampler = threading.Thread(target=sample)
    sampler.start()

    def client(number):
        dice = random.Random(number)
        base = some_ids(random.Random(number % 3), 120)
        for _ in range(6):
            prompt = base[:dice.randrange(1, 120)] + some_ids(dice, dice.randrange(1, 60))
            reply = server.complete(**fields(prompt, n=dice.choice([1, 1, 2]), max_tokens=40))
            assert len(reply["choices"][0]["token_ids"]) == 40
    try:
        in_threads(8, client)
    finally:
        done.set()
        sampler.join()
    assert worst == []
    check_accounts(server)


def test_the_last_byte_finds_the_accounts_in_order(server):
    for number in range(20):
        server.complete(**fields(some_ids(random.Random(number), 40), n=2))
        check_accounts(server)


def test_prompts_are_computed_until_the_last_one_is(server_factory):
    """Nothing is generated but each text's first token: all of the time is the prompts'."""
    server = server_factory(max_step_tokens=64)
    timings = server.complete(prompt=[some_ids(random.Random(n), 600) for n in range(8)],
                              max_tokens=1, temperature=0)["timings"]
    assert timings["decode_ms"] < timings["prefill_ms"] / 4
    assert timings["decode_tokens_per_second"] is None
    computed = timings["prefill_tokens_per_second"] * timings["prefill_ms"] / 1e3
    assert computed == pytest.approx(8 * 600, rel=0.01)
    timings = server.complete(**fields([2, 7, 1, 8], n=3, max_tokens=9))["timings"]
    generated = timings["decode_tokens_per_second"] * timings["decode_ms"] / 1e3
    assert generated == pytest.approx(3 * 8, rel=0.01)


def test_speed_is_of_what_was_computed(server):
    first, again = (server.complete(**fields([3, 1, 4, 1, 5])) for _ in range(2))
    assert cached(first) == 0 and first["timings"]["prefill_tokens_per_second"] > 0
    assert cached(again) == 5 and again["timings"]["prefill_tokens_per_second"] is None
