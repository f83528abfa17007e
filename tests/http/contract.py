# SPDX-License-Identifier: Apache-2.0
"""Holds every reply that a test's client gets against api/openapi.json, with openapi-core: its
status, its headers, its body, each frame of a stream. Of a request that was served, the body too.
What the document does not name may not be in a reply."""

import copy
import json
import re
from functools import cache
from pathlib import Path

import httpx
from openapi_core import Config, OpenAPI
from openapi_core.exceptions import OpenAPIError
from openapi_core.templating.paths.exceptions import PathError
from openapi_core.testing import MockRequest, MockResponse

DOCUMENT = Path(__file__).resolve().parents[2] / "api" / "openapi.json"
URL = "http://localhost"


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
    config = Config(extra_media_type_deserializers={"text/event-stream": json.loads})  # a frame
    return OpenAPI.from_dict(plain, config), OpenAPI.from_dict(replies, config)


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
    if method == "OPTIONS":
        path = "/none"
    request = MockRequest(URL, method.lower(), path, headers=headers, data=sent,
                          content_type=headers.get("content-type", "application/json"))
    response = MockResponse(body, status, headers=reply_headers, content_type=content_type)
    try:
        try:
            replies.validate_response(request, response)
        except PathError:
            replies.validate_response(MockRequest(URL, "get", "/nothing"), response)
        if status < 300 and sent and content_type == "application/json":
            requests.validate_request(request)
    except OpenAPIError as error:
        causes = [str(error), *map(str, getattr(error.__cause__, "schema_errors", ()))]
        raise AssertionError(f"{method} {path}: {status} {body[:300]!r}: openapi.json does not "
                             f"allow it: {'; '.join(causes)[:2000]}") from error


def allows_request(method, path, body):
    request = MockRequest(URL, method.lower(), path, data=body, content_type="application/json")
    try:
        document()[0].validate_request(request)
    except OpenAPIError:
        return False
    return True


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
