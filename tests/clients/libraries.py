# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the libraries that generate text, each in its own environment (run.sh), against
one `regla serve`; of openai's client those that are in `make test`, too. And tests of vLLM's own, from
its source package, against a model that thinks and answers.

    tests/clients/run.sh libraries [NAME...]
"""

import argparse
import contextlib
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
import script  # noqa: E402
import vllm_tests  # noqa: E402

FOLDER = HERE / "libraries"
LIMIT = 512  # as conftest.py there has it
KEY = "sk-scripted"
CLAUDE = "claude-3-7-sonnet-20250219"  # some libraries take no other names for Anthropic's API
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
    "openai_agents": ("openai-agents", "test_openai_agents.py"),
    "pydantic_ai": ("pydantic-ai-slim", "test_pydantic_ai.py"),
    "llama_index_own": ("llama-index-llms-openai", "test_llama_index_own.py"),
    "litellm_proxy": ("litellm", "test_litellm_proxy.py"),
    "vllm": ("pytest-asyncio", *map(str, vllm_tests.chosen(WORK / "vllm-tests"))),
}


def scripted(name, lines, **flags):
    folder = WORK / f"{name}-model"
    shutil.rmtree(folder, ignore_errors=True)
    return harness.Server(WORK / f"{name}.log", script.write(folder, lines), **flags)


@contextlib.contextmanager
def libraries_servers():
    """What the tests are told of them."""
    with contextlib.ExitStack() as running:
        server = harness.Server(WORK / "libraries.log", harness.GOLDEN / "hybrid_regla", max_model_len=LIMIT,
                                served_model_name=["hybrid_regla", CLAUDE], chat_template=HERE / "chat.jinja")
        running.callback(server.stop)
        other = scripted("scripted", script.LINES, served_model_name=["scripted-model", CLAUDE],
                         environment={"REGLA_API_KEY": KEY})
        other.http.headers["Authorization"] = f"Bearer {KEY}"
        running.callback(other.stop)
        yield {"REGLA_URL": server.url, "REGLA_MODEL": server.model_id, "REGLA_SCRIPTED_URL": other.url,
               "REGLA_SCRIPTED_MODEL": other.model_id, "REGLA_SCRIPTED_KEY": KEY, "REGLA_CLAUDE": CLAUDE}


@contextlib.contextmanager
def vllm_server():
    server = scripted("vllm", vllm_tests.LINES, served_model_name=vllm_tests.MODELS)
    try:
        yield {"REGLA_URL": server.url, "PYTHONPATH": str(HERE / "vllm")}  # the modules that they import
    finally:
        server.stop()


SERVERS = {"vllm": vllm_server}


def run(name, told):
    venv, *files = TESTS[name]
    python = WORK / venv / "bin" / "python" if venv else sys.executable
    environment = {**os.environ, **told, "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                   "DSPY_CACHEDIR": str(WORK / "cache")}
    environment.pop("OPENAI_API_KEY", None)
    print(f"==> {name}", flush=True)
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
    for start in (libraries_servers, *SERVERS.values()):
        wanted = [name for name in names if SERVERS.get(name, libraries_servers) is start]
        if wanted:
            with start() as told:
                failed += [name for name in wanted if not run(name, told)]
    if failed:
        sys.exit(f"libraries: {len(failed)} failed: {', '.join(failed)}")
    print(f"libraries: {len(names)} passed")


main()
