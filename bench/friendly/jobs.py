"""The paper's section 5.1: guests with many threads, each of which reads 1 MB from a file, computes, and writes it to another.

The files are in the guest's memory (tmpfs), so that memory and CPUs are all that is scarce.
"""

import os
import statistics
import subprocess
import threading
import time

import host as hosts
import report

JOB, FOLDER, STATUS = "/bin/job", "/jobs", "/opt/forkyard/friendly/status.json"
# Whose job ends once it is there, in that folder.
END = "end"
# What each kind is told last. Where nothing is ever called congestion, and those who work are never stopped nor counted,
# the agent only measures.
TOLD = {
    "plain": ["monitor.threshold=1000000", 'monitor.signals=["vct"]', 'threads.exempt=["job", "apache2", "page"]'],
    # What ends the job is not to wait for its turn among its threads.
    "friendly": ['threads.exempt=["report", "touch"]'],
}
# Those that have all the memory they want: what the host gets done if it is only shared, with nothing to adapt to.
TOLD["roomy"] = TOLD["plain"]
ROOMY_SETTLE = 10
# Jobs start all their threads at once, and end if they may not; a server that may not answers with errors.
ALL = 'threads.new="wait"'
# MiB that a guest needs for itself, and for each thread: a chunk and two files.
BASE, EACH = 112, 3.3


def told(kind):
    """What agents of a kind are told last."""
    if kind in TOLD:
        return TOLD[kind]
    # So many threads and no more, whatever is sensed: what a law could do at best.
    number = kind.removeprefix(report.FIXED)
    return [f"threads.start={number}", f"threads.most={number}", "monitor.threshold=1000000", *TOLD["friendly"]]


def mib(threads):
    return int(BASE + EACH * threads)


def boot(host, count, threads):
    """Guests that can run the job in so many threads."""
    program = str(hosts.compiled("job.c", host.folder / "job"))
    for number in range(count):
        name = f"f{number}"
        host.run(name, "tiny", mib(threads))
        host.ok("cp", program, f"{name}:{JOB}")
        ready = f"chmod 755 {JOB} && mkdir {FOLDER} && mount -t tmpfs -o size=95% jobs {FOLDER}"
        host.ok("exec", name, "--", "sh", "-c", ready)
    return host.names


def tell(host, vms, kind, options, group="exec"):
    """Anew, so that nobody begins with what was learnt of another load."""
    for vm in vms:
        host.ok("friendly", "set", vm, "--off")
        if kind == "off":
            continue
        # From the usual constants on: what the other kind was told stays else, its threshold that is never reached above all.
        anew = ["--config", os.devnull, "--law", options.law]
        host.ok("friendly", "set", vm, "--group", group, *anew, ALL, *options.constants, *told(kind))


class Run(threading.Thread):
    """The job in one guest: its progress, seconds since it began and jobs done; when that was heard here; and what the agent said."""

    def __init__(self, host, vm, words):
        super().__init__(daemon=True)
        self.vm, self.progress, self.seen, self.heard = vm, [], [], []
        self.process = host.start("exec", vm, "--", *words)

    def run(self):
        for line in self.process.stdout:
            at, done, vct, allowed, duty = map(float, line.split())
            if vct:
                self.seen.append([at, vct, allowed * duty])
            self.heard.append([time.monotonic(), done])
            self.progress.append([at, done])

    def end(self, patience):
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit(f"bench-friendly: the job in {self.vm} did not end in {patience:.0f} s") from None
        self.join()
        if self.process.returncode:
            raise SystemExit(f"bench-friendly: the job failed in {self.vm}")


def rate(progress, settle, seconds):
    """Jobs a second in these seconds. One report may be late: what is after the end is not counted."""
    inside = [one for one in progress if settle <= one[0] <= settle + seconds + 1]
    if len(inside) < 2:
        inside = progress
    (begun, had), (end, done) = inside[0], inside[-1]
    return (done - had) / (end - begun)


def begin(host, vms, threads, seconds, every):
    """Starts the job in each."""
    for vm in vms:
        host.ok("exec", vm, "--", "sh", "-c", f"rm -f {FOLDER}/*")
    words = [JOB, str(threads), str(seconds), str(every), FOLDER, STATUS]
    runs = [Run(host, vm, words) for vm in vms]
    for one in runs:
        one.start()
    # They write their files before they begin, and all begin before memory is short.
    waited = time.monotonic()
    while any(one.is_alive() and not one.progress for one in runs) and time.monotonic() - waited < hosts.PATIENCE:
        time.sleep(0.2)
    return runs


def done_by(heard, moment):
    """Jobs done by then: between two reports, as if at a steady pace."""
    after = next((n for n, one in enumerate(heard) if one[0] > moment), len(heard) - 1)
    (begun, had), (end, done) = heard[max(after - 1, 0)], heard[after]
    return done if end <= begun else had + (done - had) * (moment - begun) / (end - begun)


class Turns:
    """While work goes on, the agents of some guests are of one kind and those of the others of another, by turns: what differs by
    little is compared between guests at one moment, and each with itself a moment later, for a machine may be half as fast ten
    minutes later. As many rounds as there is time for: `settle` is what it may take to start or to end agents."""

    def __init__(self, kinds, rounds, settle, seconds):
        self.kinds, self.seconds, self.spans = kinds, seconds, 2 * rounds
        self.length = self.spans * (settle + seconds)
        self.ends = []

    def take(self, host, vms, options, group):
        """Blocks for `length` seconds, or a little less."""
        due = time.monotonic() + self.length
        for span in range(self.spans):
            for number, vm in enumerate(vms):
                tell(host, [vm], self.kinds[(number + span) % 2], options, group)
            end = time.monotonic() + self.seconds
            if end > due:
                break
            self.ends.append(end)
            time.sleep(self.seconds)

    def compared(self, done, vms, about, waited=None):
        """A run for each kind in each round, if so much was `done(guest, moment)`, and `waited(guest, begun, end)` are the seconds that
        those waited who got something then."""
        for turn in range(len(self.ends) // 2):
            for which, kind in enumerate(self.kinds):
                # In the round's first span guest n was of kind n, in its second of the other.
                at = [self.ends[2 * turn + (number + which) % 2] for number in range(len(vms))]
                rates = [(done(number, end) - done(number, end - self.seconds)) / self.seconds for number, end in enumerate(at)]
                run = dict(about, guests=len(vms), kind=kind, rates=rates, read_back=0, vct_ms=[], round=turn)
                if waited:
                    run["waited"] = [statistics.mean(waited(number, end - self.seconds, end) or [0]) for number, end in enumerate(at)]
                yield run


def switched(host, vms, threads, options, turns):
    """One job in each guest, meanwhile kinds take turns."""
    runs = begin(host, vms, threads, turns.length, 1)
    turns.take(host, vms, options, "exec")
    for one in runs:
        one.end(hosts.PATIENCE)
    yield from turns.compared(lambda number, moment: done_by(runs[number].heard, moment), vms, dict(threads=threads))


def measure(host, vms, kind, threads, options, settle, seconds):
    """What each guest gets done in a second, and what is seen of it meanwhile, over time."""
    tell(host, vms, kind, options)
    if kind == "roomy":
        settle = min(settle, ROOMY_SETTLE)
    # Until it is told to end: how long it takes to page out is not known.
    runs = begin(host, vms, threads, settle + seconds + 2 * hosts.PATIENCE, min(5, seconds / 2))
    begun = time.monotonic()
    if kind != "roomy":
        host.squeeze()
        settle += time.monotonic() - begun
    back, since = host.group.read_back(), time.monotonic()
    due = begun + settle + seconds
    while time.monotonic() < due and any(one.is_alive() for one in runs):
        time.sleep(1)
    back = (host.group.read_back() - back) / (time.monotonic() - since)
    host.relax()
    for vm in vms:
        host.ok("exec", vm, "--", "touch", f"{FOLDER}/{END}")
    for one in runs:
        one.end(hosts.PATIENCE)
    return dict(
        guests=len(vms),
        threads=threads,
        kind=kind,
        rates=[rate(one.progress, settle, seconds) for one in runs],
        read_back=back,
        vct_ms=[[seen[1] for seen in one.seen if settle <= seen[0] <= settle + seconds] for one in runs],
        progress=[one.progress for one in runs],
        seen=[one.seen for one in runs],
    )
