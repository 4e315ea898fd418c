// Checkpoints and substrates: what is kept on disk to be forked or woken. Of a cluster its hosts, too.

import { bytes, coded, count, el } from "./dom.js";

/** Draws the lists anew, if what they show has changed. */
export class Lists {
  #state;
  #act;
  #checkpoints;
  #substrates;
  #nodes;
  #shown = "";

  /** `act` has what buttons do: `select(id)`, `fork(vm)`, `remove(vm)`, `wake(substrate)`, `removeSubstrate(substrate)`. */
  constructor({ checkpoints, substrates, nodes }, state, act) {
    this.#checkpoints = checkpoints;
    this.#substrates = substrates;
    this.#nodes = nodes;
    this.#state = state;
    this.#act = act;
  }

  draw() {
    const kept = [...this.#state.vms.values()].filter((vm) => vm.state === "checkpoint");
    const key = JSON.stringify([kept.map(({ id, name, parent, created }) => [id, name, created, this.#state.vm(parent)?.name]),
      this.#state.substrates, this.#state.nodes]);
    if (key === this.#shown) return;
    this.#shown = key;
    fill(this.#nodes, (this.#state.nodes ?? []).map((node) => this.#node(node)), "None.");
    fill(this.#checkpoints, kept.map((vm) => this.#checkpoint(vm)),
      "None. Checkpoint keeps an instant of a running VM: it can be forked any time later.");
    fill(this.#substrates, this.#state.substrates.map((one) => this.#substrate(one)),
      "None. `forkyard substrate dock VM --name NAME --kind restricted` keeps a VM small on disk, to be woken as new ones.");
  }

  #node(node) {
    const { taken, offers } = node;
    const facts = [count(node.vms, "VM"), `${taken.vcpus} of ${count(offers.vcpus, "vCPU")}`, `${bytes(taken.memory)} of ${bytes(offers.memory)}`];
    return el("li", { class: "node" },
      el("span", { class: "name" }, node.name, el("span", { class: "badge" }, node.state, node.here ? ", serves this page" : "")),
      el("span", { class: "facts" }, facts.join(" · ")));
  }

  #checkpoint(vm) {
    const parent = this.#state.vm(vm.parent)?.name;
    const facts = [parent ? `of ${parent}` : vm.image, vm.memory ? bytes(vm.memory) : null, vm.created ? `made ${new Date(vm.created * 1000).toLocaleString()}` : null];
    return el("li", {},
      el("button", { type: "button", class: "link", onclick: () => this.#act.select(vm.id) }, vm.name),
      el("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
      button("Fork", `Fork ${vm.name}`, () => this.#act.fork(vm)),
      button("Remove", `Remove ${vm.name}`, () => this.#act.remove(vm)));
  }

  #substrate(one) {
    const facts = [
      one.boot ? `first boot of ${one.image}` : `${one.kind}, of ${one.from}`,
      `${bytes(one.size)} on disk`, one.vms.length > 0 ? count(one.vms.length, "VM") : null,
      one.ready ? null : "being made",
    ];
    return el("li", {},
      el("span", { class: "name" }, one.name),
      el("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
      button("Wake", `Wake VMs of ${one.name}`, () => this.#act.wake(one), !one.ready),
      button("Remove", `Remove ${one.name}`, () => this.#act.removeSubstrate(one)));
  }
}

function button(text, label, onclick, disabled = false) {
  return el("button", { type: "button", class: "small", "aria-label": label, onclick, disabled }, text);
}

/** A list, or what to do to have something in it. A button that has the focus loses it to the list's next one. */
function fill(list, rows, empty) {
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...(rows.length > 0 ? rows : [el("li", { class: "empty" }, ...coded(empty))]));
  if (focused) list.querySelector("button")?.focus();
}
