# SPDX-License-Identifier: Apache-2.0
"""Codex (`codex exec`): POST /v1/responses."""

import json
import signal

import network
import pytest
from agent import GOES_ON, LIMIT, SERVED, Agent, Talk, finish, only, program, says, writes
from harness import wait_until
from responses_helpers import RESPONSES, calls_of, events, gathered, text_of

VERSION = "0.163.0"
CODEX = program("codex_cli_bin", "bin", "codex")
ARGUMENTS = {"exec_command": {"cmd": "cat note.txt"}}
CONFIG = """model = "{model}"
model_provider = "regla"

[model_providers.regla]
name = "regla"
base_url = "{url}/v1"
env_key = "REGLA_API_KEY"
wire_api = "responses"
"""
EXEC = ("exec", "--json", "--skip-git-repo-check")


def configured(talk, folder):
    """Its home has the configuration that its users are told to write."""
    agent = Agent(folder, [CODEX], {"REGLA_API_KEY": "none"})
    (agent.home / ".codex").mkdir()
    (agent.home / ".codex" / "config.toml").write_text(
        CONFIG.format(model=talk.server.model_id, url=talk.url))
    return agent


@pytest.fixture
def codex(talk, folder):
    return configured(talk, folder)


def test_its_version(codex):
    assert codex.run("--version").output == f"codex-cli {VERSION}\n"


class Turn:
    """A run that has to succeed, by what it prints."""

    def __init__(self, done):
        assert done.status == 0, done
        self.thread, = (event["thread_id"] for event in done.of(type="thread.started"))
        items = [event["item"] for event in done.of(type="item.completed")]
        self.said = [item["text"] for item in items if item["type"] == "agent_message"]
        self.ran = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
        self.usage = done.of(type="turn.completed")[0]["usage"]


def responses(talk, first=0):
    """What the server said to each request from the first on; every one was taken at once."""
    talk.wait_whole()
    found = talk.requests(RESPONSES)[first:]
    assert [each.status for each in found] == [200] * len(found), [each.reply for each in found]
    return [gathered(events(each.reply)) for each in found]


def check_reuse(found):
    """Each request computes only what is new to it."""
    for before, now in zip(found, found[1:]):
        read = now["usage"]["input_tokens_details"]["cached_tokens"]
        assert read >= before["usage"]["input_tokens"] - 1, (before["usage"], now["usage"])


def demands(name):
    return {"tool_choice": {"type": "function", "name": name}, "parallel_tool_calls": False}


def test_one_turn(talk, codex):
    assert network.interfaces() == {"lo"}
    talk.script.expect(says("All is done."))
    turn = Turn(codex.run(*EXEC, "Say that all is done."))
    response, = responses(talk)
    assert turn.said == [text_of(response)] == ["All is done."]
    usage = response["usage"]
    assert (turn.usage["input_tokens"], turn.usage["output_tokens"]) == (
        usage["input_tokens"], usage["output_tokens"])
    asked, = talk.requests(RESPONSES)
    body = json.loads(asked.body)
    assert (asked.method, body["model"], body["stream"]) == ("POST", talk.server.model_id, True)
    assert asked.headers["authorization"] == "Bearer none"


def test_a_tool(talk, codex):
    """It is run where the agent runs, and the model gets what it printed."""
    (codex.work / "note.txt").write_text("Seven swans.\n")
    talk.script.expect(demands("exec_command"), says("Swans."))
    turn = Turn(codex.run(*EXEC, "What is in note.txt?"))
    assert (turn.ran, turn.said) == (["Seven swans.\n"], ["Swans."])
    call, answer = responses(talk)
    item, = calls_of(call)
    assert (item["name"], json.loads(item["arguments"])) == ("exec_command", ARGUMENTS["exec_command"])
    sent = json.loads(talk.requests(RESPONSES)[1].body)["input"]
    asked, = [each for each in sent if each["type"] == "function_call"]
    assert all(asked[key] == item[key] for key in ("name", "arguments", "call_id"))
    outcome, = [each for each in sent if each["type"] == "function_call_output"]
    assert outcome["call_id"] == item["call_id"] and "Seven swans." in outcome["output"]
    check_reuse([call, answer])


def test_two_tools_at_once(talk, codex):
    """Both are run; their results come back together."""
    for name in ("note", "other"):
        (codex.work / f"{name}.txt").write_text(f"Of the {name}.\n")
    talk.script.arguments = {}  # as the agent has them
    commands = [f"cat {name}.txt" for name in ("note", "other")]
    talk.script.expect(writes(*(("exec_command", {"cmd": command}) for command in commands)), says("Both."))
    turn = Turn(codex.run(*EXEC, "What is in both?"))
    assert (sorted(turn.ran), turn.said) == (["Of the note.\n", "Of the other.\n"], ["Both."])
    call, answer = responses(talk)
    items = calls_of(call)
    assert [json.loads(item["arguments"])["cmd"] for item in items] == commands
    sent = json.loads(talk.requests(RESPONSES)[1].body)["input"]
    outcomes = [each for each in sent if each["type"] == "function_call_output"]
    assert [each["call_id"] for each in outcomes] == [item["call_id"] for item in items]
    assert all(words in each["output"] for words, each in zip(("Of the note.", "Of the other."), outcomes,
                                                               strict=True))
    check_reuse([call, answer])


def resume(codex, words, thread="--last"):
    return Turn(codex.run("exec", "resume", thread, *EXEC[1:], words))


def test_three_turns(talk, codex):
    """Each a run of its own."""
    (codex.work / "note.txt").write_text("Seven swans.\n")
    talk.script.expect(says("Of geese."), demands("exec_command"), says("Of swans."), says("Of ducks."))
    first = Turn(codex.run(*EXEC, "Tell me something."))
    second = resume(codex, "Go on.")
    last = resume(codex, "And then?", first.thread)
    assert (first.said, second.said, last.said) == (["Of geese."], ["Of swans."], ["Of ducks."])
    found = responses(talk)
    assert [text_of(each) for each in found] == ["Of geese.", "", "Of swans.", "Of ducks."]
    check_reuse(found)
    sent = json.dumps(json.loads(talk.requests(RESPONSES)[-1].body)["input"])
    assert all(words in sent for words in ("Of geese.", "Seven swans.", "Of swans."))


def test_an_answer_by_a_schema(talk, codex):
    """--output-schema: the server keeps to it."""
    (codex.home / "schema.json").write_text(json.dumps(only({"bird": "swan"})))
    talk.script.expect({})
    turn = Turn(codex.run(*EXEC, "--output-schema", str(codex.home / "schema.json"), "Name a bird."))
    assert [json.loads(each) for each in turn.said] == [{"bird": "swan"}]
    assert json.loads(talk.requests(RESPONSES)[0].body)["text"]["format"]["type"] == "json_schema"
    responses(talk)


def test_compaction(talk, codex):
    """Past its limit it asks for a summary, and goes on with that."""
    talk.script.expect(says("Of geese."), says("We spoke of birds."), says("Of ducks."))
    first = Turn(codex.run(*EXEC, "Tell me something."))
    limit = ("-c", "model_auto_compact_token_limit=1000")
    done = Turn(codex.run("exec", "resume", first.thread, *EXEC[1:], *limit, "And then?"))
    assert done.said[-1:] == ["Of ducks."]
    found = responses(talk)
    assert [text_of(each) for each in found] == ["Of geese.", "We spoke of birds.", "Of ducks."]
    bodies = [each.body.decode() for each in talk.requests(RESPONSES)]
    assert "Of geese." in bodies[1] and "Of geese." not in bodies[2] and "We spoke of birds." in bodies[2]


def test_a_cancel(talk, codex):
    """An interrupt while text comes: the server stops, and its place is free."""
    talk.script.expect(GOES_ON)
    process = codex.start(*EXEC, "Tell me all.")
    wait_until(lambda: talk.requests(RESPONSES), "it asks")
    cut, = talk.requests(RESPONSES)
    wait_until(lambda: b"response.output_text.delta" in cut.reply, "text comes", LIMIT)
    process.send_signal(signal.SIGINT)
    finish(process)
    talk.server.wait_idle()
    request = cut.reply_headers["X-Request-Id"]
    assert not cut.whole
    assert "status=499 outcome=cancelled" in talk.server.wait_logged(f"id={request} ")


def test_a_prompt_that_is_too_long(server_factory, folder):
    """It ends the turn at once."""
    server = server_factory(max_model_len=1000, **SERVED)
    with Talk(server, {}).relayed() as talk:
        done = configured(talk, folder).run(*EXEC, "Tell me something.")
    assert done.status == 1 and done.of(type="turn.failed"), done
    assert len(talk.requests(RESPONSES)) == 1
