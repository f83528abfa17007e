# SPDX-License-Identifier: Apache-2.0
"""Holds every reply that a test's client gets against api/openapi.json: its status, its headers, its
body, each frame of a stream. Of a request that was served, the headers and the body too. What the
document does not name may not be in a reply."""

import copy
import json
import re
from functools import cache, reduce
from pathlib import Path

import httpx
import jsonschema_rs

DOCUMENT = Path(__file__).resolve().parents[2] / "api" / "openapi.json"


def closed(schema):
    """The schema, with objects that have no other members than it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    return schema


class Document:
    """An OpenAPI document. A schema is compiled when it is first needed: that takes longer than its use."""

    def __init__(self, tree):
        # What is looked up in a registry has whole names.
        self.tree = json.loads(json.dumps(tree).replace('"$ref": "#/', '"$ref": "urn:api#/'))
        self.registry = jsonschema_rs.Registry([("urn:api", self.tree)], draft=jsonschema_rs.Draft202012)
        self.validators = {}
        self.paths = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), item) for path, item
                      in sorted(self.tree["paths"].items(), key=lambda item: "{" in item[0])]

    def operation(self, method, path):
        """With the parameters of its path, or None."""
        for pattern, item in self.paths:
            if pattern.fullmatch(path) and method in item:
                both = item.get("parameters", []) + item[method].get("parameters", [])
                return {**item[method], "parameters": both}
        return None

    def behind(self, part):
        """What it refers to."""
        while "$ref" in part:
            names = part["$ref"].removeprefix("urn:api#/").split("/")
            part = reduce(lambda parent, name: parent[name], names, self.tree)
        return part

    def faults(self, holder, value):
        """What the holder's schema, if it has one, has against a value."""
        if "schema" not in holder:
            return
        schema = holder["schema"]
        if id(schema) not in self.validators:
            self.validators[id(schema)] = jsonschema_rs.Draft202012Validator(
                schema, registry=self.registry, validate_formats=True)
        for error in self.validators[id(schema)].iter_errors(value):
            yield f"{'.'.join(map(str, error.instance_path))}: {error.message}"

    def header_faults(self, name, header, headers):
        text = headers.get(name.lower())
        if text is not None:
            number = header["schema"].get("type") == "integer" and re.fullmatch("-?[0-9]+", text)
            for fault in self.faults(header, int(text) if number else text):
                yield f"header {name}: {fault}"
        elif header.get("required"):
            yield f"no header {name}"

    def content_faults(self, holder, kind, body):
        """Of a body and its type; anything may come where the document has no content."""
        if "content" not in holder:
            return
        if kind not in holder["content"]:
            yield f"a body of type {kind!r}"
        elif kind in ("application/json", "text/event-stream"):  # or a frame
            try:
                yield from self.faults(holder["content"][kind], json.loads(body))
            except ValueError as error:
                yield f"no JSON: {error}"
        elif kind.startswith("text/"):
            yield from self.faults(holder["content"][kind], body.decode())

    def reply_faults(self, operation, status, headers, kind, body):
        if str(status) not in operation["responses"]:
            yield f"no status {status}"
            return
        response = self.behind(operation["responses"][str(status)])
        for name, header in response.get("headers", {}).items():
            yield from self.header_faults(name, self.behind(header), headers)
        yield from self.content_faults(response, kind, body)

    def request_faults(self, operation, headers, kind, body):
        for parameter in map(self.behind, operation["parameters"]):
            if parameter["in"] == "header":
                yield from self.header_faults(parameter["name"], parameter, headers)
        yield from self.content_faults(operation.get("requestBody", {}), kind, body)


@cache
def document():
    """(for requests, for replies)"""
    plain = json.loads(DOCUMENT.read_text())
    replies = copy.deepcopy(plain)
    parts = replies["components"]
    parts["schemas"] = {name: schema if name == "CompletionRequest" else closed(schema)
                        for name, schema in parts["schemas"].items()}
    parts["responses"] = closed(parts["responses"])
    for path in replies["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict):
                operation["responses"] = closed(operation["responses"])
    # Where no operation is, an error is. OPTIONS are answered everywhere.
    replies["paths"]["/nothing"] = {"get": {"responses": {
        str(status): {"$ref": "#/components/responses/Error"}
        for status in (401, 403, 404, 405, 501)} | {"204": {"description": "methods"}}}}
    return Document(plain), Document(replies)


def documented(path):
    """Some paths are the same with and without "/v1" before them; the document has one of the two."""
    bare = path.removeprefix("/v1")
    if bare.startswith(("/completions", "/chat/completions", "/responses", "/models", "/health")):
        return bare if bare == "/health" else "/v1" + bare
    return path


def check(method, path, headers, sent, status, content_type, body, reply_headers):
    """Raises AssertionError when the document does not allow the reply."""
    requests, replies = document()
    path = documented(re.sub("(.)/$", r"\1", re.sub("/+", "/", path)))  # as routes.h has it
    method_of = method.lower()
    operation = None if method == "OPTIONS" else replies.operation(method_of, path)
    faults = list(replies.reply_faults(operation or replies.operation("get", "/nothing"), status,
                                       small(reply_headers), content_type, body))
    if status < 300 and sent and content_type == "application/json":
        kind = headers.get("content-type", "application/json").split(";")[0].lower()
        faults += requests.request_faults(requests.operation(method_of, path), small(headers), kind, sent)
    assert not faults, (f"{method} {path}: {status} {body[:300]!r}: openapi.json does not "
                        f"allow it: {'; '.join(faults)[:2000]}")


def small(headers):
    return {name.lower(): value for name, value in headers.items()}


def allows_request(method, path, body):
    requests = document()[0]
    operation = requests.operation(method.lower(), path)
    return not list(requests.request_faults(operation, {}, "application/json", body))


def check_frames(frames):
    """Of a stream of completions or of a chat: each is a chunk, or the last an error."""
    chat = any(frame.get("object", "").startswith("chat.") for frame in frames)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    for frame in frames:
        status, kind = (500, "application/json") if "error" in frame else (200, "text/event-stream")
        check("POST", path, {}, None, status, kind, json.dumps(frame).encode(), {})


class Client(httpx.Client):
    """A client whose replies are checked, but for those that are read piece by piece."""

    def send(self, request, *, stream=False, **options):
        reply = super().send(request, stream=stream, **options)
        kind = reply.headers.get("content-type", "").split(";")[0]
        if not stream and request.method != "HEAD" and kind != "text/event-stream":
            try:
                sent = request.content if request.method == "POST" else None
            except httpx.RequestNotRead:  # in pieces
                sent = None
            check(request.method, request.url.raw_path.decode().split("?")[0],
                  dict(request.headers), sent, reply.status_code, kind, reply.content,
                  dict(reply.headers))
        return reply
