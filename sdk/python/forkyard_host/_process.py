"""Commands under way."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Iterable, Iterator

from ._http import Duplex, Stream
from ._output import NO_PIPE, SILENCE, Output, Piece, line, resize
from ._types import ExecResult, Unreachable



class Process(Output):
    """A command under way: iterate over what it writes, `("stdout" or "stderr", bytes)`.

    Left before its end, by the context manager or close(), it is hung up on: what is left of it
    and of all that it started gets SIGHUP, and SIGKILL two seconds later, unless it is kept. write() and what else
    tells it something take `stdin=PIPE` at its start; they block while it does not read, and may be
    called from another thread than the one that iterates.
    """

    def __init__(self, argv: tuple[str, ...], stream: Stream, follows: bool = True) -> None:
        super().__init__(argv, follows)
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
        for words in self._input(data):
            self._say(words)

    def close_stdin(self) -> None:
        """Nothing follows on its standard input."""
        if not self._stdin_closed:
            self._say("eof")
            self._stdin_closed = True

    def send_signal(self, number: int) -> None:
        """Send it a signal: 2 and 3 are for its process group, as keys of a terminal; 9 kills all that it started, too."""
        self._say({"signal": int(number)})

    def resize(self, rows: int, cols: int) -> None:
        """Its terminal has another size."""
        self._say(resize(rows, cols))

    def __iter__(self) -> Iterator[Piece]:
        while self.code is None:
            try:
                told = self._stream.line()
                if not told:
                    raise Unreachable("the connection ended before the command")
            except Unreachable as error:
                raise self._lost(error)
            if piece := self._take(told):
                yield piece

    def finish(self, check: bool = False) -> ExecResult:
        """Read all that is left."""
        return self._result(list(self), check)

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Have a thread pass these to its standard input, and then end that.

        An exception of theirs ends the command, and is raised where its output is read.
        """
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
        except BaseException as error:
            # It would wait for the rest for ever.
            self._unfed = error
            self.hang_up()

    def _say(self, what: Any) -> None:
        if not isinstance(self._stream, Duplex):
            raise ValueError(NO_PIPE)
        with self._said:
            self._stream.send(line(what))

    def _keep(self) -> None:
        """Shows the daemon that this client is there."""
        assert isinstance(self._stream, Duplex)
        while not self._ended.wait(SILENCE):
            try:
                with self._said:
                    self._stream.send(b"\n")
            except Unreachable:
                return
