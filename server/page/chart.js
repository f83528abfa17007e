// SPDX-License-Identifier: Apache-2.0
// Draws lines as SVG: a title, axes with ticks, a line for each series, and a legend that has the last
// values as text.

import { el, svg } from "./dom.js";

const WIDE = 560, NARROW = 340, HEIGHT = 240, LEFT = 68, RIGHT = 18, TOP = 12, BOTTOM = 40;

const narrowWindow = matchMedia("(max-width: 34rem)"); // as page.css has it

/** Calls `draw` when charts would be drawn otherwise. */
export function onOtherWidth(draw) {
  narrowWindow.addEventListener("change", draw);
}

/** Steps of 1, 2 or 5, or of powers of two for bytes, from 0 to `most`, at most five. */
function ticks(most, binary) {
  if (!(most > 0)) return [0, 1];
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(most / 4));
  } else {
    const power = 10 ** Math.floor(Math.log10(most / 4));
    step = [1, 2, 5, 10].find((factor) => factor * power >= most / 4) * power;
  }
  const all = [];
  for (let at = 0; at < most + step; at += step) all.push(at);
  return all;
}

/** points of a series as a path: it breaks where there is no value. */
function path(xs, values, x, y) {
  let d = "", pen = "M";
  values.forEach((value, i) => {
    if (Number.isFinite(value)) {
      d += `${pen}${x(xs[i]).toFixed(1)} ${y(value).toFixed(1)}${pen === "M" ? "h0" : ""}`; // a dot, if alone
      pen = "L";
    } else {
      pen = "M";
    }
  });
  return d;
}

/** title; xs: [count]; series: [{name, values: [count]}]; log: whether x is drawn by its logarithm;
 * xLabel; xText, yText: a number as words; xTicks: where; binary: ticks of bytes; points: drawn, too. */
export function chart({ title, xs, series, log = false, xLabel, xText, yText, xTicks, binary, points }) {
  const narrow = narrowWindow.matches;
  const width = narrow ? NARROW : WIDE;
  const scale = log ? Math.log2 : (value) => value;
  const low = scale(xs[0] ?? 0), high = scale(xs.at(-1) ?? 1);
  const most = Math.max(0, ...series.flatMap((one) => one.values.filter(Number.isFinite)));
  const marks = ticks(most, binary), top = marks.at(-1);
  const share = (value) => (high > low ? (scale(value) - low) / (high - low) : 0.5);
  const x = (value) => LEFT + (width - LEFT - RIGHT) * share(value);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top);
  const last = series.map((one) => one.values.findLast(Number.isFinite));
  const words = series.map(
    (one, i) => `${one.name}: ${last[i] === undefined ? "nothing yet" : yText(last[i])}`);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}. Last: ${words.join("; ")}`,
  });
  for (const mark of marks)
    picture.append(
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
      svg("text", { class: "tick end", x: LEFT - 6, y: y(mark) + 4 }, yText(mark)));
  for (const mark of narrow && xTicks.length > 4 ? xTicks.filter((_, i) => i % 2 === 0) : xTicks)
    picture.append(svg("text", { class: "tick middle", x: x(mark), y: HEIGHT - BOTTOM + 18 }, xText(mark)));
  picture.append(svg("text", { class: "tick middle", x: (LEFT + width) / 2, y: HEIGHT - 4 }, xLabel));
  series.forEach((one, i) => {
    picture.append(svg("path", { class: `line s${i}`, d: path(xs, one.values, x, y) }));
    if (!points) return;
    one.values.forEach((value, at) => {
      if (Number.isFinite(value))
        picture.append(svg("circle", { class: `point s${i}`, cx: x(xs[at]), cy: y(value), r: 3.5 }));
    });
  });
  return el("figure", {}, el("figcaption", {}, title), picture,
    el("ul", { class: "legend", "aria-hidden": "true" }, ...words.map((text, i) =>
      el("li", {}, svg("svg", { viewBox: "0 0 24 8", class: "key" },
        svg("path", { class: `line s${i}`, d: "M1 4H23" })), text))));
}

/** The same numbers for who does not see the curves. */
export function numbers(caption, head, rows) {
  const table = el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows.map(([first, ...rest]) => el("tr", {},
      el("th", { scope: "row" }, first), ...rest.map((text) => el("td", {}, text))))));
  return el("details", {}, el("summary", {}, caption),
    el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0 }, table));
}
