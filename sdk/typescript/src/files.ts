/** Files of a VM. Its agent does the work: nothing of the image is needed. */

import { Readable } from "node:stream";
import { type Answer, call, filled, put } from "./api.js";
import { type Endpoint, said } from "./endpoint.js";
import { Unreachable } from "./errors.js";
import type { FileEntry, FileEvent, FilesWritten } from "./generated.js";
import { type CallOptions, type Exchange, type Pieces, all, lines, open, taken, within } from "./http.js";
import { Stream } from "./stream.js";

/** Paths whose bodies are streams. */
type Path = `/v1/vms/{vm}/${"archive" | "files" | "watch"}`;

/** Which part of a file is read. */
export interface ReadOptions extends CallOptions {
  offset?: number;
  limit?: number;
}

/** How a file is written. */
export interface WriteOptions extends CallOptions {
  /** Permission bits; else they stay, and a new file has 0o644. */
  mode?: number;
  /** Make the folders above it that are not there. */
  parents?: boolean;
}

/** Files of a VM. What cannot be done is a ForkyardError. */
export class Files {
  readonly #endpoint: Endpoint;
  readonly #vm: string;

  constructor(endpoint: Endpoint, vm: string) {
    this.#endpoint = endpoint;
    this.#vm = vm;
  }

  /** The content, or a part of it. */
  async read(path: string, options: ReadOptions = {}): Promise<Buffer> {
    return await within(options, async (signal) => {
      const { request, answer } = await this.#read(path, options, signal);
      try {
        return await all(answer, signal);
      } finally {
        request.destroy();
      }
    });
  }

  /** The content as a stream. `signal` ends it also later; `timeoutMs` is for its beginning. */
  async stream(path: string, options: ReadOptions = {}): Promise<Readable> {
    return ended(await within(options, (signal) => this.#read(path, options, signal)), options.signal);
  }

  /**
   * Replaces a file as a whole: it is the old one or the new one at any moment. What comes in pieces
   * is passed on as it comes.
   */
  async write(path: string, content: string | Uint8Array | Pieces, options: WriteOptions = {}): Promise<FilesWritten> {
    const { mode, parents } = options;
    const to = this.#path("/v1/vms/{vm}/files", { path, mode: mode?.toString(8), parents });
    return await this.#put(to, content, options);
  }

  /** Facts of a file; of a link itself. */
  async stat(path: string, options?: CallOptions): Promise<FileEntry> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/stat", this.#words({ path }), options);
  }

  /** What is in a folder, by name. */
  async list(path: string, options?: CallOptions): Promise<FileEntry[]> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/folder", this.#words({ path }), options);
  }

  /** Makes a folder, and those above it that are not there. */
  async makeFolder(path: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "put", "/v1/vms/{vm}/folder", this.#words({ path }), options);
  }

  /** Gives a file or folder another name or place. */
  async move(path: string, to: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "post", "/v1/vms/{vm}/move", this.#words({ path, to }), options);
  }

  /** Removes a file or an empty folder, or with `recursive` one with all that is in it. */
  async remove(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<void> {
    const { recursive } = options;
    await call(this.#endpoint, "delete", "/v1/vms/{vm}/files", this.#words({ path, recursive }), options);
  }

  /**
   * Watches a folder, with `recursive` all those below as well: what changes once this has returned.
   * It ends with the folder.
   */
  async watch(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<Stream<FileEvent>> {
    const { recursive, signal } = options;
    const of = this.#path("/v1/vms/{vm}/watch", { path, recursive });
    const exchange = await within(options, (limit) => open(this.#endpoint, "GET", of, undefined, limit));
    return new Stream(exchange, changes(exchange), signal);
  }

  /** A file or folder as a tar stream, cut off by an error if the guest fails; `/p/.` is what is in it. */
  async pack(path: string, options: CallOptions = {}): Promise<Readable> {
    const from = this.#path("/v1/vms/{vm}/archive", { path });
    return ended(await within(options, (limit) => open(this.#endpoint, "GET", from, undefined, limit)), options.signal);
  }

  /** Unpacks a tar stream into `path` if that is a folder; else its one member gets that name. All of it is root's. */
  async unpack(path: string, archive: Uint8Array | Pieces, options: CallOptions = {}): Promise<FilesWritten> {
    return await this.#put(this.#path("/v1/vms/{vm}/archive", { path }), archive, options);
  }

  async #read(path: string, { offset, limit }: ReadOptions, signal: AbortSignal): Promise<Exchange> {
    return await open(this.#endpoint, "GET", this.#path("/v1/vms/{vm}/files", { path, offset, limit }), undefined, signal);
  }

  async #put(to: string, content: string | Uint8Array | Pieces, options: CallOptions): Promise<FilesWritten> {
    const whole = typeof content === "string" || content instanceof Uint8Array;
    const sent = { content: whole ? [content] : taken(content) };
    return (await put(this.#endpoint, to, sent, options)) as Answer<"/v1/vms/{vm}/files", "put">;
  }

  #words<Q extends object>(query: Q): { path: { vm: string }; query: Q } {
    return { path: { vm: this.#vm }, query };
  }

  #path(what: Path, query: object): string {
    return filled(what, { vm: this.#vm }, query);
  }
}

/** The body of an answer as a stream, which a signal ends. */
function ended({ request, answer }: Exchange, signal: AbortSignal | undefined): Readable {
  const abort = () => void request.destroy();
  signal?.addEventListener("abort", abort, { once: true });
  if (signal?.aborted) abort();
  async function* pieces(): AsyncGenerator<Buffer> {
    try {
      for await (const piece of answer) yield piece as Buffer;
    } catch (error) {
      signal?.throwIfAborted();
      throw new Unreachable(`the daemon closed the connection: ${said(error)}`, { cause: error });
    }
  }
  const stream = Readable.from(pieces(), { objectMode: false });
  return stream.once("close", () => {
    signal?.removeEventListener("abort", abort);
    // One that is left before its end, or was never read.
    request.destroy();
  });
}

async function* changes({ answer }: Exchange): AsyncGenerator<FileEvent> {
  for await (const line of lines(answer)) yield JSON.parse(line) as FileEvent;
}
