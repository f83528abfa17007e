# SPDX-License-Identifier: Apache-2.0
"""--share-prefixes: what one server has computed of a prompt, another takes from the store that they
share (server/store/protocol.md, "Prefixes of prompts")."""

import time

import pytest

import harness
from harness import wait_until
from redis_store import LEASE, Cluster, Redis, start_refused
from session_helpers import GREEDY, Session, cached, cold, same

# A grid of 64 tokens: the prompt has 9 whole ones, and 24 tokens after them.
INTERVAL = 64
PROMPT = [5 + i * i % 200 for i in range(600)]
DEEPEST = 576


def serve(server_factory, location, **flags):
    flags = {"store": location, "lease": LEASE, "share_prefixes": True,
             "checkpoint_interval": INTERVAL, **flags}
    return server_factory(**{name: value for name, value in flags.items() if value is not False})


@pytest.fixture
def two(own_redis, server_factory):
    return [serve(server_factory, own_redis.location) for _ in range(2)]


def ask(server, prompt=PROMPT, **fields):
    return server.complete(**{"prompt": prompt, "max_tokens": 8, **GREEDY, **fields})


def prefixes(server, event):
    return server.metric("regla_store_prefixes_total", event=event)


def settled(server):
    wait_until(lambda: server.metric("regla_store_operations_waiting", kind="checkpoint") == 0,
               "nothing waits")


def publish(server, prompt=PROMPT, **fields):
    """Computes it, and waits until what it shares is in the store."""
    reply = ask(server, prompt, **fields)
    settled(server)
    return reply


def heads(redis):
    return redis.keys("*:prefix")


def test_another_server_takes_what_one_has_computed(two, own_redis):
    first = publish(two[0])
    assert cached(first) == 0
    head, = heads(own_redis)  # one state for a prompt that came once
    assert 0 < own_redis.ask("TTL", head) <= 24 * 3600
    reply = ask(two[1])
    assert cached(reply) == DEEPEST
    same(reply["choices"][0], first["choices"][0])
    same(reply["choices"][0], cold(two[1], PROMPT))
    assert prefixes(two[1], "found") == prefixes(two[1], "read") == 1
    read = two[1].metric("regla_store_prefix_bytes_total", event="read")
    assert read == two[0].metric("regla_store_prefix_bytes_total", event="written") > 0
    # From then on it has it itself.
    assert cached(ask(two[1])) == len(PROMPT) and prefixes(two[1], "found") == 1


def test_what_a_second_text_begins_with_is_shared(two, own_redis):
    """The first prompt wrote a state behind the part that all have; the second text one on it."""
    common = PROMPT[:330]
    publish(two[0], common + [1] * 300)
    assert cached(ask(two[1], common + [2] * 300)) == 0
    settled(two[1])
    reply = publish(two[0], common + [3] * 300)
    assert cached(reply) == 320
    reply = ask(two[1], common + [4] * 300)
    local = cached(reply)  # the second server has had such a text itself
    assert local == 320
    third = [3] + common  # nobody has begun so
    assert cached(ask(two[1], third + [4] * 300)) == 0


def test_a_third_server_takes_the_common_part(two, own_redis, server_factory):
    common = PROMPT[:330]
    for end in (1, 3):
        publish(two[0], common + [end] * 300)
    third = serve(server_factory, own_redis.location)
    reply = ask(third, common + [4] * 300)
    assert cached(reply) == 320
    same(reply["choices"][0], cold(third, common + [4] * 300))


def test_a_session_may_begin_with_it(two):
    publish(two[0])
    session = Session(two[1], "begins", [])
    reply = two[1].complete(prompt=PROMPT, session_id="begins", max_tokens=8, **GREEDY)
    assert cached(reply) == DEEPEST
    session.ids = PROMPT + reply["choices"][0]["token_ids"]
    session.append([7, 8, 9])


def test_what_a_session_holds_is_not_shared(two, own_redis):
    """It goes with the session."""
    two[0].complete(prompt=PROMPT, session_id="own", max_tokens=8, **GREEDY)
    settled(two[0])
    assert not heads(own_redis)
    assert cached(ask(two[1])) == 0


def test_owners_and_salts_are_apart(own_redis, server_factory):
    servers = [serve(server_factory, own_redis.location, api_key="one,two") for _ in range(2)]

    def of(server, key, **fields):
        server.http.headers["Authorization"] = f"Bearer {key}"
        return publish(server, **fields)
    servers[0].http.headers["Authorization"] = servers[1].http.headers["Authorization"] = "Bearer one"
    of(servers[0], "one", cache_salt="a")
    assert cached(of(servers[1], "two", cache_salt="a")) == 0
    assert cached(of(servers[1], "one", cache_salt="b")) == 0
    assert cached(of(servers[1], "one")) == 0
    assert cached(of(servers[1], "one", cache_salt="a")) == DEEPEST


def test_nobody_guesses_a_name(two, own_redis):
    """Names are keyed by the store's secret: with another secret the same prompt has another."""
    publish(two[0])
    name, = heads(own_redis)
    own_redis.ask("DEL", *own_redis.keys("*"))
    assert own_redis.ask("SET", "regla:secret", "0" * 32) == "OK"
    assert name not in heads(own_redis)


@pytest.mark.builds("dev", "asan")
@pytest.mark.parametrize("harm", ["torn", "short", "head", "gone", "other"])
def test_what_is_damaged_is_computed(two, own_redis, harm):
    first = publish(two[0])
    head, = heads(own_redis)
    piece = head + b":0"
    if harm == "torn":
        own_redis.ask("SETRANGE", piece, 300, b"damage")
    elif harm == "short":
        own_redis.ask("SET", piece, own_redis.ask("GET", piece)[:-9])
    elif harm == "head":
        own_redis.ask("SET", head, "99999999999999")
    elif harm == "gone":  # as when the store needs room
        own_redis.ask("DEL", piece)
    else:  # whole, and of another prompt
        publish(two[0], PROMPT[::-1])
        other, = set(heads(own_redis)) - {head}
        own_redis.ask("SET", piece, own_redis.ask("GET", other + b":0"))
    reply = ask(two[1])
    assert cached(reply) == 0
    same(reply["choices"][0], first["choices"][0])
    assert "a shared prefix cannot be read" in two[1].whole_log()
    assert prefixes(two[1], "found") == 1 and prefixes(two[1], "read") == 0
    # It is removed, and written again by whoever has computed it.
    settled(two[1])
    assert own_redis.ask("GET", head) == own_redis.ask("GET", heads(own_redis)[0])
    assert own_redis.ask("STRLEN", piece) == int(own_redis.ask("GET", head))


def test_what_the_store_has_dropped_is_computed(two, own_redis):
    publish(two[0])
    own_redis.ask("DEL", *own_redis.keys("*:prefix*"))
    assert cached(ask(two[1])) == 0
    assert prefixes(two[1], "missing") == 1
    assert " warn " not in two[1].whole_log()


def test_a_store_that_is_away(two, own_redis):
    first = publish(two[0])
    own_redis.kill()
    for server in two:
        reply = ask(server, PROMPT[1:])
        assert cached(reply) == 0
    same(ask(two[1])["choices"][0], first["choices"][0])
    own_redis.start()
    wait_until(lambda: two[1].metric("regla_store_away") == 0, "it is back")
    # A pause after the failure has to pass, too.
    salt = iter(range(10**6))
    wait_until(lambda: ask(two[1], cache_salt=str(next(salt))) and prefixes(two[1], "missing") >= 1,
               "it is asked again")


def test_a_store_that_does_not_answer(two, own_redis):
    """A request waits for it a little, not for its limit of time; the next ones not at all."""
    own_redis.pause()
    try:
        began = time.monotonic()
        assert cached(ask(two[1])) == 0
        assert time.monotonic() - began >= 0.5
        others = time.monotonic()
        for i in range(3):
            assert cached(ask(two[1], [i, *PROMPT])) == 0
        assert time.monotonic() - others < 3 * 2 * harness.SLOWNESS
    finally:
        own_redis.resume()
    settled(two[1])


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
def test_sessions_keep_half_of_the_store(tmp_path, server_factory, policy):
    """What is kept for a time, too: what has an expiry would go for prefixes."""
    redis = Redis(tmp_path, maxmemory=10**8)
    try:
        redis.ask("CONFIG", "SET", "maxmemory-policy", policy)
        two = [serve(server_factory, redis.location) for _ in range(2)]
        used = int(redis.ask("INFO", "memory").decode().split("used_memory:")[1].split()[0])
        redis.ask("CONFIG", "SET", "maxmemory", used * 3 // 2)
        publish(two[0])
        assert not heads(redis) and prefixes(two[0], "written") == 0
        assert cached(ask(two[1])) == 0
        settled(two[1])
        redis.ask("CONFIG", "SET", "maxmemory", "100mb")
        publish(two[1], PROMPT[1:])
        assert len(heads(redis)) == 1 and prefixes(two[1], "written") == 1
    finally:
        redis.stop()


def test_memory_for_what_is_on_its_way(own_redis, server_factory):
    """Without room for it in memory a prompt is computed."""
    publish(serve(server_factory, own_redis.location))
    small = serve(server_factory, own_redis.location, host_state_memory=0)
    assert cached(ask(small)) == 0


def test_other_builds_have_others(own_redis, server_factory):
    """Their states have other bits."""
    publish(serve(server_factory, own_redis.location))
    assert cached(ask(serve(server_factory, own_redis.location, kv="f16"))) == 0
    assert cached(ask(serve(server_factory, own_redis.location))) == DEEPEST


def test_without_the_flag_nothing_is_shared(own_redis, server_factory):
    plain = serve(server_factory, own_redis.location, share_prefixes=False)
    publish(plain)
    assert not heads(own_redis)
    publish(serve(server_factory, own_redis.location))
    assert heads(own_redis) and cached(ask(plain, PROMPT[:590])) == DEEPEST  # its own
    other = serve(server_factory, own_redis.location, share_prefixes=False)
    assert cached(ask(other)) == 0


def test_long_prompts_ask_for_few(two, own_redis):
    """Beyond 16 intervals the grid is coarser."""
    long = (PROMPT * 4)[:2300]
    publish(two[0], long)
    assert cached(ask(two[1], long)) == 32 * INTERVAL
    commands = own_redis.ask("INFO", "commandstats").decode()
    calls = int(commands.split("cmdstat_exists:calls=")[1].split(",")[0])
    assert calls < 2 * 30


def test_prompts_side_by_side(two, own_redis):
    """Of several that wait for the same one is read."""
    publish(two[0])
    reply = two[1].complete(prompt=[PROMPT] * 4, max_tokens=2, **GREEDY)
    assert len(reply["choices"]) == 4
    assert prefixes(two[1], "read") == 1


def test_a_cluster_has_them_too(tmp_path, server_factory):
    cluster = Cluster(tmp_path)
    try:
        two = [serve(server_factory, cluster.location) for _ in range(2)]
        for i in range(4):
            publish(two[0], [i, *PROMPT])
        for i in range(4):
            assert cached(ask(two[1], [i, *PROMPT])) == DEEPEST
        assert len(cluster.keys("*:prefix")) >= 4
    finally:
        cluster.stop()


@pytest.mark.parametrize("flags, said", [
    ({}, "--share-prefixes: expected --store"),
    ({"store": "redis://127.0.0.1:1", "store_states": "off"}, "expected --store-states on"),
    ({"store": "redis://127.0.0.1:1", "no_prefix_cache": True}, "expected --prefix-cache"),
])
@pytest.mark.builds("dev", "asan")
def test_what_it_needs(flags, said):
    assert said in start_refused(**flags, share_prefixes=True)
