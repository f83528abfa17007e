# SPDX-License-Identifier: Apache-2.0
"""A server of a model without KV, RWKV-7: what it says of it, and a state as a beginning."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

import conftest
from harness import GOLDEN, ROOT
from reference_math import log_softmax
from reference_models import RWKV
from session_helpers import GREEDY, Session, cold, imported, put, same
from stress_helpers import bytes_of_texts, check_rest, model_of, some_ids, value_of
from test_lifecycle import regla
from test_quantize import load
from test_rwkv7 import save

pytestmark = pytest.mark.builds("dev", "asan")

MODEL = GOLDEN / "rwkv7"
VOCABULARY = 275
CONFIG = json.loads((MODEL / "config.json").read_text())
LAYERS, HEADS, SIZE = CONFIG["num_hidden_layers"], CONFIG["num_heads"], CONFIG["head_dim"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = conftest.start(tmp_path_factory.mktemp("server"), model=MODEL, checkpoint_interval=16,
                             metrics_compat="vllm")
    yield running
    conftest.finish(running)


def test_no_kv_anywhere(server):
    model = model_of(server)
    assert model["max_model_len"] is None and model["kv_bytes_per_token"] == 0
    assert server.post("/tokenize", {"prompt": "hi"}).json()["max_model_len"] is None
    ids = some_ids(random.Random(1), 200, VOCABULARY)
    server.complete(prompt=ids, max_tokens=50, session_id="long", ignore_eos=True)
    state = check_rest(server)
    assert state["parts"]["kv"] == 0 and state["parts"]["recurrent"] > 0
    assert state["tiers"]["device"]["bytes"] % model["state_bytes_per_text"] == 0
    metrics = server.metrics()
    for name in ("", "_peak"):
        assert value_of(metrics, f"regla_memory{name}_bytes", component="kv_cache") == 0
    assert value_of(metrics, "regla_memory_peak_bytes", component="recurrent_state") > 0
    info = {name: dict(pairs) for name, pairs in metrics if name == "vllm:cache_config_info"}
    assert info["vllm:cache_config_info"]["num_gpu_blocks"] == "0"
    assert 0 <= value_of(metrics, "vllm:kv_cache_usage_perc") <= 1
    session = server.get("/v1/sessions/long").json()
    assert session["position"] == 250 and session["kv_bytes"] == 0
    assert "and no KV" in server.whole_log()
    assert "texts of any length fit" in server.whole_log()


def test_info_says_so():
    told = regla("info", MODEL).stdout
    assert "KV per token       none: a text takes the same at any length" in told


def test_the_longest_text_has_no_limit(server):
    """Memory for one text admits any length."""
    ids = some_ids(random.Random(2), 3000, VOCABULARY)
    reply = server.complete(prompt=ids, max_tokens=1, ignore_eos=True)
    assert reply["usage"]["prompt_tokens"] == 3000


@pytest.fixture(scope="module")
def tuned():
    noise = np.random.default_rng(7)
    return {layer: noise.normal(0, 0.5, (HEADS, SIZE, SIZE)).astype(np.float32)
            for layer in range(LAYERS)}


def convert(*arguments):
    return subprocess.run([sys.executable, "-m", "train.convert", *map(str, arguments)],
                          cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def export(server, tmp_path_factory):
    server.complete(prompt=[1, 2, 3], max_tokens=0, session_id="export")
    path = tmp_path_factory.mktemp("export") / "export.state"
    path.write_bytes(server.get("/v1/sessions/export/state").content)
    return path


def write_tuned(path, tuned):
    save(path, {f"blocks.{layer}.att.time_state": values for layer, values in tuned.items()})
    return path


@pytest.fixture(scope="module")
def beginning(export, tuned, tmp_path_factory):
    """A state file of the tuned states, and of their transposes by --key-first: the same."""
    folder = tmp_path_factory.mktemp("tuned")
    plain = write_tuned(folder / "plain.safetensors", tuned)
    turned = write_tuned(folder / "turned.safetensors",
                         {i: np.ascontiguousarray(s.swapaxes(1, 2)) for i, s in tuned.items()})
    for source, out, flags in ((plain, "a.state", ()), (turned, "b.state", ("--key-first",))):
        result = convert("state", export, source, folder / out, *flags)
        assert result.returncode == 0, result.stderr
    assert (folder / "a.state").read_bytes() == (folder / "b.state").read_bytes()
    return (folder / "a.state").read_bytes()


def test_a_tuned_state_is_the_state_before_the_text(server, beginning, tuned):
    imported(server, "tuned", beginning, [0])
    ids = some_ids(random.Random(3), 20, VOCABULARY)
    reply = server.complete(prompt=ids, session_id="tuned", store=False, max_tokens=1, echo=True,
                            **GREEDY)
    logits = RWKV["rwkv7"].logits(CONFIG, load(MODEL), ids, [tuned[i] for i in range(LAYERS)])
    expected = log_softmax(logits)
    told = reply["choices"][0]["logprobs"]["token_logprobs"]
    first = len(told) - len(ids)  # of what follows the prompt's first id
    for t, logprob in enumerate(told[first:-1], 1):
        assert abs(logprob - expected[t - 1, ids[t]]) < 5e-4, t
    plain = cold(server, ids, 1)["logprobs"]["token_logprobs"]
    assert plain[-1] != told[-1]


def test_a_beginning_is_forked_for_each_user_and_deleted_under_them(server, beginning):
    base = imported(server, "base", beginning, [0])
    dice = random.Random(4)
    users = {f"user-{n}": some_ids(dice, 10 + n, VOCABULARY) for n in range(8)}
    said = {}
    for name, ids in users.items():
        fork = base.fork(name)
        said[name] = server.complete(prompt=ids, session_id=fork.name, max_tokens=6, **GREEDY)
    base.delete()
    assert server.get("/v1/sessions/base").status_code == 404
    for name in users:
        again = put(server, f"{name}-alone", beginning)
        assert again.status_code == 201
        alone = server.complete(prompt=users[name], session_id=f"{name}-alone", max_tokens=6,
                                **GREEDY)
        same(alone["choices"][0], said[name]["choices"][0])
        same(*(server.complete(prompt=[5, 6, 7], session_id=session, max_tokens=4,
                               **GREEDY)["choices"][0] for session in (name, f"{name}-alone")))


@pytest.mark.parametrize("change, told", [
    (lambda s: {i: v for i, v in s.items() if i}, r"expected the layers \[0, 1, 2\] of a model without KV, "
                                                  r"got \[1, 2\]"),
    (lambda s: {**s, 1: s[1][:, :4]}, r"blocks\.1\.att\.time_state: expected shape \[4, 8, 8\], "
                                      r"got \[4, 4, 8\]"),
    (lambda s: {**s, 2: s[2] * np.inf}, r"blocks\.2\.att\.time_state: expected finite numbers"),
    (lambda s: {}, "expected tensors blocks.LAYER.att.time_state, got none"),
])
def test_what_is_no_tuned_state_is_refused(export, tuned, change, told, tmp_path):
    source = write_tuned(tmp_path / "bad.safetensors", change(tuned))
    result = convert("state", export, source, tmp_path / "out")
    assert result.returncode != 0 and re.search(told, result.stderr), result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_each_position_has_the_bits_of_a_cold_run(tmp_path):
    """Exported and imported at each of 300, forked, rewound, and read from the disk after a restart
    with little memory."""
    flags = {"model": MODEL, "state_dir": tmp_path / "state", "checkpoint_interval": 16}
    ids = some_ids(random.Random(5), 301, VOCABULARY)
    running = conftest.start(tmp_path, **flags)

    def check(server, name, at):
        reply = server.complete(prompt=ids[at:at + 1], session_id=name, store=False, max_tokens=1,
                                echo=True, **GREEDY)
        assert reply["usage"]["prompt_tokens"] == at + 1
        return reply["choices"][0]["token_ids"], reply["choices"][0]["logprobs"]["token_logprobs"][-1]

    told = {}
    text = Session(running, "text")
    for at in range(1, 301):
        running.complete(prompt=ids[at - 1:at], session_id="text", max_tokens=0)
        file = running.get("/v1/sessions/text/state").content
        told[at] = check(running, "text", at)
        assert put(running, f"file-{at}", file).status_code == 201
        assert check(running, f"file-{at}", at) == told[at], at
        if at % 10 == 0:
            running.post("/v1/sessions/text/fork", {"id": f"fork-{at}"})
            assert check(running, f"fork-{at}", at) == told[at], at
    for at in range(1, 301, 7):
        running.post("/v1/sessions/text/fork", {"id": f"back-{at}"})
        assert running.post(f"/v1/sessions/back-{at}/rewind", {"position": at}).status_code == 200
        assert check(running, f"back-{at}", at) == told[at], at
    for at in range(1, 301, 23):
        choice = cold(running, ids[:at + 1], 1)
        assert (choice["token_ids"], choice["logprobs"]["token_logprobs"][-1]) == told[at], at
    small = {**flags, "state_memory": bytes_of_texts(running, 4, 64), "host_state_memory": 0}
    text.ids = ids[:300]
    conftest.finish(running)
    running = conftest.start(tmp_path, **small)
    for at in range(1, 301):
        assert check(running, f"file-{at}", at) == told[at], at
    check_rest(running)
    conftest.finish(running)


@pytest.mark.long
@pytest.mark.builds("dev")
def test_two_thousand_sessions_take_two_thousand_states(tmp_path):
    """And with a quarter of the memory all go on, with the same bits."""
    texts = {f"s-{n}": some_ids(random.Random(n), 20 + n % 13, VOCABULARY) for n in range(2000)}
    one = conftest.start(tmp_path, model=MODEL)
    each = model_of(one)["state_bytes_per_text"]
    before = one.get("/v1/state").json()["parts"]["recurrent"]
    for name, ids in texts.items():
        one.complete(prompt=ids, session_id=name, max_tokens=0)
    held = one.get("/v1/state").json()["parts"]["recurrent"] - before
    assert abs(held / (2000 * each) - 1) <= 0.02, held / each
    expected = {name: one.complete(prompt=[9], session_id=name, max_tokens=2, **GREEDY)["choices"][0]
                for name in texts}
    conftest.finish(one)
    few = conftest.start(tmp_path, model=MODEL, state_memory=500 * each, host_state_memory=0,
                         state_dir=tmp_path / "state")
    for name, ids in texts.items():
        few.complete(prompt=ids, session_id=name, max_tokens=0)
    assert len(few.get("/v1/sessions").json()["data"]) >= 20
    for name in texts:
        reply = few.complete(prompt=[9], session_id=name, max_tokens=2, **GREEDY)
        assert reply["session"]["position"] == len(texts[name]) + 3
        same(reply["choices"][0], expected[name])
    check_rest(few)
    conftest.finish(few)
