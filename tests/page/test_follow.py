# SPDX-License-Identifier: Apache-2.0
"""A text that grows is followed to its end, until somebody scrolls up, and again from where the end is."""

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

def grow(page, server):
    """Try, whose text is now one that grows as fast on any machine. The box."""
    page(server)
    return page.run("""
        return import("/page/tokens.js").then(({ TokenText }) => {
          const shown = new TokenText("Tokens", () => {});
          document.querySelector("#try .text").replaceWith(shown.box);
          let count = 0;
          window.growing = setInterval(() => {
            const text = ++count % 5 ? "token " : "token\\n";
            shown.add([{ text, id: 1, logprob: -1, top: [] }, { text, id: 1, logprob: -1, top: [] }]);
          }, 20);
          return shown.box;
        })""")


def place(page):
    """(scrollTop, pixels below what is seen, tokens) of Try's text, after a frame."""
    return page.run("""
        return new Promise((then) => requestAnimationFrame(() => {
          const box = document.querySelector("#try .text");
          then([box.scrollTop, box.scrollHeight - box.scrollTop - box.clientHeight,
            document.querySelectorAll("#try .token").length]);
        }))""")


def wait_followed(page):
    """It is at the end while the text grows by some lines."""
    page.wait(lambda: place(page)[1] < 2, lambda: f"at the end: {place(page)}")
    _, _, tokens = place(page)
    while (now := place(page))[2] < tokens + 40:
        assert now[1] < 2, now


def wait_left(page):
    """It stays where it is while the text grows by some lines."""
    def same():
        top, _, tokens = place(page)
        now = page.wait(lambda: (found := place(page))[2] >= tokens + 40 and found, "tokens")
        return now[0] == top and now[1] > 30
    page.wait(same, lambda: f"it stays: {place(page)}")


def wheel(page, box, pixels):
    ActionChains(page.driver, 0).scroll_from_origin(ScrollOrigin.from_element(box), 0, pixels).perform()


def finger(page, box, pixels):
    at = page.run("return arguments[0].getBoundingClientRect().toJSON()", box)
    x, y = at["x"] + 50, at["y"] + 100
    for kind, moved in (("Start", 0), *(("Move", i / 8) for i in range(1, 9)), ("End", None)):
        points = [] if moved is None else [{"x": x, "y": y - pixels * moved}]
        page.driver.execute_cdp_cmd("Input.dispatchTouchEvent",
                                    {"type": f"touch{kind}", "touchPoints": points})


def keys(page, box, pixels):
    box.send_keys(Keys.ARROW_UP if pixels < 0 else Keys.END)


def test_until_somebody_scrolls_up(server, page):
    page.emulate(1280)
    box = grow(page, server)
    page.wait(lambda: place(page)[0] > 200, "a text that is scrolled")
    wait_followed(page)
    for scroll in (wheel, finger, keys):
        page.emulate(1280, still=scroll is keys)  # reduced motion: in jumps
        scroll(page, box, -40)
        wait_left(page)
        page.wait(lambda: scroll(page, box, 5000) or place(page)[1] < 2, lambda: f"the end: {place(page)}")
        wait_followed(page)


def test_beside_another_part(server, page):
    box = grow(page, server)
    page.wait(lambda: place(page)[0] > 200, "a text that is scrolled")
    tokens = place(page)[2]
    page.one("#tab-sessions").click()
    page.wait(lambda: place(page)[2] > tokens + 100, "more tokens")
    page.one("#tab-try").click()
    wait_followed(page)
    wheel(page, box, -200)
    wait_left(page)
    top = place(page)[0]
    page.one("#tab-sessions").click()
    page.one("#tab-try").click()
    assert place(page)[0] == top


def test_what_a_template_adds(server_factory, page, tmp_path):
    """Its words are known when the reply is there: they are above it."""
    template = tmp_path / "chat.jinja"
    template.write_text("{% for i in range(30) %}{{ i }}\n{% endfor %}{{ messages[0].content }}\n")
    page(server_factory(chat_template=template)).generate("Who are you?", 6)
    top, below, tokens = place(page)
    assert top > 100 and below < 2 and tokens == 6
