"""Presence of the daemon while something waits for it.

A request may take as long as its work does: an image is built for minutes. A daemon that does not even
answer a ping does no work, and a connection to a host that is gone can stay open for ever. So one is asked
now and then while there are connections to it, and those are ended if it does not answer.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from typing import Callable, Protocol

PAUSE = 10.0  # Seconds between two pings.
ANSWER = 10.0  # Seconds that one may take.
CONNECT = 30.0  # Seconds that a connection may take to be made, and its parties to agree on keys.
MISSES = 3  # Pings in a row without an answer after which connections are ended.


class Waiting(Protocol):
    """Something that waits on a connection."""

    def end(self) -> None:
        """Has it go on, at the end of the connection."""
        ...


class Watched:
    """A connection that something waits on."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.missed = 0
        self.lost = False
        """Set before the connection is ended because the daemon does not answer."""

    def note(self, answered: bool) -> None:
        """Notes a ping, and ends the connection after too many that were not answered."""
        self.missed = 0 if answered else self.missed + 1
        if self.missed >= MISSES:
            self.lost = True
            self._waiting.end()


class Socket:
    """A connection that a thread waits on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def end(self) -> None:
        """Has the thread go on, at the end of the connection."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended.


class Presence:
    """The connections to one daemon, and a thread that asks whether it is there as long as there are any."""

    def __init__(self, ping: Callable[[], None]) -> None:
        self._ping = ping
        self._lock = threading.Lock()
        # Of one that is not closed its user alone knows when it is over.
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, sock: socket.socket) -> Watched:
        """Watches a connection until it is forgotten, or what is returned is dropped."""
        watched = Watched(Socket(sock))
        with self._lock:
            self._watched.add(watched)
            # After os.fork() there is none in the child.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="forkyard-presence")
                self._thread.start()
        return watched

    def forget(self, watched: Watched) -> None:
        """Watches a connection no more."""
        with self._lock:
            self._watched.discard(watched)

    def _run(self) -> None:
        while True:
            time.sleep(PAUSE)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                asked = list(self._watched)
            try:
                self._ping()
                answered = True
            except Exception:
                answered = False
            with self._lock:
                # One that was made or forgotten meanwhile is not concerned.
                asked = [watched for watched in asked if watched in self._watched]
            for watched in asked:
                watched.note(answered)
            del asked
