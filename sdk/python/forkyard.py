"""Fork the virtual machine this program runs in.

    import forkyard

    ticket = forkyard.request_ticket(4)
    me = forkyard.clone(ticket)          # 0 in the parent, 1 to 4 in the clones
    if me:
        work(me)
        forkyard.exit(0)                 # this clone is no more
    print(forkyard.join(ticket))         # {1: 0, 2: 0, 3: 0, 4: 0}

With request_ticket(4, hierarchical=True) the four are processes: clone() forks
in each clone until it has one for each vCPU it was granted.

After the API of SnowFlock (Lagar-Cavilla et al., Table I). Calls block until
they are done and raise ForkError if they fail. In a clone the `random` module
is seeded anew before clone() returns; other generators that a program seeded
itself are the program's to seed: see at_clone().
"""

import ctypes
import os
import random
from typing import Any, Callable, Iterable, Iterator, NamedTuple

__all__ = [
    "Clone",
    "ForkError",
    "ForkExecutor",
    "Result",
    "Ticket",
    "at_clone",
    "checkpoint",
    "clone",
    "create_clones",
    "disjoint",
    "drop_checkpoint",
    "exit",
    "id",
    "join",
    "kill",
    "request_ticket",
    "wait_fork",
]

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
    ("request_ticket_hierarchical", ctypes.c_void_p, [ctypes.c_uint16]),
    ("clone_only", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    ("checkpoint_only", ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p]),
    ("create_clones", ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p]),
    ("drop_checkpoint", ctypes.c_int, [ctypes.c_char_p]),
    ("disjoint", ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]),
    ("exit_only", ctypes.c_int, [ctypes.c_uint8, ctypes.c_uint16, ctypes.c_void_p, ctypes.c_size_t]),
    ("wait_fork", ctypes.c_int, []),
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


class _Team:
    """The processes of a clone of a hierarchical ticket, as one of them sees them."""

    def __init__(self) -> None:
        self.epoch = b""  # the life of the VM in which the number is this process's
        self.number = 0
        self.others: dict[int, int | None] = {}  # process ids of those the first forked
        self.is_first = True

    def fork(self, first: int, processes: int) -> int:
        """Fork until there are so many; the number of the one this returns in."""
        self.epoch, self.number = _epoch(), first
        for number in range(first + 1, first + processes):
            try:
                pid = os.fork()
            except OSError:
                self.others[number] = None
                continue
            if pid == 0:
                self.number, self.others, self.is_first = number, {}, False
                return number
            self.others[number] = pid
        return first

    def wait(self) -> list[int]:
        """How the others ended, in order: exit statuses, negative for one that never said."""
        return [self._wait_for(pid) for _, pid in sorted(self.others.items())]

    @staticmethod
    def _wait_for(pid: int | None) -> int:
        try:
            return -1 if pid is None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return -1


def _epoch() -> bytes:
    try:
        with open("/opt/forkyard/epoch", "rb") as file:
            return file.read(16)
    except OSError:
        return b""


_team: _Team | None = None


class ForkError(Exception):
    """A call failed. `kind` is one of invalid, not_found, conflict, exhausted, agent, timeout, host."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Clone(NamedTuple):
    """One clone that was granted, or one process of a hierarchical ticket."""

    id: int
    vcpus: int
    ip: str


class Ticket:
    """A reservation of clones; made by request_ticket().

    It belongs to this process. One that is collected before clone() is given back;
    when the process ends before join(), its clones end.
    """

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


def request_ticket(count: int, hierarchical: bool = False) -> Ticket:
    """Reserve clones of this VM, or processes in clones. Fewer may be granted: see the ticket's clones."""
    if not 1 <= count <= 0xFFFF:
        raise ValueError(f"{count} clones: wanted 1 to 65535")
    request = _lib.forkyard_request_ticket_hierarchical if hierarchical else _lib.forkyard_request_ticket
    pointer = request(count)
    if not pointer:
        raise _failed()
    return Ticket(pointer)


def at_clone(callback: Callable[[int], None]) -> None:
    """Have callback(id) called in every clone, in order, before clone() returns there."""
    _at_clone.append(callback)


def clone(ticket: Ticket) -> int:
    """Clone this VM: returns 0 in the parent, and its number (1 and up) in every clone.

    Like os.fork(), but of the whole machine. Clones that could not be made are
    told by join(); ForkError is raised if there is none at all. With a
    hierarchical ticket os.fork() follows in every clone, and it is the
    processes that have the numbers.
    """
    processes = ctypes.c_uint8()
    me = _checked(_lib.forkyard_clone_only(ticket._pointer, ctypes.byref(processes)))
    return _arrive(me, processes.value)


def _arrive(me: int, processes: int) -> int:
    """In a clone: fork until all its processes are there, and run what is to run in each."""
    global _team
    if me:
        if processes > 1:
            _team = _Team()
            me = _team.fork(me, processes)
        for callback in _at_clone:
            callback(me)
    return me


def checkpoint() -> tuple[int, str]:
    """Keep this instant of this VM, to be cloned any time later.

    Returns 0 and the checkpoint's name now; and again, with the clone's number (1
    and up) and an empty name, in every clone that create_clones() makes of it.
    """
    name, processes = ctypes.create_string_buffer(12), ctypes.c_uint8()
    me = _checked(_lib.forkyard_checkpoint_only(name, ctypes.byref(processes)))
    return _arrive(me, processes.value), name.value.decode()


def create_clones(checkpoint: str, ticket: Ticket) -> None:
    """Make the ticket's clones of a checkpoint that a VM of this family took.

    Returns in the caller alone: in the clones it is checkpoint() that returns.
    """
    _checked(_lib.forkyard_create_clones(checkpoint.encode(), ticket._pointer))


def drop_checkpoint(checkpoint: str) -> None:
    """Forget a checkpoint. Clones it has live on."""
    _checked(_lib.forkyard_drop_checkpoint(checkpoint.encode()))


class _Buffer(ctypes.Structure):
    """Py_buffer: where the bytes of an object are, also of one that cannot be written to."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def disjoint(buffer: object) -> None:
    """Say that each clone will read other pages of this buffer (bytes, an array, …).

    Hosts to which this VM is forked from now on are then sent those of its pages
    that they ask for, and not what the others do. Of the pages that are in memory
    now. A hint: it never changes what a clone reads.
    """
    view = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    try:
        _checked(_lib.forkyard_disjoint(view.buf, view.len))
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


def exit(status: int = 0) -> None:
    """End this clone; its memory and disk vanish. Does not return.

    With a hierarchical ticket it ends this process, and the clone with the last
    of its processes.
    """
    if _team is None:
        number, statuses = 0, []
    elif _team.is_first:
        number, statuses = _team.number, _team.wait()
    else:
        os._exit(status)
    array = (ctypes.c_int * len(statuses))(*statuses)
    _checked(_lib.forkyard_exit_only(status, number + 1, array, len(statuses)))


def wait_fork() -> int:
    """Wait until this VM is forked, whoever asks for it.

    Returns in every clone, with its number; in the parent it goes on waiting.
    """
    me = _checked(_lib.forkyard_wait_fork())
    for callback in _at_clone:
        callback(me)
    return me


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
    """The number of the clone, or process of one, this runs in; 0 in a VM that is no clone."""
    if _team is not None and _team.epoch == _epoch():
        return _team.number
    return _checked(_lib.forkyard_id())


class Result:
    """What a submitted call came to; asking for it forks, if that has not been done."""

    def __init__(self, executor: "ForkExecutor", call: Callable[[], Any]) -> None:
        self._executor = executor
        self._call = call
        self._outcome: tuple[bool, Any] | None = None

    def done(self) -> bool:
        """Tell whether its result is here."""
        return self._outcome is not None

    def exception(self) -> BaseException | None:
        """Wait for it; what it raised, or None."""
        if self._outcome is None:
            self._executor.flush()
        assert self._outcome is not None
        came, value = self._outcome
        return None if came else value

    def result(self) -> Any:
        """Wait for it; what it returned, or raise what it raised."""
        error = self.exception()
        if error is not None:
            raise error
        assert self._outcome is not None
        return self._outcome[1]


class ForkExecutor:
    """Runs functions in clones of this very process, in the shape of concurrent.futures.

        with forkyard.ForkExecutor(8) as executor:
            scores = list(executor.map(score, range(1000)))

    The VM is forked when results are wanted: everything the program has loaded is
    in each clone as it is. Functions and arguments may be anything, lambdas too; only
    what they return, or raise, is pickled on its way home. Calls whose clone is
    lost are made again in another, `retries` times.
    """

    def __init__(self, clones: int, retries: int = 1) -> None:
        if clones < 1:
            raise ValueError(f"{clones} clones: wanted 1 or more")
        self._clones, self._retries = clones, retries
        self._pending: list[Result] = []

    def __enter__(self) -> "ForkExecutor":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # After an exception nobody asks for what has not been begun.
        if kind is None:
            self.flush()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result:
        """Note a call; it is made with all others noted by then, at the next flush()."""
        result = Result(self, lambda: function(*args, **kwargs))
        self._pending.append(result)
        return result

    def map(self, function: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """Fork, call function on every item, and give the results in the items' order.

        TimeoutError after so many seconds: then all its clones are ended.
        """
        results = [self.submit(function, *args) for args in zip(*iterables)]
        self.flush(timeout)
        return (result.result() for result in results)

    def flush(self, timeout: float | None = None) -> None:
        """Fork, and make all calls that have been noted; returns when all are done."""
        import secrets
        import socket

        calls, self._pending = self._pending, []
        if not calls:
            return
        with open("/opt/forkyard/identity") as file:
            ip = next(line[12:].strip() for line in file if line.startswith("FORKYARD_IP="))
        with socket.create_server((ip, 0), backlog=self._clones) as door:
            # Drawn before the fork: clones have it in memory, and nobody else.
            key = secrets.token_bytes(16)
            ticket = request_ticket(min(self._clones, len(calls), 0xFFFF))
            try:
                if clone(ticket):
                    _serve(door.getsockname(), key, calls)
                _Gathering(door, key, calls, len(ticket.clones), self._retries).run(timeout)
            finally:
                kill(ticket)


def _serve(home: tuple[str, int], key: bytes, calls: list[Result]) -> None:
    """In a clone: make the calls that the parent names, until it ends this clone."""
    import pickle
    import socket
    import struct

    try:
        with socket.create_connection(home, 30) as link:
            link.settimeout(None)
            link.sendall(key)
            while True:
                (number,) = struct.unpack("!I", link.recv(4, socket.MSG_WAITALL))
                try:
                    outcome = (True, calls[number]._call())
                except Exception as error:
                    outcome = (False, error)
                try:
                    data = pickle.dumps(outcome)
                except Exception as error:
                    kind = "returned" if outcome[0] else "raised"
                    data = pickle.dumps((False, TypeError(f"cannot bring home what it {kind}: {error}")))
                link.sendall(struct.pack("!IQ", number, len(data)) + data)
    finally:
        # Whatever it was that failed: this is a clone, and not to go on as its parent does.
        exit(125)


class _Gathering:
    """The parent's side of a flush: who does what, and what has come home."""

    def __init__(self, door: Any, key: bytes, calls: list[Result], clones: int, retries: int) -> None:
        self.door, self.key, self.calls, self.expected = door, key, calls, clones
        self.tries = [retries] * len(calls)
        self.waiting = list(reversed(range(len(calls))))
        self.left = len(calls)
        self.buffers: dict[Any, bytearray] = {}  # connections of clones that have shown the key
        self.strangers: dict[Any, bytearray] = {}
        self.doing: dict[Any, int] = {}

    def run(self, timeout: float | None) -> None:
        import selectors
        import time

        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self.door, selectors.EVENT_READ)
            while self.left:
                now = time.monotonic() - began
                if timeout is not None and now > timeout:
                    raise TimeoutError(f"{self.left} of {len(self.calls)} calls are not done after {timeout} s")
                if not self.buffers and (now > 30 or not self.expected):
                    self.fail_rest()
                    return
                for event, _ in selector.select(1):
                    if event.fileobj is self.door:
                        link = self.admit()
                        selector.register(link, selectors.EVENT_READ)
                    elif not self.hear(event.fileobj):
                        selector.unregister(event.fileobj)
                        event.fileobj.close()

    def admit(self) -> Any:
        import socket

        link, _ = self.door.accept()
        # A dead clone closes no connection: 30 s without an answer of its kernel.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        self.strangers[link] = bytearray()
        return link

    def hear(self, link: Any) -> bool:
        """Take in what a connection says; False when it is of no more use."""
        import hmac
        import pickle
        import struct

        try:
            data = link.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self.lose(link)
            return False
        if link in self.strangers:
            said = self.strangers[link]
            said += data
            if len(said) < len(self.key):
                return True
            del self.strangers[link]
            if not hmac.compare_digest(bytes(said), self.key):
                return False
            self.expected -= 1
            self.buffers[link] = bytearray()
            self.assign(link)
            return True
        buffer = self.buffers[link]
        buffer += data
        if len(buffer) >= 12:
            number, length = struct.unpack_from("!IQ", buffer)
            if len(buffer) >= 12 + length:
                outcome = pickle.loads(bytes(buffer[12 : 12 + length]))
                del buffer[: 12 + length]
                del self.doing[link]
                self.settle(number, outcome)
                self.assign(link)
        return True

    def assign(self, link: Any) -> None:
        import contextlib
        import struct

        if self.waiting:
            self.doing[link] = self.waiting.pop()
            with contextlib.suppress(OSError):  # one that is gone is heard of, too
                link.sendall(struct.pack("!I", self.doing[link]))

    def settle(self, number: int, outcome: tuple[bool, Any]) -> None:
        self.calls[number]._outcome = outcome
        self.left -= 1

    def lose(self, link: Any) -> None:
        self.strangers.pop(link, None)
        self.buffers.pop(link, None)
        number = self.doing.pop(link, None)
        if number is None:
            return
        if self.tries[number] > 0:
            self.tries[number] -= 1
            self.waiting.append(number)
            for idle in [one for one in self.buffers if one not in self.doing][:1]:
                self.assign(idle)
        else:
            self.settle(number, (False, ForkError("the clone it was in was lost", "host")))

    def fail_rest(self) -> None:
        for call in self.calls:
            if call._outcome is None:
                call._outcome = (False, ForkError("no clone is left to do it", "host"))
