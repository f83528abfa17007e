# SPDX-License-Identifier: Apache-2.0
"""langchain-openai's completion model, unmodified."""

import asyncio

import pytest
from langchain_openai import OpenAI

pytestmark = pytest.mark.builds("dev")  # what the client makes of replies


@pytest.fixture
def llm(server, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)

    def create(**options):
        return OpenAI(model=server.model_id, base_url=server.url + "/v1", api_key="none",
                      max_retries=0, max_tokens=8, temperature=0, **options)

    return create


def greedy(server, prompt, **fields):
    return server.complete(prompt=prompt, max_tokens=8, temperature=0, **fields)


def test_invoke(server, llm):
    expected = greedy(server, "Tell me")["choices"][0]["text"]
    assert llm().invoke("Tell me") == expected
    assert asyncio.run(llm().ainvoke("Tell me")) == expected


def test_generate_reports_usage_and_reasons(server, llm):
    prompts = ["Tell me", "Once upon a time"]
    result = llm().generate(prompts)
    expected = greedy(server, prompts)
    assert [g[0].text for g in result.generations] == [c["text"] for c in expected["choices"]]
    usage = {name: expected["usage"][name]
             for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    reported = result.llm_output["token_usage"]
    assert {name: reported[name] for name in usage} == usage
    reasons = [g[0].generation_info["finish_reason"] for g in result.generations]
    assert reasons == [c["finish_reason"] for c in expected["choices"]]


def test_stream_is_what_invoke_says(llm):
    assert "".join(llm().stream("Tell me")) == llm().invoke("Tell me")
    assert llm(streaming=True).invoke("Tell me") == llm().invoke("Tell me")


def test_several_choices_and_logprobs(server, llm):
    result = llm(n=2, best_of=2, logprobs=2, seed=5).generate(["Tell me"])
    assert len(result.generations[0]) == 2
    logprobs = result.generations[0][0].generation_info["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"])
    assert all(len(top) in (2, 3) for top in logprobs["top_logprobs"])


def test_stop_and_extra_fields(server, llm):
    text = llm().invoke("Tell me")
    stop = text[3]
    assert llm().invoke("Tell me", stop=[stop]) == text[:text.index(stop)]
    eager = llm(extra_body={"ignore_eos": True, "min_tokens": 8}).generate(["Tell me"])
    assert eager.llm_output["token_usage"]["completion_tokens"] == 8
