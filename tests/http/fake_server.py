# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-shaped server for the tests of loadtest/: it answers at once, and has one fault.
Argument: its fault ("none", "leak", "refuse", "cut", "error", "short", "pause").
Its first line of output is its address."""

import asyncio
import json
import os
import socket
import sys
import threading

from aiohttp import web

LEAK_BYTES = 4 << 20
leaked = []


def leak():
    leaked.append(os.open("/dev/null", os.O_RDONLY))
    leaked.append(bytearray(b"x" * LEAK_BYTES))
    threading.Thread(target=threading.Event().wait, daemon=True).start()


async def complete(request):
    fault = request.app["fault"]
    asked = await request.json()
    if fault == "leak":
        leak()
    if fault == "refuse":
        return web.json_response({"error": {"message": "full"}}, status=429)
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await reply.prepare(request)
    tokens = asked["max_tokens"] - (fault == "short")
    for i in range(tokens):
        if fault == "cut" and i == 1:
            request.transport.abort()
            return reply
        if fault == "error" and i == 1:
            await frame(reply, {"error": {"message": "broken"}})
            break
        await frame(reply, {"choices": [{"index": 0, "text": "x"}]})
        await asyncio.sleep(0.02 if fault == "pause" else 0)
    await frame(reply, {"choices": [], "usage": {"completion_tokens": tokens}})
    await reply.write(b"data: [DONE]\n\n")
    return reply


async def frame(reply, body):
    await reply.write(b"data: " + json.dumps(body).encode() + b"\n\n")


async def models(request):
    return web.json_response({"data": [{"id": "fake", "owned_by": "nobody"}]})


def main():
    app = web.Application()
    app["fault"] = sys.argv[1]
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        web.run_app(app, sock=listening, print=None, handle_signals=True)


if __name__ == "__main__":
    main()
