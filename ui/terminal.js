// Terminals: commands in guests, and serial consoles. What comes from there is hostile; xterm.js draws it as characters,
// and opens no link.
//
//   shell    POST exec, or sessions/PID  ---> output, for as long as the view is open
//            WebSocket sessions/PID      <--- what is typed: browsers have no bodies that stream to a server. Output
//                                             stays with the other, which the server holds back while the page is busy
//   console  GET logs, POST console           one short request after the other
//
// A shell is a session (`keep`): it stays when the page goes, and clones have it.

import { ApiError, call, lines, pieces, send, socket, vmPath } from "./api.js";
import { el } from "./dom.js";

const LINES = "application/x-ndjson";
/** Sessions of this page, to be found again. */
export const TAG = "page";
/** Most bytes in one message of input. */
const PIECE = 32 << 10;
/** Bytes of input that may be on their way to a command that does not read them. */
const WINDOW = 256 << 10;

const SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi"];

let loaded = null;

/** xterm.js, fetched when the first terminal is opened. */
function xterm() {
  loaded ??= (async () => {
    fitIn();
    const [{ Terminal }, { FitAddon }] = await Promise.all([
      import("./vendor/xterm/xterm.mjs"), import("./vendor/xterm/addon-fit.mjs"),
    ]);
    return { Terminal, FitAddon };
  })();
  return loaded;
}

/**
 * Has xterm.js keep to the page's policy, which refuses inline styles. It writes its theme and the size of its
 * characters into `style` elements, and colours into `style` attributes; through the object model both are allowed.
 */
function fitIn() {
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    // Even an empty `style` element is refused: in its place stands one that nothing shows of.
    return name === "style" ? adopt(create("template")) : create(name, options);
  };
  const set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}

function adopt(node) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(node, "textContent", {
    get: () => "",
    set: (text) => sheet.replaceSync(text),
  });
  const remove = node.remove.bind(node);
  node.remove = () => {
    const sheets = document.adoptedStyleSheets;
    document.adoptedStyleSheets = [...sheets].filter((one) => one !== sheet);
    remove();
  };
  return node;
}

/** One terminal on the page, and what it is connected to, until it is closed. */
export class View {
  #place;
  #note;
  #terminal = null;
  #fit = null;
  #watch = null;
  #ending = new AbortController();

  /** In `place`; `note` is where to tell how it stands. */
  constructor(place, note) {
    this.#place = place;
    this.#note = note;
  }

  get signal() {
    return this.#ending.signal;
  }

  async open(label) {
    const { Terminal, FitAddon } = await xterm();
    if (this.signal.aborted) return false;
    this.#terminal = new Terminal({
      fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
      fontSize: 13,
      scrollback: 5000,
      cursorBlink: false,
      convertEol: false,
      theme: { background: "#15181d", foreground: "#dfe3e8", cursor: "#dfe3e8", selectionBackground: "#3c5a80" },
      // Links are what a guest says: they lead nowhere.
      linkHandler: { activate: () => {}, allowNonHttpProtocols: false },
    });
    this.#fit = new FitAddon();
    this.#terminal.loadAddon(this.#fit);
    // Shift+Tab and Tab are the page's where one would be caught otherwise; Tab itself is the shell's.
    this.#terminal.attachCustomKeyEventHandler((event) => !(event.key === "Tab" && event.shiftKey));
    this.#terminal.open(this.#place);
    this.#terminal.textarea?.setAttribute("aria-label", label);
    this.#fit.fit();
    this.#watch = new ResizeObserver(() => this.#fit.fit());
    this.#watch.observe(this.#place);
    return true;
  }

  get size() {
    return { rows: this.#terminal.rows, cols: this.#terminal.cols };
  }

  write(bytes) {
    return new Promise((done) => this.#terminal.write(bytes, done));
  }

  ontyped(listener) {
    const encoder = new TextEncoder();
    this.#terminal.onData((text) => listener(encoder.encode(text)));
    this.#terminal.onBinary((text) => listener(Uint8Array.from(text, (char) => char.charCodeAt(0))));
  }

  onresized(listener) {
    this.#terminal.onResize(listener);
  }

  focus() {
    this.#terminal?.focus();
  }

  tell(text) {
    this.#note.textContent = text;
  }

  /** What it shows, as text: for tests and for copying. */
  get text() {
    const buffer = this.#terminal?.buffer.active;
    if (!buffer) return "";
    const rows = [];
    for (let row = 0; row < buffer.length; row += 1) rows.push(buffer.getLine(row).translateToString(true));
    return rows.join("\n");
  }

  close() {
    this.#ending.abort();
    this.#watch?.disconnect();
    this.#terminal?.dispose();
    this.#place.replaceChildren();
  }
}

/** Sends what is typed in order, one request at a time; what comes meanwhile goes along with the next. */
class Typed {
  #send;
  #waiting = [];
  #busy = false;
  #signal;
  #failed;

  constructor(send, signal, failed) {
    this.#send = send;
    this.#signal = signal;
    this.#failed = failed;
  }

  push(one) {
    this.#waiting.push(one);
    if (!this.#busy) this.#pump();
  }

  async #pump() {
    this.#busy = true;
    while (this.#waiting.length > 0 && !this.#signal.aborted) {
      const all = this.#waiting;
      this.#waiting = [];
      try {
        await this.#send(all);
      } catch (error) {
        if (!this.#signal.aborted) this.#failed(error);
        this.#waiting = [];
      }
    }
    this.#busy = false;
  }
}

/**
 * Sends input to a session, over a connection that is made when there is some, and again if it broke. No more is on its
 * way than the session takes: what is pasted to a command that does not read stays here.
 */
class Input {
  #path;
  #failed;
  #waiting = [];
  #under_way = 0;
  #link = null;
  #open = false;
  #over = false;

  constructor(path, signal, failed) {
    this.#path = path;
    this.#failed = failed;
    signal.addEventListener("abort", () => this.end());
  }

  type(bytes) {
    for (let at = 0; at < bytes.length; at += PIECE) {
      const piece = bytes.subarray(at, at + PIECE);
      this.#waiting.push({ length: piece.length, message: { stdin: packed(piece) } });
    }
    this.#send();
  }

  resize({ rows, cols }) {
    this.#waiting.push({ length: 0, message: { resize: { rows, cols } } });
    this.#send();
  }

  #send() {
    if (this.#over) return;
    if (!this.#link) this.#connect();
    while (this.#open && this.#waiting.length > 0 && this.#under_way < WINDOW) {
      const { length, message } = this.#waiting.shift();
      this.#link.send(JSON.stringify(message));
      this.#under_way += length;
    }
  }

  async #connect() {
    this.#link = {};
    try {
      const link = await socket(this.#path, (event) => this.#hear(event));
      if (this.#over) return link.close();
      link.addEventListener("close", () => {
        if (this.#link === link) this.#lose(new Error("the connection broke: type it again"));
      });
      this.#link = link;
      this.#open = true;
      this.#send();
    } catch (error) {
      this.#lose(error);
    }
  }

  #hear(event) {
    if (event.taken) {
      this.#under_way -= event.taken;
      this.#send();
    }
    if (event.exit) this.#over = true;
    const why = event.error ?? event.not_started;
    if (why) this.#lose(new ApiError({ kind: "guest", ...why }));
  }

  /** Tells why what waits is not typed. What closes behind that is no news. */
  #lose(error) {
    if (this.#link && !this.#over) this.#failed(error);
    if (this.#open) this.#link.close();
    this.#link = null;
    this.#open = false;
    this.#waiting = [];
    this.#under_way = 0;
  }

  end() {
    this.#over = true;
    if (this.#open) this.#link.close();
  }
}

/** Whether this is what a terminal answers by itself: where its cursor is, what it is, which colours it has. */
function isReply(bytes) {
  return /^\x1b(\[[?>]?[\d;]*\$?[Rcny]|\]|P)/.test(String.fromCharCode(...bytes.slice(0, 64)));
}

/** Sessions with a terminal that run in a VM. */
export async function shells(vm) {
  const all = await call("GET", vmPath(vm, "/sessions"));
  return all.filter((one) => one.tty && one.exit === null);
}

/** Ends a session and all that it started. */
export function endShell(vm, pid) {
  return call("DELETE", vmPath(vm, `/sessions/${pid}?signal=9`));
}

/**
 * Shows a session, as `shells` tells of it; a new shell if it is null. `started(pid)` once it runs. Returns when it is over,
 * or the view is closed.
 */
export async function showShell(view, vm, session, started) {
  const pid = session?.pid ?? null;
  // What the guest asked the terminal before (where is the cursor?) was answered then: it is not answered again.
  let old = session?.kept ?? 0;
  const body = pid === null
    ? `${JSON.stringify({ argv: SHELL, tty: view.size, keep: true, tag: TAG, env: [["TERM", "xterm-256color"]] })}\n`
    : undefined;
  const path = pid === null ? "/exec" : `/sessions/${pid}?output=true`;
  // With lines as its body a command's input stays open for what is sent apart.
  const response = await send("POST", vmPath(vm, path), { body: body ?? "\n", type: LINES, signal: view.signal });
  view.tell("connected");
  let input = null;
  for await (const line of lines(response)) {
    const event = JSON.parse(line);
    if (event.started) {
      const path = vmPath(vm, `/sessions/${event.started.pid}?output=false`);
      input = new Input(path, view.signal, (error) => view.tell(`not typed: ${error.message}`));
      view.ontyped((bytes) => (old > 0 && isReply(bytes)) || input.type(bytes));
      view.onresized((size) => input.resize(size));
      if (pid !== null) input.resize(view.size);
      started(event.started.pid);
    } else if (event.stdout) {
      const said = unpacked(event.stdout);
      await view.write(said);
      old -= said.length;
    } else if (event.exit) {
      const { code, signal } = event.exit;
      input?.end();
      return code === undefined ? `signal ${signal}` : `exit code ${code}`;
    } else if (event.not_started) {
      throw new ApiError({ kind: "guest", message: event.not_started.message });
    } else if (event.error) {
      throw new ApiError(event.error);
    }
  }
  throw new ApiError({
    kind: "guest", message: "the connection to the command broke", hint: "open the terminal again: the shell goes on",
  });
}

/** Shows a serial console. Returns when the VM has ended, or the view is closed. */
export async function showConsole(view, vm, follow) {
  if (follow) {
    const input = new Typed((all) => send("POST", vmPath(vm, "/console"), {
      body: Uint8Array.from(all.flatMap((one) => [...one])), type: "application/octet-stream", signal: view.signal,
    }), view.signal, (error) => view.tell(`not typed: ${error.message}`));
    view.ontyped((bytes) => input.push(bytes));
  }
  // Typed to before it is heard: a browser may hold an answer back until it has its first byte.
  const response = await send("GET", vmPath(vm, `/logs?follow=${follow}`), { signal: view.signal });
  for await (const piece of pieces(response)) await view.write(piece);
}

function unpacked(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

function packed(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

/** A place for a terminal. */
export function place() {
  return el("div", { class: "screen" });
}
