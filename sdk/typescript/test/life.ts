import assert from "node:assert/strict";
import test from "node:test";
import { type Event, Forkyard } from "../src/index.js";
import { p, refused, sh } from "./host.js";

const fy = new Forkyard();

test("VMs are paused, resumed, stopped, booted again and told apart", async () => {
  await using vm = (await p().fork(1)).vms[0]!;
  await vm.setLabels({ user: "eve", job: "7" });
  assert.deepEqual((await fy.vms({ labels: { user: "eve" } })).map(({ id }) => id), [vm.id]);
  assert.deepEqual((await fy.vms({ labels: { user: "ada" } })).map(({ name }) => name), ["p"]);
  assert.equal(vm.labels["job"], "7");
  await vm.pause();
  assert.equal(vm.state, "paused");
  const paused = await refused("conflict", vm.exec(["true"]));
  assert.match(paused.hint ?? "", /resume/);
  await vm.resume();
  assert.equal(await sh(vm, "hostname"), vm.name);
  await vm.keepalive(3600, { action: "pause" });
  assert.equal(vm.view.ends?.action, "pause");
  await vm.keepalive(null);
  assert.equal(vm.view.ends ?? null, null);
  await vm.stop();
  assert.equal((await vm.refresh()).state, "stopped");
  // A clone cannot boot: its disk is of an instant.
  await refused("conflict", vm.boot());
});

test("images, substrates and volumes", async () => {
  assert((await fy.images()).some(({ name }) => name === "tiny"));
  assert.equal((await fy.image("tiny")).name, "tiny");
  await refused("not_found", fy.image("nosuch"));
  const size = 1 << 20;
  try {
    const made = await fy.createVolume("ts", { size });
    assert.deepEqual([made.name, made.size], ["ts", size]);
    assert.equal((await fy.snapshotVolume("ts", "monday")).snapshots.length, 1);
    assert.deepEqual((await fy.volumes()).map(({ name }) => name), ["ts"]);
    assert.equal((await fy.volume("ts")).name, "ts");
  } finally {
    await fy.removeVolume("ts");
  }
  const docked = await p().dock("ts", { live: true });
  try {
    assert.equal(docked.name, "ts");
    assert((await fy.substrates()).some(({ name }) => name === "ts"));
    assert.equal((await fy.substrate("ts")).substrate.name, "ts");
    for (const vm of await fy.activate("ts", 1, { name: "woken" })) {
      await using woken = vm;
      assert.equal(await sh(woken, "hostname"), "woken");
    }
  } finally {
    await fy.removeSubstrate("ts");
  }
});

test("events are told as they happen, and those of before by position", async () => {
  const told: Event[] = [];
  await using events = await fy.events({ kinds: ["vm", "fork"] });
  const vm = (await p().fork(1)).vms[0]!;
  await vm.remove();
  for await (const event of events) {
    told.push(event);
    if (event.what === "vm_removed" && event.vm === vm.name) break;
  }
  const created = told.find((event) => event.what === "vm_created" && event.vm === vm.name);
  assert(created?.what === "vm_created" && created.data.state === "running");
  assert(created.time.getTime() > 0 && created.id.endsWith(`-${created.seq}`));
  const again: string[] = [];
  for await (const event of await fy.events({ since: created.id, vm: vm.id, follow: false })) again.push(event.what);
  assert.deepEqual(again, ["vm_removed"]);
  // close() ends a loop.
  const others = await fy.events();
  setImmediate(() => others.close());
  for await (const _ of others);
  const abort = new AbortController();
  const more = await fy.events({ signal: abort.signal });
  setImmediate(() => abort.abort());
  await assert.rejects(async () => {
    for await (const _ of more);
  }, { name: "AbortError" });
});
