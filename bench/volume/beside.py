"""Measures forkyard-blockd, plain and encrypted, beside qemu-nbd, contenders taking turns within one run.

Each contender serves a disk of random content over a Unix socket; fio's NBD engine is the client of
all. A machine is never as fast as it was a minute ago: only ratios within a round are claims.
"""

import argparse
import glob
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time

# Name, fio's arguments, the figure (a direction and a key of fio's report), and what it is called.
JOBS = [
    ("read 4 KiB, depth 1", ["--rw=randread", "--bs=4k", "--iodepth=1"], "read", "latency"),
    ("read 4 KiB, depth 16", ["--rw=randread", "--bs=4k", "--iodepth=16"], "read", "iops"),
    ("read 4 KiB from disk, depth 16", ["--rw=randread", "--bs=4k", "--iodepth=16"], "read", "iops"),
    ("write 4 KiB, depth 1", ["--rw=randwrite", "--bs=4k", "--iodepth=1"], "write", "latency"),
    ("write 4 KiB, depth 16", ["--rw=randwrite", "--bs=4k", "--iodepth=16"], "write", "iops"),
    ("read 128 KiB in order, depth 4", ["--rw=read", "--bs=128k", "--iodepth=4"], "read", "bandwidth"),
    ("write 128 KiB in order, depth 4", ["--rw=write", "--bs=128k", "--iodepth=4"], "write", "bandwidth"),
    ("write 4 KiB and flush, depth 1", ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1"], "write", "iops"),
]
UNITS = {"latency": "µs", "iops": "1/s", "bandwidth": "MiB/s"}


class Volume:
    name, words = "volume", []

    def __init__(self, place, disk, size):
        self.socket = f"{place}/{self.name}.sock"
        self.files = f"{place}/{self.name}/d/*.seg"
        self.control = f"{place}/{self.name}.control"
        serve = ["serve", "--folder", f"{place}/{self.name}", "--nbd", self.socket]
        self.server = subprocess.Popen(self.command(*serve), stdout=subprocess.PIPE)
        assert self.server.stdout.readline() == b"ready\n"
        subprocess.run(self.command("import", "d", disk, *self.words), check=True)
        opened = subprocess.run(self.command("open", "d"), check=True, stdout=subprocess.PIPE, text=True)
        self.export = opened.stdout.strip()

    def command(self, *words):
        return ["forkyard-blockd", "--socket", self.control, *words]


class Encrypted(Volume):
    name, words = "encrypted", ["--encrypted"]


class Qemu:
    def __init__(self, place, disk, size):
        self.socket = f"{place}/{self.name}.sock"
        self.export = ""
        self.files = file = f"{place}/{self.name}.img"
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", self.form, disk, file], check=True)
        words = ["-f", self.form, "-k", self.socket, "-t", "-e", "16", "--cache=writeback", file]
        self.server = subprocess.Popen(["qemu-nbd", *words])
        while not os.path.exists(self.socket):
            time.sleep(0.01)


class Raw(Qemu):
    name, form = "raw", "raw"


class Qcow2(Qemu):
    name, form = "qcow2", "qcow2"


def evict(contender):
    """Takes a contender's files out of memory."""
    os.sync()
    for path in glob.glob(contender.files):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(contender, words, direction, figure, size, seconds):
    uri = f"nbd+unix:///{contender.export}?socket={contender.socket}"
    fio = ["fio", "--name=j", "--ioengine=nbd", f"--uri={uri}", f"--size={size}", "--time_based", "--randrepeat=0",
           f"--runtime={round(seconds * 1000)}ms", "--ramp_time=300ms", "--output-format=json", *words]
    done = subprocess.run(fio, check=True, stdout=subprocess.PIPE, text=True).stdout
    report = json.loads(done[done.index("{"):])["jobs"][0][direction]
    return {
        "latency": report["clat_ns"]["mean"] / 1000,
        "iops": report["iops"],
        "bandwidth": report["bw_bytes"] / 2**20,
    }[figure]


def ratios(rounds, one, other):
    """Median of the rounds' ratios of two contenders, and the lowest and highest of them."""
    found = sorted(it[one] / it[other] for it in rounds)
    return statistics.median(found), found[0], found[-1]


def table(results):
    head = ["", "volume", "raw", "qcow2", "volume / raw", "volume / qcow2", "encrypted", "encrypted / volume"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, (figure, rounds) in results.items():
        unit = UNITS[figure]
        middle = {who: statistics.median(one[who] for one in rounds) for who in rounds[0]}
        cells = [f"{middle[who]:.0f} {unit}" for who in ("volume", "raw", "qcow2")]
        for other in ("raw", "qcow2"):
            cells.append("{:.2f} ({:.2f} to {:.2f})".format(*ratios(rounds, "volume", other)))
        cells.append(f"{middle['encrypted']:.0f} {unit}")
        cells.append("{:.2f} ({:.2f} to {:.2f})".format(*ratios(rounds, "encrypted", "volume")))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="volume", help="where to write .json and .md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--mib", type=int, default=256, help="size of the disk")
    parser.add_argument("--only", default="", help="jobs whose names hold this")
    options = parser.parse_args()
    size = options.mib << 20
    place = tempfile.mkdtemp(prefix="forkyard-bench-volume.", dir="/var/tmp")
    contenders = []
    try:
        disk = f"{place}/disk.img"
        with open(disk, "wb") as file:
            for _ in range(options.mib):
                file.write(random.randbytes(1 << 20))
        for kind in (Volume, Encrypted, Raw, Qcow2):
            contenders.append(kind(place, disk, size))
        results = {}
        for number in range(options.rounds):
            for name, words, direction, figure in JOBS:
                if options.only not in name:
                    continue
                one = {}
                for it in random.sample(contenders, len(contenders)):
                    if "from disk" in name:
                        evict(it)
                    one[it.name] = measure(it, words, direction, figure, size, options.seconds)
                results.setdefault(name, (figure, []))[1].append(one)
                told = ", ".join(f"{it.name} {one[it.name]:.0f}" for it in contenders)
                print(f"round {number + 1}: {name}: {told} {UNITS[figure]}", flush=True)
        with open(options.out + ".json", "w") as file:
            json.dump({name: {"figure": figure, "rounds": rounds} for name, (figure, rounds) in results.items()}, file, indent=1)
        with open(options.out + ".md", "w") as file:
            file.write(table(results))
        print(table(results))
    finally:
        for it in contenders:
            it.server.terminate()
            it.server.wait()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
