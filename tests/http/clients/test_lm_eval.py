# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness, unmodified: its command, model `local-completions` with the tokenizer from
the server, and `local-chat-completions`, on the small tasks in tests/clients/lm_eval_tasks. What it
reports must be what the server says when asked directly, and the same however it batches its
requests."""

import json
import os
import subprocess
import sys

import harness
import pytest

pytestmark = pytest.mark.builds("dev")  # what the client makes of replies

TASKS = harness.ROOT / "tests" / "clients" / "lm_eval_tasks"
NAMES = ("regla_choices", "regla_continue", "regla_rolling")
COMPLETIONS, CHATS = ("local-completions", "completions"), ("local-chat-completions", "chat/completions")
ARGUMENTS = {"one_by_one": (1, 1), "batched": (3, 2)}  # requests at a time, prompts in each


def run_lm_eval(server, folder, path, names, arguments, *flags):
    """Runs lm_eval; returns (its results by task, its samples by task)."""
    command = [sys.executable, "-m", "lm_eval", "--model", path[0], "--model_args",
               f"model={server.model_id},base_url={server.url}/v1/{path[1]},max_retries=1,{arguments}",
               "--tasks", ",".join(names), "--include_path", str(TASKS), "--log_samples",
               "--output_path", str(folder / "out"), *flags]
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1",
                   "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, cwd=TASKS, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300 * harness.SLOWNESS)
    assert done.returncode == 0, done.stdout.decode()[-4000:]
    results = json.loads(next((folder / "out").rglob("results_*.json")).read_text())["results"]
    samples = {}
    for name in names:
        path = next((folder / "out").rglob(f"samples_{name}_*.jsonl"))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        samples[name] = sorted(lines, key=lambda sample: sample["doc_id"])
    return results, samples


def run_completions(server, folder, num_concurrent, batch_size):
    return run_lm_eval(server, folder, COMPLETIONS, NAMES,
                       f"tokenizer_backend=remote,num_concurrent={num_concurrent}",
                       "--batch_size", str(batch_size))


@pytest.fixture(scope="module")
def runs(server, tmp_path_factory):
    return {name: run_completions(server, tmp_path_factory.mktemp(name), *arguments)
            for name, arguments in ARGUMENTS.items()}


def tokens(server, text):
    reply = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    assert reply.status_code == 200, reply.text
    return reply.json()["tokens"]


def loglikelihood(server, context, continuation):
    """(sum of the log-probabilities of continuation's tokens, are they the greedy ones)"""
    choice = server.complete(prompt=context + continuation, echo=True, logprobs=1, max_tokens=1,
                             temperature=0)["choices"][0]
    values = choice["logprobs"]["token_logprobs"][len(context):-1]
    tops = choice["logprobs"]["top_logprobs"][len(context):-1]
    assert len(values) == len(continuation)
    return sum(values), all(v == max(top.values()) for v, top in zip(values, tops))


def responses(samples):
    return [sample["resps"] for sample in samples]


@pytest.mark.parametrize("name", NAMES)
def test_batching_changes_nothing(runs, name):
    (one_results, one), (many_results, many) = runs["one_by_one"], runs["batched"]
    assert responses(one[name]) == responses(many[name])
    assert one_results[name] == many_results[name]


def test_loglikelihood(server, runs):
    results, samples = runs["one_by_one"]
    right = 0
    for sample in samples["regla_choices"]:
        question = tokens(server, sample["doc"]["question"])
        scores = []
        for choice, response in zip(sample["doc"]["choices"], sample["resps"]):
            whole = tokens(server, sample["doc"]["question"] + choice)
            expected = loglikelihood(server, whole[:len(question)], whole[len(question):])
            value, greedy = response[0]
            assert float(value) == pytest.approx(expected[0], abs=1e-9)
            assert str(greedy) == str(expected[1])
            scores.append(expected[0])
        right += scores.index(max(scores)) == sample["doc"]["answer"]
    assert results["regla_choices"]["acc,none"] == right / len(samples["regla_choices"])


def test_generate_until(server, runs):
    _, samples = runs["one_by_one"]
    for sample in samples["regla_continue"]:
        expected = server.complete(prompt=tokens(server, sample["doc"]["text"]), max_tokens=12,
                                   temperature=0, stop=[".", "\n"])["choices"][0]["text"]
        assert sample["resps"] == [[expected]]


def test_loglikelihood_rolling(server, runs):
    results, samples = runs["one_by_one"]
    eos = tokens(server, server.get("/tokenizer_info").json()["eos_token"])
    assert len(eos) == 1
    total = size = 0
    for sample in samples["regla_rolling"]:
        text = sample["doc"]["text"]
        expected = loglikelihood(server, eos, tokens(server, text))[0]
        assert float(sample["resps"][0][0]) == pytest.approx(expected, abs=1e-9)
        total += expected
        size += len(text.encode())
    bits = -total / size / 0.6931471805599453
    assert results["regla_rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-9)


def test_chats(chat_server, tmp_path):
    """Each example is two turns of its own."""
    _, samples = run_lm_eval(chat_server, tmp_path, CHATS, ["regla_continue"], "num_concurrent=2",
                             "--apply_chat_template", "--system_instruction", "Be brief.",
                             "--num_fewshot", "2", "--fewshot_as_multiturn", "True")
    for sample in samples["regla_continue"]:
        messages = json.loads(sample["arguments"]["gen_args_0"]["arg_0"][0])
        assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
        reply = chat_server.post("/v1/chat/completions", {
            "messages": messages, "max_tokens": 12, "temperature": 0, "stop": [".", "\n"]})
        assert sample["resps"] == [[reply.json()["choices"][0]["message"]["content"]]]
