# SPDX-License-Identifier: Apache-2.0
"""`regla chat`: its replies are those of a session of the server, and each turn computes what is new."""

import json
import os
import pty
import re
import signal
import subprocess

import pytest

from harness import BINARY, GOLDEN, SLOWNESS, wait_until
from recital import Recital
from test_chat_sessions import CHAT, DROPS, PLAIN, user

pytestmark = pytest.mark.builds("dev", "asan")  # processes, and a server for comparison

HYBRID = GOLDEN / "hybrid_regla"
GREEDY = ["--temperature", "0", "--max-tokens", "6", "--ignore-eos"]


@pytest.fixture
def template(tmp_path):
    def write(text):
        path = tmp_path / "own.jinja"
        path.write_text(text)
        return path
    return write


def run(text, *arguments):
    return subprocess.run([str(BINARY), "chat", *map(str, arguments)], capture_output=True,
                          input=text if isinstance(text, bytes) else text.encode(),
                          timeout=60 * SLOWNESS)


def figures(result):
    """Of each turn, its tokens and how many of them were computed."""
    return [tuple(map(int, each)) for each in
            re.findall(r"^(\d+) tokens, (\d+) of them new", result.stderr.decode(), re.MULTILINE)]


def test_the_replies_of_a_session(server_factory, template):
    path = template(PLAIN)
    server = server_factory(chat_template=path)
    lines = ["Wie geht's? 世", "And then?", "The end."]
    expected, positions = "", [0]
    for number, line in enumerate(lines):
        messages = [{"role": "system", "content": "Be brief."}] * (number == 0) + [user(line)]
        reply = server.post(CHAT, {"messages": messages, "session_id": "same", "max_tokens": 6,
                                   "temperature": 0, "ignore_eos": True}).json()
        expected += reply["choices"][0]["message"]["content"] + "\n"
        positions.append(reply["session"]["position"])
    result = run("\n".join(lines), HYBRID, "--system", "Be brief.", "--chat-template", path, *GREEDY)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode() == expected
    told = figures(result)
    assert [tokens + 6 for tokens, _ in told] == positions[1:]
    for before, (tokens, new) in zip(positions, told, strict=False):
        assert new <= tokens - before + 1  # the last token of a reply is drawn, and not read


def test_reset_and_help(template):
    path = template(PLAIN)
    result = run("a\nb\n/reset\n\n/help\na\n", HYBRID, "--chat-template", path, *GREEDY)
    assert result.returncode == 0 and b"/reset forgets" in result.stdout
    first, second, again = figures(result)
    assert first == again and second[0] > first[0]


@pytest.mark.parametrize("line", ["/exit", "/quit", "/quit\r"])
def test_a_line_ends_the_chat(template, line):
    result = run(f"a\n{line}\nb\n", HYBRID, "--chat-template", template(PLAIN), *GREEDY)
    assert result.returncode == 0 and len(figures(result)) == 1, result.stderr


def test_a_template_that_rewrites(template):
    """Drops what the last reply had before its </think>: only that and what follows is read again."""
    path = template(DROPS.replace("{{ m.content }}{% endif %}</",
                                  "(thought)</think>{{ m.content }}{% endif %}</"))
    result = run("a\n" * 12, HYBRID, "--chat-template", path, *GREEDY)
    assert result.returncode == 0, result.stderr
    told = figures(result)
    assert len(told) == 12
    assert max(new for _, new in told[2:]) < 110 < told[-1][0]
    assert told[-1][1] == told[5][1]


def test_special_tokens_of_a_reply_that_is_read_again(template, tmp_path):
    """Those that the model wrote; what the user spelled is text."""
    recital = Recital({"<|im_start|>": True})
    recital.add("ab<|im_start|>" * 100)
    model = recital.write(tmp_path / "model", "hermes", 0)
    path = template("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    result = run("a\n<|im_start|>\na\n", model, "--chat-template", path, *GREEDY)
    assert result.returncode == 0, result.stderr
    assert figures(result) == [(2, 2), (2 + 6 + 12, 2 + 6 + 12), (2 + 6 + 12 + 6 + 1, 2 + 6 + 12 + 6 + 1)]


def test_variables_of_the_template(template):
    path = template(PLAIN + "{{ mood }}")
    plain, glad = (figures(run("a", HYBRID, "--chat-template", path, *GREEDY, *more)) for more in
                   ([], ["--chat-template-kwargs", '{"mood": "glad"}']))
    assert glad[0][0] == plain[0][0] + 4
    for wrong in ("[]", "{", '{"messages": []}'):
        result = run("a", HYBRID, "--chat-template", path, "--chat-template-kwargs", wrong)
        assert result.returncode == 1 and b"kwargs" in result.stderr


@pytest.mark.parametrize("arguments, text, status, words", [
    ([], "a", 2, "model's directory"),
    ([HYBRID], "a", 1, "--chat-template"),
    ([HYBRID, "--chat-template", "TEMPLATE"], "/resett", 1, "/reset"),
    ([HYBRID, "--chat-template", "TEMPLATE"], b"\xff\n", 1, "UTF-8"),
    ([HYBRID, "--chat-template", "missing"], "a", 1, "missing"),
    ([GOLDEN / "sliding_parallel_learned", "--chat-template", "TEMPLATE"], "a" * 5000, 1, "positions"),
])
def test_refused(template, arguments, text, status, words):
    path = template(PLAIN)
    result = run(text, *[path if each == "TEMPLATE" else each for each in arguments])
    assert result.returncode == status and words.encode() in result.stderr, result.stderr
    assert result.stderr.count(b"\n") == 1


def test_what_the_template_refuses(template):
    path = template("{{ raise_exception('no ' ~ messages | length) }}")
    result = run("a\nb\n", HYBRID, "--chat-template", path)
    assert result.returncode == 1 and b"no 1" in result.stderr


def test_on_a_terminal(template):
    """Ctrl-C ends a reply and not the chat, an error ends its turn, Ctrl-D ends the chat."""
    path = template("{% if messages[-1].content == 'no' %}{{ raise_exception('refused') }}{% endif %}"
                    + PLAIN)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(BINARY), "chat", str(HYBRID), "--chat-template", str(path), "--temperature", "0",
         "--max-tokens", "1000000", "--ignore-eos"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = bytearray()

    def shows(what, after=0):
        try:
            seen.extend(os.read(ours, 65536))
        except OSError:  # nothing yet, or the end
            pass
        return what in seen[after:]

    try:
        wait_until(lambda: shows(b"> "), "the prompt")
        assert b"/exit or /quit" in seen
        os.write(ours, b"no\n")
        wait_until(lambda: seen.count(b"> ") > 1 or shows(b"> ", len(seen)), "another prompt")
        os.write(ours, b"hello\n")
        wait_until(lambda: shows(b"\xef\xbf\xbd") or len(seen) > 2000, "a reply")
        process.send_signal(signal.SIGINT)
        ended = len(seen)
        wait_until(lambda: shows(b"\n> ", ended), "the prompt after the reply")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)  # while it waits for a line
        os.write(ours, b"\x04")
        assert process.wait(60 * SLOWNESS) == 0
        errors = process.stderr.read().decode()
        assert "refused" in errors and "ended by the interrupt" in errors, errors
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(ours)


def test_special_tokens_of_a_line_are_text(template):
    path = template(PLAIN)
    token = json.loads((HYBRID / "tokenizer.json").read_text())["added_tokens"][0]
    assert token["special"]
    read = {}
    for kind in ("text", "tokens"):
        result = run(f"a{token['content']}b", HYBRID, "--chat-template", path, *GREEDY,
                     "--special-tokens-in-content", kind)
        assert result.returncode == 0, result.stderr
        read[kind] = figures(result)[0][0]
    assert read["text"] > read["tokens"] > 0
    assert b"text|tokens" in run("", "--help").stdout
