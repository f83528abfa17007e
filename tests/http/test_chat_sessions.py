# SPDX-License-Identifier: Apache-2.0
"""Chats in turns: with a session only the new messages are sent; resent whole, only what is new is
computed, and where the template or the client has changed what was, the reply says where."""

import json
import statistics
import threading
import time

import pytest

import checkpoints
from harness import GOLDEN, check_error, read_frames
from session_helpers import cached, reason
from stress_helpers import size

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another, but for what is marked
threads = pytest.mark.builds("dev", "asan", "tsan")

CHAT = "/v1/chat/completions"
LOOP = "{% for m in messages %}"
MESSAGE = "<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n"
END = "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
PLAIN = LOOP + MESSAGE + END
# As Qwen3 and others: reasoning of the answers before the last question goes.
DROPS = """{% set last = namespace(index=0) %}{% for m in messages %}{% if m.role == 'user' %}
{%- set last.index = loop.index0 %}{% endif %}{% endfor %}{% for m in messages -%}
<{{ m.role }}>{% if m.role == 'assistant' and loop.index0 < last.index -%}
{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}</{{ m.role }}>
""" + END
# As Mistral's: the system prompt stands before the last question.
MOVES = """{% set system = messages[0].content %}{% for m in messages[1:] -%}
{% if loop.last %}[SYSTEM]{{ system }}{% endif %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>
""" + END
SHORT = LOOP + "{{ m.role[0] }}{{ m.content }}\n" + "{% endfor %}a"
INTERVAL = 16


def flags_of(folder, template):
    (folder / "own.jinja").write_text(template)
    return {"chat_template": folder / "own.jinja", "checkpoint_interval": INTERVAL}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    from conftest import finish, start
    running = {}

    def of(template):
        if template not in running:
            folder = tmp_path_factory.mktemp("template")
            running[template] = start(folder, **flags_of(folder, template))
        return running[template]

    yield of
    for server in running.values():
        finish(server)


@pytest.fixture(scope="module")
def plain(servers):
    return servers(PLAIN)


def user(text):
    return {"role": "user", "content": text}


def chat(server, messages, status=200, **fields):
    reply = server.post(CHAT, {"messages": messages, "max_tokens": 6, "temperature": 0,
                               "return_token_ids": True, "logprobs": True, "ignore_eos": True, **fields})
    assert reply.status_code == status, reply.text
    return reply.json()


def details(reply):
    return reply["usage"]["prompt_tokens_details"]


def message(reply):
    return {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}


def tokens(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]


class Turns:
    """A session, its messages, and the tokens that it ought to hold."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.messages, self.ids = [], []

    def say(self, *texts, **fields):
        new = [user(text) if isinstance(text, str) else text for text in texts]
        reply = chat(self.server, new, session_id=self.name, **fields)
        choice = reply["choices"][0]
        self.messages += [*new, message(reply)]
        self.ids += reply["prompt_token_ids"] + choice["token_ids"]
        assert reply["session"]["position"] == len(self.ids)
        assert reply["usage"]["prompt_tokens"] + len(choice["token_ids"]) == len(self.ids)
        return reply

    def check(self, reply):
        """The reply is what a run of all its tokens from the beginning gives."""
        choice = reply["choices"][0]
        count = len(choice["token_ids"])
        cold = self.server.complete(prompt=self.ids[:-count], max_tokens=count, temperature=0, logprobs=0,
                                    ignore_eos=True, return_token_ids=True, cache_salt=self.name)
        assert cold["choices"][0]["token_ids"] == choice["token_ids"]
        assert cold["choices"][0]["logprobs"]["token_logprobs"] == [
            entry["logprob"] for entry in choice["logprobs"]["content"]]


def test_only_new_messages(plain):
    turns = Turns(plain, "new-only")
    first = turns.say({"role": "system", "content": "Be brief."}, "Wie geht's? 世")
    assert first["prompt_token_ids"] == tokens(
        plain, "<system>Be brief.</system>\n<user>Wie geht's? 世</user>\n<assistant>")
    turns.check(first)
    for number in range(4):
        held = len(turns.ids)
        reply = turns.say(f"And number {number}?")
        # What the template puts behind the answer, tokenized by itself.
        assert reply["prompt_token_ids"] == tokens(
            plain, f"</assistant>\n<user>And number {number}?</user>\n<assistant>")
        # The last token of the answer was drawn, and not computed.
        assert cached(reply) == held - 1 and reason(reply) == "none"
        turns.check(reply)


@threads
def test_a_stream_leaves_the_same_turn(plain):
    def run(name, stream):
        turns = Turns(plain, name)
        if stream:
            body = {"messages": [user("a")], "max_tokens": 6, "temperature": 0, "ignore_eos": True,
                    "session_id": name, "stream": True, "stream_options": {"include_usage": True}}
            frames = read_frames(plain.post(CHAT, body).content)
            assert frames[-1]["session"]["id"] == name
        else:
            turns.say("a")
        return chat(plain, [user("b")], session_id=name)

    streamed, whole = run("streamed", True), run("whole", False)
    assert streamed["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert streamed["prompt_token_ids"] == whole["prompt_token_ids"]
    assert streamed["session"]["position"] == whole["session"]["position"]


def test_store_false_reads(plain):
    turns = Turns(plain, "read")
    turns.say("a")
    read = chat(plain, [user("b")], session_id="read", store=False)
    assert plain.get("/v1/sessions/read").json()["position"] == len(turns.ids)
    assert turns.say("b")["choices"][0]["token_ids"] == read["choices"][0]["token_ids"]
    check_error(plain.post(CHAT, {"messages": [user("b")], "store": True}), 400, "unsupported_parameter",
                "store")


def test_max_tokens_0_only_appends(plain):
    turns = Turns(plain, "appended")
    reply = chat(plain, [user("alone")], session_id="appended", max_tokens=0, logprobs=False,
                 add_generation_prompt=False)
    turns.ids = tokens(plain, "<user>alone</user>\n")
    assert reply["session"]["position"] == len(turns.ids)
    reply = turns.say("b")
    assert reply["prompt_token_ids"] == tokens(plain, "<user>b</user>\n<assistant>")
    assert reason(reply) == "none"


def test_rewind_and_fork(plain):
    turns = Turns(plain, "rewound")
    positions = [turns.say(text)["session"]["position"] for text in "abc"]
    asked = chat(plain, [user("d")], session_id="rewound", store=False)
    assert plain.post("/v1/sessions/rewound/fork", {"id": "forked"}).status_code == 201
    for name in ("rewound", "forked"):
        again = chat(plain, [user("d")], session_id=name, store=False)
        assert again["choices"][0]["token_ids"] == asked["choices"][0]["token_ids"]
    reply = plain.post("/v1/sessions/rewound/rewind", {"position": positions[0]})
    assert reply.status_code == 200
    reply = chat(plain, [user("c")], session_id="rewound")
    other = Turns(plain, "never-rewound")
    other.say("a")
    assert reply["choices"][0]["token_ids"] == other.say("c")["choices"][0]["token_ids"]
    # The fork has all of it.
    assert plain.get("/v1/sessions/forked").json()["position"] == positions[2]


def test_what_is_no_turn(plain):
    """Tokens of another kind: a chat does not go on behind them, and says where it would."""
    plain.complete(prompt="some text", session_id="text", max_tokens=4)
    error = plain.post(CHAT, {"messages": [user("a")], "session_id": "text"})
    check_error(error, 409, "session_not_chat", "session_id")
    assert "ends at 0" in error.json()["error"]["message"] and error.headers["x-should-retry"] == "false"
    turns = Turns(plain, "mixed")
    held = turns.say("a")["session"]["position"]
    # A completion may go on behind a chat, as behind any tokens.
    plain.complete(prompt="more", session_id="mixed", max_tokens=4)
    error = plain.post(CHAT, {"messages": [user("b")], "session_id": "mixed"})
    check_error(error, 409, "session_not_chat", "session_id")
    assert f"ends at {held}" in error.json()["error"]["message"]
    # Nor from the middle of a turn.
    for position, status in ((held - 1, 409), (0, 200)):
        plain.post("/v1/sessions/mixed/rewind", {"position": position})
        assert plain.post(CHAT, {"messages": [user("b")], "max_tokens": 1,
                                 "session_id": "mixed"}).status_code == status


def test_expected_position_and_key(plain):
    turns = Turns(plain, "expected")
    held = turns.say("a")["session"]["position"]
    check_error(plain.post(CHAT, {"messages": [user("b")], "session_id": "expected",
                                  "expected_position": held + 1}), 412, "position_mismatch")
    body = {"messages": [user("b")], "session_id": "expected", "expected_position": held, "max_tokens": 3}
    first, second = (plain.post(CHAT, body, headers={"Idempotency-Key": "once"}) for _ in range(2))
    assert first.json() == second.json() and second.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("fields, param", [
    ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message"),
    ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ({"n": 2}, "n"), ({"cache_salt": "x"}, "cache_salt"), ({"messages": []}, "messages"),
    ({"messages": [{"role": 1}]}, "messages"), ({"session_id": ".."}, "session_id"),
])
def test_refused(plain, fields, param):
    reply = plain.post(CHAT, {"messages": [user("a")], "session_id": "refused", **fields})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
    assert plain.get("/v1/sessions/refused").status_code == 404


def test_what_the_template_refuses(servers):
    server = servers("{% if messages | length > 2 %}{{ raise_exception('enough') }}{% endif %}" + PLAIN)
    turns = Turns(server, "refuses")
    held = turns.say("a")["session"]["position"]
    error = server.post(CHAT, {"messages": [user("b")], "session_id": "refuses"})
    check_error(error, 400, "invalid_value", "messages")
    assert "enough" in error.json()["error"]["message"]
    assert server.get("/v1/sessions/refuses").json()["position"] == held


@pytest.mark.parametrize("durability", ["commit", "memory"])
def test_restart(server_factory, tmp_path, durability):
    path = tmp_path / "own.jinja"
    path.write_text(PLAIN)
    flags = {"state_dir": tmp_path / "state", "chat_template": path, "session_durability": durability}
    server = server_factory(**flags)
    turns, long = Turns(server, "kept"), Turns(server, "long")
    positions = [turns.say(text)["session"]["position"] for text in ("a", "b" * 3000, "c")]
    for number in range(30):
        long.say(f"{number}: " + 'quoted "text" and \x01 more. ' * 10)
    server.post("/v1/sessions/long/rewind", {"position": long.ids and 0})
    server.stop()
    server = server_factory(**flags)
    turns.server = server
    reply = turns.say("d")
    assert reply["prompt_token_ids"] == tokens(
        server, "</assistant>\n<user>d</user>\n<assistant>")
    turns.check(reply)
    server.post("/v1/sessions/kept/rewind", {"position": positions[1]})
    reply = chat(server, [user("c")], session_id="kept", store=False)
    assert reply["prompt_token_ids"] == tokens(
        server, "</assistant>\n<user>c</user>\n<assistant>")
    assert server.get("/v1/sessions/long").json()["position"] == 0
    assert chat(server, [user("x")], session_id="long")["prompt_token_ids"] == tokens(
        server, "<user>x</user>\n<assistant>")


def test_a_deleted_chat_leaves_nothing(server_factory, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text(PLAIN)
    server = server_factory(state_dir=tmp_path / "state", chat_template=path)
    chat(server, [user("a word that is found: Xylophon " * 300)], session_id="gone")
    chat(server, [user("and more")], session_id="gone")

    def found():
        return [file for file in (tmp_path / "state").rglob("*")
                if file.is_file() and b"Xylophon" in file.read_bytes()]
    assert found()
    assert server.http.delete("/v1/sessions/gone").status_code == 204
    assert not found()


@threads
def test_cancelled(plain):
    """What was generated until then is the answer of the turn."""
    body = {"messages": [user("a")], "max_tokens": 100000, "ignore_eos": True, "session_id": "cut",
            "stream": True, "request_id": "to-be-cut"}

    def cancel():
        plain.post("/v1/requests/to-be-cut/cancel")

    with plain.http.stream("POST", CHAT, json=body) as reply:
        lines = reply.iter_lines()
        while '"content":"' not in next(lines):
            continue
        thread = threading.Thread(target=cancel)
        thread.start()
        rest = list(lines)
        thread.join()
    assert any("cancelled" in line for line in rest)
    reply = chat(plain, [user("b")], session_id="cut")
    assert reply["prompt_token_ids"] == tokens(
        plain, "</assistant>\n<user>b</user>\n<assistant>")


# Resent whole.

def computed(reply):
    return reply["usage"]["prompt_tokens"] - cached(reply)


@pytest.mark.parametrize("model", ["hybrid_regla", "mamba2", "rwkv7", "delta_qwen3_5_text"])
def test_30_turns_resent_whole(server_factory, tmp_path, model):
    server = server_factory(model=GOLDEN / model, **flags_of(tmp_path, PLAIN))
    messages, before = [], 0
    for number in range(30):
        messages.append(user(f"This is the question of number {number}."))
        reply = chat(server, messages, max_tokens=8)
        # The answer counts as new: as a text it may have other tokens than were drawn.
        assert computed(reply) <= reply["usage"]["prompt_tokens"] - before + INTERVAL
        assert reason(reply) in ("none", "diverged") or number == 0
        before = reply["usage"]["prompt_tokens"]
        messages.append(message(reply))


def first_token(server, messages, session_id=None, store=None):
    """Seconds until it comes; the tokens that were computed for it; the reply."""
    body = {"messages": messages, "max_tokens": 2, "allowed_token_ids": tokens(server, "a"), "stream": True,
            "stream_options": {"include_usage": True}, "session_id": session_id, "store": store}
    began, came, lines = time.monotonic(), None, []
    with server.http.stream("POST", CHAT, json=body) as reply:
        for line in reply.iter_lines():
            lines.append(line)
            if came is None and '"finish_reason":null' in line and '"content":""' not in line:
                came = time.monotonic() - began
    frames = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    return came, computed(frames[-1]), {"role": "assistant", "content": text}


def turn_30_takes_as_long_as_turn_2(server_factory, tmp_path, sessions):
    """On a hybrid so wide that its weights are most of the work, with equally many computed tokens.
    Medians of turns that alternate, since others use the machine."""
    checkpoints.write_scaled(tmp_path / "wide", "hybrid_regla", 16)
    server = server_factory(model=tmp_path / "wide", threads=1,
                            **{**flags_of(tmp_path, SHORT), "checkpoint_interval": 4096})
    talks = {"turn-2": 1, "turn-30": 29}
    messages = {name: [] for name in talks}
    for name, turns in talks.items():
        for turn in range(turns):
            question = user(f"{10 + turn}")
            messages[name].append(question)
            whole = [question] if sessions else messages[name]
            messages[name].append(first_token(server, whole, name if sessions else None)[2])
    times = {name: [] for name in talks}
    for number in range(81):
        for name in talks:
            question = user(f"{100 + number} is what? And what is to be said of it, or of others?")
            whole = [question] if sessions else [*messages[name], question]
            fields = {"session_id": name, "store": False} if sessions else {}
            times[name].append(first_token(server, whole, **fields)[:2])
    second, last = (statistics.median(seconds for seconds, _ in times[name]) for name in talks)
    counts = [statistics.median(count for _, count in times[name]) for name in talks]
    print(f"turn 2: {second * 1e3:.2f} ms, {counts[0]} computed; turn 30: {last * 1e3:.2f} ms, "
          f"{counts[1]} computed; ratio {last / second:.3f}")
    assert counts[0] == counts[1]
    assert last <= 1.2 * second


if size("TIMES", 0, 0, 1):
    test_turn_30_takes_as_long_as_turn_2 = pytest.mark.parametrize(
        "sessions", [False, True], ids=["resent", "session"])(turn_30_takes_as_long_as_turn_2)


def thinking(reply):
    return {"role": "assistant", "content": "<think>I think of it.</think>" + reply}


def test_an_answer_without_its_reasoning(servers):
    server = servers(DROPS)
    first = [user("What is it?"), thinking("It is this.")]
    chat(server, [*first, {"role": "system", "content": "go on"}])
    reply = chat(server, [*first, {"role": "system", "content": "go on"}, user("And that?")])
    before = tokens(server, "<user>What is it?</user>\n<assistant><think>")
    at = details(reply)["diverged_at"]
    assert reason(reply) == "diverged" and details(reply)["diverged_message"] == 1
    # There the one has <think>, the other the answer.
    assert len(before) - 8 <= at <= len(before)
    assert computed(reply) <= reply["usage"]["prompt_tokens"] - at + INTERVAL


def test_the_header_says_what_the_usage_does(servers):
    server = servers(DROPS)
    first = [user("What was it?"), thinking("It was that.")]
    for more in ([user("go on")], [user("go on")], [user("no"), user("and that?")]):
        reply = server.post(CHAT, {"messages": [*first, *more], "max_tokens": 2})
        details = reply.json()["usage"]["prompt_tokens_details"]
        expected = details["cache_miss_reason"]
        if "diverged_message" in details:
            expected += f"; diverged_message={details['diverged_message']}"
        assert reply.headers["x-regla-cache-miss"] == expected
    assert "diverged_message" in expected
    reply = server.post("/v1/messages", {"messages": [user("x")], "max_tokens": 2})
    assert reply.headers["x-regla-cache-miss"].startswith(reply.json()["usage"]["cache_miss_reason"])
    first, again = (server.post("/v1/responses", {"input": "x", "max_output_tokens": 2}, headers={
        "Idempotency-Key": "a miss"}) for _ in range(2))
    reason = first.json()["usage"]["input_tokens_details"]["cache_miss_reason"]
    assert first.headers["x-regla-cache-miss"].startswith(reason)
    assert again.content == first.content and "x-regla-cache-miss" not in again.headers
    reply = server.http.get(f"/v1/responses/{first.json()['id']}")
    assert reply.status_code == 200 and "x-regla-cache-miss" not in reply.headers
    reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert "x-regla-cache-miss" not in reply.headers


def test_a_moved_system_prompt(servers):
    server = servers(MOVES)
    messages = [{"role": "system", "content": "Be brief."}, user("one"),
                {"role": "assistant", "content": "two"}]
    chat(server, messages[:2])
    reply = chat(server, [*messages, user("three")])
    # The first text began with the system prompt; now the question stands there.
    assert reason(reply) == "no_checkpoint" or details(reply)["diverged_message"] == 1
    reply = chat(server, [*messages, user("three"), {"role": "assistant", "content": "four"}, user("five")])
    # Its second place was behind the first answer, where the question of number 3 is.
    assert reason(reply) == "diverged" and details(reply)["diverged_message"] == 3, details(reply)


@pytest.mark.parametrize("index, text", [(0, "Be long."), (1, "question one"), (2, "other answer"),
                                         (3, "question two, which is edited"), (3, "quest")])
def test_an_edited_message(plain, index, text):
    base = f"{index} {text} "  # each case by itself
    messages = [{"role": "system", "content": base + "Be brief."}, user("question 1"),
                {"role": "assistant", "content": "answer"}, user("question 2")]
    for stream in (False, True):
        chat(plain, messages)
        edited = [dict(each) for each in messages]
        edited[index]["content"] = (base if index == 0 else "") + text + (" again" if stream else "")
        if stream:
            last = read_frames(plain.post(CHAT, {
                "messages": edited, "max_tokens": 2, "stream": True,
                "stream_options": {"include_usage": True}}).content)[-1]
        else:
            last = chat(plain, edited)
        assert reason(last) == "diverged", details(last)
        assert details(last)["diverged_message"] == index
        assert 0 < details(last)["diverged_at"] < last["usage"]["prompt_tokens"]


@pytest.mark.parametrize("mark", ["MESSAGE_WITH_THE_INDEX_99999999999999999999_",
                                  "MESSAGE_0000000000000001_WITH_THE_INDEX_99999999999999999999_"])
def test_a_message_that_looks_like_a_mark(plain, mark):
    messages = [user(f"{mark} one"), {"role": "assistant", "content": mark}, user("question 1")]
    chat(plain, messages)
    messages[2] = user("another question")
    reply = chat(plain, messages)
    assert reason(reply) == "diverged" and details(reply)["diverged_message"] == 2, details(reply)


def test_another_opening_is_behind_all_messages(servers):
    server = servers(PLAIN + "{% if mood is defined %}({{ mood }}){% endif %}")
    messages = [user("How is it going today?"), {"role": "assistant", "content": "Well."}, user("b")]
    chat(server, messages, chat_template_kwargs={"mood": "glad"})
    reply = chat(server, messages, chat_template_kwargs={"mood": "sad"})
    assert reason(reply) == "diverged" and details(reply)["diverged_message"] == 3


def test_a_session_whose_template_rewrites(servers):
    """The session then holds the whole rendering, as if all had been sent."""
    server = servers(DROPS)
    # Its answer is given: the model draws nothing that looks like reasoning.
    history = [user("What is it?"), thinking("It is this.")]
    turns = Turns(server, "rewritten")
    chat(server, history, session_id="rewritten", max_tokens=0, add_generation_prompt=False, logprobs=False)
    positions = [server.get("/v1/sessions/rewritten").json()["position"]]
    reply = chat(server, [user("And that?")], session_id="rewritten")
    whole = chat(server, [*history, user("And that?")])
    assert reply["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert reply["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert reason(reply) == "diverged" and details(reply)["diverged_message"] == 1
    assert reply["session"]["position"] < positions[0] + 100
    turns.messages = [*history, user("And that?"), message(reply)]
    # It goes on from there.
    held = reply["session"]["position"]
    reply = chat(server, [user("More?")], session_id="rewritten")
    assert reason(reply) == "none" and cached(reply) == held - 1
    # What it held before cannot be gone back to; the beginning can.
    server.post("/v1/sessions/rewritten/rewind", {"position": held})
    assert chat(server, [user("More?")], session_id="rewritten", store=False)["choices"] == reply["choices"]


def test_import_has_no_turns(plain):
    turns = Turns(plain, "exported")
    turns.say("a")
    state = plain.get("/v1/sessions/exported/state").content
    reply = plain.http.put("/v1/sessions/imported/state", content=state,
                           headers={"Content-Type": "application/octet-stream"})
    assert reply.status_code == 201, json.dumps(reply.json())
    check_error(plain.post(CHAT, {"messages": [user("b")], "session_id": "imported"}), 409,
                "session_not_chat", "session_id")
