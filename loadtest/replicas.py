#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What servers with one store cost and bring, in five parts:

  move        the first token of a session that another server takes over: its state comes from the
              store, or is computed again where that has dropped it; beside the server that had it
  prefixes    the first token of a prompt that another server has computed, with --share-prefixes and
              without
  overhead    a turn in --store (appendfsync always and everysec) beside one in --state-dir and in memory
  throughput  1, 2 and 3 servers with clients of their own, as fast as they can and with a slow engine;
              and what a turn takes of the store's and the proxy's processor
  affinity    how often HAProxy sends a turn to the server that has the state, as
              deploy/proxy/haproxy-replicas.cfg says it, and in turns

deploy/deps.sh test and proxies unpack Redis and HAProxy where the machine has none."""

import argparse
import http.client
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from measure import ROOT, Failure, find_binary, machine, median, serving, thread_seconds

import harness
from redis_store import Redis
from replica_set import ReplicaSet
from stress_helpers import some_ids

TINY = ROOT / "tests" / "golden" / "hybrid_regla"
GREEDY = {"temperature": 0, "ignore_eos": True}
TINY_VOCABULARY, PRESET_VOCABULARY = 200, 50000
MOVE_SECONDS = 600
OURS = ("evalsha", "set", "get", "mget", "zadd", "unlink", "expire")  # what servers call


@contextmanager
def stored(**settings):
    with tempfile.TemporaryDirectory() as folder:
        redis = Redis(folder, **settings)
        try:
            yield redis
        finally:
            redis.stop()


@contextmanager
def replicas(count, **options):
    with tempfile.TemporaryDirectory() as folder:
        running = ReplicaSet(Path(folder), TINY, count=count, log_level="warn", **options)
        try:
            yield running
        finally:
            running.stop()


class Client:
    """A connection that stays, and costs little."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOVE_SECONDS)

    def turn(self, name, prompt, **fields):
        """(seconds, the reply's JSON, the server that the proxy names)"""
        return self.ask(prompt, session_id=name, **fields)

    def ask(self, prompt, **fields):
        body = json.dumps({"prompt": prompt, "max_tokens": 1, **GREEDY, **fields})
        began = time.monotonic()
        self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        said = reply.read()
        seconds = time.monotonic() - began
        if reply.status != 200:
            raise Failure(f"a turn: {reply.status} {said[:300]!r}")
        return seconds, json.loads(said), reply.headers.get("X-Served")


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def percentile(values, share):
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def table(title, rows):
    """The rows' own names are the columns."""
    print(f"\n{title}")
    columns = list(rows[0])
    cells = [columns] + [[f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name])
                          for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)), flush=True)


# ---- move ----

def states_of(redis):
    return {head: redis.ask("GET", head) for head in redis.keys("*:state")}


def turn_and_state(redis, client, name, prompt):
    """A turn whose state is in the store when this returns: (seconds, reply, bytes of the state). The
    row says with the turn whether there will be one; 0: there will not."""
    before = states_of(redis)
    seconds, reply, _ = client.turn(name, prompt)
    key, = redis.keys(f"*:{name}}}")
    if int(redis.ask("HGET", key, "state")) == 0:
        return seconds, reply, 0
    new = harness.wait_until(lambda: states_of(redis).keys() - before, "the state is in the store")
    return seconds, reply, int(redis.ask("GET", new.pop()))


def drop_states(redis):
    for key in redis.keys("*:state*"):
        redis.ask("DEL", key)


def move_once(redis, ports, name, prompt, dropped):
    """The times of a session's turns: the first on one server, two on another."""
    one, other = (Client(port) for port in ports)
    first, _, size = turn_and_state(redis, one, name, prompt)
    if dropped:
        drop_states(redis)
    moved, reply, _ = turn_and_state(redis, other, name, [PRESET_VOCABULARY - 1])
    found = cached(reply)
    same, reply, _ = turn_and_state(redis, other, name, [PRESET_VOCABULARY - 2])
    if cached(reply) < len(prompt):
        raise Failure(f"the same server had {cached(reply)} of {len(prompt)} tokens")
    drop_states(redis)
    return {"first": first, "moved": moved, "same": same, "cached": found, "bytes": size}


def move_model(binary, preset, tokens, options):
    dice = random.Random(tokens)
    with stored() as redis:
        flags = {"preset": preset, "weights": options.weights, "store": redis.location}
        with serving(binary, **flags) as one, serving(binary, **flags) as other:
            def measure(number, dropped):
                return move_once(redis, [one.port, other.port], f"moves-{number}",
                                 some_ids(dice, tokens, PRESET_VOCABULARY), dropped)
            runs = [(measure(2 * i, False), measure(2 * i + 1, True)) for i in range(options.repeat)]
    moved, dropped = [run for run, _ in runs], [run for _, run in runs]
    return {"preset": preset, "tokens": tokens, "state_mib": moved[0]["bytes"] / 2**20,
            "cached_after_move": moved[0]["cached"], "cached_if_dropped": dropped[0]["cached"],
            "moved_s": median([run["moved"] for run in moved]),
            "computed_s": median([run["moved"] for run in dropped]),
            "same_server_s": median([run["same"] for run in moved + dropped]),
            "first_turn_s": median([run["first"] for run in moved + dropped])}


def move(binary, options):
    rows = [move_model(binary, preset, tokens, options) for preset, tokens in options.models]
    table("move: seconds to the first token (a state_mib of 0 is too large to be kept in the store)", rows)
    return rows


# ---- prefixes ----

def prefixes_model(binary, preset, tokens, options):
    """Each prompt goes to a server, to another that shares prefixes, and to one that does not."""
    dice = random.Random(tokens)
    runs = []
    with stored() as redis:
        flags = {"preset": preset, "weights": options.weights, "store": redis.location}
        with (serving(binary, **flags, share_prefixes=True) as one,
              serving(binary, **flags, share_prefixes=True) as other, serving(binary, **flags) as plain):
            clients = [Client(server.port) for server in (one, other, plain)]
            for _ in range(options.repeat):
                prompt = some_ids(dice, tokens, PRESET_VOCABULARY)
                heads = set(redis.keys("*:prefix"))
                asked = [clients[0].ask(prompt)]
                head, = harness.wait_until(lambda: set(redis.keys("*:prefix")) - heads,
                                           "its state is in the store")
                asked += [client.ask(prompt) for client in clients[1:]]
                runs.append(([seconds for seconds, *_ in asked], cached(asked[1][1]),
                             int(redis.ask("GET", head))))
    times = [median(column) for column in zip(*(seconds for seconds, *_ in runs))]
    return {"preset": preset, "tokens": tokens, "state_mib": runs[0][2] / 2**20, "cached": runs[0][1],
            "computed_s": times[0], "shared_s": times[1], "not_shared_s": times[2]}


def prefixes(binary, options):
    rows = [prefixes_model(binary, *options.models[0], options)]
    table("prefixes: seconds to the first token", rows)
    return rows


# ---- overhead ----

def counts_of(redis):
    """What the store has done since its start, by name."""
    told = {}
    for section in ("stats", "commandstats"):
        for line in redis.ask("INFO", section).decode().splitlines():
            name, _, value = line.partition(":")
            told[name] = value
    calls = {name.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
             for name, value in told.items() if name.startswith("cmdstat_")}
    return Counter({"bytes_in": int(told["total_net_input_bytes"]),
                    "bytes_out": int(told["total_net_output_bytes"]),
                    **{f"{name} calls": calls.get(name, 0) for name in OURS}})


def per_turn(name, redis, before, turns):
    """Means of what has grown since `before`."""
    counts, seconds = before
    used = sum(thread_seconds(redis.process.pid).values()) - seconds
    return {"store": name, "cpu_us": 1e6 * used / turns,
            **{each: count / turns for each, count in (counts_of(redis) - counts).items()}}


def overhead_model(binary, model, options, vocabulary, turns):
    """All sides take turns in blocks."""
    dice = random.Random(1)
    shared = {**model, "store_states": options.store_states}
    with (tempfile.TemporaryDirectory() as folder, stored() as always,
          stored(appendfsync="everysec") as everysec,
          serving(binary, **model) as memory, serving(binary, **model, state_dir=folder) as directory,
          serving(binary, **shared, store=always.location) as each,
          serving(binary, **shared, store=everysec.location) as second):
        sides = {"memory": memory, "directory": directory, "always": each, "everysec": second}
        clients = {name: Client(server.port) for name, server in sides.items()}
        times = {name: [] for name in sides}
        stores = {"always": always, "everysec": everysec}
        def block_of(name, number):
            """Each has a session of its own, whose first turn is not timed."""
            clients[name].turn(f"block-{number}", some_ids(dice, 200, vocabulary))
            for _ in range(options.block):
                ids = some_ids(dice, 3, vocabulary)
                times[name].append(clients[name].turn(f"block-{number}", ids)[0])
        for name in sides:
            block_of(name, -1)
            times[name].clear()
        before = {name: (counts_of(redis), sum(thread_seconds(redis.process.pid).values()))
                  for name, redis in stores.items()}
        blocks = turns // options.block
        for number in range(blocks):
            for name in list(sides)[::1 if number % 2 else -1]:
                block_of(name, number)
        rows = []
        for name in sides:
            row = {"side": name, "turns": len(times[name]), "p50_ms": 1e3 * median(times[name]),
                   "p99_ms": 1e3 * percentile(times[name], 0.99)}
            row["over_directory_p50_ms"] = row["p50_ms"] - 1e3 * median(times["directory"])
            rows.append(row)
        return rows, [per_turn(name, redis, before[name], len(times[name]) + blocks)
                      for name, redis in stores.items()]


def overhead(binary, options):
    found = []
    preset, _ = options.models[0]
    for name, flags, vocabulary, turns in (
            ("hybrid_regla (tiny)", {"model": TINY, "threads": 1}, TINY_VOCABULARY, options.turns),
            (preset, {"preset": preset, "weights": options.weights}, PRESET_VOCABULARY, options.turns // 4)):
        rows, counts = overhead_model(binary, flags, options, vocabulary, turns)
        table(f"overhead: a turn of 3 tokens and 1 generated, {name}", rows)
        table("what the store does for a turn", counts)
        found.append({"model": name, "sides": rows, "per_turn": counts})
    return found


# ---- throughput ----

class Slowed:
    """In here each process has a processor for that share of the time at most: an engine of a large
    model, for a machine that has few cores."""

    PERIOD = 0.02

    def __init__(self, processes, share):
        self.processes, self.share, self.over = processes, share, threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(p, i)) for i, p in enumerate(processes)]

    def _run(self, process, index):
        self.over.wait(self.PERIOD * index / len(self.processes))
        while not self.over.is_set():
            process.send_signal(signal.SIGSTOP)
            self.over.wait(self.PERIOD * (1 - self.share))
            process.send_signal(signal.SIGCONT)
            self.over.wait(self.PERIOD * self.share)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *raised):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for process in self.processes:
            process.send_signal(signal.SIGCONT)


def drive(ports, seconds, clients, work):
    """Calls work(client, number, turn) again and again, in `clients` threads for each port. How often
    in all, and the seconds that it took."""
    counts, errors, over = [], [], threading.Event()

    def run(port, number):
        made = 0
        try:
            client = Client(port)
            while not over.is_set():
                work(client, number, made)
                made += 1
        except BaseException as error:
            errors.append(error)
        counts.append(made)
    threads = [threading.Thread(target=run, args=(port, number * len(ports) + i))
               for number in range(clients) for i, port in enumerate(ports)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    over.wait(seconds)
    over.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts), time.monotonic() - began


def pinned_names(running, count, clients):
    """Of sessions for `clients` clients of each server, as the proxy spreads them."""
    client, names = Client(running.port), {f"regla-{i + 1}": [] for i in range(count)}
    for number in range(1000 * count):
        name = f"pinned-{number}"
        _, _, server = client.turn(name, [5, 7, 9])
        if len(names[server]) < clients:
            names[server].append(name)
        if all(len(some) == clients for some in names.values()):
            return [name for some in names.values() for name in some]
    raise Failure("the proxy does not spread sessions over all servers")


def pinned(running, count, options, kind, share):
    """Through the proxy, as all clients go."""
    names = pinned_names(running, count, options.clients)
    processes = {"store": [running.redis.process], "proxy": [running.proxy],
                 "servers": [server.process for server in running.servers]}

    def cpu():
        return {name: sum(sum(thread_seconds(process.pid).values()) for process in some)
                for name, some in processes.items()}

    def work(client, number, turn):
        client.turn(names[number], [turn % (TINY_VOCABULARY - 1) + 1, 7, 9])
    before = cpu()
    with Slowed([server.process for server in running.servers] if share else [], share):
        turns, took = drive([running.port] * count, options.seconds, options.clients, work)
    used = {f"{name}_cpu_us": 1e6 * (after - before[name]) / turns for name, after in cpu().items()}
    return {"engine": kind, "replicas": count, "turns_per_s": turns / took, **used,
            "store_limit_per_s": round(1e6 / used["store_cpu_us"]),
            "proxy_limit_per_s": round(1e6 / used["proxy_cpu_us"])}


def throughput(binary, options):
    rows = []
    for kind, share in (("fast", 0), ("slow", options.slow)):
        for count in (1, 2, 3):
            with replicas(count, edit=named) as running:
                rows.append(pinned(running, count, options, kind, share))
        alone = rows[-3]["turns_per_s"]
        for row in rows[-3:]:
            row["times_one"] = row["turns_per_s"] / alone
    table(f"throughput: turns of a tiny model; slow servers run {options.slow:.0%} of the time; limits "
          "are the turns/s that a core of the store or the proxy would do", rows)
    return rows


# ---- affinity ----

def named(text):
    return text.replace("backend regla\n", "backend regla\n    http-response set-header X-Served %s\n")


def in_turns(text):
    text = named(text).replace("balance hash var(txn.route)", "balance roundrobin")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("hash-")) + "\n"


def affinity_of(binary, way, edit, options):
    kinds, times = {"local": 0, "moved": 0, "computed": 0}, {"local": [], "other": []}
    served, lock = {}, threading.Lock()

    def work(client, number, turn):
        name = f"{number}-{turn % options.sessions}"  # of each client some sessions, in turn
        seconds, reply, server = client.turn(name, [turn % 150 + 1, 7, 9])
        last, position = served.get(name, (None, 0))
        served[name] = server, reply["session"]["position"]
        if last is None:
            return
        kind = "computed" if cached(reply) < position - 1 else "local" if server == last else "moved"
        with lock:
            kinds[kind] += 1
            times["local" if kind == "local" else "other"].append(seconds)
    with replicas(3, edit=edit) as running:
        drive([running.port], options.seconds, 4 * options.clients, work)
    turns = sum(kinds.values())
    return {"balance": way, "turns": turns,
            **{f"{kind}_%": 100 * n / turns for kind, n in kinds.items()},
            **{f"{kind}_p50_ms": 1e3 * median(some or [0]) for kind, some in times.items()}}


def affinity(binary, options):
    rows = [affinity_of(binary, way, edit, options)
            for way, edit in (("haproxy-replicas.cfg", named), ("roundrobin", in_turns))]
    table("affinity: turns whose server had the state, got it from the store, or computed tokens again", rows)
    return rows


PARTS = {"move": move, "prefixes": prefixes, "overhead": overhead, "throughput": throughput,
         "affinity": affinity}


def models(text):
    """preset@tokens,…"""
    parts = [part.partition("@") for part in text.split(",")]
    return [(preset, int(tokens)) for preset, _, tokens in parts]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="regla (build/release/regla)")
    parser.add_argument("--parts", default=list(PARTS), type=lambda text: text.split(","),
                        help=f"of {','.join(PARTS)} (all)")
    parser.add_argument("--models", type=models,
                        default="regla-160m@8000,hybrid_regla-160m@800,hybrid_regla-160m@8000",
                        help="move: presets and tokens (%(default)s); prefixes: the first of them; "
                             "overhead: the first preset")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--repeat", type=int, default=1,
                        help="move: sessions of each kind; prefixes: prompts; medians")
    parser.add_argument("--turns", type=int, default=2000,
                        help="overhead: of the tiny model, and a quarter of the preset (%(default)s)")
    parser.add_argument("--block", type=int, default=25, help="overhead: turns before another side's")
    parser.add_argument("--store-states", choices=("on", "off"), default="on",
                        help="overhead: `regla serve --store-states` (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15, help="throughput, affinity: of each row")
    parser.add_argument("--clients", type=int, default=4,
                        help="throughput: of each server; affinity: four times as many, in all")
    parser.add_argument("--sessions", type=int, default=20, help="affinity: of each client")
    parser.add_argument("--slow", type=float, default=0.1,
                        help="throughput: share of the time that slow servers run")
    parser.add_argument("--out", default="replicas.json")
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"--parts: no part {part}")
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        harness.BINARY = binary = find_binary(options.binary)
        found = machine(binary)
        for part in options.parts:
            found[part] = PARTS[part](binary, options)
            Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    except (Failure, AssertionError) as failure:
        print(f"replicas: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
