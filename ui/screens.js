// The terminal and the console of the chosen VM: at most one of them is connected, and only while it is looked at. A
// browser has six connections to a host at once, and events take one.

import { count, el, say } from "./dom.js";
import { errorText, failed } from "./notices.js";
import { endShell, place, shells, showConsole, showShell, TAG, View } from "./terminal.js";

export class Screens {
  #terminal;
  #console;
  #view = null;
  #vm = null;
  #tab = "overview";
  #stood = null;
  #enter = false;

  constructor(terminal, console) {
    this.#terminal = terminal;
    this.#console = console;
  }

  /** Has the part that is looked at connected, and no other one; `enter`: and gives it the focus. */
  show(tab, vm, enter) {
    if (tab === this.#tab && vm.id === this.#vm?.id && this.#view) {
      if (enter) this.#view.focus();
      return;
    }
    this.close();
    this.#enter = enter;
    this.#tab = tab;
    this.#vm = vm;
    this.#stood = vm.state;
    this.#connect();
  }

  /** The VM is in another state, perhaps: connects if it can be reached now. */
  stand(vm) {
    if (vm.id !== this.#vm?.id || vm.state === this.#stood) return;
    this.#stood = vm.state;
    this.#vm = vm;
    // A terminal of a VM that stands still is still there when it goes on.
    if (this.#view && vm.state !== "stopped") return;
    this.#connect();
  }

  close() {
    this.#view?.close();
    this.#view = null;
    this.#vm = null;
    // For those who drive the page: what the terminal shows.
    delete window.forkyardView;
  }

  #connect() {
    if (this.#tab === "terminal") this.#shell(null, false);
    if (this.#tab === "console") this.#serial();
  }

  #open(panel, buttons) {
    this.#view?.close();
    const note = el("span", { class: "note", role: "status" }, "connecting…");
    const screen = place();
    panel.replaceChildren(el("div", { class: "bar" }, note, ...buttons), screen,
      el("p", { class: "small" }, "Shift+Tab leaves the terminal."));
    this.#view = new View(screen, note);
    window.forkyardView = this.#view;
    return this.#view;
  }

  /** A session of the VM: `pid`; if null its own of this page, or a new one. */
  async #shell(pid, fresh) {
    const vm = this.#vm;
    const panel = this.#terminal;
    if (vm.state !== "running") {
      this.#away(panel, vm, "terminal");
      return;
    }
    const choice = el("select", { "aria-label": "Shells of this VM", hidden: true });
    const another = el("button", { type: "button", class: "small", onclick: () => this.#entered(null, true) }, "New shell");
    const end = el("button", { type: "button", class: "small", disabled: true }, "End shell");
    const view = this.#open(panel, [choice, another, end]);
    choice.addEventListener("change", () => this.#entered(Number(choice.value), false));
    try {
      const found = await shells(vm.id);
      const mine = (one) => (pid === null ? one.tag === TAG : one.pid === pid);
      const wanted = fresh ? null : found.findLast(mine) ?? null;
      if (wanted === null && !fresh && !this.#enter) {
        if (!view.signal.aborted) this.#offer(panel, vm);
        return;
      }
      if (view.signal.aborted || !(await view.open(`Terminal of ${vm.name}`))) return;
      const over = await showShell(view, vm.id, wanted, (now) => {
        view.tell(wanted === null ? "connected" : "connected: the shell was running");
        this.#choices(choice, found, now);
        end.disabled = false;
        end.addEventListener("click", () => endShell(vm.id, now).catch((error) => failed("The shell was not ended", error)));
        if (this.#enter) view.focus();
      });
      view.tell(`The shell has ended: ${over}.`);
      end.disabled = true;
    } catch (error) {
      if (!view.signal.aborted) this.#broken(panel, error, () => this.#shell(null, false));
    }
  }

  /** Who goes from VM to VM leaves no shell in each. */
  #offer(panel, vm) {
    this.#view?.close();
    this.#view = null;
    panel.replaceChildren(el("p", { class: "empty" }, `No shell of this page runs in ${vm.name}.`),
      el("button", { type: "button", class: "primary", onclick: () => this.#entered(null, true) }, "Open a shell"));
  }

  #entered(pid, fresh) {
    this.#enter = true;
    this.#shell(pid, fresh);
  }

  #choices(choice, found, now) {
    const known = found.some((one) => one.pid === now) ? found : [...found, { pid: now, argv: ["new shell"], tag: TAG }];
    const name = (one) => `${one.pid} · ${one.tag === TAG ? "shell" : one.tag ?? one.argv.join(" ").slice(0, 40)}`;
    choice.replaceChildren(...known.map((one) => el("option", { value: one.pid, selected: one.pid === now }, name(one))));
    choice.hidden = known.length < 2;
    choice.title = count(known.length, "shell");
  }

  async #serial() {
    const vm = this.#vm;
    const panel = this.#console;
    if (vm.state === "checkpoint") {
      this.#away(panel, vm, "console");
      return;
    }
    const view = this.#open(panel, []);
    try {
      if (!(await view.open(`Serial console of ${vm.name}`))) return;
      if (this.#enter) view.focus();
      view.tell(vm.state === "stopped" ? "output until it stopped" : "connected to the serial console");
      await showConsole(view, vm.id, vm.state !== "stopped");
      if (!view.signal.aborted) say(panel.querySelector(".note"), "The console has closed.");
    } catch (error) {
      if (!view.signal.aborted) this.#broken(panel, error, () => this.#serial());
    }
  }

  /** Says why there is nothing to be seen, and what to do. */
  #away(panel, vm, what) {
    this.#view?.close();
    this.#view = null;
    const then = {
      paused: "it is paused. Resume continues it.",
      stopped: "it has stopped. Start boots it again.",
      starting: "it is starting. This opens as soon as it is up.",
      checkpoint: "a checkpoint does not run. Fork makes VMs of it that do.",
    }[vm.state] ?? "it does not run.";
    panel.replaceChildren(el("p", { class: "empty" }, `${vm.name} has no ${what} now: ${then}`));
  }

  #broken(panel, error, again) {
    this.#view?.close();
    this.#view = null;
    panel.replaceChildren(el("div", { class: "problem", role: "alert" }, ...errorText(error),
      el("button", { type: "button", onclick: again }, "Try again")));
  }
}
