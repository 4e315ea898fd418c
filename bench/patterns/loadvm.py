"""A plain QEMU that is reset by savevm and loadvm, with the target of examples/fuzz.c in it: no disk, no network, no agent."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading

# Each line of the console is a message; what the target answers follows.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /dev; mount -t devtmpfs dev /dev
stty -echo
ifconfig lo up
/target &
until printf '\\n' | nc 127.0.0.1 7000 >/dev/null 2>&1; do sleep 0.1; done
echo up
while read -r line; do printf '%s\\n' "$line" | nc 127.0.0.1 7000; done
"""


class Plain:
    """`busybox` and `target` are the guest's programs; its memory is as large as that of a VM that `run` makes."""

    def __init__(self, busybox, target, folder):
        home = pathlib.Path(folder, "plain")
        root = home / "root"
        (root / "bin").mkdir(parents=True)
        (root / "init").write_text(INIT)
        (root / "bin/busybox").write_bytes(busybox)
        shutil.copy(target, root / "target")
        for name in ("init", "bin/busybox", "target"):
            (root / name).chmod(0o755)
        names = "\n".join(str(path.relative_to(root)) for path in [root, *sorted(root.rglob("*"))])
        with open(home / "initrd", "w") as initrd:
            subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=root, input=names, stdout=initrd, text=True, check=True)
        # savevm wants a disk that keeps the state.
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", home / "state.qcow2", "1G"], check=True)
        self.qemu = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", os.environ["FORKYARD_ACCEL"], "-m", "256", "-nodefaults", "-display", "none"]
            + ["-kernel", kernel(), "-initrd", home / "initrd", "-append", "console=ttyS0 quiet"]
            + ["-drive", f"file={home}/state.qcow2,if=virtio,format=qcow2", "-serial", "stdio"]
            + ["-qmp", f"unix:{home}/qmp,server=on,wait=off"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self.read("up")
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(home / "qmp"))
                self.qmp = sock.makefile("rw")
            self.qmp.readline()
            self.tell("qmp_capabilities")
            self.tell("human-monitor-command", {"command-line": "savevm warm"})
        except BaseException:
            self.end()
            raise

    def tell(self, command, arguments=None):
        print(json.dumps({"execute": command, "arguments": arguments or {}}), file=self.qmp, flush=True)
        while "return" not in (answer := json.loads(self.qmp.readline())):
            if "error" in answer:
                raise SystemExit(f"QEMU refuses {command}: {answer['error']['desc']}")
        if answer["return"]:
            raise SystemExit(f"QEMU says to {command} {arguments}: {answer['return']}")

    def read(self, wanted):
        """Reads lines until one is as wanted, for two minutes at most."""
        patience = threading.Timer(120, self.qemu.kill)
        patience.start()
        while wanted not in (line := self.qemu.stdout.readline().decode(errors="replace")):
            if not line:
                raise SystemExit(f"the plain QEMU ended before it said {wanted!r}, or did not say it")
        patience.cancel()

    def execute(self):
        """Resets it, and sends a message that is answered so in the first state alone."""
        self.tell("human-monitor-command", {"command-line": "loadvm warm"})
        self.qemu.stdin.write(b"HELO a\n")
        self.qemu.stdin.flush()
        self.read("220 hello")

    def end(self):
        self.qemu.kill()
        self.qemu.wait()


def kernel():
    """The kernel that guests have."""
    cache = pathlib.Path(os.environ.get("FORKYARD_CACHE_DIR", "/var/cache/forkyard"), "kernels")
    found = [path for path in cache.rglob("*vmlinuz*")] + [path for path in cache.rglob("*bzImage*")]
    return max(found, key=lambda path: path.stat().st_mtime)
