/**
 * Where the daemon is, and connections to it.
 *
 *     named by url, socketPath or FORKYARD_URL --> that one, or Unreachable
 *     not named --> the one of FORKYARD_RUN_DIR, which is started if it does not run
 */

import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import * as net from "node:net";
import * as tls from "node:tls";
import { Unreachable } from "./errors.js";

/** Milliseconds of silence after which the kernel asks whether the other end is there. */
const KEEPALIVE = 15_000;

/** Which daemon to talk to, and how. */
export interface EndpointOptions {
  /** `unix:///path/of/api.sock` or `https://host:port`; FORKYARD_URL if absent, else this host's daemon. */
  url?: string;
  /** Path of the daemon's Unix socket: short for a `unix://` URL. */
  socketPath?: string;
  /** For https; FORKYARD_TOKEN if absent. */
  token?: string;
  /**
   * The certificate that is believed, for https: `sha256:` and its fingerprint, a PEM file, or PEM
   * itself; FORKYARD_CA if absent, else whatever Node trusts.
   */
  ca?: string;
}

/** A daemon's address. Holds no connection. */
export class Endpoint {
  /** As it was said, for messages. */
  readonly url: string;
  /** What `Host` is. */
  readonly host: string;
  /** Headers that every request has. */
  readonly headers: Readonly<Record<string, string>>;
  readonly #where: { path: string } | { host: string; port: number };
  readonly #ca: string;
  /** Folder of the daemon that may be started; none if a daemon was named. */
  readonly #runDir: string | undefined;
  #starting: Promise<void> | undefined;

  constructor({ url, socketPath, token, ca }: EndpointOptions) {
    if (url && socketPath) throw new TypeError("give url or socketPath, not both");
    const { FORKYARD_URL, FORKYARD_TOKEN, FORKYARD_CA, FORKYARD_RUN_DIR } = process.env;
    const named = url || (socketPath ? `unix://${socketPath}` : FORKYARD_URL);
    const runDir = FORKYARD_RUN_DIR || "/run/forkyard";
    this.url = named || `unix://${runDir}/api.sock`;
    this.#runDir = named ? undefined : runDir;
    this.#ca = ca ?? FORKYARD_CA ?? "";
    if (this.url.startsWith("unix://")) {
      this.#where = { path: this.url.slice("unix://".length) };
      this.host = "forkyard";
      this.headers = {};
      return;
    }
    const parts = URL.canParse(this.url) ? new URL(this.url) : undefined;
    if (parts?.protocol !== "https:") {
      throw new TypeError(`${this.url}: wanted unix:///path or https://host:port`);
    }
    // An IPv6 address stands in brackets in a URL, and without them elsewhere.
    const host = parts.hostname.replace(/^\[|\]$/g, "");
    this.#where = { host, port: Number(parts.port || 443) };
    this.host = parts.host;
    const secret = token ?? FORKYARD_TOKEN;
    this.headers = secret ? { authorization: `Bearer ${secret}` } : {};
  }

  /** True if the daemon is reached over the network. */
  get remote(): boolean {
    return "host" in this.#where;
  }

  /**
   * A connection to the daemon, which is started if none runs and none was named. `halfOpen`: the
   * end of one direction does not end the other. Throws Unreachable, or the signal's reason.
   */
  async connect(signal: AbortSignal | undefined, halfOpen = false): Promise<net.Socket> {
    try {
      return await this.#connect(signal, halfOpen).catch(async (error: NodeJS.ErrnoException) => {
        if (this.#runDir === undefined || !["ENOENT", "ECONNREFUSED"].includes(error.code ?? "")) throw error;
        this.#starting ??= start(this.#runDir, error).finally(() => (this.#starting = undefined));
        await abortable(this.#starting, signal);
        return await this.#connect(signal, halfOpen);
      });
    } catch (error) {
      signal?.throwIfAborted();
      throw new Unreachable(`no daemon answers at ${this.url}: ${said(error)}`, { cause: error });
    }
  }

  async #connect(signal: AbortSignal | undefined, allowHalfOpen: boolean): Promise<net.Socket> {
    signal?.throwIfAborted();
    if ("path" in this.#where) {
      return await settled(net.connect({ ...this.#where, allowHalfOpen }), "connect", signal);
    }
    const pinned = /^sha256:/i.test(this.#ca);
    const options: tls.ConnectionOptions & { allowHalfOpen: boolean } = {
      ...this.#where,
      allowHalfOpen,
      ALPNProtocols: ["http/1.1"],
      // A certificate that is known by its fingerprint needs nobody to vouch for it.
      rejectUnauthorized: !pinned,
    };
    // The name of a host is sent, an address is not.
    if (!net.isIP(this.#where.host)) options.servername = this.#where.host;
    if (this.#ca && !pinned) {
      options.ca = this.#ca.includes("-----BEGIN") ? this.#ca : await readFile(this.#ca);
    }
    const socket = await settled(tls.connect(options), "secureConnect", signal);
    // Before anything is said: the token is for that daemon alone.
    const shown = fingerprint(socket.getPeerCertificate().fingerprint256 ?? "");
    if (pinned && (!shown || shown !== fingerprint(this.#ca.slice("sha256:".length)))) {
      socket.destroy();
      throw new Error(`its certificate is sha256:${shown}, not the one that is pinned`);
    }
    socket.setKeepAlive(true, KEEPALIVE);
    socket.setNoDelay(true);
    return socket;
  }
}

/** What an error says, with what it says beneath it: Node has several under one for hosts with several addresses. */
export function said(error: unknown): string {
  const causes = error instanceof AggregateError ? error.errors : [error];
  return causes.map((it) => (it instanceof Error ? it.message : String(it))).join("; ");
}

/** The outcome of a promise, or the signal's reason as soon as there is one. */
export async function abortable<T>(outcome: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return await outcome;
  // Its failure is told of, unless the signal's reason is.
  outcome.catch(ignore);
  signal.throwIfAborted();
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
  });
  try {
    return await Promise.race([outcome, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** A socket once it is connected. It is destroyed if that fails or is given up. */
async function settled<S extends net.Socket>(socket: S, event: string, signal: AbortSignal | undefined): Promise<S> {
  // Stays: an error that nobody listens for would end the program.
  socket.on("error", ignore);
  let resolve = () => {};
  let reject = (_: Error) => {};
  const closed = () => reject(new Error("the connection was closed"));
  const connected = new Promise<void>((...settle) => ([resolve, reject] = settle));
  socket.once(event, resolve).once("error", reject).once("close", closed);
  try {
    await abortable(connected, signal);
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  } finally {
    socket.off(event, resolve).off("error", reject).off("close", closed);
  }
}

/** Listener for errors that are told of elsewhere. */
export function ignore(): void {}

/** A fingerprint without the colons that some tools print. */
function fingerprint(printed: string): string {
  return printed.replaceAll(":", "").trim().toLowerCase();
}

/** Has `forkyard` start the daemon of a run folder. */
function start(runDir: string, refused: Error): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile("forkyard", ["--run-dir", runDir, "ps"], (error, _, stderr) => {
      // Without the program there is none to start, and what went wrong is that none runs.
      if (error?.code as unknown === "ENOENT") reject(refused);
      else if (error) reject(new Error(stderr.trim() || error.message));
      else resolve();
    });
  });
}
