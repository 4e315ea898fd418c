/** What calls come to. Talks to no daemon. */

import { type ForkyardError, PartialFork } from "./errors.js";
import type { ForkReport } from "./generated.js";
import type { Vm } from "./vm.js";

/** What a command came to. */
export class ExecResult {
  constructor(
    readonly argv: readonly string[],
    /** As a shell reports it: 128 and the signal's number if a signal ended it. */
    readonly code: number,
    readonly stdout: Buffer,
    readonly stderr: Buffer,
  ) {}

  /** Standard output as text, without the end of the last line. */
  get text(): string {
    return this.stdout.toString().replace(/\n$/, "");
  }
}

/**
 * The clones that a fork made, and the errors of those that it could not make.
 *
 * If all were made it is an iterable of them: `const [a, b] = await vm.fork(2)`. If some were not,
 * to iterate, unpack or count it throws PartialFork; `vms` and `errors` do not. `await using` removes
 * those that were made.
 */
export class Forked implements Iterable<Vm>, AsyncDisposable {
  constructor(
    /** The fork's. */
    readonly id: string,
    /** Clones that run. */
    readonly vms: readonly Vm[],
    /** Why the others do not. */
    readonly errors: readonly ForkyardError[],
    /** Where the time went: microseconds, bytes and pages. */
    readonly report: ForkReport,
  ) {}

  get length(): number {
    return this.#all().length;
  }

  [Symbol.iterator](): Iterator<Vm> {
    return this.#all()[Symbol.iterator]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const removed = this.vms.map((vm) => vm[Symbol.asyncDispose]());
    const failed = (await Promise.allSettled(removed)).find((it) => it.status === "rejected");
    if (failed) throw failed.reason;
  }

  #all(): readonly Vm[] {
    if (this.errors.length > 0) throw new PartialFork(this);
    return this.vms;
  }
}
