/** Commands under way. */

import { ignore } from "./endpoint.js";
import { CommandFailed, ForkyardError, NotStarted, Unreachable } from "./errors.js";
import type { ExecEvent, ExecInput } from "./generated.js";
import { type Exchange, type Pieces, cut, drained, lines } from "./http.js";
import { ExecResult } from "./results.js";

/** Bytes of standard input in one line. */
const PIECE = 32 << 10;
/** Bytes of input that may be on their way; signals wait behind more. */
const WINDOW = 512 << 10;
/** Bytes of output that are held for a reader; then the command waits. */
const HELD = 1 << 20;
/** Milliseconds; the daemon takes a client that sends nothing for gone after 30 seconds. */
const SILENCE = 10_000;

/** Numbers of signals in a guest, whatever they are on this host. */
const SIGNALS = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGUSR2: 12,
  SIGTERM: 15,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
} as const;

/** A signal by name or number. */
export type Signal = keyof typeof SIGNALS | number;

/** The number of a signal. */
export function numberOf(signal: Signal): number {
  return typeof signal === "number" ? signal : SIGNALS[signal];
}

/** What a command wrote. */
export interface Output {
  stream: "stdout" | "stderr";
  data: Buffer;
}

/**
 * A command under way: an async iterable of what it writes, as it comes.
 *
 * Ended by `await using` or close() before its end, it is hung up on: it and all that it started get
 * SIGHUP, and SIGKILL two seconds later, unless it is kept. To leave a loop over it does not end it:
 * another loop goes on from there. A command whose output is not read waits once 1 MiB is held here.
 * write() and what else tells it something take `stdin: "pipe"` at its start.
 */
export class Process implements AsyncIterable<Output>, AsyncDisposable {
  /** Program and arguments; none of one that was attached to. */
  readonly argv: readonly string[];
  readonly #exchange: Exchange;
  readonly #duplex: boolean;
  readonly #pump: Promise<void>;
  #code: number | undefined;
  #pid: number | undefined;
  #output: Output[] = [];
  #held = 0;
  #untaken = 0;
  #failure: unknown;
  #over = false;
  #waiting: (() => void)[] = [];
  #turn: Promise<void> = Promise.resolve();

  /** Of an exchange whose answer is a command's; `duplex` if its body is still open. */
  constructor(argv: readonly string[], exchange: Exchange, duplex: boolean, signal?: AbortSignal) {
    this.argv = argv;
    this.#exchange = exchange;
    this.#duplex = duplex;
    const abort = () => this.#end(signal?.reason);
    const alive = duplex ? setInterval(() => exchange.request.write("\n"), SILENCE) : undefined;
    // The connection keeps the program running, and needs no help.
    alive?.unref();
    signal?.addEventListener("abort", abort, { once: true });
    this.#pump = this.#read().finally(() => {
      clearInterval(alive);
      signal?.removeEventListener("abort", abort);
    });
    if (signal?.aborted) abort();
  }

  /** Once it has ended: as a shell reports it, 128 and the signal's number if a signal ended it. */
  get code(): number | undefined {
    return this.#code;
  }

  /** In the guest; of a command that is kept, once started() or its first output has come. */
  get pid(): number | undefined {
    return this.#pid;
  }

  /** Waits until a command that is kept runs: its process id. */
  async started(): Promise<number> {
    while (this.#pid === undefined && !this.#over) await this.#change();
    if (this.#pid === undefined) throw this.#failure ?? new Unreachable("the command ended before it told its process id");
    return this.#pid;
  }

  [Symbol.asyncIterator](): AsyncIterator<Output> {
    return { next: () => this.#next() };
  }

  /** Reads all that is left. With `check`, CommandFailed unless it exits with 0. */
  async finish({ check = false }: { check?: boolean } = {}): Promise<ExecResult> {
    const out: Record<Output["stream"], Buffer[]> = { stdout: [], stderr: [] };
    for await (const { stream, data } of this) out[stream].push(data);
    const result = new ExecResult(this.argv, this.#code ?? 0, Buffer.concat(out.stdout), Buffer.concat(out.stderr));
    if (check && result.code !== 0) throw new CommandFailed(result);
    return result;
  }

  /** Passes bytes to its standard input; waits while it does not read. */
  async write(data: string | Uint8Array): Promise<void> {
    await this.#inTurn(async () => {
      for await (const piece of cut(data, PIECE)) {
        while (!this.#over && this.#untaken + piece.length > WINDOW) await this.#change();
        if (!this.#over) this.#untaken += piece.length;
        await this.#say({ stdin: piece.toString("base64") });
      }
    });
  }

  /** Ends its standard input. */
  async end(): Promise<void> {
    await this.#inTurn(() => this.#say("eof"));
  }

  /** Sends it a signal; SIGKILL kills all that it started, too. */
  async signal(signal: Signal): Promise<void> {
    await this.#say({ signal: numberOf(signal) });
  }

  /** Tells it that its terminal has another size. */
  async resize(rows: number, cols: number): Promise<void> {
    await this.#say({ resize: { rows, cols } });
  }

  /** Passes all of this to its standard input and ends that; what is left when it ends is not read. */
  async feed(content: Pieces): Promise<void> {
    // Of one that is over its readers are told.
    const unlessOver = (error: unknown) => {
      if (!this.#over) throw error;
    };
    for await (const piece of cut(content, PIECE)) {
      await this.write(piece).catch(unlessOver);
      if (this.#over) return;
    }
    await this.end().catch(unlessOver);
  }

  /** Hangs up on it unless it has ended. */
  async close(): Promise<void> {
    this.#end(new ForkyardError("conflict", "the command was hung up on"));
    await this.#pump;
  }

  /** Has those that read it fail with this. */
  fail(error: unknown): void {
    this.#end(error);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #next(): Promise<IteratorResult<Output>> {
    while (true) {
      const first = this.#output.shift();
      if (first) {
        this.#held -= first.data.length;
        this.#ring();
        return { value: first, done: false };
      }
      if (this.#failure !== undefined) throw this.#failure;
      if (this.#over) return { value: undefined, done: true };
      await this.#change();
    }
  }

  async #read(): Promise<void> {
    const { request, answer } = this.#exchange;
    try {
      for await (const line of lines(answer)) {
        this.#hear(JSON.parse(line) as ExecEvent);
        if (this.#code !== undefined) return;
        while (this.#held > HELD && !this.#over) await this.#change();
      }
      throw new Unreachable("the connection ended before the command");
    } catch (error) {
      this.#failure ??= error;
    } finally {
      this.#over = true;
      request.destroy();
      this.#ring();
    }
  }

  #hear(event: ExecEvent): void {
    if ("stdout" in event) this.#heard("stdout", event.stdout);
    else if ("stderr" in event) this.#heard("stderr", event.stderr);
    else if ("taken" in event) this.#untaken -= event.taken;
    else if ("started" in event) this.#pid = event.started.pid;
    else if ("exit" in event) this.#code = "code" in event.exit ? event.exit.code : 128 + event.exit.signal;
    else if ("not_started" in event) throw new NotStarted(event.not_started.message, event.not_started.code);
    else if ("error" in event) throw ForkyardError.of(event.error);
    else throw new ForkyardError("timeout", `the command took longer than ${event.timed_out.after_s} s and was killed`);
    this.#ring();
  }

  #heard(stream: Output["stream"], text: string): void {
    const data = Buffer.from(text, "base64");
    this.#output.push({ stream, data });
    this.#held += data.length;
  }

  /** Ends the connection; those that read are told why, unless it is over. */
  #end(why: unknown): void {
    if (this.#over) return;
    this.#failure ??= why;
    this.#over = true;
    this.#output = [];
    this.#exchange.request.destroy();
    this.#ring();
  }

  async #say(what: ExecInput): Promise<void> {
    if (!this.#duplex) throw new TypeError('its standard input is not a pipe: start it with stdin: "pipe"');
    if (this.#over) throw this.#failure ?? new ForkyardError("conflict", "the command has ended and reads nothing");
    const { request } = this.#exchange;
    request.write(`${JSON.stringify(what)}\n`);
    await drained(request);
  }

  /** Does one thing after another. */
  #inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.#turn.then(work);
    this.#turn = done.catch(ignore);
    return done;
  }

  /** Waits for anything to change. */
  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #ring(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const wake of waiting) wake();
  }
}
