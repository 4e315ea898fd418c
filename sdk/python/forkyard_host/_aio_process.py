"""Commands under way, and streams of events and changes, on the event loop."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, AsyncIterable, Generic, Iterable, Iterator, Self, TypeVar

from ._aio_http import Duplex, Stream
from ._events import SILENCE as EVENTS_SILENCE
from ._events import Lines
from ._output import NO_PIPE, SILENCE, Output, Piece, line, resize
from ._types import Event, ExecResult, FileChange, Unreachable
from ._watch import told

Item = TypeVar("Item")


class AsyncProcess(Output):
    """A command under way; see Process. Iterate with `async for`. A call that is cancelled hangs up on it."""

    def __init__(self, argv: tuple[str, ...], stream: Stream, follows: bool = True) -> None:
        super().__init__(argv, follows)
        self._stream = stream
        self._tasks: list[asyncio.Task[None]] = []
        if isinstance(stream, Duplex):
            self._tasks.append(asyncio.create_task(self._keep(stream)))

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __aiter__(self) -> AsyncProcess:
        return self

    async def __anext__(self) -> Piece:
        while self.code is None:
            try:
                with self._attended():
                    line = await self._stream.line()
                if not line:
                    raise Unreachable("the connection ended before the command")
            except Unreachable as error:
                raise self._lost(error)
            if piece := self._take(line):
                return piece
        raise StopAsyncIteration

    async def finish(self, check: bool = False) -> ExecResult:
        """Read all that is left."""
        return self._result([piece async for piece in self], check)

    async def write(self, data: bytes) -> None:
        """Pass bytes to its standard input. Waits while it does not read."""
        for words in self._input(data):
            await self._say(words)

    async def close_stdin(self) -> None:
        """Nothing follows on its standard input."""
        if not self._stdin_closed:
            await self._say("eof")
            self._stdin_closed = True

    async def send_signal(self, number: int) -> None:
        """Send it a signal; see Process.send_signal."""
        await self._say({"signal": int(number)})

    async def resize(self, rows: int, cols: int) -> None:
        """Its terminal has another size."""
        await self._say(resize(rows, cols))

    def feed(self, pieces: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        """Have a task pass these to its standard input, and then end that; see Process.feed."""
        self._tasks.append(asyncio.create_task(self._feed(pieces)))

    async def close(self) -> None:
        """Hang up on it unless it has ended."""
        self.hang_up()

    def hang_up(self) -> None:
        """Hang up on it, without waiting; a task that reads it fails at once."""
        for task in self._tasks:
            task.cancel()
        self._stream.close()

    @contextmanager
    def _attended(self) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            self.hang_up()
            raise

    async def _say(self, what: Any) -> None:
        if not isinstance(self._stream, Duplex):
            raise ValueError(NO_PIPE)
        with self._attended():
            await self._stream.send(line(what))

    async def _feed(self, pieces: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        try:
            if isinstance(pieces, AsyncIterable):
                async for piece in pieces:
                    await self.write(piece)
            else:
                for piece in pieces:
                    await self.write(piece)
            await self.close_stdin()
        except Unreachable:
            pass  # It has ended, or the reader is told.
        except Exception as error:
            # It would wait for the rest for ever.
            self._unfed = error
            self._stream.close()

    async def _keep(self, stream: Duplex) -> None:
        """Shows the daemon that this client is there."""
        with suppress(Unreachable):
            while True:
                await asyncio.sleep(SILENCE)
                await stream.send(b"\n")


class _AsyncNext(Generic[Item]):
    """A stream to be iterated over with `async for`. Cancelled, it is closed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def __anext__(self) -> Item:
        while not self._closed:
            try:
                line = await self._stream.line()
            except asyncio.CancelledError:
                await self.close()
                raise
            except Unreachable:
                if self._closed:
                    break
                raise
            if not line:
                self._ended()
                await self.close()
            elif (item := self._take(line)) is not None:
                return item
        raise StopAsyncIteration

    def _take(self, line: bytes) -> Item | None:
        raise NotImplementedError

    def _ended(self) -> None:
        """Raises an exception if that is not how it ends."""

    async def close(self) -> None:
        """End it; a loop of another task that reads it ends."""
        self._closed = True
        self._stream.close()


class AsyncEvents(_AsyncNext[Event]):
    """Events of a host; see Events. Iterate with `async for`. Cancelled, it is closed."""

    def __init__(self, stream: Stream, follow: bool) -> None:
        super().__init__(stream)
        self._lines = Lines()
        self._follow = follow
        stream.patience(EVENTS_SILENCE)

    @property
    def position(self) -> str | None:
        """Where to go on after a break."""
        return self._lines.position

    def _take(self, line: bytes) -> Event | None:
        return self._lines.take(line)

    def _ended(self) -> None:
        if self._follow and not self._closed:
            raise Unreachable("the daemon has ended, and with it its events")


class AsyncChanges(_AsyncNext[FileChange]):
    """Changes in a folder of a guest; see Changes. Iterate with `async for`. Cancelled, it is closed."""

    def _take(self, line: bytes) -> FileChange | None:
        return told(line)
