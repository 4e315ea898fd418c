"""The client that blocks."""

from __future__ import annotations

import json
import math
import ssl
from base64 import b64decode, b64encode
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Iterator, List, Literal, Mapping

from ._copy import get, put
from ._http import Endpoint, Stream, of_files, of_vm
from ._types import CommandFailed, ExecResult, FileEntry, Forked, ForkyardError, Unreachable

_PIECE = 256 << 10  # Bytes of a file in one piece.


class Forkyard:
    """A host of VMs.

    `url` is `unix:///path/of/api.sock` or `https://host:port`; if absent
    FORKYARD_URL, or the daemon of this host. `token`, for https, is
    FORKYARD_TOKEN if absent. Which certificate is believed: `context` says,
    or else FORKYARD_CA, `sha256:` and its fingerprint or a PEM file, or else
    what this host trusts.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, context: ssl.SSLContext | None = None) -> None:
        self._end = Endpoint(url, token, context)

    def run(
        self, image: str, *, name: str | None = None, vcpus: int = 1, memory_mib: int = 256, warm: int = 0, **more: Any
    ) -> Vm:
        """Boot a VM; returns once its agent answers. `warm` clones are kept ready for its forks.

        `more`: other fields of the API's request, such as network or secrets.
        """
        wanted = {"image": image, "name": name, "vcpus": vcpus, "memory_mib": memory_mib, "warm": warm, **more}
        return Vm(self._end, self._end.call("POST", "/v1/vms", wanted))

    def vms(self) -> list[Vm]:
        """Every VM, the oldest first."""
        return [Vm(self._end, view) for view in self._end.call("GET", "/v1/vms")]

    def vm(self, name: str) -> Vm:
        """The VM of this name or id; ForkyardError of kind not_found if there is none."""
        return Vm(self._end, self._end.call("GET", of_vm(name)))


class Vm:
    """A VM. As a context manager it is removed at the end."""

    def __init__(self, end: Endpoint, view: dict[str, Any]) -> None:
        self._end = end
        self.view = view
        """What the host last said of it."""
        self.id: str = view["id"]
        self.name: str = view["name"]
        self.ip: str = view["address"]["ip"]
        """Its address on the private network of its family."""
        self.files = Files(self)

    def __repr__(self) -> str:
        return f"Vm({self.name!r}, {self.state})"

    def __enter__(self) -> Vm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.remove()
        except ForkyardError as gone:
            if gone.kind != "not_found":
                raise

    @property
    def state(self) -> str:
        """As of the last answer: starting, running, paused, stopped, checkpoint."""
        return str(self.view["state"])

    def refresh(self) -> Vm:
        """Ask the host how it is."""
        self.view = self._end.call("GET", of_vm(self.id))
        return self

    def fork(self, count: int = 1, *, live: bool = False, **more: Any) -> Forked[Vm]:
        """Fork it. Returns once every clone runs with its own identity, or has failed.

        `live` spares this VM at the clones' cost. `more`: other fields of the
        API's request, such as scrub or inherit_secrets. ForkyardError if nothing was
        forked at all; see Forked for clones that failed by themselves.
        """
        answer = self._end.call("POST", of_vm(self.id, "fork"), {"count": count, "mode": "live" if live else "fast", **more})
        made = [Vm(self._end, clone["vm"]) for clone in answer["clones"] if "vm" in clone]
        failed = [ForkyardError.of(clone["error"]) for clone in answer["clones"] if "error" in clone]
        return Forked(answer["fork"], made, failed, answer["report"])

    def checkpoint(self, name: str | None = None, *, live: bool = False) -> Vm:
        """Keep this instant on disk, to be forked later."""
        wanted = {"name": name, "mode": "live" if live else "fast"}
        return Vm(self._end, self._end.call("POST", of_vm(self.id, "checkpoint"), wanted))

    def pause(self) -> None:
        """Have it stand still; it can be forked so."""
        self.view = self._end.call("POST", of_vm(self.id, "pause"))

    def resume(self) -> None:
        """Let it go on."""
        self.view = self._end.call("POST", of_vm(self.id, "resume"))

    def stop(self) -> None:
        """Power it off; its record stays until it is removed."""
        self.view = self._end.call("POST", of_vm(self.id, "stop"))

    def remove(self) -> None:
        """End it, and remove all that is its own."""
        self._end.call("DELETE", of_vm(self.id))

    def start(self, *argv: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, timeout: float | None = None) -> Process:
        """Start a command whose output is read as it comes; see exec()."""
        wanted = {
            "argv": argv,
            "env": list((env or {}).items()),
            "stdin": b64encode(stdin).decode() if stdin else None,
            "timeout_s": None if timeout is None else max(1, math.ceil(timeout)),
        }
        return Process(argv, self._end.open("POST", of_vm(self.id, "exec"), wanted))

    def exec(
        self, *argv: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, timeout: float | None = None, check: bool = False
    ) -> ExecResult:
        """Run a command to its end.

        After `timeout` seconds, rounded up to whole ones, it is killed in the
        guest: ForkyardError of kind timeout. With `check`, CommandFailed unless
        it exits with 0.
        """
        with self.start(*argv, stdin=stdin, env=env, timeout=timeout) as process:
            return process.finish(check)


class Process:
    """A command under way: iterate over what it writes, `("stdout" or "stderr", bytes)`.

    Left before its end, by the context manager or close(), it is hung up on.
    """

    def __init__(self, argv: tuple[str, ...], stream: Stream) -> None:
        self.argv = argv
        self.code: int | None = None
        """Once it has ended, as a shell reports it."""
        self._stream = stream

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Literal["stdout", "stderr"], bytes]]:
        while self.code is None:
            line = self._stream.line()
            if not line:
                raise Unreachable("the connection ended before the command")
            event = json.loads(line)
            if "stdout" in event:
                yield "stdout", b64decode(event["stdout"])
            elif "stderr" in event:
                yield "stderr", b64decode(event["stderr"])
            elif "exit" in event:
                end = event["exit"]
                self.code = end["code"] if "code" in end else 128 + end["signal"]
            else:
                raise ForkyardError.of(event["error"])

    def finish(self, check: bool = False) -> ExecResult:
        """Read all that is left."""
        out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for stream, data in self:
            out[stream].append(data)
        result = ExecResult(self.argv, self.code or 0, b"".join(out["stdout"]), b"".join(out["stderr"]))
        if check and result.code:
            raise CommandFailed(result)
        return result

    def close(self) -> None:
        """Hang up on it unless it has ended. May be called from another thread."""
        self._stream.hang_up()
        self._stream.close()

    def hang_up(self) -> None:
        """Have another thread that reads it fail at once."""
        self._stream.hang_up()


class Files:
    """Files of a VM. Its agent does the work: nothing of the image is needed."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """The content, or a part of it; ForkyardError if it cannot be read."""
        part = {} if limit is None else {"limit": str(limit)}
        stream = self._vm._end.open("GET", of_files(self._vm.id, "files", path=path, offset=str(offset), **part))
        try:
            return stream.read()
        finally:
            stream.close()

    def write(self, path: str, content: bytes, mode: int | None = None, *, parents: bool = False) -> None:
        """Replace a file as a whole: it is the old one or the new one at any moment.

        Its mode stays unless one is given; a new one has 0o644. `parents` makes
        the folders above it. ForkyardError if it cannot be written.
        """
        more = {} if mode is None else {"mode": f"{mode:o}"}
        to = of_files(self._vm.id, "files", path=path, parents="true" if parents else "false", **more)
        view = memoryview(content)
        pieces = (bytes(view[at : at + _PIECE]) for at in range(0, len(view), _PIECE))
        self._vm._end.open("PUT", to, content=pieces).close()

    def stat(self, path: str) -> FileEntry:
        """Facts of a file; of a link itself. ForkyardError of kind not_found if there is none."""
        return FileEntry.of(self._vm._end.call("GET", of_files(self._vm.id, "stat", path=path)))

    def list(self, path: str) -> List[FileEntry]:
        """What is in a folder, by name."""
        return [FileEntry.of(entry) for entry in self._vm._end.call("GET", of_files(self._vm.id, "folder", path=path))]

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it that are not there."""
        self._vm._end.call("PUT", of_files(self._vm.id, "folder", path=path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty folder, or with `recursive` one with all that is in it."""
        self._vm._end.call("DELETE", of_files(self._vm.id, "files", path=path, recursive="true" if recursive else "false"))

    def put(self, here: str | PathLike[str], there: str) -> None:
        """Copy a file or folder of this host's into the VM, where it is root's.

        Into `there` if that is a folder, else as `there`; `here` that ends in `/.`
        is what is in it. Links stay links; sockets, FIFOs and devices are left out.
        OSError if it cannot be read here, ForkyardError if it cannot be written there.
        """
        put(self._vm._end, self._vm.id, fspath(here), there)

    def get(self, there: str, here: str | PathLike[str]) -> None:
        """Copy a file or folder of the VM's to this host.

        Into `here` if that is a folder, else as `here`. Nothing is written
        elsewhere, whatever the guest sends. ForkyardError if it cannot be read
        there, OSError if it cannot be written here.
        """
        get(self._vm._end, self._vm.id, there, fspath(here))
