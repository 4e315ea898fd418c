"""Files and folders between here and a guest: a tar stream that the guest's agent reads or writes.

What arrives is unpacked beside its destination and takes its name once it is
whole; copying that fails leaves nothing. A guest is not believed: what it sends
is what was asked for, stays below the destination, and is files, folders and links alone.
"""

from __future__ import annotations

import io
import os
import queue
import shutil
import tarfile
import tempfile
import threading
from typing import IO, Callable, Iterator

from ._http import Endpoint, Stream, of_files
from ._types import ForkyardError

_PIECE = 256 << 10  # Bytes of a stream in one piece.
_UNDER_WAY = 4  # Pieces.


def put(end: Endpoint, vm: str, here: str, there: str) -> None:
    """Copy a file or folder of this host's into a VM."""
    os.lstat(here)
    pieces = _Pieces(here, _name(here) or ".")
    try:
        end.open("PUT", of_files(vm, "archive", path=there), content=pieces).close()
    except BaseException:
        pieces.stop()
        # What could not be read here comes first: the rest follows from it.
        if pieces.error is not None and not isinstance(pieces.error, BrokenPipeError):
            raise pieces.error
        raise


def get(end: Endpoint, vm: str, there: str, here: str) -> None:
    """Copy a file or folder of a VM's to this host."""
    name = _name(there)
    into = os.path.isdir(here)
    if into:
        to = os.path.join(here, name) if name else here
    else:
        to = here.rstrip("/")
    beside = os.path.dirname(os.path.abspath(to)) if name or not into else os.path.abspath(here)
    with tempfile.TemporaryDirectory(prefix=".forkyard-cp.", dir=beside) as half:
        stream = end.open("GET", of_files(vm, "archive", path=there))
        try:
            incoming = _Incoming(stream)
            _unpack(incoming, half, name)
            # To the end of the connection: one that breaks off is told.
            incoming.drain()
        except tarfile.TarError as error:
            raise ForkyardError("guest", f"the VM sent what is no tar stream: {error}") from error
        finally:
            stream.close()
        _place(os.path.join(half, "it"), to, merge=into)


def _name(path: str) -> str:
    """The name that a copy has; none for what is in a folder."""
    name = os.path.basename(path.rstrip("/"))
    return "" if name in ("", ".", "..") else name


def _place(whole: str, to: str, merge: bool) -> None:
    """Moves what is whole to its place: a folder into one that is there, all else over what is there."""
    if merge and os.path.isdir(whole) and os.path.isdir(to) and not os.path.islink(to.rstrip("/")):
        for name in os.listdir(whole):
            _place(os.path.join(whole, name), os.path.join(to, name), merge=True)
        return
    os.replace(whole, to)


def _sent(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What is put into a guest is root's there; sockets and the like stay here."""
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _pack(archive: tarfile.TarFile, path: str, name: str) -> None:
    """Adds a tree that others may change meanwhile."""
    try:
        entry = archive.gettarinfo(path, arcname=name)
    except FileNotFoundError:
        return
    # None for a socket.
    if entry is None or _sent(entry) is None:
        return
    if not entry.isreg():
        archive.addfile(entry)
        if entry.isdir():
            for inner in os.listdir(path):
                _pack(archive, os.path.join(path, inner), f"{name}/{inner}")
        return
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return
    with file:
        head = file.read(_PIECE)
        if len(head) < _PIECE:
            # All of it, whatever size it was said to have.
            entry.size = len(head)
            archive.addfile(entry, io.BytesIO(head))
            return
        file.seek(0)
        entry.size = max(os.fstat(file.fileno()).st_size, len(head))
        archive.addfile(entry, _Padded(file))


class _Padded(io.RawIOBase):
    """A file, and zeros where it became shorter."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def _unpack(stream: io.RawIOBase | io.BytesIO, half: str, name: str) -> None:
    """Unpacks one file or folder of this name, or the content of one, as `it`."""
    umask = _umask()
    root = os.path.join(os.path.realpath(half), "it")
    modes: list[tuple[str, int, float]] = []
    first = True
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            at = _below(root, entry.name, name)
            if at is None or first and (at != root or not (entry.isdir() or entry.isreg() and name)):
                raise ForkyardError("guest", f"the VM sent {entry.name!r}, which was not asked for")
            first = False
            mode = entry.mode & 0o777 & ~umask
            if os.path.lexists(at) and not (entry.isdir() and os.path.isdir(at) and not os.path.islink(at)):
                os.unlink(at)
            if entry.isdir():
                os.makedirs(at, mode=0o700, exist_ok=True)
                # Last: it may be one that nothing can be put into.
                modes.append((at, mode, entry.mtime))
            elif entry.isreg():
                content = archive.extractfile(entry)
                assert content is not None
                with open(at, "xb") as file:
                    _write(content, file, entry)
                    os.fchmod(file.fileno(), mode)
                os.utime(at, (entry.mtime, entry.mtime))
            elif entry.issym():
                os.symlink(entry.linkname, at)
            elif entry.islnk():
                other = _below(root, entry.linkname, name)
                if other is None or other == root:
                    raise ForkyardError("guest", f"the VM sent a link to {entry.linkname!r}, which was not asked for")
                os.link(other, at, follow_symlinks=False)
        failure = archive.pax_headers.get("FORKYARD.failure")
    if failure or first:
        raise ForkyardError("guest", failure or "the VM sent nothing")
    for path, mode, mtime in reversed(modes):
        os.utime(path, (mtime, mtime))
        os.chmod(path, mode)


def _write(content: IO[bytes], file: io.BufferedWriter, entry: tarfile.TarInfo) -> None:
    """Writes a file, its holes as holes."""
    sparse: list[tuple[int, int]] | None = getattr(entry, "sparse", None)
    if sparse is None:
        shutil.copyfileobj(content, file, _PIECE)
        return
    at = 0
    for offset, length in sparse:
        # A stream cannot seek: zeros are read, and not written.
        while at < offset:
            at += len(content.read(min(_PIECE, offset - at))) or offset - at
        file.seek(offset)
        end = offset + length
        while at < end:
            piece = content.read(min(_PIECE, end - at))
            if not piece:
                raise tarfile.ReadError("unexpected end of data")
            file.write(piece)
            at += len(piece)
    file.truncate(entry.size)


def _below(root: str, path: str, name: str) -> str | None:
    """Where an entry goes; none if that is elsewhere than at the root or below it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or name and parts[:1] != [name]:
        return None
    parts = parts[1:] if name else parts
    at = os.path.join(root, *parts)
    if not parts:
        return root
    folder = os.path.realpath(os.path.dirname(at))
    # A link that came earlier may lead anywhere.
    return at if os.path.commonpath([root, folder]) == root else None


def _umask() -> int:
    with open("/proc/self/status") as status:
        return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)


class _Pieces:
    """A tree as the pieces of a tar stream, packed by a thread of its own."""

    def __init__(self, here: str, name: str) -> None:
        self.error: BaseException | None = None
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_UNDER_WAY)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(here, name), daemon=True)
        self._thread.start()

    def _run(self, here: str, name: str) -> None:
        try:
            with tarfile.open(fileobj=_Outgoing(self._put), mode="w|", bufsize=_PIECE, format=tarfile.PAX_FORMAT) as archive:
                _pack(archive, here, name)
        except BaseException as error:
            self.error = error
        try:
            self._put(None)
        except BrokenPipeError:
            pass

    def _put(self, piece: bytes | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._pieces.put(piece, timeout=0.2)
            except queue.Full:
                pass
        raise BrokenPipeError("nothing more is wanted")

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            yield piece
        if self.error is not None:
            # The request breaks off: the guest keeps nothing.
            raise self.error

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()


class _Outgoing(io.RawIOBase):
    """A stream that leaves in pieces."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if data:
            self._send(bytes(data))
        return len(data)


class _Incoming(io.RawIOBase):
    """An answer, as a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(None if size < 0 else size)

    def drain(self) -> None:
        """Reads it to its end."""
        while self.read(_PIECE):
            pass
