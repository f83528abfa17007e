# SPDX-License-Identifier: Apache-2.0
"""regla compare: two formats of one model, beside each other."""

import json
import re

import pytest

from harness import GOLDEN, ROOT
from recital import Recital
from test_commands import fed
from test_lifecycle import regla

pytestmark = pytest.mark.builds("dev", "asan")  # processes without a server

HYBRID = GOLDEN / "hybrid_regla"
PACES = ["--pp", "9", "--tg", "5", "--repeat", "1"]
QUIET = ["--pp", "0", "--tg", "0", "--quiet"]
DATA = ROOT / "tests" / "data" / "questions"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((ROOT / "engine/README.md").read_text()[:1500])
    return path


def compare(*arguments):
    result = regla("compare", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def refused(*arguments, status=1):
    result = regla("compare", *arguments)
    assert result.returncode == status and result.stdout == "", result.stdout
    return result.stderr


def test_a_format_with_itself(text):
    shown = compare(HYBRID, "f32/f32", "/f32/f32", text, *QUIET)
    assert shown["text"]["divergence"] == {"mean": 0, "p99": 0, "worst": 0}
    assert shown["text"]["same_best"] == 1
    assert shown["a"] == shown["b"]
    assert [shown["a"][part] for part in ("weights", "activations", "kv")] == ["f32"] * 3


@pytest.mark.parametrize("windows", [[], ["--context", "100"], ["--context", "64", "--stride", "24"]])
def test_perplexity_is_that_of_its_command(text, windows):
    shown = compare(HYBRID, "f32/f32/f32", "q4/f32/f16", text, "--tokens", "0", *QUIET, *windows)
    for side, weights, kv in (("a", "f32", "f32"), ("b", "q4", "f16")):
        flags = ["--weights", weights, "--kv", kv]
        alone = json.loads(regla("perplexity", HYBRID, text, "--json", "--quiet", *flags, *windows).stdout)
        assert shown["text"]["tokens"] == alone["tokens"]
        assert shown[side]["nll"] == alone["nll"] and shown[side]["ppl_token"] == alone["ppl_token"]
    divergence = shown["text"]["divergence"]
    assert 0 < divergence["mean"] < divergence["p99"] < divergence["worst"]
    assert 0.5 < shown["text"]["same_best"] < 1


def test_documents_and_how_many_tokens(tmp_path):
    path = tmp_path / "texts.jsonl"
    texts = ("one", "", "two more", "3" * 90)
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    whole, cut, least = (compare(HYBRID, "f32/f32", "q8/f32", path, *QUIET, "--tokens", tokens)["text"]
                         for tokens in ("0", "40", "1"))
    assert whole["tokens"] > 60 and whole["documents"] == 4
    assert cut["tokens"] == 40 and least["tokens"] == least["documents"] == 1
    assert fed(texts[3].encode(), "compare", HYBRID, "f32", "q8/f32", "-", *QUIET).returncode == 0


def test_what_people_see(text):
    result = regla("compare", HYBRID, "f32/f32/f32", "q8/f32/f16", text, "--tokens", "200", *PACES)
    assert result.returncode == 0, result.stderr
    for line in (r"weights/activations/KV +f32/f32/f32 +q8/f32/f16",
                 r"perplexity per token( +[\d.]+){2} +[+-][\d.]+ %",
                 r"tokens/s, pp9( +[\d.]+){2} +[+-][\d.]+ %",
                 r"tokens/s, tg5( +[\d.]+){2} +[+-][\d.]+ %", f"B's next token from A's, 200 of {text}:",
                 r"divergence \(nats\) +mean [\d.e-]+, 99th hundredth [\d.e-]+, worst [\d.e-]+",
                 r"same best token +[\d.]+ %"):
        assert re.search(f"^{line}$", result.stdout, re.MULTILINE), result.stdout
    assert "tokens scored" in result.stderr


@pytest.mark.parametrize("name, content, words", [
    ("text.txt", b"", ["expected text to score, got none"]),
    ("text.txt", b"\xff\xfe", ["document 1", "UTF-8"]),
    ("text.jsonl", b"{}", ["line 1", "text"]),
    ("text.txt.xz", b"x", ["compressed"])])
def test_a_text_that_is_none(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(HYBRID, "f32", "q8/f32", path, *QUIET)
    assert all(word in message for word in words) and message.count("\n") == 1, message


def test_formats_that_do_not_fit(text):
    message = refused(HYBRID, "f32", "bf16/8bit", text)
    assert message.startswith("regla compare: B, bf16/8bit/auto: activations: 8bit goes with"), message
    message = refused(HYBRID, "q9", "f32", text, status=2)
    assert message.startswith("regla compare: A: weights: expected auto, f32"), message


def test_little_memory_means_windows(text):
    result = regla("compare", HYBRID, "f32/f32", "f32/f32/f16", text, *QUIET, "--tokens", "0",
                   "--state-memory", "512K")
    assert result.returncode == 0 and "is scored in windows of" in result.stderr, result.stderr


# questions

BEYOND = "It may be, or not, London"  # at most 24 tokens of an answer count, here bytes
RECITED = [
    # (recited, accepted, right)
    ("Paris, of course", ["Paris"], True),
    ("It is PARIS!", ["nothing", "paris"], True),
    ("a Parisian", ["Paris"], False),
    ("concatenate", ["cat", "cats"], False),
    ("twenty_five 15", ["five", "5"], False),
    ("2 + 3 =\n5.", ["five", "5"], True),
    ("DAS ÖL", ["öl"], True),
    (BEYOND, ["London"], False),
    ("", ["nothing"], False),
]


@pytest.fixture(scope="module")
def recited(tmp_path_factory):
    """A model that answers a question by its length, and the questions."""
    folder = tmp_path_factory.mktemp("recital")
    recital = Recital({})
    first = 10
    begins = [recital.add(text) for text, _, _ in RECITED]
    model = recital.write(folder / "model", "smollm", first)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    questions = folder / "questions.jsonl"
    questions.write_text("".join(
        json.dumps({"question": "q" * (first + begin + 1), "accepted": accepted}) + "\n"
        for begin, (_, accepted, _) in zip(begins, RECITED, strict=True)))
    return model, questions


def test_answers_are_judged(recited):
    """Each question has the answer that the model recites, in both formats; wrong ones among them have
    the accepted word in a longer one, or too late."""
    model, questions = recited
    shown = compare(model, "f32/f32", "q8/f32", "--questions", questions, *QUIET)
    answers = shown["questions"]["answers"]
    assert shown["questions"]["count"] == len(answers) == len(RECITED)
    for answer, (text, accepted, right) in zip(answers, RECITED, strict=True):
        cut = text.encode()[:24].decode()
        assert answer["accepted"] == accepted
        assert answer["a"] == answer["b"] == {"answer": cut, "right": right}, answer
    assert shown["a"]["right"] == shown["b"]["right"] == sum(right for _, _, right in RECITED)
    assert "text" not in shown and "ppl_token" not in shown["a"]


def test_text_and_questions_at_once(recited, text):
    model, questions = recited
    shown = compare(model, "f32", "f32/f32/f16", text, "questions", "--questions", questions, *PACES,
                    "--tokens", "50", "--quiet")
    assert shown["text"]["tokens"] == 50 and shown["questions"]["count"] == len(RECITED)
    assert all(shown[side][f"{what}_tokens_per_second"] > 0
               for side in "ab" for what in ("prompt", "generated"))


def test_the_built_in_questions(tmp_path):
    """All hundred are asked, in chats by a template of one's own; a random model answers none by more
    than chance. What one of the two alone has right is shown."""
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    shown = compare(HYBRID, "f32/f32", "q4/f32", "questions", "--chat-template", template, *QUIET)
    answers = shown["questions"]["answers"]
    lines = [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()]
    assert len(lines) == len(answers) == 100
    assert [(each["question"], each["accepted"]) for each in answers] == [
        (each["question"], each["accepted"]) for each in lines]
    for side in "ab":
        assert shown[side]["right"] == sum(each[side]["right"] for each in answers) < 20
        for each in answers:
            assert each[side]["right"] == by_expression(each[side]["answer"], each["accepted"])


def by_expression(answer, accepted):
    """The judge, as the questions' README has it."""
    return any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in accepted)


def test_recorded_answers_are_judged_by_expressions_as_by_us():
    """What the recorded runs have right (test_questions.c judges them, and two planted wrong answers) is
    right by Python's regular expressions, too."""
    questions = [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()]
    runs = json.loads((DATA / "answers.json").read_text())["runs"]
    assert len(runs) >= 3
    for run in runs.values():
        right = [by_expression(answer, each["accepted"])
                 for answer, each in zip(run["answers"], questions, strict=True)]
        assert sum(right) == run["right"]


@pytest.mark.parametrize("content, words", [
    (b"", ["expected a question a line, got none"]),
    (b'{"question": "?", "accepted": ["a"]}\n{"question": "?"}', ["line 2", "accepted"]),
    (b'{"question": "?", "accepted": [1]}', ["line 1", "accepted[0]", "expected a word, got a number"]),
    (b'{"question": "\xff", "accepted": ["a"]}', ["line 1"]),
    (b"[" * 5000, ["line 1"])])
def test_questions_that_are_none(tmp_path, content, words):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    message = refused(HYBRID, "f32", "q8/f32", "--questions", path)
    assert all(word in message for word in ["mine.jsonl", *words]) and message.count("\n") == 1, message


def test_a_model_without_a_chat_template(text):
    message = refused(HYBRID, "f32", "q8/f32", text, "questions", "--pp", "0", "--tg", "0")
    assert "questions: expected a chat template, got none: " in message, message
    assert "tokens scored" not in message  # it is told before anything is computed
