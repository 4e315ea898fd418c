"""The memory of the host that the guests share, and no more of it than they are to have.

    paged.c, loaded into QEMU --> a guest's memory is a file, mapped shared
    Group: a control group with all QEMUs in it, of cgroup v1 or v2
    Keeper: a thread that keeps its limit at what QEMUs need for themselves, and so much more for guests

A host that has swap writes pages out when memory is short, and reads them back when they are touched. This does the same
without swap: over the limit, the kernel writes pages of these files out, and whoever touches one waits for the disk.
"""

import os
import pathlib
import subprocess
import threading
import time

MIB = 1 << 20
# What the kernel does not page out; pages that were missed soon after they had been paged out.
STATS = {1: ("total_rss", "total_workingset_refault_file"), 2: ("anon", "workingset_refault_file")}


class Missing(Exception):
    """What the bench needs and the host does not have."""


def hierarchies():
    """Where controllers of cgroup v1 are mounted, by name; cgroup v2 as "v2"."""
    found = {}
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, what = line.partition(" - ")
        at, kind, options = pathlib.Path(place.split(" ")[4]), what.split(" ")[0], what.split(" ")[2]
        if kind == "cgroup2":
            found.setdefault("v2", at)
        elif kind == "cgroup":
            found.update((name, at) for name in options.split(","))
    return found


def disk_of(path):
    """The whole disk that a folder is on, as MAJOR:MINOR."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    device = pathlib.Path("/sys/dev/block", name).resolve()
    if not device.exists():
        kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True).stdout.strip()
        raise Missing(f"{path} ({kind}) is on no disk of its own: name a folder on one by --folder")
    if (device / "partition").exists():
        name = (device.parent / "dev").read_text().strip()
    return name


class Group:
    """All QEMUs of a daemon. With cgroup v1 whoever the daemon starts is in it from the start; with v2 Forkyard has made it."""

    def __init__(self, instance):
        mounted = hierarchies()
        self.version = 1 if "memory" in mounted else 2
        if self.version == 1:
            self.memory = mounted["memory"] / instance
            self.blkio = mounted["blkio"] / instance if "blkio" in mounted else None
        else:
            controllers = mounted["v2"] / "cgroup.controllers" if "v2" in mounted else None
            if not controllers or "memory" not in controllers.read_text().split():
                raise Missing("no cgroup hierarchy of this host limits memory")
            self.root = mounted["v2"]
            self.memory = self.blkio = self.root / instance
        self.own = [self.memory, self.blkio] if self.version == 1 else []
        self.own = [path for path in self.own if path]
        for path in self.own:
            path.mkdir()

    def doors(self):
        """What a process writes 0 to, to be in it with all that it starts."""
        return [path / "cgroup.procs" for path in self.own]

    def members(self):
        """Processes in it, or in groups in it."""
        return [pid for file in self.memory.glob("**/cgroup.procs") for pid in file.read_text().split()]

    def send_out(self, pids):
        """Has processes be in it no longer."""
        for path in self.own:
            for pid in pids:
                try:
                    (path.parent / "cgroup.procs").write_text(str(pid))
                except ProcessLookupError:
                    pass  # It has ended.

    def stat(self):
        """What cannot be paged out, and pages that have been read back."""
        rss, back = STATS[self.version]
        said = dict(line.split() for line in (self.memory / "memory.stat").read_text().splitlines())
        kernel = self.memory / "memory.kmem.usage_in_bytes"
        kernel = int(kernel.read_text()) if self.version == 1 else int(said.get("kernel", 0))
        return int(said[rss]) + kernel, int(said[back])

    def read_back(self):
        return self.stat()[1]

    def limit(self, bytes_for_guests):
        """Keeps the guests to so much; whether it has. Blocks while the kernel writes pages out; it may not manage at once."""
        file = self.memory / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")
        try:
            file.write_text(str(self.stat()[0] + bytes_for_guests))
        except OSError:
            return False  # Busy: what is to be written out is not yet. The keeper asks again.
        return True

    def unlimit(self):
        if self.version == 1:
            (self.memory / "memory.limit_in_bytes").write_text("-1")
        else:
            (self.memory / "memory.max").write_text("max")

    def slow(self, disk, reads_a_second):
        """Has the disk answer so many reads a second, as one would that has to move its heads; 0: as it is."""
        if not self.blkio:
            raise Missing("cgroup v1 without blkio: the disk cannot be slowed down (--disk-reads 0)")
        if self.version == 1:
            (self.blkio / "blkio.throttle.read_iops_device").write_text(f"{disk} {reads_a_second}")
            return
        (self.root / "cgroup.subtree_control").write_text("+io")
        (self.blkio / "io.max").write_text(f"{disk} riops={reads_a_second or 'max'}")

    def remove(self):
        """Those that were made here; Forkyard removes its own."""
        for path in self.own:
            for _ in range(100):
                try:
                    path.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.1)  # Somebody is on his way out.
                else:
                    break


class Keeper(threading.Thread):
    """Keeps the limit while QEMUs' own needs grow."""

    def __init__(self, group, bytes_for_guests):
        super().__init__(daemon=True)
        self.group, self.bytes = group, bytes_for_guests
        self.kept, self.over = threading.Event(), threading.Event()

    def run(self):
        while True:
            if self.group.limit(self.bytes):
                self.kept.set()
            if self.over.wait(2):
                return

    def end(self):
        self.over.set()
        self.join()
