# SPDX-License-Identifier: Apache-2.0
"""What browsers, gateways and careless clients send besides requests: preflights, OPTIONS, other names of
this server, another header for the key, slashes too many."""

import socket

import pytest
from harness import ENDLESS, RawReply, check_error, wait_until

pytestmark = pytest.mark.builds("dev", "asan")  # one request after another

PAGE = "http://localhost:3000"
COMPLETION = {"prompt": "x", "max_tokens": 1}


@pytest.fixture
def keyed(server_factory):
    server = server_factory(api_key="first,second", allowed_origins=PAGE + ",https://b.example",
                            served_model_name="one,two")
    yield server
    server.http.headers["X-Api-Key"] = "first"  # for what is looked at when it stops


def preflight(server, path, origin, **headers):
    return server.http.request("OPTIONS", path, headers={
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type", **headers})


def test_a_preflight_needs_no_key(keyed):
    reply = preflight(keyed, "/v1/completions", PAGE)
    assert reply.status_code == 204 and reply.content == b""
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert reply.headers["vary"] == "Origin"
    assert preflight(keyed, "/v1/sessions/a", PAGE).headers["access-control-allow-methods"] \
        == "GET, HEAD, DELETE"
    check_error(preflight(keyed, "/v1/nothing", PAGE), 401)
    check_error(preflight(keyed, "/v1/nothing", PAGE, **{"X-Api-Key": "first"}), 404, "unknown_url")


def test_other_pages_may_not_read(keyed):
    for origin in ("http://localhost:3001", "https://b.example.evil", "null"):
        reply = preflight(keyed, "/v1/completions", origin)
        assert reply.status_code == 204
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_replies_and_errors_and_streams_can_be_read(keyed):
    def ask(body, key="first"):
        return keyed.post("/v1/completions", body, headers={
            "Origin": PAGE, "Authorization": f"Bearer {key}"})
    for reply, status in ((ask(COMPLETION), 200), (ask({}), 400), (ask(COMPLETION, "x"), 401),
                          (ask({**COMPLETION, "stream": True}), 200)):
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"X-Request-Id", "X-Regla-Warning"} <= set(exposed)


def test_without_origins_no_page_may_read(server):
    reply = preflight(server, "/v1/completions", PAGE)
    assert reply.status_code == 204 and "vary" not in reply.headers
    assert "access-control-allow-origin" not in reply.headers
    reply = server.get("/v1/models", headers={"Origin": PAGE})
    assert reply.status_code == 200 and "access-control-allow-origin" not in reply.headers


CROSS = {"Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize("method, path, body", [
    ("POST", "/v1/completions", COMPLETION), ("POST", "/v1/requests/x/cancel", None),
    ("POST", "/v1/sessions/kept/fork", {"new_id": "other"}), ("DELETE", "/v1/sessions/kept", None),
    ("PUT", "/v1/sessions/kept/import", None), ("POST", "/v1/nothing", None)])
@pytest.mark.parametrize("headers", [
    {"Origin": "https://evil.example"}, {"Origin": "null"}, CROSS,
    {"Origin": PAGE, "Sec-Fetch-Site": "same-site"}])
def test_a_page_of_another_origin_changes_nothing(server, method, path, body, headers):
    server.complete(prompt="x", max_tokens=1, session_id="kept")
    reply = server.http.request(method, path, json=body, headers=headers)
    error = check_error(reply, 403, "origin_not_allowed")
    assert "--allowed-origins" in error["message"] and method in error["message"]
    assert headers.get("Origin", "cross-site") in error["message"]
    assert "connection" not in reply.headers  # its body has been read
    assert server.get("/v1/sessions/kept", headers=headers).status_code == 200


def test_a_page_of_another_origin_cancels_nothing(server):
    with server.http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True},
                            headers={"X-Request-Id": "theirs"}) as reply:
        lines = reply.iter_lines()
        next(lines)
        cancel = "/v1/requests/theirs/cancel"
        refused = server.http.post(cancel, headers={"Origin": "https://evil.example", **CROSS})
        check_error(refused, 403, "origin_not_allowed")
        assert server.metric("regla_requests_running") == 1 and next(lines) is not None
        assert server.http.post(cancel).status_code == 200
    server.wait_idle()


def test_what_may_come_from_browsers(server, keyed):
    def status(server, **headers):
        return server.post("/v1/completions", COMPLETION, headers={
            name.replace("_", "-"): value for name, value in headers.items()}).status_code
    own = server.url.rstrip("/")
    assert status(server, Origin=own) == status(server, Origin=own, Sec_Fetch_Site="same-origin") == 200
    assert status(server, Sec_Fetch_Site="none") == 200
    assert status(server, Origin="https://box", Host="box:443") == 200
    # Behind a proxy that leaves the port out of Host; a browser says that it is the same.
    elsewhere = {"Origin": "https://localhost:8443", "Host": "localhost"}
    assert status(server, **elsewhere, Sec_Fetch_Site="same-origin") == 200
    assert status(server, **elsewhere) == 403
    assert status(keyed, X_Api_Key="first", Origin=PAGE, Sec_Fetch_Site="cross-site") == 200
    assert status(keyed, X_Api_Key="first", Origin="https://a.example") == 403  # it may know the key
    assert status(keyed, X_Api_Key="none", Origin="https://a.example") == 403


def test_options_of_the_server_itself(keyed):
    """HAProxy's `option httpchk` sends OPTIONS / in HTTP/1.0."""
    for target in (b"/", b"*"):
        with keyed.connect() as connection:
            connection.sendall(b"OPTIONS %s HTTP/1.0\r\n\r\n" % target)
            status, headers = RawReply(connection).head()
            assert status == 204
            assert set(headers["allow"].split(", ")) == {"GET", "HEAD", "POST", "PUT", "DELETE"}
    assert keyed.get("/").headers["content-type"] == "text/html; charset=utf-8"


def test_a_key_may_come_as_x_api_key(keyed):
    def status(**headers):
        return keyed.get("/v1/models", headers={k.replace("_", "-"): v for k, v in headers.items()}
                         ).status_code
    assert status(X_Api_Key="second") == 200
    assert status(X_Api_Key="third") == status() == 401
    assert status(Authorization="Bearer first", X_Api_Key="third") == 200
    assert status(Authorization="Bearer third", X_Api_Key="first") == 401


@pytest.mark.parametrize("path, status", [
    ("/v1//models", 200), ("/v1/models/", 200), ("//v1///models//", 200), ("/health/", 200),
    ("/v1/models/one/", 200), ("/v1/models/onetwo", 404), ("/v1/mod/els", 404)])
def test_slashes_too_many(keyed, path, status):
    reply = keyed.http.get(keyed.url + path, headers={"X-Api-Key": "first"})
    assert reply.status_code == status, reply.text


def test_several_names_of_the_model(keyed):
    key = {"X-Api-Key": "first"}
    cards = keyed.get("/v1/models", headers=key).json()["data"]
    assert [card["id"] for card in cards] == ["one", "two"]
    assert keyed.get("/v1/models/two", headers=key).json()["id"] == "two"
    for model in ("one", "two", "", None):
        reply = keyed.post("/v1/completions", {**COMPLETION, "model": model}, headers=key)
        assert reply.status_code == 200 and reply.json()["model"] == (model or "one")
    error = check_error(keyed.post("/v1/completions", {**COMPLETION, "model": "three"},
                                   headers=key), 404, "model_not_found")
    assert '"one"' in error["message"]


def test_load_as_vllm_has_it(keyed):
    assert keyed.get("/load").json() == {"running": 0, "waiting": 0, "server_load": 0}


# The name that a request was sent to

def asked_as(server, host):
    return server.get("/health", headers={"Host": host})


def test_a_page_whose_name_points_here(server):
    """DNS rebinding: its browser says which name it asked for."""
    assert asked_as(server, "localhost:3000").status_code == 200
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        reply = asked_as(server, host)
        error = check_error(reply, 403, "host_not_allowed")
        assert host in error["message"] and "--allowed-hosts" in error["message"]
        assert reply.headers["connection"] == "close"


def test_names_that_may_be_asked_for(server_factory, keyed):
    server = server_factory(allowed_hosts="llm.example,.b.example")
    assert asked_as(server, "llm.example").status_code == 200
    assert asked_as(server, "a.b.example").status_code == 200
    check_error(asked_as(server, "evil.example"), 403)
    assert asked_as(keyed, "evil.example").status_code == 200  # it would need a key


def test_a_server_without_keys_that_others_reach(server_factory):
    server = server_factory(host="0.0.0.0", allowed_hosts="llm.example")
    machine = socket.gethostname()
    said = server.tail()
    assert "Host: an address, localhost" in said and machine in said and "llm.example" in said
    for host in ("192.168.1.7:8000", "[fe80::1]:80", "localhost", machine, f"{machine}:1", "llm.example"):
        assert asked_as(server, host).status_code == 200, host
    for host in ("evil.example", "regla-1:8000", "127.0.0.1.evil.example"):
        check_error(asked_as(server, host), 403, "host_not_allowed")
    server = server_factory(host="0.0.0.0", api_key="first")
    assert "Host" not in server.tail() and asked_as(server, "regla-1:8000").status_code == 200
    server.http.headers["X-Api-Key"] = "first"


def test_keys_are_not_shown_to_ps(server_factory):
    server = server_factory(api_key="secret-1,secret-2")
    server.http.headers["X-Api-Key"] = "secret-2"

    def shown():
        with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
            return file.read()
    wait_until(lambda: b"xxxxxxxx" in shown(), shown)
    assert b"secret" not in shown() and b"--api-key" in shown()
    assert "--api-key-file" in server.tail()
    assert server.get("/v1/models").status_code == 200
