// A fork's report as a drawing: what its parent and its clones did, from the request on.
//
//   parent  ======running======|copied ahead|quiet|PAUSE|====running====
//   clones  |machines started|                          |load |identity|
//
// The report has lengths, and three times from the request; the image is published `load` before the last clone's
// vCPUs run, and what comes before that is laid out backwards.

import { bytes, count, el, span, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 92;
const LEFT = 58;
/** Narrowest part that can be seen. */
const LEAST = 3;

/** Parts of a fork, in microseconds from the request. */
export function parts(report) {
  const end = Math.max(report.ready_us, report.running_us, 1);
  const published = Math.max(0, report.running_us - report.load_us);
  const paused = Math.max(0, published - report.pause_us);
  const quiet = Math.max(0, paused - report.quiesce_us);
  const ahead = Math.max(0, quiet - report.ahead_us);
  return {
    end,
    parent: [
      { what: "ahead", from: ahead, to: quiet, name: "memory copied, parent runs" },
      { what: "quiet", from: quiet, to: paused, name: "guest asked to hold still" },
      { what: "pause", from: paused, to: published, name: "parent stands still" },
    ],
    clones: [
      { what: "shells", from: 0, to: report.shells_us, name: "machines started" },
      { what: "load", from: published, to: report.running_us, name: "loaded, vCPUs run" },
      { what: "identity", from: report.running_us, to: end, name: "identity, own code runs" },
    ],
  };
}

/** The drawing, and the figures under it. */
export function timeline(report, title) {
  const { end, parent, clones } = parts(report);
  const x = (us) => LEFT + (us / end) * (WIDTH - LEFT - 1);
  const bar = (part, top) => {
    const length = part.to - part.from;
    if (length <= 0) return null;
    const width = Math.max(LEAST, x(part.to) - x(part.from));
    const at = Math.min(x(part.from), WIDTH - width);
    return svg("rect", { class: part.what, x: at.toFixed(1), y: top, width: width.toFixed(1), height: 20, rx: 2 },
      titled(`${part.name}: ${span(length)}`));
  };
  const label = (text, top) => svg("text", { x: 0, y: top + 14 }, text);
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const at = x(part * end).toFixed(1);
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    return [
      svg("line", { class: "tick", x1: at, x2: at, y1: 4, y2: 70 }),
      svg("text", { class: "tick", x: at, y: 86, "text-anchor": anchor }, part === 0 ? "0" : span(Math.round(part * end))),
    ];
  });
  // A fork of a checkpoint takes nothing of a VM that runs.
  const stood = report.pause_us > 0;
  const still = stood ? `The parent stood still for ${span(report.pause_us)}` : "No VM stood still";
  const said = `${still}; the last clone was ready ${span(end)} after the request.`;
  const drawing = svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    ...ticks.flat(),
    ...(stood ? [
      svg("rect", { class: "running", x: LEFT, y: 8, width: WIDTH - LEFT - 1, height: 20, rx: 2 }, titled("parent runs")),
      label("parent", 8), ...parent.map((part) => bar(part, 8)),
    ] : [label("checkpoint", 8)]),
    label("clones", 40), ...clones.map((part) => bar(part, 40)));
  const legend = [...parent, ...clones].filter((part) => part.to > part.from).map((part) => el("li", {},
    el("span", { class: `key ${part.what}`, "aria-hidden": "true" }), `${part.name}: `,
    el("b", {}, span(part.what === "pause" ? report.pause_us : part.to - part.from))));
  return el("figure", { class: "fork" },
    el("figcaption", {}, el("b", {}, title), ` ${said}`),
    drawing,
    el("ul", { class: "legend" }, legend),
    stood ? el("p", { class: "small" },
      `In the pause: disk ${span(report.disk_us)}, devices ${span(report.descriptor_us)}, memory ${span(report.capture_us)}. `
      + `${count(report.pages_ahead ?? 0, "page")} copied ahead, ${report.pages_captured} of ${report.pages_scanned} in the pause; `
      + `device state ${bytes(report.descriptor)}; ${count(report.pages_fetched, "page")} read by the clones until then.`) : null);
}

function titled(text) {
  return svg("title", {}, text);
}
