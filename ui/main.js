// The page: a token is asked for once, then everything is wired together.
//
//   events --> state --> tree, details, lists        what changes shows at once
//   list   --> state                                 after events, for what they do not tell, at least LIST ms apart; else every UNTOLD ms
//   usage  --> state                                 every USAGE ms, while the page is seen and something runs

import { call, refused, token, vmPath } from "./api.js";
import { Details, forkLine } from "./details.js";
import * as ask from "./dialogs.js";
import { mark, say, span } from "./dom.js";
import { follow } from "./events.js";
import { Lists } from "./lists.js";
import * as notices from "./notices.js";
import { State } from "./state.js";
import { Tree } from "./tree.js";

/** Where the reason is kept for which the page has begun anew. */
const WHY = "forkyard-why";
const USAGE = 4_000;
const LIST = 1_000;
/** Labels, lifetimes and other nodes' VMs have no events here. */
const UNTOLD = 10_000;

const at = (id) => document.getElementById(id);
const state = new State();
/** Forks that were asked for here. */
const asked = new Set();
/** Until the tree is first drawn after a sign-in: the focus is to go into it. */
let arriving = false;
const ending = new AbortController();

const act = {
  select: (id) => choose(id, true),
  back: () => {
    const before = details.vm?.id;
    choose(null);
    tree.focus(before);
  },
  run: async () => {
    const images = await tried("The images are not known", () => call("GET", "/v1/images"));
    if (!images) return;
    const vm = await ask.run(images, state.nodes);
    if (!vm) return;
    took(vm);
    choose(vm.id);
  },
  fork: async (vm) => {
    const begun = await ask.fork(vm, state.nodes);
    if (!begun) return;
    asked.add(begun.fork);
    // It may have been over before the answer was here.
    if (finished.has(begun.fork)) forkOver(finished.get(begun.fork));
    choose(vm.id);
    details.show("forks");
  },
  pause: (vm) => turn(vm, "pause", vm.state === "paused" ? "resume" : "pause"),
  power: (vm) => turn(vm, "power", vm.state === "stopped" ? "start" : "stop"),
  checkpoint: async (vm) => {
    const kept = await ask.checkpoint(vm);
    if (!kept) return;
    took(kept);
    notices.done(`${kept.name} is on disk`, "Fork it whenever you want.");
  },
  move: async (vm) => {
    const wanted = await ask.move(vm, state.destinations(vm));
    if (!wanted) return;
    notices.done(`${vm.name} is moving to ${wanted.to}`);
    const moved = await details.busy("move", () => tried(`${vm.name} stays where it is`, () => call("POST", vmPath(vm.id, "/migrate"), wanted)));
    if (!moved) return;
    notices.done(`${vm.name} is at ${wanted.to}`, `It stood still for ${span(moved.report.gap_us)}.`);
    refreshList();
  },
  remove: async (vm) => {
    const clones = [...state.vms.values()].filter((one) => one.parent === vm.id).length;
    if (!(await ask.remove(vm, clones))) return;
    notices.done(`${vm.name} is removed`);
    refreshList();
  },
  wake: async (substrate) => {
    const vms = await ask.wake(substrate);
    if (!vms) return;
    for (const { vm } of vms) took(vm);
    choose(vms[0].vm.id);
    refreshSubstrates();
  },
  removeSubstrate: async (substrate) => {
    if (await ask.removeSubstrate(substrate)) refreshSubstrates();
  },
};

const tree = new Tree(at("tree"), state, (id) => choose(id, true));
const details = new Details(at("details"), state, act);
const lists = new Lists({ checkpoints: at("checkpoints"), substrates: at("substrates"), nodes: at("nodes") }, state, act);
notices.into(at("notices"));

function choose(id, byHand = false) {
  tree.select(id);
  details.choose(id);
  mark(document.body, "data-view", id === null ? "all" : "one");
  // Where there is room for one of both alone, the tree is not seen any more.
  if (byHand && id !== null && at("tree").offsetParent === null) details.focus();
}

async function tried(title, work) {
  try {
    return await work();
  } catch (error) {
    if (error.status !== 401) notices.failed(title, error);
    return null;
  }
}

function turn(vm, button, what) {
  return details.busy(button, async () => {
    const now = await tried(`${vm.name}: ${what} failed`, () => call("POST", vmPath(vm.id, `/${what}`)));
    if (now) took(now);
  });
}

/** At once, then not again for LIST ms: then once more, if it was wanted meanwhile. */
function paced(work) {
  let busy = false;
  let again = false;
  return async function run() {
    again = busy;
    if (busy) return;
    busy = true;
    await work().catch(() => {});
    setTimeout(() => {
      busy = false;
      if (again) run();
    }, LIST);
  };
}

const refreshList = paced(async () => {
  const since = state.now();
  state.setVms(await call("GET", "/v1/vms"), since);
});
const refreshSubstrates = paced(async () => state.set("substrates", await call("GET", "/v1/substrates")));
/** Refused where there is no cluster. */
const refreshNodes = paced(async () => state.set("nodes", await call("GET", "/v1/nodes")));
const refreshHosts = paced(async () => state.set("others", await call("GET", "/v1/hosts")));
const refreshChosen = paced(() => details.refresh());

/** The last forks that are over, with their event: one may be over before its answer is here. */
const finished = new Map();

async function forkOver({ name, id, told }) {
  if (told.failed > 0) {
    const why = told.why.join("; ") || "no reason is known";
    notices.failed(`${told.failed} of ${told.failed + told.ready} clones of ${name} were not made`, { message: why });
  }
  if (told.ready === 0) return;
  const full = await call("GET", vmPath(id, "/inspect")).catch(() => null);
  notices.done("Forked", forkLine(name, told.ready, full?.forks.at(-1)));
}

function happened(event) {
  const [[what, told]] = Object.entries(event.what);
  const { vm, fork } = event.subject;
  const known = vm && state.vm(vm.id);
  state.apply(event);
  if (what === "vm_removed" && told.failure) {
    notices.failed(`${vm.name} ${told.state === "starting" ? "did not come up" : "has ended"}`, { message: told.failure });
  }
  if (what === "fork_over") {
    const over = { name: known?.name ?? vm.name, id: vm.id, told };
    finished.set(fork, over);
    if (finished.size > 64) finished.delete(finished.keys().next().value);
    if (asked.has(fork)) forkOver(over);
  }
  // Substrates have no events: VMs come of them, and go over them.
  if (["checkpoint", "stream"].includes(event.kind) || ["vm_created", "vm_removed"].includes(what)) refreshSubstrates();
  if (event.kind === "node") {
    refreshNodes();
    refreshHosts();
  }
  refreshList();
  if (vm && vm.id === details.vm?.id) refreshChosen();
}

/** Shows a VM as what was done to it has left it, and looks once more: events may have told of it before. */
function took(vm) {
  state.left(vm);
  refreshList();
}

function draw() {
  if (state.loaded && details.chosen !== null && !details.vm) {
    choose(null);
    if (document.activeElement === document.body) tree.focus(null);
  }
  tree.draw();
  lists.draw();
  details.draw();
  const running = [...state.vms.values()].filter((vm) => vm.state === "running").length;
  const all = [...state.vms.values()].filter((vm) => vm.state !== "checkpoint").length;
  say(at("sum"), state.loaded ? (all === 0 ? "none" : `${running} of ${all} running`) : "");
  at("hosts").hidden = !state.nodes;
  at("none").hidden = !state.loaded || all > 0;
  if (arriving && state.loaded) {
    arriving = false;
    // Unless it was taken elsewhere meanwhile.
    if (document.activeElement === at("families")) tree.focus(null);
  }
}

async function usage() {
  if (document.hidden || ![...state.vms.values()].some((vm) => vm.pid)) return;
  state.setUsage(await call("GET", "/v1/usage"));
}

function connection(kind, text) {
  mark(at("live"), "data-kind", kind);
  say(at("live-text"), text);
}

async function start() {
  refused.tell = (error) => {
    // Of a token that holds no more: begun anew, the page says so.
    token.forget();
    sessionStorage.setItem(WHY, JSON.stringify({ message: error.message, hint: error.hint }));
    location.reload();
  };
  at("login").hidden = true;
  at("app").hidden = false;
  mark(document.body, "data-view", "all");
  state.onchange(draw);
  draw();
  refreshNodes();
  refreshHosts();
  // Subscribed before the list is asked for: nothing is missed in between.
  follow({
    event: happened,
    live: () => {
      connection("good", "live");
      mark(at("live"), "title", null);
      refreshList();
      refreshSubstrates();
      refreshChosen();
    },
    broken: (error) => {
      connection("bad", "not connected: trying again");
      if (error && !["unreachable", "unauthorized"].includes(error.kind)) mark(at("live"), "title", error.message);
    },
  }, ending.signal);
  setInterval(() => usage().catch(() => {}), USAGE);
  setInterval(() => tree.tick(), 1_000);
  setInterval(() => {
    if (document.hidden) return;
    refreshList();
    refreshHosts();
    if (state.nodes) refreshNodes();
  }, UNTOLD);
  // The first figures as soon as there is something to have figures of.
  setTimeout(() => usage().catch(() => {}), 700);
}

function login(error) {
  at("login").hidden = false;
  at("app").hidden = true;
  at("login-error").replaceChildren(...(error ? notices.errorText(error) : []));
  at("token").focus();
}

at("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  at("token").value = "";
  try {
    await call("GET", "/v1/ping");
    start();
    // What had the focus is not seen any more. An empty tree leaves it at its heading.
    arriving = true;
    at("families").focus();
  } catch (error) {
    token.forget();
    login(error);
  }
});
at("run").addEventListener("click", act.run);
at("none-run").addEventListener("click", act.run);
at("leave").addEventListener("click", () => {
  token.forget();
  location.reload();
});

if (token.get() === null) {
  const why = sessionStorage.getItem(WHY);
  sessionStorage.removeItem(WHY);
  login(why === null ? null : JSON.parse(why));
} else {
  call("GET", "/v1/ping").then(start, (error) => {
    if (error.status === 401) token.forget();
    login(error);
  });
}
