# SPDX-License-Identifier: Apache-2.0
"""Pictures of each part, wide and narrow, light and dark, and axe-core's checks of each. The pictures are
in build/page/, for people to look at; nothing may be wider than the window. REGLA_PICTURE=1 also takes
the README's."""

import os
from importlib.resources import files

import pytest
from axe_selenium_python import Axe

from harness import GOLDEN, ROOT

PICTURES = ROOT / "build" / "page"
README_PICTURE = ROOT / "server" / "page" / "picture.png"
README_BYTES = 100_000
AXE = files("axe_core_python") / "axe.min.js"  # newer than what axe-selenium-python brings
TOO_WIDE = """
    const found = [];
    for (const one of document.querySelectorAll("body *")) {
      if (!one.checkVisibility() || one.closest(".hidden-text")) continue;
      const box = one.getBoundingClientRect();
      if (box.width === 0) continue;
      let scrolls = one.parentElement;
      while (scrolls && !/auto|scroll/.test(getComputedStyle(scrolls).overflowX))
        scrolls = scrolls.parentElement;
      const right = scrolls && scrolls !== document.body ? Infinity : document.documentElement.clientWidth;
      if (box.right > right + 1 || box.left < -1) found.push(`${one.tagName} ${one.className} ${box.right}`);
    }
    if (document.documentElement.scrollWidth > document.documentElement.clientWidth)
      found.push(`the page: ${document.documentElement.scrollWidth}`);
    return found;"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A server with sessions and traffic, and one beside it."""
    from conftest import finish, start
    folder = tmp_path_factory.mktemp("look")
    grows = start(folder, model=GOLDEN / "alibi", allowed_origins="*")
    server = start(folder, page_compare=grows.url)
    for length in (64, 128, 256, 512, 1024, 2048):
        server.complete(prompt="It was a dark night, and", max_tokens=length, ignore_eos=True, seed=1)
        grows.complete(prompt=[1, 2, 3], max_tokens=length, ignore_eos=True)
    server.complete(session_id="tale", prompt="It was a dark night, and", max_tokens=120, seed=1)
    for name in ("tale-with-a-storm", "tale-without"):
        server.post("/v1/sessions/tale/fork", {"id": name})
        server.complete(session_id=name, prompt=" But", max_tokens=40, seed=len(name))
    server.post("/v1/sessions/tale-without/fork", {"id": "a-leaf-of-it-with-a-long-name-of-its-own"})
    server.complete(session_id="other", prompt="Chapter I", max_tokens=60, seed=3)
    yield server, grows
    finish(server)
    finish(grows)


def fill(page, server, part):
    if part == "try":
        page.run("document.querySelector('#try details').open = true")
        page.fill("Seed (empty: random)", "7")
        page.generate("It was a dark night, and", 120)
        page.run("document.querySelectorAll('.token')[3].click()")
        page.wait(lambda: len(page.all(".alternatives li")) >= 5, "alternatives")
    elif part == "sessions":
        page.one("[data-session='tale']").click()
        page.wait(lambda: "dark night" in page.text(".long"), "the text")
        page.run("const one = document.querySelectorAll('.details input')[0]; one.value = 40;"
                 "one.dispatchEvent(new Event('input'));")
    elif part == "curves":
        server.complete(prompt="It was", max_tokens=3000, ignore_eos=True)
        page.wait(lambda: "on the device: nothing yet" not in page.text("#curves .figures"), "a step's time")
        page.run("document.querySelector('#curves details').open = true")
    else:
        page.wait(lambda: len(page.all("#compare circle")) >= 10, "points")
        page.click("Generate on both")
        page.button("Generate on both")


def picture(page, name, width):
    for _ in range(2):  # in a higher window a text is higher, too
        height = page.run("return Math.ceil(document.documentElement.getBoundingClientRect().height)")
        page.emulate(width, max(height, 600), name.endswith("dark"))
    page.driver.save_screenshot(str(PICTURES / f"{name}.png"))


@pytest.mark.parametrize("part", ["try", "sessions", "curves", "compare"])
def test_each_part(shown, page, part):
    server, grows = shown
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.hosts.add(grows.url.removeprefix("http://"))
    page.emulate(1280)
    page(server, part)
    fill(page, server, part)
    for width in (1280, 390):
        for dark in (False, True):
            page.emulate(width, 900, dark)
            wide = page.run(TOO_WIDE)
            assert not wide, (width, wide)
            axe = Axe(page.driver, str(AXE))
            axe.inject()
            found = axe.run()
            assert not found["violations"], axe.report(found["violations"])
            assert len(found["passes"]) > 10
            picture(page, f"{part}-{width}-{'dark' if dark else 'light'}", width)


@pytest.mark.skipif("REGLA_PICTURE" not in os.environ, reason="REGLA_PICTURE=1 takes the README's picture")
def test_the_picture_of_the_readme(shown, page):
    server, grows = shown
    page.hosts.add(grows.url.removeprefix("http://"))
    page.emulate(860, 720)
    page(server)
    page.run("document.querySelector('#try details').open = true")
    page.fill("Temperature", "0")
    page.generate("It was a dark night, and", 60)
    page.run("document.querySelector('#try details').open = false;"
             "document.querySelectorAll('.token')[3].click()")
    page.wait(lambda: len(page.all(".alternatives li")) >= 5, "alternatives")
    page.run("window.scrollTo(0, 0); document.activeElement.blur()")
    bottom = page.run("return document.querySelector('.alternatives').getBoundingClientRect().bottom")
    page.emulate(860, round(bottom) + 6)
    page.driver.save_screenshot(str(README_PICTURE))


def test_the_readme_has_it():
    assert README_PICTURE.stat().st_size < README_BYTES
    assert "](server/page/picture.png)" in (ROOT / "README.md").read_text()
