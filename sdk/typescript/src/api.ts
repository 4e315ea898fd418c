/** Calls that are one request and one answer of JSON, checked against the API's description. */

import type { Endpoint } from "./endpoint.js";
import type { paths } from "./generated.js";
import { type CallOptions, type Pieces, all, open, within } from "./http.js";

type Verb = "get" | "put" | "post" | "delete";
/** Paths that know a verb. */
type Path<V extends Verb> = { [P in keyof paths]: paths[P][V] extends object ? P : never }[keyof paths];
type Json<R> = R extends { content: { "application/json": infer T } } ? T : never;
type Success<R> = R extends { 200: infer A } ? A : R extends { 201: infer A } ? A : never;
/** What a request is answered with; nothing if the description names no JSON. */
export type Answer<P extends keyof paths, V extends Verb> = paths[P][V] extends { responses: infer R } ? Json<Success<R>> : never;
type Given<O, N extends "path" | "query"> = O extends { parameters: { [K in N]?: infer A } } ? A : never;
/** The same, of which some may be left open. */
type Open<A> = { [K in keyof A]: A[K] | undefined };
type Words<O> = ([Given<O, "path">] extends [never] ? { path?: never } : { path: Given<O, "path"> }) &
  ([Given<O, "query">] extends [never]
    ? { query?: never }
    : object extends Given<O, "query">
      ? { query?: Open<Given<O, "query">> }
      : { query: Open<Given<O, "query">> }) &
  (O extends { requestBody: { content: { "application/json": infer B } } } ? { body: B } : { body?: never });

/** A path of the API with its parameters filled in. */
export function filled(path: keyof paths, parts: object = {}, query: object = {}): string {
  const values = parts as Record<string, unknown>;
  const at: string = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values[name])));
  const words = new URLSearchParams();
  for (const [name, word] of Object.entries(query)) if (word !== undefined && word !== null) words.append(name, String(word));
  return String(words) ? `${at}?${words}` : at;
}

/** Sends a request and reads its answer. */
export async function call<V extends Verb, P extends Path<V>>(
  endpoint: Endpoint,
  verb: V,
  path: P,
  words: Words<paths[P][V]>,
  options: CallOptions = {},
): Promise<Answer<P, V>> {
  const { path: parts, query, body } = words as { path?: object; query?: object; body?: unknown };
  return await within(options, async (signal) => {
    const sent = body === undefined ? undefined : { json: body };
    const { request, answer } = await open(endpoint, verb.toUpperCase(), filled(path, parts, query), sent, signal);
    try {
      const said = await all(answer, signal);
      return (said.length > 0 ? JSON.parse(said.toString()) : null) as Answer<P, V>;
    } finally {
      request.destroy();
    }
  });
}

/** Sends content as the body of a request and reads its answer, of JSON. */
export async function put(endpoint: Endpoint, path: string, sent: { content: Pieces }, options: CallOptions): Promise<unknown> {
  return await within(options, async (signal) => {
    const { request, answer } = await open(endpoint, "PUT", path, sent, signal);
    try {
      return JSON.parse((await all(answer, signal)).toString());
    } finally {
      request.destroy();
    }
  });
}
