"""Changes in a guest's folder, as they happen."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Iterator

from ._calls import flag, of_files
from ._http import Endpoint
from ._types import FileChange, Unreachable


def told(line: bytes) -> FileChange | None:
    """The change that a line tells; empty ones say that it is still watched."""
    if not line.strip():
        return None
    change = json.loads(line)
    return FileChange(change["change"], change["name"])


def of_watch(vm: str, path: str, recursive: bool) -> str:
    """The path of a stream of changes."""
    return of_files(vm, "watch", path=path, recursive=flag(recursive))


class Changes:
    """Changes in a folder of a guest: iterate over it, which ends when the folder goes.

    Left before its end, by the context manager or close(), the stream is closed.
    """

    def __init__(self, end: Endpoint, vm: str, path: str, recursive: bool) -> None:
        self._closed = False
        self._stream = end.open("GET", of_watch(vm, path, recursive))

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[FileChange]:
        return self

    def __next__(self) -> FileChange:
        change = self.next()
        if change is None:
            raise StopIteration
        return change

    def next(self) -> FileChange | None:
        """The next change; none at the end. Blocks."""
        while not self._closed:
            try:
                line = self._stream.line()
            except (Unreachable, ValueError):
                if self._closed:
                    break
                raise
            if not line:
                self.close()
                break
            if change := told(line):
                return change
        return None

    def close(self) -> None:
        """End it. May be called from another thread than the one that iterates, whose loop ends."""
        if not self._closed:
            self._closed = True
            self._stream.hang_up()
            self._stream.close()
