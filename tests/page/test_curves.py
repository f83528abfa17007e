# SPDX-License-Identifier: Apache-2.0
"""Curves after load, and two servers side by side: one whose memory stays, one whose memory grows."""

import contextlib
import http.server
import json
import re
import threading

import pytest

from harness import ENDLESS, GOLDEN, request_bytes
from listener import Listener

LENGTHS = (64, 128, 256, 512)


def load(server):
    for length in LENGTHS:
        server.complete(prompt=[1, 2, 3], max_tokens=length, ignore_eos=True)


def points(page, figure, series=0):
    """(x, y) of the drawn points, in the picture's units."""
    return page.run(
        "return [...document.querySelectorAll('.figures:not([hidden]) figure')].filter("
        "(one) => one.checkVisibility())[arguments[0]].querySelectorAll('circle.s' + arguments[1])."
        "values().map((one) => [one.cx.baseVal.value, one.cy.baseVal.value]).toArray()", figure, series)


def test_after_load(server_factory, page):
    server = server_factory(model=GOLDEN / "hybrid_regla")
    load(server)
    page(server, "curves")
    page.wait(lambda: len(points(page, 0)) == len(LENGTHS), "a point for each length")
    xs, ys = zip(*points(page, 0))
    assert list(xs) == sorted(xs)
    gaps = [b - a for a, b in zip(xs, xs[1:])]
    assert max(gaps) - min(gaps) < 1  # doublings
    assert list(ys) == sorted(ys, reverse=True) and ys[0] > ys[-1]  # its KV grows
    assert len(points(page, 1)) == len(LENGTHS)
    page.run("document.querySelector('#curves details').open = true")
    rows = page.run("return [...document.querySelectorAll('#curves tbody tr')].map("
                    "(row) => row.innerText.split(/\\s+/))")
    assert [row[0] for row in rows] == ["64", "128", "256", "512", "1,024", "2,048", "4,096", "8,192"]
    peak = server.metric("regla_generation_peak_memory_bytes", length="512")
    assert rows[3][1:3] == [f"{peak / 1024:.3g}", "KiB"] and rows[4][1:] == ["–", "–"]
    assert float(rows[0][3].replace(",", "")) > 0

    def words():
        return page.run("return [...document.querySelectorAll('#curves svg[role=img]')].map("
                        "(one) => one.getAttribute('aria-label'))")
    for _ in range(2):  # what happened between two looks
        server.complete(prompt=[1, 2, 3], max_tokens=512, ignore_eos=True)
    page.wait(lambda: re.search(r"on the device: [\d.]+ ms", words()[3]), words)
    assert re.search(r"Memory by component\. Last: weights: [\d.]+ KiB; workspace: [\d.]+ [KM]iB", words()[2])
    assert "running: 0; in the queue: 0" in words()[4]


def test_requests_in_the_queue(server_factory, page):
    server = server_factory(model=GOLDEN / "hybrid_regla", max_running=1)
    page(server, "curves")
    connections = [server.connect() for _ in range(3)]
    for connection in connections:
        connection.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
    page.wait(lambda: page.text("#curves .speed").startswith("1 running, 2 waiting"),
              lambda: page.text("#curves .speed"))
    for connection in connections:
        connection.close()


class Other(http.server.BaseHTTPRequestHandler):
    """Another server, all of whose words are `word`."""
    word, wait = "", staticmethod(lambda: None)

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "*")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        word = self.word
        card = {"id": word, "family": word, "layer_types": [word], "parameters": 1, "state_bytes_per_text": 1,
                "kv_bytes_per_token": 1, "max_model_len": None}
        if self.path == "/metrics":
            self.answer("text/plain",
                        f'regla_generation_peak_memory_bytes{{length="64",a="{word}"}} 1\n'.encode())
        else:
            self.answer("application/json", json.dumps({"data": [card]}).encode())

    def do_OPTIONS(self):
        self.answer("text/plain", b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wait()
        frame = {"choices": [{"text": self.word, "logprobs": {
            "tokens": ["token_id:1"], "token_logprobs": [-1], "top_logprobs": [{}]}}]}
        self.answer("text/event-stream", f"data: {json.dumps(frame)}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def listening(**members):
    kind = type("Handler", (Other,), members)
    with Listener(("127.0.0.1", 0), kind) as other:
        threading.Thread(target=other.serve_forever).start()
        try:
            yield f"127.0.0.1:{other.server_address[1]}"
        finally:
            other.shutdown()


@pytest.fixture
def hostile():
    """A server whose every word is markup."""
    evil = "<img src=x onerror=document.title='evil'><script>document.title='evil'</script>"
    with listening(word=evil) as host:
        yield host, evil


@pytest.fixture
def slow():
    """A server whose streams begin once they may."""
    asked, may = threading.Event(), threading.Event()

    def wait(_):
        asked.set()
        may.wait(60)
    with listening(word="slow", wait=wait) as host:
        try:
            yield host, asked
        finally:
            may.set()


def test_what_a_server_says_never_becomes_markup(server_factory, page, hostile):
    host, evil = hostile
    name = "<b id=evil>x</b>"
    server = server_factory(model=GOLDEN / "regla", page_compare=f"http://{host}", served_model_name=name)
    page.hosts.add(host)
    page(server, "compare")
    page.wait(lambda: evil in page.text("#compare"), "its card")
    page.click("Generate on both")
    page.wait(lambda: evil in page.run("return document.querySelectorAll('#compare .text')[1].textContent"),
              "its output")
    page.button("Generate on both")
    assert page.text("#model") == name
    page.one("#tab-try").click()
    page.generate(evil, 4)
    assert evil in page.text("#try .text")
    page.one("#tab-sessions").click()
    page.one("[data-session]").click()
    page.wait(lambda: evil in page.run("return document.querySelector('.long').textContent"), "the text")
    assert page.driver.title == f"{name} – regla"
    assert not page.all("img, #evil, body script, main script")


def test_two_systems_side_by_side(server_factory, page):
    grows = server_factory(model=GOLDEN / "alibi", allowed_origins="*")
    server = server_factory(model=GOLDEN / "regla", page_compare=grows.url)
    page.hosts.add(grows.url.removeprefix("http://"))
    page(server, "compare")
    page.run("const up = [...document.querySelectorAll('#compare select')].at(-1); up.value = 512;")
    page.click("Measure each length")
    page.wait(lambda: page.text("#compare [role=status]") == "Measured", "measured", 60)
    page.button("Measure each length")
    for figure in (0, 1):
        for series in (0, 1):
            assert len(points(page, figure, series)) == len(LENGTHS)
    stays, rises = ([y for _, y in points(page, 0, series)] for series in (0, 1))
    assert max(stays) - min(stays) < 0.01
    assert rises == sorted(rises, reverse=True) and rises[0] - rises[-1] > 50
    for far, hidden in page.run(  # 512 tokens: their end is what is seen
            "return [...document.querySelectorAll('#compare .text')].map((one) => ["
            "one.scrollHeight - one.scrollTop - one.clientHeight, one.scrollHeight - one.clientHeight])"):
        assert far < 2 and hidden > 30
    page.run("const named = (name) => [...document.querySelectorAll('#compare button')].find("
             "(one) => one.textContent === name); named('Measure each length').click();"
             "named('Stop').click();")
    page.wait(lambda: page.text("#compare [role=status]").startswith("Ended at"), "the end")
    server.wait_idle()
    grows.wait_idle()
    assert not page.alert()
    for side in (server, grows):
        assert side.metric("regla_generation_tokens_per_second_count", length="512") == 1


def test_stop_beside_two_streams(server_factory, page, slow):
    """It waits behind neither."""
    host, asked = slow
    server = server_factory(page_compare=f"http://{host}")
    page.hosts.add(host)
    page(server).begin_long("It was")
    page.one("#tab-compare").click()
    page.click("Generate on both")
    page.wait(asked.is_set, "two streams under way")
    page.one("#tab-try").click()
    page.click("Stop")
    page.wait_done()
    assert "stopped" in page.text("#try .speed") and not page.alert()
    server.wait_idle()
    page.one("#tab-compare").click()
    page.click("Stop")
    page.button("Generate on both")


def test_stop_of_what_waits_behind_two_streams(server_factory, page, slow):
    host, asked = slow
    server = server_factory(page_compare=f"http://{host}", max_running=1)
    page.hosts.add(host)
    page.allowed.append("404")  # the server has not heard of it yet
    busy = server.connect()
    busy.sendall(request_bytes("/v1/completions", {**ENDLESS, "stream": True}))
    page.wait(lambda: server.metric("regla_requests_running") == 1, "it runs")
    page(server, "compare").click("Generate on both")
    page.wait(asked.is_set, "one stream under way")
    page.wait(lambda: server.metric("regla_requests_waiting") == 1, "one waits")
    page.one("#tab-try").click()
    page.fill("Prompt", "It was")
    page.click("Generate")
    page.click("Stop")
    page.wait_done()
    assert page.text("#try [role=status]").startswith("0 tokens generated")
    assert page.field("Prompt").get_attribute("value") == "It was"
    page.one("#tab-compare").click()
    page.click("Stop")
    page.button("Generate on both")
    busy.close()


def test_a_server_that_does_not_allow_this_page(server_factory, page):
    other = server_factory(model=GOLDEN / "alibi")
    server = server_factory(model=GOLDEN / "regla", page_compare=other.url)
    page.hosts.add(other.url.removeprefix("http://"))
    page.allowed += ["blocked by CORS policy", "ERR_FAILED"]
    page(server, "compare")
    page.wait_alert("--allowed-origins")
