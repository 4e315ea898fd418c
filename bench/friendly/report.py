"""What measurements come to: a row for each load and kind, tables, goals, plots.

The fairness index is the paper's, FI = 1 - |x - o| / |o|: x is what each guest got done, o what it would of a fair and efficient
host: an equal share of the most that was reached at that load, where its guests had all the memory they want as well, or fixed
numbers of threads were tried, else at any load of that part; in the same round, for the machine may be a tenth faster in the next; and no more than it was asked for.
"""

import json
import math
import os
import statistics

import plot

KINDS = {"off": "no agent", "plain": "not adapted", "friendly": "adapted", "roomy": "memory for all"}
PARTS = {
    "guests": ("guests", "guests", "Guests, {threads} threads in each"),
    "threads": ("threads", "threads in each guest", "Two guests"),
    "apache": ("sessions", "sessions for each server", "Four guests with Apache"),
    "idle": ("guests", "guests", "Nothing is overloaded: {idle_guests} guests with {idle_threads} threads each"),
    "web-idle": ("sessions", "sessions for each server", "Nothing is overloaded: four guests with Apache"),
}
WEB = ("apache", "web-idle")
# Parts in which nothing is overloaded, and the kinds that take turns there; the first is what the other is compared with.
IDLE, TURNS = ("idle", "web-idle"), ("off", "friendly")
LEVELS = ("low", "moderate", "heavy")
FIXED = "fixed-"


def named(kind):
    """A kind, for people."""
    return KINDS.get(kind) or f"{kind.removeprefix(FIXED)} threads run in each"


def place(kind):
    """Where a kind stands among others."""
    return (list(KINDS).index(kind), 0) if kind in KINDS else (len(KINDS), int(kind.removeprefix(FIXED)))


def fairness(rates, fair):
    """The paper's index: 1 is fair and efficient."""
    if not fair:
        return None
    off = math.sqrt(sum((rate - fair) ** 2 for rate in rates))
    return 1 - off / (fair * math.sqrt(len(rates)))


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def fair_shares(part, about, runs):
    """Of a run, what each guest would get done of a fair and efficient host."""
    key = PARTS[part][0]
    tried = {run[key] for run in runs if run["kind"] == "roomy" or run["kind"].startswith(FIXED)}

    def fair(run):
        near = [one for one in runs if one["round"] == run["round"]]
        alike = [one for one in near if one[key] == run[key]] if run[key] in tried else near
        share = max(sum(one["rates"]) for one in alike) / run["guests"]
        asked = run["sessions"] / about["think"] if part in WEB else share
        return min(share, asked)

    return fair


def summed(part, about, runs):
    """A row for each load and kind: medians over rounds."""
    key = PARTS[part][0]
    cells = {}
    for run in runs:
        cells.setdefault((run[key], run["kind"]), []).append(run)
    fair = fair_shares(part, about, runs)

    rows = []
    for (load, kind), found in sorted(cells.items(), key=lambda cell: (cell[0][0], place(cell[0][1]))):
        vct = [median(seen) for run in found for seen in run["vct_ms"]]
        totals = [sum(run["rates"]) for run in found]
        row = dict(load=load, kind=kind, rounds=len(found), throughput=median(totals), least=min(totals), most=max(totals))
        row.update(fairness=median(fairness(run["rates"], fair(run)) for run in found), vct=median(vct), read_back=median(run["read_back"] for run in found))
        row["waited"] = median(statistics.mean(run["waited"]) for run in found if "waited" in run)
        rows.append(row)
    base = base_of(part)
    for row in rows:
        row["ratio"] = median(ratios(cells[row["load"], row["kind"]], cells.get((row["load"], base), [])))
    return rows


def base_of(part):
    """The kind that others are compared with."""
    return TURNS[0] if part in IDLE else "plain"


def ratios(runs, bases):
    """Of each to the one of the same round: what the machine does meanwhile, it does to both."""
    total = {run["round"]: sum(run["rates"]) for run in bases}
    pairs = [(sum(run["rates"]), total.get(run["round"])) for run in runs]
    return [one / base for one, base in pairs if base]


def text(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def table(part, about, rows):
    key, across, title = PARTS[part]
    what = "pages/s" if part in WEB else "jobs/s"
    base = KINDS[base_of(part)]
    lines = [
        "## " + title.format(**about),
        "",
        f"| {across} | kind | {what} in all | least, most | against {base} | fairness index | VCT ms | pages read back/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    if part == "web-idle":
        lines[-2:] = [lines[-2] + " seconds for a page |", lines[-1] + "---|"]
    for row in rows:
        load = row["load"]
        if part == "apache" and load in about["sessions"]:
            load = f"{load} ({LEVELS[about['sessions'].index(load)]})" if len(about["sessions"]) == len(LEVELS) else load
        spread = f"{text(row['least'], 2)}, {text(row['most'], 2)}"
        cells = [load, named(row["kind"]), text(row["throughput"], 2), spread, text(row["ratio"], 3)]
        cells += [text(row["fairness"], 3), text(row["vct"], 1), text(row["read_back"], 0)]
        if part == "web-idle":
            cells.append(text(row.get("waited"), 3))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    settings = ["memory", "disk_reads", "law", "settle", "seconds"]
    said = ", ".join(f"{name.replace('_', ' ')} {about[name]}" for name in settings)
    lines += ["", f"{rows[0]['rounds']} rounds; {said}; {about['kernel']}, {about['cpus']} CPUs.", ""]
    return "\n".join(lines)


def goals(results):
    """The goals, as far as these measurements tell."""
    lines = ["## Goals", "", "| goal | measured |", "|---|---|"]

    def ratio(part, load):
        found = [row for row in results.get(part, []) if row["kind"] == "friendly" and row["load"] == load]
        return found[0]["ratio"] if found else None

    most = max((row["load"] for row in results.get("guests", [])), default=None)
    gain = ratio("guests", most)
    lines.append(f"| throughput at six guests at least 4 times | {text(gain, 2)} at {most or 'no'} guests |")
    unfair = []
    for part in ("guests", "threads", "apache"):
        pairs = {}
        for row in results.get(part, []):
            pairs.setdefault(row["load"], {})[row["kind"]] = row["fairness"]
        for load, of in pairs.items():
            if of.get("plain") is not None and of["plain"] < 0.6 and of.get("friendly") is not None:
                unfair.append(f"{of['friendly']:.2f} ({load} {PARTS[part][1]}; {of['plain']:.2f} unadapted)")
    lines.append(f"| fairness at least 0.9 where the unadapted is below 0.6 | {', '.join(unfair) or 'it never is'} |")
    lost = []
    for part in IDLE:
        rows = [row for row in results.get(part, []) if row["kind"] == "friendly" and row["ratio"]]
        lost += [f"{100 * (1 - row['ratio']):.1f} % ({row['load']} {PARTS[part][1]})" for row in rows]
    lines.append(f"| at most 2 % lost where nothing is overloaded | {', '.join(lost) or '–'} |")
    return "\n".join(lines) + "\n"


def rates_of(progress):
    """Work a second between one report and the next."""
    pairs = zip(progress, progress[1:])
    return [(b[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairs if b[0] > a[0]]


def fairness_of(run, fair):
    """The fairness index of what is done between one report and the next, over time. Guests report at much the same times."""
    lines = [rates_of(one) for one in run["progress"]]
    return [(step[0][0], max(fairness([rate for _, rate in step], fair), 0)) for step in zip(*lines)]


def over_time(part, about, runs, out):
    """The last round of each load, as in the paper's figures 8 and 9: a line for each guest, a panel for each kind; and the
    fairness index."""
    key = PARTS[part][0]
    loads = sorted({run[key] for run in runs})
    fair = fair_shares(part, about, runs)
    for load in loads if part == "apache" else loads[-1:]:
        chosen = {run["kind"]: run for run in runs if run[key] == load}
        each = lambda of: lambda run: [(f"guest {n + 1}", line) for n, line in enumerate(of(run))]
        for what, lines, title in (
            ("throughput", each(lambda run: map(rates_of, run["progress"])), "pages a second" if part == "apache" else "jobs a second"),
            ("fairness", lambda run: [("all guests", fairness_of(run, fair(run)))], "fairness index"),
            ("vct", each(lambda run: [[(s[0], s[1]) for s in seen if s[1]] for seen in run["seen"]]), "virtual clock time, ms"),
            ("allowed", each(lambda run: [[(s[0], s[2]) for s in seen if s[2]] for seen in run["seen"]]), "threads that may run"),
        ):
            kinds = [kind for kind in KINDS if kind in chosen and (what != "allowed" or kind == "friendly")]
            panels = [(f"{KINDS[kind]}: {title}", lines(chosen[kind])) for kind in kinds]
            name = f"friendly-{part}-{load}-{what}-over-time.svg"
            (out / name).write_text(plot.plot(panels, "seconds", dots=False))


def plots(part, about, rows, runs, out):
    _, across, _ = PARTS[part]
    for what, title in (("throughput", "All guests: work a second"), ("fairness", "Fairness index"), ("vct", "Virtual clock time, ms")):
        lines = [
            (KINDS[kind], [(row["load"], row[what]) for row in rows if row["kind"] == kind and row[what] is not None])
            for kind in ("plain", "friendly", "roomy")
        ]
        lines = [(name, points) for name, points in lines if points]
        (out / f"friendly-{part}-{what}.svg").write_text(plot.plot([(title, lines)], across, dots=True))
    over_time(part, about, runs, out)


def write(part, about, runs, out):
    """A part's own files."""
    rows = summed(part, about, runs)
    (out / f"friendly-{part}.json").write_text(json.dumps(dict(part=part, about=about, rows=rows, runs=runs)) + "\n")
    if part not in IDLE:
        plots(part, about, rows, runs, out)


def read(part, out):
    """What was written of a part before, if anything was."""
    file = out / f"friendly-{part}.json"
    return json.loads(file.read_text()) if file.exists() else None


def write_all(out):
    """The tables of all parts that there are, whenever they were measured."""
    tables, results = [], {}
    for part in PARTS:
        found = read(part, out)
        if found:
            results[part] = found["rows"]
            tables.append(table(part, found["about"], found["rows"]))
    tables.append(goals(results))
    (out / "friendly.md").write_text("\n".join(tables))
    return "\n".join(tables)
