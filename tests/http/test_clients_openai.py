# SPDX-License-Identifier: Apache-2.0
"""The openai Python client, unmodified: what it sends, how it reads the answers, which of its
exceptions our errors become."""

import asyncio
import concurrent.futures
import json

import harness
import openai
import pytest

pytestmark = pytest.mark.builds("dev", "asan")  # what the client makes of replies

PROMPT = "Once upon a time"


@pytest.fixture
def create_client(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = []

    def create(server, **options):
        options = {"api_key": "none", "max_retries": 0, **options}
        made.append(openai.OpenAI(base_url=server.url + "/v1", **options))
        return made[-1]

    yield create
    for client in made:
        client.close()


@pytest.fixture
def client(server, create_client):
    return create_client(server)


@pytest.fixture
def complete(server, client):
    """Greedy, of a fixed length, unless the test says otherwise."""
    def create(**fields):
        body = {"model": server.model_id, "prompt": PROMPT, "max_tokens": 8, "temperature": 0,
                "extra_body": {"ignore_eos": True}, **fields}
        return client.completions.create(**body)

    return create


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def joined(chunks, index=0):
    return "".join(choice.text for chunk in chunks for choice in chunk.choices
                   if choice.index == index)


def test_create(server, complete):
    reply = complete()
    assert reply.id.startswith("cmpl-") and reply.object == "text_completion"
    assert reply.model == server.model_id and reply.created > 1_700_000_000
    assert reply.system_fingerprint
    [choice] = reply.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert reply.usage.completion_tokens == 8
    assert reply.usage.prompt_tokens == len(tokens(server, PROMPT))
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


def test_prompt_shapes_say_the_same(server, complete):
    ids = tokens(server, PROMPT)
    text = complete().choices[0].text
    for prompt in ([PROMPT], ids, [ids]):
        assert [c.text for c in complete(prompt=prompt).choices] == [text]


def test_batch_and_n_keep_their_order(complete):
    prompts = [PROMPT, "The cat", "1, 2, 3,"]
    reply = complete(prompt=prompts, n=2, temperature=1, seed=9)
    assert [c.index for c in reply.choices] == list(range(6))
    for i, prompt in enumerate(prompts):
        alone = complete(prompt=prompt, n=2, temperature=1, seed=9)
        assert [c.text for c in reply.choices[2 * i:2 * i + 2]] == [c.text for c in alone.choices]
        assert alone.choices[0].text != alone.choices[1].text
    assert reply.usage.completion_tokens == 6 * 8


def test_best_of(complete):
    reply = complete(n=2, best_of=4, temperature=1, seed=9, logprobs=0)
    assert [c.index for c in reply.choices] == [0, 1]
    means = [sum(c.logprobs.token_logprobs) / 8 for c in reply.choices]
    assert means == sorted(means, reverse=True)
    assert means[0] == max(sum(c.logprobs.token_logprobs) / 8 for c in complete(
        n=4, temperature=1, seed=9, logprobs=0).choices)


def test_stream(complete):
    plain = complete()
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == plain.choices[0].text
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "text_completion" for chunk in chunks)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    reasons = [c.finish_reason for chunk in chunks for c in chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_stream_of_a_batch_with_n_and_logprobs(complete):
    fields = {"prompt": [PROMPT, "The cat"], "n": 2, "temperature": 1, "seed": 4, "logprobs": 2}
    plain = complete(**fields)
    chunks = list(complete(stream=True, **fields))
    for choice in plain.choices:
        mine = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.text for c in mine) == choice.text
        streamed = [value for c in mine if c.logprobs for value in c.logprobs.token_logprobs]
        assert streamed == choice.logprobs.token_logprobs
        assert mine[-1].finish_reason == choice.finish_reason


def test_async_client_streams(server, complete):
    async def gather():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none",
                                      max_retries=0) as client:
            async def one(prompt):
                stream = await client.completions.create(
                    model=server.model_id, prompt=prompt, max_tokens=8, temperature=0, stream=True,
                    extra_body={"ignore_eos": True})
                return joined([chunk async for chunk in stream])

            return await asyncio.gather(*(one(f"{PROMPT} {i}") for i in range(8)))

    texts = asyncio.run(gather())
    assert texts == [complete(prompt=f"{PROMPT} {i}").choices[0].text for i in range(8)]


def test_logprobs(complete):
    choice = complete(logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 8
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert top[token] == value == max(top.values())
        assert len(top) in (3, 4)


def test_echo_scores_the_golden_prompt(server, complete):
    golden = json.loads((server.model / "expected.json").read_text())
    choice = complete(prompt=golden["prompt"], echo=True, logprobs=5, max_tokens=0).choices[0]
    values = choice.logprobs.token_logprobs
    assert values[0] is None and choice.logprobs.top_logprobs[0] is None
    assert values[1:] == pytest.approx(golden["prompt_logprobs"], abs=golden["tolerance"])
    assert choice.finish_reason == "length"


def test_echo_repeats_the_prompt(complete):
    text = complete().choices[0].text
    assert complete(echo=True).choices[0].text == PROMPT + text
    assert joined(complete(echo=True, stream=True)) == PROMPT + text


def test_stop_string(complete):
    text = complete(max_tokens=16).choices[0].text
    stop = text[5:7]
    choice = complete(max_tokens=16, stop=stop).choices[0]
    assert choice.text == text[:text.index(stop)]
    assert choice.finish_reason == "stop" and choice.model_extra["stop_reason"] == stop
    assert joined(complete(max_tokens=16, stop=[stop], stream=True)) == choice.text


def test_seed_bias_and_penalties(complete):
    fields = {"temperature": 1, "seed": 77, "max_tokens": 16}
    assert complete(**fields).choices[0].text == complete(**fields).choices[0].text
    forced = complete(logit_bias={"40": 100}, logprobs=0,
                      extra_body={"return_tokens_as_token_ids": True, "ignore_eos": True})
    assert forced.choices[0].logprobs.tokens == ["token_id:40"] * 8
    punished = complete(logit_bias={"40": 100}, frequency_penalty=2, presence_penalty=2,
                        logprobs=0, max_tokens=60, user="someone",
                        extra_body={"return_tokens_as_token_ids": True, "ignore_eos": True})
    assert set(punished.choices[0].logprobs.tokens) != {"token_id:40"}


def test_extra_body(server, complete):
    reply = complete(extra_body={"ignore_eos": True, "min_tokens": 8, "top_k": 1, "min_p": 0.1,
                                 "repetition_penalty": 1.0, "return_token_ids": True},
                     temperature=1)
    [choice] = reply.choices
    assert choice.text == complete().choices[0].text
    ids = choice.model_extra["token_ids"]
    assert len(ids) == 8
    assert choice.model_extra["prompt_token_ids"] == tokens(server, PROMPT)
    stopped = complete(extra_body={"stop_token_ids": [ids[0]]})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra["stop_reason"] == ids[0]
    assert stopped.usage.completion_tokens == 1


def test_request_id(server, client):
    raw = client.completions.with_raw_response.create(
        model=server.model_id, prompt=PROMPT, max_tokens=1,
        extra_headers={"X-Request-Id": "mine-1"})
    assert raw.headers["x-request-id"] == raw.request_id == "mine-1"
    assert raw.parse()._request_id == "mine-1"
    assert raw.http_response.headers["content-type"].startswith("application/json")
    first, second = (client.completions.create(model=server.model_id, prompt=PROMPT, max_tokens=1)
                     for _ in range(2))
    assert first._request_id and first._request_id != second._request_id


def test_streaming_response_context(server, client):
    with client.completions.with_streaming_response.create(
            model=server.model_id, prompt=PROMPT, max_tokens=3, stream=True) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_models(server, client):
    [model] = client.models.list().data
    assert (model.id, model.object) == (server.model_id, "model")
    assert client.models.retrieve(server.model_id) == model
    assert "max_model_len" in model.model_extra
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("fields, error, param", [
    ({"temperature": 3}, openai.BadRequestError, "temperature"),
    ({"max_tokens": -2}, openai.BadRequestError, "max_tokens"),
    ({"n": 0}, openai.BadRequestError, "n"),
    ({"logprobs": 21}, openai.BadRequestError, "logprobs"),
    ({"stop": [""]}, openai.BadRequestError, "stop"),
    ({"prompt": []}, openai.BadRequestError, "prompt"),
    ({"prompt": [1, 10 ** 9]}, openai.BadRequestError, "prompt"),
    ({"best_of": 1, "n": 2}, openai.BadRequestError, "best_of"),
    ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
    ({"suffix": "x"}, openai.BadRequestError, "suffix"),
    ({"extra_body": {"guided_json": 7}}, openai.BadRequestError, "guided_json"),
    ({"model": "other"}, openai.NotFoundError, "model"),
])
def test_errors(complete, fields, error, param):
    with pytest.raises(error) as raised:
        complete(**fields)
    assert raised.value.param == param
    assert raised.value.request_id
    assert raised.value.message and raised.value.type
    expected = {"model": "model_not_found", "suffix": "unsupported_parameter",
                "guided_json": "invalid_type"}
    if param in expected:
        assert raised.value.code == expected[param]


def test_errors_before_a_stream(complete):
    with pytest.raises(openai.BadRequestError):
        complete(stream=True, temperature=3)


def test_chat_without_a_template(server, client):
    with pytest.raises(openai.BadRequestError, match="the model has no chat template"):
        client.chat.completions.create(model=server.model_id,
                                       messages=[{"role": "user", "content": "hi"}])


def test_wrong_key(server_factory, create_client):
    server = server_factory(api_key="right")
    server.http.headers["Authorization"] = "Bearer right"
    with pytest.raises(openai.AuthenticationError):
        create_client(server, api_key="wrong").models.list()
    assert create_client(server, api_key="right").models.list().data[0].id == server.model_id


@pytest.mark.builds("dev")
def test_full_queue(server_factory, create_client):
    """Beyond the queue: RateLimitError with Retry-After; the client's own retries get through when
    the request before it is given up."""
    server = server_factory(max_running=1, max_queue=1, stall_timeout=3600)
    fields = {"model": server.model_id, "prompt": PROMPT, "extra_body": {"ignore_eos": True}}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = create_client(server).completions.create(max_tokens=100_000, stream=True,
                                                           **fields)
        harness.wait_until(lambda: server.metric("regla_requests_running") == 1, "one runs")
        waiting = pool.submit(create_client(server).completions.create, max_tokens=3, **fields)
        harness.wait_until(lambda: server.metric("regla_requests_waiting") == 1, "one waits")
        with pytest.raises(openai.RateLimitError) as raised:
            create_client(server).completions.create(**fields)
        assert int(raised.value.response.headers["retry-after"]) >= 1
        patient = create_client(server, max_retries=99)
        retried = pool.submit(patient.completions.with_raw_response.create, max_tokens=3, **fields)
        harness.wait_until(lambda: server.metric("regla_requests_total", status="429") >= 2,
                           "it is refused")
        running.close()
        assert waiting.result().usage.completion_tokens == 3
        assert retried.result().retries_taken >= 1


def test_closing_a_stream_cancels(server, complete):
    stream = complete(stream=True, max_tokens=100_000)
    next(iter(stream))
    stream.close()
    server.wait_idle()
