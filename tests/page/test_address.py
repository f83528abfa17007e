# SPDX-License-Identifier: Apache-2.0
"""The address, Back and a reload keep the part that is shown, and its session."""

from harness import ENDLESS, request_bytes

TALE = "It was a dark night, and"


def address(page):
    return page.run("return location.hash")


def parts(page):
    return [one.get_attribute("id") for one in page.all("[role=tabpanel]") if one.is_displayed()]


def wait_at(page, hash_, part, session=None):
    page.wait(lambda: address(page) == hash_ and parts(page) == [part], lambda: (address(page), parts(page)))
    if session is not None:
        page.wait(lambda: page.field("Session").get_attribute("value") == session, session)


def name_of(page):
    return page.field("Session").get_attribute("value")


def texts(server, name):
    return "".join(server.get(f"/v1/sessions/{name}/tokens").json()["texts"])


def shown(page):
    return page.text("#try .text")


def test_the_part(server, page):
    page(server)
    page.one("#tab-sessions").click()
    wait_at(page, "#sessions", "sessions")
    page.run("location.hash = '#curves'")
    wait_at(page, "#curves", "curves")
    page.one("#tab-try").click()
    wait_at(page, "#try", "try")
    page.one("#tab-try").click()  # no step
    for part in ("curves", "sessions", "try"):
        page.driver.back()
        wait_at(page, f"#{part}", part)
    page.driver.forward()
    wait_at(page, "#sessions", "sessions")
    for wrong in ("#nothing", "#compare", "#sessions%zz"):  # #compare: there is no other server
        page.run("location.hash = arguments[0]", wrong)
        wait_at(page, "#sessions", "sessions")
    assert page.run("return document.querySelector('[role=tab][aria-selected=true]').id") == "tab-sessions"


def test_the_session(server, page):
    page(server).generate(TALE, 8)
    first = name_of(page)
    wait_at(page, f"#try/{first}", "try")
    before = page.all(".token")
    page.one("#tab-curves").click()
    page.driver.back()
    wait_at(page, f"#try/{first}", "try", first)
    assert page.all(".token") == before  # as it was
    page.click("New session")
    wait_at(page, "#try", "try")
    page.generate("A storm", 4)
    second = name_of(page)
    wait_at(page, f"#try/{second}", "try")
    page.driver.back()
    wait_at(page, f"#try/{first}", "try", first)
    page.wait(lambda: shown(page) == texts(server, first), "its text")
    page.driver.forward()
    wait_at(page, f"#try/{second}", "try", second)
    page.wait(lambda: shown(page) == texts(server, second), "its text")
    page.one("#tab-curves").click()
    page.reload()
    wait_at(page, "#curves", "curves")
    page.one("#tab-try").click()
    wait_at(page, f"#try/{second}", "try", second)
    page.wait(lambda: shown(page) == texts(server, second), "its text")
    page.generate(" And then", 4)
    assert not page.alert() and shown(page) == texts(server, second)


def test_the_session_of_another_part(server, page):
    server.complete(session_id="chosen", prompt=TALE, max_tokens=4)
    page(server, "sessions")
    page.one("[data-session='chosen']").click()
    wait_at(page, "#sessions/chosen", "sessions")
    page.reload()
    page.wait(lambda: page.text(".details h2") == "chosen", "it is chosen")
    page.click("Continue in Try")
    wait_at(page, "#try/chosen", "try", "chosen")
    page.wait(lambda: TALE in shown(page), "its text")
    page.driver.back()
    wait_at(page, "#sessions/chosen", "sessions")
    page.allowed.append("404")  # its text may be asked for when it is just gone
    page.click("Delete")
    page.one("dialog[open] button[value=yes]").click()
    wait_at(page, "#sessions", "sessions")


def test_a_reload_in_the_middle_of_a_text(server, page):
    page(server).begin_long(TALE)
    name = name_of(page)
    page.allowed.append("404")  # the session is there once the request has ended
    page.reload()
    page.wait(lambda: TALE in shown(page), "what the server has kept")
    server.wait_idle()
    wait_at(page, f"#try/{name}", "try", name)
    page.wait(lambda: shown(page) == texts(server, name), "all of it")
    page.generate(" And then", 4)
    assert not page.alert() and shown(page) == texts(server, name)


def test_back_while_a_text_is_under_way(server_factory, page):
    """It goes on, and the address says so."""
    server = server_factory(max_running=1)
    page(server).generate(TALE, 4)
    page.click("New session")
    name = name_of(page)
    busy = server.connect()
    busy.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
    page.wait(lambda: server.metric("regla_requests_running") == 1, "it runs")
    page.fill("Prompt", TALE)
    page.click("Generate")
    wait_at(page, f"#try/{name}", "try", name)
    page.driver.back()
    wait_at(page, f"#try/{name}", "try", name)
    busy.close()
    page.wait_done()
    assert not page.alert() and shown(page) == texts(server, name)
