import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { buffer } from "node:stream/consumers";
import test from "node:test";
import { Forkyard, Unreachable } from "../src/index.js";
import { p, refused, sh } from "./host.js";

test("a server on a VM's loopback is reached, and each direction ends by itself", async () => {
  const size = 3 << 20;
  await sh(p(), `mkdir -p /tmp/www && head -c ${size} /dev/zero >/tmp/www/big && httpd -p 127.0.0.1:8080 -h /tmp/www`);
  const get = async () => {
    const socket = await p().connect(8080);
    socket.end("GET /big HTTP/1.0\r\n\r\n");
    const answer = await buffer(socket);
    const head = answer.indexOf("\r\n\r\n");
    assert.match(answer.toString("latin1", 0, head), / 200 /);
    assert.equal(answer.length - head - 4, size);
  };
  await Promise.all([get(), get(), get()]);
  await refused("guest", p().connect(8081));
  await sh(p(), "killall httpd; rm -r /tmp/www");
});

test("over the network one certificate is believed, and a token wanted", async () => {
  const url = "https://127.0.0.1:7433";
  const words = ["token", "create", "ts", "-o", "json"];
  const { token, remote } = JSON.parse(execFileSync("forkyard", words, { encoding: "utf8" }));
  const pem = `${process.env["FORKYARD_STATE_DIR"]}/tls/cert.pem`;
  for (const ca of [remote.fingerprint, remote.fingerprint.toUpperCase().replace("SHA256", "sha256"), pem, readFileSync(pem, "utf8")]) {
    const vm = await new Forkyard({ url, token, ca }).vm("p");
    assert.equal(vm.id, p().id);
  }
  for (const ca of [`sha256:${"0".repeat(64)}`, ""]) {
    const error = await refused("unreachable", new Forkyard({ url, token, ca }).vms());
    assert.match(error.message, /certificate/);
  }
  const wrong = await refused("unauthorized", new Forkyard({ url, token: `${token}x`, ca: remote.fingerprint }).vms());
  assert.match(wrong.hint ?? "", /forkyard token create/);

  Object.assign(process.env, { FORKYARD_URL: url, FORKYARD_TOKEN: token, FORKYARD_CA: remote.fingerprint });
  try {
    const fy = new Forkyard();
    assert.equal(fy.url, url);
    const vm = await fy.vm("p");
    assert.equal((await vm.exec(["cat"], { stdin: Array(32).fill(Buffer.alloc(65536, "x")) })).stdout.length, 2 << 20);
    await using shell = await vm.start(["sh"], { stdin: "pipe" });
    await shell.write("echo hello; exit 3\n");
    const said = await shell.finish();
    assert.deepEqual([said.text, said.code], ["hello", 3]);
    await sh(vm, "mkdir -p /tmp/www && echo hello >/tmp/www/x && httpd -p 127.0.0.1:8080 -h /tmp/www");
    const socket = await vm.connect(8080);
    socket.write("GET /x HTTP/1.0\r\n\r\n");
    assert.match((await buffer(socket)).toString(), /hello\n$/);
    await sh(vm, "killall httpd");
  } finally {
    for (const name of ["FORKYARD_URL", "FORKYARD_TOKEN", "FORKYARD_CA"]) delete process.env[name];
  }
});

test("a daemon that is named and does not run is not started", async () => {
  const error = await new Forkyard({ socketPath: "/nonexistent/api.sock" }).vms().catch((error) => error);
  assert(error instanceof Unreachable);
  assert.match(error.message, /unix:\/\/\/nonexistent\/api.sock/);
  assert.match(error.hint ?? "", /forkyard ps/);
  assert.throws(() => new Forkyard({ url: "http://x" }), TypeError);
});
