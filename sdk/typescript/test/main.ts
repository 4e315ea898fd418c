/** The package against a real daemon and a real guest: `sdk/typescript/test/run`. */

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { Forkyard } from "../src/index.js";
import { tell } from "./host.js";
import "./commands.js";
import "./files.js";
import "./forks.js";
import "./life.js";
import "./network.js";
import "./package.js";
// The last: it kills the daemon.
import "./breaks.js";

before(async () => {
  // No daemon runs: the first call starts one.
  const fy = new Forkyard();
  assert.deepEqual(await fy.vms(), []);
  tell(await fy.run("tiny", { name: "p", max_clones: 3, labels: { user: "ada" } }));
});

after(async () => {
  for (const vm of await new Forkyard().vms()) await vm[Symbol.asyncDispose]();
});
