/**
 * Run virtual machines, and fork them while they run.
 *
 *     import { Forkyard } from "forkyard";
 *
 *     const fy = new Forkyard();
 *     await using vm = await fy.run("tiny");          // removed at the end of the block
 *     await vm.exec(["sh", "-c", "echo warm >/state"], { check: true });
 *     await using clones = await vm.fork(2);
 *     const [a] = clones;                             // PartialFork if one is missing
 *     console.log((await a!.exec(["cat", "/state"])).text);
 *
 * @packageDocumentation
 */

export { Forkyard, type Selection } from "./client.js";
export type { EndpointOptions } from "./endpoint.js";
export { CommandFailed, ForkyardError, type Kind, NotStarted, PartialFork, Unreachable } from "./errors.js";
export { type Event, Events, type EventsOptions, type Happened, type What } from "./events.js";
export { Files, type ReadOptions, type WriteOptions } from "./files.js";
export type { CallOptions, Pieces } from "./http.js";
export { type Output, Process, type Signal } from "./process.js";
export { ExecResult, Forked } from "./results.js";
export { Stream } from "./stream.js";
export { type CommandOptions, type ExecOptions, type FollowOptions, type StartOptions, type Used, Vm } from "./vm.js";
/** Every type of the API, as its description has it. */
export type * as api from "./generated.js";
