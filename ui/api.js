// The HTTP API. The token stays in this tab's session and goes out in headers alone, never in a URL.

const KEY = "forkyard-token";

/** An error as the API tells of it: what happened and why, and what to do. */
export class ApiError extends Error {
  constructor({ kind, message, hint }, status = 0) {
    super(message);
    this.kind = kind;
    this.hint = hint ?? null;
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Called with the error when a token does not hold (any more). */
export const refused = { tell: () => {} };

/** Path of a VM's route; `rest` is appended as it is. */
export function vmPath(vm, rest = "") {
  return `/v1/vms/${encodeURIComponent(vm)}${rest}`;
}

/** Sends a request; the response, whose body is not read yet. Throws ApiError if it is refused. */
export async function send(method, path, { body, type = "application/json", signal, headers = {} } = {}) {
  const all = { Authorization: `Bearer ${token.get() ?? ""}`, ...headers };
  if (body !== undefined) all["Content-Type"] = type;
  let response;
  try {
    response = await fetch(path, {
      method, body, signal, headers: all, cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError({
      kind: "unreachable",
      message: "forkyardd does not answer",
      hint: "see whether it runs (`systemctl status forkyardd`) and whether this computer reaches it",
    });
  }
  if (response.ok) return response;
  const error = await read(response);
  if (response.status === 401) refused.tell(error);
  throw error;
}

async function read(response) {
  try {
    return new ApiError(await response.json(), response.status);
  } catch {
    const message = `the answer to this request is ${response.status} and says nothing more`;
    return new ApiError({ kind: "host", message }, response.status);
  }
}

/** Sends a request with a body of JSON, if any; what the answer has. */
export async function call(method, path, json, options = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  const response = await send(method, path, { ...options, body });
  const text = await response.text();
  return text === "" ? null : JSON.parse(text);
}

/**
 * A WebSocket that is open; `heard` is called with each message. Throws ApiError if there is none: browsers do not tell why,
 * so the path of its VM is asked for the reason.
 */
export async function socket(path, heard) {
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  // A browser sets no other header of a WebSocket's request.
  const link = new WebSocket(url, ["forkyard.v1", `forkyard.token.${token.get() ?? ""}`]);
  link.addEventListener("message", ({ data }) => heard(JSON.parse(data)));
  await new Promise((done) => {
    link.addEventListener("open", done);
    link.addEventListener("close", done);
  });
  if (link.readyState === WebSocket.OPEN) return link;
  await call("GET", path.split("/").slice(0, 4).join("/"));
  throw new ApiError({
    kind: "unreachable",
    message: "no WebSocket could be opened",
    hint: "see whether a proxy between this computer and forkyardd passes WebSockets on",
  });
}

/** Pieces of a body, as they come. */
export async function* pieces(response) {
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // A reader that leaves early ends the request.
    reader.cancel().catch(() => {});
  }
}

/** Lines of a body, as they come. */
export async function* lines(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of pieces(response)) {
    const all = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = all.pop();
    yield* all;
  }
  if (rest !== "") yield rest;
}
