/** What calls that fail come to. Talks to no daemon. */

import type { ApiError, ErrorKind } from "./generated.js";
import type { ExecResult, Forked } from "./results.js";

/** Kinds of ForkyardError: those of the API, and `unreachable` of Unreachable. */
export type Kind = ErrorKind | "unreachable";

/** A request was refused or failed. Its message ends with the hint, if there is one. */
export class ForkyardError extends Error {
  override readonly name: string = "ForkyardError";
  /** What to branch on. */
  readonly kind: Kind;
  /** What can be done, if anything can. */
  readonly hint: string | undefined;

  constructor(kind: Kind, message: string, hint?: string | null, options?: ErrorOptions) {
    super(hint ? `${message} (${hint})` : message, options);
    this.kind = kind;
    this.hint = hint ?? undefined;
  }

  /** The error that an answer tells of. */
  static of(answer: ApiError): ForkyardError {
    return new ForkyardError(answer.kind, answer.message, answer.hint);
  }
}

/** There is no daemon, or the connection to it broke. */
export class Unreachable extends ForkyardError {
  override readonly name = "Unreachable";

  constructor(message: string, options?: ErrorOptions) {
    super("unreachable", message, "`forkyard ps` starts a daemon on this host", options);
  }
}

/** A command could not be started. */
export class NotStarted extends ForkyardError {
  override readonly name = "NotStarted";

  constructor(
    message: string,
    /** 127 if there is no such program, else 126. */
    readonly code: number,
  ) {
    super("invalid", message);
  }
}

/** A command that was run with `check` did not exit with 0. */
export class CommandFailed extends Error {
  override readonly name = "CommandFailed";

  constructor(readonly result: ExecResult) {
    const said = result.stderr.toString().trim();
    super(`${result.argv[0] ?? "the command"} exited with ${result.code}${said && `: ${said}`}`);
  }
}

/** Some clones of a fork were not made. Those that were run: they are in `forked.vms`. */
export class PartialFork extends Error {
  override readonly name = "PartialFork";

  constructor(readonly forked: Forked) {
    const { vms, errors } = forked;
    const total = vms.length + errors.length;
    super(`${errors.length} of ${total} clones were not made: ${errors[0]?.message}`);
  }
}
