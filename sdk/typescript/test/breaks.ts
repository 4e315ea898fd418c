import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { kill } from "node:process";
import test from "node:test";
import { type Event, Forkyard } from "../src/index.js";
import { eventually, p, processes, refused, sh } from "./host.js";

const fy = new Forkyard();

/** Ends the daemon as a crash would. */
async function crash(): Promise<void> {
  const [daemon] = processes("forkyardd");
  assert(daemon);
  kill(daemon, "SIGKILL");
  await eventually(() => isOver(daemon));
}

/** True once a process has closed all it had open: it is gone, or waits for its parent. */
function isOver(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.startsWith("Z") ?? false;
  } catch {
    return true;
  }
}

test("a daemon that dies is Unreachable to calls under way, and the next call starts another", async () => {
  const doing = p().exec(["sleep", "1009"]);
  const talking = await p().start(["cat"], { stdin: "pipe" });
  const reading = talking.finish();
  const watching = await p().files.watch("/tmp");
  const changes = watching[Symbol.asyncIterator]().next();
  const broken = await fy.events({ resumeForMs: 0 });
  const event = broken[Symbol.asyncIterator]().next();
  const all = [doing, reading, changes, event];
  for (const one of all) one.catch(() => {});
  await eventually(() => sh(p(), "pidof sleep || true"));
  await crash();
  for (const one of all) await refused("unreachable", one);
  await refused("unreachable", talking.write("x"));
  // The VM has gone on; a command that belonged to the dead daemon is hung up on by the next.
  assert.equal((await p().refresh()).state, "running");
  await eventually(async () => !(await sh(p(), "pidof sleep || true")));
});

test("events go on after the daemon's death", async () => {
  const told: Event[] = [];
  await using events = await fy.events({ kinds: ["vm"] });
  const reading = (async () => {
    for await (const event of events) {
      told.push(event);
      if (event.what === "vm_removed") return;
    }
  })();
  await crash();
  const vm = (await p().fork(1)).vms[0]!;
  await vm.remove();
  await reading;
  assert.deepEqual([...new Set(told.map(({ what }) => what))].sort(), ["lagged", "vm_created", "vm_removed"]);
  const [lagged] = told;
  assert(lagged?.what === "lagged" && lagged.data.missed === null);
});

test("a limit of time ends a call that is not answered", async () => {
  const [daemon] = processes("forkyardd");
  assert(daemon);
  kill(daemon, "SIGSTOP");
  try {
    await refused("timeout", fy.vms({ timeoutMs: 200 }));
    await assert.rejects(fy.vms({ signal: AbortSignal.timeout(200) }), { name: "TimeoutError" });
  } finally {
    kill(daemon, "SIGCONT");
  }
  assert.equal((await fy.vms()).length, 1);
});
