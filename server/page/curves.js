// SPDX-License-Identifier: Apache-2.0
// Curves: what this server's traffic shows of memory and speed, from /metrics.

import { chart, numbers, onOtherWidth } from "./chart.js";
import { alertLine, bytes, el, poll, short } from "./dom.js";
import { COMPONENTS, LENGTHS, parse, peakByLength, sample, speedByLength } from "./metrics.js";

const POLL_SECONDS = 2, KEPT_SECONDS = 600;

export default function start({ api }, panel) {
  const alert = alertLine();
  const now = el("p", { class: "speed" });
  const figures = el("div", { class: "figures" });
  const table = el("div");
  panel.append(
    el("p", { class: "hint" }, "By generation length: all requests since the server started; each counts in "
      + "the smallest length that holds its tokens. Over time: since this part was first shown."),
    now, alert.line, figures, table);
  const history = [];
  let metrics = null; // the last
  onOtherWidth(draw);

  async function read() {
    try {
      metrics = parse(await api.text("metrics"));
      history.push(sample(metrics));
      while (history[0].time < history.at(-1).time - KEPT_SECONDS) history.shift();
      alert.show(null);
      draw();
    } catch (error) {
      alert.show(error);
    }
  }

  function draw() {
    if (!metrics || document.hidden || panel.hidden) return; // it is drawn once it is seen
    const last = history.at(-1), before = history.at(-2);
    const speed = before ? (last.generated - before.generated) / (last.time - before.time) : NaN;
    now.textContent = `${last.running} running, ${last.waiting} waiting, ${short(speed)} tokens/s`;
    const peak = peakByLength(metrics), mean = speedByLength(metrics);
    figures.replaceChildren(...byLength([{ name: "this server", peak, mean }]), ...overTime(history));
    const open = table.querySelector("details")?.open;
    table.replaceChildren(numbers("The numbers by generation length",
      ["Tokens generated", "Peak state memory", "Tokens/s"],
      LENGTHS.map((length, i) =>
        [short(length), Number.isFinite(peak[i]) ? bytes(peak[i]) : "–", short(mean[i])])));
    table.firstChild.open = open ?? false;
  }

  const tick = poll(POLL_SECONDS, read, () => true); // curves have no gaps: a browser slows it down unseen
  return {
    show() {
      draw();
      tick();
    },
  };
}

/** The papers' figure. servers: [{name, peak, mean}] */
export function byLength(servers) {
  const axis = { xs: LENGTHS, log: true, points: true, xTicks: LENGTHS, xText: String,
    xLabel: "tokens generated" };
  return [
    chart({ ...axis, title: "Peak state memory of a text", yText: bytes, binary: true,
      series: servers.map(({ name, peak }) => ({ name, values: peak })) }),
    chart({ ...axis, title: "Tokens per second of a text, mean", yText: short,
      series: servers.map(({ name, mean }) => ({ name, values: mean })) }),
  ];
}

/** What happened between two samples, over `of` of it. */
function rates(history, what, of) {
  return history.map((one, i) => {
    const before = history[i - 1];
    return before && of(one) > of(before) ? (what(one) - what(before)) / (of(one) - of(before)) : NaN;
  });
}

function overTime(history) {
  const end = history.at(-1).time;
  const xs = history.map((one) => one.time - end);
  const span = Math.max(60, -xs[0]);
  const axis = { xs: [-span, ...xs], xTicks: [-span, -span / 2, 0], xLabel: "seconds ago",
    xText: (value) => short(Math.abs(value)) };
  const padded = (values) => [NaN, ...values];
  const perStep = (cause) => rates(history, (one) => one.causes[cause] * 1000, (one) => one.steps);
  return [
    chart({ ...axis, title: "Memory by component", yText: bytes, binary: true,
      series: COMPONENTS.map((name, i) => ({
        name: name.replaceAll("_", " "), values: padded(history.map((one) => one.memory[i])),
      })) }),
    chart({ ...axis, title: "Time of a step by cause", yText: (value) => `${short(value)} ms`,
      series: [["device", "on the device"], ["host", "the device waits for the host"]].map(
        ([cause, name]) => ({ name, values: padded(perStep(cause)) })) }),
    chart({ ...axis, title: "Requests", yText: short,
      series: [["running", "running"], ["waiting", "in the queue"]].map(
        ([key, name]) => ({ name, values: padded(history.map((one) => one[key])) })) }),
  ];
}
