# SPDX-License-Identifier: Apache-2.0
"""The small endpoints: health, models, tokenizer, metrics."""

import json
import re
import shutil
import time

import pytest

from harness import GOLDEN, ROOT, begin_stream, check_error, request_bytes, wait_until

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")


def test_health_ready_load_version(server):
    assert server.get("/health").status_code == 200
    assert server.get("/ready").status_code == 200
    server.wait_idle()
    assert server.get("/load").json() == {"running": 0, "waiting": 0, "server_load": 0}
    version = server.get("/version").json()
    declared, = re.findall(r"project\(regla VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version["version"] == declared


@pytest.mark.parametrize("path", ["/models", "/health"])
def test_some_paths_need_no_version(server, path):
    with_version, without = server.get("/v1" + path), server.get(path)
    assert with_version.status_code == without.status_code == 200
    assert with_version.json() == without.json()


def test_completions_need_no_version(server):
    fields = {"prompt": [5, 6], "max_tokens": 4, "seed": 1}
    texts = [server.post(path, fields).json()["choices"] for path in ("/completions", "/v1/completions")]
    assert texts[0] == texts[1]


def test_the_log_has_the_traceparent(server):
    """W3C Trace Context; what is none is not logged."""
    right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for given in (right, right.upper(), right + "-00", "x" * len(right)):
        for path, fields in (("/v1/completions", {"prompt": [5], "max_tokens": 1}), ("/v1/completions", {})):
            server.http.post(path, json=fields, headers={"traceparent": given})
    wait_until(lambda: server.tail(1_000_000).count(f"traceparent={right} ") == 2, "both lines")
    assert server.tail(1_000_000).count("traceparent=") == 2


def test_models(server):
    listing = server.get("/v1/models").json()
    assert listing["object"] == "list"
    model, = listing["data"]
    assert model["id"] == server.model_id and model["object"] == "model"
    assert model["max_model_len"] is None
    assert isinstance(model["created"], int) and model["owned_by"]
    assert model == server.get(f"/v1/models/{server.model_id}").json()
    said = json.dumps(model)
    config = json.loads((server.model / "config.json").read_text())
    for layer_type in set(config["layer_types"]):
        assert f'"{layer_type}"' in said


def test_model_sizes(server):
    """Parameters as in the file; the state of a text from its definition (model-format.md)."""
    model = server.get(f"/v1/models/{server.model_id}").json()
    raw = (server.model / "model.safetensors").read_bytes()
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    count = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            count += size
    assert model["parameters"] == count
    assert model["dtype"].upper() in ("F32", "FLOAT32")
    config = json.loads((server.model / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    linear = config["layer_types"].count("r")
    softmax = len(config["layer_types"]) - linear
    matrices = 4 * linear * config["num_attention_heads"] * head * head
    assert matrices <= model["state_bytes_per_text"] <= 2 * matrices
    # Heads of 12 may be padded to the 16 lanes of a vector.
    exact = 4 * softmax * 2 * config["hidden_size"]
    assert exact <= model["kv_bytes_per_token"] <= exact * 16 / 12


def test_tokenize_and_back(server):
    for text in ("Hello, world", "é漢🙂", "", " \n\t  x", "<|endoftext|>"):
        reply = server.post("/tokenize", {"prompt": text}).json()
        assert reply["count"] == len(reply["tokens"])
        assert reply["max_model_len"] is None
        back = server.post("/detokenize", {"tokens": reply["tokens"]}).json()
        assert back["prompt"] == text
    assert server.post("/tokenize", {"prompt": "<|endoftext|>"}).json()["tokens"] == [0]


def test_tokenize_agrees_with_usage(server):
    text = "count these tokens, please"
    count = server.post("/tokenize", {"prompt": text, "add_special_tokens": True}).json()["count"]
    assert server.complete(prompt=text, max_tokens=1)["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize("path, body", [
    ("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"prompt": ["a"]}),
    ("/tokenize", {"prompt": "x", "add_special_tokens": "no"}), ("/tokenize", []),
    ("/tokenize", {"messages": []}), ("/detokenize", {}), ("/detokenize", {"tokens": "x"}),
    ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [275]}),
    ("/detokenize", {"tokens": [1.5]}), ("/detokenize", {"tokens": [[1]]})])
def test_bad_tokenizer_requests(server, path, body):
    check_error(server.post(path, body), 400)


def test_detokenize_nothing(server):
    assert server.post("/detokenize", {"tokens": []}).json()["prompt"] == ""


def test_tokenizer_info(server):
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == info["bos_token"] == "<|endoftext|>"


def test_props_and_slots(server_factory, tmp_path):
    """Of llama.cpp's server; what a text that runs changes."""
    server = server_factory(max_running=3, max_model_len=200100, served_model_name="one",
                            model=folder_with_sampling(tmp_path / "model"))
    props = server.get("/props").json()
    assert props.pop("build_info").startswith("regla ")
    assert props == {
        "default_generation_settings": {"n_ctx": 200100, "params": {
            "temperature": 0.6, "top_k": 20, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1.1,
            "presence_penalty": 0, "frequency_penalty": 0}},
        "total_slots": 3, "model_alias": "one", "model_path": str(tmp_path / "model"),
        "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
        "modalities": {"vision": False, "audio": False}, "is_sleeping": False}

    def busy():
        slots = server.get("/slots").json()
        assert [slot["id"] for slot in slots] == [0, 1, 2] and {slot["n_ctx"] for slot in slots} == {200100}
        return [slot["is_processing"] for slot in slots]
    wait_until(lambda: busy() == [False] * 3, "nothing runs")
    with server.connect() as connection:
        begin_stream(connection, n=2)
        wait_until(lambda: busy() == [True, True, False], "two texts run")
    wait_until(lambda: busy() == [False] * 3, "they are cancelled")


def folder_with_sampling(folder):
    shutil.copytree(GOLDEN / "hybrid_regla", folder)
    (folder / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": 0, "eos_token_id": 0, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}))
    return folder


def test_the_longest_text_in_slots_is_what_memory_holds(server):
    props = server.get("/props").json()
    longest = props["default_generation_settings"].get("n_ctx")
    assert longest > 10000 and {slot["n_ctx"] for slot in server.get("/slots").json()} == {longest}
    server.refuse(400, prompt=[5], max_tokens=longest)
    assert len(server.get("/slots").json()) == props["total_slots"]


def test_metrics_format(server):
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    kinds = {}
    for line in reply.text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            name = re.match(r"[a-zA-Z_:]+", line).group()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds.get(base) == "histogram", line
            assert f'model="{server.model_id}"' in line, line
    for name, kind in {
            "regla_requests_running": "gauge", "regla_requests_waiting": "gauge",
            "regla_requests_total": "counter", "regla_prompt_tokens_total": "counter",
            "regla_generated_tokens_total": "counter",
            "regla_engine_step_seconds_total": "counter",
            "regla_engine_step_cpu_seconds_total": "counter",
            "regla_engine_seconds_total": "counter",
            "regla_time_to_first_token_seconds": "histogram",
            "regla_inter_token_latency_seconds": "histogram",
            "regla_request_duration_seconds": "histogram", "regla_queue_seconds": "histogram",
            "regla_memory_bytes": "gauge", "regla_memory_reserved_bytes": "gauge",
            "regla_memory_peak_bytes": "gauge",
            "regla_generation_tokens_per_second": "histogram",
            "regla_generation_peak_memory_bytes": "gauge"}.items():
        assert kinds.get(name) == kind, name


def test_the_documents_name_every_metric(server):
    has = set(re.findall(r"^# TYPE (\w+) ", server.get("/metrics").text, re.MULTILINE))
    documented = set(re.findall(r"`(regla_[a-z_]+)", (ROOT / "api" / "api.md").read_text()))
    assert len(has) > 30 and has == documented


@threads
def test_metrics_count(server):
    server.wait_idle()
    before = server.metrics()
    server.complete(prompt=[40] * 10, max_tokens=7, ignore_eos=True)
    server.refuse(400, prompt="x", temperature=9)
    server.wait_idle()
    after = server.metrics()

    def grown(name, **labels):
        return sum(value - before.get(key, 0) for key, value in after.items()
                   if key[0] == name and set(labels.items()) <= key[1])
    assert grown("regla_prompt_tokens_total") == 10
    assert grown("regla_generated_tokens_total") == 7
    assert grown("regla_requests_total", finish_reason="length") == 1
    assert grown("regla_requests_total", status="400") == 1
    assert grown("regla_time_to_first_token_seconds_count") == 1
    # Both have a resolution of nanoseconds, and seven tokens were computed.
    assert grown("regla_engine_step_seconds_total") > 0
    assert grown("regla_engine_step_cpu_seconds_total") > 0
    assert grown("regla_inter_token_latency_seconds_count") == 6
    assert grown("regla_generation_tokens_per_second_count", length="64") == 1
    assert grown("regla_generation_tokens_per_second_count") == 1


def test_the_engines_time_by_cause(server):
    def causes():
        return {cause: server.metric("regla_engine_seconds_total", cause=cause)
                for cause in ("device", "host", "idle")}
    server.complete(prompt=[40], max_tokens=1)
    server.wait_idle()
    before, began = causes(), time.monotonic()
    time.sleep(0.3)
    server.complete(prompt=[40] * 10, max_tokens=40, ignore_eos=True)
    server.wait_idle()
    elapsed, after = time.monotonic() - began, causes()
    grown = {cause: after[cause] - before[cause] for cause in before}
    assert grown["device"] > 0 and grown["host"] > 0 and grown["idle"] >= 0.29
    assert grown["device"] + grown["host"] < elapsed - 0.29


def test_histogram_buckets_add_up(server):
    server.complete(prompt="x", max_tokens=2)
    values = server.metrics()
    name = "regla_request_duration_seconds"
    buckets = sorted((float(dict(labels)["le"]), value) for (n, labels), value in values.items()
                     if n == name + "_bucket")
    counts = [value for _, value in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == sum(v for (n, _), v in values.items() if n == name + "_count")


def of_vllm():
    """What vLLM's own test asks for (tests/entrypoints/instrumentator/test_metrics.py): these 49 of
    0.11, with those that it hides since; and what came later."""
    histograms = ["request_prompt_tokens", "request_generation_tokens", "request_params_n",
                  "request_params_max_tokens", "time_per_output_token_seconds",
                  "time_to_first_token_seconds", "inter_token_latency_seconds",
                  "e2e_request_latency_seconds", "request_queue_time_seconds",
                  "request_inference_time_seconds", "request_prefill_time_seconds",
                  "request_decode_time_seconds"]
    plain = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
             "prefix_cache_queries", "prefix_cache_hits", "num_preemptions_total",
             "prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total",
             "cache_config_info", "request_success_total", "mm_cache_queries", "mm_cache_hits"]
    names = plain + [f"{name}_{part}" for name in histograms for part in ("sum", "bucket", "count")]
    assert len(names) == 49
    later = ["gpu_cache_usage_perc", "gpu_prefix_cache_queries", "gpu_prefix_cache_hits",
             "num_requests_waiting_by_reason", "admission_rejections_total"]
    return [f"vllm:{name}" for name in names + later]


def test_metrics_with_vllm_names(server_factory):
    server = server_factory(metrics_compat="vllm")
    requests, max_tokens = 6, 10
    prompts = [list(range(40 + i, 50 + i)) for i in range(requests)]  # none begins as another
    for prompt in prompts:
        server.complete(prompt=prompt, max_tokens=max_tokens, ignore_eos=True)
    text = server.get("/metrics").text
    for name in of_vllm():
        assert name in text

    def total(name, **labels):
        return sum(value for (n, found), value in server.metrics().items()
                   if n == f"vllm:{name}" and set(labels.items()) <= set(found))
    # as its test counts
    once = ["time_to_first_token_seconds", "e2e_request_latency_seconds",
            "request_queue_time_seconds", "request_inference_time_seconds",
            "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
            "request_generation_tokens", "request_params_n", "request_params_max_tokens"]
    assert {name: total(f"{name}_count") for name in once} == dict.fromkeys(once, requests)
    assert total("inter_token_latency_seconds_count") == requests * (max_tokens - 1)
    prompt_tokens, generated = sum(map(len, prompts)), requests * max_tokens
    assert total("request_prompt_tokens_sum") == total("prompt_tokens_total") == prompt_tokens
    assert total("request_generation_tokens_sum") == total("generation_tokens_total") == generated
    assert total("request_params_max_tokens_sum") == generated
    assert total("iteration_tokens_total_sum") == prompt_tokens + generated
    assert total("iteration_tokens_total_count") == generated
    assert total("request_success_total") == requests
    assert total("prefix_cache_queries_total") == prompt_tokens
    assert total("prefix_cache_hits_total") == total("num_preemptions_total") == 0
    assert total("request_inference_time_seconds_sum") == pytest.approx(
        total("request_prefill_time_seconds_sum") + total("request_decode_time_seconds_sum"))
    assert total("cache_config_info", block_size="64", enable_prefix_caching="True") == 1
    # several texts, some of it reused, something refused
    server.complete(prompt=prompts[0], max_tokens=2, n=3, ignore_eos=True)
    server.refuse(400, prompt=prompts[0], max_tokens=-2)
    assert total("prefix_cache_hits_total") == len(prompts[0])
    assert total("request_params_n_sum") == requests + 3
    assert total("request_generation_tokens_count") == requests + 3
    assert total("request_success_total", finished_reason="error") == 1


@threads
def test_memory_is_in_use_while_a_text_is(server):
    server.wait_idle()
    assert server.metric("regla_memory_bytes", component="weights") > 100000
    with server.connect() as connection:  # without stream, so that it need not be read
        connection.sendall(request_bytes("/v1/completions", {
            "prompt": [40] * 200, "max_tokens": 200000, "ignore_eos": True}))
        wait_until(lambda: server.metric("regla_memory_bytes", component="kv_cache"), "it runs")
        metrics = server.metrics()

    def value(name, component):
        return sum(v for (n, labels), v in metrics.items()
                   if n == name and ("component", component) in labels)
    assert value("regla_memory_bytes", "recurrent_state") > 0
    assert value("regla_memory_reserved_bytes", "kv_cache") > value("regla_memory_bytes", "kv_cache")
    server.wait_idle()


def test_families(server_factory):
    """Of GPT-NeoX each token adds to what a text takes; of GLA none does."""
    for case, family, grows in (("gpt_neox", "gpt_neox", True), ("gla", "gla", False)):
        server = server_factory(model=GOLDEN / case)
        model = server.get("/v1/models").json()["data"][0]
        assert (model["id"], model["family"]) == (case, family)
        assert (model["kv_bytes_per_token"] > 0) == grows
        assert (model["state_bytes_per_text"] > 0) != grows
