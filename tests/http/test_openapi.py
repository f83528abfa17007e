# SPDX-License-Identifier: Apache-2.0
"""api/openapi.json: it is served, it is OpenAPI, it names every endpoint, and what documents show as
an example is allowed. That replies are as it says every test's client checks (contract.py)."""

import json
import re

import contract
import pytest
from openapi_spec_validator import validate

from harness import ROOT, check_error

pytestmark = pytest.mark.builds("dev")

DOCUMENT = json.loads(contract.DOCUMENT.read_text())
OPERATIONS = [(method.upper(), path) for path, item in DOCUMENT["paths"].items()
              for method in item if method != "parameters"]
ROUTE = re.compile(r'\{"(GET|POST|PUT|DELETE)", "([^"]+)",')
EXAMPLE = re.compile(r"curl [^\n]*?http://[^/\s]+(/\S+)(?:[^\n]*\\\n)*[^\n]*-d '(\{[^']*\})'")


def test_it_is_served(server):
    served = server.get("/openapi.json").json()
    version = server.get("/version").json()["version"]
    assert served == {**DOCUMENT, "info": {**DOCUMENT["info"], "version": version}}
    validate(served)


def test_it_names_every_endpoint():
    routes = ROUTE.findall((ROOT / "server/endpoints/endpoints.c").read_text())
    assert len(routes) > 15
    named = {(method, re.sub(r"\{\w+\}", "*", path)) for method, path in OPERATIONS}
    assert named == {(method, path.replace("**", "*")) for method, path in routes}


@pytest.mark.parametrize("method, path", OPERATIONS)
def test_every_operation_refuses_another_method(server, method, path):
    path = path.replace("{id}", "x")
    check_error(server.http.request("PATCH", path), 405, "method_not_allowed")


def test_examples_of_documents_are_requests():
    found = [(name, path, body) for name in ("README.md", "api/api.md", "deploy/README.md")
             for path, body in EXAMPLE.findall((ROOT / name).read_text())]
    assert found
    for name, path, body in found:
        assert contract.allows_request("POST", path, body.encode()), (name, body)
    assert not contract.allows_request("POST", "/v1/completions", b'{"prompt": [1, "a"]}')


def test_a_reply_that_it_does_not_name_is_found():
    load = {"running": 1, "waiting": 2, "server_load": 3}
    for wrong in ({}, {**load, "else": 3}, {**load, "running": "1"}):
        with pytest.raises(AssertionError, match="openapi.json does not allow it"):
            contract.check("GET", "/load", {}, None, 200, "application/json",
                           json.dumps(wrong).encode(), {})
    contract.check("GET", "/load", {}, None, 200, "application/json", json.dumps(load).encode(), {})
