# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the libraries that generate text, each in its own environment (run.sh), against
one `regla serve`; of openai's client those that are in `make test`, too. And tests of vLLM's own, from
its source package, against a model that thinks and answers.

    tests/clients/run.sh libraries [NAME...]
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "clients"
sys.path.insert(0, str(ROOT / "tests" / "http"))
import harness  # noqa: E402
from recital import Recital  # noqa: E402

FOLDER = HERE / "libraries"
LIMIT = 512  # as conftest.py there has it
# The environment of each, and its files there or elsewhere; None: that of this program.
TESTS = {
    "openai": (None, ROOT / "tests" / "http" / "test_clients_openai.py"),
    "litellm": ("litellm", "test_litellm.py", "test_litellm_chat.py"),
    "llama_index": ("llama-index-llms-openai-like", "test_llama_index.py", "test_llama_index_chat.py"),
    "dspy": ("dspy", "test_dspy.py", "test_dspy_chat.py"),
    "semantic_kernel": ("semantic-kernel", "test_semantic_kernel.py", "test_semantic_kernel_chat.py"),
    "llm": ("llm", "test_llm.py", "test_llm_chat.py"),
    "inspect_ai": ("inspect-ai", "test_inspect_ai.py"),
    "instructor": ("instructor", "test_instructor.py"),
    "vllm": ("pytest-asyncio", WORK / "vllm-tests" / "test_include_reasoning.py"),
}


def one_model():
    return harness.Server(WORK / "libraries.log", harness.GOLDEN / "hybrid_regla", max_model_len=LIMIT,
                          chat_template=HERE / "chat.jinja")


def thinking_model():
    """Of the name and for the question of vLLM's tests: it thinks, and answers."""
    name, prompt = "Qwen/Qwen3-0.6B", "What is 1+1? Be concise."
    recital = Recital(dict.fromkeys(("<think>", "</think>"), False))
    recital.add("<think>\nOne and one more.\n</think>\n\nIt is 2.")
    folder = WORK / "vllm-model"
    shutil.rmtree(folder, ignore_errors=True)
    recital.write(folder, "hermes", len(recital.encode(prompt)) - 1)
    server = harness.Server(WORK / "vllm.log", folder, served_model_name=name,
                            chat_template=HERE / "vllm" / "chat.jinja")
    server.model_id = name
    return server


SERVERS = {"vllm": thinking_model}


def run(name, server):
    venv, *files = TESTS[name]
    python = WORK / venv / "bin" / "python" if venv else sys.executable
    environment = {**os.environ, "REGLA_URL": server.url, "REGLA_MODEL": server.model_id,
                   "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                   "DSPY_CACHEDIR": str(WORK / "cache")}
    environment.pop("OPENAI_API_KEY", None)
    print(f"==> {name}", flush=True)
    if name == "vllm":
        environment["PYTHONPATH"] = str(HERE / "vllm")  # the module that they import
    command = [python, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider",
               *(FOLDER / file for file in files)]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=1200).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TESTS))
    parser.add_argument("--environments", action="store_true", help="print which are needed, no more")
    options = parser.parse_args()
    names = options.names or list(TESTS)
    if unknown := set(names) - set(TESTS):
        parser.error(f"no library {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    if options.environments:
        print("\n".join(venv or "none" for venv, *_ in (TESTS[name] for name in names)))
        return
    WORK.mkdir(parents=True, exist_ok=True)
    failed = []
    for start in (one_model, *SERVERS.values()):
        wanted = [name for name in names if SERVERS.get(name, one_model) is start]
        if not wanted:
            continue
        server = start()
        try:
            failed += [name for name in wanted if not run(name, server)]
        finally:
            server.stop()
    if failed:
        sys.exit(f"libraries: {len(failed)} failed: {', '.join(failed)}")
    print(f"libraries: {len(names)} passed")


main()
