"""Where a daemon is, what it is told with each request, and which certificate it must have. Connects to nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import socket
import ssl
from urllib.parse import urlsplit

from . import _presence
from ._types import ForkyardError, Unreachable

HEAD = 64 << 10  # Most bytes of an answer's head.
# The kernel finds out within a minute that a host is gone, where it can be told to.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Place:
    """Where a daemon is."""

    def __init__(self, url: str | None, token: str | None, context: ssl.SSLContext | None) -> None:
        run = os.environ.get("FORKYARD_RUN_DIR", "/run/forkyard")
        given = url or os.environ.get("FORKYARD_URL")
        self.url = given or f"unix://{run}/api.sock"
        self._run_dir = None if given else run
        self._token = token or os.environ.get("FORKYARD_TOKEN")
        self._context = context
        self._parts = urlsplit(self.url)
        if self._parts.scheme not in ("unix", "https"):
            raise ValueError(f"{self.url}: wanted unix:///path or https://host:port")

    def silent(self) -> Unreachable:
        """What is told of a daemon that does not even answer pings."""
        seconds = _presence.MISSES * (_presence.PAUSE + _presence.ANSWER)
        return Unreachable(f"the daemon at {self.url} has answered no ping for up to {seconds:.0f} s: it hangs, or its host is gone")

    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        if self._token and self._parts.scheme == "https":
            return {"Authorization": f"Bearer {self._token}"}
        return {}

    def starter(self) -> list[str] | None:
        """The command that starts this host's daemon; none if another one was named, or there is no program."""
        program = shutil.which("forkyard")
        if self._run_dir is None or program is None:
            return None
        return [program, "--run-dir", self._run_dir, "ps"]

    def trust(self) -> tuple[ssl.SSLContext, str | None]:
        """What a certificate is held to, and the fingerprint it must have, if any."""
        held_to = os.environ.get("FORKYARD_CA", "")
        if self._context:
            return self._context, None
        if not held_to.startswith("sha256:"):
            return ssl.create_default_context(cafile=held_to or None), None
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context, held_to.removeprefix("sha256:").lower()


def believe(certificate: bytes | None, fingerprint: str | None) -> None:
    """OSError unless the certificate is the one with this fingerprint, if there is one."""
    shown = hashlib.sha256(certificate or b"").hexdigest()
    if fingerprint and not hmac.compare_digest(shown, fingerprint):
        raise OSError(f"its certificate is sha256:{shown}, not the one of FORKYARD_CA")


def keep_alive(sock: socket.socket) -> None:
    """Has the kernel notice that the other host is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def refusal(status: int, answer: bytes) -> ForkyardError:
    """The error that an answer tells of."""
    try:
        return ForkyardError.of(json.loads(answer))
    except (ValueError, AttributeError):
        return ForkyardError("host", f"the daemon answered {status}: {answer[:200].decode(errors='replace')}")
