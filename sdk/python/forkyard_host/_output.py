"""Lines that a command tells and is told. Reads and sends nothing: both clients do."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from typing import Any, Final, Iterator, Literal

from ._calls import encoded
from ._types import CommandFailed, ExecResult, ForkyardError, NotStarted

_PIECE = 32 << 10  # Bytes of standard input in one line.
SILENCE = 10.0  # Seconds; the daemon takes a client that sends nothing for gone after 30.
NO_PIPE = "its standard input is not a pipe: start it with stdin=PIPE"
INLINE: Final = 1 << 20  # Bytes of standard input that go with the request.
_KINDS = "bytes, an iterable of bytes, or a file that is opened with mode 'rb'"

Piece = tuple[Literal["stdout", "stderr"], bytes]


class Output:
    """A command, as far as it has been heard."""

    def __init__(self, argv: tuple[str, ...], follows: bool) -> None:
        self.argv = argv
        self._follows = follows
        self._stdin_closed = False
        self._unfed: BaseException | None = None
        """Error of what its standard input was to come from."""
        self.code: int | None = None
        """Once it has ended, as a shell reports it."""
        self.pid: int | None = None
        """In the guest; of a command that is kept or left to itself only, from its first output on."""

    def _take(self, told: bytes) -> Piece | None:
        """Notes what a line tells; what was written, if it tells that."""
        event = json.loads(told)
        if "stdout" in event:
            return "stdout", b64decode(event["stdout"])
        elif "stderr" in event:
            return "stderr", b64decode(event["stderr"])
        elif "exit" in event:
            end = event["exit"]
            self.code = end["code"] if "code" in end else 128 + end["signal"]
        elif "started" in event:
            self.pid = event["started"]["pid"]
            if not self._follows:
                self.code = 0
        elif "not_started" in event:
            raise NotStarted(event["not_started"]["message"], event["not_started"]["code"])
        elif "timed_out" in event:
            after = event["timed_out"]["after_s"]
            raise ForkyardError("timeout", f"the command took longer than {after} s and was killed")
        elif "error" in event:
            raise ForkyardError.of(event["error"])
        return None

    def _result(self, pieces: list[Piece], check: bool) -> ExecResult:
        out = b"".join(data for stream, data in pieces if stream == "stdout")
        err = b"".join(data for stream, data in pieces if stream == "stderr")
        result = ExecResult(self.argv, self.code or 0, out, err)
        if check and result.code:
            raise CommandFailed(result)
        return result


    def _input(self, data: Any) -> Iterator[Any]:
        """Bytes for standard input, as a command is told them."""
        view = memoryview(octets(data, "bytes are written to standard input"))
        if self._stdin_closed:
            raise ValueError("its standard input is closed: nothing can be written after close_stdin()")
        return ({"stdin": b64encode(view[at : at + _PIECE]).decode()} for at in range(0, len(view), _PIECE))

    def _lost(self, error: Exception) -> BaseException:
        """The reason for which its connection ended."""
        return self._unfed or error


def octets(data: Any, wanted: str) -> bytes:
    """A copy of bytes-like data, unless it is bytes. TypeError for all else."""
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()
    except TypeError:
        remedy = ": encode() makes bytes of it" if isinstance(data, str) else ""
        raise TypeError(f"{wanted}, not {type(data).__name__}{remedy}") from None


def given(stdin: Any) -> bytes | Any:
    """Standard input as bytes, if it is bytes-like, or as what gives pieces of it. TypeError if it is neither."""
    if isinstance(stdin, (str, io.TextIOBase)) or not hasattr(stdin, "__iter__") and not hasattr(stdin, "__aiter__"):
        try:
            return memoryview(stdin).tobytes()
        except TypeError:
            what = "a file of text" if isinstance(stdin, io.TextIOBase) else type(stdin).__name__
            raise TypeError(f"stdin is {_KINDS}, not {what}") from None
    if isinstance(stdin, io.IOBase) and stdin.closed:
        raise ValueError("stdin is a file that is closed")
    try:
        return memoryview(stdin).tobytes()
    except TypeError:
        return stdin


def resize(rows: int, cols: int) -> Any:
    """Another size of a terminal, as a command is told it."""
    return {"resize": {"rows": rows, "cols": cols}}


def line(what: Any) -> bytes:
    """A line of a request."""
    return encoded(what) + b"\n"
