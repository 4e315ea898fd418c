/** What the tests share: one VM for all of them, and ways to wait. */

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { ForkyardError, type Kind, type Vm } from "../src/index.js";

let shared: Vm | undefined;

/** Gives the tests their VM. */
export function tell(vm: Vm): void {
  shared = vm;
}

/** The VM `p`, which has booted. */
export function p(): Vm {
  assert(shared);
  return shared;
}

/** Waits until something is true, however long that takes: whoever runs the tests bounds them. */
export async function eventually<T>(what: () => Promise<T> | T): Promise<NonNullable<T>> {
  while (true) {
    const found = await what();
    if (found) return found;
    await pause(20);
  }
}

/** A request is refused, as this. */
export async function refused(kind: Kind, call: Promise<unknown>): Promise<ForkyardError> {
  const error = await call.then(() => undefined, (error: unknown) => error);
  assert(error instanceof ForkyardError, `not refused: ${error}`);
  assert.equal(error.kind, kind, error.message);
  return error;
}

/** What a guest's shell says. */
export async function sh(vm: Vm, script: string): Promise<string> {
  return (await vm.exec(["sh", "-c", script], { check: true })).text;
}

/** Process ids of this host's processes of a program. */
export function processes(program: string): number[] {
  const runs = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0")[0]?.endsWith(program);
    } catch {
      // It has ended meanwhile.
      return false;
    }
  };
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name) && runs(name)).map(Number);
}
