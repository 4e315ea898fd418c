"""Commands under way."""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from types import TracebackType
from typing import Any, Iterable, Iterator, Literal

from ._http import Duplex, Stream
from ._types import CommandFailed, ExecResult, ForkyardError, NotStarted, Unreachable

_PIECE = 32 << 10  # Bytes of standard input in one line.
_SILENCE = 10.0  # Seconds; the daemon takes a client that sends nothing for gone after 30.


class Process:
    """A command under way: iterate over what it writes, `("stdout" or "stderr", bytes)`.

    Left before its end, by the context manager or close(), it is hung up on: what is left of it
    and of all that it started gets SIGHUP, and SIGKILL two seconds later, unless it is kept. write() and what else
    tells it something take `stdin=PIPE` at its start; they block while it does not read, and may be
    called from another thread than the one that iterates.
    """

    def __init__(self, argv: tuple[str, ...], stream: Stream, follows: bool = True) -> None:
        self.argv = argv
        self._follows = follows
        self.code: int | None = None
        """Once it has ended, as a shell reports it."""
        self.pid: int | None = None
        """In the guest; of a command that is kept or left to itself only, from its first output on."""
        self._stream = stream
        self._said = threading.Lock()
        self._ended = threading.Event()
        if isinstance(stream, Duplex):
            threading.Thread(target=self._keep, daemon=True).start()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Pass bytes to its standard input."""
        view = memoryview(data)
        for at in range(0, len(view), _PIECE):
            self._say({"stdin": b64encode(view[at : at + _PIECE]).decode()})

    def close_stdin(self) -> None:
        """Nothing follows on its standard input."""
        self._say("eof")

    def send_signal(self, number: int) -> None:
        """Send it a signal: 2 and 3 are for its process group, as keys of a terminal; 9 kills all that it started, too."""
        self._say({"signal": int(number)})

    def resize(self, rows: int, cols: int) -> None:
        """Its terminal has another size."""
        self._say({"resize": {"rows": rows, "cols": cols}})

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

    def finish(self, check: bool = False) -> ExecResult:
        """Read all that is left."""
        out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        for stream, data in self:
            out[stream].append(data)
        result = ExecResult(self.argv, self.code or 0, b"".join(out["stdout"]), b"".join(out["stderr"]))
        if check and result.code:
            raise CommandFailed(result)
        return result

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Have a thread pass these to its standard input, and then end that."""
        threading.Thread(target=self._feed, args=(pieces,), daemon=True).start()

    def close(self) -> None:
        """Hang up on it unless it has ended. May be called from another thread."""
        self._ended.set()
        self._stream.hang_up()
        self._stream.close()

    def hang_up(self) -> None:
        """Have another thread that reads it fail at once."""
        self._stream.hang_up()

    def _feed(self, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                self.write(piece)
            self.close_stdin()
        except Unreachable:
            pass  # It has ended, or whoever iterates is told.

    def _say(self, what: Any) -> None:
        if not isinstance(self._stream, Duplex):
            raise ValueError("its standard input is not a pipe: start it with stdin=PIPE")
        with self._said:
            self._stream.send(json.dumps(what).encode() + b"\n")

    def _keep(self) -> None:
        """Shows the daemon that this client is there."""
        assert isinstance(self._stream, Duplex)
        while not self._ended.wait(_SILENCE):
            try:
                with self._said:
                    self._stream.send(b"\n")
            except Unreachable:
                return
