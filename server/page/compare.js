// SPDX-License-Identifier: Apache-2.0
// Compare: this server beside another (--page-compare), by the same requests.

import { Api } from "./api.js";
import { onOtherWidth } from "./chart.js";
import { byLength } from "./curves.js";
import { alertLine, button, describe, el, field, short } from "./dom.js";
import { Follower } from "./follow.js";
import { generate } from "./generate.js";
import { LENGTHS, parse, peakByLength, speedByLength } from "./metrics.js";

export default function start({ api, config }, panel) {
  const other = field("Other server", "select", { onchange: () => choose(other.input.value) },
    ...config.compare.map((url) => el("option", { value: url }, url)));
  const prompt = field("Prompt", "textarea", { rows: 2 }, "It was a dark night, and");
  const longest = field("Up to, tokens", "select", {},
    ...LENGTHS.map((length) => el("option", { value: length, selected: length === 1024 }, String(length))));
  const go = button("Generate on both", () => run(() => both((side) => side.generate(128))),
    { class: "primary" });
  const measure = button("Measure each length", () => run(measureAll));
  const stop = button("Stop", () => sides.forEach((side) => side.run?.leave()), { disabled: true });
  const status = el("p", { role: "status" });
  const figures = el("div", { class: "figures" });
  const columns = el("div", { class: "columns" });
  panel.append(el("div", { class: "row" }, other.box), prompt.box,
    el("div", { class: "row" }, go, longest.box, measure, stop), status, columns, figures);
  let sides = [];

  function choose(url) {
    const base = url.endsWith("/") ? url : `${url}/`;
    sides = [new Side("This server", api, config.text, prompt.input),
      new Side(url, new Api(base), config.text, prompt.input)];
    columns.replaceChildren(...sides.map((side) => side.box));
    both((side) => side.read()).then(draw);
  }

  const both = (what) => Promise.all(sides.map(what));

  async function run(what) {
    go.disabled = measure.disabled = other.input.disabled = true;
    stop.disabled = false;
    await what();
    await both((side) => side.read());
    draw();
    go.disabled = measure.disabled = other.input.disabled = false;
    stop.disabled = true;
  }

  /** One request for each length, on both at the same time. */
  async function measureAll() {
    for (const length of LENGTHS.filter((one) => one <= Number(longest.input.value))) {
      status.textContent = `Generating ${length} tokens on both`;
      if ((await both((side) => side.generate(length))).includes(false)) {
        status.textContent = `Ended at ${length} tokens`;
        return;
      }
      await both((side) => side.read());
      draw();
    }
    status.textContent = "Measured";
  }

  function draw() {
    figures.replaceChildren(...byLength(sides.map(
      ({ name, peak, mean }) => ({ name, peak: peak ?? [], mean: mean ?? [] }))));
  }

  onOtherWidth(draw);
  let begun = false;
  return {
    show() {
      if (!begun) choose(other.input.value);
      begun = true;
    },
  };
}

/** One of the two servers. */
class Side {
  constructor(title, api, text, prompt) {
    this.api = api;
    this.name = title;
    this.ids = !text;
    this.prompt = () => (text ? prompt.value : prompt.value.split(/[\s,]+/).map(Number));
    this.card = el("p");
    this.speed = el("p", { class: "speed" });
    this.output = el("div",
      { class: "text", role: "region", tabindex: 0, "aria-label": `Output of ${title}` });
    this.end = new Follower(this.output);
    this.alert = alertLine();
    this.heading = el("h2", {}, title);
    this.box = el("article", {}, this.heading, this.card, this.speed, this.output, this.alert.line);
  }

  async read() {
    try {
      const metrics = parse(await this.api.text("metrics"));
      this.peak = peakByLength(metrics);
      this.mean = speedByLength(metrics);
      if (this.card.textContent) return;
      const [model] = (await this.api.get("v1/models")).data;
      this.name = model.id;
      this.heading.textContent = `${model.id} (${this.api.base})`;
      this.card.textContent = describe(model);
    } catch (error) {
      this.alert.show(error.code === "gone"
        ? `${error.message} It may be down, or not have this page's origin in its --allowed-origins.`
        : error);
    }
  }

  measure(run, count) {
    this.speed.textContent = `${count} tokens, ${short(run.tokensPerSecond)} tokens/s, first after `
      + `${short(run.firstMs)} ms`;
  }

  /** False: it went wrong. */
  async generate(length) {
    this.alert.show(null);
    this.output.textContent = "";
    this.end.toEnd();
    let count = 0;
    const run = this.run = generate(this.api, {
      prompt: this.prompt(), max_tokens: length, ignore_eos: true, seed: 1,
    }, this.ids);
    try {
      for await (const tokens of run) {
        count += tokens.length;
        this.output.append(tokens.map((token) => token.text).join(""));
        this.end.step();
        this.measure(run, count);
      }
      this.measure(run, count);
      return true;
    } catch (error) {
      if (error.name !== "AbortError") this.alert.show(error);
      return false;
    } finally {
      this.run = null;
    }
  }
}
