// What is known of the host: VMs by id, forks under way, what they use. Pure: it asks for nothing and draws nothing.
//
//   list --------> vms        the whole truth, now and then
//   events ------> vms, forks at once, with as much as they tell
//   usage -------> used
//
// An answer may be older than an event that came before it: of VMs that something was heard of since a question was put
// (`now()`), the answer tells everything but the state.

/** VMs of which it is known when something was heard of them: answers are not older than that. */
const HEARD = 4096;
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
  /** Other hosts that VMs can be moved to, by name. */
  others = [];
  loaded = false;
  #last = null;
  #clock = 0;
  /** When something was heard of a VM last, by id. */
  #heard = new Map();
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

  /** Hosts that a VM can be moved to from the one that it is on. */
  destinations(vm) {
    const own = this.nodes?.find((node) => node.here)?.name;
    // One that is on a peer is moved from there.
    if (own === undefined) return vm.host ? [] : this.others;
    return [...this.others, own].filter((host) => host !== (vm.host ?? vm.node ?? own));
  }

  /** The present, for answers to a question that is put now. */
  now() {
    return this.#clock;
  }

  /** Takes the list of all VMs, as it was asked for at `since`. */
  setVms(list, since) {
    const vms = new Map();
    for (const vm of list) {
      const one = this.#weigh(vm, since);
      if (one) vms.set(vm.id, one);
    }
    for (const [id, vm] of this.vms) {
      if (!vms.has(id) && this.#heard.get(id) > since) vms.set(id, vm);
    }
    this.vms = vms;
    this.loaded = true;
    this.changed();
  }

  /** Takes what an answer says of one VM. */
  setVm(vm, since) {
    const one = this.#weigh(vm, since);
    // The list alone says on which node it is.
    if (one) this.vms.set(vm.id, { ...this.vms.get(vm.id), ...one });
    this.changed();
  }

  /** Takes a VM as something that was done to it has left it. */
  left(vm) {
    this.#hear(vm.id);
    this.vms.set(vm.id, { ...this.vms.get(vm.id), ...vm });
    this.changed();
  }

  /** A VM as an answer has it, without what is known better; null: it is gone. */
  #weigh(vm, since) {
    if (!(this.#heard.get(vm.id) > since)) return vm;
    const known = this.vms.get(vm.id);
    return known ? { ...vm, state: known.state, failure: known.failure, silence: known.silence } : null;
  }

  #hear(id) {
    this.#clock += 1;
    this.#heard.delete(id);
    this.#heard.set(id, this.#clock);
    if (this.#heard.size > HEARD) this.#heard.delete(this.#heard.keys().next().value);
  }

  set(name, value) {
    this[name] = value;
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
    if (vm && ["vm", "checkpoint"].includes(event.kind)) this.#hear(vm.id);
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

/** Whether it is a clone: what was woken from a substrate names that as its parent, and is a founder. */
export function isClone(vm) {
  return Boolean(vm.parent) && vm.member !== 0;
}

/** Where a VM runs. */
export function hostOf(vm) {
  return vm.host ?? vm.node ?? "this host";
}

/** Words for a state. */
export function stateOf(vm) {
  if (vm.lost) return "node lost";
  if (vm.moving) return `moving to ${vm.moving}`;
  if (vm.silence) return "silent";
  if (vm.asleep) return "asleep";
  return vm.state === "ending" ? "being removed" : vm.state;
}
