// SPDX-License-Identifier: Apache-2.0
// The tokens that could have come at a place of the text, likeliest first.

import { button, el } from "./dom.js";
import { percent } from "./tokens.js";

const texts = new Map(); // by id

async function textOf(api, id) {
  if (!texts.has(id)) {
    const text = (await api.post("detokenize", { tokens: [id] })).prompt;
    texts.set(id, text);
  }
  return texts.get(id);
}

/** Shows them in the box. free: whether a fork may begin. */
export async function showAlternatives(box, api, text, token, free, forkAt) {
  const close = () => {
    box.hidden = true;
    token.span.isConnected && token.span.focus();
  };
  const tops = token.top.toSorted((a, b) => b.logprob - a.logprob);
  const list = el("ul", {});
  box.replaceChildren(
    el("h2", {}, token.position === undefined ? "Token" : `Token ${token.position}`, " ",
      el("code", {}, JSON.stringify(token.text)), ` came with ${percent(token.logprob)}`),
    list, button("Close", close));
  box.onkeydown = (event) => event.key === "Escape" && close();
  box.hidden = false;
  for (const top of tops) {
    try {
      top.text = await textOf(api, top.id);
    } catch {
      top.text = `${top.id} `; // a server without a tokenizer
    }
    const own = top.id === token.id;
    const words = `${JSON.stringify(top.text)} ${percent(top.logprob)}`;
    const bar = el("meter", { min: 0, max: 1, value: Math.exp(top.logprob), "aria-hidden": "true" });
    const fork = button(own ? "came" : "Fork here", async () => {
      if (!free() || token.position === undefined) return;
      box.hidden = true;
      await forkAt(token, top);
    }, {
      disabled: own || token.position === undefined,
      "aria-label": own ? `${words} came` : `Fork here with ${words}`,
    });
    list.append(el("li", {}, el("code", {}, JSON.stringify(top.text)), bar,
      el("span", { class: "number" }, percent(top.logprob)), fork));
  }
  list.querySelector("button:enabled")?.focus();
}
