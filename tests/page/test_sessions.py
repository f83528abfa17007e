# SPDX-License-Identifier: Apache-2.0
"""Sessions: the tree, and what is done with one: fork, rewind, export, import, delete; a thousand of
them, and one with 100,000 tokens."""

import time

import pytest
from selenium.webdriver import ActionChains, Keys

from harness import GOLDEN

JSON = {"Content-Type": "application/json"}


def names(page):
    return page.run("return [...document.querySelectorAll('[data-session]')].map("
                    "(one) => [one.textContent, one.closest('tr').ariaLevel])")


def choose(page, name, position):
    """Clicks a session, and waits for its text."""
    page.one(f"[data-session='{name}']").click()
    page.wait(lambda: page.text(".details h2") == name, name)
    page.wait(lambda: page.field("Rewind to token").get_attribute("value") == str(position), "position")


def text(page):
    return page.run("return document.querySelector('.long').textContent")


@pytest.fixture
def tale(server_factory):
    server = server_factory()
    server.complete(session_id="tale", prompt="It was a dark night, and the wind", max_tokens=24, seed=1)
    return server


def test_the_tree(tale, page):
    tale.post("/v1/sessions/tale/fork", {"id": "b-fork"})
    tale.complete(session_id="b-fork", prompt=" But", max_tokens=4)
    tale.post("/v1/sessions/b-fork/fork", {"id": "a-leaf"})
    tale.complete(session_id="z-alone", prompt="Another day", max_tokens=4)
    page(tale, "sessions")
    page.wait(lambda: names(page), "sessions")
    assert names(page) == [["tale", "1"], ["b-fork", "2"], ["a-leaf", "3"], ["z-alone", "1"]]
    cells = [cell.text for cell in page.one("[data-session='tale']").find_elements("xpath", "../../td")]
    session = tale.get("/v1/sessions/tale").json()
    assert cells[1] == str(session["position"]) and cells[4] == session["tier"] == "device"
    assert cells[2] == "192 KiB" and session["recurrent_bytes"] == 3 * 65600  # layers of ReGLA
    assert cells[3] == f"{session['kv_bytes'] // 1024} KiB" and cells[5].endswith(" s")
    page.one("[data-session='tale']").send_keys(Keys.ARROW_DOWN)
    assert page.driver.switch_to.active_element.text == "b-fork"


def test_rewind_by_a_click_in_the_text(tale, page):
    held = tale.get("/v1/sessions/tale/tokens").json()
    page(tale, "sessions")
    choose(page, "tale", held["position"])
    page.wait(lambda: text(page) == "".join(held["texts"]), "the text")
    # where the tenth token begins
    before = len("".join(held["texts"][:10]))
    x, y = page.run(
        "document.querySelector('.long').scrollIntoView();"
        "const range = new Range(), node = document.querySelector('.block').firstChild;"
        "range.setStart(node, arguments[0]); range.setEnd(node, arguments[0] + 1);"
        "const box = range.getBoundingClientRect();"
        "return [box.left + 1.5, box.top + box.height / 2];", before)
    actions = ActionChains(page.driver)
    actions.w3c_actions.pointer_action.move_to_location(int(x), int(y)).click()
    actions.w3c_actions.perform()
    page.wait(lambda: page.field("Rewind to token").get_attribute("value") == "10",
              lambda: page.field("Rewind to token").get_attribute("value"))
    assert page.run("return CSS.highlights.has('dropped')")
    for none in ("-5", str(held["position"])):  # a mistake would stand in the console
        page.fill("Rewind to token", none)
        assert not page.run("return CSS.highlights.has('dropped')")
    page.fill("Rewind to token", "10")
    assert page.run("return CSS.highlights.has('dropped')")
    page.click("Rewind")
    page.one("dialog[open] button[value=no]").click()
    assert tale.get("/v1/sessions/tale").json()["position"] == held["position"]
    page.click("Rewind")
    page.one("dialog[open] button[value=yes]").click()
    page.wait(lambda: page.text("#sessions [role=status]") == "tale is at token 10", "the rewind")
    assert tale.get("/v1/sessions/tale/tokens").json()["tokens"] == held["tokens"][:10]
    page.wait(lambda: text(page) == "".join(held["texts"][:10]), "the text")


def test_fork_and_delete_and_continue(tale, page):
    position = tale.get("/v1/sessions/tale").json()["position"]
    page(tale, "sessions")
    choose(page, "tale", position)
    page.fill("Fork as", "other")
    page.click("Fork")
    page.wait(lambda: ["other", "2"] in names(page), "the fork")
    page.fill("Fork as", "other")
    page.click("Fork")
    page.wait_alert('there is a session "other" already')
    page.allowed.append("409")
    choose(page, "other", position)
    page.click("Continue in Try")
    page.wait(lambda: page.field("Session").get_attribute("value") == "other", "Try")
    page.wait(lambda: "It was a dark night" in page.text("#try .text"), "its text")
    page.one("#tab-sessions").click()
    page.click("Delete")
    page.one("dialog[open] button[value=yes]").click()
    page.wait(lambda: names(page) == [["tale", "1"]], "the deletion")
    assert tale.get("/v1/sessions/other").status_code == 404


def test_export_and_import(tale, page, browser):
    held = tale.get("/v1/sessions/tale/tokens").json()
    page(tale, "sessions")
    choose(page, "tale", held["position"])
    page.click("Export")
    file = browser.downloads / "tale.state"
    page.wait(file.exists, "the file")
    assert file.read_bytes() == tale.get("/v1/sessions/tale/state").content
    page.click("Import")
    page.wait_alert("Choose a file")
    page.field("Import a state file").send_keys(str(file))
    page.fill("as", "brought")
    page.click("Import")
    page.wait(lambda: page.text(".details h2") == "brought", "the import")
    assert tale.get("/v1/sessions/brought/tokens").json()["tokens"] == held["tokens"]
    page.fill("as", "<img src=x onerror=alert(1)>")
    page.click("Import")
    page.wait_alert('got "<img src=x onerror=alert(1)>"')
    page.allowed.append("400")
    assert not page.all("#sessions img")
    file.unlink()


def test_a_thousand(server_factory, page):
    server = server_factory(model=GOLDEN / "hybrid_regla")
    for i in range(25):
        server.complete(session_id=f"root-{i:02}", prompt=[i + 1] * 8, max_tokens=0)
        for j in range(39):
            reply = server.post(f"/v1/sessions/root-{i:02}/fork", {"id": f"leaf-{i:02}-{j:02}"})
            assert reply.status_code == 201
    page(server, "curves")
    began = time.monotonic()
    page.one("#tab-sessions").click()
    page.wait(lambda: page.text("#sessions [role=status]") == "1,000 sessions", "a thousand")
    took = time.monotonic() - began
    assert took < 10, took
    assert len(page.all("tr[aria-level='1']")) == 25 and len(page.all("tr[aria-level='2']")) == 975
    reply, drawn = page.run(
        "const name = (one) => one.name.endsWith('/v1/sessions');"
        "return [performance.getEntriesByType('resource').find(name).duration,"
        "performance.getEntriesByName('sessions drawn')[0].duration]")
    print(f"1,000 sessions: listed after {1e3 * took:.0f} ms; the reply took {reply:.0f} ms, drawing them "
          f"{drawn:.0f} ms")
    assert drawn < 1000
    page.one("[data-session='leaf-03-07']").click()
    page.wait(lambda: page.text(".details h2") == "leaf-03-07", "one of them")


def test_a_hundred_thousand_tokens(server_factory, page):
    server = server_factory(model=GOLDEN / "regla", session_durability="memory")
    tokens = [5 + i * i % 90 for i in range(100_000)]
    server.complete(session_id="long", prompt=tokens, max_tokens=0)
    page(server, "sessions")
    choose(page, "long", 100_000)
    page.wait(lambda: len(page.all(".long .block")) == 196, "the text")
    held = server.get("/v1/sessions/long/tokens").json()
    assert text(page) == "".join(held["texts"])
    frames = page.run("""
        const box = document.querySelector('.long'), done = arguments[arguments.length - 1];
        return (async () => {
          const gaps = [];
          let last = performance.now();
          for (let i = 1; i <= 60; i++) {
            box.scrollTop = box.scrollHeight * i / 60;
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            gaps.push(now - last);
            last = now;
          }
          return gaps;
        })()""")
    slow = sorted(frames)[-1]
    print(f"100,000 tokens: the slowest of 60 frames while scrolling took {slow:.0f} ms")
    assert slow < 1000
    page.run("document.querySelector('.long .block:last-child').scrollIntoView()")
    page.fill("Rewind to token", "99000")
    assert page.run("return CSS.highlights.get('dropped').size") == 1
