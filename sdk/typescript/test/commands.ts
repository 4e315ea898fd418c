import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import test from "node:test";
import { CommandFailed, NotStarted, type Process } from "../src/index.js";
import { eventually, p, refused, sh } from "./host.js";

const MIB = 1 << 20;

/** What a process writes, until it has written this. */
async function until(process: Process, wanted: string): Promise<string> {
  let said = "";
  for await (const { data } of process) {
    said += data.toString();
    if (said.includes(wanted)) return said;
  }
  throw new Error(`it ended, and had said: ${said}`);
}

test("a command has input, output, an environment and an exit code", async () => {
  const ran = await p().exec(["sh", "-c", "cat; echo $A >&2; exit 7"], { stdin: "in\n", env: { A: "b c" } });
  assert.deepEqual([ran.code, ran.text, ran.stderr.toString()], [7, "in", "b c\n"]);
  const where = await p().exec(["sh", "-c", "pwd; id -u"], { workdir: "/tmp", user: "1000" });
  assert.equal(where.text, "/tmp\n1000");
  assert.equal((await p().exec(["sh", "-c", "kill -TERM $$"])).code, 143);
});

test("a command that fails says so, and one that cannot be run, and one that takes too long", async () => {
  const failed = await p().exec(["sh", "-c", "echo why >&2; exit 3"], { check: true }).catch((error) => error);
  assert(failed instanceof CommandFailed && failed.result.code === 3);
  assert.match(failed.message, /sh exited with 3: why/);
  const missing = await p().exec(["nosuch"]).catch((error) => error);
  assert(missing instanceof NotStarted && missing.code === 127, String(missing));
  await refused("timeout", p().exec(["sleep", "1001"], { timeoutMs: 300 }));
  assert.equal((await p().exec(["pidof", "sleep"])).code, 1);
});

test("bytes come back as they went, be they given whole, in pieces or by a file of this host", async () => {
  const bytes = Buffer.from(Uint8Array.from({ length: 3 * MIB }, (_, at) => (at * 7) >> 3));
  const cat = async (stdin: Parameters<ReturnType<typeof p>["exec"]>[1]) => (await p().exec(["cat"], stdin)).stdout;
  assert(bytes.equals(await cat({ stdin: bytes })));
  assert(bytes.equals(await cat({ stdin: [bytes.subarray(0, 5), bytes.subarray(5)] })));
  const own = process.argv[1] ?? "";
  const sum = await p().exec(["cat"], { stdin: createReadStream(own) });
  assert.match(sum.text, /the first call starts one/);
  assert.equal((await cat({ stdin: "pipe" })).toString(), "pipe");
});

test("64 MiB of input pass through little memory, and wait for a command that does not read", async () => {
  const total = 64 * MIB;
  const base = process.memoryUsage().rss;
  let given = 0;
  let most = 0;
  function* pieces() {
    const piece = Buffer.alloc(64 << 10, "x");
    for (; given < total; given += piece.length) {
      most = Math.max(most, process.memoryUsage().rss - base);
      yield piece;
    }
  }
  const counting = p().exec(["sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.1; done; wc -c"], { stdin: pieces() });
  // As much as there is room for on the way, and then no more.
  let before = -1;
  await eventually(async () => {
    const same = given > 0 && given === before;
    before = given;
    for (let round = 0; round < 5; round += 1) await sh(p(), "true");
    return same;
  });
  assert(given <= 2 * MIB, `${given} bytes were read ahead`);
  await p().files.write("/tmp/go", "");
  assert.equal((await counting).text, String(total));
  assert.equal(given, total);
  assert(most < 48 * MIB, `${most} bytes more than before`);
});

test("input that its source cannot give fails the command with the source's error", async () => {
  function* broken() {
    yield "some";
    throw new RangeError("no more");
  }
  await assert.rejects(p().exec(["sh", "-c", "cat; exec sleep 1002"], { stdin: broken() }), RangeError);
  await assert.rejects(p().exec(["cat"], { stdin: createReadStream("/nonexistent") }), { code: "ENOENT" });
  await eventually(() => sh(p(), "pidof sleep || echo none").then((said) => said === "none"));
  // A command need not read what it is given.
  assert.equal((await p().exec(["true"], { stdin: Array(64).fill(Buffer.alloc(MIB)) })).code, 0);
});

test("a dialogue: written to, read, signalled and ended", async () => {
  await using cat = await p().start(["cat"], { stdin: "pipe" });
  await cat.write("one ");
  assert.equal(await until(cat, "one "), "one ");
  await cat.write("two");
  await cat.end();
  const ended = await cat.finish({ check: true });
  assert.deepEqual([ended.text, cat.code], ["two", 0]);
  await refused("conflict", cat.write("three"));

  await using shell = await p().start(["sh", "-c", 'trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.1; done'], { stdin: "pipe" });
  await until(shell, "ready");
  await shell.signal("SIGINT");
  assert.equal((await shell.finish()).text, "caught");
  assert.equal(shell.code, 5);

  await using deaf = await p().start(["sleep", "1003"]);
  await assert.rejects(deaf.write("x"), TypeError);
});

test("a terminal has a size, which can change", async () => {
  await using shell = await p().start(["sh"], { stdin: "pipe", tty: { rows: 24, cols: 80 } });
  await shell.write("stty size; echo a''b\n");
  assert.match(await until(shell, "ab"), /24 80/);
  await shell.resize(50, 120);
  await shell.write("stty size; echo c''d\n");
  assert.match(await until(shell, "cd"), /50 120/);
  await shell.write("exit 4\n");
  assert.equal((await shell.finish()).code, 4);
});

test("an abort ends a command with all that it started, and so does leaving it", async () => {
  const none = () => eventually(() => sh(p(), "pidof sleep || echo none").then((said) => said === "none"));
  const running = () => eventually(() => sh(p(), "pidof sleep || true"));
  const abort = new AbortController();
  const why = new Error("enough");
  const doing = p().exec(["sh", "-c", "sleep 1004 & sleep 1005"], { signal: abort.signal });
  doing.catch(() => {});
  await running();
  abort.abort(why);
  assert.equal(await doing.catch((error) => error), why);
  await none();
  await assert.rejects(p().exec(["touch", "/tmp/never"], { signal: abort.signal }), why);
  assert.equal((await p().exec(["ls", "/tmp/never"])).code, 1);
  {
    await using left = await p().start(["sh", "-c", "echo on; sleep 1006"]);
    await until(left, "on");
    await running();
  }
  await none();
  // A reader is told at once.
  const late = AbortSignal.timeout(300);
  await using slow = await p().start(["sleep", "1007"], { signal: late });
  assert.equal((await slow.finish().catch((error) => error)).name, "TimeoutError");
  await none();
});

test("output waits for its reader, and all of it comes", async () => {
  await using many = await p().start(["sh", "-c", "head -c 8388608 /dev/zero; touch /tmp/written"]);
  for (let round = 0; round < 5; round += 1) await sh(p(), "true");
  assert.equal((await p().exec(["ls", "/tmp/written"])).code, 1, "the command did not wait");
  assert.equal((await many.finish()).stdout.length, 8 * MIB);
});

test("sessions go on without their client, and are followed again", async () => {
  let pid: number;
  {
    await using kept = await p().start(["cat"], { stdin: "pipe", keep: true, tag: "t" });
    pid = await kept.started();
    await kept.write("first ");
    await until(kept, "first ");
  }
  const of = (sessions: Awaited<ReturnType<ReturnType<typeof p>["sessions"]>>) =>
    sessions.filter((it) => it.exit === null).map((it) => [it.pid, it.tag]);
  assert.deepEqual(of(await p().sessions()), [[pid, "t"]]);
  await using again = await p().attach(pid);
  await again.write("second");
  await again.end();
  assert.equal((await again.finish()).text, "first second");

  const lone = await p().detach(["sleep", "1008"]);
  await p().killSession(lone);
  await using gone = await p().attach(lone);
  assert.equal((await gone.finish()).code, 137);
  assert((await p().detach(["nosuch"]).catch((error) => error)) instanceof NotStarted);
});
