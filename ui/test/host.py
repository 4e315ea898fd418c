"""A host of the test's own: a daemon with folders and a network namespace of its own, and a token for it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PORT = 7433


class Host:
    """Needs root, the programs in `dist`, and the image `tiny` in the cache. `address`: the one it serves; `inside`: words before
    each command, that bring it to another network namespace."""

    def __init__(self, dist, address="127.0.0.1", inside=()):
        self.address, self.inside = address, list(inside)
        self.programs = os.path.join(os.path.abspath(dist), "bin")
        self.folder = tempfile.mkdtemp(prefix="page-host-")
        os.chmod(self.folder, 0o711)  # a QEMU has a user of its own
        self.env = dict(os.environ, PATH=f"{self.programs}:{os.environ['PATH']}", FORKYARD_RUN_DIR=f"{self.folder}/run",
                        FORKYARD_STATE_DIR=f"{self.folder}/state")
        self.daemon = None
        self.peers = f"{self.folder}/peers"
        self.meet({})
        try:
            self.start()
        except SystemExit:
            shutil.rmtree(self.folder)
            raise
        made = json.loads(self.forkyard("token", "create", "page", "-o", "json"))
        self.token, self.trust = made["token"], made["remote"]["fingerprint"]

    def meet(self, others):
        """Has it know other hosts, by name: from now on."""
        lines = []
        for name, other in others.items():
            lines += [f"[peer.{name}]", f'url = "https://{other.address}:{PORT}"', f'token = "{other.token}"', f'trust = "{other.trust}"',
                      f'pages = "{other.address}:{PORT + 1}"']
        with open(os.open(f"{self.peers}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(f"{self.peers}.new", self.peers)

    def start(self):
        with open(f"{self.folder}/log", "ab") as log:
            words = ["forkyardd", "--listen", f"0.0.0.0:{PORT}", "--peers", self.peers]
            if self.address != "127.0.0.1":
                words += ["--pages", f"{self.address}:{PORT + 1}"]
            self.daemon = subprocess.Popen(self.inside + words, env=self.env, stdout=log, stderr=log)
        until = time.monotonic() + 60
        while not self.serves():
            if self.daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"forkyardd does not serve: {self.log()[-3000:]}")
            time.sleep(0.1)

    def serves(self):
        """By its socket: `forkyard` would start another daemon."""
        with socket.socket(socket.AF_UNIX) as to:
            return to.connect_ex(f"{self.folder}/run/api.sock") == 0

    def kill(self):
        """Ends the daemon as a crash would."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def forkyard(self, *args):
        done = subprocess.run([*self.inside, "forkyard", *args], env=self.env, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"forkyard {' '.join(args)}: {done.stderr}")
        return done.stdout

    def log(self):
        with open(f"{self.folder}/log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def end(self):
        try:
            self.forkyard("rm", "--all")
        finally:
            self.daemon.terminate()
            self.daemon.wait(60)
            shutil.rmtree(self.folder)


class Cable:
    """A network namespace beside this one, and a pair of interfaces between them."""

    HERE, THERE = "10.90.0.1", "10.90.0.2"

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == own:
            time.sleep(0.01)
        self.inside = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]
        ip = lambda *words: subprocess.run(["ip", *words], check=True)  # noqa: E731
        ip("link", "add", "page-a", "type", "veth", "peer", "name", "page-b", "netns", str(self.holder.pid))
        ip("address", "add", f"{self.HERE}/24", "dev", "page-a")
        ip("link", "set", "page-a", "up")
        for words in (["address", "add", f"{self.THERE}/24", "dev", "page-b"], ["link", "set", "page-b", "up"], ["link", "set", "lo", "up"]):
            subprocess.run([*self.inside, "ip", *words], check=True)

    def end(self):
        self.holder.kill()
        self.holder.wait()
