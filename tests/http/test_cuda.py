"""The server on the emulated CUDA device: tests/cuda/run.sh. The emulation can be told to break or to
have little memory (tests/cuda/emulation/cuda_runtime.h)."""

import subprocess

import pytest

import harness

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
    texts = [complete(server, max_tokens=12, n=3, return_token_ids=True)["choices"]
             for server in (device, host)]
    assert [choice["token_ids"] for choice in texts[0]] == \
        [choice["token_ids"] for choice in texts[1]]


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
    assert "unspecified launch failure" in broken.tail()
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
