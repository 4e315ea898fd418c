import assert from "node:assert/strict";
import test from "node:test";
import { ForkyardError, Forkyard, PartialFork } from "../src/index.js";
import { p, refused, sh } from "./host.js";

test("clones have their parent's instant and a name of their own, and go at the end of a block", async () => {
  await p().files.write("/tmp/state", "warm");
  let names: string[];
  {
    await using clones = await p().fork(2);
    names = [...clones].map((vm) => vm.name);
    const said = await Promise.all([...clones].map((vm) => sh(vm, "cat /tmp/state; hostname")));
    assert.deepEqual(said, names.map((name) => `warm${name}`));
    const [a, b] = clones;
    assert(a && b && a.ip !== b.ip && clones.length === 2 && clones.report.ready_us > 0);
    // One that is gone already is no error.
    await a.remove();
  }
  for (const name of names) await refused("not_found", new Forkyard().vm(name));
  const live = await p().fork(1, { live: true });
  assert.equal(live.length, 1);
  await Promise.all([...live].map((vm) => vm.remove()));
});

test("a fork that is refused says why", async () => {
  const most = await refused("invalid", p().fork(1000));
  assert.match(most.message, /1000/);
  await using vm = (await p().fork(1)).vms[0]!;
  await vm.stop();
  const stopped = await refused("conflict", vm.fork(1));
  assert(stopped.hint && stopped.message.endsWith(`(${stopped.hint})`), stopped.message);
  await refused("not_found", new Forkyard().vm("nosuch"));
});

test("a clone that was not made is told of with what to do, and the others run", async () => {
  // `max_clones` of the family is 3.
  await using forked = await p().fork(4);
  assert.deepEqual([forked.vms.length, forked.errors.length], [3, 1]);
  const [why] = forked.errors;
  assert(why instanceof ForkyardError && why.kind === "exhausted");
  assert.match(why.hint ?? "", /--max-clones/);
  for (const use of [() => [...forked], () => forked.length]) {
    assert.throws(use, (error) => {
      assert(error instanceof PartialFork && error.forked === forked);
      assert.match(error.message, /1 of 4 clones were not made/);
      assert(error.message.includes(why.message));
      return true;
    });
  }
  const [vm] = forked.vms;
  assert(vm);
  assert.equal(await sh(vm, "hostname"), vm.name);
});

test("an instant is kept, and forked later", async () => {
  await p().files.write("/tmp/state", "kept");
  await using kept = await p().checkpoint("kept");
  assert.equal(kept.state, "checkpoint");
  await p().files.write("/tmp/state", "later");
  await using clones = await kept.fork(1);
  for (const vm of clones) assert.equal(await sh(vm, "cat /tmp/state"), "kept");
});
