"""What calls come to: results and errors. Talks to nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Iterator, TypeVar

V = TypeVar("V")


class ForkyardError(Exception):
    """A request was refused or failed.

    `kind` is one of invalid, not_found, conflict, exhausted, guest, timeout,
    host, unauthorized, forbidden; `hint` says what can be done, if anything.
    """

    def __init__(self, kind: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})" if self.hint else super().__str__()

    @classmethod
    def of(cls, answer: dict[str, Any]) -> ForkyardError:
        return cls(str(answer.get("kind", "host")), str(answer.get("message", "")), answer.get("hint"))


class Unreachable(ForkyardError):
    """There is no daemon, or the connection to it broke."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message, "`forkyard ps` starts a daemon on this host")


class NotStarted(ForkyardError):
    """A command could not be started: `code` is 127 if there is no such program, else 126."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__("invalid", message)
        self.code = code


class CommandFailed(Exception):
    """A command run with `check=True` did not exit with 0."""

    def __init__(self, result: ExecResult) -> None:
        said = result.stderr.decode(errors="replace").strip()
        super().__init__(f"{result.argv[0]} exited with {result.code}" + (f": {said}" if said else ""))
        self.result = result


@dataclass(frozen=True)
class ExecResult:
    """What a command came to."""

    argv: tuple[str, ...]
    code: int
    """As a shell reports it: 128 and the signal's number if a signal ended it."""
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text, without the end of the last line."""
        return self.stdout.decode(errors="replace").removesuffix("\n")


@dataclass(frozen=True)
class FileEntry:
    """A file in a guest."""

    name: str
    kind: str
    """file, folder, link or other."""
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    target: str | None = None
    """Where a link leads."""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> FileEntry:
        return cls(**{name: answer.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


@dataclass(frozen=True)
class FileChange:
    """A change in a folder that is watched."""

    change: str
    """created, written, removed, moved_away or attributes."""
    name: str
    """The file, seen from the folder."""


@dataclass(frozen=True)
class Event:
    """Something that happened on a host."""

    id: str
    """Position in the stream, to go on from: for `since`."""
    seq: int
    """Number in the stream, from 1 on; a restart of the daemon begins a new stream."""
    time: float
    """Seconds since 1970."""
    kind: str
    """vm, fork, ticket, checkpoint, image, node, transfer; stream of `lagged`."""
    what: str
    """What happened: vm_created, vm_changed, fork_over, lagged, …"""
    data: dict[str, Any]
    """More of that: `{"from": "starting", "to": "running"}`."""
    subject: dict[str, Any]
    """What it is about: vm, fork, ticket, image, pages, node; None where it is not about one."""

    @property
    def vm(self) -> str | None:
        """Name of the VM that it is about; of a fork the parent's."""
        vm = self.subject.get("vm")
        return str(vm["name"]) if vm else None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Event:
        [(what, data)] = answer["what"].items()
        at = f"{answer['stream']}-{answer['seq']}"
        return cls(at, answer["seq"], answer["time_ms"] / 1000, answer["kind"], what, data, answer["subject"])


class Forked(Generic[V]):
    """The clones a fork made, and the errors of those it could not make.

    As a sequence it is the clones if all were made. If some were not, to
    unpack, iterate or index it raises PartialFork; `vms` and `errors` do not.
    """

    def __init__(self, id: str, vms: list[V], errors: list[ForkyardError], report: dict[str, Any]) -> None:
        self.id = id
        self.vms = vms
        self.errors = errors
        self.report = report
        """Where the time went; microseconds, and bytes and pages."""

    def _all(self) -> list[V]:
        if self.errors:
            raise PartialFork(self)
        return self.vms

    def __iter__(self) -> Iterator[V]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: int) -> V:
        return self._all()[index]

    def __repr__(self) -> str:
        return f"Forked({self.vms!r}, errors={self.errors!r})"


class PartialFork(Exception):
    """Some clones were not made. Those that were run: they are in `forked.vms`."""

    def __init__(self, forked: Forked[Any]) -> None:
        total = len(forked.vms) + len(forked.errors)
        super().__init__(f"{len(forked.errors)} of {total} clones were not made: {forked.errors[0]}")
        self.forked = forked
