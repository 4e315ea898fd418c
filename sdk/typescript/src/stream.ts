/** Answers that go on until they are left. */

import type { Exchange } from "./http.js";

/** Things told one after another: an async iterable. To leave a loop over it, or close(), ends it. */
export class Stream<T> implements AsyncIterable<T>, AsyncDisposable {
  readonly #exchange: Exchange;
  readonly #things: AsyncGenerator<T>;
  readonly #signal: AbortSignal | undefined;
  readonly #abort: () => void;
  #closed = false;

  constructor(exchange: Exchange, things: AsyncGenerator<T>, signal?: AbortSignal) {
    this.#exchange = exchange;
    this.#things = things;
    this.#signal = signal;
    this.#abort = () => this.#exchange.request.destroy();
    signal?.addEventListener("abort", this.#abort, { once: true });
    if (signal?.aborted) this.#abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    try {
      yield* this.#things;
    } catch (error) {
      this.#signal?.throwIfAborted();
      if (!this.#closed) throw error;
    } finally {
      await this.close();
    }
  }

  /** Ends it; a loop over it ends. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#signal?.removeEventListener("abort", this.#abort);
    this.#exchange.request.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
