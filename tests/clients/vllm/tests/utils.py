# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests import of its own tests/utils.py: the server that tests/clients/libraries.py runs in
the place of vLLM's."""

import os
from pathlib import Path

import anthropic
import openai

VLLM_PATH = Path()  # of files that only its own servers are told


class RemoteOpenAIServer:
    """As the tests call it; the models and arguments are vLLM's: ours has all names, and its parsers by
    itself."""

    def __init__(self, model, arguments, env_dict=None, max_wait_seconds=None):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def get_async_client(self):
        return openai.AsyncOpenAI(base_url=os.environ["REGLA_URL"] + "/v1", api_key="none", max_retries=0)

    def get_async_client_anthropic(self):
        return anthropic.AsyncAnthropic(base_url=os.environ["REGLA_URL"], api_key="none", max_retries=0)
