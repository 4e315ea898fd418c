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
    """Needs root, the programs in `dist`, and the image `tiny` in the cache."""

    def __init__(self, dist):
        self.programs = os.path.join(os.path.abspath(dist), "bin")
        self.folder = tempfile.mkdtemp(prefix="page-host-")
        os.chmod(self.folder, 0o711)  # a QEMU has a user of its own
        self.env = dict(os.environ, PATH=f"{self.programs}:{os.environ['PATH']}", FORKYARD_RUN_DIR=f"{self.folder}/run",
                        FORKYARD_STATE_DIR=f"{self.folder}/state")
        self.daemon = None
        try:
            self.start()
        except SystemExit:
            shutil.rmtree(self.folder)
            raise
        self.token = json.loads(self.forkyard("token", "create", "page", "-o", "json"))["token"]

    def start(self):
        with open(f"{self.folder}/log", "ab") as log:
            self.daemon = subprocess.Popen(["forkyardd", "--listen", f"127.0.0.1:{PORT}"], env=self.env, stdout=log, stderr=log)
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
        done = subprocess.run(["forkyard", *args], env=self.env, capture_output=True, text=True, timeout=300)
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
