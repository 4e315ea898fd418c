/**
 * Requests, each on a connection of its own.
 *
 *     connect --> send --> head of the answer --> JSON, bytes or lines
 *                      \-> a refusal: ForkyardError
 *
 * What breaks is Unreachable; what a signal ends is the signal's reason.
 */

import * as http from "node:http";
import type { Socket } from "node:net";
import { setImmediate } from "node:timers/promises";
import { type Endpoint, abortable, ignore, said } from "./endpoint.js";
import { ForkyardError, Unreachable } from "./errors.js";

/** What every call takes. */
export interface CallOptions {
  /** Gives the call up. What the daemon has begun to change is carried out all the same. */
  signal?: AbortSignal | undefined;
  /** Milliseconds to wait for the answer; then ForkyardError of kind timeout. */
  timeoutMs?: number | undefined;
}

/** Bytes that come in pieces: a stream, or anything else that yields them. */
export type Pieces = Iterable<Uint8Array | string> | AsyncIterable<Uint8Array | string>;

/** Bytes of a body in one piece. */
const PIECE = 256 << 10;

/** What is sent with a request. */
export type Sent = { json: unknown } | { content: Pieces } | { lines: string } | undefined;

/** A request and its answer, whose head has come. */
export interface Exchange {
  request: http.ClientRequest;
  answer: http.IncomingMessage;
}

/** Does something that a signal or a limit of time may end. */
export async function within<T>(options: CallOptions, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const { signal, timeoutMs } = options;
  const limit = new AbortController();
  const abort = () => limit.abort(signal?.reason);
  const late = () => limit.abort(new ForkyardError("timeout", `no answer within ${timeoutMs} ms`));
  const timer = timeoutMs === undefined ? undefined : setTimeout(late, timeoutMs);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  try {
    limit.signal.throwIfAborted();
    return await work(limit.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

/** Sends a request and waits for the head of its answer. ForkyardError unless it succeeds. */
export async function open(endpoint: Endpoint, method: string, path: string, sent: Sent, signal: AbortSignal): Promise<Exchange> {
  const socket = await endpoint.connect(signal);
  const headers: http.OutgoingHttpHeaders = { ...endpoint.headers, host: endpoint.host, ...kindOf(sent) };
  const request = http.request({ createConnection: () => socket, method, path, headers, setHost: false });
  request.on("error", ignore);
  const answered = new Promise<http.IncomingMessage>((resolve, reject) => {
    request.once("response", resolve).once("error", reject);
  });
  // Told of below, wherever it fails first.
  answered.catch(ignore);
  const failed = send(request, sent, answered);
  let fault: unknown;
  failed.catch((error) => (fault = error));
  try {
    const answer = await abortable(Promise.race([answered, failed]), signal);
    answer.on("error", ignore);
    if ((answer.statusCode ?? 0) < 300) return { request, answer };
    throw refusal(answer, await all(answer, signal));
  } catch (error) {
    request.destroy();
    // What the content's source says is no word of the connection's.
    throw error === fault ? error : broken(error, endpoint, signal);
  }
}

/** A connection that a request becomes. ForkyardError if it is refused. */
export async function upgrade(endpoint: Endpoint, path: string, signal: AbortSignal): Promise<Socket> {
  const socket = await endpoint.connect(signal, true);
  const headers = { ...endpoint.headers, host: endpoint.host, connection: "Upgrade", upgrade: "tcp" };
  const request = http.request({ createConnection: () => socket, path, headers, setHost: false });
  const upgraded = new Promise<void>((resolve, reject) => {
    request.once("upgrade", (_answer, _socket, first: Buffer) => {
      // What came with the answer is the server's.
      if (first.length > 0) socket.unshift(first);
      resolve();
    });
    request.once("response", (answer) => {
      all(answer, signal).then((body) => reject(refusal(answer, body)), reject);
    });
    request.once("error", reject);
  });
  request.on("error", ignore).end();
  try {
    await abortable(upgraded, signal);
    socket.off("error", ignore);
    return socket;
  } catch (error) {
    request.destroy();
    throw broken(error, endpoint, signal);
  }
}

/** The whole body of an answer. */
export async function all(answer: http.IncomingMessage, signal: AbortSignal | undefined): Promise<Buffer> {
  const abort = () => void answer.destroy();
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  const pieces: Buffer[] = [];
  try {
    for await (const piece of answer) pieces.push(piece as Buffer);
    return Buffer.concat(pieces);
  } catch (error) {
    signal?.throwIfAborted();
    throw new Unreachable(`the daemon closed the connection: ${said(error)}`, { cause: error });
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** Lines of an answer, without the empty ones, which show that the daemon is there. */
export async function* lines(answer: http.IncomingMessage): AsyncGenerator<string> {
  for await (const line of everyLine(answer)) if (line.trim()) yield line;
}

/** Lines of an answer. */
export async function* everyLine(answer: http.IncomingMessage): AsyncGenerator<string> {
  let begun: Buffer[] = [];
  try {
    for await (const piece of answer) {
      let rest = piece as Buffer;
      for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
        yield Buffer.concat([...begun, rest.subarray(0, end)]).toString();
        begun = [];
        rest = rest.subarray(end + 1);
      }
      if (rest.length > 0) begun.push(rest);
    }
  } catch (error) {
    throw new Unreachable(`the daemon closed the connection: ${said(error)}`, { cause: error });
  }
  if (begun.length > 0) yield Buffer.concat(begun).toString();
}

/** Waits until a request's body takes more, or has ended. */
export async function drained(request: http.ClientRequest): Promise<void> {
  if (!request.writableNeedDrain || request.destroyed) return;
  await new Promise<void>((resolve) => {
    const done = () => {
      request.off("drain", done).off("close", done);
      resolve();
    };
    request.on("drain", done).on("close", done);
  });
}

/** Takes content of a caller's. What a stream fails with before it is read is told when it is read. */
export function taken(content: Pieces): Pieces {
  if ("on" in content && typeof content.on === "function") content.on("error", ignore);
  return content;
}

/** Passes bytes on in pieces of at most so many. */
export async function* cut(content: Pieces | Uint8Array | string, most: number): AsyncGenerator<Buffer> {
  const whole = typeof content === "string" || content instanceof Uint8Array;
  for await (const piece of whole ? [content] : content) {
    const bytes = typeof piece === "string" ? Buffer.from(piece) : Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
    for (let at = 0; at < bytes.length; at += most) yield bytes.subarray(at, at + most);
  }
}

function kindOf(sent: Sent): http.OutgoingHttpHeaders {
  if (!sent) return {};
  if ("json" in sent) return { "content-type": "application/json" };
  // The length is not known: the body comes in chunks.
  return { "content-type": "lines" in sent ? "application/x-ndjson" : "application/octet-stream" };
}

/** Sends a body; the promise settles only if that fails for a reason that is not the connection's. */
function send(request: http.ClientRequest, sent: Sent, answered: Promise<http.IncomingMessage>): Promise<never> {
  if (sent && "lines" in sent) {
    request.write(`${sent.lines}\n`);
  } else if (sent && "content" in sent) {
    return new Promise((_, reject) => pour(request, sent.content, answered).catch(reject));
  } else {
    request.end(sent && JSON.stringify(sent.json));
  }
  return new Promise(ignore);
}

async function pour(request: http.ClientRequest, content: Pieces, answered: Promise<http.IncomingMessage>): Promise<void> {
  let over = false;
  const end = () => (over = true);
  answered.then(end, end);
  for await (const piece of cut(content, PIECE)) {
    // A refusal that has come is read before anything is written to a connection that is closed.
    await setImmediate();
    if (over || request.destroyed) return;
    request.write(piece);
    await drained(request);
  }
  request.end();
}

function refusal(answer: http.IncomingMessage, body: Buffer): ForkyardError {
  try {
    const error = JSON.parse(body.toString());
    if (typeof error.kind === "string" && typeof error.message === "string") return ForkyardError.of(error);
  } catch {
    // It comes from something that is no daemon, such as a proxy.
  }
  return new ForkyardError("host", `the daemon answered ${answer.statusCode}: ${body.toString("utf8", 0, 200)}`);
}

function broken(error: unknown, endpoint: Endpoint, signal: AbortSignal): unknown {
  if (signal.aborted) return signal.reason;
  const code = (error as NodeJS.ErrnoException | undefined)?.code;
  // Errors of connections have a code.
  if (error instanceof ForkyardError || code === undefined) return error;
  return new Unreachable(`no daemon answers at ${endpoint.url}: ${said(error)}`, { cause: error });
}
