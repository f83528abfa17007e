// SPDX-License-Identifier: Apache-2.0
// Which way text runs. A paragraph begins at the side of its first letter (page.css: plaintext). The marks of
// chat templates have no say in that, and code always runs from left to right.

import { el } from "./dom.js";

const FENCE = /^ {0,3}(?:```|~~~)/;
// Code between two fences, or a mark such as <|user|> or [INST].
const APART = new RegExp(
  "^ {0,3}(```|~~~)[^\\n]*(?:\\n(?! {0,3}\\1)[^\\n]*)*\\n {0,3}\\1[^\\n]*\\n?"
  + "|<[^<>\\s]{1,40}>|\\[/?[A-Z_]{2,20}\\]", "gm");

/** Nodes that show this text. */
export function nodesOf(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(APART)) {
    nodes.push(text.slice(end, found.index), el(found[1] ? "code" : "bdi", {}, found[0]));
    end = found.index + found[0].length;
  }
  return [...nodes, text.slice(end)].filter((node) => node !== "");
}

/** Finds code in a text that comes in pieces. */
export class Fences {
  constructor() {
    this.reset();
  }

  reset() {
    this.code = false; // whether what comes next is code
    this.line = ""; // how the last line begins
  }

  add(text) {
    const lines = (this.line + text).split("\n");
    this.line = lines.pop().slice(0, 8);
    for (const line of lines) if (FENCE.test(line)) this.code = !this.code;
  }
}
