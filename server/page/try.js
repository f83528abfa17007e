// SPDX-License-Identifier: Apache-2.0
// Try: a session's text that grows. What is generated is shaded by its probability; another token of a
// place begins a fork of the session there.

import { alertLine, button, el, field, short } from "./dom.js";
import { generate, settingsForm } from "./generate.js";
import { TokenText } from "./tokens.js";

export default function start(app, panel) {
  const { api, config } = app;
  const name = field("Session", "input",
    { value: newName(), maxlength: 128, spellcheck: "false", autocomplete: "off" });
  const mode = field("Send as", "select", {}, el("option", { value: "text" }, "text that goes on"),
    el("option", { value: "chat", disabled: !config.chat },
      config.chat ? "message of a chat" : "chat: the model has no template"));
  const prompt = field(config.text ? "Prompt" : "Prompt: token ids", "textarea",
    { rows: 3, placeholder: config.text ? "It was a dark night, and" : "1 2 3" });
  const settings = settingsForm();
  app.model.then((model) => settings.setDefaults(model.default_sampling_params ?? {}));
  const go = el("button", { type: "submit", class: "primary" }, "Generate");
  const stop = button("Stop", () => run?.stop(), { disabled: true });
  const speed = el("p", { class: "speed", "aria-hidden": "true" }, "");
  const done = el("p", { role: "status", class: "hidden-text" }, "");
  const alert = alertLine();
  const alternatives = el("section", { class: "alternatives", "aria-label": "Alternatives", hidden: true });
  const text = new TokenText("The text of the session", async (token) => {
    const loaded = await import("./alternatives.js").catch(() => null); // many never want them
    if (!loaded) return alert.show(`The server does not answer (${api.base}).`);
    return loaded.showAlternatives(alternatives, api, text, token, () => run === null, forkAt);
  });
  const fresh = button("New session", () => {
    renew(newName());
    app.moved("try", "");
  });
  const form = el("form", { onsubmit: submit, autocomplete: "off" },
    el("div", { class: "row" }, name.box, fresh, mode.box),
    text.box, alternatives, prompt.box,
    el("div", { class: "row" }, go, stop, speed), settings.box, done, alert.line);
  panel.append(form);
  if (config.chat) mode.input.value = "chat";

  let run = null; // what is being generated
  let position = 0; // tokens that the session holds, as far as this page knows
  name.input.addEventListener("change", () => {
    app.moved("try", name.input.value);
    load(name.input.value);
  });
  prompt.input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  function renew(id) {
    name.input.value = id;
    position = 0;
    text.clear();
    alternatives.hidden = true;
    alert.show(null);
  }

  /** Shows what a session holds; one that is not there yet is empty. */
  async function load(id) {
    if (run) return;
    renew(id);
    if (!id) return;
    try {
      await look(id);
    } catch (error) {
      if (error.code !== "session_not_found") alert.show(error);
    }
  }

  async function read(id) {
    const held = await api.get(`v1/sessions/${encodeURIComponent(id)}/tokens`);
    return { ...held, texts: held.texts ?? held.tokens.map((token) => `${token} `) };
  }

  async function reread(id, held = null) {
    held ??= await read(id);
    text.replace(held.texts.join(""));
    position = held.position;
  }

  /** Shows what a session holds by now, if it is still the one that is here. */
  async function look(id) {
    const held = await read(id);
    if (!run && name.input.value === id && held.position !== position) await reread(id, held);
  }

  /** The server sees a little later that a reload has cut off a request, and then keeps what it had. */
  async function lookAgain(id) {
    for (const pause of [200, 400, 800, 1600]) {
      await new Promise((then) => setTimeout(then, pause));
      if (run || name.input.value !== id) return;
      try {
        await look(id);
      } catch {
        // there is none yet
      }
    }
  }

  function submit(event) {
    event.preventDefault();
    if (run) return;
    const written = prompt.input.value;
    if (!config.text) {
      const ids = written.split(/[\s,]+/).filter((word) => word).map(Number);
      send({ prompt: ids }, ids.map((id) => `${id} `).join(""), "sent", written);
    } else if (mode.input.value === "chat") {
      send({ messages: [{ role: "user", content: written }] }, `\n${written}\n`, "sent", written);
    } else {
      send({ prompt: written }, written, "sent", written);
    }
    prompt.input.value = "";
  }

  /** Continues the session. shown: what the text has for what is sent, with the class `kind`. written: goes
   * back to the prompt if nothing comes of it. */
  async function send(body, shown, kind = "sent", written = "") {
    const id = name.input.value;
    app.moved("try", id, false);
    if (body.messages) text.endCode();
    const sent = text.addPlain(shown, kind);
    alert.show(null);
    alternatives.hidden = true;
    done.textContent = "";
    const state = (busy) => {
      go.disabled = busy;
      stop.disabled = !busy;
      name.input.disabled = fresh.disabled = busy;
    };
    state(true);
    run = generate(api, {
      ...body, ...settings.read(), ...(config.text ? {} : { stop: undefined }),
      session_id: id, expected_position: position,
    }, !config.text);
    let count = 0;
    try {
      for await (const tokens of run) {
        count += tokens.length;
        text.add(tokens);
        measure(count);
      }
    } catch (error) {
      if (error.name !== "AbortError") alert.show(error);
      if (count === 0) {
        sent.remove();
        if (!prompt.input.value && kind === "sent") prompt.input.value = written;
      }
      // Another client has gone on with it.
      if (error.code === "position_mismatch") await reread(id).catch(alert.show);
    }
    if (count > 0) measure(count);
    if (count > 0 || run.base !== null) await settle(id, run.base, sent);
    done.textContent = `${count} tokens generated. ${speed.textContent}`;
    if (position === 0) app.moved("try", "", false); // nothing to come back to
    run = null;
    state(false);
  }

  function measure(count) {
    speed.textContent = `${count} tokens, ${short(run.tokensPerSecond)} tokens/s, first after `
      + `${short(run.firstMs)} ms${run.cut ? ", stopped" : ""}`;
  }

  /** What the session holds now decides: what was sent is shown as the tokens that it became. If the
   * rest is not what the text shows, the text is read again. */
  async function settle(id, base, sent) {
    text.flush();
    try {
      const held = await read(id);
      const from = text.place(base, held.tokens, held.texts);
      if (from < position) {
        await reread(id, held);
        return;
      }
      text.rewrite(sent, held.texts.slice(position, from).join(""));
      position = held.position;
    } catch (error) {
      if (error.code === "session_not_found") position = 0;
      else if (!alert.line.textContent) alert.show(error);
    }
  }

  /** From here on the text goes another way, in a session of its own. */
  async function forkAt(token, alternative) {
    const from = encodeURIComponent(name.input.value);
    const id = `${name.input.value.slice(0, 100)}.${token.position}-${randomWord(4)}`;
    alert.show(null);
    try {
      await api.post(`v1/sessions/${from}/fork`, { id });
      await api.post(`v1/sessions/${encodeURIComponent(id)}/rewind`, { position: token.position });
    } catch (error) {
      alert.show(error);
      return;
    }
    text.cutAt(token);
    name.input.value = id;
    app.moved("try", id);
    position = token.position;
    mode.input.value = "text";
    await send({ prompt: [alternative.id] }, alternative.text, "chosen");
    text.box.focus();
  }

  let reloaded = performance.getEntriesByType("navigation")[0]?.type === "reload";

  /** id: a session, "" for a new one, undefined for the one that is here. */
  async function show(id) {
    if (run) {
      app.moved("try", name.input.value, false); // it goes on
    } else if (id) {
      await load(id);
      if (reloaded) lookAgain(id);
    } else if (id === "") {
      renew(newName());
    }
    reloaded = false;
  }

  prompt.input.focus();
  return { show };
}

function newName() {
  return `page-${randomWord(6)}`;
}

function randomWord(length) {
  return Math.random().toString(36).slice(2, 2 + length);
}
