"""Facts of a VM that both clients know without asking, and parts of answers. Talks to no daemon."""

from __future__ import annotations

import math
import time
from os import PathLike
from typing import Any, Callable, Mapping, TypeVar

from ._types import Forked, ForkyardError

V = TypeVar("V", bound="View")

_LONGEST = 1 << 32  # Seconds.


class View:
    """What a host last said of a VM."""

    def __init__(self, view: dict[str, Any]) -> None:
        self.view = view
        """What the host last said of it."""
        self.id: str = view["id"]
        self.name: str = view["name"]
        self.ip: str = view["address"]["ip"]
        """Its address on the private network of its family."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.state})"

    @property
    def state(self) -> str:
        """As of the last answer: starting, running, paused, stopped, checkpoint."""
        return str(self.view["state"])

    @property
    def published(self) -> list[str]:
        """Ports of the host that lead to it and addresses of its own, as of the last answer."""
        return list(self.view.get("published", []))

    @property
    def labels(self) -> dict[str, str]:
        """As of the last answer."""
        return dict(self.view.get("labels", {}))

    def _moved(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.view = answer["vm"]
        return dict(answer["report"])

    def _shared(self, made: dict[str, Any], port: int, base: str | None) -> dict[str, Any]:
        if base is not None:
            scheme, _, authority = base.rstrip("/").partition("://")
            label = f"{port}-{self.name}"
            label = label if len(label) <= 63 else f"{port}-{self.id}"
            made["url"] = f"{scheme}://{label}.{authority}/?forkyard_token={made['token']}"
        return made


class Waiting:
    """A wait for a state of a VM, as `forkyard wait` has it. Sleeps not itself."""

    def __init__(self, name: str, until: str, timeout: float | None) -> None:
        if until not in ("running", "paused", "stopped", "removed"):
            raise ValueError(f"until is running, paused, stopped or removed, not {until!r}")
        self._name = name
        self._until = until
        self._end = None if timeout is None else time.monotonic() + timeout
        self._was: str | None = None
        self._pause = 0.025

    def over(self, state: str | None) -> bool:
        """True once it is so; `state` is None if there is no such VM. ForkyardError if it can come no more, or is late."""
        wanted = state == self._until or (state is None and self._until == "removed")
        if not wanted and self._until != "removed":
            if state is None:
                raise ForkyardError("conflict", f"{self._name} has been removed")
            if state == "checkpoint":
                raise ForkyardError("conflict", f"{self._name} is a checkpoint, which never runs")
            if state == "stopped" and self._was not in (None, "stopped"):
                raise ForkyardError("conflict", f"{self._name} has stopped", "`inspect` says why")
        if not wanted and self._end is not None and time.monotonic() >= self._end:
            raise ForkyardError("timeout", f"{self._name} is {state}, and not {self._until} yet")
        self._was = state
        return wanted

    def pause(self) -> float:
        """Seconds until the next look."""
        self._pause = min(1.0, self._pause * 2)
        return self._pause if self._end is None else max(0.0, min(self._pause, self._end - time.monotonic()))


def used(usage: dict[str, Any], vm: View) -> dict[str, Any]:
    """What one VM has used; ForkyardError of kind not_found if this host does not have it."""
    for one in usage["vms"]:
        if one["vm"]["id"] == vm.id:
            vm.view = one["vm"]
            rest = {name: value for name, value in one.items() if name != "vm"}
            return {"at_us": usage["at_us"], **rest}
    raise ForkyardError("not_found", f"{vm.name} uses nothing of this host", "in a cluster, ask its own node")


def forked(answer: dict[str, Any], make: Callable[[dict[str, Any]], V]) -> Forked[V]:
    """The clones of a fork, and errors of those that were not made."""
    made, failed = _either(answer["clones"], make)
    return Forked(answer["fork"], made, failed, answer["report"])


def activated(answer: dict[str, Any], make: Callable[[dict[str, Any]], V]) -> tuple[list[V], list[ForkyardError]]:
    """The VMs of a substrate, and errors of those that were not made."""
    return _either(answer["vms"], make)


def _either(answers: list[dict[str, Any]], make: Callable[[dict[str, Any]], V]) -> tuple[list[V], list[ForkyardError]]:
    made = [make(one["vm"]) for one in answers if "vm" in one]
    return made, [ForkyardError.of(one["error"]) for one in answers if "error" in one]


def command(
    argv: tuple[str, ...],
    env: Mapping[str, str] | None,
    timeout: float | None,
    workdir: str | None,
    user: str | None,
    tty: tuple[int, int] | None,
    keep: bool,
    tag: str | None,
) -> dict[str, Any]:
    """A command, as a request has it."""
    if timeout is not None and not 0 < timeout < _LONGEST:
        raise ValueError(f"timeout is a number of seconds above 0, or None for no end, not {timeout}")
    for word in argv:
        if not isinstance(word, (str, PathLike)):
            remedy = ": decode() makes str of it" if isinstance(word, (bytes, bytearray)) else ""
            raise TypeError(f"arguments of a command are str, not {type(word).__name__}{remedy}")
    return {
        "argv": argv,
        "env": list((env or {}).items()),
        "timeout_s": None if timeout is None else math.ceil(timeout),
        "workdir": workdir,
        "user": user,
        "tty": tty and {"rows": tty[0], "cols": tty[1]},
        "keep": keep,
        "tag": tag,
    }
