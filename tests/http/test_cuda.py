# SPDX-License-Identifier: Apache-2.0
"""The server on the emulated CUDA device: tests/cuda/run.sh. The emulation can be told to break or to
have little memory (tests/cuda/emulation/cuda_runtime.h)."""

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import harness
from session_helpers import GREEDY, put, same

PROMPT = [11, 40, 41, 7, 90, 3]
MODEL = harness.GOLDEN / "hybrid_regla"
ON_DEVICE = {"REGLA_DEVICE": "cuda", "REGLA_STATE_MEMORY": "16M", "REGLA_WEIGHTS": "f32"}


def complete(server, **fields):
    return server.complete(prompt=PROMPT, temperature=0, ignore_eos=True, **fields)


def test_the_same_text_as_on_the_cpu(server_factory):
    device = server_factory(environment=ON_DEVICE)
    host = server_factory(environment={"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})
    assert device.get("/version").json()["device"] == "cuda"
    assert host.get("/version").json()["device"] == "cpu"
    assert re.fullmatch(r"regla-[\d.]+-[0-9a-f]{8}-emulated_device__sm_90-f32-f32",
                        complete(device, max_tokens=1)["system_fingerprint"])
    pinned = {"component": "workspace", "device": "host"}
    assert device.metric("regla_memory_bytes", **pinned) > 32 << 20
    assert host.metric("regla_memory_bytes", **pinned) == 0
    texts = [complete(server, max_tokens=12, n=3, return_token_ids=True)["choices"]
             for server in (device, host)]
    assert [choice["token_ids"] for choice in texts[0]] == \
        [choice["token_ids"] for choice in texts[1]]


@pytest.mark.parametrize("command", ["bench", "check", "generate", "info", "perplexity", "serve",
                                     "study"])
def test_every_command_that_computes_takes_a_device(command):
    told = subprocess.run([harness.BINARY, command, "--help"], capture_output=True, text=True,
                          timeout=harness.START_SECONDS, check=True)
    assert "--device auto|cpu|cuda[:N]" in told.stdout


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_bench_measures_the_device_it_is_told(device):
    done = subprocess.run(
        [harness.BINARY, "bench", "--model", MODEL, "--device", device, "--pp", "0", "--tg", "3",
         "--repeat", "1", "--slice", "3"], capture_output=True, text=True,
        timeout=harness.START_SECONDS, env={"REGLA_EMULATION_FAIL": "1"})
    assert (done.returncode, "unspecified launch failure" in done.stderr) == \
        ((1, True) if device == "cuda" else (0, False)), done.stderr


def test_bench_has_several_engines_on_one_device():
    """Each takes a part of the memory that is free."""
    done = subprocess.run(
        [harness.BINARY, "bench", "--model", MODEL, "--device", "cuda", "--weights", "f32,bf16,f16",
         "--kv", "f32,f16", "--pp", "0", "--tg", "3", "--repeat", "1", "--slice", "3", "--json"],
        capture_output=True, text=True, timeout=harness.START_SECONDS,
        env={**os.environ, "REGLA_EMULATION_MEMORY": str(16 << 30)})
    assert done.returncode == 0, done.stderr


def test_products_of_cublaslt_are_said_and_give_other_bits(server_factory):
    """270 rows: in one step; and what starts says which promise is gone."""
    flags = {"REGLA_DEVICE": "cuda", "REGLA_STATE_MEMORY": "16M", "REGLA_WEIGHTS": "bf16",
             "REGLA_MAX_STEP_MS": "60000"}
    prompt = [(7 * i + 3) % 60 for i in range(270)]
    replies = {}
    for products in ("own", "cublaslt"):
        server = server_factory(environment={**flags, "REGLA_PRODUCTS": products})
        reply = server.complete(prompt=prompt, max_tokens=1, temperature=0, echo=True, logprobs=0)
        replies[products] = reply["choices"][0]["logprobs"]["token_logprobs"][1:]
        library = "__cublasLt_13_0_0" if products == "cublaslt" else ""
        assert re.fullmatch(rf"regla-[\d.]+-[0-9a-f]{{8}}-emulated_device__sm_90{library}-bf16-f16",
                            reply["system_fingerprint"])
        told = server.log_path.read_text()
        assert ("products   cublaslt; for them the weights are there once more, " in told,
                "results are not reproducible: their bits depend on how many tokens" in told) == \
            2 * (products == "cublaslt",)
    assert replies["own"] != replies["cublaslt"]
    assert replies["own"] == pytest.approx(replies["cublaslt"], abs=1e-3)


@pytest.mark.parametrize("library, message", [
    ("/no/where/libcublasLt.so", "REGLA_CUDA_CUBLASLT: expected a libcublasLt.so, got /no/where/"),
    ("libm.so.6", "libm.so.6 has no function cublasLt")])
def test_a_cublaslt_that_cannot_be_loaded_is_an_error(library, message):
    for command in (["info", MODEL], ["serve", "--model", MODEL, "--port", "0"]):
        done = subprocess.run(
            [harness.BINARY, *command, "--device", "cuda", "--weights", "bf16", "--products",
             "cublaslt"], capture_output=True, text=True, timeout=harness.START_SECONDS,
            env={"REGLA_CUDA_CUBLASLT": library})
        assert done.returncode == 1 and "products: cublaslt: " in done.stderr, done.stderr
        assert message in done.stderr and "Traceback" not in done.stderr


def test_activations_are_rounded_to_what_a_gpu_has_and_else_refused():
    command = [harness.BINARY, "perplexity", MODEL, "-", "--format", "jsonl", "--device", "cuda",
               "--json", "--weights"]
    refused = {("q8", "8bit"): "activations: expected f32 or 16bit on a GPU, got 8bit",
               ("f16", "16bit"): "activations: expected f32 with weights in f16 on a GPU, got 16bit"}
    found = {}
    for pair in (("q8", "f32"), ("q8", "16bit"), *refused):
        done = subprocess.run([*command, pair[0], "--activations", pair[1]],
                              input='{"text": "once upon a time"}', capture_output=True, text=True,
                              timeout=harness.START_SECONDS)
        assert done.returncode == (pair in refused), done.stderr
        assert refused.get(pair, "") in done.stderr
        found[pair] = done.stdout
    assert json.loads(found["q8", "16bit"]) != json.loads(found["q8", "f32"])


def test_the_chain_of_a_decode_step_has_all_its_kernels_in_order():
    """Those that tests/cuda/test_engine.c counts, and the one that draws. The program fails where a
    step is measured that is recorded: one of a kind's two graphs, or its only one without mapped
    memory."""
    for model, batch, without, kernels in (("regla", 1, "", 3 + 5 * 2 + 1),
                                           ("regla", 1, "mapped", 3 + 5 * 2 + 1),
                                           ("softmax_rope", 3, "", 3 + 6 * 2 + 1)):
        done = subprocess.run(
            [Path(harness.BINARY).with_name("cuda_chain"), "--model", harness.GOLDEN / model,
             "--batch", str(batch), "--steps", "3"], env={**os.environ, "REGLA_CUDA_WITHOUT": without},
            capture_output=True, text=True, timeout=harness.START_SECONDS, check=True)
        rows = [line.split() for line in done.stdout.splitlines()[2:-1]]
        assert [int(row[0]) for row in rows] == list(range(kernels)), done.stdout
        names = [row[-8] for row in rows]
        assert names[0] == "embed_kernel" and names[-1] == "sample_kernel"
        before = 0
        for entry, waited, left, gap, time in ([float(cell) for cell in row[-5:]] for row in rows):
            assert before <= entry <= waited <= left and gap >= 0 and time >= 0, done.stdout
            before = left
        assert done.stdout.splitlines()[-1].startswith(f"sum: {kernels} kernels, gaps ")


def test_the_chain_program_says_what_it_expects():
    for words, said in ((["--batch", "0"], "--batch: expected a number from 1 to 256, got 0"),
                        (["--preset", "regla-0l"], "regla-0l"), (["--steps"], "got --steps")):
        done = subprocess.run([Path(harness.BINARY).with_name("cuda_chain"), *words],
                              capture_output=True, text=True, timeout=harness.START_SECONDS)
        assert done.returncode == 1 and said in done.stderr


DRAWS = [
    {"temperature": 0, "logprobs": 5, "prompt": [PROMPT, [9, 9, 2], [70]]},
    {"temperature": 1, "seed": 7, "n": 4, "best_of": 5, "logprobs": 0},
    {"temperature": 0.8, "seed": 8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "logprobs": 3},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5,
     "repetition_penalty": 1.3},
    {"temperature": 1, "seed": 9, "n": 3, "frequency_penalty": 1, "logit_bias": {"40": 8, "7": -9}},
    {"temperature": 1, "seed": 10, "stop_token_ids": list(range(60)), "min_tokens": 9,
     "ignore_eos": False, "n": 2},
    {"temperature": 0, "logit_bias": {"50": 100}, "stop_token_ids": [50], "min_tokens": 3},
    {"temperature": 1.2, "seed": 11, "typical_p": 0.8, "logprobs": 2, "logprob_token_ids": [9, 60, 3]},
    {"temperature": 1, "seed": 12, "allowed_token_ids": list(range(90, 120)), "bad_words": ["b", "cd"]},
]


def same_choice(device, host):
    """The device's logits are the host's but for the last places."""
    assert device["token_ids"] == host["token_ids"]
    for key in ("index", "text", "finish_reason", "stop_reason"):
        assert device.get(key) == host.get(key)
    assert (device["logprobs"] is None) == (host["logprobs"] is None)
    if host["logprobs"] is None:
        return
    ours, theirs = device["logprobs"], host["logprobs"]
    assert ours["tokens"] == theirs["tokens"]
    assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=1e-3)
    for top, expected in zip(ours["top_logprobs"] or [], theirs["top_logprobs"] or []):
        assert top == pytest.approx(expected, abs=1e-3)


def test_every_way_to_draw_gives_the_tokens_of_the_cpu(server_factory):
    device = server_factory(environment=ON_DEVICE)
    host = server_factory(environment={"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})
    for fields in DRAWS:
        body = {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True,
                **fields}
        replies = [server.complete(**body) for server in (device, host)]
        assert replies[0]["usage"] == replies[1]["usage"]
        for pair in zip(*(reply["choices"] for reply in replies), strict=True):
            same_choice(*pair)
    # all of them at once, in steps that they share
    with ThreadPoolExecutor(len(DRAWS)) as pool:
        bodies = [{"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True,
                   "return_token_ids": True, **fields} for fields in DRAWS]
        together = list(pool.map(lambda body: device.complete(**body), bodies))
    for body, reply in zip(bodies, together, strict=True):
        for pair in zip(reply["choices"], host.complete(**body)["choices"], strict=True):
            same_choice(*pair)


def turns(server, name, end, max_tokens, **fields):
    """Two turns of a session, the first of which the token `end` ends."""
    first = server.complete(prompt=PROMPT, session_id=name, stop_token_ids=[end], **fields,
                            max_tokens=max_tokens, ignore_eos=True, return_token_ids=True)
    second = server.complete(prompt=[5, 6], session_id=name, temperature=0, max_tokens=6,
                             ignore_eos=True, return_token_ids=True)
    return [(reply["choices"][0]["token_ids"], reply["choices"][0]["finish_reason"],
             reply["usage"]["completion_tokens"], reply["session"]["position"])
            for reply in (first, second)]


def test_texts_that_end_while_the_next_step_is_under_way(server_factory):
    """By a token, which the host sees when the text's next step has begun, or by max_tokens."""
    device = server_factory(environment=ON_DEVICE)
    host = server_factory(environment={"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})
    drawn = {"temperature": 1.5, "seed": 21}
    ids = host.complete(prompt=PROMPT, max_tokens=70, ignore_eos=True, return_token_ids=True,
                        **drawn)["choices"][0]["token_ids"]
    # position 64, where a page is full, and round about; the last two end by max_tokens
    places = [2, 30, 57, 58, 59]
    cases = [(f"ends-{at}", ids[at], 70) for at in places]
    cases += [(f"full-{most}", ids[69], most) for most in (1, 17)]
    with ThreadPoolExecutor(len(cases)) as pool:
        together = list(pool.map(lambda case: turns(device, *case, **drawn), cases))
    for case, got in zip(cases, together, strict=True):
        assert got == turns(host, *case, **drawn), case
    alone = turns(device, "alone", ids[2], 70, **drawn)
    assert alone == together[0]


def test_a_text_that_is_cancelled_is_kept_as_far_as_it_came(server_factory):
    device = server_factory(environment=ON_DEVICE)
    host = server_factory(environment={"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    endless = {**body, "max_tokens": 4000, "stream": True, "request_id": "mine"}
    with device.connect() as connection:
        connection.sendall(harness.request_bytes("/v1/completions", endless))
        reply = harness.RawReply(connection)
        reply.head()
        chunks = reply.chunks()
        while not device.metric("regla_generated_tokens_total") > 20:
            next(chunks)
        assert device.post("/v1/requests/mine/cancel").status_code == 200
        assert b"".join(chunks).endswith(b"data: [DONE]\n\n")
    device.wait_idle()
    expected = host.complete(**body, max_tokens=60)["choices"][0]["token_ids"]
    reply = device.complete(**{**body, "prompt": PROMPT + expected[:16]}, max_tokens=44)
    assert reply["choices"][0]["token_ids"] == expected[16:]
    whole = device.complete(**body, max_tokens=60)
    assert whole["choices"][0]["token_ids"] == expected


def test_checkpoints_come_where_the_cpu_leaves_them(server_factory):
    servers = [server_factory(environment=environment, checkpoint_interval=16) for environment in
               (ON_DEVICE, {"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})]
    body = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    ids = [server.complete(**body, prompt=PROMPT, max_tokens=60)["choices"][0]["token_ids"]
           for server in servers]
    assert ids[0] == ids[1]
    for place in (8, 11, 27, 50):  # behind it other tokens come
        replies = [server.complete(**body, prompt=PROMPT + ids[0][:place] + [9, 9], max_tokens=5)
                   for server in servers]
        assert replies[0]["choices"][0]["token_ids"] == replies[1]["choices"][0]["token_ids"]
        cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
        # the end of the first prompt is a checkpoint, too
        assert cached == [max(len(PROMPT), (len(PROMPT) + place) // 16 * 16)] * 2
        # as many as where no step begins before the last one has been looked at
        assert servers[0].metric("regla_checkpoints") == servers[1].metric("regla_checkpoints") > 0


def test_states_that_leave_the_device_come_back_the_same(server_factory, tmp_path):
    """To host memory, to files and as exports, while other texts take the memory they had."""
    crowded = server_factory(environment={**ON_DEVICE, "REGLA_STATE_MEMORY": "600K"},
                             host_state_memory="300K", state_dir=tmp_path / "states")
    roomy = server_factory(environment=ON_DEVICE)
    prompts = [[11 * i + 3, 40, 41, 7 + i] for i in range(6)]

    def turn(i):
        fields = {"prompt": prompts[i], "session_id": f"s{i}", "max_tokens": 7, **GREEDY}
        choice = crowded.complete(**fields)["choices"][0]
        same(choice, roomy.complete(**fields)["choices"][0])
        exported = crowded.get(f"/v1/sessions/s{i}/state")
        assert exported.status_code == 200
        return exported.content

    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            files = list(pool.map(turn, range(6)))
    assert crowded.metric("regla_state_evictions_total") > 0
    other = server_factory(environment=ON_DEVICE)
    for i, file in enumerate(files):
        assert put(other, f"s{i}", file).status_code == 201
        replies = [server.complete(prompt=[5], session_id=f"s{i}", max_tokens=3, **GREEDY)
                   for server in (roomy, other)]
        same(*(reply["choices"][0] for reply in replies))
        assert replies[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_broken_device_ends_the_service_and_keeps_what_is_on_disk(server_factory, tmp_path):
    folder = tmp_path / "states"
    before = server_factory(environment=ON_DEVICE, state_dir=folder)
    complete(before, max_tokens=4, session_id="kept")
    kept = before.get("/v1/sessions/kept").json()["position"]
    before.stop()
    broken = server_factory(environment={**ON_DEVICE, "REGLA_EMULATION_FAIL": "1500"},
                            state_dir=folder)
    complete(broken, max_tokens=4, session_id="kept", expected_position=kept)
    replies = []
    for _ in range(40):
        replies.append(broken.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8,
                                                       "ignore_eos": True}))
        if replies[-1].status_code != 200:
            break
    assert replies[-1].status_code == 500
    for path in ("/health", "/ready"):
        error = harness.check_error(broken.get(path), 503)
        assert error["code"] == "engine_failed"
    assert broken.refuse(503, prompt=PROMPT)["code"] == "engine_failed"
    broken.wait_logged("unspecified launch failure")
    broken.stop()
    after = server_factory(environment=ON_DEVICE, state_dir=folder)
    position = after.get("/v1/sessions/kept").json()["position"]
    assert position >= kept
    sound = server_factory(environment=ON_DEVICE)
    complete(sound, max_tokens=4, session_id="kept")
    if position > kept:  # the second turn was on disk before the device broke
        complete(sound, max_tokens=4, session_id="kept")
    texts = [complete(server, max_tokens=6, session_id="kept", expected_position=position,
                      return_token_ids=True)["choices"][0]["token_ids"]
             for server in (after, sound)]
    assert texts[0] == texts[1]


def test_a_device_that_breaks_at_once_ends_the_start(tmp_path):
    done = subprocess.run([harness.BINARY, "serve", "--model", MODEL, "--port", "0"],
                          capture_output=True, text=True, timeout=harness.START_SECONDS,
                          env={**ON_DEVICE, "REGLA_EMULATION_FAIL": "1"})
    assert done.returncode == 1
    assert "unspecified launch failure" in done.stderr


@pytest.mark.parametrize("memory, flag", [("20000", "--device-memory"), ("400000", "memory")])
def test_too_little_memory_is_said_with_what_to_lower(memory, flag):
    done = subprocess.run([harness.BINARY, "generate", MODEL, "--device", "cuda", "--prompt", "x"],
                          capture_output=True, text=True, timeout=harness.START_SECONDS,
                          env={"REGLA_EMULATION_MEMORY": memory})
    assert done.returncode == 1
    assert flag in done.stderr and "cuda:0" in done.stderr


def test_a_device_that_states_fill_has_what_every_step_needs(server_factory):
    """Nothing is allocated after the start: texts whose draws have long lists, many texts with the
    pages of one, and long contexts, where --device-memory is all that the device has."""
    memory = 96 << 20
    full = server_factory(environment={"REGLA_DEVICE": "cuda", "REGLA_WEIGHTS": "f32",
                                       "REGLA_EMULATION_MEMORY": str(memory)},
                          device_memory=memory)
    host = server_factory(environment={"REGLA_DEVICE": "cpu", "REGLA_WEIGHTS": "f32"})
    words = [i % 250 + 3 for i in range(600)]
    for fields in ({"prompt": PROMPT, "max_tokens": 2},
                   {"prompt": words[:270], "max_tokens": 2, "n": 100, "repetition_penalty": 1.1,
                    "logit_bias": {str(i): i % 7 for i in range(270)}},
                   {"prompt": words, "max_tokens": 3, "n": 20, "logprobs": 20}):
        body = {"temperature": 1, "seed": 4, "ignore_eos": True, "return_token_ids": True, **fields}
        for pair in zip(*(server.complete(**body)["choices"] for server in (full, host)),
                        strict=True):
            assert pair[0]["token_ids"] == pair[1]["token_ids"]
    assert full.get("/health").status_code == 200
