// SPDX-License-Identifier: Apache-2.0
// Streams a completion or a chat, token by token, and measures it as it comes.

import { el, field } from "./dom.js";

const TOP = 5; // alternatives of each token

// The API's defaults, where a model's author recommends nothing else.
const DEFAULTS = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };

/** Fields of sampling. What nobody has changed is left to the server. */
export function settingsForm() {
  const number = (label, name, value, min, max, step) =>
    field(label, "input", { type: "number", name, value, min, max, step });
  const fields = [
    number("Tokens, at most", "max_tokens", 128, 1, 1e6, 1),
    number("Temperature", "temperature", "", 0, 2, "any"),
    number("Top p", "top_p", "", 0, 1, "any"),
    number("Top k (0: all)", "top_k", "", -1, 1e6, 1),
    number("Min p", "min_p", "", 0, 1, "any"),
    number("Repetition penalty", "repetition_penalty", "", 0.01, 10, "any"),
    number("Seed (empty: random)", "seed", "", -1e15, 1e15, 1),
  ];
  const stop = field("Stop at (empty: nowhere)", "input", { spellcheck: "false" });
  const hint = el("p", { class: "hint" });
  const box = el("details", {}, el("summary", {}, "Sampling"),
    el("div", { class: "settings" }, ...fields.map((one) => one.box), stop.box), hint);
  let defaults = {}; // none are known before the model is

  const changed = ({ name, value }) => value !== "" && value !== String(defaults[name]);
  return {
    box,
    /** recommended: by the model's author. */
    setDefaults(recommended) {
      defaults = { ...DEFAULTS, ...recommended };
      for (const { input } of fields)
        if (input.name in defaults) {
          input.placeholder = defaults[input.name]; // what holds where it is emptied
          input.value ||= defaults[input.name];
        }
      const words = Object.entries(recommended).map(([name, value]) => `${name} ${value}`).join(", ");
      hint.textContent = words && `The model's author recommends ${words}.`;
    },
    read() {
      const set = fields.map((one) => one.input).filter(changed);
      return { ...Object.fromEntries(set.map(({ name, value }) => [name, Number(value)])),
        stop: stop.input.value || undefined };
    },
  };
}

/** Of a string of OpenAI's logprobs, "token_id:12". */
function idOf(name) {
  return Number(name.replace("token_id:", ""));
}

/** The tokens of a choice: {text, id, logprob, top: [{id, logprob}]}. Text that several tokens have
 * together is that of the first. */
function tokensOf(choice, ids) {
  const text = choice.text ?? (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "");
  const logprobs = choice.logprobs;
  const entries = logprobs?.content
    ? logprobs.content.map((entry) => ({
      id: idOf(entry.token), logprob: entry.logprob,
      top: entry.top_logprobs.map((top) => ({ id: idOf(top.token), logprob: top.logprob })),
    }))
    : (logprobs?.tokens ?? []).map((token, i) => ({
      id: idOf(token), logprob: logprobs.token_logprobs[i],
      top: Object.entries(logprobs.top_logprobs[i] ?? {}).map(
        ([name, logprob]) => ({ id: idOf(name), logprob })),
    }));
  return entries.map((entry, i) => ({ ...entry, text: ids ? `${entry.id} ` : i === 0 ? text : "" }));
}

/** Iterates over lists of tokens as they come. base: how many tokens stand before the first one. ids: the
 * server has no tokenizer, so ids are the text. */
export function generate(api, body, ids) {
  const chat = body.messages !== undefined;
  const abort = new AbortController();
  const id = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  const sent = performance.now();
  let first = null, last = null, count = 0;
  const run = {
    base: null, timings: null, cut: false,
    get firstMs() {
      return first === null ? NaN : first - sent;
    },
    /** As the server measured it, once it has; frames come here several at a time, so a moment of them
     * says little. */
    get tokensPerSecond() {
      if (run.timings) return run.timings.decode_tokens_per_second ?? NaN;
      return last - first > 200 ? (count - 1) / ((last - first) / 1000) : NaN;
    },
    /** Nobody wants more of it. */
    leave() {
      abort.abort();
    },
    /** The server ends it, so that the session keeps what has come. */
    async stop() {
      run.cut = true;
      try {
        await api.cancel(id);
      } catch {
        abort.abort(); // it is at its end, or the server is gone
      }
    },
    async *[Symbol.asyncIterator]() {
      const frames = api.stream(chat ? "v1/chat/completions" : "v1/completions", {
        ...body, stream: true, stream_options: { include_usage: true },
        ...(chat ? { logprobs: true, top_logprobs: TOP } : { logprobs: TOP }),
        return_tokens_as_token_ids: true,
      }, id, abort.signal);
      try {
        for await (const frame of frames) {
          if (frame.usage) run.base = frame.usage.prompt_tokens;
          if (frame.timings) run.timings = frame.timings;
          if (frame.choices.length === 0) continue;
          const tokens = tokensOf(frame.choices[0], ids);
          if (tokens.length === 0) continue;
          last = performance.now();
          first ??= last;
          count += tokens.length;
          yield tokens;
        }
      } catch (error) {
        if (!run.cut || error.code !== "cancelled") throw error;
      }
    },
  };
  return run;
}
