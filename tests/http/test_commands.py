# SPDX-License-Identifier: Apache-2.0
"""The other commands: check, info, tokenize, generate and perplexity, against the server and the
golden files."""

import json
import math
import re
import subprocess

import pytest

import checkpoints
from harness import BINARY, GOLDEN, SLOWNESS
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server

HYBRID = GOLDEN / "hybrid_regla"
COMMANDS = ["check", "info", "tokenize", "generate", "perplexity", "compare"]
TEXT = "The quick brown fox, naïvely:\n  jumped over 13 lazy dogs. 😀 The end of the story."


def fed(text, *arguments):
    """A command that reads bytes from standard input."""
    return subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, input=text,
                          timeout=60 * SLOWNESS)


def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def greedy_text(server, prompt, count):
    return server.complete(prompt=prompt, max_tokens=count, temperature=0,
                           ignore_eos=True)["choices"][0]["text"]


# All that compute

@pytest.mark.parametrize("command", [
    ["serve", "--port", "0", "--model", "DIR"], ["bench", "--model", "DIR"], ["info", "DIR"],
    ["bench", "--preset", "regla-6l"], ["check", "DIR"], ["generate", "DIR"],
    ["perplexity", "DIR", HYBRID / "config.json"], ["compare", "DIR", "f32", "q8", "questions"],
    ["study", "--out", "DIR"],
    ["study", "--point", "regla:1:1:1"]], ids=lambda command: command[0])
@pytest.mark.parametrize("device,status", [("cuda:1023", 1), ("cuda:1024", 1),
                                           ("gpu", 2)])
def test_a_device_that_is_not_there_is_said_before_anything_is_read(tmp_path, command, device,
                                                                    status):
    missing = tmp_path / "missing"
    result = regla(*[missing if part == "DIR" else part for part in command], "--device", device)
    assert result.returncode == status and result.stdout == "", result.stdout
    assert device.removeprefix("cuda:") in result.stderr and result.stderr.count("\n") == 1
    assert "missing" not in result.stderr and not missing.exists()


# check

def changed_case(tmp_path, change):
    folder = checkpoints.copy_of(tmp_path / "case")
    path = folder / "expected.json"
    expected = json.loads(path.read_text())
    change(expected)
    path.write_text(json.dumps(expected))
    return regla("check", folder)


def test_check_passes_and_counts():
    result = regla("check", "--reproducibility", HYBRID, GOLDEN / "gla_two_kv_heads")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASS") == 2 and "the same bits in" in result.stdout
    assert result.stdout.splitlines()[-1] == "check: 2 passed, 0 failed"


def shift_prompt(expected):
    expected["prompt_logprobs"][3] += 2 * expected["tolerance"]


def shift_top(expected):
    expected["top5"][7][2][1] -= 2 * expected["tolerance"]


def other_top(expected):
    expected["top5"][7][0][0] = (expected["top5"][7][0][0] + 1) % 275


def other_greedy(expected):
    expected["greedy"][2] = (expected["greedy"][2] + 1) % 275


@pytest.mark.parametrize("change, place", [
    (shift_prompt, "prompt_logprobs[3]"), (shift_top, "top5[7]"), (other_top, "top5[7]"),
    (other_greedy, "greedy[2]")])
def test_check_fails_where_expected_differs(tmp_path, change, place):
    result = changed_case(tmp_path, change)
    assert result.returncode == 1 and place in result.stdout, result.stdout
    assert result.stdout.splitlines()[-1] == "check: 0 passed, 1 failed"


def test_check_allows_another_greedy_token_after_a_small_margin(tmp_path):
    def change(expected):
        expected["greedy_margin"][1] = 5e-4
        other_greedy(expected)
    assert changed_case(tmp_path, change).returncode == 0


@pytest.mark.parametrize("change, word", [
    (lambda e: e.pop("tolerance"), "tolerance"), (lambda e: e["greedy"].pop(), "greedy_margin"),
    (lambda e: e["prompt"].append(0), "prompt_logprobs"), (lambda e: e["top5"][3].pop(), "top5[3]"),
    (lambda e: e.update(prompt=[]), "prompt"), (lambda e: e["prompt"].insert(0, 275), "prompt[0]"),
    (lambda e: e["greedy"].insert(0, -1), "greedy[0]")])
def test_check_names_what_is_wrong_in_expected(tmp_path, change, word):
    result = changed_case(tmp_path, change)
    assert result.returncode == 1
    assert "expected.json" in result.stderr and word in result.stderr, result.stderr


def test_check_goes_on_after_a_case_that_cannot_run(tmp_path):
    result = regla("check", tmp_path, HYBRID)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "check: 1 passed, 1 failed"
    assert "config.json" in result.stderr


# info

def test_info(server):
    text = regla("info", HYBRID)
    assert text.returncode == 0
    for word in ("hybrid_regla", "110424", "state per text", "KV per token", "refined", "rope"):
        assert word in text.stdout, word
    told = json.loads(regla("info", HYBRID, "--json").stdout)
    assert told["parameters"] == 110424 and told["dtype"] == "F32"
    assert [layer["kind"] for layer in told["layers"]] == ["linear", "softmax"] * 2
    served = server.get("/v1/models").json()["data"][0]
    assert served["parameters"] == told["parameters"]


QUAD = {"kind": "softmax", "activation": "relu2", "score_divisor": 4, "position": "rope"}
ADDED = {**QUAD, "distance_bias": 20, "window": "block", "window_size": 20, "combine": "add"}
PARTS = {"feature_map", "gate", "chunk_size", "distance_bias", "activation", "window", "window_size",
         "segment_length", "segment_rank", "score_divisor", "combine", "second"}


@pytest.mark.parametrize("name, expected, second", [
    ("flash", ADDED, {"kind": "linear", "feature_map": "identity", "gate": "none", "chunk_size": 20}),
    ("parallel_blocks", {"activation": "relu", "window": "block", "window_size": 13,
                         "combine": "concatenate"}, {"feature_map": "elu", "gate": "none"}),
    ("flash_quad", {**QUAD, "distance_bias": 40, "window": "full"}, None),
    ("transformer_ls", {"activation": "softmax", "window": "long_short", "window_size": 24,
                        "segment_length": 16, "segment_rank": 1}, None)])
def test_info_tells_mixers_apart(name, expected, second):
    """A key that does not apply is not there."""
    layer = json.loads(regla("info", GOLDEN / name, "--json").stdout)["layers"][0]
    for mixer, keys in (layer, expected), (layer.pop("second", None), second):
        assert (mixer is None) == (keys is None)
        assert mixer is None or {**mixer, **keys} == mixer
        assert mixer is None or PARTS & set(mixer) == PARTS & set(keys)


def test_info_says_of_each_layer_what_it_is_and_costs():
    told = json.loads(regla("info", GOLDEN / "blocks_branches", "--json").stdout)["layers"]
    assert [layer["layer"] for layer in told] == ["side_by_side", "only_mlp", "only_mixer", "mlp_first"]
    assert [layer.get("mixer") for layer in told] == ["linear", None, "linear", "softmax"]
    assert [[m["mixer"] for m in layer["other_mixers"]] for layer in told] == [["softmax"], [], [], []]
    assert [[m["intermediate_size"] for m in layer["mlps"]] for layer in told] == [[21], [30], [], [17]]
    plain = {"hidden_act": "gelu", "gated": False, "intermediate_size": 17}
    assert told[3]["mlps"] == [plain]
    # gate, up and down of 28 x 30 numbers, and no state
    assert told[1]["weights_bytes"] == 4 * 3 * 28 * 30 and told[1]["operations"] == 2 * 3 * 28 * 30
    assert told[1]["state_bytes"] == told[1]["kv_bytes_per_token"] == 0
    assert told[2]["state_bytes"] > 0 and told[2]["kv_bytes_per_token"] == 0
    assert told[3]["state_bytes"] == 0 and told[3]["kv_bytes_per_token"] > 0


def test_info_prints_the_program():
    text = regla("info", HYBRID, "--program").stdout
    assert "layer 3\n" in text and "behind the layers\n" in text
    assert ("b0 += o_proj [48, 48] x rmsnorm(b3), in 4 parts; weights 9216 bytes; "
            "0.005 million operations\n") in text
    assert "a = refined_gate(b2+144, b2+192); state 6144 bytes" in text and "linear: " not in text
    told = json.loads(regla("info", HYBRID, "--json", "--program").stdout)
    program, layers = told["program"], told["layers"]
    assert [one["operation"] for one in program[:4]] == ["embed", "matmul", "recurrence", "matmul"]
    assert program[0]["layer"] is None and program[-1]["layer"] is None
    for number, layer in enumerate(layers):
        own = [one for one in program if one["layer"] == number]
        for cost in ("weights_bytes", "operations"):
            assert abs(sum(one[cost] for one in own) - layer[cost]) <= len(own)


def test_info_tells_of_equal_layers_once():
    text = regla("info", GOLDEN / "softmax_rope").stdout
    layers = len(json.loads(regla("info", GOLDEN / "softmax_rope", "--json").stdout)["layers"])
    assert layers > 1 and f"  0-{layers - 1}  " in text and text.count("position rope") == 1
    text = regla("info", HYBRID).stdout
    assert "\n  0, 2  r: " in text and "\n  1, 3  s: " in text


# tokenize

def test_tokenize_is_the_servers(server):
    ids = tokens_of(server, TEXT)
    told = json.loads(regla("tokenize", HYBRID, "--text", TEXT, "--format", "json").stdout)
    assert told == {"tokens": ids, "count": len(ids)}
    assert regla("tokenize", HYBRID / "tokenizer.json", "--text", TEXT, "--format",
                 "ids").stdout.split() == [str(i) for i in ids]
    assert regla("tokenize", HYBRID, "--text", TEXT, "--format",
                 "count").stdout.strip() == str(len(ids))
    lines = regla("tokenize", HYBRID, "--text", TEXT).stdout.splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == ids


def test_tokenize_and_back():
    encoded = fed(TEXT.encode(), "tokenize", HYBRID, "--format", "ids").stdout
    assert fed(encoded, "tokenize", HYBRID, "--decode").stdout == TEXT.encode()
    assert fed(b"[1, 2,x]", "tokenize", HYBRID, "--decode").returncode == 1
    cut = fed(b"1 2\0 3", "tokenize", HYBRID, "--decode")
    assert cut.returncode == 1 and cut.stdout == b"" and b"NUL byte at byte 3" in cut.stderr
    assert regla("tokenize", HYBRID, "--text", "-h", "--format", "count").stdout == "2\n"
    assert b"UTF-8" in fed(b"\xff", "tokenize", HYBRID).stderr


# generate

def test_generate_is_the_servers_greedy_text(server):
    result = regla("generate", HYBRID, "--prompt", TEXT, "--max-tokens", 20, "--temperature", 0,
                   "--ignore-eos")
    assert result.returncode == 0, result.stderr
    assert result.stdout == greedy_text(server, TEXT, 20) + "\n"
    assert "20 tokens" in result.stderr


def test_generate_from_standard_input_with_echo(server):
    result = fed(TEXT.encode() + b"\n", "generate", HYBRID, "--max-tokens", 5, "--temperature", 0,
                 "--ignore-eos", "--echo", "--quiet")
    assert result.stdout.decode() == TEXT + greedy_text(server, TEXT, 5) + "\n"
    assert result.stderr == b""


def test_generate_stops_before_a_stop_string(server):
    whole = greedy_text(server, TEXT, 30)
    for stop in (whole[4:7], whole[9]):
        result = regla("generate", HYBRID, "--prompt", TEXT, "--max-tokens", 30, "--temperature",
                       0, "--ignore-eos", "--stop", stop, "--stop", "never to come")
        assert result.stdout == whole[:whole.index(stop)] + "\n"
        assert "stop string" in result.stderr


def test_generate_keeps_to_a_form(tmp_path):
    choices = ["--choice", "yes", "--choice", "no, never"]
    result = regla("generate", HYBRID, "--prompt", "a", "--max-tokens", 40, "--temperature", 1, *choices)
    assert result.returncode == 0 and result.stdout in ("yes\n", "no, never\n")
    assert "ended by its form" in result.stderr
    result = regla("generate", HYBRID, "--prompt", "a", "--ignore-eos", "--choice", "")
    assert result.returncode == 0 and result.stdout == "" and "ended by its form" in result.stderr
    result = regla("generate", HYBRID, "--prompt", "a", "--temperature", 1, "--regex", "[a-c]{3}-\\d")
    assert re.fullmatch("[a-c]{3}-\\d\n", result.stdout)
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}')
    result = regla("generate", HYBRID, "--prompt", "a", "--temperature", 1, "--json-schema", schema)
    assert len(json.loads(result.stdout)) in (2, 3)
    schema.write_text('{"items": {"type": "list"}}')
    for wrong, words in ((["--regex", "("], "--regex: offset 1"),
                         (["--json-schema", schema], "schema.json: $.items.type"),
                         (["--json-schema", tmp_path / "none"], "none: cannot open"),
                         (["--regex", "a", *choices], "--choice: a text has one form")):
        result = regla("generate", HYBRID, "--prompt", "a", *wrong)
        assert result.returncode != 0 and words in result.stderr and not result.stdout


def test_generate_draws_by_seed():
    def drawn(seed):
        return regla("generate", HYBRID, "--prompt", "a", "--max-tokens", 40, "--temperature", 1,
                     "--top-p", 1, "--seed", seed, "--ignore-eos").stdout
    assert drawn(7) == drawn(7) and drawn(7) != drawn(8)


def test_generate_ends_at_the_last_position():
    result = regla("generate", GOLDEN / "sliding_parallel_learned", "--prompt", "abc",
                   "--max-tokens", 500, "--ignore-eos")
    assert result.returncode == 0 and "last position" in result.stderr


def test_generate_an_empty_prompt_begins_with_bos():
    assert regla("generate", HYBRID, "--prompt", "", "--max-tokens", 2).returncode == 0


# perplexity

def nll_of(server, ids):
    """Of ids[1:], as the API's echo tells it."""
    choice = server.complete(prompt=ids, max_tokens=1, echo=True, logprobs=0,
                             temperature=0)["choices"][0]
    return -math.fsum(choice["logprobs"]["token_logprobs"][1:len(ids)])


def score(path, *arguments):
    result = regla("perplexity", HYBRID, path, "--json", "--quiet", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_perplexity_of_a_text(server, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    ids = [0, *tokens_of(server, TEXT)]  # 0: the model's BOS
    got = score(path)
    assert got["documents"] == 1 and got["tokens"] == len(ids) - 1
    assert got["words"] == len(TEXT.split()) and got["bytes"] == len(TEXT.encode())
    nll = nll_of(server, ids)
    assert got["nll"] == pytest.approx(nll, abs=1e-4)  # the API rounds each log-probability to f32
    assert got["ppl_token"] == pytest.approx(math.exp(nll / got["tokens"]), rel=1e-4)
    assert got["ppl_word"] == pytest.approx(math.exp(nll / got["words"]), rel=1e-4)
    assert got["bits_per_byte"] == pytest.approx(nll / math.log(2) / got["bytes"], rel=1e-4)


def test_perplexity_in_windows(server, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    ids = [0, *tokens_of(server, TEXT)]
    windows = [ids[at:at + 17] for at in range(0, len(ids) - 1, 16)]
    expected = math.fsum(nll_of(server, window) for window in windows)
    got = score(path, "--context", 16)
    assert got["tokens"] == len(ids) - 1
    assert got["nll"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("context, stride", [(16, 5), (16, 16), (9, 1), (1000, 3)])
def test_perplexity_in_windows_that_overlap(server, tmp_path, context, stride):
    """The loop of Hugging Face's guide, whose max_length is ours and the last target."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    ids = [0, *tokens_of(server, TEXT)]
    expected, scored = 0, 0
    for begin in range(0, len(ids), stride):
        window = ids[begin:begin + context + 1]
        end = begin + len(window)
        expected += nll_of(server, window) - (nll_of(server, window[:scored - begin])
                                              if scored - begin > 1 else 0)
        scored = end
        if end == len(ids):
            break
    got = score(path, "--context", context, "--stride", stride)
    assert got["tokens"] == len(ids) - 1
    assert got["nll"] == pytest.approx(expected, abs=1e-3)


def test_perplexity_refuses_a_stride_past_its_window(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 20)
    for arguments, window in [(["--context", "16"], "16"), (["--state-memory", "256K"], "")]:
        result = regla("perplexity", HYBRID, path, *arguments, "--stride", 100000)
        assert result.returncode == 1
        assert f"--stride: expected at most a window's {window}" in result.stderr


def test_perplexity_counts_words_by_unicode_white_space(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a\u00a0b\u2003c\u3000d\u0085e \u2028\u1680f\u200bg\n")
    assert score(path)["words"] == 6  # U+200B is none


def test_perplexity_of_many_documents_is_the_sum_of_each(tmp_path):
    texts = [TEXT[at:at + 5 + 7 * (at % 11)] for at in range(0, len(TEXT) - 12)] * 2
    path = tmp_path / "texts.jsonl"
    path.write_text("\n\n".join(json.dumps({"n": i, "text": t}) for i, t in enumerate(texts)))
    together = score(path, "--by-position")
    assert together["documents"] == len(texts)
    assert together["bytes"] == sum(len(text.encode()) for text in texts)
    alone = tmp_path / "alone.jsonl"
    each = []
    for text in texts[:8]:
        alone.write_text(json.dumps({"text": text}))
        each.append(score(alone))
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts[:8]))
    some = score(path, "--by-document")
    assert some["nll"] == pytest.approx(math.fsum(one["nll"] for one in each), rel=1e-9)
    assert some["by_document"] == [{"tokens": one["tokens"], "nll": one["nll"]} for one in each]
    shown = regla("perplexity", HYBRID, path, "--by-document").stdout
    assert shown.count("\ndocument ") == 8
    places = together["by_position"]
    assert sum(place["tokens"] for place in places) == together["tokens"]
    assert sum(place["tokens"] * place["nll_per_token"]
               for place in places) == pytest.approx(together["nll"], rel=1e-6)


def test_perplexity_with_little_memory_scores_in_windows(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 20)
    result = regla("perplexity", HYBRID, path, "--state-memory", "256K", "--json")
    assert result.returncode == 0, result.stderr
    assert "windows of" in result.stderr
    assert json.loads(result.stdout)["tokens"] == score(path)["tokens"]


@pytest.mark.parametrize("name, content, word", [
    ("a.jsonl", '{"text": "a"}\n\0{"text": "b"}\n', "line 2"),
    ("a.jsonl", '{"text": "a"}\0\n{"text": "b"}\n', "line 1"),
    ("a.jsonl", '{"text": "a"}\n{"text": 3}\n', "line 2"), ("a.jsonl", '{"text": "a"\n', "line 1"),
    ("a.jsonl", '{"txt": "a"}\n', "text"), ("a.txt", "", "got none"), ("a.jsonl", "\n\n", "got none"),
    ("a.txt.xz", "", "compressed")])
def test_perplexity_names_what_is_wrong(tmp_path, name, content, word):
    path = tmp_path / name
    path.write_text(content)
    result = regla("perplexity", HYBRID, path)
    assert result.returncode == 1 and word in result.stderr, result.stderr
    assert result.stdout == ""


def test_perplexity_of_standard_input():
    for text in (b'{"text": "abc"}\n', b"abc"):
        result = fed(text, "perplexity", HYBRID, "-", "--json")
        assert json.loads(result.stdout)["bytes"] == 3, result.stderr


# all

@pytest.mark.parametrize("arguments, told", [
    (["info", HYBRID / "config.json"], "expected a model's directory or a GGUF file, got another file"),
    (["info", ""], "expected a model's directory, got \"\""),
    (["info", "--presets", HYBRID], "--presets: expected nothing beside it; usage: regla info (MODEL"),
    (["info", HYBRID, "more"], "--program], or regla info --presets"),
    (["bench", "--model", GOLDEN / "sliding_parallel_learned", "--pp", 0, "--tg", 4, "--depth", 5000,
      "--batch", 3], "tg4@5000, batch 3: max_tokens: the model has 128 positions"),
    (["info", "/nowhere"], "/nowhere: cannot open: No such file or directory"),
    (["serve", HYBRID], "usage: regla serve --model PATH"),
    (["serve", "--model", HYBRID, "--port", 0, "--served-model-name", ""],
     "--served-model-name (REGLA_SERVED_MODEL_NAME): expected a name, got an empty text"),
    (["serve", "--model", HYBRID, "--api-key-file", HYBRID],
     "hybrid_regla: cannot read: Is a directory"),
    (["serve", "--model", HYBRID, "--no-prefix-cache=1"], "--no-prefix-cache: expected no value, got \"1\""),
    (["tokenize", "--text", "x"], "expected a model's directory, a GGUF file or a tokenizer.json; usage: "),
    (["tokenize", HYBRID, "--decode", "--text", "3 99999999"], "99999999"),
    (["tokenize", HYBRID / "config.json", "--text", "x"], 'config.json: top level: unknown key "model_type"'),
    (["serve", "--model", HYBRID, "--port", 0, "--state-memory", 100],
     "--state-memory: not even one token fits: "),
    (["serve", "--model", HYBRID, "--port", 0, "--state-dir", HYBRID / "config.json"],
     "--state-dir: "),
])
def test_what_is_wrong_is_told(arguments, told):
    result = regla(*arguments)
    assert result.returncode in (1, 2) and told in result.stderr, result.stderr
    assert result.stdout == ""


def test_a_variable_that_stands_in_the_way_is_named(monkeypatch):
    monkeypatch.setenv("REGLA_MODEL", str(HYBRID))
    result = regla("serve", "--preset", "regla-6l")
    assert result.returncode == 2 and "both (REGLA_MODEL is set)" in result.stderr
    monkeypatch.setenv("REGLA_API_KEY", "")
    result = regla("serve", "--port", 0)
    assert result.returncode in (1, 2) and "--api-key (REGLA_API_KEY): " in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_wrong_usage(command):
    told = regla(command, "--help")
    assert told.returncode == 0 and f"usage: regla {command}" in told.stdout
    assert told.stdout == regla("help", command).stdout == regla("--help", command).stdout
    assert "REGLA_" in told.stdout
    for arguments in ([], [HYBRID, "--no-such-flag"]):
        result = regla(command, *arguments)
        assert result.returncode == 2 and result.stderr.startswith(f"regla {command}: ")
        assert result.stdout == ""
