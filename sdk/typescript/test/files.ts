import assert from "node:assert/strict";
import { buffer } from "node:stream/consumers";
import test from "node:test";
import { p, refused, sh } from "./host.js";

const MIB = 1 << 20;

test("files are written, read, listed, moved and removed", async () => {
  const { files } = p();
  await files.write("/tmp/f/a/text", "héllo", { parents: true, mode: 0o600 });
  assert.equal((await files.read("/tmp/f/a/text")).toString(), "héllo");
  assert.equal((await files.read("/tmp/f/a/text", { offset: 3, limit: 2 })).toString(), "ll");
  const facts = await files.stat("/tmp/f/a/text");
  assert.deepEqual([facts.kind, facts.size, facts.mode], ["file", 6, 0o600]);
  await files.makeFolder("/tmp/f/b/c");
  await files.move("/tmp/f/a/text", "/tmp/f/b/a name & more?");
  assert.deepEqual((await files.list("/tmp/f/b")).map(({ name, kind }) => [name, kind]), [["a name & more?", "file"], ["c", "folder"]]);
  await files.remove("/tmp/f/b/a name & more?");
  await refused("not_found", files.stat("/tmp/f/b/a name & more?"));
  await files.remove("/tmp/f", { recursive: true });
  await refused("not_found", files.read("/tmp/f/a/text"));
});

test("large files stream both ways, and one that is given up stays as it was", async () => {
  const { files } = p();
  const piece = Buffer.from(Uint8Array.from({ length: MIB }, (_, at) => at >> 4));
  await files.write("/tmp/large", Array(10).fill(piece));
  const back = await buffer(await files.stream("/tmp/large", { offset: 9 * MIB }));
  assert(back.equals(piece));
  assert.equal((await files.read("/tmp/large")).length, 10 * MIB);
  const stop = new AbortController();
  const stopped = await files.stream("/tmp/large", { signal: stop.signal });
  await assert.rejects(async () => {
    for await (const _ of stopped) stop.abort();
  }, { name: "AbortError" });
  for await (const _ of await files.stream("/tmp/large")) break;
  const abort = new AbortController();
  async function* endless() {
    for (let at = 0; ; at += 1) {
      if (at === 5) abort.abort();
      yield piece;
    }
  }
  await assert.rejects(files.write("/tmp/large", endless(), { signal: abort.signal }), { name: "AbortError" });
  const half = async function* () {
    yield piece;
    throw new RangeError("no more");
  };
  await assert.rejects(files.write("/tmp/large", half()), RangeError);
  assert.equal((await files.stat("/tmp/large")).size, 10 * MIB);
  // What is refused is told, however much was still to be sent.
  await refused("not_found", files.write("/nowhere/x", Array(64).fill(piece)));
  await files.remove("/tmp/large");
});

test("folders are packed and unpacked", async () => {
  const { files } = p();
  await sh(p(), "mkdir -p /tmp/from/deep && echo one >/tmp/from/deep/x && ln -s deep/x /tmp/from/link");
  const archive = await files.pack("/tmp/from");
  const copied = await files.unpack("/tmp/to", archive);
  assert.equal(copied.files, 2);
  assert.equal(await sh(p(), "cat /tmp/to/link; rm -r /tmp/from /tmp/to"), "one");
});

test("a folder is watched until that is left", async () => {
  const { files } = p();
  await files.makeFolder("/tmp/w/below");
  await using changes = await files.watch("/tmp/w", { recursive: true });
  await sh(p(), "echo x >/tmp/w/below/new");
  for await (const { change, name } of changes) {
    if (name !== "below/new") continue;
    assert.equal(change, "created");
    break;
  }
  const abort = new AbortController();
  const others = await files.watch("/tmp/w", { signal: abort.signal });
  setImmediate(() => abort.abort());
  await assert.rejects(async () => {
    for await (const _ of others);
  }, { name: "AbortError" });
  await refused("not_found", files.watch("/nowhere"));
});
