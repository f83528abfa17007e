// SPDX-License-Identifier: Apache-2.0
// The frame of the page: what is served, and tabs, whose parts are loaded when they are first shown.

import { Api } from "./api.js";
import { describe, el } from "./dom.js";

const api = new Api(new URL(".", document.baseURI).href);
const panels = ["try", "sessions", "curves", "compare"];
const opened = {};
const app = {
  api,
  config: await api.get("page/config.json"),
  /** Shows a part; what: for its `show`. */
  async open(name, what) {
    for (const panel of panels) {
      const tab = document.getElementById(`tab-${panel}`);
      const chosen = panel === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(panel).hidden = !chosen;
    }
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
    opened[name] ??= import(`./${name}.js`).then(
      ({ default: start }) => start(app, document.getElementById(name)));
    (await opened[name]).show?.(what);
  },
};

function listenToTabs() {
  const tabs = panels.map((name) => document.getElementById(`tab-${name}`));
  document.getElementById("tab-compare").hidden = app.config.compare.length === 0;
  for (const tab of tabs)
    tab.addEventListener("click", () => app.open(tab.getAttribute("aria-controls")));
  document.getElementById("tabs").addEventListener("keydown", (event) => {
    const shown = tabs.filter((tab) => !tab.hidden);
    const at = shown.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = shown[(to + shown.length) % shown.length];
    tab.focus();
    tab.click();
  });
}

listenToTabs();
const wanted = location.hash.slice(1);
const first = document.getElementById(`tab-${wanted}`);
await app.open(first && !first.hidden && panels.includes(wanted) ? wanted : "try");
performance.mark("usable");
document.documentElement.dataset.usable = "";
try {
  const [model] = (await api.get("v1/models")).data;
  document.title = `${model.id} – regla`;
  document.getElementById("model").textContent = model.id;
  document.getElementById("card").textContent = describe(model);
} catch (error) {
  document.getElementById("card").replaceChildren(el("span", { class: "alert" }, error.message));
}
document.documentElement.dataset.ready = "";
