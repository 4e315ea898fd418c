// What is known of the host: VMs by id, forks under way, what they use. Pure: it asks for nothing and draws nothing.
//
//   list --------> vms        the whole truth, now and then
//   events ------> vms, forks at once, with as much as they tell
//   usage -------> used

const BY_NAME = new Intl.Collator("en", { numeric: true });

/** Words for how far a fork is. */
export const PHASES = {
  granted: "machines are being started", received: "memory and disk are taken", starting: "clones are starting",
};

export class State {
  vms = new Map();
  /** Forks under way, by id: `{ fork, parent, clones, phase, since }`. */
  forks = new Map();
  /** Memory and processor time by id: `{ resident, private, cpu }`. */
  used = new Map();
  substrates = [];
  images = [];
  nodes = null;
  loaded = false;
  #last = null;
  #listeners = new Set();
  #due = false;

  /** Has `listener` called after changes, once for many that come together. */
  onchange(listener) {
    this.#listeners.add(listener);
  }

  changed() {
    if (this.#due) return;
    this.#due = true;
    setTimeout(() => {
      this.#due = false;
      for (const listener of this.#listeners) listener();
    }, 16);
  }

  setVms(list) {
    this.vms = new Map(list.map((vm) => [vm.id, vm]));
    this.loaded = true;
    this.changed();
  }

  set(name, value) {
    this[name] = value;
    this.changed();
  }

  setVm(vm) {
    this.vms.set(vm.id, { ...this.vms.get(vm.id), ...vm });
    this.changed();
  }

  /** Takes what VMs have used so far; the share of a processor is of the time since the answer before. */
  setUsage(usage) {
    const last = this.#last;
    const used = new Map();
    for (const one of usage.vms) {
      const before = last?.vms.get(one.vm.id);
      const time = last ? usage.at_us - last.at_us : 0;
      const cpu = before !== undefined && time > 0 ? Math.max(0, one.cpu_us - before) / time : null;
      if (one.resident > 0) used.set(one.vm.id, { resident: one.resident, private: one.private, cpu });
    }
    this.#last = { at_us: usage.at_us, vms: new Map(usage.vms.map((one) => [one.vm.id, one.cpu_us])) };
    this.set("used", used);
  }

  /** Takes an event. */
  apply(event) {
    const [[what, told]] = Object.entries(event.what);
    const { vm, fork } = event.subject;
    const known = vm && this.vms.get(vm.id);
    switch (what) {
      case "vm_created":
        if (!known) {
          this.vms.set(vm.id, {
            id: vm.id, name: vm.name, family: vm.family, fork, created: event.time_ms / 1000, ...told,
          });
        }
        break;
      case "vm_changed":
        if (known) Object.assign(known, { state: told.to, failure: told.failure });
        if (!["running", "paused"].includes(told.to)) this.used.delete(vm.id);
        break;
      case "vm_silence":
        if (known) known.silence = told.why;
        break;
      case "vm_removed":
      case "checkpoint_removed":
        this.vms.delete(vm.id);
        break;
      case "fork_begun":
        this.forks.set(fork, {
          fork, parent: vm.id, name: vm.name, clones: told.clones, phase: "granted", since: event.time_ms,
        });
        break;
      case "fork_reached":
        if (this.forks.has(fork)) this.forks.get(fork).phase = told.phase;
        break;
      case "fork_over":
        this.forks.delete(fork);
        break;
      case "lagged":
        // The list tells what has become of them.
        this.forks.clear();
        break;
      default:
        break;
    }
    this.changed();
  }

  /** Clones that a fork has made so far. */
  made(fork) {
    let made = 0;
    for (const vm of this.vms.values()) if (vm.fork === fork) made += 1;
    return made;
  }

  /** Families, the oldest first: `{ id, roots, image }`, each root a `{ vm, children }`. */
  families() {
    const families = new Map();
    const nodes = new Map();
    for (const vm of this.vms.values()) nodes.set(vm.id, { vm, children: [] });
    for (const node of nodes.values()) {
      const parent = node.vm.parent && nodes.get(node.vm.parent);
      if (parent) {
        parent.children.push(node);
        continue;
      }
      const id = node.vm.family ?? node.vm.id;
      if (!families.has(id)) families.set(id, { id, roots: [], image: node.vm.image });
      families.get(id).roots.push(node);
    }
    const order = (a, b) => (a.vm.member ?? 1e9) - (b.vm.member ?? 1e9)
      || BY_NAME.compare(a.vm.name, b.vm.name);
    for (const node of nodes.values()) node.children.sort(order);
    return [...families.values()];
  }

  /** A VM by id. */
  vm(id) {
    return this.vms.get(id);
  }
}

/** Where a VM runs. */
export function hostOf(vm) {
  return vm.host ?? vm.node ?? "this host";
}

/** Words for a state. */
export function stateOf(vm) {
  if (vm.lost) return "node lost";
  if (vm.silence) return "silent";
  return vm.state === "ending" ? "being removed" : vm.state;
}
