"""The memory of the host that the guests share, and no more of it than they are to have.

    paged.c, loaded into QEMU --> a guest's memory is a file of a tmpfs, mapped shared
    Group: a control group with all QEMUs in it, of cgroup v1 or v2
    Keeper: a thread that keeps its limit at what QEMUs need for themselves, and so much more for guests
    Swap: a file, while memory is scarce

Over the limit the kernel writes pages to swap, and whoever touches one waits for the disk. That guests' memory is files tells
it from what else QEMUs have.
"""

import os
import pathlib
import subprocess
import threading
import time

MIB = 1 << 20
# What QEMUs have of memory, but for their guests'.
OWN = {1: "total_rss", 2: "anon"}
PAGE = 4096


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
            if "blkio" not in mounted:
                raise Missing("cgroup v1 without blkio: what is read back can be neither counted nor slowed down")
            self.memory, self.blkio = mounted["memory"] / instance, mounted["blkio"] / instance
        else:
            controllers = mounted["v2"] / "cgroup.controllers" if "v2" in mounted else None
            if not controllers or "memory" not in controllers.read_text().split():
                raise Missing("no cgroup hierarchy of this host limits memory")
            self.root = mounted["v2"]
            self.memory = self.blkio = self.root / instance
            self.shared = self.root / "cgroup.subtree_control"
            self.counted = "io" in self.shared.read_text().split()
            self.shared.write_text("+io")
        self.own = [self.memory, self.blkio] if self.version == 1 else []
        for path in self.own:
            path.mkdir(exist_ok=True)

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

    def own_needs(self):
        """Bytes of memory that QEMUs have for themselves."""
        said = dict(line.split() for line in (self.memory / "memory.stat").read_text().splitlines())
        kernel = self.memory / "memory.kmem.usage_in_bytes"
        kernel = int(kernel.read_text()) if self.version == 1 else int(said.get("kernel", 0))
        return int(said[OWN[self.version]]) + kernel

    def read_back(self):
        """Pages that have been read from disks. Nothing but swap is, once all have begun."""
        if self.version == 1:
            said = (self.blkio / "blkio.throttle.io_service_bytes_recursive").read_text().split()
            read = [int(value) for word, value in zip(said, said[1:]) if word == "Read"]
        else:
            said = (self.blkio / "io.stat").read_text().split()
            read = [int(word.removeprefix("rbytes=")) for word in said if word.startswith("rbytes=")]
        return sum(read) // PAGE

    def limit(self, bytes_for_guests):
        """Keeps the guests to so much; whether it has. Blocks while the kernel writes pages out; it may not manage at once."""
        file = self.memory / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")
        try:
            file.write_text(str(self.own_needs() + bytes_for_guests))
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
        if self.version == 1:
            (self.blkio / "blkio.throttle.read_iops_device").write_text(f"{disk} {reads_a_second}")
            return
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
                    time.sleep(0.1)  # A process in it is still ending.
                else:
                    break
        if self.version == 2 and not self.counted:
            try:
                self.shared.write_text("-io")
            except OSError:
                pass  # Another group counts by now.


class Swap:
    """Where pages are written that memory has no room for: a file, used before any other swap of the host."""

    def __init__(self, file):
        self.file = file

    def on(self, size):
        zswap = pathlib.Path("/sys/module/zswap/parameters/enabled")
        if zswap.exists() and zswap.read_text().strip() == "Y":
            raise Missing("this host has zswap, which keeps in memory what is to go to disk: echo N >" + str(zswap))
        with open(self.file, "wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, size)
        self.file.chmod(0o600)
        for words in (["mkswap", "-q", self.file], ["swapon", "-p", "32767", self.file]):
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"no swap here: {done.stderr.strip()}")

    def off(self):
        """Reads back what is in it, if anything is. Swap that stays on keeps its file: without, nobody could end it."""
        used = [line.split()[0] for line in pathlib.Path("/proc/swaps").read_text().splitlines()]
        if str(self.file) in used:
            subprocess.run(["swapoff", self.file], check=True)
        self.file.unlink(missing_ok=True)


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
