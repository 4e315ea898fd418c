// What has happened that nobody may miss: refusals and failures as the API tells of them, until they are closed; and what
// went well, for a while.

import { coded, el } from "./dom.js";

const SHOWN = 9_000;
/** Most at once: the oldest goes. */
const MOST = 4;

let place;

export function into(node) {
  place = node;
}

/** The parts of an error: what and why, then what to do. */
export function errorText(error) {
  return [
    el("p", {}, ...coded(error.message)),
    error.hint ? el("p", { class: "hint" }, el("b", {}, "What to do: "), ...coded(error.hint)) : null,
  ].filter(Boolean);
}

/** Shows an error until it is closed. */
export function failed(title, error) {
  show("bad", title, errorText(error), "alert");
}

/** Shows that something went well. */
export function done(title, ...rest) {
  const notice = show("good", title, rest, "status");
  setTimeout(() => notice.remove(), SHOWN);
}

function show(kind, title, content, role) {
  const close = el("button", { class: "close", "aria-label": "Close this message", type: "button" }, "×");
  const notice = el("div", { class: `notice ${kind}`, role }, el("div", { class: "text" }, el("h2", {}, title), ...content), close);
  close.addEventListener("click", () => notice.remove());
  place.append(notice);
  while (place.children.length > MOST) place.firstElementChild.remove();
  return notice;
}
