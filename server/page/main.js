// SPDX-License-Identifier: Apache-2.0
// The frame of the page: what is served, and tabs, whose parts are loaded when they are first shown. The
// address says which is.

// The modules of each part, each after those that it imports. They are loaded one after the other: a
// browser would open a connection for each that it asks for at once, and keep it.
const MODULES = {
  try: ["direction", "follow", "tokens", "generate", "try"],
  sessions: ["direction", "longtext", "sessions"],
  curves: ["chart", "metrics", "curves"],
  compare: ["follow", "generate", "chart", "metrics", "curves", "compare"],
};

/** The last of them. */
async function load(names) {
  let module;
  for (const name of names) module = await import(`./${name}.js`);
  return module;
}

const { describe, el } = await load(["dom"]);
const address = await load(["address"]);
const { Api } = await load(["api"]);
const api = new Api(new URL(".", document.baseURI).href);
const panels = Object.keys(MODULES);
const opened = {};
const known = Promise.withResolvers();
const tabOf = (name) => document.getElementById(`tab-${name}`);
const app = {
  api,
  config: null, // what the page has to know of the server's options
  model: known.promise, // its card
  moved: address.moved,
  /** Shows a part. session: that it goes to ("": none); undefined: it stays where it is. step: one that the
   * browser's Back button goes back. */
  async open(name, session, step = true) {
    for (const one of panels) {
      const tab = tabOf(one);
      tab.setAttribute("aria-selected", one === name);
      tab.tabIndex = one === name ? 0 : -1;
      document.getElementById(one).hidden = one !== name;
    }
    if (!opened[name]) session ??= address.sessionOf(name);
    address.goTo(name, session ?? address.sessionOf(name), step);
    const panel = document.getElementById(name);
    try {
      opened[name] ??= load(MODULES[name]).then(({ default: start }) => {
        panel.replaceChildren();
        return start(app, panel);
      });
      (await opened[name]).show?.(session);
    } catch {
      opened[name] = undefined; // the next time it is tried again
      panel.replaceChildren(el("p", { role: "alert", class: "alert" },
        `The server does not answer (${api.base}).`));
    }
  },
};

function listenToTabs() {
  const tabs = panels.map(tabOf);
  tabOf("compare").hidden = app.config.compare.length === 0;
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

/** Shows what the address says: at the start, after Back, or when somebody has changed it. */
function followAddress() {
  const { part, session } = address.read();
  if (!panels.includes(part) || tabOf(part).hidden) return app.open(address.shown, undefined, false);
  const there = opened[part] && session === address.sessionOf(part);
  return app.open(part, there ? undefined : session, false);
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
  const first = MODULES[address.read().part] ?? MODULES.try;
  [app.config] = await Promise.all([api.get("page/config.json"),
    load(first).catch(() => {})]); // `open` says so
  listenToTabs();
  await followAddress();
  window.addEventListener("hashchange", followAddress);
  performance.mark("usable");
  const model = await loadedModel();
  known.resolve(model);
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
