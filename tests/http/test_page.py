# SPDX-License-Identifier: Apache-2.0
"""The page at `/`, as a client without a browser sees it (tests/page/ has one), and what it alone
asks for: the tokens of a session, and which sessions begin alike."""

import subprocess

import pytest

from harness import BINARY, GOLDEN, RawReply, check_error

pytestmark = pytest.mark.builds("dev", "asan")

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
          "require-trusted-types-for 'script'; trusted-types 'none'; connect-src 'self'")


def test_its_files_have_types_and_nothing_else_may_run(server):
    for path, kind in (("/", "text/html"), ("/page/page.html", "text/html"), ("/page/page.css", "text/css"),
                       ("/page/main.js", "text/javascript"), ("/page/icon.svg", "image/svg+xml")):
        reply = server.get(path)
        assert reply.status_code == 200, path
        assert reply.headers["content-type"] == f"{kind}; charset=utf-8"
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-cache"
        assert len(reply.content) == int(reply.headers["content-length"]) > 100
    check_error(server.get("/page/none.js"), 404, "unknown_url")
    check_error(server.get("/page/..%2fpage.css"), 404, "unknown_url")


def test_an_etag_saves_the_file(server):
    first = server.get("/page/main.js")
    etag = first.headers["etag"]
    assert etag != server.get("/page/page.css").headers["etag"]
    for known in (etag, f'"other", {etag}', "*"):
        again = server.get("/page/main.js", headers={"If-None-Match": known})
        assert again.status_code == 304 and again.content == b""
        assert again.headers["etag"] == etag
    assert server.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_and_other_methods(server):
    with server.connect() as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        reply = RawReply(connection)
        status, headers = reply.head()
        assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    for path in ("/", "/page/main.js"):
        reply = server.post(path, {})
        check_error(reply, 405, "method_not_allowed")
        assert reply.headers["allow"] == "GET, HEAD"


def test_it_needs_no_key_and_gives_none(server_factory):
    server = server_factory(api_key="secret")
    server.http.headers.pop("Authorization", None)
    assert server.get("/").status_code == server.get("/page/main.js").status_code == 200
    assert server.get("/page/config.json").json() == {"compare": [], "chat": False, "text": True}
    check_error(server.get("/v1/sessions"), 401)
    server.http.headers["X-Api-Key"] = "secret"


def test_a_server_without_it(server_factory):
    server = server_factory(no_page=True)
    for path in ("/", "/page/main.js", "/page/config.json"):
        check_error(server.get(path), 404, "unknown_url")
    check_error(server.post("/", {}), 404, "unknown_url")
    assert server.http.request("OPTIONS", "/").status_code == 204


def test_servers_to_compare_are_all_it_may_connect_to(server_factory):
    urls = ["http://127.0.0.1:8001", "https://a.example/regla/,http://[::1]:9"]
    server = server_factory(page_compare=urls)
    policy = server.get("/").headers["content-security-policy"]
    assert policy == POLICY + " http://127.0.0.1:8001 https://a.example http://[::1]:9"
    assert server.get("/page/config.json").json()["compare"] == [
        "http://127.0.0.1:8001", "https://a.example/regla/", "http://[::1]:9"]


@pytest.mark.parametrize("url", [
    "127.0.0.1:8001", "http://", "http://a:", "http://a:123456", "http://a; script-src *", "http://a/ b",
    "ftp://a", "http://[::1", "http://a/\"", "http://*", "http://u@a", "'unsafe-inline'",
    "http://a/" + 192 * "b"])
def test_a_url_that_is_none(url):
    run = subprocess.run([BINARY, "serve", "--model", GOLDEN / "hybrid_regla", "--port", "0",
                          "--page-compare", url], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "--page-compare: expected http://HOST:PORT" in run.stderr


def test_too_many_to_compare():
    run = subprocess.run([BINARY, "serve", "--model", GOLDEN / "hybrid_regla", "--port", "0",
                          "--page-compare", ",".join(f"http://a:{i}" for i in range(17))],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "expected at most 16 servers, got 17" in run.stderr


def test_no_page_to_compare_on():
    run = subprocess.run([BINARY, "serve", "--model", GOLDEN / "hybrid_regla", "--port", "0", "--no-page",
                          "--page-compare", "http://a"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "--no-page" in run.stderr


# What it asks for

def tokens_of(server, name):
    reply = server.get(f"/v1/sessions/{name}/tokens")
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_the_tokens_of_a_session(text_server):
    server = text_server
    done = server.complete(session_id="spoken", prompt="Zoë said: “naïve ☃ 𝄞”", max_tokens=8, temperature=0,
                           return_token_ids=True)
    held = tokens_of(server, "spoken")
    choice = done["choices"][0]
    assert held["tokens"] == choice["prompt_token_ids"] + choice["token_ids"]
    assert held["position"] == len(held["tokens"]) == len(held["texts"]) == done["session"]["position"]
    assert "".join(held["texts"]) == "Zoë said: “naïve ☃ 𝄞”" + choice["text"]
    assert "" in held["texts"]  # a character of several tokens
    used = server.get("/v1/sessions/spoken").json()["used"]
    assert server.get("/v1/sessions/spoken").json()["used"] == used


def test_a_character_that_is_not_whole(text_server):
    ids = text_server.post("/tokenize", {"prompt": "☃"}).json()["tokens"]
    assert len(ids) > 1
    text_server.complete(session_id="cut", prompt=ids[:-1], max_tokens=0)
    assert "".join(tokens_of(text_server, "cut")["texts"]) == "\N{REPLACEMENT CHARACTER}"


def test_a_session_without_tokens_and_none(server):
    server.complete(session_id="empty", prompt="a", max_tokens=1)
    server.post("/v1/sessions/empty/rewind", {"position": 0})
    assert tokens_of(server, "empty") == {"id": "empty", "object": "session.tokens", "position": 0,
                                          "tokens": [], "texts": []}
    check_error(server.get("/v1/sessions/none/tokens"), 404, "session_not_found")


def test_tokens_without_a_tokenizer(server_factory):
    server = server_factory(preset="regla-6l")
    server.complete(session_id="ids", prompt=[1, 2, 3], max_tokens=0)
    assert tokens_of(server, "ids") == {"id": "ids", "object": "session.tokens", "position": 3,
                                        "tokens": [1, 2, 3], "texts": None}
    assert server.get("/page/config.json").json() == {"compare": [], "chat": False, "text": False}


def listed(server):
    return {session["id"]: (session["shared_with"], session["shared_tokens"])
            for session in server.get("/v1/sessions").json()["data"]}


def test_which_sessions_begin_alike(server_factory):
    server = server_factory()
    for name, ids in (("root", [5, 6, 7, 8]), ("z-alone", [9, 6, 7])):
        server.complete(session_id=name, prompt=ids, max_tokens=0)
    server.post("/v1/sessions/root/fork", {"id": "leaf"})
    server.complete(session_id="leaf", prompt=[1, 2], max_tokens=0)
    server.post("/v1/sessions/leaf/fork", {"id": "a-leaf-of-it"})
    server.post("/v1/sessions/root/fork", {"id": "rewound"})
    server.post("/v1/sessions/rewound/rewind", {"position": 2})
    state = server.get("/v1/sessions/leaf/state").content
    reply = server.http.put("/v1/sessions/brought/state", content=state,
                            headers={"Content-Type": "application/octet-stream"})
    assert reply.status_code == 201
    expected = {"root": (None, 0), "z-alone": (None, 0), "leaf": ("root", 4), "a-leaf-of-it": ("leaf", 6),
                "rewound": ("root", 2), "brought": (None, 0)}
    assert listed(server) == expected == listed(server)  # a look leaves no mark
    server.http.delete("/v1/sessions/root")
    assert listed(server) == {"leaf": (None, 0), "a-leaf-of-it": ("leaf", 6), "rewound": ("leaf", 2),
                              "z-alone": (None, 0), "brought": (None, 0)}
