/** Virtual machines. */

import type { Socket } from "node:net";
import { setTimeout } from "node:timers/promises";
import { call, filled } from "./api.js";
import type { Endpoint } from "./endpoint.js";
import { ForkyardError } from "./errors.js";
import { Files } from "./files.js";
import type {
  AtEnd,
  DockRequest,
  EgressRequest,
  ExecRequest,
  ForkProgress,
  ForkRequest,
  FriendlySettings,
  KeptCommand,
  MigrateRequest,
  MigrateResponse,
  NetworkPolicy,
  SchedSettings,
  SchedState,
  ShareGrant,
  ShareView,
  SubstrateView,
  VmInspect,
  VmState,
  VmUsage,
  VmView,
} from "./generated.js";
import { type CallOptions, type Pieces, all, open, taken, upgrade, within } from "./http.js";
import { Process, type Signal, numberOf } from "./process.js";
import { type ExecResult, Forked } from "./results.js";

/** Bytes of standard input that go with the request. */
const INLINE = 1 << 20;

/** How a command is run; what is left out is as the VM's container image says, if it was made of one. */
export interface CommandOptions {
  env?: Readonly<Record<string, string>>;
  workdir?: string;
  /** `USER` or `USER:GROUP`, names or numbers of the guest's. */
  user?: string;
}

/** How a command is run whose client follows it. */
export interface FollowOptions extends CommandOptions {
  /** Hangs up on the command, with the signal's reason. */
  signal?: AbortSignal;
  /** Milliseconds, rounded up to whole seconds: then it is killed in the guest with all that it started. */
  timeoutMs?: number;
}

/** How exec() runs a command. */
export interface ExecOptions extends FollowOptions {
  /** What it reads from standard input. What comes in pieces is passed on as it reads. */
  stdin?: string | Uint8Array | Pieces;
  /** Throw CommandFailed unless it exits with 0. */
  check?: boolean;
}

/** How start() starts a command. */
export interface StartOptions extends FollowOptions {
  /** What it reads from standard input; "pipe": what write() gives it. */
  stdin?: string | Uint8Array | "pipe";
  /** A terminal of this size; what it writes is all standard output then. */
  tty?: { rows: number; cols: number };
  /** Keep it: it goes on whatever becomes of this client, and attach() follows it again. */
  keep?: boolean;
  /** Label of one that is kept. */
  tag?: string;
}

/** What a VM has used of its host so far: microseconds and bytes. */
export type Used = Omit<VmUsage, "vm"> & { at_us: number };

/** A VM. `await using vm = await fy.run("tiny")` removes it at the end of the block. */
export class Vm implements AsyncDisposable {
  readonly id: string;
  readonly files: Files;
  readonly #endpoint: Endpoint;
  #view: VmView;

  constructor(endpoint: Endpoint, view: VmView) {
    this.#endpoint = endpoint;
    this.#view = view;
    this.id = view.id;
    this.files = new Files(endpoint, view.id);
  }

  /** What the host last said of it. */
  get view(): VmView {
    return this.#view;
  }

  /** As of the last answer. */
  get name(): string {
    return this.#view.name;
  }

  /** Address on the private network of its family. */
  get ip(): string {
    return this.#view.address.ip;
  }

  /** As of the last answer. */
  get state(): VmState {
    return this.#view.state;
  }

  /** As of the last answer. */
  get labels(): Readonly<Record<string, string>> {
    return this.#view.labels ?? {};
  }

  /** Ports of the host that lead to it and addresses of its own, as of the last answer. */
  get published(): readonly string[] {
    return this.#view.published ?? [];
  }

  /** Asks the host how it is. */
  async refresh(options?: CallOptions): Promise<this> {
    this.#view = await call(this.#endpoint, "get", "/v1/vms/{vm}", this.#path, options);
    return this;
  }

  /** Asks for all that is known of it: where its bytes are, what its forks took, its network, its notes. */
  async inspect(options?: CallOptions): Promise<VmInspect> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/inspect", this.#path, options);
  }

  /**
   * What it has used of the host so far. The difference between two answers, of which `at_us` is the time, is the use in
   * between.
   */
  async usage(options?: CallOptions): Promise<Used> {
    const { at_us, vms } = await call(this.#endpoint, "get", "/v1/usage", {}, options);
    const found = vms.find((one) => one.vm.id === this.id);
    if (!found) throw new ForkyardError("not_found", `${this.name} uses nothing of this host`, "in a cluster, ask its own node");
    const { vm, ...used } = found;
    this.#view = vm;
    return { at_us, ...used };
  }

  /**
   * Waits until it is running, paused, stopped or removed. ForkyardError of kind timeout if it is not within `timeoutMs`,
   * and of kind conflict if it can be no more.
   */
  async wait(until: "running" | "paused" | "stopped" | "removed" = "running", options: CallOptions = {}): Promise<this> {
    return await within(options, async (signal) => {
      let was: VmState | undefined;
      for (let pause = 50; ; pause = Math.min(1000, pause * 2)) {
        const state = await this.#stateNow(signal);
        if ((state ?? "removed") === until) return this;
        const never = until === "removed" ? undefined : neverBe(state, was);
        if (never) throw new ForkyardError("conflict", `${this.name} ${never}`);
        was = state;
        await setTimeout(pause, undefined, { signal }).catch(() => signal.throwIfAborted());
      }
    });
  }

  /**
   * Forks it. Returns once every clone runs with an identity of its own, or has failed: see Forked.
   *
   * `live` spares this VM at the clones' cost; what else may be said is the API's. ForkyardError if
   * nothing was forked at all.
   */
  async fork(
    count = 1,
    options: CallOptions & { live?: boolean } & Partial<Omit<ForkRequest, "count" | "mode">> = {},
  ): Promise<Forked> {
    const { live, signal, timeoutMs, ...more } = options;
    const body: ForkRequest = { count, mode: live ? "live" : "fast", ...more };
    const made = await call(this.#endpoint, "post", "/v1/vms/{vm}/fork", { ...this.#path, body }, { signal, timeoutMs });
    const vms = made.clones.flatMap((clone) => ("vm" in clone ? [new Vm(this.#endpoint, clone.vm)] : []));
    const errors = made.clones.flatMap((clone) => ("error" in clone ? [ForkyardError.of(clone.error)] : []));
    return new Forked(made.fork, vms, errors, made.report);
  }

  /** Forks of it that are under way, and the last ones that were: how far each host is with its clones. */
  async forks(options?: CallOptions): Promise<ForkProgress[]> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/forks", this.#path, options);
  }

  /** Keeps this instant on disk, to be forked later: a VM in the state `checkpoint`. */
  async checkpoint(name?: string, options: CallOptions & { live?: boolean } = {}): Promise<Vm> {
    const body = { name: name ?? null, mode: options.live ? ("live" as const) : ("fast" as const) };
    return new Vm(this.#endpoint, await call(this.#endpoint, "post", "/v1/vms/{vm}/checkpoint", { ...this.#path, body }, options));
  }

  /** Moves it to another host; the report of how that went. */
  async migrate(
    to: string,
    options: CallOptions & Partial<Omit<MigrateRequest, "to">> = {},
  ): Promise<MigrateResponse["report"]> {
    const { signal, timeoutMs, ...more } = options;
    const body: MigrateRequest = { to, ...more };
    const moved = await call(this.#endpoint, "post", "/v1/vms/{vm}/migrate", { ...this.#path, body }, { signal, timeoutMs });
    this.#view = moved.vm;
    return moved.report;
  }

  /** Makes a substrate of it, as which it ends; with `live` a clone does, and it runs on. */
  async dock(
    name: string,
    options: CallOptions & Partial<Omit<DockRequest, "vm" | "name">> = {},
  ): Promise<SubstrateView> {
    const { signal, timeoutMs, ...more } = options;
    const body: DockRequest = { kind: "public", ...more, vm: this.id, name };
    return await call(this.#endpoint, "post", "/v1/substrates", { body }, { signal, timeoutMs });
  }

  /**
   * Has its vCPUs scheduled: `policy`, `level`, `parallel`, `weight`, `cap`, `slice_us`, `period_us`. What is left out stays
   * as it is. The vCPUs that are scheduled on its host.
   */
  async schedule(settings: Partial<SchedSettings> = {}, options?: CallOptions): Promise<SchedState> {
    const words = { ...this.#path, body: settings as SchedSettings };
    return await call(this.#endpoint, "put", "/v1/vms/{vm}/sched", words, options);
  }

  /** Lets its vCPUs go: the host's own scheduler has them again. */
  async unschedule(options?: CallOptions): Promise<SchedState> {
    return await call(this.#endpoint, "delete", "/v1/vms/{vm}/sched", this.#path, options);
  }

  /** The vCPUs that are scheduled on its host. */
  async scheduling(options?: CallOptions): Promise<SchedState> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/sched", this.#path, options);
  }

  /**
   * Has its guest adapt its demand to the host: `law`, `group`, `config` (a file's content), `changes` of single constants,
   * as "monitor.threshold=2". The guest's state.
   */
  async makeFriendly(settings: Partial<FriendlySettings> = {}, options?: CallOptions): Promise<Record<string, unknown>> {
    const words = { ...this.#path, body: settings as FriendlySettings };
    return (await call(this.#endpoint, "put", "/v1/vms/{vm}/friendly", words, options)) as Record<string, unknown>;
  }

  /** Has its guest take again what it can get. */
  async endFriendly(options?: CallOptions): Promise<Record<string, unknown>> {
    return (await call(this.#endpoint, "delete", "/v1/vms/{vm}/friendly", this.#path, options)) as Record<string, unknown>;
  }

  /** Its guest's state as a friendly one. */
  async friendly(options?: CallOptions): Promise<Record<string, unknown>> {
    return (await call(this.#endpoint, "get", "/v1/vms/{vm}/friendly", this.#path, options)) as Record<string, unknown>;
  }

  /** Has it stand still; it can be forked so. */
  async pause(options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/pause", this.#path, options);
  }

  /** Lets it go on. */
  async resume(options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/resume", this.#path, options);
  }

  /** Boots it again, from its own disk, once it has stopped. */
  async boot(options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/start", this.#path, options);
  }

  /** Has its disk come to depend on no substrate or image, in the background; the answer shows how far it is. */
  async makeIndependent(options?: CallOptions): Promise<VmInspect> {
    return await call(this.#endpoint, "post", "/v1/vms/{vm}/independence", this.#path, options);
  }

  /** Powers it off; its record stays until it is removed. */
  async stop(options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/stop", this.#path, options);
  }

  /** Ends it, and removes all that is its own. */
  async remove(options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "delete", "/v1/vms/{vm}", this.#path, options);
  }

  /** Removes it, unless it is gone. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.remove().catch((error) => {
      if (!(error instanceof ForkyardError) || error.kind !== "not_found") throw error;
    });
  }

  /** Starts a command whose output is read as it comes. NotStarted, when it is read, if it cannot be run. */
  async start(argv: readonly string[], options: StartOptions = {}): Promise<Process> {
    const { stdin, timeoutMs, signal } = options;
    const timeout_s = timeoutMs === undefined ? null : Math.max(1, Math.ceil(timeoutMs / 1000));
    const { tty = null, keep = false, tag = null } = options;
    const wanted: ExecRequest = { ...command(argv, options), timeout_s, tty, keep, tag };
    const pipe = stdin === "pipe";
    if (stdin && !pipe) wanted.stdin = Buffer.from(stdin).toString("base64");
    const sent = pipe ? { lines: JSON.stringify(wanted) } : { json: wanted };
    const path = filled("/v1/vms/{vm}/exec", { vm: this.id });
    const exchange = await within({ signal }, (limit) => open(this.#endpoint, "POST", path, sent, limit));
    return new Process(argv, exchange, pipe, signal);
  }

  /**
   * Runs a command to its end. NotStarted if it cannot be run, ForkyardError of kind timeout if it
   * takes too long.
   */
  async exec(argv: readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    const { stdin, check, ...more } = options;
    const whole = stdin === undefined || typeof stdin === "string" || stdin instanceof Uint8Array;
    // A word that start() would take for something else.
    const inline = whole && stdin !== "pipe" && Buffer.byteLength(stdin ?? "") <= INLINE;
    const pieces = whole ? [stdin ?? ""] : taken(stdin);
    const given = inline ? (stdin ?? "") : "pipe";
    const process = await this.start(argv, { ...more, stdin: given });
    try {
      if (!inline) process.feed(pieces).catch((error) => process.fail(error));
      return await process.finish({ check: check ?? false });
    } finally {
      await process.close();
    }
  }

  /**
   * Starts a command and leaves it to itself: its process id in the guest. It reads nothing, and goes
   * on whatever becomes of this client; the last of what it writes is kept for attach().
   */
  async detach(argv: readonly string[], options: CommandOptions & CallOptions & { tag?: string } = {}): Promise<number> {
    const json: ExecRequest = { ...command(argv, options), detach: true, tag: options.tag ?? null };
    const path = filled("/v1/vms/{vm}/exec", { vm: this.id });
    return await within(options, async (signal) => {
      const exchange = await open(this.#endpoint, "POST", path, { json }, signal);
      return await new Process(argv, exchange, false, signal).started();
    });
  }

  /** Commands that it keeps: those that run, whose exit is null, and the last that have ended. */
  async sessions(options?: CallOptions): Promise<KeptCommand[]> {
    return await call(this.#endpoint, "get", "/v1/vms/{vm}/sessions", this.#path, options);
  }

  /**
   * Follows a command that it keeps: what it has written, as far as that is kept, comes first. It can be
   * written to, and goes on when it is left.
   */
  async attach(pid: number, options: { signal?: AbortSignal } = {}): Promise<Process> {
    const path = filled("/v1/vms/{vm}/sessions/{pid}", { vm: this.id, pid });
    // The first line of an exec is the request; here an empty one says nothing.
    const exchange = await within(options, (limit) => open(this.#endpoint, "POST", path, { lines: "" }, limit));
    return new Process([], exchange, true, options.signal);
  }

  /** Sends a command that it keeps a signal; SIGKILL kills all that it started, too. */
  async killSession(pid: number, signal: Signal = "SIGKILL", options?: CallOptions): Promise<void> {
    const words = { path: { vm: this.id, pid }, query: { signal: numberOf(signal) } };
    await call(this.#endpoint, "delete", "/v1/vms/{vm}/sessions/{pid}", words, options);
  }

  /**
   * Wants it for so many seconds from now on, or until it is removed if null. `action` is what becomes of
   * it then; as before, or rm, if absent.
   */
  async keepalive(seconds: number | null, options: CallOptions & { action?: AtEnd } = {}): Promise<void> {
    const { action = null } = options;
    const path = "/v1/vms/{vm}/lifetime";
    this.#view =
      seconds === null
        ? await call(this.#endpoint, "delete", path, this.#path, options)
        : await call(this.#endpoint, "post", path, { ...this.#path, body: { ttl_s: seconds, action } }, options);
  }

  /**
   * Says what the VMs of its family, on its host, may reach from now on. `allow` is all that may be reached; if there
   * is none, all but private networks. `deny` is what may not, even if it is allowed.
   */
  async egress(wanted: EgressRequest, options?: CallOptions): Promise<NetworkPolicy> {
    return call(this.#endpoint, "post", "/v1/vms/{vm}/egress", { ...this.#path, body: wanted }, options);
  }

  /**
   * Gives out a token with which clients of a gateway reach one port, for `expires` seconds (an hour if absent). It
   * is shown this once. With `base`, the gateway's address, `url` leads to the port with it.
   */
  async share(
    port: number,
    options: CallOptions & { expires?: number; note?: string; base?: string } = {},
  ): Promise<ShareGrant & { url?: string }> {
    const { expires = 3600, note = "", base } = options;
    const body = { port, expires_s: expires, note };
    const made = await call(this.#endpoint, "post", "/v1/vms/{vm}/shares", { ...this.#path, body }, options);
    if (base === undefined) return made;
    const url = new URL(base);
    const label = `${port}-${this.name}`;
    // A label of the DNS has at most 63 letters.
    url.hostname = `${label.length > 63 ? `${port}-${this.id}` : label}.${url.hostname}`;
    url.searchParams.set("forkyard_token", made.token);
    return { ...made, url: url.href };
  }

  /** Tokens for its ports that hold, the oldest first. */
  async shares(options?: CallOptions): Promise<ShareView[]> {
    return call(this.#endpoint, "get", "/v1/vms/{vm}/shares", this.#path, options);
  }

  /** Takes a token back, by its id: gateways refuse it within two seconds. */
  async unshare(share: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "delete", "/v1/vms/{vm}/shares/{share}", { path: { vm: this.id, share } }, options);
  }

  /**
   * Has it sleep or end once it has not been used for so many seconds, or run on if null. `action` is
   * `pause` if absent; once paused or stopped, its next use wakes it.
   */
  async idle(seconds: number | null, options: CallOptions & { action?: AtEnd } = {}): Promise<void> {
    const { action = "pause" } = options;
    const path = "/v1/vms/{vm}/idle";
    this.#view =
      seconds === null
        ? await call(this.#endpoint, "delete", path, this.#path, options)
        : await call(this.#endpoint, "post", path, { ...this.#path, body: { after_s: seconds, action } }, options);
  }

  /**
   * Says whether it is started again when it ends by itself, from now on: `no`, `always`, `on-failure` or
   * `on-failure:N`. Fails for clones, which cannot be, but for `no`.
   */
  async setRestart(restart: string, options?: CallOptions): Promise<void> {
    const path = "/v1/vms/{vm}/restart-policy";
    this.#view = await call(this.#endpoint, "post", path, { ...this.#path, body: { restart } }, options);
  }

  /** Gives it another name, which no other has. Its guest's host name stays until it boots again. */
  async rename(name: string, options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/rename", { ...this.#path, body: { name } }, options);
  }

  /**
   * Has ports of the host lead to it until it stops, "[ADDRESS:]PORT:GUESTPORT[/udp]", or gives it an address of
   * its own outside, "ADDRESS/routed" or "ADDRESS/bridge"; all that do.
   */
  async publish(ports: string | readonly string[], options?: CallOptions): Promise<readonly string[]> {
    const words = { ...this.#path, body: { ports: [ports].flat() } };
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/published", words, options);
    return this.published;
  }

  /** Closes a port of the host that leads to it, or takes an address from it. Connections that are open go on. */
  async unpublish(port: number | string, options: CallOptions & { transport?: "tcp" | "udp" } = {}): Promise<void> {
    const words = { path: { vm: this.id, port: String(port) }, query: { transport: options.transport } };
    this.#view = await call(this.#endpoint, "delete", "/v1/vms/{vm}/published/{port}", words, options);
  }

  /** What it wrote to its serial console, at most the last MiB; of a clone, since its fork. */
  async logs(options: CallOptions = {}): Promise<Buffer> {
    const path = filled("/v1/vms/{vm}/logs", { vm: this.id });
    return await within(options, async (signal) => {
      const { request, answer } = await open(this.#endpoint, "GET", path, undefined, signal);
      try {
        return await all(answer, signal);
      } finally {
        request.destroy();
      }
    });
  }

  /** Gives it these labels instead of those it had. */
  async setLabels(labels: Readonly<Record<string, string>>, options?: CallOptions): Promise<void> {
    this.#view = await call(this.#endpoint, "post", "/v1/vms/{vm}/labels", { ...this.#path, body: labels }, options);
  }

  /**
   * Connects to a TCP port of it, through the daemon; its server may listen on the VM's loopback alone.
   * Each direction ends by itself, as of a socket with `allowHalfOpen`. ForkyardError if nothing listens.
   */
  async connect(port: number, options: CallOptions = {}): Promise<Socket> {
    const path = filled("/v1/vms/{vm}/ports/{port}", { vm: this.id, port });
    return await within(options, (limit) => upgrade(this.#endpoint, path, limit));
  }

  async #stateNow(signal: AbortSignal): Promise<VmState | undefined> {
    try {
      return (await this.refresh({ signal })).state;
    } catch (error) {
      if (error instanceof ForkyardError && error.kind === "not_found") return undefined;
      throw error;
    }
  }

  get #path(): { path: { vm: string } } {
    return { path: { vm: this.id } };
  }
}

/** Why a VM in this state comes to no other by itself. */
function neverBe(state: VmState | undefined, was: VmState | undefined): string | undefined {
  if (state === undefined) return "has been removed";
  if (state === "checkpoint") return "is a checkpoint, which never runs";
  // One that was stopped from the beginning may be started yet.
  if (state === "stopped" && was !== undefined && was !== "stopped") return "has stopped";
  return undefined;
}

function command(argv: readonly string[], { env = {}, workdir, user }: CommandOptions): ExecRequest {
  return { argv: [...argv], env: Object.entries(env), workdir: workdir ?? null, user: user ?? null } as ExecRequest;
}
