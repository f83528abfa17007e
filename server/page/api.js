// SPDX-License-Identifier: Apache-2.0
// Asks a server. All requests of the page go through one gate, which lets two be under way at once: a
// browser has six connections to a server, and other pages want some. Only what ends a stream goes past it.

import { ask, field } from "./dom.js";

const LIMIT = 2;
let underWay = 0;
const waiting = [];

/** signal: gives up waiting. */
async function enter(signal) {
  signal?.throwIfAborted();
  if (underWay < LIMIT) {
    underWay++;
    return;
  }
  await new Promise((go, giveUp) => {
    waiting.push(go);
    signal?.addEventListener("abort", () => {
      const at = waiting.indexOf(go);
      if (at < 0) return; // it is under way
      waiting.splice(at, 1);
      giveUp(signal.reason);
    });
  });
}

function leave() {
  const next = waiting.shift(); // it takes over this place
  if (next) next();
  else underWay--;
}

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function errorOf(reply) {
  let error = {};
  try {
    error = (await reply.json()).error ?? {};
  } catch {
    // not ours: a proxy's page
  }
  const retry = reply.headers.get("Retry-After");
  const again = reply.status === 429 && retry ? ` Try again in ${retry} s.` : "";
  return new ApiError(reply.status, error.code ?? "",
    `${error.message ?? `The server answered ${reply.status}.`}${again}`);
}

export class Api {
  /** base: of the server, with a slash at its end. */
  constructor(base) {
    this.base = base;
    this.asking = null;
    this.declined = false; // nobody is asked again and again
  }

  get key() {
    return sessionStorage.getItem(`key ${this.base}`);
  }

  /** One dialog for all requests that need the key. */
  async askKey(wrong) {
    if (!this.declined) this.asking ??= (async () => {
      const { box, input } = field("API key", "input",
        { type: "password", autocomplete: "off", required: true });
      const given = await ask(wrong ? "That key is wrong" : "This server asks for a key",
        `${this.base} — the key is kept for this tab only.`, "Use it", box);
      if (given) sessionStorage.setItem(`key ${this.base}`, input.value.trim());
      else this.declined = true;
    })();
    try {
      await this.asking;
    } finally {
      this.asking = null;
    }
    if (this.declined)
      throw new ApiError(401, "invalid_api_key",
        "The server asks for an API key. Reload the page to give one.");
  }

  async fetch(path, options = {}) {
    for (;;) {
      const headers = { ...options.headers };
      const key = this.key;
      if (key) headers.Authorization = `Bearer ${key}`;
      let reply;
      try {
        reply = await fetch(this.base + path, { ...options, headers, credentials: "omit" });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "gone", `The server does not answer (${this.base}).`);
      }
      if (reply.ok) return reply;
      const error = await errorOf(reply);
      if (error.status !== 401) throw error;
      if (this.key === key) await this.askKey(key !== null);
    }
  }

  /** read: what to take from the reply. */
  async request(method, path, body, read) {
    await enter();
    try {
      const options = { method };
      if (body instanceof Blob) {
        options.body = body;
        options.headers = { "Content-Type": "application/octet-stream" };
      } else if (body !== undefined) {
        options.body = JSON.stringify(body);
        options.headers = { "Content-Type": "application/json" };
      }
      return await read(await this.fetch(path, options));
    } finally {
      leave();
    }
  }

  get(path) {
    return this.request("GET", path, undefined, (reply) => reply.json());
  }

  text(path) {
    return this.request("GET", path, undefined, (reply) => reply.text());
  }

  blob(path) {
    return this.request("GET", path, undefined, (reply) => reply.blob());
  }

  post(path, body) {
    return this.request("POST", path, body, (reply) => reply.json());
  }

  put(path, blob) {
    return this.request("PUT", path, blob, (reply) => reply.json());
  }

  delete(path) {
    return this.request("DELETE", path, undefined, () => null);
  }

  /** Ends a request: it does not wait behind what it may end. */
  async cancel(id) {
    await this.fetch(`v1/requests/${id}/cancel`, { method: "POST" });
  }

  /** The frames of a stream. signal: ends it. */
  async *stream(path, body, id, signal) {
    await enter(signal);
    try {
      const reply = await this.fetch(path, {
        method: "POST", body: JSON.stringify(body), signal,
        headers: { "Content-Type": "application/json", "X-Request-Id": id },
      });
      yield* frames(reply.body);
    } catch (error) {
      if (error instanceof ApiError || error.name === "AbortError") throw error;
      throw new ApiError(0, "gone", "The connection to the server broke.");
    } finally {
      leave();
    }
  }
}

/** What server-sent events of the API hold, up to [DONE]. A stream that ends without it has broken. */
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("no [DONE]");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event === "data: [DONE]") return;
        if (!event.startsWith("data: ")) continue; // a comment
        const frame = JSON.parse(event.slice(6));
        if (frame.error) throw new ApiError(500, frame.error.code, frame.error.message);
        yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // broken already, or at its end
  }
}
