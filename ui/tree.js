// Families as a tree: parents, and clones under them. Follows the pattern of WAI-ARIA for trees: one item is in the tab
// order, arrows go from one to the next.
//
// Items are kept by id and changed in place, so that focus stays and nothing jumps. A clone that is still being made has
// a row already: when it comes, no other row moves.

import { age, bytes, count, el, mark, say } from "./dom.js";
import { hostOf, PHASES, stateOf } from "./state.js";

/** Rows for clones that are being made, at most. */
const GHOSTS = 12;

export class Tree {
  #state;
  #root;
  #items = new Map();
  #closed = new Set();
  #selected = null;
  #focused = null;
  #onselect;
  #typed = "";
  #typing = 0;

  /** Draws into `root`, a list with the role `tree`. */
  constructor(root, state, onselect) {
    this.#root = root;
    this.#state = state;
    this.#onselect = onselect;
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("click", (event) => this.#click(event));
    root.addEventListener("focusin", (event) => {
      const item = event.target.closest("[role=treeitem]");
      if (item) this.#rove(item.dataset.id);
    });
  }

  /** Shows one VM as the chosen one; null: none. */
  select(id) {
    this.#selected = id;
    if (id !== null) {
      this.#open(id);
      this.#rove(id);
    }
    this.draw();
  }

  /** Moves the focus to a VM's row, or to the one that had it last. */
  focus(id) {
    (this.#items.get(id) ?? this.#items.get(this.#focused))?.item.focus();
  }

  draw() {
    const seen = new Set();
    const under = new Map();
    for (const fork of this.#state.forks.values()) {
      if (!under.has(fork.parent)) under.set(fork.parent, []);
      under.get(fork.parent).push(fork);
    }
    const families = this.#state.families();
    const tops = families.map((family) => {
      if (family.roots.length === 1) return this.#item(family.roots[0], 1, under, seen);
      // Their parent is gone: they are still one family.
      const node = { vm: { id: `family ${family.id}`, gone: true, image: family.image }, children: family.roots };
      return this.#item(node, 1, under, seen);
    });
    arrange(this.#root, tops);
    for (const [id, parts] of this.#items) {
      if (seen.has(id)) continue;
      this.#leave(id, parts);
      this.#items.delete(id);
    }
    if (!this.#items.has(this.#focused)) this.#rove(this.#selected ?? tops[0]?.dataset.id ?? null);
    this.#rove(this.#focused);
  }

  /** Tells rows' ages anew. */
  tick() {
    for (const { vm, old } of this.#items.values()) if (vm.created) say(old, age(vm.created));
  }

  #item(node, level, under, seen) {
    const { vm, children } = node;
    seen.add(vm.id);
    const parts = this.#items.get(vm.id) ?? this.#make(vm.id);
    parts.vm = vm;
    const forks = under.get(vm.id) ?? [];
    const closed = this.#closed.has(vm.id);
    const below = children.length + forks.length > 0;
    this.#fill(parts, below, closed, children.length);
    mark(parts.item, "aria-level", level);
    mark(parts.item, "aria-expanded", below ? !closed : null);
    mark(parts.item, "aria-selected", vm.id === this.#selected);
    // Also of a closed one, whose rows stay what they are.
    const rows = children.map((child) => this.#item(child, level + 1, under, seen));
    rows.push(...this.#ghosts(parts, forks));
    parts.group.hidden = closed || !below;
    arrange(parts.group, rows);
    return parts.item;
  }

  #make(id) {
    const parts = {
      twist: el("span", { class: "twist", "aria-hidden": "true" }),
      dot: el("span", { class: "dot", "aria-hidden": "true" }),
      name: el("span", { class: "name" }),
      badge: el("span", { class: "badge" }),
      host: el("span", { class: "host" }),
      tags: el("span", { class: "tags" }),
      own: el("span", { class: "own" }),
      shared: el("span", { class: "shared" }),
      size: el("span", { class: "size" }),
      old: el("span", { class: "old" }),
      group: el("ul", { role: "group", hidden: true }),
      ghosts: [],
      tagged: "",
    };
    parts.mem = el("span", { class: "mem" }, parts.own, parts.shared);
    const row = el("div", { class: "row" }, parts.twist, parts.dot,
      el("span", { class: "what" }, parts.name, parts.badge, parts.host, parts.tags),
      parts.mem, parts.size, parts.old);
    parts.item = el("li", { role: "treeitem", tabindex: "-1", "data-id": id }, row, parts.group);
    this.#items.set(id, parts);
    return parts;
  }

  #fill(parts, below, closed, clones) {
    const { vm } = parts;
    say(parts.twist, below ? (closed ? "▸" : "▾") : "");
    if (vm.gone) {
      mark(parts.item, "data-state", "gone");
      say(parts.name, `family of ${vm.image}`);
      say(parts.badge, "its founder is gone");
      mark(parts.item, "aria-label", `family of ${vm.image}, founder removed, ${count(clones, "VM")}`);
      return;
    }
    const state = stateOf(vm);
    const used = this.#state.used.get(vm.id);
    mark(parts.item, "data-state", vm.silence || vm.lost ? "silent" : vm.state);
    say(parts.name, vm.name);
    say(parts.badge, state);
    say(parts.host, vm.host || vm.node ? hostOf(vm) : "");
    say(parts.old, vm.created ? age(vm.created) : "");
    this.#tags(parts, vm.labels ?? {});
    const share = (part) => `${Math.min(100, (100 * part) / vm.memory).toFixed(1)}%`;
    parts.mem.classList.toggle("none", !used || !vm.memory);
    let memory = "";
    if (used && vm.memory) {
      const shared = Math.max(0, used.resident - used.private);
      parts.own.style.width = share(used.private);
      parts.shared.style.width = share(shared);
      memory = `${bytes(used.private)} private, ${bytes(shared)} shared`;
      mark(parts.mem, "title", `memory: ${memory}, of ${bytes(vm.memory)}`);
      say(parts.size, bytes(used.private));
    } else {
      say(parts.size, "");
    }
    const told = [vm.name, state, hostOf(vm), memory, clones > 0 ? count(clones, "clone") : ""];
    mark(parts.item, "aria-label", told.filter((text) => text !== "").join(", "));
  }

  #tags(parts, labels) {
    const key = JSON.stringify(labels);
    if (parts.tagged === key) return;
    parts.tagged = key;
    const tags = Object.entries(labels).map(([name, value]) => el("span", { class: "tag", title: `${name}=${value}` }, `${name}=${value}`));
    parts.tags.replaceChildren(...tags);
  }

  #ghosts(parts, forks) {
    const rows = [];
    for (const fork of forks) {
      const left = Math.max(0, fork.clones - this.#state.made(fork.fork));
      const shown = Math.min(left, GHOSTS);
      for (let nth = 0; nth < shown; nth += 1) {
        const more = nth === shown - 1 && left > shown ? ` and ${left - shown} more` : "";
        rows.push(`${PHASES[fork.phase] ?? fork.phase}${more}`);
      }
    }
    while (parts.ghosts.length < rows.length) {
      const text = el("span", { class: "name" });
      const row = el("div", { class: "row" }, el("span", { class: "twist" }), el("span", { class: "dot" }),
        el("span", { class: "what" }, text));
      parts.ghosts.push({ item: el("li", { class: "ghost", role: "none", "aria-hidden": "true" }, row), text });
    }
    parts.ghosts.length = rows.length;
    rows.forEach((row, nth) => say(parts.ghosts[nth].text, row));
    return parts.ghosts.map((ghost) => ghost.item);
  }

  /** Whoever had the focus in what goes keeps a place. */
  #leave(id, parts) {
    if (parts.item.contains(document.activeElement)) {
      const next = parts.item.parentElement?.closest("[role=treeitem]") ?? this.#visible().find((item) => item !== parts.item);
      next?.focus();
    }
    parts.item.remove();
    this.#closed.delete(id);
  }

  #rove(id) {
    const before = this.#items.get(this.#focused)?.item;
    if (before) mark(before, "tabindex", -1);
    this.#focused = id;
    const now = this.#items.get(id)?.item;
    if (now) mark(now, "tabindex", 0);
  }

  #open(id) {
    for (let vm = this.#state.vm(id); vm?.parent; vm = this.#state.vm(vm.parent)) this.#closed.delete(vm.parent);
  }

  #visible() {
    const all = [...this.#root.querySelectorAll("[role=treeitem]")];
    return all.filter((item) => item.parentElement.closest("[role=group][hidden]") === null);
  }

  #toggle(id, closed) {
    if (closed) this.#closed.add(id);
    else this.#closed.delete(id);
    this.draw();
  }

  #choose(id) {
    if (this.#items.get(id)?.vm.gone) this.#toggle(id, !this.#closed.has(id));
    else this.#onselect(id);
  }

  #click(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.target.closest(".ghost")) return;
    const { id } = item.dataset;
    item.focus();
    if (event.target.closest(".twist")) this.#toggle(id, !this.#closed.has(id));
    else this.#choose(id);
  }

  #key(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const { id } = item.dataset;
    const all = this.#visible();
    const at = all.indexOf(item);
    const expanded = item.getAttribute("aria-expanded");
    let next = null;
    switch (event.key) {
      case "ArrowDown": next = all[at + 1]; break;
      case "ArrowUp": next = all[at - 1]; break;
      case "Home": next = all[0]; break;
      case "End": next = all.at(-1); break;
      case "ArrowRight":
        if (expanded === "false") this.#toggle(id, false);
        else if (expanded === "true") next = all[at + 1];
        break;
      case "ArrowLeft":
        if (expanded === "true") this.#toggle(id, true);
        else next = item.parentElement.closest("[role=treeitem]");
        break;
      case "Enter":
      case " ":
        this.#choose(id);
        break;
      default:
        if (event.key.length !== 1) return;
        next = this.#search(event.key, all, at);
    }
    event.preventDefault();
    next?.focus();
  }

  /** The next row whose name begins with what is being typed. */
  #search(key, all, at) {
    const now = Date.now();
    this.#typed = now - this.#typing > 700 ? key : this.#typed + key;
    this.#typing = now;
    const from = this.#typed.length > 1 ? at : at + 1;
    const order = [...all.slice(from), ...all.slice(0, from)];
    const wanted = this.#typed.toLowerCase();
    return order.find((item) => this.#items.get(item.dataset.id).vm.name?.toLowerCase().startsWith(wanted));
  }
}

/** Has a list have these rows in this order, and moves none that is where it belongs. */
function arrange(list, rows) {
  const wanted = new Set(rows);
  for (const row of [...list.children]) {
    if (!wanted.has(row)) row.remove();
  }
  let at = list.firstElementChild;
  for (const row of rows) {
    if (row === at) at = at.nextElementSibling;
    else list.insertBefore(row, at);
  }
}
