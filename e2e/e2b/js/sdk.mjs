/**
 * Programs as they are written with the official JavaScript SDK of E2B, unmodified, against Forkyard.
 *
 * The environment says where: E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL. Words: the URL, and the program of a code
 * interpreter's server. `base` is an image with a shell and busybox.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  FileType,
  FilesystemEventType,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  TimeoutError,
} from "e2b";
import { Sandbox as Interpreter } from "@e2b/code-interpreter";

const [url, server] = process.argv.slice(2);
const LONG = { timeoutMs: 600_000 };

async function eventually(what, condition) {
  for (let turn = 0; turn < 1200; turn++) {
    const found = await condition();
    if (found) return found;
    await sleep(50);
  }
  assert.fail(`never: ${what}`);
}

/** A request as a browser would make it: the host's name says which sandbox and port. */
function get(sandbox, port, path, headers = {}) {
  return new Promise((resolve, reject) => {
    const asked = request(url + path, { headers: { host: sandbox.getHost(port), ...headers } }, (answer) => {
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("end", () => resolve([answer.statusCode, Buffer.concat(pieces).toString()]));
    });
    asked.on("error", reject);
    asked.end();
  });
}

async function life() {
  await assert.rejects(Sandbox.create({ apiKey: "wrong" }), AuthenticationError);
  await assert.rejects(Sandbox.create("no-such-template"), /no-such-template/);
  const sandbox = await Sandbox.create({ ...LONG, metadata: { user: "eve", "a b": "c&d" }, envs: { COLOUR: "red" } });
  assert(await sandbox.isRunning());
  const info = await sandbox.getInfo();
  assert.deepEqual([info.sandboxId, info.templateId, info.state], [sandbox.sandboxId, "base", "running"]);
  assert.deepEqual({ ...info.metadata }, { user: "eve", "a b": "c&d" });
  await sandbox.setTimeout(6_000_000);
  const left = (await sandbox.getInfo()).endAt.getTime() - Date.now();
  assert(600_000 < left && left <= 6_000_000, `${left}`);
  const [used] = await sandbox.getMetrics();
  assert(used.cpuCount === 1 && 0 < used.cpuUsedPct && used.cpuUsedPct <= 100, JSON.stringify(used));
  assert(0 < used.memUsed && used.memUsed < used.memTotal && 0 < used.diskUsed && used.diskUsed < used.diskTotal, JSON.stringify(used));
  return sandbox;
}

async function commands(sandbox) {
  const { commands, pty } = sandbox;
  const first = await commands.run("echo $COLOUR; echo $A; pwd; echo oh >&2", { envs: { A: "b c" }, cwd: "/tmp" });
  assert.deepEqual([first.stdout, first.stderr, first.exitCode], ["red\nb c\n/tmp\n", "oh\n", 0]);
  await assert.rejects(commands.run("echo x; exit 7"), (error) => {
    assert(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout], [7, "x\n"]);
    return true;
  });
  await assert.rejects(commands.run("true", { cwd: "/nowhere" }), InvalidArgumentError);
  assert.equal((await commands.run("id -u", { user: "nobody" })).stdout, "65534\n");
  assert.equal((await commands.run("yes 0123456789abcde | head -n 65536")).stdout.length, 1 << 20);

  const heard = [];
  await commands.run("echo one; sleep 0.3; echo two", { onStdout: (text) => void heard.push([Date.now(), text]) });
  assert.deepEqual(heard.map(([, text]) => text), ["one\n", "two\n"]);
  assert(heard[1][0] - heard[0][0] > 100);

  const background = await commands.run("echo begun; sleep 1000", { background: true });
  const found = (await commands.list()).find(({ pid }) => pid === background.pid);
  assert.equal(found.args.at(-1), "echo begun; sleep 1000");
  await background.disconnect();
  let said = "";
  const again = await commands.connect(background.pid, { onStdout: (text) => void (said += text) });
  await eventually("its output so far", () => said === "begun\n");
  assert(await commands.kill(background.pid));
  await assert.rejects(again.wait(), (error) => error instanceof CommandExitError && /killed/.test(error.error));
  assert.equal(await commands.kill(background.pid), false);
  await assert.rejects(commands.connect(999999), NotFoundError);

  const cat = await commands.run("cat; echo over", { background: true, stdin: true });
  await commands.sendStdin(cat.pid, "first ");
  await cat.sendStdin(Buffer.from("second\n"));
  await cat.closeStdin();
  assert.equal((await cat.wait()).stdout, "first second\nover\n");
  await assert.rejects(commands.run("sleep 987", { timeoutMs: 1000 }), TimeoutError);

  let shown = "";
  const terminal = await pty.create({ rows: 24, cols: 80, onData: (data) => void (shown += Buffer.from(data)) });
  await pty.sendInput(terminal.pid, Buffer.from("stty size; tty\n"));
  await eventually("the terminal's size", () => shown.includes("24 80"));
  await pty.resize(terminal.pid, { rows: 50, cols: 132 });
  await pty.sendInput(terminal.pid, Buffer.from("stty size; exit\n"));
  await terminal.wait();
  assert(shown.includes("50 132"), shown);
}

async function files(sandbox) {
  const { files } = sandbox;
  const info = await files.write("/data/a/hello.txt", "hello ä");
  assert.deepEqual([info.name, info.path, info.type], ["hello.txt", "/data/a/hello.txt", FileType.FILE]);
  assert.equal(await files.read("/data/a/hello.txt"), "hello ä");
  const large = Buffer.alloc(2 << 20, Buffer.from(Array.from({ length: 256 }, (_, n) => n)));
  const written = await files.write([
    { path: "/data/x", data: new Blob([large]) },
    { path: "/data/y", data: "" },
  ]);
  assert.equal(written[1].path, "/data/y");
  assert(large.equals(Buffer.from(await files.read("/data/x", { format: "bytes" }))));
  assert(large.equals(Buffer.from(await (await files.read("/data/x", { format: "blob" })).arrayBuffer())));
  const pieces = [];
  for await (const piece of await files.read("/data/x", { format: "stream" })) pieces.push(piece);
  assert(large.equals(Buffer.concat(pieces)));
  assert.equal(await files.read("/data/y"), "");
  await files.write("/data/z", new Blob([large]).stream());
  assert.equal((await sandbox.commands.run("cmp /data/x /data/z && echo same")).stdout, "same\n");
  await assert.rejects(files.read("/data/none"), FileNotFoundError);

  assert((await files.exists("/data/x")) && !(await files.exists("/data/none")));
  assert.deepEqual([(await files.getInfo("/data/x")).size, (await files.getInfo("/data/x")).owner], [large.length, "root"]);
  assert((await files.makeDir("/data/b/c")) && !(await files.makeDir("/data/b/c")));
  await sandbox.commands.run("ln -s /data/x /data/link");
  const listed = await files.list("/data");
  assert.deepEqual(listed.map(({ name }) => name).sort(), ["a", "b", "link", "x", "y", "z"]);
  assert(listed.some(({ symlinkTarget }) => symlinkTarget === "/data/x"));
  assert((await files.list("/data", { depth: 2 })).some(({ path }) => path === "/data/a/hello.txt"));
  assert.equal((await files.rename("/data/x", "/data/new/moved")).path, "/data/new/moved");
  await files.remove("/data/new");
  assert(!(await files.exists("/data/new")));
  await assert.rejects(files.list("/data/new"), FileNotFoundError);

  const signed = new URL(await sandbox.downloadUrl("/data/a/hello.txt", { useSignatureExpiration: 60 }));
  assert.deepEqual(await get(sandbox, 49983, signed.pathname + signed.search), [200, "hello ä"]);
  assert.equal((await get(sandbox, 49983, "/files?path=/data/a/hello.txt"))[0], 401);

  const seen = new Set();
  const watcher = await files.watchDir("/data", ({ type, name }) => void seen.add(`${type} ${name}`), { recursive: true });
  await files.write("/data/b/new.txt", "x");
  await sandbox.commands.run("rm /data/y");
  await eventually("what happened is told", () =>
    [`${FilesystemEventType.CREATE} b/new.txt`, `${FilesystemEventType.REMOVE} y`].every((it) => seen.has(it)),
  );
  await watcher.stop();
}

async function lists(sandbox) {
  await sandbox.files.write("/www/index.html", "served from inside");
  await sandbox.commands.run("httpd -f -p 127.0.0.1:8080 -h /www", { background: true });
  await eventually("it serves", async () => (await get(sandbox, 8080, "/index.html"))[1] === "served from inside");
  const other = await Sandbox.create({ ...LONG, metadata: { user: "bob" }, network: { allowPublicTraffic: false } });
  const mine = Sandbox.list({ query: { metadata: { user: "eve" } } });
  assert.deepEqual((await mine.nextItems()).map((it) => it.sandboxId), [sandbox.sandboxId]);
  const pages = Sandbox.list({ limit: 1 });
  const seen = [];
  while (pages.hasNext) {
    const page = await pages.nextItems();
    assert(page.length <= 1);
    seen.push(...page.map((it) => it.sandboxId));
  }
  assert(seen.includes(other.sandboxId) && seen.includes(sandbox.sandboxId));
  assert.equal((await get(other, 8080, "/"))[0], 401);
  assert.equal((await get(other, 8080, "/", { "e2b-traffic-access-token": other.trafficAccessToken }))[0], 502);
  assert(await other.kill());
  assert.equal(await other.kill(), false);
  assert.equal(await other.isRunning(), false);
  await assert.rejects(other.getInfo(), SandboxNotFoundError);
  await assert.rejects(other.commands.run("true"), SandboxError);
}

async function forks(sandbox) {
  assert(await sandbox.pause());
  assert.equal(await sandbox.pause(), false);
  assert.equal((await sandbox.getInfo()).state, "paused");
  const again = await Sandbox.connect(sandbox.sandboxId, LONG);
  assert(await again.isRunning());

  await sandbox.files.write("/run/state", "warm");
  const [a, b] = await sandbox.fork({ count: 2 });
  assert(a instanceof Sandbox && b instanceof Sandbox, `${a} ${b}`);
  assert.equal(await a.files.read("/run/state"), "warm");
  await a.files.write("/run/state", "other");
  assert.equal(await b.files.read("/run/state"), "warm");
  const kept = await sandbox.createSnapshot({ name: "warm" });
  assert((await Sandbox.listSnapshots().nextItems()).some((it) => it.snapshotId === "warm"));
  const woken = await Sandbox.create(kept.snapshotId, LONG);
  assert.equal(await woken.files.read("/run/state"), "warm");
  for (const each of [a, b, woken]) assert(await each.kill());
  assert(await Sandbox.deleteSnapshot("warm"));

  const gone = await Sandbox.create({ timeoutMs: 1000 });
  await eventually("it is gone", async () => !(await gone.isRunning()));
}

async function interpreter() {
  const making = await Sandbox.create(LONG);
  await making.files.write("/interpreter", readFileSync(server, "utf8"));
  await making.commands.run("chmod +x /interpreter");
  await making.commands.run("nc -ll -p 49999 -e /interpreter", { background: true });
  await eventually("it serves", async () => (await get(making, 49999, "/contexts"))[0] === 200);
  await making.createSnapshot({ name: "code-interpreter-v1" });
  await making.kill();

  const sandbox = await Interpreter.create(LONG);
  const heard = [];
  const ran = await sandbox.runCode("x=41; echo begun; sleep 0.3; echo $((x+1))", {
    onStdout: ({ line }) => void heard.push([Date.now(), line]),
  });
  assert.deepEqual([ran.text, ran.logs.stdout, ran.executionCount], ["42", ["begun\n", "42\n"], 1]);
  assert(heard[1][0] - heard[0][0] > 100, "it streams");
  const failed = await sandbox.runCode("echo oh >&2; exit 7");
  assert.deepEqual([failed.error.name, failed.error.value, failed.logs.stderr], ["Exit", "7", ["oh\n"]]);
  const [fork] = await sandbox.fork({ count: 1 });
  for (const each of [sandbox, fork]) assert.equal((await each.runCode("echo $x")).text, "41");
  const context = await sandbox.createCodeContext({ cwd: "/tmp" });
  assert.deepEqual((await sandbox.listCodeContexts()).map(({ id }) => id), [context.id]);
  assert.equal((await sandbox.runCode("pwd", { context })).text, "/tmp");
  await sandbox.restartCodeContext(context);
  await sandbox.removeCodeContext(context);
  await assert.rejects(sandbox.runCode("sleep 100", { timeoutMs: 500 }), TimeoutError);
  for (const each of [sandbox, fork]) assert(await each.kill());
  assert(await Sandbox.deleteSnapshot("code-interpreter-v1"));
}

const sandbox = await life();
await commands(sandbox);
await files(sandbox);
await lists(sandbox);
await forks(sandbox);
await interpreter();
await sandbox.kill();
console.log("all of it works");
