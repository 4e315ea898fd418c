import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import test from "node:test";
import { type Event, Forkyard, ForkyardError } from "../src/index.js";
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

test("VMs are waited for, renamed and read in pages, and tell of what they use", async () => {
  await using clones = await p().fork(2);
  const [one, two] = clones;
  assert(one && two);
  const pages: string[] = [];
  for (let page = await fy.vms({ limit: 2 }); page.length > 0; page = await fy.vms({ limit: 2, after: page.at(-1)! })) {
    assert(page.length <= 2);
    pages.push(...page.map(({ name }) => name));
  }
  assert.deepEqual(pages, (await fy.vms()).map(({ name }) => name));
  await two.rename("second");
  assert.equal(two.name, "second");
  assert.equal((await fy.vm("second")).id, two.id);
  const before = await one.usage();
  await sh(one, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done");
  const after = await one.usage();
  assert(after.cpu_us > before.cpu_us && after.at_us > before.at_us && after.private > 0);
  assert.equal((await fy.usage()).vms.find(({ vm }) => vm.id === one.id)?.vm.name, one.name);
  assert.equal((await one.inspect()).vm.id, one.id);
  assert((await p().inspect()).forks.length > 0);
  assert.equal((await p().forks()).some(({ fork }) => fork === clones.id), true);
  const kept = await one.checkpoint("ts-kept");
  assert.deepEqual((await fy.checkpoints()).map(({ name }) => name), ["ts-kept"]);
  assert.deepEqual((await fy.vms({ state: ["paused", "stopped"] })).length, 0);
  await refused("conflict", kept.wait("running"));
  await kept.remove();
  await refused("timeout", one.wait("paused", { timeoutMs: 100 }));
  const paused = one.wait("paused");
  await one.pause();
  assert.equal((await paused).state, "paused");
  const gone = one.wait("removed");
  await one.remove();
  await gone;
  await refused("conflict", one.wait("running"));
});

test("ports are opened and closed, the console is read, a share has an address", async () => {
  assert.deepEqual(await p().publish("127.0.0.1:8099:80"), ["127.0.0.1:8099:80/tcp"]);
  assert.deepEqual(p().published, ["127.0.0.1:8099:80/tcp"]);
  await p().unpublish(8099);
  assert.deepEqual(p().published, []);
  assert.match((await p().logs()).toString(), /console/);
  const { url, share, token } = await p().share(8080, { base: "https://vms.example.org:8443" });
  assert.equal(url, `https://8080-p.vms.example.org:8443/?forkyard_token=${token}`);
  await p().unshare(share.id);
});

test("scheduling and friendliness are said, asked for and ended", async () => {
  const state = await p().schedule({ policy: "credit", weight: 512 });
  assert.deepEqual(await p().scheduling().then(({ policy }) => policy), state.policy);
  await p().unschedule();
  await p().makeFriendly({ law: "quick" });
  assert.equal((await p().friendly())["friendly"], true);
  await p().endFriendly();
  assert.equal((await p().friendly())["friendly"], false);
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
    assert.equal((await fy.removeVolumeSnapshot("ts", "monday")).snapshots.length, 0);
    assert.equal((await fy.resizeVolume("ts", 2 * size)).size, 2 * size);
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
    const folder = `${process.env["FORKYARD_STATE_DIR"]}/store`;
    mkdirSync(folder);
    const store = `file://${folder}`;
    assert(((await fy.pushSubstrate("ts", store)).sent ?? 0) > 0);
    assert.deepEqual((await fy.storedSubstrates(store)).map(({ name }) => name), ["ts"]);
    await fy.removeSubstrate("ts");
    assert.equal((await fy.pullSubstrate(`${store}/ts`)).name, "ts");
    assert((await fy.removeStoredSubstrate(store, "ts")).bytes > 0);
  } finally {
    await fy.removeSubstrate("ts");
  }
});

test("what other hosts are needed for is refused where there is none", async () => {
  assert.deepEqual(await fy.links(), []);
  await assert.rejects(fy.setLinkBudget("nowhere", { rate: "20mbit" }), ForkyardError);
  await assert.rejects(fy.migrate([p(), "other"], "nowhere"), ForkyardError);
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
