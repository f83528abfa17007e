// SPDX-License-Identifier: Apache-2.0
// Makes elements, and words of numbers. All text goes in as text nodes, so no name, error or output of a
// model can become markup.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

let fields = 0;
/** A label with its field; what: "input", "textarea" or "select". */
export function field(label, what, attributes = {}, ...children) {
  const id = `field-${++fields}`;
  const input = el(what, { id, dir: "auto", ...attributes }, ...children);
  const box = el("div", { class: "field" }, el("label", { for: id }, label), input);
  return { box, input };
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** Where a view says what went wrong: read out at once. */
export function alertLine() {
  const line = el("p", { role: "alert", class: "alert" });
  return {
    line,
    show(error) {
      line.textContent = error ? (error.message ?? String(error)) : "";
    },
  };
}

let dialogs = 0;
/** Asks; the promise is true for the button named `yes`. input: a field that is in the dialog. */
export function ask(title, text, yes, input = null) {
  const id = `dialog-${++dialogs}`;
  return new Promise((answered) => {
    const dialog = el("dialog", { "aria-labelledby": id },
      el("form", { method: "dialog" },
        el("h2", { id }, title), el("p", {}, text), input,
        el("div", { class: "row" },
          el("button", { value: "yes", class: "primary" }, yes),
          el("button", { value: "no", formnovalidate: true }, "Cancel"))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      answered(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${short(value)} ${units[unit]}`;
}

/** Three digits, or all of a whole number. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}

export function age(seconds) {
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}

/** What a model is, in a line. */
export function describe(model) {
  const layers = new Map();
  for (const layer of model.layer_types) layers.set(layer, (layers.get(layer) ?? 0) + 1);
  const kinds = [...layers].map(([name, count]) => `${count} × ${name}`).join(", ");
  return `${model.family}, ${short(model.parameters / 1e6)} M parameters, ${kinds}; a text takes `
    + `${bytes(model.state_bytes_per_text)}`
    + (model.kv_bytes_per_token ? ` and ${bytes(model.kv_bytes_per_token)} a token` : "")
    + (model.max_model_len ? `; at most ${short(model.max_model_len)} tokens` : "");
}

/** Runs `task` every so often while it is wanted, and at once when the page is seen again. */
export function poll(seconds, task, wanted) {
  let timer = null, running = false;
  async function tick() {
    clearTimeout(timer);
    if (running || !wanted()) return;
    running = true;
    try {
      await task();
    } finally {
      running = false;
    }
    timer = setTimeout(tick, seconds * 1000);
  }
  document.addEventListener("visibilitychange", tick);
  return tick;
}
