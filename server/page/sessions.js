// SPDX-License-Identifier: Apache-2.0
// Sessions: the tree of what the server keeps, and what can be done with one of them.

import { age, alertLine, ask, button, bytes, el, field, poll, short } from "./dom.js";
import { LongText } from "./longtext.js";

const POLL_SECONDS = 5;

export default function start(app, panel) {
  const { api } = app;
  const alert = alertLine();
  const status = el("p", { role: "status" });
  const body = el("tbody");
  const table = el("table", { role: "treegrid", "aria-label": "Sessions" },
    el("thead", {}, el("tr", {}, ...[
      ["Session", ""], ["Tokens", ""], ["Recurrent", "wide"], ["KV", "wide"], ["Tier", "wide"], ["Used", ""],
    ].map(([text, kind]) => el("th", { scope: "col", class: kind }, text)))), body);
  const file = field("Import a state file", "input", { type: "file" });
  const target = field("as", "input", { maxlength: 128, spellcheck: "false", placeholder: "name" });
  const one = details(app, { refresh, alert, status });
  panel.append(
    el("div", { class: "row" }, file.box, target.box, button("Import", bring), button("Refresh", refresh)),
    status, alert.line,
    el("div", { class: "split" },
      el("div", { class: "list", role: "region", "aria-label": "All sessions", tabindex: 0 }, table),
      one.box));

  let listed = "", rows = new Map(), chosen = "";

  async function read() {
    const text = await api.text("v1/sessions");
    if (text !== listed) {
      listed = text;
      draw(tree(JSON.parse(text).data));
    } else {
      for (const { session, used } of rows.values()) used.textContent = since(session.used);
    }
  }

  async function refresh() {
    try {
      await read();
      if (alert.polling) alert.show(null);
      alert.polling = false;
    } catch (error) {
      alert.show(error);
      alert.polling = true;
    }
  }

  function draw(sessions) {
    const began = performance.now();
    const focused = document.activeElement?.dataset?.session;
    rows = new Map();
    const made = sessions.map(({ session, depth }) => {
      const used = el("td", {}, since(session.used));
      const name = button(session.id, () => {
        alert.show(null);
        choose(session.id);
      }, {
        "data-session": session.id, tabindex: -1, class: "link",
        "aria-label": session.shared_with
          ? `${session.id}, shares ${session.shared_tokens} tokens with ${session.shared_with}`
          : session.id,
      });
      const row = el("tr", { "aria-level": depth + 1, "aria-selected": session.id === chosen },
        el("td", { class: `depth${Math.min(depth, 8)}` }, name),
        el("td", {}, short(session.position)),
        el("td", { class: "wide" }, bytes(session.recurrent_bytes)),
        el("td", { class: "wide" }, bytes(session.kv_bytes)),
        el("td", { class: "wide" }, session.tier), used);
      rows.set(session.id, { session, row, name, used });
      return row;
    });
    body.replaceChildren(...made);
    status.textContent = sessions.length === 1 ? "1 session" : `${short(sessions.length)} sessions`;
    const at = rows.get(focused) ?? rows.get(chosen) ?? rows.values().next().value;
    if (at) at.name.tabIndex = 0;
    if (focused && rows.has(focused)) at.name.focus();
    if (chosen && !rows.has(chosen)) choose("", false);
    else one.show(rows.get(chosen)?.session ?? null);
    performance.measure("sessions drawn", { start: began });
  }

  /** id: "" for none; step: one for the browser's Back button. */
  function choose(id, step = true) {
    rows.get(chosen)?.row.setAttribute("aria-selected", false);
    chosen = id;
    rows.get(id)?.row.setAttribute("aria-selected", true);
    one.show(rows.get(id)?.session ?? null);
    app.moved("sessions", id, step);
  }

  body.addEventListener("keydown", (event) => {
    const names = [...rows.values()].map((row) => row.name);
    const at = names.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (at < 0 || to === undefined || !names[to]) return;
    event.preventDefault();
    names[at].tabIndex = -1;
    names[to].tabIndex = 0;
    names[to].focus();
  });

  async function bring() {
    const [chosenFile] = file.input.files, name = encodeURIComponent(target.input.value);
    alert.show(null);
    if (!chosenFile || !name) {
      alert.show("Choose a file and a name for the session.");
      return;
    }
    try {
      const session = await api.put(`v1/sessions/${name}/state`, chosenFile);
      await read();
      choose(session.id);
      status.textContent = `${session.id} is imported: ${session.position} tokens`;
    } catch (error) {
      alert.show(error);
    }
  }

  const tick = poll(POLL_SECONDS, refresh, () => !document.hidden && !panel.hidden);

  function show(id) {
    if (id !== undefined) {
      chosen = id;
      listed = ""; // it is drawn with this one
    }
    tick();
  }

  return { show };
}

function since(seconds) {
  return age(Date.now() / 1000 - seconds);
}

/** Each below the session that it shares most tokens with, the oldest first. */
function tree(sessions) {
  const below = Map.groupBy(sessions, (session) => session.shared_with);
  const ordered = [], next = []; // next: the last comes first
  const add = (name, depth) => {
    const children = (below.get(name) ?? []).sort((a, b) => a.created - b.created).reverse();
    next.push(...children.map((session) => ({ session, depth })));
  };
  for (add(null, 0); next.length > 0;) {
    const at = next.pop();
    ordered.push(at);
    add(at.session.id, at.depth + 1);
  }
  return ordered;
}

/** One session: its text, and what can be done with it. */
function details(app, list) {
  const { api } = app;
  const title = el("h2", { tabindex: -1 });
  const facts = el("dl");
  const position = field("Rewind to token", "input", { type: "number", min: 0, step: 1 });
  const name = field("Fork as", "input", { maxlength: 128, spellcheck: "false" });
  const text = new LongText("The text of the session", (at) => {
    position.input.value = at;
    text.mark(at);
  });
  position.input.addEventListener("input", () => text.mark(Number(position.input.value)));
  const box = el("section", { class: "details", "aria-label": "The chosen session", hidden: true },
    title, facts, text.box,
    el("p", { class: "hint" }, "Click into the text to choose where a rewind ends."),
    el("div", { class: "row" }, position.box, button("Rewind", rewind)),
    el("div", { class: "row" }, name.box, button("Fork", fork)),
    el("div", { class: "row" }, button("Continue in Try", () => app.open("try", session.id)),
      button("Export", exportIt), button("Delete", remove, { class: "danger" })));
  let session = null;

  const path = () => `v1/sessions/${encodeURIComponent(session.id)}`;

  async function show(now) {
    const known = session !== null && now?.id === session.id;
    const same = known && now.position === session.position && now.used === session.used;
    session = now;
    box.hidden = now === null;
    if (!now) return;
    facts.replaceChildren(...[
      ["Tokens", short(now.position)], ["Recurrent state", bytes(now.recurrent_bytes)],
      ["Keys and values", bytes(now.kv_bytes)], ["Tier", now.tier],
      ["Checkpoints", short(now.checkpoints)], ["On disk", now.durable ? "yes" : "no"],
      ["Shares", now.shared_with ? `${now.shared_tokens} tokens with ${now.shared_with}` : "nothing"],
    ].flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
    if (same) return;
    title.textContent = now.id;
    position.input.value = now.position;
    position.input.max = now.position;
    if (!known) {
      name.input.value = `${now.id}-2`.slice(-128);
      text.show([]);
    }
    await act(async () => {
      const held = await api.get(`${path()}/tokens`);
      if (held.id === session?.id) text.show(held.texts ?? held.tokens.map((token) => `${token} `));
    });
  }

  /** Does it, says what went wrong, and `said` when it went well. */
  async function act(what, said) {
    try {
      await what();
      if (!said) return;
      await list.refresh();
      list.status.textContent = said;
    } catch (error) {
      list.alert.show(error);
    }
  }

  async function rewind() {
    const to = Number(position.input.value), lost = session.position - to;
    if (lost > 0 && !await ask("Rewind?", `${session.id} loses its last ${lost} tokens.`, "Rewind")) return;
    await act(() => api.post(`${path()}/rewind`, { position: to }), `${session.id} is at token ${to}`);
  }

  function fork() {
    const id = name.input.value;
    return act(() => api.post(`${path()}/fork`, { id }), `${id} is forked from ${session.id}`);
  }

  function exportIt() {
    return act(async () => {
      const url = URL.createObjectURL(await api.blob(`${path()}/state`));
      el("a", { href: url, download: `${session.id}.state` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    }, `${session.id} is exported`);
  }

  async function remove() {
    const { id, position: tokens } = session;
    if (!await ask("Delete?", `${id} and its ${tokens} tokens are gone for good.`, "Delete")) return;
    await act(() => api.delete(path()), `${id} is deleted`);
  }

  return { box, show };
}
