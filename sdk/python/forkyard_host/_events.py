"""Events of a host, as they happen."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Iterable, Iterator

from ._calls import of_events
from ._http import Endpoint
from ._types import Event, Unreachable

SILENCE = 60.0  # Seconds; the daemon sends something every 15.


class Lines:
    """Events as they are told line by line. Reads nothing: both clients do."""

    def __init__(self) -> None:
        self.position: str | None = None
        self._data: list[bytes] = []
        self._at: str | None = None

    def take(self, line: bytes) -> Event | None:
        """Notes a line; the event that it ends, if it ends one."""
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            self._at = value.decode()
        elif not line.strip():
            self.position = self._at or self.position
            data, self._data, self._at = self._data, [], None
            if data:
                return Event.of(json.loads(b"\n".join(data)))
        return None


class Events:
    """Events of a host: iterate over it.

    Left before its end, by the context manager or close(), the stream is closed. The end of the
    daemon, or of the connection to it, is Unreachable: go on with `since=events.position`.
    """

    def __init__(self, end: Endpoint, vm: str | None, family: str | None, kinds: Iterable[str], since: str | int | None, follow: bool) -> None:
        self._lines = Lines()
        self._follow = follow
        self._closed = False
        self._stream = end.open("GET", of_events(vm, family, kinds, since, follow))
        self._stream.patience(SILENCE)

    @property
    def position(self) -> str | None:
        """Where to go on after a break: the last event that was read, or passed over by the selection."""
        return self._lines.position

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event

    def next(self) -> Event | None:
        """The next event; none at the end. Blocks."""
        while not self._closed:
            try:
                line = self._stream.line()
            except (Unreachable, ValueError):
                if self._closed:
                    break
                raise
            if not line:
                if self._follow and not self._closed:
                    raise Unreachable("the daemon has ended, and with it its events")
                self.close()
                break
            if event := self._lines.take(line):
                return event
        return None

    def close(self) -> None:
        """End it. May be called from another thread than the one that iterates, whose loop ends."""
        if not self._closed:
            self._closed = True
            self._stream.hang_up()
            self._stream.close()
