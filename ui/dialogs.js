// Questions before something is done. A dialog stays open while its request is refused, and shows why.

import { call, vmPath } from "./api.js";
import { bytes, count, el } from "./dom.js";
import { errorText } from "./notices.js";

/**
 * Asks; `act(values)` does it, and what it returns is what comes of the question. Null: thought better of.
 * Of a dangerous question the answer at hand is no.
 */
function ask({ title, text = [], fields = [], verb, danger = false, act }) {
  const problem = el("div", { class: "problem", role: "alert" });
  const no = el("button", { type: "button", autofocus: danger }, "Cancel");
  const yes = el("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const form = el("form", {}, el("h2", { id: "question" }, title), ...text.map((line) => el("p", {}, line)), ...fields, problem,
    el("div", { class: "buttons" }, no, yes));
  const dialog = el("dialog", { "aria-labelledby": "question" }, form);
  return new Promise((resolve) => {
    let outcome = null;
    no.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(outcome);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      yes.disabled = true;
      problem.replaceChildren();
      try {
        outcome = (await act(Object.fromEntries(new FormData(form)))) ?? true;
        dialog.close();
      } catch (error) {
        problem.replaceChildren(...errorText(error));
        yes.disabled = false;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function field(label, input, hint) {
  return el("label", { class: "field" }, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
}

function text(name, props = {}) {
  return el("input", { name, autocomplete: "off", spellcheck: "false", ...props });
}

function number(name, value, min, max, props = {}) {
  return el("input", { name, type: "number", value, min, max, required: true, inputmode: "numeric", ...props });
}

function check(name, label, hint) {
  return el("label", { class: "check" }, el("input", { type: "checkbox", name }), el("span", {}, label,
    hint ? el("small", {}, hint) : null));
}

function nameField(hint) {
  return field("Name", text("name", { maxlength: 63, pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", placeholder: "made up if empty" }), hint);
}

function labelsOf(words) {
  const pairs = words.split(/[\s,]+/).filter((word) => word !== "").map((word) => {
    const at = word.indexOf("=");
    return at < 0 ? [word, ""] : [word.slice(0, at), word.slice(at + 1)];
  });
  return Object.fromEntries(pairs);
}

/** Runs a VM of an image. The VM as it starts. */
export function run(images, cluster) {
  const ready = images.find((image) => image.built !== null);
  const options = images.map((image) => el("option", { value: image.name, selected: image === ready },
    `${image.name}: ${image.summary}${image.built === null ? " (not built yet: takes minutes)" : ""}`));
  return ask({
    title: "Run a VM",
    verb: "Run",
    fields: [
      field("Image", el("select", { name: "image", required: true, autofocus: true }, options)),
      nameField(),
      el("div", { class: "pair" },
        field("vCPUs", number("vcpus", 1, 1, 64)),
        field("Memory, MiB", number("memory", 256, 80, 1048576))),
      field("Labels", text("labels", { placeholder: "user=ada job=7" })),
      check("out", "Way out to the internet", "by NAT; its clones have it, too"),
      cluster ? check("spread", "On the node with most vCPUs free") : null,
    ].filter(Boolean),
    act: (values) => call("POST", `/v1/vms?wait=false${values.spread ? "&spread=true" : ""}`, {
      image: values.image,
      name: values.name || null,
      vcpus: Number(values.vcpus),
      memory: Number(values.memory) * 1048576,
      labels: labelsOf(values.labels),
      network: { out: values.out ? "nat" : "none" },
    }),
  });
}

/** Forks a VM or a checkpoint: `{ fork }`, once it has begun. */
export function fork(vm, cluster) {
  const modes = [
    ["fast", "Fast", "clones run as soon as can be"],
    ["live", "Live", "the parent is hardly disturbed; clones wait for that"],
  ].map(([value, name, hint]) => el("label", { class: "check" },
    el("input", { type: "radio", name: "mode", value, checked: value === "fast" }),
    el("span", {}, name, el("small", {}, hint))));
  return ask({
    title: `Fork ${vm.name}`,
    text: ["Each clone wakes in this instant of its memory and disk, as somebody of its own."],
    verb: "Fork",
    fields: [
      field("Clones", number("count", 2, 1, 256, { autofocus: true })),
      vm.state === "checkpoint" ? null : el("fieldset", {}, el("legend", {}, "What matters more"), modes),
      cluster ? check("spread", "Spread over the cluster's nodes") : null,
    ].filter(Boolean),
    act: ({ count: wanted, mode, spread }) => call("POST", vmPath(vm.id, "/fork?wait=false"), {
      count: Number(wanted), mode: mode ?? "fast", spread: Boolean(spread),
    }),
  });
}

/** Moves a VM to another host: what to ask for, for it takes a while. */
export function move(vm, hosts) {
  return ask({
    title: `Move ${vm.name}`,
    text: ["It goes on there as who it is, with its address, programs and connections, and stands still for a moment."],
    verb: "Move",
    fields: [
      field("To", el("select", { name: "to", required: true, autofocus: true }, hosts.map((host) => el("option", { value: host }, host)))),
      field("If it writes as fast as it is sent", el("select", { name: "if_stuck" },
        [["give-up", "It stays"], ["stop", "It is stopped for as long as it takes"], ["slow", "It is slowed down"]]
          .map(([value, text]) => el("option", { value }, text)))),
    ],
    act: ({ to, if_stuck }) => ({ to, if_stuck }),
  });
}

/** Keeps an instant of a VM. The checkpoint. */
export function checkpoint(vm) {
  return ask({
    title: `Keep this instant of ${vm.name}`,
    text: ["A checkpoint is on disk: it can be forked any time later, also when its VM is gone and the host has restarted."],
    verb: "Keep",
    fields: [nameField()],
    act: ({ name }) => call("POST", vmPath(vm.id, "/checkpoint"), { name: name || null }),
  });
}

/** Removes a VM or a checkpoint. */
export function remove(vm, clones) {
  const what = vm.state === "checkpoint" ? "Its memory and disk" : "It ends; its memory and disk";
  const rest = clones > 0 ? [`Its ${count(clones, "clone")} ${clones === 1 ? "goes" : "go"} on.`] : [];
  return ask({
    title: `Remove ${vm.name}?`,
    text: [`${what} are gone for good.`, ...rest],
    verb: "Remove",
    danger: true,
    act: () => call("DELETE", vmPath(vm.id)),
  });
}

/** Wakes VMs of a substrate. */
export function wake(substrate) {
  return ask({
    title: `Wake VMs of ${substrate.name}`,
    text: [`Each is a VM of its own: ${count(substrate.vcpus, "vCPU")}, ${bytes(substrate.memory)}.`],
    verb: "Wake",
    fields: [field("VMs", number("count", 1, 1, 256, { autofocus: true })), nameField()],
    act: async ({ count: wanted, name }) => {
      const path = `/v1/substrates/${encodeURIComponent(substrate.name)}/activate`;
      const { vms } = await call("POST", path, { count: Number(wanted), name: name || null });
      const bad = vms.find((one) => one.error);
      if (bad) throw bad.error;
      return vms;
    },
  });
}

/** Removes a substrate. */
export function removeSubstrate(substrate) {
  return ask({
    title: `Remove ${substrate.name}?`,
    text: ["The substrate is gone for good."],
    verb: "Remove",
    danger: true,
    act: () => call("DELETE", `/v1/substrates/${encodeURIComponent(substrate.name)}`),
  });
}
