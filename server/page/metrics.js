// SPDX-License-Identifier: Apache-2.0
// Reads /metrics (Prometheus text), and what the curves need of it.

export const LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192];

/** Map of name -> [{labels, value}] */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g))
      labels[name] = value;
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}

/** The sum over all series that carry these labels. */
export function sum(metrics, name, wanted = {}) {
  let total = 0;
  for (const { labels, value } of metrics.get(name) ?? [])
    if (Object.entries(wanted).every(([key, text]) => labels[key] === text)) total += value;
  return total;
}

/** Peak state memory of a text by its generation length; NaN where there was none. */
export function peakByLength(metrics) {
  return LENGTHS.map((length) =>
    sum(metrics, "regla_generation_peak_memory_bytes", { length: String(length) }) || NaN);
}

/** Mean speed by generation length. */
export function speedByLength(metrics) {
  return LENGTHS.map((length) => {
    const of = { length: String(length) };
    return sum(metrics, "regla_generation_tokens_per_second_sum", of)
      / sum(metrics, "regla_generation_tokens_per_second_count", of);
  });
}

export const COMPONENTS = ["weights", "workspace", "recurrent_state", "kv_cache", "checkpoints"];

/** What is kept of a scrape, for curves over time. */
export function sample(metrics) {
  const causes = Object.fromEntries(["device", "host", "idle"].map(
    (cause) => [cause, sum(metrics, "regla_engine_seconds_total", { cause })]));
  return {
    time: Date.now() / 1000,
    memory: COMPONENTS.map((component) => sum(metrics, "regla_memory_bytes", { component })),
    causes, steps: sum(metrics, "regla_engine_steps_total"),
    generated: sum(metrics, "regla_generated_tokens_total"),
    running: sum(metrics, "regla_requests_running"),
    waiting: sum(metrics, "regla_requests_waiting"),
  };
}
