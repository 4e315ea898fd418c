// Events of the host: server-sent events, read by fetch, since EventSource sends no token.
//
//   connect --> read --break--> wait --> connect, from the last id on
//
// The position outlives a break, so nothing is missed but what the daemon says it has dropped (`lagged`).

import { lines, send } from "./api.js";
import { sleep } from "./dom.js";

/** Longest silence of a stream that is still taken for alive: the daemon speaks every 15 seconds. */
const SILENCE = 40_000;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;

/**
 * Reads events until `signal` is aborted. `on.event(event)` for each, `on.live()` once connected, also again after a
 * break, `on.broken(error)` when the connection is gone.
 */
export async function follow(on, signal) {
  let position = null;
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const give = () => attempt.abort();
    signal.addEventListener("abort", give);
    let watchdog;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(give, SILENCE);
    };
    try {
      const headers = position === null ? {} : { "Last-Event-ID": position };
      alive();
      const response = await send("GET", "/v1/events", { signal: attempt.signal, headers });
      on.live();
      wait = FIRST_WAIT;
      for await (const { id, data } of blocks(lines(response), alive)) {
        if (data !== "") on.event(JSON.parse(data));
        if (id !== null) position = id;
      }
      on.broken(null);
    } catch (error) {
      if (signal.aborted) return;
      on.broken(error);
      if (error.status === 401) return;
    } finally {
      clearTimeout(watchdog);
      signal.removeEventListener("abort", give);
      attempt.abort();
    }
    await sleep(wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

/** Blocks of a stream of server-sent events. */
async function* blocks(lines, alive) {
  let id = null;
  let data = [];
  for await (const line of lines) {
    alive();
    if (line === "") {
      yield { id, data: data.join("\n") };
      id = null;
      data = [];
    } else if (line.startsWith("id: ")) {
      id = line.slice(4);
    } else if (line.startsWith("data: ")) {
      data.push(line.slice(6));
    }
  }
}
