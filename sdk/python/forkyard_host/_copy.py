"""Files and folders between here and a guest: a tar stream that the guest's agent reads or writes.

What arrives is unpacked beside its destination and takes its name once it is
whole; copying that fails leaves nothing. A guest is not believed: what it sends
is what was asked for, stays below the destination, and is files, folders and links alone.

Packing and unpacking are generators that yield now and then: the client that blocks runs through them, the loop of the other one
runs meanwhile.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import tempfile
from typing import IO, Iterator, cast

from ._calls import of_files
from ._http import Endpoint, Stream
from ._output import octets
from ._types import ForkyardError, Unreachable

_PIECE = 256 << 10  # Bytes of a stream in one piece.
_MOST_UNSIZED = 64 << 20  # Bytes of a file whose size says nothing.
_MOST_EXTENTS = 1 << 16  # Of a file that is sent with its holes.


def put(end: Endpoint, vm: str, here: str, there: str) -> None:
    """Copy a file or folder of this host's into a VM."""
    packed = Packed(here)
    try:
        end.open("PUT", of_files(vm, "archive", path=there), content=packed).close()
    except ForkyardError:
        # What could not be read here comes first: the rest follows from it.
        if packed.error is not None:
            raise packed.error from None
        raise


def get(end: Endpoint, vm: str, there: str, here: str) -> None:
    """Copy a file or folder of a VM's to this host."""
    place = Destination(there, here)
    with place.half() as half:
        stream = end.open("GET", of_files(vm, "archive", path=there))
        try:
            incoming = _Incoming(stream)
            for _ in place.unpack(incoming, half, incoming.broken):
                pass
            # To the end of the connection: one that breaks off is told.
            incoming.drain()
        finally:
            stream.close()
        place.take(half)


class Destination:
    """Where a file or folder of a VM's goes on this host."""

    def __init__(self, there: str, here: str) -> None:
        self._name = _name(there)
        self._into = os.path.isdir(here)
        if self._into:
            self._to = os.path.join(here, self._name) if self._name else here
        else:
            self._to = here.rstrip("/")
        self._beside = os.path.dirname(os.path.abspath(self._to)) if self._name or not self._into else os.path.abspath(here)

    def half(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for what is not whole yet."""
        return tempfile.TemporaryDirectory(prefix=".forkyard-cp.", dir=self._beside)

    def unpack(self, stream: IO[bytes] | io.RawIOBase, half: str, broken: list[Unreachable]) -> Iterator[None]:
        """Unpacks a tar stream, which may end too early, `broken`; yields after each piece."""
        # What the guest says of itself, as far as it has been read.
        said: dict[str, str] = {}
        try:
            yield from unpack(stream, half, self._name, said)
        except tarfile.TarError as error:
            if failure := said.get("FORKYARD.failure"):
                raise ForkyardError("guest", failure) from None
            if broken:
                raise broken[0]
            if note := said.get("FORKYARD.note"):
                raise ForkyardError("guest", f"the VM sent nothing: {note}") from None
            raise ForkyardError("guest", f"the VM sent what is no tar stream: {error}") from error

    def take(self, half: str) -> None:
        """Moves what is whole to its place."""
        _place(os.path.join(half, "it"), self._to, merge=self._into)


def pieces(content: bytes) -> Iterator[bytes]:
    """Content of a file, as it is sent."""
    view = memoryview(octets(content, "the content of a file is bytes"))
    return (bytes(view[at : at + _PIECE]) for at in range(0, len(view), _PIECE))


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


class Packed:
    """A file or folder as pieces of a tar stream. OSError if it is not there, or neither of them."""

    def __init__(self, here: str) -> None:
        mode = os.lstat(here).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise OSError(errno.EINVAL, "it is a FIFO, socket or device, which cannot be copied", here)
        self._here = here
        self.error: OSError | None = None
        """What could not be read."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from _packed(self._here, _name(self._here) or ".")
        except OSError as error:
            # The request breaks off: the guest keeps nothing.
            self.error = error
            raise


def _packed(here: str, name: str) -> Iterator[bytes]:
    # It knows which files are the same one; what it would write is not used.
    facts = tarfile.open(fileobj=io.BytesIO(), mode="w", format=tarfile.PAX_FORMAT)
    size = 0
    for piece in _pack(facts, here, name):
        size += len(piece)
        yield piece
    if not size:
        raise FileNotFoundError(errno.ENOENT, "it went away before it was read", here)
    yield bytes(2 * tarfile.BLOCKSIZE + -(size + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE)


def _pack(facts: tarfile.TarFile, path: str, name: str) -> Iterator[bytes]:
    """A tree that others may change meanwhile."""
    try:
        entry = facts.gettarinfo(path, arcname=name)
    except FileNotFoundError:
        return
    # None for a socket.
    if entry is None or _sent(entry) is None:
        return
    if not entry.isreg():
        yield _head(entry)
        if entry.isdir():
            for inner in os.listdir(path):
                yield from _pack(facts, os.path.join(path, inner), f"{name}/{inner}")
        return
    try:
        # Not one that became a FIFO meanwhile.
        file = open(path, "rb", buffering=0, opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK | os.O_NOFOLLOW))
    except FileNotFoundError:
        return
    with file:
        yield from _content(file, entry, path)


def _content(file: io.FileIO, entry: tarfile.TarInfo, path: str) -> Iterator[bytes]:
    """A file, its holes left out."""
    about = os.fstat(file.fileno())
    piece = _fill(file, _PIECE, path)
    # All of it if that is short, whatever size it was said to have.
    entry.size = len(piece)
    if len(piece) < _PIECE:
        yield _head(entry)
        yield piece
    elif about.st_size < len(piece):
        # The kernel makes it up: its size is not known before it is read.
        whole = piece + _fill(file, _MOST_UNSIZED + 1 - len(piece), path)
        if len(whole) > _MOST_UNSIZED:
            raise OSError(errno.EFBIG, "its size says nothing, and it has more than 64 MiB", path)
        entry.size = len(whole)
        yield _head(entry)
        yield whole
    elif about.st_size > _MOST_UNSIZED and _made_up(about):
        raise OSError(errno.EFBIG, "the kernel makes it up, and its size says nothing", path)
    else:
        extents = _extents(file, about.st_size) if about.st_blocks * 512 < about.st_size else None
        if extents is None:
            entry.size = about.st_size
            yield _head(entry)
            yield from _extent(file, 0, about.st_size, path)
        else:
            yield from _sparse(file, entry, about.st_size, extents, path)
    if short := entry.size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - short)


def _sparse(file: io.FileIO, entry: tarfile.TarInfo, size: int, extents: list[tuple[int, int]], path: str) -> Iterator[bytes]:
    """A file with holes, as format 1.0 of GNU tar has it."""
    # An empty one at the end has GNU tar set the size.
    numbers = [len(extents) + 1, *(number for extent in extents for number in extent), size, 0]
    table = "".join(f"{number}\n" for number in numbers).encode()
    table += bytes(-len(table) % tarfile.BLOCKSIZE)
    entry.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": entry.name,
        "GNU.sparse.realsize": str(size),
    }
    entry.size = len(table) + sum(length for _, length in extents)
    yield _head(entry)
    yield table
    for offset, length in extents:
        yield from _extent(file, offset, length, path)


def _extent(file: io.FileIO, offset: int, length: int, path: str) -> Iterator[bytes]:
    """A part of a file; zeros where it became shorter."""
    file.seek(offset)
    while length:
        piece = _fill(file, min(length, _PIECE), path) or bytes(min(length, _PIECE))
        yield piece
        length -= len(piece)


def _fill(file: io.FileIO, size: int, path: str) -> bytes:
    """So many bytes, or fewer at the end alone."""
    got = bytearray()
    try:
        while len(got) < size:
            piece = file.read(min(size - len(got), _PIECE))
            if piece is None:
                raise OSError(errno.EAGAIN, "it cannot be read to its end: more may come", path)
            if not piece:
                break
            got += piece
    except OSError as error:
        error.filename = error.filename or path
        raise
    return bytes(got)


def _extents(file: io.FileIO, size: int) -> list[tuple[int, int]] | None:
    """Extents with data; none if they cannot be told, or are too many."""
    extents: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            data = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            return extents if error.errno == errno.ENXIO else None
        if data >= size:
            break
        at = min(os.lseek(file.fileno(), data, os.SEEK_HOLE), size)
        if at <= data or len(extents) == _MOST_EXTENTS:
            return None
        extents.append((data, at - data))
    return extents


def _made_up(about: os.stat_result) -> bool:
    """True of files of /proc and /sys."""
    return any(os.path.isdir(top) and os.stat(top).st_dev == about.st_dev for top in ("/proc", "/sys"))


def _head(entry: tarfile.TarInfo) -> bytes:
    return entry.tobuf(tarfile.PAX_FORMAT, tarfile.ENCODING, "surrogateescape")


def unpack(stream: IO[bytes] | io.RawIOBase, half: str, name: str, said: dict[str, str]) -> Iterator[None]:
    """Unpacks one file or folder of this name, or the content of one, as `it`; yields after each piece.

    `said` gets the words of its sender.
    """
    root = os.path.join(os.path.realpath(half), "it")
    modes: list[tuple[str, int, float]] = []
    first = True
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", format=tarfile.PAX_FORMAT, pax_headers=said) as archive:
        for entry in archive:
            yield
            at = _below(root, entry.name, name)
            if at is None or first and (at != root or not (entry.isdir() or entry.isreg() and name)):
                raise ForkyardError("guest", f"the VM sent {entry.name!r}, which was not asked for")
            first = False
            mode = entry.mode & 0o1777
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
                    yield from _write(content, file, entry)
                    os.fchmod(file.fileno(), mode)
                os.utime(at, (entry.mtime, entry.mtime))
            elif entry.issym():
                os.symlink(entry.linkname, at)
            elif entry.islnk():
                other = _below(root, entry.linkname, name)
                if other is None or other == root:
                    raise ForkyardError("guest", f"the VM sent a link to {entry.linkname!r}, which was not asked for")
                os.link(other, at, follow_symlinks=False)
        failure = said.get("FORKYARD.failure")
    if failure or first:
        raise ForkyardError("guest", failure or said.get("FORKYARD.note") or "the VM sent nothing")
    for path, mode, mtime in reversed(modes):
        os.utime(path, (mtime, mtime))
        os.chmod(path, mode)


def _write(content: IO[bytes], file: io.BufferedWriter, entry: tarfile.TarInfo) -> Iterator[None]:
    """Writes a file, its holes as holes."""
    sparse: list[tuple[int, int]] | None = getattr(entry, "sparse", None)
    if sparse is None:
        while piece := content.read(_PIECE):
            file.write(piece)
            yield
        return
    at = 0
    for offset, length in sparse:
        # A stream cannot seek: zeros are read, and not written.
        while at < offset:
            at += len(content.read(min(_PIECE, offset - at))) or offset - at
            yield
        file.seek(offset)
        end = offset + length
        while at < end:
            piece = content.read(min(_PIECE, end - at))
            if not piece:
                raise tarfile.ReadError("unexpected end of data")
            file.write(piece)
            at += len(piece)
            yield
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


class _Incoming(io.RawIOBase):
    """An answer, as a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.broken: list[Unreachable] = []
        """The error with which it ended, if it broke off: what came before is read first."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.broken:
            return b""
        try:
            return self._stream.some(size)
        except Unreachable as error:
            self.broken.append(error)
            return b""

    def drain(self) -> None:
        """Reads it to its end."""
        while self.read(_PIECE):
            pass
        if self.broken:
            raise self.broken[0]
