# SPDX-License-Identifier: Apache-2.0
"""Try: a text is generated, shaded, stopped, and forked where another token could have come."""

import re

from selenium.webdriver import Keys

TALE = "It was a dark night, and"


def shown(page):
    return page.text("#try .text")


def held(server, name):
    return server.get(f"/v1/sessions/{name}/tokens").json()


def name_of(page):
    return page.field("Session").get_attribute("value")


def test_a_text(server, page):
    page(server).generate(TALE, 20)
    session = held(server, name_of(page))
    assert shown(page) == "".join(session["texts"])
    assert shown(page).startswith(TALE)
    assert len(page.all("#try .token")) == 20
    assert all(re.fullmatch(r"token p[0-7]( lines)?", token.get_attribute("class"))
               for token in page.all(".token"))
    speed = re.fullmatch(r"20 tokens, ([\d,.]+) tokens/s, first after ([\d,.]+) ms", page.text("#try .speed"))
    assert speed and all(float(number.replace(",", "")) > 0 for number in speed.groups())


def test_it_goes_on(server, page):
    page(server).generate(TALE, 8)
    page.generate(" The door", 8)
    session = held(server, name_of(page))
    assert shown(page) == "".join(session["texts"]) and " The door" in shown(page)
    assert len(page.all(".token")) == 16
    page.click("New session")
    assert shown(page) == ""
    page.fill("Session", session["id"])
    page.field("Prompt").click()
    page.wait(lambda: shown(page) == "".join(session["texts"]), "the text of the session")


def test_new_lines_can_be_clicked(server, page):
    page(server)
    page.run("document.querySelector('#try details').open = true")
    page.fill("Temperature", "0")
    page.generate("CHAPTER I.", 2)
    session = held(server, name_of(page))
    at = len(session["texts"]) - 2
    assert session["texts"][at].strip() == "" and "\n" in session["texts"][at]
    page.all(".token")[0].click()
    assert f"Token {at} " in page.text(".alternatives h2")
    assert shown(page) == "".join(session["texts"])  # the sign is not in the text


def test_a_fork_from_an_alternative(server, page):
    page(server).generate(TALE, 12)
    first = name_of(page)
    before = held(server, first)
    tokens = page.all(".token")  # drawn: one may be a part of a letter, which has no place to click
    which = next(i for i in range(4, len(tokens)) if tokens[i].get_attribute("textContent"))
    tokens[which].click()
    position = len(before["tokens"]) - 12 + which
    assert f"Token {position} " in page.text(".alternatives h2")
    page.wait(lambda: len(page.all(".alternatives li")) >= 5, "five alternatives")
    shares = [float(meter.get_attribute("value")) for meter in page.all(".alternatives meter")]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1.0001
    fork = page.button("Fork here")
    chosen = re.fullmatch(r'Fork here with (".*") [\d.e-]+ %', fork.get_attribute("aria-label")).group(1)
    fork.click()
    page.wait(lambda: name_of(page) != first, "another session")
    page.wait_done()
    assert not page.alert()
    after = held(server, name_of(page))
    assert held(server, first) == before
    assert after["tokens"][:position] == before["tokens"][:position]
    assert after["tokens"][position] != before["tokens"][position]
    assert after["texts"][position].strip() == chosen.strip('"').strip()
    assert len(after["tokens"]) == position + 1 + 12
    assert shown(page) == "".join(after["texts"])
    shares = {one["id"]: one for one in server.get("/v1/sessions").json()["data"]}
    assert shares[name_of(page)]["shared_with"] == first
    assert shares[name_of(page)]["shared_tokens"] == position


def test_stop(server, page):
    page(server)
    page.begin_long(TALE)
    page.click("Stop")
    page.wait_done()
    server.wait_idle()
    assert not page.alert()
    session = held(server, name_of(page))
    assert shown(page) == "".join(session["texts"]) and len(session["tokens"]) > 5


def test_a_chat(server_factory, page, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>")
    server = server_factory(chat_template=template)
    page(server).generate("Who are you?", 6)
    assert shown(page) == "".join(held(server, name_of(page))["texts"])
    assert shown(page).startswith("<user>Who are you?\n<assistant>")
    page.generate("And now?", 6)
    assert not page.alert()
    assert shown(page) == "".join(held(server, name_of(page))["texts"])
    assert "<user>And now?\n<assistant>" in shown(page) and len(page.all(".token")) == 12


def test_without_a_tokenizer(server_factory, page):
    server = server_factory(preset="regla-6l")
    page(server)
    page.run("document.querySelector('#try details').open = true")
    page.fill("Tokens, at most", "5")
    page.fill("Prompt: token ids", "1 2, 3")
    page.click("Generate")
    page.wait_done()
    session = held(server, name_of(page))
    assert shown(page).split() == [str(token) for token in session["tokens"]]
    assert session["tokens"][:3] == [1, 2, 3] and len(session["tokens"]) == 8


def test_by_keyboard_alone(server, page):
    page(server)
    focused = page.driver.switch_to.active_element
    assert focused.tag_name == "textarea"
    focused.send_keys(TALE, Keys.CONTROL, Keys.ENTER)
    page.wait_done()
    text = page.one("#try .text")
    text.send_keys(Keys.ARROW_LEFT)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    token = page.driver.switch_to.active_element
    assert token.get_attribute("class").startswith("token")
    token.send_keys(Keys.ENTER)
    page.wait(lambda: page.driver.switch_to.active_element.text == "Fork here", "the focus")
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.driver.switch_to.active_element == token
    assert not page.all(".alternatives")[0].is_displayed()
    page.run("document.getElementById('tab-try').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.one("#sessions").is_displayed()


def test_the_authors_sampling_unless_it_is_changed(server, page):
    """What is not changed is not sent, so that the server's default holds."""
    advice = server.get("/v1/models").json()["data"][0]["default_sampling_params"]
    assert advice["temperature"] == 0.8 and advice["top_p"] < 1
    page(server)
    page.run("document.querySelector('#try details').open = true")
    for label, value in (("Temperature", advice["temperature"]), ("Top p", advice["top_p"]),
                         ("Top k (0: all)", 0), ("Min p", 0), ("Repetition penalty", 1)):
        assert page.field(label).get_attribute("value") == str(value), label
    assert f"recommends temperature 0.8, top_p {advice['top_p']}" in page.text("#try details .hint")
    page.fill("Seed (empty: random)", "5")
    page.generate(TALE, 20)
    assert shown(page) == TALE + server.complete(prompt=TALE, max_tokens=20, seed=5)["choices"][0]["text"]
    page.click("New session")
    page.fill("Temperature", "0")
    page.fill("Top p", "")
    page.generate(TALE, 4)
    asked = page.bodies("/v1/completions")
    assert len(asked) == 2
    sampling = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    assert not sampling & asked[0].keys()
    assert sampling & asked[1].keys() == {"temperature"} and asked[1]["temperature"] == 0
