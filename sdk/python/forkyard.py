"""Fork the virtual machine this program runs in.

    import forkyard

    ticket = forkyard.request_ticket(4)
    me = forkyard.clone(ticket)          # 0 in the parent, 1 to 4 in the clones
    if me:
        work(me)
        forkyard.exit(0)                 # this clone is no more
    print(forkyard.join(ticket))         # {1: 0, 2: 0, 3: 0, 4: 0}

After the API of SnowFlock (Lagar-Cavilla et al., Table I). Calls block until
they are done and raise ForkError if they fail. In a clone the `random` module
is seeded anew before clone() returns; other generators that a program seeded
itself are the program's to seed: see at_clone().
"""

import ctypes
import os
import random
from typing import Callable, NamedTuple

__all__ = ["Clone", "ForkError", "Ticket", "at_clone", "clone", "exit", "id", "join", "kill", "request_ticket"]

_KINDS = {
    -1: "invalid",
    -2: "not_found",
    -3: "conflict",
    -4: "exhausted",
    -5: "agent",
    -6: "timeout",
    -7: "host",
}

_lib = ctypes.CDLL(os.environ.get("FORKYARD_LIBRARY", "/opt/forkyard/lib/libforkyard.so"))
for _name, _result, _arguments in [
    ("request_ticket", ctypes.c_void_p, [ctypes.c_uint16]),
    ("clone", ctypes.c_int, [ctypes.c_void_p]),
    ("exit", ctypes.c_int, [ctypes.c_uint8]),
    ("join", ctypes.c_int, [ctypes.c_void_p]),
    ("kill", ctypes.c_int, [ctypes.c_void_p]),
    ("id", ctypes.c_int, []),
    ("ticket_id", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ticket_count", ctypes.c_uint16, [ctypes.c_void_p]),
    ("ticket_vcpus", ctypes.c_uint8, [ctypes.c_void_p, ctypes.c_uint16]),
    ("ticket_ip", ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_uint16]),
    ("ticket_status", ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint16]),
    ("ticket_free", None, [ctypes.c_void_p]),
    ("error", ctypes.c_char_p, []),
]:
    _function = getattr(_lib, "forkyard_" + _name)
    _function.restype = _result
    _function.argtypes = _arguments

_at_clone: list[Callable[[int], None]] = [lambda _id: random.seed()]


class ForkError(Exception):
    """A call failed. `kind` is one of invalid, not_found, conflict, exhausted, agent, timeout, host."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Clone(NamedTuple):
    """One clone that was granted."""

    id: int
    vcpus: int
    ip: str


class Ticket:
    """A reservation of clones; made by request_ticket()."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self.id: str = _lib.forkyard_ticket_id(pointer).decode()
        count = _lib.forkyard_ticket_count(pointer)
        self.clones = [
            Clone(n, _lib.forkyard_ticket_vcpus(pointer, n), _lib.forkyard_ticket_ip(pointer, n).decode())
            for n in range(1, count + 1)
        ]

    def __del__(self) -> None:
        _lib.forkyard_ticket_free(self._pointer)

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {len(self.clones)} clones)"


def _failed(code: int = -5) -> ForkError:
    return ForkError(_lib.forkyard_error().decode(errors="replace"), _KINDS.get(code, "agent"))


def _checked(code: int) -> int:
    if code < 0:
        raise _failed(code)
    return code


def request_ticket(count: int) -> Ticket:
    """Reserve clones of this VM. Fewer may be granted: see the ticket's clones."""
    if not 1 <= count <= 0xFFFF:
        raise ValueError(f"{count} clones: wanted 1 to 65535")
    pointer = _lib.forkyard_request_ticket(count)
    if not pointer:
        raise _failed()
    return Ticket(pointer)


def at_clone(callback: Callable[[int], None]) -> None:
    """Have callback(id) called in every clone, in order, before clone() returns there."""
    _at_clone.append(callback)


def clone(ticket: Ticket) -> int:
    """Clone this VM: returns 0 in the parent, and its number (1 and up) in every clone.

    Like os.fork(), but of the whole machine. Clones that could not be made are
    told by join(); ForkError is raised if there is none at all.
    """
    me = _checked(_lib.forkyard_clone(ticket._pointer))
    if me:
        for callback in _at_clone:
            callback(me)
    return me


def exit(status: int = 0) -> None:
    """End this clone; its memory and disk vanish. Does not return."""
    _checked(_lib.forkyard_exit(status))


def join(ticket: Ticket) -> dict[int, int | None]:
    """Wait until every clone has ended: its exit status by its number, None if it was lost.

    The ticket is used up. Not interrupted by signals.
    """
    _checked(_lib.forkyard_join(ticket._pointer))
    statuses = {c.id: _lib.forkyard_ticket_status(ticket._pointer, c.id) for c in ticket.clones}
    return {n: None if status < 0 else status for n, status in statuses.items()}


def kill(ticket: Ticket) -> None:
    """End every clone now. The ticket is used up."""
    _checked(_lib.forkyard_kill(ticket._pointer))


def id() -> int:
    """The number of the clone this runs in; 0 in a VM that was booted."""
    return _checked(_lib.forkyard_id())
