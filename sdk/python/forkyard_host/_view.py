"""Facts of a VM that both clients know without asking, and parts of answers. Talks to no daemon."""

from __future__ import annotations

import math
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
        """Ports of the host that lead to it, as of the last answer."""
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
