// SPDX-License-Identifier: Apache-2.0
// A text of tokens, each shaded by its probability, that grows without holding up the page.

import { Fences, nodesOf } from "./direction.js";
import { el } from "./dom.js";
import { Follower } from "./follow.js";

const SHADES = 8;

/** The class of a token's shade: the less likely, the stronger. */
function shade(logprob) {
  const surprise = Math.min(-logprob / Math.LN2, SHADES - 1); // bits
  return `p${Math.round(surprise)}`;
}

export function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return `${share >= 1 ? share.toFixed(0) : share.toPrecision(1)} %`;
}

function nameOf(token) {
  return `${JSON.stringify(token.text)}, ${percent(token.logprob)}`;
}

/** Shows a token's text. New lines alone have no place to click but for a sign (page.css). */
function write(token) {
  token.span.textContent = token.text;
  token.span.classList.toggle("lines", /^\s*\n\s*$/.test(token.text));
  token.span.setAttribute("aria-label", nameOf(token));
}

export class TokenText {
  /** chosen: called with a token that is clicked. */
  constructor(label, chosen) {
    this.box = el("div", { class: "text", role: "region", "aria-label": label, tabindex: 0 });
    this.tokens = []; // of this run and before: {text, id, logprob, top, position, span}
    this.fresh = []; // not in the page yet
    this.chosen = chosen;
    this.frame = 0;
    this.end = new Follower(this.box);
    this.fences = new Fences();
    this.into = this.box; // or code
    this.box.addEventListener("click", (event) => this.choose(event.target));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  clear() {
    this.replace("");
    this.end.toEnd();
  }

  /** Shows this instead. Whoever has scrolled up stays there. */
  replace(text) {
    this.tokens = [];
    this.fresh = [];
    this.box.replaceChildren();
    this.endCode();
    this.addPlain(text);
    this.end.stay();
  }

  /** What comes next is no code, whatever stands before it. */
  endCode() {
    this.flush();
    this.fences.reset();
    this.into = this.box;
  }

  addPlain(text, kind = "plain") {
    this.flush();
    const span = el("span", { class: kind }, ...nodesOf(text));
    this.put(span, text);
    if (kind !== "plain") this.end.toEnd(); // whoever sends something wants to see it
    return span;
  }

  /** The same place of the text is this now. */
  rewrite(span, text) {
    span.replaceChildren(...nodesOf(text));
    this.end.step();
  }

  put(span, text) {
    this.into.append(span);
    const before = this.fences.code;
    this.fences.add(text);
    if (this.fences.code === before) return;
    this.into = this.box;
    if (this.fences.code) this.box.append(this.into = el("code"));
  }

  add(tokens) {
    this.fresh.push(...tokens);
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.fresh.length === 0) return;
    for (const token of this.fresh) {
      token.span = el("span", {
        class: `token ${shade(token.logprob)}`, role: "button", tabindex: -1,
      });
      token.span.token = token;
      write(token);
      this.put(token.span, token.text);
    }
    this.tokens.push(...this.fresh);
    this.fresh = [];
    this.end.step();
  }

  /** A run has ended: its tokens stand behind `base` others; null: it is not known. Returns `base`, or
   * -1 if the session, which holds these ids, has not what is shown. An EOS at the end it has not. The
   * tokens get the texts that they have there: a chat's reply leaves some out. */
  place(base, held, texts) {
    const run = this.tokens.filter((token) => token.position === undefined);
    base ??= held.length - run.length;
    run.forEach((token, i) => {
      token.position = base + i;
      token.text = texts[token.position] ?? token.text;
      write(token);
    });
    const same = this.tokens.every(
      (token) => token.position >= held.length || held[token.position] === token.id);
    return base >= 0 && same && base + run.length >= held.length ? base : -1;
  }

  /** Removes the token and all behind it. */
  cutAt(token) {
    const at = this.tokens.indexOf(token);
    const range = new Range();
    this.into = token.span.parentNode;
    range.setStartBefore(token.span);
    range.setEndAfter(this.box.lastChild);
    range.deleteContents();
    this.fences.reset();
    this.fences.code = this.into !== this.box;
    this.tokens.length = at;
  }

  choose(span) {
    if (!span.token) return;
    this.box.querySelector(".at")?.classList.remove("at");
    span.classList.add("at");
    this.chosen(span.token);
  }

  /** Arrows go from token to token, Enter chooses. */
  key(event) {
    const at = this.tokens.findIndex((token) => token.span === document.activeElement);
    const last = this.tokens.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      if (at < 0) return;
      event.preventDefault();
      this.choose(document.activeElement);
    } else if (to !== undefined && to >= 0 && to <= last) {
      event.preventDefault();
      this.tokens[to].span.focus();
    }
  }
}
