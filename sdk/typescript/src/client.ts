/** A host of VMs. */

import { type Answer, call, filled, put } from "./api.js";
import { Endpoint, type EndpointOptions } from "./endpoint.js";
import { ForkyardError } from "./errors.js";
import { Events, type EventsOptions } from "./events.js";
import type {
  ActivateRequest,
  Collected,
  GuestImage,
  ImagePullRequest,
  LinkBudget,
  LinkView,
  MigrateRequest,
  MigrateResponse,
  PushResponse,
  RunRequest,
  StoredSubstrate,
  SubstrateInspect,
  SubstrateView,
  Usage,
  VmState,
  VolumeMoved,
  VolumeView,
  VolumeWhy,
} from "./generated.js";
import { type CallOptions, type Pieces, taken } from "./http.js";
import { Vm } from "./vm.js";

/** Which VMs are listed. */
export interface Selection {
  /** Those that have all of these. */
  labels?: Readonly<Record<string, string>>;
  /** Those in this state, or in one of these. */
  state?: VmState | readonly VmState[];
  limit?: number;
  after?: Vm;
}

/** A host of VMs. Holds no connection: nothing has to be closed. */
export class Forkyard {
  readonly #endpoint: Endpoint;

  /**
   * The daemon that is named by `url` or `socketPath`, or by FORKYARD_URL; else the one of this host,
   * in FORKYARD_RUN_DIR or /run/forkyard, which is started if it does not run.
   */
  constructor(options: EndpointOptions = {}) {
    this.#endpoint = new Endpoint(options);
  }

  /** Where the daemon is. */
  get url(): string {
    return this.#endpoint.url;
  }

  /**
   * Boots a VM; returns once its agent answers. Options are the API's: `name`, `vcpus`, `memory` in bytes, `warm` clones
   * to keep ready, `network`, `secrets`, `labels`, `env` for all its commands, `lifetime`, …
   */
  async run(image: string, options: CallOptions & Partial<Omit<RunRequest, "image">> = {}): Promise<Vm> {
    const { signal, timeoutMs, ...more } = options;
    const body = { ...more, image } as RunRequest;
    return new Vm(this.#endpoint, await call(this.#endpoint, "post", "/v1/vms", { body }, { signal, timeoutMs }));
  }

  /**
   * Every VM, or those that have all these labels and one of these states, the oldest first. Checkpoints are among them.
   * `limit`: a page of at most so many; `after`: the last VM of the page before, which may be gone meanwhile.
   */
  async vms(options: CallOptions & Selection = {}): Promise<Vm[]> {
    const { labels = {}, state, limit, after } = options;
    const wanted = Object.entries(labels);
    // A filter separates labels by commas: those that have one are looked for here.
    const plain = wanted.map(([name, value]) => `${name}=${value}`).filter((label) => !label.includes(","));
    const query = {
      labels: plain.length > 0 ? plain.join(",") : undefined,
      state: state === undefined ? undefined : [state].flat().join(","),
      limit,
      after: after && `${after.view.created}-${after.view.family}-${after.view.member}`,
    };
    const views = await call(this.#endpoint, "get", "/v1/vms", { query }, options);
    const chosen = views.filter(({ labels = {} }) => wanted.every(([name, value]) => labels[name] === value));
    return chosen.map((view) => new Vm(this.#endpoint, view));
  }

  /** Every checkpoint, the oldest first. One is forked, renamed and removed like a VM. */
  async checkpoints(options: CallOptions = {}): Promise<Vm[]> {
    return await this.vms({ ...options, state: "checkpoint" });
  }

  /** Other hosts that VMs can be forked and moved to: nodes of the cluster, or peers, by name. */
  async hosts(options?: CallOptions): Promise<string[]> {
    return await call(this.#endpoint, "get", "/v1/hosts", {}, options);
  }

  /**
   * What every VM has used of the host so far: processor time, memory, forks. The difference between two answers is the
   * use in between.
   */
  async usage(options?: CallOptions): Promise<Usage> {
    return await call(this.#endpoint, "get", "/v1/usage", {}, options);
  }

  /** The VM of this name or id; ForkyardError of kind not_found if there is none. */
  async vm(name: string, options?: CallOptions): Promise<Vm> {
    return new Vm(this.#endpoint, await call(this.#endpoint, "get", "/v1/vms/{vm}", { path: { vm: name } }, options));
  }

  /** Events of the host, as they happen: what happens once this has returned, or after `since`. */
  async events(options: EventsOptions = {}): Promise<Events> {
    return await Events.open(this.#endpoint, options);
  }

  /**
   * Moves VMs of this host to another as one: all of them, or none. The report of each. ForkyardError if they stay, or
   * if it is not known yet whether they moved.
   */
  async migrate(
    vms: readonly (Vm | string)[],
    to: string,
    options: CallOptions & Partial<Omit<MigrateRequest, "to" | "together">> = {},
  ): Promise<MigrateResponse["report"][]> {
    const { signal, timeoutMs, ...more } = options;
    const [first = "", ...together] = vms.map((vm) => (typeof vm === "string" ? vm : vm.id));
    const words = { path: { vm: first }, body: { ...more, to, together } as MigrateRequest };
    const moved = await call(this.#endpoint, "post", "/v1/vms/{vm}/migrate", words, { signal, timeoutMs });
    return [moved, ...(moved.together ?? [])].map((one) => one.report);
  }

  /** Every image: recipes, and what was imported, pulled, built or committed. */
  async images(options?: CallOptions): Promise<GuestImage[]> {
    return await call(this.#endpoint, "get", "/v1/images", {}, options);
  }

  /** An image: where it is from, its digest, what it runs. */
  async image(name: string, options?: CallOptions): Promise<GuestImage> {
    return await call(this.#endpoint, "get", "/v1/images/{name}", { path: { name } }, options);
  }

  /** Makes an image of a container image in a registry. With `start` VMs start its entry point. */
  async pullImage(
    reference: string,
    name: string,
    options: CallOptions & Partial<Omit<ImagePullRequest, "reference">> = {},
  ): Promise<GuestImage> {
    const { signal, timeoutMs, ...more } = options;
    const words = { path: { name }, body: { ...more, reference } as ImagePullRequest };
    return await call(this.#endpoint, "post", "/v1/images/{name}/pull", words, { signal, timeoutMs });
  }

  /**
   * Makes an image from a Dockerfile. `context`: a tar archive of the folder that COPY copies of, with the Dockerfile in it.
   * With `start` VMs start its entry point. For root of the daemon's host, which needs buildah.
   */
  async buildImage(
    name: string,
    context: Uint8Array | Pieces,
    options: CallOptions & { dockerfile?: string; buildArgs?: Readonly<Record<string, string>>; size?: number; start?: boolean } = {},
  ): Promise<GuestImage> {
    const { dockerfile = "Dockerfile", buildArgs, size, start } = options;
    const build_args = buildArgs && JSON.stringify(buildArgs);
    const path = filled("/v1/images/{name}/build", { name }, { dockerfile, build_args, size, start });
    const sent = { content: context instanceof Uint8Array ? [context] : taken(context) };
    return (await put(this.#endpoint, path, sent, options)) as Answer<"/v1/images/{name}/build", "put">;
  }

  /** Makes an image of a VM's disk, without what is that VM's alone. One that runs goes on. */
  async commitImage(vm: Vm | string, name: string, options?: CallOptions): Promise<GuestImage> {
    const words = { path: { name }, body: { vm: typeof vm === "string" ? vm : vm.id } };
    return await call(this.#endpoint, "post", "/v1/images/{name}/commit", words, options);
  }

  /** Removes an image that no VM is of. */
  async removeImage(name: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "delete", "/v1/images/{name}", { path: { name } }, options);
  }

  /** Every substrate that this user may activate, the oldest first. */
  async substrates(options?: CallOptions): Promise<SubstrateView[]> {
    return await call(this.#endpoint, "get", "/v1/substrates", {}, options);
  }

  /** Where a substrate's bytes are. */
  async substrate(name: string, options?: CallOptions): Promise<SubstrateInspect> {
    return await call(this.#endpoint, "get", "/v1/substrates/{name}", { path: { name } }, options);
  }

  /**
   * Makes VMs of a substrate, each with a family and a network of its own. ForkyardError if one was not
   * made; the others are removed.
   */
  async activate(
    substrate: string,
    count = 1,
    options: CallOptions & Partial<Omit<ActivateRequest, "count">> = {},
  ): Promise<Vm[]> {
    const { signal, timeoutMs, ...more } = options;
    const words = { path: { name: substrate }, body: { ...more, count } as ActivateRequest };
    const { vms } = await call(this.#endpoint, "post", "/v1/substrates/{name}/activate", words, { signal, timeoutMs });
    const made = vms.flatMap((one) => ("vm" in one ? [new Vm(this.#endpoint, one.vm)] : []));
    for (const one of vms) {
      if (!("error" in one)) continue;
      await Promise.all(made.map((vm) => vm[Symbol.asyncDispose]()));
      throw ForkyardError.of(one.error);
    }
    return made;
  }

  /**
   * Keeps VMs of a substrate ready, which `activate` takes: so many, none any more if 0, or as many as recent
   * demand asks for if `count` is null. `memoryMib`: what they may take together of the host's
   * memory. `vmMemory` and `vmDisk`, in bytes, and `vmVcpus`: the size of each, as of `activate`; each size is kept beside the others.
   */
  async keepStandby(
    substrate: string,
    count: number | null = null,
    options: CallOptions & { memoryMib?: number; vmMemory?: number; vmVcpus?: number; vmDisk?: number } = {},
  ): Promise<SubstrateView> {
    const { memoryMib, vmMemory, vmVcpus, vmDisk, ...how } = options;
    const size = {
      ...(vmMemory === undefined ? {} : { vm_memory: vmMemory }),
      ...(vmVcpus === undefined ? {} : { vm_vcpus: vmVcpus }),
      ...(vmDisk === undefined ? {} : { vm_disk: vmDisk }),
    };
    const body = { count, memory_mib: memoryMib ?? 1024, ...size };
    const words = { path: { name: substrate }, body };
    return await call(this.#endpoint, "post", "/v1/substrates/{name}/standby", words, how);
  }

  /** Removes a substrate that nothing lies over. */
  async removeSubstrate(name: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "delete", "/v1/substrates/{name}", { path: { name } }, options);
  }

  /**
   * Puts a substrate into an object store (`s3://bucket/prefix`, `file:///folder`) or a folder of the host. A store is
   * sent what it has not; with `verify` also what is damaged there. For the host's operator.
   */
  async pushSubstrate(name: string, to: string, options: CallOptions & { verify?: boolean } = {}): Promise<PushResponse> {
    const words = { path: { name }, body: { ...place(to), verify: options.verify ?? false } };
    return await call(this.#endpoint, "post", "/v1/substrates/{name}/push", words, options);
  }

  /**
   * Brings a substrate in from a store (`s3://bucket/prefix/name`) or its folder. `name`: that it is to have here;
   * `trust`: the public key of the host that has signed it. For the host's operator.
   */
  async pullSubstrate(from: string, options: CallOptions & { name?: string; trust?: string } = {}): Promise<SubstrateView> {
    const body = { ...place(from), name: options.name ?? null, trust: options.trust ?? null };
    return await call(this.#endpoint, "post", "/v1/substrates/pull", { body }, options);
  }

  /** Every substrate in an object store, by name. For the host's operator. */
  async storedSubstrates(store: string, options?: CallOptions): Promise<StoredSubstrate[]> {
    return await call(this.#endpoint, "get", "/v1/stores", { query: { store } }, options);
  }

  /** Removes a substrate from an object store, with what nothing there needs any more. For the host's operator. */
  async removeStoredSubstrate(store: string, name: string, options?: CallOptions): Promise<Collected> {
    return await call(this.#endpoint, "delete", "/v1/stores", { query: { store, name } }, options);
  }

  /** Every volume, sorted by name. A VM boots on one by `run(image, { volume: { name } })`. */
  async volumes(options?: CallOptions): Promise<VolumeView[]> {
    return await call(this.#endpoint, "get", "/v1/volumes", {}, options);
  }

  /** A volume, its snapshots, and the VMs that have it. */
  async volume(name: string, options?: CallOptions): Promise<VolumeView> {
    return await call(this.#endpoint, "get", "/v1/volumes/{name}", { path: { name } }, options);
  }

  /**
   * Makes a volume of `size` bytes: of zeroes, or a copy of an image's disk. Its blocks are encrypted on the host's disk if
   * `encrypted`, with the key in the host's file `keyFile`, or one that is made and goes with the volume.
   */
  async createVolume(
    name: string,
    options: CallOptions & {
      size?: number;
      image?: string;
      encrypted?: boolean;
      keyFile?: string;
    } = {},
  ): Promise<VolumeView> {
    const body = {
      name,
      size: options.size ?? null,
      image: options.image ?? null,
      encrypted: options.encrypted ?? false,
      key_file: options.keyFile ?? null,
    };
    return await call(this.#endpoint, "post", "/v1/volumes", { body }, options);
  }

  /** Keeps a volume as it is, also while a VM writes it. */
  async snapshotVolume(name: string, snapshot: string, options?: CallOptions): Promise<VolumeView> {
    const words = { path: { name }, body: { name: snapshot } };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/snapshots", words, options);
  }

  /** Removes a snapshot of a volume that no VM lies over. */
  async removeVolumeSnapshot(name: string, snapshot: string, options?: CallOptions): Promise<VolumeView> {
    const path = { name, snapshot };
    return await call(this.#endpoint, "delete", "/v1/volumes/{name}/snapshots/{snapshot}", { path }, options);
  }

  /** Gives a volume that no VM has so many bytes. */
  async resizeVolume(name: string, size: number, options?: CallOptions): Promise<VolumeView> {
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/resize", { path: { name }, body: { size } }, options);
  }

  /** Why a block of 4096 bytes went to other hosts, came from there, or did not. */
  async volumeWhy(name: string, block: number, options?: CallOptions): Promise<VolumeWhy> {
    const words = { path: { name }, query: { block } };
    return await call(this.#endpoint, "get", "/v1/volumes/{name}/why", words, options);
  }

  /** Changes the law by which blocks are sent ahead, also while a VM writes the volume: K·fr/fw + fr if fr/fw ≥ S. */
  async tuneVolume(
    name: string,
    options: CallOptions & { k?: number; s?: number } = {},
  ): Promise<VolumeView> {
    const words = { path: { name }, body: { k: options.k ?? null, s: options.s ?? null } };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/tune", words, options);
  }

  /** Has these hosts hold every flush of a volume; none of them ends it. */
  async mirrorVolume(
    name: string,
    hosts: string[],
    options: CallOptions & { away?: "wait" | "go-on" } = {},
  ): Promise<VolumeView> {
    const words = { path: { name }, body: { hosts, away: options.away ?? "wait" } };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/mirror", words, options);
  }

  /** Makes a copy that is held for another host a volume that is at home here; that host is fenced. */
  async promoteVolume(name: string, options?: CallOptions): Promise<VolumeView> {
    const words = { path: { name } };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/promote", words, options);
  }

  /** Moves a volume that no VM has, with its snapshots, to another host or node. */
  async moveVolume(
    name: string,
    to: string,
    options: CallOptions & { disk?: "auto" | "ahead" | "on-demand" } = {},
  ): Promise<VolumeMoved> {
    const words = { path: { name }, body: { to, disk: options.disk ?? "auto" } };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/move", words, options);
  }

  /** Moves a volume that no VM has here; in a cluster, from the node that has it. */
  async bringVolume(
    name: string,
    options: CallOptions & { from?: string; disk?: "auto" | "ahead" | "on-demand" } = {},
  ): Promise<VolumeMoved> {
    const words = {
      path: { name },
      body: { from: options.from ?? null, disk: options.disk ?? "auto" },
    };
    return await call(this.#endpoint, "post", "/v1/volumes/{name}/bring", words, options);
  }

  /** Links to other hosts, with their budgets and what was sent today. */
  async links(options?: CallOptions): Promise<LinkView[]> {
    return await call(this.#endpoint, "get", "/v1/links", {}, options);
  }

  /**
   * Bounds what is sent to a host of volumes' blocks that nothing waits for: `rate` as "20mbit", `daily` bytes, `money` a
   * day at `price` for 10^9 bytes. What is left out has no bound.
   */
  async setLinkBudget(host: string, options: CallOptions & LinkBudget = {}): Promise<LinkView> {
    const { signal, timeoutMs, ...body } = options;
    return await call(this.#endpoint, "put", "/v1/links/{host}/budget", { path: { host }, body }, { signal, timeoutMs });
  }

  /** Removes a volume that no VM has, with its snapshots. */
  async removeVolume(name: string, options?: CallOptions): Promise<void> {
    await call(this.#endpoint, "delete", "/v1/volumes/{name}", { path: { name } }, options);
  }
}

/** A store by its address, or a folder of the host by its path. */
function place(to: string): { store: string } | { folder: string } {
  return to.includes("://") ? { store: to } : { folder: to };
}
