# SPDX-License-Identifier: Apache-2.0
"""What vLLM's tests import of its own tests/utils.py: the server that tests/clients/libraries.py runs in
the place of vLLM's."""

import os

import openai


class RemoteOpenAIServer:
    """As the test calls it; the arguments are vLLM's, for a model and a parser that ours has by itself."""

    def __init__(self, model, arguments):
        assert model == os.environ["REGLA_MODEL"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def get_async_client(self):
        return openai.AsyncOpenAI(base_url=os.environ["REGLA_URL"] + "/v1", api_key="none", max_retries=0)
