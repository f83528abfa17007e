# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark clients, unmodified, against `regla serve`, and writes down what they sent.

    tests/clients/run.sh               # installs the clients, then runs this

Each scenario is one run of a client's own command through a proxy that passes everything on
unchanged. The client must report that every request succeeded. What it sent to /v1/completions
becomes tests/clients/requests/<scenario>.json, which tests/http/test_clients_replay.py replays.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "clients"
sys.path.insert(0, str(ROOT / "tests" / "http"))
import harness  # noqa: E402
from relay import relay  # noqa: E402

REQUESTS = 4
KEPT_HEADERS = {"accept", "content-type", "user-agent"}
PLACEHOLDER = "MODEL"


def tokenizer_folder(model):
    """The clients load tokenizers with transformers, which wants two more files than we have."""
    folder = WORK / "hf" / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>",
         "eos_token": "<|endoftext|>"}))
    (folder / "config.json").write_text('{"model_type": "gpt_neox"}')
    return "hf/tokenizer"  # relative to WORK: aiperf takes only "owner/name"


def vllm_bench(url, model, tokenizer, *flags):
    command = ["vllm", "bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint",
               "/v1/completions", "--model", model, "--tokenizer", tokenizer, "--seed", "1",
               "--num-prompts", str(REQUESTS), "--save-result", "--result-filename", "vllm.json",
               *flags]
    result = run("vllm", command, WORK / "vllm.json")
    return result["completed"]


def guidellm(url, model, tokenizer, backend="", data="prompt_tokens=24,output_tokens=8"):
    command = ["guidellm", "run", "--backend",
               f"kind=openai_http,target={url},model={model},request_format=/v1/completions"
               + backend,
               "--profile", "kind=synchronous", "--constraint",
               f"kind=max_requests,count={REQUESTS}", "--tokenizer",
               f"kind=hf_auto,model={tokenizer}", "--data", f"kind=synthetic_text,{data}",
               "--output", "kind=json,path=guidellm.json", "--disable-progress"]
    result = run("guidellm", command, WORK / "guidellm.json")
    return result["benchmarks"][0]["metrics"]["request_totals"]["successful"]


def aiperf(url, model, tokenizer, *flags):
    command = ["aiperf", "profile", "-m", model, "--url", url, "--endpoint-type", "completions",
               "--tokenizer", tokenizer, "--request-count", str(REQUESTS), "--concurrency", "2",
               "--isl", "24", "--osl", "8", "--ui", "none", "--random-seed", "1",
               "--output-artifact-dir", "aiperf", *flags]
    result = run("aiperf", command, WORK / "aiperf" / "profile_export_aiperf.json")
    return int(result["request_count"]["avg"])


def run(client, command, result):
    """Runs a command of a client's environment; returns the JSON file that it leaves."""
    result.unlink(missing_ok=True)
    environment = {**os.environ, "HF_HOME": str(WORK / "cache"), "OMP_NUM_THREADS": "1",
                   "NO_PROXY": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1"}
    if client != "aiperf":  # offline, it takes no tokenizer from a folder
        environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run([WORK / client / "bin" / command[0], *command[1:]], cwd=WORK,
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=600)
    if done.returncode or not result.exists():
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout.decode()[-4000:]}")
    return json.loads(result.read_text())


SCENARIOS = {
    "vllm_bench_random": (vllm_bench, "--dataset-name", "random", "--random-input-len", "24",
                          "--random-output-len", "8"),
    "vllm_bench_sampling": (vllm_bench, "--dataset-name", "random", "--random-input-len", "24",
                            "--random-output-len", "8", "--logprobs", "1", "--ignore-eos",
                            "--temperature", "0.8", "--top-p", "0.9", "--top-k", "20", "--min-p",
                            "0.05", "--repetition-penalty", "1.1", "--frequency-penalty", "0.1",
                            "--presence-penalty", "0.1"),
    "vllm_bench_custom": (vllm_bench, "--dataset-name", "custom", "--dataset-path",
                          str(HERE / "prompts.jsonl"), "--custom-output-len", "8",
                          "--skip-chat-template", "--disable-shuffle", "--temperature", "0",
                          "--extra-body", '{"min_tokens": 4, "seed": 7}'),
    "guidellm_stream": (guidellm,),
    "guidellm_plain": (guidellm, ",stream=false"),
    "guidellm_own_length": (guidellm, ",max_tokens=6", "prompt_tokens=24"),
    "aiperf_stream": (aiperf, "--streaming"),
    "aiperf_plain": (aiperf,),
    "aiperf_batch": (aiperf, "--prompt-batch-size", "3"),
    "aiperf_extras": (aiperf, "--streaming", "--use-server-token-count", "--extra-inputs",
                      "ignore_eos:true", "--extra-inputs", "min_tokens:8", "--extra-inputs",
                      "temperature:0"),
}


def version(client):
    code = f"import importlib.metadata as m; print(m.version('{client}'))"
    return subprocess.check_output([WORK / client / "bin" / "python", "-c", code]).decode().strip()


def record(name, server, tokenizer):
    function, *flags = SCENARIOS[name]
    client = name.split("_")[0]
    with relay(server.url) as (url, seen):
        succeeded = function(url, server.model_id, tokenizer, *flags)
    sent = [{"method": each.method, "path": each.path,
             "headers": {k: v for k, v in each.headers.items() if k.lower() in KEPT_HEADERS},
             "body": each.body.decode()} for each in seen if each.path == "/v1/completions"]
    other = sorted({f"{each.method} {each.path}" for each in seen if each.path != "/v1/completions"})
    if succeeded != REQUESTS or len(sent) < REQUESTS:
        sys.exit(f"{name}: {succeeded} of {REQUESTS} succeeded, {len(sent)} sent")
    for request in sent:
        request["body"] = request["body"].replace(json.dumps(server.model_id),
                                                  json.dumps(PLACEHOLDER))
    sent.sort(key=lambda request: request["body"])
    entry = {"client": client, "version": version(client), "also_asked": other, "requests": sent}
    (HERE / "requests" / f"{name}.json").write_text(json.dumps(entry, indent=1) + "\n")
    print(f"{name}: {client} {entry['version']}: {succeeded} of {REQUESTS} requests succeeded",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path,
                        default=harness.shipped_model() or harness.GOLDEN / "hybrid_regla")
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    (HERE / "requests").mkdir(exist_ok=True)
    server = harness.Server(WORK / "server.log", arguments.model)
    try:
        for name in arguments.scenarios:
            record(name, server, tokenizer_folder(arguments.model))
    finally:
        server.stop()


main()
