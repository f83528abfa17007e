// SPDX-License-Identifier: Apache-2.0
// The frame of the page: what is served, and tabs, whose parts are loaded when they are first shown.

// The modules of each part, each after those that it imports. They are loaded one after the other: a
// browser would open a connection for each that it asks for at once, and keep it.
const MODULES = {
  try: ["tokens", "alternatives", "generate", "try"],
  sessions: ["longtext", "sessions"],
  curves: ["chart", "metrics", "curves"],
  compare: ["generate", "chart", "metrics", "curves", "compare"],
};

/** The last of them. */
async function load(names) {
  let module;
  for (const name of names) module = await import(`./${name}.js`);
  return module;
}

const { describe, el } = await load(["dom"]);
const { Api } = await load(["api"]);
const api = new Api(new URL(".", document.baseURI).href);
const panels = Object.keys(MODULES);
const opened = {};
const app = {
  api,
  config: null, // what the page has to know of the server's options
  /** Shows a part; what: for its `show`. */
  async open(name, what) {
    for (const one of panels) {
      const tab = document.getElementById(`tab-${one}`);
      tab.setAttribute("aria-selected", one === name);
      tab.tabIndex = one === name ? 0 : -1;
      document.getElementById(one).hidden = one !== name;
    }
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
    const panel = document.getElementById(name);
    try {
      opened[name] ??= load(MODULES[name]).then(({ default: start }) => {
        panel.replaceChildren();
        return start(app, panel);
      });
      (await opened[name]).show?.(what);
    } catch {
      opened[name] = undefined; // the next time it is tried again
      panel.replaceChildren(el("p", { role: "alert", class: "alert" },
        `The server does not answer (${api.base}).`));
    }
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

/** While the server loads, it is asked every second. */
async function loadedModel() {
  for (;;) {
    try {
      return (await api.get("v1/models")).data[0];
    } catch (error) {
      if (error.code !== "loading") throw error;
      document.getElementById("card").textContent = "The server loads its model.";
    }
    await new Promise((then) => setTimeout(then, 1000));
    if (document.hidden)
      await new Promise((then) => document.addEventListener("visibilitychange", then, { once: true }));
  }
}

async function begin() {
  app.config = await api.get("page/config.json");
  listenToTabs();
  const wanted = location.hash.slice(1);
  const tab = panels.includes(wanted) && document.getElementById(`tab-${wanted}`);
  await app.open(tab && !tab.hidden ? wanted : "try");
  performance.mark("usable");
  const model = await loadedModel();
  document.title = `${model.id} – regla`;
  document.getElementById("model").textContent = model.id;
  document.getElementById("card").textContent = describe(model);
}

try {
  await begin();
} catch (error) {
  document.getElementById("card").replaceChildren(el("span", { class: "alert" }, error.message));
}
document.documentElement.dataset.ready = "";
