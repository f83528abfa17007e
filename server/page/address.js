// SPDX-License-Identifier: Apache-2.0
// The address: which part is shown, and of which session (#part or #part/session). An entry of the browser's
// history also keeps the sessions of the other parts, for a reload.

const at = { ...history.state }; // the session of each part; "": none yet
export let shown = "try";

/** What the address names: {part, session}. */
export function read() {
  const [part, session = ""] = location.hash.slice(1).split("/");
  try {
    return { part, session: decodeURIComponent(session) };
  } catch {
    return { part, session: "" }; // nothing that we wrote
  }
}

export function sessionOf(part) {
  return at[part] ?? "";
}

/** step: the browser's Back button comes back to what was there before. */
function write(step) {
  const session = sessionOf(shown);
  const hash = `#${shown}${session ? `/${encodeURIComponent(session)}` : ""}`;
  history[step && hash !== location.hash ? "pushState" : "replaceState"]({ ...at }, "", hash);
}

/** A part is shown. */
export function goTo(part, session, step) {
  shown = part;
  at[part] = session;
  write(step);
}

/** A part, which need not be shown, is at another session. */
export function moved(part, session, step = true) {
  if (sessionOf(part) === session) return;
  at[part] = session;
  write(step && part === shown);
}
