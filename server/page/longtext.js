// SPDX-License-Identifier: Apache-2.0
// A text of any number of tokens, in which a click finds the token. Blocks that are not seen are not laid
// out (content-visibility), so 100,000 tokens scroll as a hundred do.

import { nodesOf } from "./direction.js";
import { el } from "./dom.js";

const BLOCK = 512; // tokens

export class LongText {
  /** picked: called with the number of tokens before the place that was clicked. */
  constructor(label, picked) {
    this.box = el("div", { class: "text long", role: "region", "aria-label": label, tabindex: 0 });
    this.box.addEventListener("click", (event) => {
      const at = this.tokenAt(event.clientX, event.clientY);
      if (at !== null) picked(at);
    });
    this.show([]);
  }

  show(texts) {
    this.texts = texts;
    this.blocks = [];
    for (let at = 0; at < texts.length; at += BLOCK) {
      const block = el("div", { class: "block" }, ...nodesOf(texts.slice(at, at + BLOCK).join("")));
      block.from = at;
      this.blocks.push(block);
    }
    this.box.replaceChildren(...this.blocks);
    CSS.highlights?.delete("dropped");
  }

  tokenAt(x, y) {
    const place = document.caretPositionFromPoint?.(x, y) ?? document.caretRangeFromPoint?.(x, y);
    const node = place?.offsetNode ?? place?.startContainer;
    const block = this.blocks.find((one) => one.contains(node));
    if (!block) return null;
    const before = new Range();
    before.setStart(block, 0);
    before.setEnd(node, place.offset ?? place.startOffset);
    let rest = before.toString().length, at = block.from;
    while (at < this.texts.length && rest >= this.texts[at].length) rest -= this.texts[at++].length;
    return at;
  }

  /** Marks what a rewind to `position` drops; nothing if there is no such place. */
  mark(position) {
    if (!globalThis.Highlight || this.blocks.length === 0) return;
    CSS.highlights.delete("dropped");
    if (!(position >= 0 && position < this.texts.length)) return;
    const block = this.blocks[Math.floor(position / BLOCK)];
    let rest = this.texts.slice(block.from, position).join("").length;
    const nodes = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    let node = nodes.nextNode();
    for (; node && rest > node.length; node = nodes.nextNode()) rest -= node.length;
    const range = new Range();
    range.setStart(node ?? block, node ? rest : 0);
    range.setEndAfter(this.blocks.at(-1));
    CSS.highlights.set("dropped", new Highlight(range));
  }
}
