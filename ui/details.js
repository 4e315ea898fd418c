// One VM: what it is, what can be done with it, its forks, its terminal and its console.
//
// The frame stays while VMs change: buttons and tabs are altered in place, so that the focus stays where it is.

import { call, vmPath } from "./api.js";
import { age, bytes, count, el, mark, say, span } from "./dom.js";
import { failed } from "./notices.js";
import { hostOf, isClone, PHASES, stateOf } from "./state.js";
import { Screens } from "./screens.js";
import { timeline } from "./timeline.js";

const TABS = [["overview", "Overview"], ["forks", "Forks"], ["terminal", "Terminal"], ["console", "Console"]];

/** States in which a button can be used. */
const ALLOWED = {
  fork: ["running", "paused", "checkpoint"],
  pause: ["running", "paused"],
  checkpoint: ["running", "paused"],
  move: ["running", "paused"],
  power: ["running", "paused", "stopped"],
  remove: ["running", "paused", "stopped", "checkpoint", "starting"],
};

export class Details {
  #state;
  #act;
  #id = null;
  #tab = "overview";
  #full = null;
  #shown = "";
  #parts;
  #screens;

  /** In `place`; `act` has what buttons do. */
  constructor(place, state, act) {
    this.#state = state;
    this.#act = act;
    const button = (name, text) => [name, el("button", { type: "button", onclick: () => act[name](this.vm) }, text)];
    const buttons = Object.fromEntries([button("fork", "Fork…"), button("pause", "Pause"), button("checkpoint", "Checkpoint…"),
      button("move", "Move…"), button("power", "Stop"), button("remove", "Remove…")]);
    buttons.fork.className = "primary";
    const tabs = Object.fromEntries(TABS.map(([name, text]) => [name, el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => this.show(name, true),
    }, text)]));
    const panels = Object.fromEntries(TABS.map(([name]) => [name, el("div", {
      role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true,
    })]));
    for (const name of ["overview", "forks"]) panels[name].tabIndex = 0;
    const list = el("div", { role: "tablist", "aria-label": "Parts" }, Object.values(tabs));
    list.addEventListener("keydown", (event) => this.#key(event));
    this.#parts = {
      place, buttons, tabs, panels,
      name: el("h2", { id: "chosen", tabindex: "-1" }),
      badge: el("span", { class: "badge" }),
      line: el("p", { class: "line" }),
      warning: el("p", { class: "warning", hidden: true }),
      back: el("button", { type: "button", class: "back", onclick: () => act.back() }, "← All VMs"),
    };
    const { back, name, badge, line, warning } = this.#parts;
    this.#parts.frame = el("div", { class: "frame" }, back,
      el("div", { class: "title" }, name, badge), line, warning,
      el("div", { class: "buttons", role: "group", "aria-label": "What to do with it" }, Object.values(buttons)), list,
      Object.values(panels));
    this.#parts.empty = el("div", { class: "welcome" });
    this.#screens = new Screens(panels.terminal, panels.console);
    place.append(this.#parts.empty, this.#parts.frame);
  }

  /** What is chosen, also if it has gone meanwhile. */
  get chosen() {
    return this.#id;
  }

  get vm() {
    return this.#state.vm(this.#id);
  }

  /** Shows a VM; null: none. */
  choose(id) {
    if (id !== this.#id) {
      this.#screens.close();
      this.#full = null;
      this.#shown = "";
      this.#id = id;
    }
    this.draw();
    this.refresh();
    if (id !== null) this.show(this.#tab);
  }

  focus() {
    this.#parts.name.focus();
  }

  /** Shows a part; `enter`: and a terminal in it has the focus. */
  show(tab, enter = false) {
    this.#tab = tab;
    for (const [name] of TABS) {
      const chosen = name === tab;
      mark(this.#parts.tabs[name], "aria-selected", chosen);
      this.#parts.tabs[name].tabIndex = chosen ? 0 : -1;
      this.#parts.panels[name].hidden = !chosen;
    }
    if (this.vm) this.#screens.show(tab, this.vm, enter);
  }

  /** Asks what is known of the VM in full. */
  async refresh() {
    const id = this.#id;
    if (id === null || !this.vm) return;
    const since = this.#state.now();
    try {
      const full = await call("GET", vmPath(id, "/inspect"));
      if (id !== this.#id) return;
      this.#full = full;
      this.#state.setVm(full.vm, since);
      this.draw();
    } catch (error) {
      // One that goes away is told of by an event.
      // A peer's are known there.
      const isAway = error.kind === "conflict" && this.vm?.host;
      if (!isAway && error.kind !== "not_found" && error.kind !== "unreachable" && error.status !== 401) {
        failed("This VM's facts are not known", error);
      }
    }
  }

  draw() {
    const { vm } = this;
    const { empty, frame, name, badge, line, warning, buttons } = this.#parts;
    empty.hidden = Boolean(vm);
    frame.hidden = !vm;
    if (!vm) {
      this.#welcome();
      return;
    }
    say(name, vm.name);
    say(badge, stateOf(vm));
    mark(frame, "data-state", vm.silence || vm.lost ? "silent" : vm.state);
    const parent = isClone(vm) ? `${vm.state === "checkpoint" ? "checkpoint" : "clone"} of ${this.#state.vm(vm.parent)?.name ?? "a VM that is gone"}` : vm.image;
    const facts = [parent, hostOf(vm) === "this host" ? null : `on ${hostOf(vm)}`,
      vm.vcpus ? count(vm.vcpus, "vCPU") : null, vm.memory ? bytes(vm.memory) : null];
    say(line, facts.filter(Boolean).join(" · "));
    const wrong = vm.silence ?? vm.failure;
    warning.hidden = !wrong;
    say(warning, wrong ?? "");
    for (const [what, states] of Object.entries(ALLOWED)) {
      buttons[what].disabled = !states.includes(vm.state) || buttons[what].hasAttribute("aria-busy");
    }
    // Where there is no other host it would be of no use.
    buttons.move.hidden = this.#state.destinations(vm).length === 0;
    if (vm.moving) buttons.move.disabled = true;
    say(buttons.pause, vm.state === "paused" ? "Resume" : "Pause");
    say(buttons.power, vm.state === "stopped" ? "Start" : "Stop");
    this.#screens.stand(vm);
    this.#overview(vm);
    this.#forks(vm);
  }

  /** A button's work is under way: it cannot be pressed twice. */
  async busy(name, work) {
    const button = this.#parts.buttons[name];
    button.setAttribute("aria-busy", "true");
    button.disabled = true;
    try {
      return await work();
    } finally {
      button.removeAttribute("aria-busy");
      this.draw();
    }
  }

  /** Says what to do next where nothing is chosen. */
  #welcome() {
    const { empty } = this.#parts;
    const none = this.#state.loaded && this.#state.vms.size === 0;
    const key = `${this.#state.loaded} ${none}`;
    if (empty.dataset.key === key) return;
    empty.dataset.key = key;
    if (!this.#state.loaded) empty.replaceChildren();
    else if (none) {
      empty.replaceChildren(
        el("h2", {}, "No VMs yet"),
        el("p", {}, "Run one. Once it is up, fork it: its clones wake in the same instant of memory and disk."),
        el("p", {}, el("button", { type: "button", class: "primary", onclick: () => this.#act.run() }, "Run a VM…")),
        el("p", { class: "small" }, "Or on the host: ", el("code", {}, "forkyard run tiny --name p"), ", then ",
          el("code", {}, "forkyard fork p --count 8")));
    } else {
      empty.replaceChildren(
        el("h2", {}, "Choose a VM"),
        el("p", {}, "Its state, forks, terminal and console are shown here. By keyboard: arrows go through the families, Enter chooses."));
    }
  }

  #overview(vm) {
    const used = this.#state.used.get(vm.id);
    const full = this.#full;
    const key = JSON.stringify([vm, used, full?.disk, full?.private_pages, full?.memory_image, full?.notes]);
    if (this.#shown === key) return;
    this.#shown = key;
    const row = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
    const rows = [];
    const parent = this.#state.vm(vm.parent);
    if (isClone(vm)) {
      rows.push(row("Parent", parent
        ? el("button", { type: "button", class: "link", onclick: () => this.#act.select(parent.id) }, parent.name) : "gone"));
    }
    rows.push(row("Host", hostOf(vm)));
    if (used) rows.push(row("Memory", this.#memory(vm, used)));
    else if (vm.memory) rows.push(row("Memory", bytes(vm.memory)));
    if (used) rows.push(row("Processor", used.cpu === null ? "…" : `${Math.round(used.cpu * 100)} %`));
    if (full) rows.push(row("Disk", this.#disk(full.disk)));
    if (full?.memory_image) rows.push(row("Page image", this.#pages(full.memory_image)));
    if (vm.address) rows.push(row("Address", vm.address.ip));
    if (vm.published?.length > 0) rows.push(row("Ports", vm.published.join(", ")));
    if (full?.network) rows.push(row("Network", full.network.out === "nat" ? "its family, and out by NAT" : "its family only"));
    const labels = Object.entries(vm.labels ?? {});
    if (labels.length > 0) rows.push(row("Labels", labels.map(([name, value]) => el("span", { class: "tag" }, `${name}=${value}`))));
    if (vm.created) rows.push(row("Age", age(vm.created)));
    if (vm.ends) rows.push(row("Ends", `${new Date(vm.ends.at * 1000).toLocaleString()}: ${vm.ends.action}`));
    if (vm.accel) rows.push(row("Accelerator", full?.emulated_because ? `${vm.accel} (no KVM: ${full.emulated_because})` : vm.accel));
    rows.push(row("Image", vm.image), row("Id", el("code", {}, vm.id)));
    const notes = (full?.notes ?? []).map((note) => el("li", {}, note));
    this.#parts.panels.overview.replaceChildren(el("dl", { class: "facts" }, rows.flat()),
      ...(notes.length > 0 ? [el("h3", {}, "What its guest could not do"), el("ul", {}, notes)] : []));
  }

  #memory(vm, used) {
    const shared = Math.max(0, used.resident - used.private);
    const own = el("span", { class: "own" });
    const common = el("span", { class: "shared" });
    own.style.width = `${Math.min(100, (100 * used.private) / vm.memory)}%`;
    common.style.width = `${Math.min(100, (100 * shared) / vm.memory)}%`;
    return el("div", {}, el("span", { class: "mem wide", "aria-hidden": "true" }, own, common),
      el("span", { class: "split" },
        el("span", {}, el("span", { class: "key own", "aria-hidden": "true" }), `${bytes(used.private)} private`),
        el("span", {}, el("span", { class: "key shared", "aria-hidden": "true" }), `${bytes(shared)} shared`),
        el("span", {}, `of ${bytes(vm.memory)}`)));
  }

  #disk(slices) {
    if (slices.length === 0) return "none of its own";
    const [own, ...below] = slices;
    const rest = below.reduce((sum, slice) => sum + slice.allocated, 0);
    return `${bytes(own.allocated)} its own${below.length > 0 ? `, over ${count(below.length, "layer")} of ${bytes(rest)}` : ""}`;
  }

  #pages(image) {
    return `${count(image.users, "user")}; ${image.touched} of ${count(image.data, "page")} asked for so far`;
  }

  #forks(vm) {
    const panel = this.#parts.panels.forks;
    const under = [...this.#state.forks.values()].filter((fork) => fork.parent === vm.id);
    const reports = this.#full?.forks ?? [];
    const now = under.map((fork) => [fork.fork, fork.phase, this.#state.made(fork.fork), fork.clones]);
    const key = JSON.stringify([vm.id, now, reports]);
    if (panel.dataset.key === key) return;
    panel.dataset.key = key;
    const rows = under.map((fork) => el("div", { class: "fork now", role: "status" },
      el("b", {}, "Fork under way"), ` ${this.#state.made(fork.fork)} of ${count(fork.clones, "clone")} · ${PHASES[fork.phase] ?? fork.phase}`,
      el("progress", { max: fork.clones, value: this.#state.made(fork.fork), "aria-label": "clones made" })));
    rows.push(...reports.map((report, nth) => timeline(report, `Fork ${nth + 1}.`)).reverse());
    if (rows.length === 0) {
      rows.push(el("p", { class: "empty" }, vm.state === "stopped" ? "No forks. A VM that has stopped can be started, and forked then."
        : "No forks yet. Fork makes clones of it, and shows here where the time went."));
    }
    panel.replaceChildren(...rows);
  }

  #key(event) {
    const names = TABS.map(([name]) => name);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const ends = { Home: 0, End: names.length - 1 }[event.key];
    if (step === undefined && ends === undefined) return;
    event.preventDefault();
    // Arrows go from tab to tab; Enter shows one: a terminal that was shown at once would take the focus.
    const now = names.indexOf(event.target.id.replace("tab-", ""));
    this.#parts.tabs[names[ends ?? (now + step + names.length) % names.length]].focus();
  }
}

/** "4 clones of p are ready 0.53 s after the request; p stood still for 5.7 ms." */
export function forkLine(name, ready, report) {
  const made = `${count(ready, "clone")} of ${name} ${ready === 1 ? "is" : "are"} ready`;
  if (!report) return `${made}.`;
  const still = report.pause_us > 0 ? `; ${name} stood still for ${span(report.pause_us)}` : "";
  return `${made} ${span(report.ready_us)} after the request${still}.`;
}
