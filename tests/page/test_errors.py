# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is said where it was asked for: a wrong key, a full queue, a server that is gone."""

from harness import ENDLESS, request_bytes

TALE = "It was a dark night, and"


def dialog(page):
    return page.one("dialog[open]").text


def locked(server_factory, page):
    """A server that asks for a key, and its page."""
    server = server_factory(api_key="right")
    server.http.headers["X-Api-Key"] = "right"
    page.allowed.append("401")
    page.hosts.add(server.url.removeprefix("http://"))
    page.driver.get(f"{server.url}/")
    return server


def give_key(page, key):
    page.one("dialog[open] input").send_keys(key)
    page.one("dialog[open] button[value=yes]").click()


def test_a_key_is_asked_for_and_kept_for_the_tab(server_factory, page):
    server = locked(server_factory, page)
    assert "asks for a key" in dialog(page)
    give_key(page, "wrong")
    page.wait(lambda: "That key is wrong" in dialog(page), "the second question")
    give_key(page, "right")
    page.wait(lambda: page.text("#model") == server.model_id, "the model's name")
    page.generate(TALE, 4)
    assert not page.alert()
    page.reload()
    assert page.text("#model") == server.model_id and not page.all("dialog")
    assert page.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
    assert "right" not in page.driver.current_url


def test_no_key(server_factory, page):
    locked(server_factory, page)
    page.one("dialog[open] button[value=no]").click()
    page.wait(lambda: "asks for an API key" in page.text("#card"), "what is wrong")


def test_the_queue_is_full(server_factory, page):
    server = server_factory(max_running=1, max_queue=1)
    connections = [server.connect() for _ in range(2)]
    for i, connection in enumerate(connections):
        connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
        page.wait(lambda: server.get("/load").json()["server_load"] == i + 1, "they run and wait")
    page(server)
    page.allowed.append("429")
    page.fill("Prompt", TALE)
    page.click("Generate")
    page.wait_alert("Try again in")
    assert page.field("Prompt").get_attribute("value") == TALE  # it can be sent again
    for connection in connections:
        connection.close()
    server.wait_idle()
    page.generate(TALE, 4)
    assert not page.alert()


def test_the_server_is_gone(server_factory, page):
    server = server_factory()
    server.ends_clean = False
    page(server)
    page.begin_long(TALE)
    server.process.kill()
    page.allowed += ["ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY"]
    page.wait_alert("The connection to the server broke")
    assert TALE in page.text("#try .text") and len(page.all(".token")) > 5  # it stays
    page.fill("Prompt", TALE)
    page.click("Generate")
    page.wait_alert("The server does not answer")
    for part in ("sessions", "curves"):
        page.one(f"#tab-{part}").click()
        page.wait_alert("The server does not answer")


def test_another_client_has_gone_on(server, page):
    page(server).generate(TALE, 4)
    name = page.field("Session").get_attribute("value")
    done = server.complete(session_id=name, prompt=" But then", max_tokens=4)
    page.allowed.append("412")
    page.fill("Prompt", "more")
    page.click("Generate")
    page.wait_alert(f"is at position {done['session']['position']}")
    page.wait(lambda: " But then" in page.text("#try .text"), "what the session holds")
    page.generate(" And so", 4)
    assert not page.alert()
    texts = server.get(f"/v1/sessions/{name}/tokens").json()["texts"]
    assert page.text("#try .text") == "".join(texts)


def test_settings_are_sent(server, page):
    """Each to its own field: the server says what is wrong with it."""
    page(server)
    page.allowed.append("400")
    page.run("document.querySelector('#try details').open = true;"
             "document.querySelector('#try form').noValidate = true")
    for label, field, wrong in (
            ("Temperature", "temperature", "3"), ("Top p", "top_p", "2"), ("Top k (0: all)", "top_k", "-2"),
            ("Min p", "min_p", "2"), ("Repetition penalty", "repetition_penalty", "-1"),
            ("Tokens, at most", "max_tokens", "-2")):
        before = page.field(label).get_attribute("value")
        page.fill(label, wrong)
        page.fill("Prompt", TALE)
        page.click("Generate")
        page.wait_alert(field)
        page.fill(label, before)
    page.fill("Seed (empty: random)", "5")
    page.fill("Stop at (empty: nowhere)", " ")
    page.generate(TALE, 40)
    assert len(page.all(".token")) < 40
    done = server.complete(prompt=TALE, max_tokens=40, seed=5, stop=" ")
    texts = page.text("#try .text")
    assert texts.startswith(TALE + done["choices"][0]["text"])
