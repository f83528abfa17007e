// SPDX-License-Identifier: Apache-2.0
// Keeps the end of a box in sight while its text grows, until somebody scrolls up. Whoever scrolls to the end
// again follows again. How somebody scrolls (wheel, keys, finger, bar, search) makes no difference.

const LINE = 32; // a line of text and the padding below it: near enough to the end

export class Follower {
  constructor(box) {
    this.box = box;
    this.follows = true;
    this.top = 0; // where it was when last seen
    // A browser says that it scrolled before it draws the frame in which text is added: however little
    // somebody scrolled up, it is known here by then.
    box.addEventListener("scroll", () => this.look());
    new ResizeObserver(() => this.stay()).observe(box); // another width, or shown again
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    if (clientHeight === 0) return; // its part is hidden
    const end = scrollHeight - clientHeight, top = Math.min(scrollTop, end);
    if (top < Math.min(this.top, end)) this.follows = false; // more than its text became shorter
    else if (top > this.top && end - top < LINE) this.follows = true;
    this.top = top;
  }

  /** Text has been added. */
  step() {
    this.look();
    if (this.follows) this.stay();
  }

  /** All has been laid out anew: at the end, or where it was. */
  stay() {
    const { box } = this;
    if (box.clientHeight === 0) return;
    box.scrollTop = this.follows ? box.scrollHeight : this.top;
    this.top = Math.min(box.scrollTop, box.scrollHeight - box.clientHeight);
  }

  /** Goes to the end, and follows from there. */
  toEnd() {
    this.follows = true;
    this.stay();
  }
}
