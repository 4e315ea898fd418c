// Elements and the words for numbers. Text is set as text only, never parsed as markup: names, labels
// and errors may have been chosen by a guest.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element. `on…` are listeners, `true` is an attribute without a value, what is null is left out. */
export function el(name, props = {}, ...children) {
  return dress(document.createElement(name), props, children);
}

/** Makes an element of a drawing. */
export function svg(name, props = {}, ...children) {
  return dress(document.createElementNS(SVG, name), props, children);
}

function dress(node, props, children) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets a text if it is another one: what a screen reader reads is not said anew for nothing. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute, or removes it if the value is null, if it is to change. */
export function mark(node, name, value) {
  const wanted = value === null || value === undefined ? null : String(value);
  if (node.getAttribute(name) === wanted) return;
  if (wanted === null) node.removeAttribute(name);
  else node.setAttribute(name, wanted);
}

/** "15.3 MiB" */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

/** "5.7 ms", of microseconds. */
export function span(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e5 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(2)} s`;
}

/** "4 min", of a time in seconds since 1970. */
export function age(since) {
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - since));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** Text in which commands stand between backticks, as nodes. */
export function coded(text) {
  return text.split("`").map((part, nth) => (nth % 2 === 1 ? el("code", {}, part) : part));
}

/** "1 clone", "3 clones" */
export function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

export function sleep(ms) {
  return new Promise((done) => setTimeout(done, ms));
}
