# SPDX-License-Identifier: Apache-2.0
"""Each paragraph begins at the side of its language; marks of templates have no say in that, and code
always begins at the left."""

import pytest

ARABIC, URDU = "مرحبا بالعالم", "آپ کیسے ہیں؟"
# (line, side at which it begins)
LINES = [("It was a dark night.", "left"), (ARABIC, "right"), (f"{URDU} Linux 6.1", "right"),
         (f"Say {ARABIC} to them", "left"), ("שלום", "right"), ("<|im_start|>user", "left"),
         (f"[INST] {ARABIC} [/INST]", "right"), (f"<user>{URDU}", "right"), ("42.", "left"),
         ("```python", "left"), (f'"{ARABIC}": 1,', "left"), ("```", "left"), (f"- {ARABIC}", "right")]
TEXT = "\n".join(line for line, _ in LINES)
# Of each line of the box: by how much it is away from the box's left and right.
GAPS = """
    const [box, lines] = arguments, outer = box.getBoundingClientRect();
    const nodes = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), places = [];
    while (nodes.nextNode())
      for (let i = 0; i < nodes.currentNode.length; i++) places.push([nodes.currentNode, i]);
    let at = 0;
    return lines.map((line) => {
      const range = new Range(), [last, end] = places[at + line.length - 1];
      range.setStart(...places[at]);
      range.setEnd(last, end + 1);
      at += line.length + 1;
      const rects = [...range.getClientRects()].filter((one) => one.width > 0);
      return [Math.min(...rects.map((one) => one.left)) - outer.left,
        outer.left + box.clientWidth - Math.max(...rects.map((one) => one.right))];
    });"""


def check(page, box):
    assert page.run("return arguments[0].textContent", box) == TEXT
    for (line, side), (left, right) in zip(LINES, page.run(GAPS, box, [line for line, _ in LINES])):
        assert (left if side == "left" else right) < 30 < (right if side == "left" else left), line


@pytest.fixture
def held(server):
    server.complete(session_id="many-scripts", prompt=TEXT, max_tokens=0)
    return server


def test_texts(held, page):
    page(held, "try/many-scripts")
    page.wait(lambda: page.text("#try .text") == TEXT, "the text")
    check(page, page.one("#try .text"))
    page.one("#tab-sessions").click()
    page.one("[data-session='many-scripts']").click()
    page.wait(lambda: page.run("return document.querySelector('.long').textContent") == TEXT, "the text")
    check(page, page.one(".long"))
    # A place behind a mark, which is an element of its own, is found and marked, too.
    texts = held.get("/v1/sessions/many-scripts/tokens").json()["texts"]
    position = next(i for i in range(len(texts)) if "".join(texts[:i]).endswith("[/INST]"))
    page.fill("Rewind to token", str(position))
    marked = page.run("return [...CSS.highlights.get('dropped')][0].toString()")
    assert marked == "".join(texts[position:])


def test_tokens_as_they_come(server, page):
    """Wherever a text is cut into tokens."""
    page(server)
    for size in (1, 3, 7, 1000):
        box = page.run("""
            const [text, size] = arguments;
            return import("/page/tokens.js").then(({ TokenText }) => {
              const shown = new TokenText("Tokens", () => {});
              document.querySelector("#try .text").replaceWith(shown.box);
              for (let at = 0; at < text.length; at += size)
                shown.add([{ text: text.slice(at, at + size), id: 1, logprob: -1, top: [] }]);
              shown.flush();
              return shown.box;
            })""", TEXT, size)
        assert page.run("return arguments[0].textContent", box) == TEXT
        gaps = page.run(GAPS, box, [line for line, _ in LINES])
        for (line, side), (left, right) in zip(LINES, gaps):
            # Marks that a model writes are tokens like others. A token of several lines is code or not.
            if "[" not in line and "<" not in line and (size < 10 or '"' not in line):
                assert (left if side == "left" else right) < 30, (size, line)


def test_what_people_write(server, page):
    page(server)
    prompt = page.field("Prompt")
    for text, direction in ((ARABIC, "rtl"), ("Hello", "ltr"), (f"{URDU}\nHello", "rtl"), ("", "ltr")):
        page.run("arguments[0].value = arguments[1]", prompt, text)
        assert page.run("return getComputedStyle(arguments[0]).direction", prompt) == direction
    assert page.run("return getComputedStyle(arguments[0]).unicodeBidi", prompt) == "plaintext"
    page.run("arguments[0].value = arguments[1]", page.field("Session"), ARABIC)
    assert page.run("return getComputedStyle(arguments[0]).direction", page.field("Session")) == "rtl"
