"""Files and folders between here and a guest: a tar stream through a command there, as `forkyard cp` does it.

What arrives is unpacked beside its destination and takes its name once it is
whole; copying that fails leaves nothing. A guest is not believed: what it sends
stays below the destination, and is files, folders and links alone.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from typing import TYPE_CHECKING, Callable, Iterator

from ._types import CommandFailed, ExecResult, ForkyardError

if TYPE_CHECKING:
    from ._client import Process, Vm

_PIECE = 4 << 20  # Bytes of a stream in one request.

_PACK = 'cd "$(dirname -- "$1")" && exec tar -cf - -- "$2"'

# Makes a folder beside where $1 is to be.
_MAKE = """
to=$1
[ -d "$to" ] || to=$(dirname -- "$to")
[ -d "$to" ] || { echo "there is no folder $to" >&2; exit 1; }
mktemp -d -- "${to%/}/.forkyard-cp.XXXXXX"
"""

# Takes what has arrived at $1 to its place.
_INSTALL = """
set -e
from=$1 to=$2 name=$3
if [ -d "$to" ]; then to=${to%/}/$name; fi
tar -C "$from" -xf "$from/tar"
mv -T -- "$from/$name" "$to"
rm -rf "$from"
"""


def put(vm: Vm, here: str, there: str) -> None:
    """Copy a file or folder of this host's into a VM."""
    os.lstat(here)
    name = _name(here)
    half = vm.exec("sh", "-c", _MAKE, "sh", there, check=True).text
    try:

        def send(piece: bytes) -> None:
            vm.exec("sh", "-c", 'cat >>"$1/tar"', "sh", half, stdin=piece, check=True)

        out = _Outgoing(send)
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            archive.add(here, arcname=name, filter=_sent)
        out.flush()
        vm.exec("sh", "-c", _INSTALL, "sh", half, there, name, check=True)
    except BaseException:
        # What failed is worth more than that this may fail, too.
        try:
            vm.exec("rm", "-rf", "--", half)
        except ForkyardError:
            pass
        raise


def get(vm: Vm, there: str, here: str) -> None:
    """Copy a file or folder of a VM's to this host."""
    name = _name(there)
    to = os.path.join(here, name) if os.path.isdir(here) else here
    with tempfile.TemporaryDirectory(prefix=".forkyard-cp.", dir=os.path.dirname(os.path.abspath(to))) as half:
        bad: Exception | None = None
        # By its folder, so that a link itself is copied, and not what it leads to.
        with vm.start("sh", "-c", _PACK, "sh", there, name) as process:
            stream = _Incoming(process)
            try:
                _unpack(stream, half)
            except (tarfile.TarError, OSError) as error:
                bad = error
            if bad is None or isinstance(bad, tarfile.TarError):
                # To its end, which may tell more than a stream cut short does.
                stream.drain()
                if process.code:
                    raise CommandFailed(ExecResult(process.argv, process.code, b"", bytes(stream.complaints)))
        if isinstance(bad, tarfile.TarError):
            raise ForkyardError("guest", f"{vm.name} sent what is no tar stream: {bad}") from bad
        if bad is not None:
            raise bad
        whole = os.path.join(half, name)
        if not os.path.lexists(whole):
            raise ForkyardError("guest", f"{vm.name} sent no {name}")
        os.replace(whole, to)


def _name(path: str) -> str:
    name = os.path.basename(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise ValueError(f"{path!r} ends in no name")
    return name


def _sent(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What is put into a guest is root's there; sockets and the like stay here."""
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _unpack(stream: _Incoming, into: str) -> None:
    root = os.path.realpath(into)
    modes: list[tuple[str, int]] = []
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            at = _below(root, entry.name)
            if at is None:
                continue
            if os.path.lexists(at) and not (entry.isdir() and os.path.isdir(at) and not os.path.islink(at)):
                os.unlink(at)
            if entry.isdir():
                os.makedirs(at, mode=0o700, exist_ok=True)
                # Last: it may be one that nothing can be put into.
                modes.append((at, entry.mode & 0o777))
            elif entry.isreg():
                content = archive.extractfile(entry)
                assert content is not None
                with open(at, "xb") as file:
                    shutil.copyfileobj(content, file)
                    os.fchmod(file.fileno(), entry.mode & 0o777)
                os.utime(at, (entry.mtime, entry.mtime))
            elif entry.issym():
                os.symlink(entry.linkname, at)
            elif entry.islnk():
                other = _below(root, entry.linkname)
                if other is not None:
                    os.link(other, at, follow_symlinks=False)
    for path, mode in reversed(modes):
        os.chmod(path, mode)


def _below(root: str, name: str) -> str | None:
    """Where an entry goes; none if that is elsewhere than below the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    at = os.path.join(root, *parts)
    folder = os.path.realpath(os.path.dirname(at))
    # A link that came earlier may lead anywhere.
    return at if os.path.commonpath([root, folder]) == root else None


class _Outgoing(io.RawIOBase):
    """A stream that leaves in pieces."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._piece = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._piece += data
        while len(self._piece) >= _PIECE:
            self._send(bytes(self._piece[:_PIECE]))
            del self._piece[:_PIECE]
        return len(data)

    def flush(self) -> None:
        if self._piece:
            self._send(bytes(self._piece))
            self._piece.clear()


class _Incoming(io.RawIOBase):
    """What a command writes to its standard output, as a stream."""

    def __init__(self, process: Process) -> None:
        self.complaints = bytearray()
        self._pieces: Iterator[tuple[str, bytes]] = iter(process)
        self._piece = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._piece:
            name, data = next(self._pieces, ("end", b""))
            if name == "end":
                return b""
            if name == "stdout":
                self._piece = data
            elif len(self.complaints) < 64 << 10:
                self.complaints += data
        size = len(self._piece) if size < 0 else size
        taken, self._piece = self._piece[:size], self._piece[size:]
        return taken

    def drain(self) -> None:
        """Reads it to its end."""
        while self.read():
            pass
