# SPDX-License-Identifier: Apache-2.0
"""Claude Code (`claude -p`): POST /v1/messages, and /v1/messages/count_tokens."""

import base64
import json
import signal
from subprocess import PIPE

import harness
import network
import pytest
from agent import GOES_ON, SERVED, Agent, Talk, calls, finish, only, program, says, writes
from messages_helpers import events, gathered, prompt_tokens

VERSION = "2.1.332"
CLAUDE = program("claude_agent_sdk", "_bundled", "claude")
JSON = ("--output-format", "stream-json", "--verbose")
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ARGUMENTS = {
    "Bash": {"command": 'echo "$(<note.txt)"', "description": "Read the note"},
    "Agent": {"description": "Look", "prompt": "Look around.", "subagent_type": "Explore"},
    "ToolSearch": {"query": "select:CronList", "max_results": 1},
}


def environment(talk):
    """What its users are told to set."""
    return {"ANTHROPIC_BASE_URL": talk.url, "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_MODEL": talk.server.model_id}


@pytest.fixture
def claude(talk, folder):
    """claude(prompt, *flags): a run of it, which has to succeed."""
    agent = Agent(folder, [CLAUDE], environment(talk))
    talk.script.arguments["Read"] = {"file_path": str(agent.work / "swan.png")}

    def run(prompt, *flags, **options):
        done = agent.run("-p", prompt, *JSON, *flags, **options)
        talk.wait_whole()
        assert done.status == 0, done
        return done

    run.agent = agent
    return run


def messages(talk, first=0):
    """What the server said to each request from the first on; every one was taken at once."""
    found = talk.requests()[first:]
    assert [each.status for each in found] == [200] * len(found), [each.reply for each in found]
    return [gathered(events(each.reply)) for each in found]


def text_of(message):
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def test_its_version(claude):
    """What is said of it here is of this one."""
    assert claude.agent.run("--version").output == f"{VERSION} (Claude Code)\n"


def test_one_turn(talk, claude):
    assert network.interfaces() == {"lo"}
    talk.script.expect(says("All is done."))
    done = claude("Say that all is done.")
    message, = messages(talk)
    result, = done.of(type="result")
    assert (result["result"], result["is_error"], result["num_turns"]) == ("All is done.", False, 1)
    assert result["stop_reason"] == message["stop_reason"] == "end_turn"
    said, = done.of(type="assistant")
    assert said["message"]["content"] == message["content"] and said["message"]["id"] == message["id"]
    for name in ("input_tokens", "cache_read_input_tokens", "output_tokens"):
        assert result["usage"][name] == message["usage"][name]


def test_plain_output(talk, claude):
    """As people use it in a pipe."""
    talk.script.expect(says("All is done."))
    done = claude.agent.run("-p", "Say that all is done.")
    assert (done.status, done.output) == (0, "All is done.\n")
    messages(talk)


def test_a_tool(talk, claude):
    """It is run where the agent runs, and the model gets what it printed."""
    (claude.agent.work / "note.txt").write_text("Seven swans.\n")
    talk.script.expect(calls("Bash"), says("Swans."))
    done = claude("What is in note.txt?", "--allowedTools", "Bash")
    call, answer = messages(talk)
    block, = call["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "Bash", ARGUMENTS["Bash"])
    assert call["stop_reason"] == "tool_use"
    sent = json.loads(talk.requests()[1].body)["messages"]
    asked, = [part for message in sent if message["role"] == "assistant" for part in message["content"]]
    assert all(asked[key] == block[key] for key in ("type", "id", "name", "input"))
    outcome, = [part for message in sent if message["role"] == "user" for part in message["content"]
                if part["type"] == "tool_result"]
    assert outcome["tool_use_id"] == block["id"] and outcome["content"] == "Seven swans."
    assert answer["usage"]["cache_read_input_tokens"] >= prompt_tokens(call["usage"]) - 1
    result, = done.of(type="result")
    assert (result["result"], result["num_turns"]) == ("Swans.", 2)


def test_two_tools_at_once(talk, claude):
    """Their results come together, in the order of the calls."""
    (claude.agent.work / "note.txt").write_text("Seven swans.\n")
    (claude.agent.work / "swan.png").write_bytes(base64.b64decode(PICTURE))
    asked = ("Bash", ARGUMENTS["Bash"]), ("Read", {"file_path": str(claude.agent.work / "swan.png")})
    talk.script.expect(writes(*asked), says("Swans."))
    done = claude("What is in both?", "--allowedTools", "Bash,Read")
    call, answer = messages(talk)
    assert [(block["type"], block["name"], block["input"]) for block in call["content"]] == [
        ("tool_use", name, arguments) for name, arguments in asked]
    assert call["stop_reason"] == "tool_use"
    last = json.loads(talk.requests()[1].body)["messages"]
    outcomes = [part for message in last if message["role"] == "user" for part in message["content"]
                if isinstance(part, dict) and part["type"] == "tool_result"]
    assert [part["tool_use_id"] for part in outcomes] == [block["id"] for block in call["content"]]
    assert outcomes[0]["content"] == "Seven swans."
    check_reuse([call, answer])
    assert done.of(type="result")[0]["result"] == "Swans."


def check_reuse(found):
    """Each request computes only what is new to it."""
    for before, now in zip(found, found[1:]):
        read = now["usage"]["cache_read_input_tokens"]
        assert read >= prompt_tokens(before["usage"]) - 1, (before["usage"], now["usage"])


def test_a_picture(talk, claude):
    """What the model cannot see stays in the history: it is a line, and no error."""
    (claude.agent.work / "swan.png").write_bytes(base64.b64decode(PICTURE))
    talk.script.expect(calls("Read"), says("A swan."), says("It was one."))
    claude("What is in swan.png?")
    claude("Was it?", "--continue")
    sent = json.loads(talk.requests()[-1].body)["messages"]
    outcome, = [part for message in sent if message["role"] == "user" for part in message["content"]
                if isinstance(part, dict) and part["type"] == "tool_result"]
    assert [part["type"] for part in outcome["content"]] == ["image"]
    found = messages(talk)
    check_reuse(found)
    assert "messages: 1 of image" in found[-1]["warnings"][-1]


def test_a_tool_found_later(talk, claude):
    """It joins the list of tools in the middle, which costs no prefix, and is called."""
    talk.script.expect(calls("ToolSearch"), calls("CronList"), says("There are none."))
    done = claude("Which jobs are there?")
    assert done.of(type="result")[0]["result"] == "There are none."
    before, after = ([tool["name"] for tool in json.loads(each.body)["tools"]]
                     for each in talk.requests()[:2])
    assert set(after) - set(before) == {"CronList"} and after[-1] == before[-1]
    found = messages(talk)
    check_reuse(found)
    assert [each["content"][0]["name"] for each in found[:2]] == ["ToolSearch", "CronList"]
    last = json.loads(talk.requests()[2].body)["messages"][-1]["content"][0]
    assert last["type"] == "tool_result" and last["content"] == "No scheduled jobs."


def test_three_turns(talk, claude):
    """Each a run of its own."""
    talk.script.expect(says("Of geese."), calls("Bash"), says("Of swans."), says("Of ducks."))
    (claude.agent.work / "note.txt").write_text("Seven swans.\n")
    first = claude("Tell me something.")
    claude("Go on.", "--continue", "--allowedTools", "Bash")
    name = first.of(type="result")[0]["session_id"]
    last = claude("And then?", "--resume", name)
    assert last.of(type="result")[0]["result"] == "Of ducks."
    found = messages(talk)
    assert [text_of(each) for each in found] == ["Of geese.", "", "Of swans.", "Of ducks."]
    check_reuse(found)
    sent = json.dumps(json.loads(talk.requests()[-1].body)["messages"])
    assert all(words in sent for words in ("Of geese.", "Seven swans.", "Of swans."))


class Dialog:
    """One process that is told turn by turn what to do, as by the SDK."""

    def __init__(self, agent, *flags):
        self.process = agent.start("-p", "--input-format", "stream-json", *JSON, *flags, stdin=PIPE)
        self.asked = 0

    def send(self, **members):
        self.process.stdin.write(json.dumps(members).encode() + b"\n")
        self.process.stdin.flush()

    def turn(self, words):
        self.send(type="user", message={"role": "user", "content": words})
        return self.wait(type="result")["result"]

    def control(self, subtype, **members):
        self.asked += 1
        self.send(type="control_request", request_id=str(self.asked), request={"subtype": subtype, **members})
        answer = self.wait(type="control_response")["response"]
        assert answer["subtype"] == "success", answer
        return answer["response"]

    def wait(self, **members):
        """The next event with these members that it writes."""
        for said in self.process.stdout:
            event = json.loads(said)
            if members.items() <= event.items():
                return event
        raise AssertionError(self.process.stderr.read())

    def end(self):
        assert finish(self.process).status == 0


@pytest.fixture
def dialog(claude):
    begun = Dialog(claude.agent)
    yield begun
    finish(begun.process)


def test_three_turns_of_one_process(talk, dialog):
    talk.script.expect(says("Of geese."), says("Of swans."), says("Of ducks."))
    assert [dialog.turn(words) for words in ("Tell me something.", "Go on.", "And then?")] == [
        "Of geese.", "Of swans.", "Of ducks."]
    dialog.end()
    check_reuse(messages(talk))


def test_a_title_and_a_question_beside(talk, dialog):
    """They do not cost the turns their prefix, whatever they look like."""
    talk.script.expect(says("Of geese."), titles("Geese"), says("No."), says("Of swans."))
    dialog.turn("Tell me something.")
    assert dialog.control("generate_session_title", description="Something of geese.", persist=False) == {
        "title": "Geese"}
    assert dialog.control("side_question", question="Is it late?")["response"] == "No."
    assert dialog.turn("Go on.") == "Of swans."
    dialog.end()
    first, title, question, second = messages(talk)
    assert json.loads(text_of(title)) == {"title": "Geese"}
    assert json.loads(talk.requests()[1].body)["tools"] == []
    check_reuse([first, question])
    check_reuse([first, second])


def titles(title):
    return {"output_config": {"format": {"type": "json_schema", "schema": only({"title": title})}}}


def test_a_suggestion_beside(talk, claude):
    """What the user may say next, asked behind a turn and then forgotten."""
    talk.script.expect(says("Of geese."), says("Of swans."), says("go on"), says("Of ducks."))
    claude("Tell me something.")
    done = claude("And then?", "--continue", "--prompt-suggestions", "true")
    assert [event["suggestion"] for event in done.of(type="prompt_suggestion")] == ["go on"]
    claude("Go on.", "--continue")
    first, second, suggestion, third = messages(talk)
    check_reuse([first, second, suggestion])
    check_reuse([second, third])


def test_a_subagent_beside(talk, claude):
    """Two conversations at a time: one that waits for no other, and one that is told of its end."""
    talk.script.expect(calls("Agent"), says("It looks."), says("It looked."))
    talk.script.expect(says("I see nothing."), conversation="subagent")
    done = claude("Let another one look around.", "--allowedTools", "Agent")
    assert [event["result"] for event in done.of(type="result")] == ["It looks.", "It looked."]
    found = dict.fromkeys((False, True), ())
    for request, message in zip(talk.requests(), messages(talk), strict=True):
        found["x-claude-code-agent-id" in request.headers] += (message,)
    assert [text_of(each) for each in found[True]] == ["I see nothing."]
    assert [text_of(each) for each in found[False]] == ["", "It looks.", "It looked."]
    check_reuse(found[False])
    assert "I see nothing." in talk.requests()[-1].body.decode()


def test_compaction(talk, claude):
    """The request for a summary has the conversation's prefix; what follows begins anew."""
    talk.script.expect(says("Of geese."), says("Of swans."))
    claude("Tell me something.")
    claude("Go on.", "--continue")
    talk.script.expect(says("<analysis>Birds.</analysis>\n<summary>We spoke of birds.</summary>"))
    claude("/compact", "--continue")
    *turns, summary = messages(talk)
    check_reuse([*turns[:2], summary])
    after = len(talk.requests())
    talk.script.expect(says("Of ducks."))
    done = claude("And then?", "--continue")
    assert done.of(type="result")[0]["result"] == "Of ducks."
    anew, = talk.requests()[after:]
    assert "We spoke of birds." in anew.body.decode() and "Of geese." not in anew.body.decode()
    assert messages(talk, after)[0]["usage"]["cache_read_input_tokens"] > 0  # its tools, at least


def test_counting(talk, claude):
    """What it counts for /context, many requests at once."""
    claude("/context")
    counts = talk.requests("/v1/messages/count_tokens")
    assert len(counts) > 10 and not talk.requests()
    assert all(each.status == 200 and json.loads(each.reply)["input_tokens"] > 0 for each in counts)


def test_a_cancel(talk, claude):
    """An interrupt while text comes: the server stops, and its place is free."""
    talk.script.expect(GOES_ON)
    agent = claude.agent.start("-p", "Tell me all.", *JSON, "--include-partial-messages")
    said = (json.loads(line) for line in agent.stdout)
    next(event for event in said if event.get("event", {}).get("type") == "content_block_delta")
    cut, = talk.requests()
    assert not cut.whole
    agent.send_signal(signal.SIGINT)
    finish(agent)
    talk.server.wait_idle()
    request = cut.reply_headers["X-Request-Id"]
    assert "status=499 outcome=cancelled" in talk.server.wait_logged(f"id={request} ")
    talk.script.expect(says("Of geese."))
    done = claude.agent.run("-p", "Then tell me something.")
    assert (done.status, done.output) == (0, "Of geese.\n")


def test_a_cancel_before_text(talk, claude):
    """The prompt is not computed to its end for someone who has left. Nothing stands between them."""
    def cancelled():
        return talk.server.whole_log().count("status=499 outcome=cancelled")
    before = cancelled()
    claude.agent.environment["ANTHROPIC_BASE_URL"] = talk.server.url
    agent = claude.agent.start("-p", "Tell me all.", *JSON, "--disallowedTools", "Agent")
    harness.wait_until(lambda: talk.server.metric("regla_requests_running") == 1, "it asks")
    agent.send_signal(signal.SIGINT)
    finish(agent)
    talk.server.wait_idle()
    harness.wait_until(lambda: cancelled() == before + 1, "it is cancelled")


def test_a_busy_server(server_factory, folder):
    """It waits, and asks again."""
    server = server_factory(max_running=1, max_queue=0, **SERVED)
    with Talk(server, {}).relayed() as talk, server.connect() as other:
        harness.begin_stream(other)
        process = Agent(folder, [CLAUDE], environment(talk)).start("-p", "Tell me something.")
        harness.wait_until(lambda: [each for each in talk.requests() if each.whole], "it is refused")
        other.close()
        talk.script.expect(*[says("Of geese.")] * 20)
        done = finish(process)
    assert (done.status, done.output) == (0, "Of geese.\n")
    *refused, taken = [each.status for each in talk.requests()]
    assert set(refused) == {429} and taken == 200


def test_its_tools_can_be_demanded(talk, claude):
    """Each of them, as its schema is."""
    claude("Tell me something.")
    body = json.loads(talk.requests()[0].body) | {"max_tokens": 16, "stream": False, "temperature": 0}
    body["tools"] = [tool for tool in body["tools"] if tool["name"] not in ARGUMENTS]
    choices = [{"type": "tool", "name": tool["name"]} for tool in body["tools"]]
    for choice in ({"type": "any"}, *choices):
        reply = talk.server.post("/v1/messages", {**body, "tool_choice": choice})
        assert reply.status_code == 200, reply.text
        assert not [warning for warning in reply.json().get("warnings", []) if warning.startswith("tools")]


def test_an_answer_by_a_schema(talk, claude):
    """--json-schema: a tool whose call is the answer."""
    schema = only({"bird": "swan"})
    talk.script.expect(calls("StructuredOutput"))
    done = claude("Name a bird.", "--json-schema", json.dumps(schema))
    assert done.of(type="result")[0]["structured_output"] == {"bird": "swan"}
    messages(talk)


def test_a_model_that_is_not_there(talk, claude):
    claude.agent.environment["ANTHROPIC_MODEL"] = "claude-nope"
    done = claude.agent.run("-p", "Tell me something.", *JSON)
    result, = done.of(type="result")
    assert done.status == 1 and result["is_error"] and "claude-nope" in result["result"]
    assert {each.status for each in talk.requests()} == {404} and len(talk.requests()) <= 2


def test_a_prompt_that_is_too_long(server_factory, folder):
    """It says so, in its own words, and does not try for long."""
    server = server_factory(max_model_len=1000, **SERVED)
    with Talk(server, {}).relayed() as talk:
        agent = Agent(folder, [CLAUDE], environment(talk))
        done = agent.run("-p", "Tell me something.", *JSON)
    result, = done.of(type="result")
    assert done.status == 1 and result["is_error"] and "Prompt is too long" in result["result"], done
    assert {each.status for each in talk.requests()} == {400} and len(talk.requests()) <= 6
