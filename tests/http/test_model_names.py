# SPDX-License-Identifier: Apache-2.0
"""Names of the served model: several, and patterns of names, so that agents need no configuration."""

import pytest

import harness
from harness import check_error, read_frames

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

NAMES = r"claude-*,one,gpt-?,two,q*[1m],b\*c?*e"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    from conftest import finish, start
    running = start(tmp_path_factory.mktemp("named"), served_model_name=NAMES,
                    chat_template=harness.ROOT / "tests/clients/chat.jinja")
    yield running
    finish(running)


@pytest.mark.parametrize("name", ["one", "two", "claude-opus-4-1", "claude-", "gpt-5", "q[1m]",
                                  "q[1m]-[1m]", "b\\ccde", "b\\aca*e"])
def test_replies_have_the_name_that_was_asked_for(named, name):
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert named.post(path, {**BODY, "model": name}).json()["model"] == name
    plain = {"prompt": "x", "max_tokens": 2, "model": name}
    assert named.post("/v1/completions", plain).json()["model"] == name
    frames = read_frames(named.post("/v1/completions", {**plain, "stream": True}).content)
    assert {frame["model"] for frame in frames} == {name}
    assert named.get(f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}])
def test_without_a_name_it_is_the_first(named, fields):
    assert named.post("/v1/chat/completions", {**BODY, **fields}).json()["model"] == "one"


def test_a_long_name(named):
    name = "claude-" + 249 * "x"
    assert named.post("/v1/messages", {**BODY, "model": name}).json()["model"] == name


@pytest.mark.parametrize("name", ["three", "claude", "gpt-55", "xclaude-1", "one ",
                                  "claude-" + 250 * "x", "q1", "b*cde", "b\\ce"])
def test_other_names_are_404(named, name):
    check_error(named.post("/v1/chat/completions", {**BODY, "model": name}), 404, "model_not_found")
    assert named.post("/v1/messages", {**BODY, "model": name}).status_code == 404
    assert named.get(f"/v1/models/{name.strip()}").status_code == (200 if name == "one " else 404)


def test_the_list_has_names_and_no_patterns(named):
    assert [model["id"] for model in named.get("/v1/models").json()["data"]] == ["one", "two"]


def test_patterns_alone(server_factory):
    server = server_factory(served_model_name="claude-*", wait=True)
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == "hybrid_regla"
    for name in ("claude-x", model["id"]):
        reply = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "model": name})
        assert reply.json()["model"] == name
