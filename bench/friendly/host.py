"""A host of the bench's own: it never meets VMs that you run.

Its daemon is in a mount namespace of its own, and its QEMUs have their guests' memory in files and share a limit (memory.py).
"""

import argparse
import fcntl
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import memory

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MIB = memory.MIB
FOLDER = "forkyard-bench-friendly."
# Where a guest's memory is found by paged.c.
MEMORY = "/dev/zero"
# What Forkyard loads into each QEMU.
LIBRARY = "libforkyard_track.so"
# Up to --: doors of groups. Then the daemon.
NAMESPACE = """
while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done
shift
exec "$@"
"""
START = 60
# Should the bench be killed: the daemon's number, and the image that is to go.
PID, IMAGE = "daemon.pid", "image"
# Seconds after which something that should have happened has failed.
PATIENCE = 600


def compiled(source, program, *how):
    how = how or ("-static", "-pthread")
    subprocess.run(["cc", "-O2", *how, "-o", program, HERE / source], check=True)
    return program


def folder_of_a_bench(where):
    """One of its own, locked while it lives. What benches have left that were killed goes first."""
    where = pathlib.Path(where or tempfile.gettempdir())
    for left in where.glob(FOLDER + "*"):
        about = left.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
            clear_up(left)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=FOLDER, dir=where))
    os.chmod(folder, 0o711)  # QEMU runs as nobody in particular, and must get through.
    lock(folder)
    return folder


def lock(folder):
    """Until this process ends; whether nobody else has."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return False
    return True


def clear_up(left):
    """Ends what a bench has left, unless it lives."""
    if not lock(left):
        return
    print(f"bench-friendly: removes what a bench that was killed has left in {left}", file=sys.stderr, flush=True)
    options = argparse.Namespace(keep_image=False, disk_reads=0)
    for folder in left.iterdir():
        host = Host(folder, options, 0)
        host.adopt()
        host.end()
    shutil.rmtree(left, ignore_errors=True)


class Daemon:
    """One that another process has started."""

    def __init__(self, pid, run):
        self.pid, self.run = pid, run

    def lives(self):
        try:
            return self.run.encode() in pathlib.Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False

    def terminate(self):
        if self.lives():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self):
        if self.lives():
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, patience=START):
        until = time.monotonic() + patience
        while self.lives():
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("forkyardd", patience)
            time.sleep(0.2)


class Host:
    """Used in a `with`: whatever happens, nothing of it is left."""

    def __init__(self, folder, options, shared, recipe=None):
        """All guests share so many MiB. `recipe` writes one into a folder of recipes, and says its name."""
        self.folder, self.options, self.shared, self.recipe = pathlib.Path(folder), options, shared, recipe
        self.image = None
        self.dist = pathlib.Path(os.environ.get("FORKYARD_DIST", ROOT / "target/dist"))
        self.program = str(self.dist / "bin/forkyard")
        self.daemon = self.group = self.keeper = None
        self.memory = self.folder / "memory"
        self.size = 0
        self.swap = memory.Swap(self.folder / "swap")
        self.names = []
        run = self.folder / "run"
        self.instance = "forkyard" + str(run).replace("/", "-")
        self.env = {
            **os.environ,
            "FORKYARD_RUN_DIR": str(run),
            "FORKYARD_STATE_DIR": str(self.folder / "state"),
            "FORKYARD_SHARE_DIR": str(self.folder / "share"),
            "FORKYARD_URL": f"unix://{run}/api.sock",
            "FORKYARD_ACCEL": "tcg",
            # Guests that thrash answer late.
            "FORKYARD_PATIENCE": "900",
        }

    def __enter__(self):
        self.folder.mkdir(mode=0o711)
        self.memory.mkdir(mode=0o711)
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def _start(self):
        self._share()
        self.group = memory.Group(self.instance)
        self.disk = memory.disk_of(self.folder)
        self._start_daemon()
        # Where nobody else sees it, and gone with the last process there: its pages go to swap, as guests' memory does.
        self._inside("mount", "-t", "tmpfs", "-o", "mode=0711,size=100%", "forkyard-bench", str(self.memory))

    def _start_daemon(self):
        doors = [str(door) for door in self.group.doors()]
        words = [str(self.dist / "bin/forkyardd"), "--run-dir", self.env["FORKYARD_RUN_DIR"]]
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh", *doors, "--", *words]
        env = {key: value for key, value in self.env.items() if key != "FORKYARD_URL"}
        self.log = open(self.folder / "daemon.log", "w")
        # In a session of its own: Ctrl-C is for the bench, which then ends it.
        self.daemon = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log, start_new_session=True)
        (self.folder / PID).write_text(str(self.daemon.pid))
        begun = time.monotonic()
        while subprocess.run([self.program, "ps"], env=self.env, capture_output=True).returncode:
            if self.daemon.poll() is not None or time.monotonic() - begun > START:
                said = (self.folder / "daemon.log").read_text()
                raise SystemExit(f"bench-friendly: the daemon did not start:\n{said[-2000:]}")
            time.sleep(0.2)

    def adopt(self):
        """Instead of entering it: what another bench has left there, to end it."""
        self.group = memory.Group(self.instance)
        if not (self.folder / PID).exists():
            return
        self.group.slow(memory.disk_of(self.folder), 0)
        self.group.unlimit()
        if (self.folder / IMAGE).exists():
            self.image = (self.folder / IMAGE).read_text()
        self.daemon = Daemon(int((self.folder / PID).read_text()), self.env["FORKYARD_RUN_DIR"])
        if self.daemon.lives():
            self.log = open(self.folder / "daemon.log", "a")
        else:
            # VMs outlive it. Another one ends them.
            self._start_daemon()

    def _share(self):
        """What is installed, and the recipe of this part besides."""
        share, installed = self.folder / "share", self.dist / "share/forkyard"
        if not installed.is_dir():
            raise memory.Missing(f"{installed} is missing: `cargo xtask dist` builds it, FORKYARD_DIST names another build")
        share.mkdir(mode=0o755)
        for entry in installed.iterdir():
            if entry.name not in ("images", LIBRARY):
                (share / entry.name).symlink_to(entry.resolve())
        # In the place of what notes writes for forks, which are not wanted here.
        compiled("paged.c", share / LIBRARY, "-shared", "-fPIC").chmod(0o755)
        shutil.copytree(installed / "images", share / "images")
        if self.recipe:
            self.image = self.recipe(share / "images")
            if not self.options.keep_image:
                (self.folder / IMAGE).write_text(self.image)

    def ok(self, *words, **more):
        return subprocess.run([self.program, *words], env=self.env, stdout=subprocess.PIPE, text=True, check=True, **more).stdout

    def start(self, *words):
        return subprocess.Popen([self.program, *words], env=self.env, stdout=subprocess.PIPE, text=True)

    def show(self, vm):
        """What the agent there says; nothing if it is too busy to."""
        words = [self.program, "friendly", "show", vm, "-o", "json"]
        try:
            said = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return {}
        return json.loads(said.stdout) if said.returncode == 0 else {}

    def _inside(self, *words, check=True):
        namespace = f"--mount=/proc/{self.daemon.pid}/ns/mnt"
        subprocess.run(["nsenter", namespace, *words], check=check, stderr=None if check else subprocess.DEVNULL)

    def run(self, name, image, mib, *words):
        """A VM of one vCPU, its memory in a file."""
        file = self.memory / name
        seen = pathlib.Path(f"/proc/{self.daemon.pid}/root{file}")
        with open(seen, "wb") as opened:
            # Whoever touches a page first is charged with it, and that is QEMU.
            opened.truncate(mib * MIB)
        seen.chmod(0o666)
        self.size += mib * MIB
        self._inside("mount", "--bind", str(file), MEMORY)
        try:
            self.ok("run", image, "--name", name, "--memory", str(mib), "--timeout", "900", *words)
        finally:
            self._inside("umount", MEMORY, check=False)
        maps = [pathlib.Path(f"/proc/{pid}/maps") for pid in self.group.members()]
        inode = f" {seen.stat().st_ino} "
        if not any(" rw-s " in line and inode in line for text in maps for line in text.read_text().splitlines()):
            raise SystemExit("bench-friendly: QEMU has not mapped its guest's memory from a file: is it older or newer than 7.2?")
        self.names.append(name)

    def settle(self):
        """All VMs are there: from now on the daemon and the pager are not limited with them."""
        self.group.send_out([pid for pid in self.group.members() if not self._is_qemu(pid)])

    def squeeze(self):
        """From now on all guests share so much memory, and so fast a disk. Waits until what they had beyond that is paged
        out, which is no part of what is measured."""
        if self.options.disk_reads:
            self.group.slow(self.disk, self.options.disk_reads)
        self.swap.on(self.size)
        self.keeper = memory.Keeper(self.group, self.shared * MIB)
        self.keeper.start()
        if not self.keeper.kept.wait(PATIENCE):
            raise SystemExit(f"bench-friendly: the disk has not taken what is paged out in {PATIENCE} s")

    def relax(self):
        """They have what they want: what prepares a measurement, and clears up after it, is not to take for ever."""
        if self.keeper:
            self.keeper.end()
            self.keeper = None
        if self.options.disk_reads:
            self.group.slow(self.disk, 0)
        self.group.unlimit()
        self.swap.off()

    @staticmethod
    def _is_qemu(pid):
        try:
            return b"qemu" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            return True  # It has just ended.

    def end(self):
        """Not to be interrupted."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            self._end()
        finally:
            signal.signal(signal.SIGINT, before[0])
            signal.signal(signal.SIGTERM, before[1])

    def _end(self):
        try:
            if self.keeper:
                self.relax()
        finally:
            # Whatever became of swap: with them goes what is in it.
            self._end_vms()
        if self.group:
            self.group.remove()
        self.swap.off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_vms(self):
        if self.daemon:
            quietly = dict(env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            subprocess.run([self.program, "rm", "--all"], **quietly)
            if self.image and not self.options.keep_image:
                # Nobody else has a recipe of it.
                subprocess.run([self.program, "image", "rm", self.image], **quietly)
            # With no VM left, the pager goes with it.
            self.daemon.terminate()
            try:
                self.daemon.wait(START)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
            self.log.close()
