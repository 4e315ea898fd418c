/** Events of a host, as they happen. */

import { setTimeout as pause } from "node:timers/promises";
import { filled } from "./api.js";
import { type Endpoint, abortable } from "./endpoint.js";
import { Unreachable } from "./errors.js";
import type { EventKind, EventSubject, HostEvent, Occurrence } from "./generated.js";
import { type CallOptions, type Exchange, everyLine, open, within } from "./http.js";

/** Milliseconds; the daemon sends something every 15 seconds. */
const SILENCE = 60_000;
/** Milliseconds before the first try to go on after a break; each other waits twice as long as the one before. */
const FIRST = 100;
const LONGEST = 5_000;

type KeysOf<T> = T extends unknown ? keyof T : never;
/** Names of what happens: vm_created, vm_changed, fork_over, lagged, … */
export type What = KeysOf<Occurrence>;
/** What happened, and more of it. */
export type Happened = { [W in What]: { what: W; data: Extract<Occurrence, Record<W, unknown>>[W] } }[What];

/** Something that happened on a host. `what` tells the type of `data`. */
export type Event = Happened & {
  /** Position in the stream, to go on from: for `since`. */
  id: string;
  /** Number in the stream, from 1 on; a restart of the daemon begins a new stream. */
  seq: number;
  time: Date;
  kind: EventKind;
  /** What it is about: vm, fork, ticket, image, pages, node; null where it is not about one. */
  subject: EventSubject;
  /** Name of the VM that it is about; of a fork the parent's. */
  vm: string | undefined;
};

/** Which events, and for how long. */
export interface EventsOptions extends CallOptions {
  /** Those of this VM, by name or id. */
  vm?: string;
  /** Those of this family. */
  family?: string;
  kinds?: readonly EventKind[];
  /** After this position: an event's id, or 0 for all that are kept; from now on if absent. */
  since?: string | 0;
  /** False: end after those that there are. */
  follow?: boolean;
  /** Milliseconds for which to try to go on after a break, 60,000 if absent; 0: a break is Unreachable at once. */
  resumeForMs?: number;
}

/**
 * Events of a host: an async iterable, which goes on by itself after a break.
 *
 * To leave a loop over it ends it, and so does close(). After a restart of the daemon, or where
 * events are gone, there is one whose `what` is lagged.
 */
export class Events implements AsyncIterable<Event>, AsyncDisposable {
  readonly #endpoint: Endpoint;
  readonly #options: EventsOptions;
  readonly #ended = new AbortController();
  readonly #abort: () => void;
  #exchange: Exchange | undefined;
  #lines: AsyncGenerator<string> | undefined;
  #position: string | undefined;

  private constructor(endpoint: Endpoint, options: EventsOptions) {
    this.#endpoint = endpoint;
    this.#options = options;
    this.#position = options.since === undefined ? undefined : String(options.since);
    this.#abort = () => this.#end();
    options.signal?.addEventListener("abort", this.#abort, { once: true });
  }

  /** Begins to listen. */
  static async open(endpoint: Endpoint, options: EventsOptions): Promise<Events> {
    const events = new Events(endpoint, options);
    try {
      await within(options, (signal) => events.#ask(signal));
    } catch (error) {
      await events.close();
      throw error;
    }
    return events;
  }

  /** Where to go on: the last event that was read, or passed over by the selection. */
  get position(): string | undefined {
    return this.#position;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event> {
    try {
      while (!this.#ended.signal.aborted) {
        try {
          yield* this.#told();
          if (this.#options.follow === false) return;
          throw new Unreachable("the daemon has ended, and with it its events");
        } catch (error) {
          if (this.#ended.signal.aborted) break;
          if (!(error instanceof Unreachable)) throw error;
          await this.#resume(error);
        }
      }
      this.#options.signal?.throwIfAborted();
    } finally {
      await this.close();
    }
  }

  /** Ends it; a loop over it ends. */
  async close(): Promise<void> {
    this.#options.signal?.removeEventListener("abort", this.#abort);
    this.#end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #end(): void {
    this.#ended.abort();
    this.#exchange?.request.destroy();
  }

  /** Asks for events, and hears where they begin. */
  async #ask(signal: AbortSignal): Promise<void> {
    const { vm, family, kinds, follow } = this.#options;
    const words = { vm, family, kind: kinds?.join(",") || undefined, since: this.#position, follow };
    const exchange = await open(this.#endpoint, "GET", filled("/v1/events", {}, words), undefined, signal);
    this.#exchange = exchange;
    this.#lines = everyLine(exchange.answer);
    // The daemon tells the position at once: a break before the first event loses none.
    const abort = () => void exchange.request.destroy();
    signal.addEventListener("abort", abort, { once: true });
    try {
      for (let line = await this.#lines.next(); !line.done && line.value.trim(); line = await this.#lines.next()) {
        if (line.value.startsWith("id:")) this.#position = line.value.slice("id:".length).trim();
      }
      signal.throwIfAborted();
    } catch (error) {
      signal.throwIfAborted();
      throw error;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  /** Events until the connection ends. */
  async *#told(): AsyncGenerator<Event> {
    const [exchange, lines] = [this.#exchange, this.#lines];
    if (!exchange || !lines) return;
    let data: string[] = [];
    let position: string | undefined;
    const silent = () => exchange.request.destroy();
    let timer = setTimeout(silent, SILENCE).unref();
    try {
      for await (const line of lines) {
        timer.refresh();
        const [, name, value = ""] = /^([^:]*):? ?(.*?)\r?$/s.exec(line) ?? [];
        if (name === "data") data.push(value);
        else if (name === "id") position = value;
        else if (line.trim() === "") {
          this.#position = position ?? this.#position;
          const text = data.join("\n");
          data = [];
          if (text) {
            // A reader that takes its time is not silence.
            clearTimeout(timer);
            yield eventOf(JSON.parse(text) as HostEvent);
            timer = setTimeout(silent, SILENCE).unref();
          }
        }
      }
    } finally {
      clearTimeout(timer);
      exchange.request.destroy();
    }
  }

  /** Asks again until there is an answer; throws what broke it if that takes too long. */
  async #resume(broke: Unreachable): Promise<void> {
    const { resumeForMs = 60_000 } = this.#options;
    const { signal } = this.#ended;
    const begun = performance.now();
    for (let wait = FIRST; performance.now() - begun < resumeForMs; wait = Math.min(2 * wait, LONGEST)) {
      try {
        await abortable(pause(Math.min(wait, resumeForMs), undefined, { signal }), signal);
        await within({ signal, timeoutMs: LONGEST }, (limit) => this.#ask(limit));
        return;
      } catch (error) {
        if (signal.aborted) return;
        const late = error instanceof Unreachable || (error as { kind?: string }).kind === "timeout";
        if (!late) throw error;
      }
    }
    throw broke;
  }
}

function eventOf(told: HostEvent): Event {
  const [[what, data]] = Object.entries(told.what) as [[What, never]];
  const { seq, kind, subject } = told;
  const id = `${told.stream}-${seq}`;
  return { id, seq, time: new Date(told.time_ms), kind, what, data, subject, vm: subject.vm?.name } as Event;
}
