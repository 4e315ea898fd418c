"""A connection a request, on the event loop: HTTP/1.1 over a Unix socket, or over TLS with a token.

A call that is cancelled closes its connection: what the daemon had begun it carries out all the same, but for a command, which is
hung up on. There is no thread and no pool.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import weakref
from contextlib import suppress
from typing import Any, AsyncIterator, Iterable

from . import _presence
from ._calls import Call, encoded
from ._output import line
from ._place import HEAD, Place, believe, keep_alive, refusal
from ._presence import Watched
from ._types import Unreachable

_FULL = 0.01  # Seconds until a daemon with too many callers is called again.
_READ = 64 << 10  # Bytes that are read at once at most.


class _Malformed(Exception):
    """What came is no HTTP."""


_BROKEN = (OSError, EOFError, ValueError, _Malformed)


class _Reader(asyncio.StreamReader):
    """Hands out what came before the connection broke: asyncio's own forgets a refusal that was sent before the rest of a request."""

    broken: Exception | None = None
    http = True
    """Cleared once it is between its user and a server."""

    def set_exception(self, exc: Exception) -> None:
        if not self.http:
            return super().set_exception(exc)
        self.broken = exc
        self.feed_eof()


class Connection:
    """A connection to a daemon, and what is told on it."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._chunked = False
        self._left: int | None = None
        self._over = False

    def end(self) -> None:
        """Ends it under whatever waits on it."""
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Sends bytes. Waits while the daemon takes no more; cancelled, they are sent all the same."""
        if self.writer.is_closing():
            raise ConnectionResetError("the connection was closed")
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """Sends a piece of a body."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def head(self) -> int:
        """Reads the head of an answer; its status."""
        status, headers = await self.interim()
        while 100 <= status < 200 and status != 101:
            status, headers = await self.interim()
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if status in (204, 304):
            self._over = True
        elif not self._chunked and "content-length" in headers:
            self._left = int(headers["content-length"])
            self._over = self._left == 0
        return status

    async def interim(self) -> tuple[int, dict[str, str]]:
        """Reads one head."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise _Malformed("the head of its answer is too long") from error
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1."):
            raise _Malformed(f"it answered {first!r}, which is not HTTP")
        fields = (each.partition(":") for each in lines if each)
        return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in fields}

    async def piece(self) -> bytes:
        """The next bytes of the body, none at its end. Cancelled, nothing is lost."""
        if self._over:
            return b""
        if self._chunked and self._left is None:
            head = await self.reader.readuntil(b"\r\n")
            # What ends the chunk before.
            if head == b"\r\n":
                head = await self.reader.readuntil(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if size < 0:
                raise _Malformed("a chunk of less than nothing")
            if size == 0:
                self._over = True
                return b""
            self._left = size
        data = await self.reader.read(_READ if self._left is None else min(self._left, _READ))
        if not data:
            if self._left is None and self.reader.broken is None:
                self._over = True
                return b""
            raise self.reader.broken or EOFError("it ended before the answer did")
        if self._left is not None:
            self._left -= len(data)
            if self._left == 0:
                self._left = None
                self._over = not self._chunked
        return data


class Stream:
    """An answer that is still being given."""

    def __init__(self, end: AsyncEndpoint, connection: Connection, watched: Watched) -> None:
        self._end = end
        self._connection = connection
        self._watched = watched
        self._buffer = bytearray()
        self._patience: float | None = None

    async def line(self) -> bytes:
        """The next line, or none at the end. Cancelled, nothing is lost."""
        searched = 0
        while (at := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            piece = await self._piece()
            if not piece:
                at = len(self._buffer) - 1
                break
            self._buffer += piece
        got = bytes(self._buffer[: at + 1])
        del self._buffer[: at + 1]
        return got

    async def pieces(self) -> AsyncIterator[bytes]:
        """The rest, piece by piece."""
        while piece := await self._piece():
            yield piece

    async def read(self) -> bytes:
        """The rest."""
        return b"".join([piece async for piece in self.pieces()])

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                got = await self._connection.piece()
        except TimeoutError as error:
            raise self._broke(error) from error
        except _BROKEN as error:
            raise self._broke(error) from error
        # An end that was made here is none of the answer.
        if not got and self._watched.lost:
            raise self._broke(None)
        return got

    def _broke(self, error: Exception | None) -> Unreachable:
        return self._end.silent() if self._watched.lost else Unreachable(f"the daemon closed the connection: {error}")

    def patience(self, seconds: float) -> None:
        """Bounds the wait for each piece."""
        self._patience = seconds

    def close(self) -> None:
        """Ends it at once, also under another task that reads."""
        self._end.presence.forget(self._watched)
        self._connection.end()


class Duplex(Stream):
    """A request whose body is still being sent while its answer is read. Each may be by a task of its own."""

    async def send(self, data: bytes) -> None:
        """Sends bytes of the body. Waits while the daemon takes no more."""
        try:
            await self._connection.chunk(data)
        except OSError as error:
            raise self._broke(error) from error


class _Presence:
    """The connections to one daemon, and a task that asks whether it is there as long as there are any."""

    def __init__(self, end: AsyncEndpoint) -> None:
        self._end = end
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._task: asyncio.Task[None] | None = None

    def watch(self, connection: Connection) -> Watched:
        """Watches a connection until it is forgotten."""
        watched = Watched(connection)
        self._watched.add(watched)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return watched

    def forget(self, watched: Watched) -> None:
        """Watches a connection no more."""
        self._watched.discard(watched)
        # A program's loop is to end when its work does.
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_presence.PAUSE)
            asked = list(self._watched)
            try:
                async with asyncio.timeout(_presence.ANSWER):
                    await self._end.ping()
                answered = True
            except Exception:
                answered = False
            for watched in asked:
                # One that was forgotten meanwhile is not concerned.
                if watched in self._watched:
                    watched.note(answered)


class AsyncEndpoint(Place):
    """A daemon. It holds no connection; it is used in one event loop at a time."""

    def __init__(self, url: str | None, token: str | None, context: ssl.SSLContext | None) -> None:
        super().__init__(url, token, context)
        self.presence = _Presence(self)
        """Connections that wait for this daemon."""

    async def ask(self, call: Call, content: Iterable[bytes] | None = None) -> Any:
        """Sends a request and reads the whole answer."""
        stream = await self.open(call.method, call.path, call.body, content)
        try:
            return json.loads(await stream.read() or "null")
        finally:
            stream.close()

    async def open(self, method: str, path: str, body: Any = None, content: Iterable[bytes] | None = None) -> Stream:
        """Sends a request, with a body as JSON or with content as it is. ForkyardError unless it succeeds."""
        sent = b"" if body is None else encoded(body)
        kind = "application/json" if content is None else "application/octet-stream"
        length = f"Content-Length: {len(sent)}" if content is None else "Transfer-Encoding: chunked"
        connection = await self._connected()
        watched = self.presence.watch(connection)
        try:
            await connection.send(self._head(method, path, f"Content-Type: {kind}", length) + sent)
            status = await connection.head() if content is None else await self._send(connection, content)
        except BaseException as error:
            self._fail(connection, watched, error)
        return await self._accepted(Stream(self, connection, watched), status)

    async def duplex(self, path: str, first: Any) -> Duplex:
        """Posts lines of JSON, of which this is the first, if any. ForkyardError unless the request is taken."""
        connection = await self._connected()
        watched = self.presence.watch(connection)
        try:
            await connection.send(self._head("POST", path, "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked"))
            # An empty line says nothing.
            await connection.chunk(b"\n" if first is None else line(first))
            status = await connection.head()
        except BaseException as error:
            self._fail(connection, watched, error)
        stream = Duplex(self, connection, watched)
        await self._accepted(stream, status)
        return stream

    async def upgrade(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of TCP that a request becomes. ForkyardError if it is refused."""
        connection = await self._connected()
        watched = self.presence.watch(connection)
        try:
            await connection.send(self._head("GET", path, "Connection: Upgrade", "Upgrade: tcp"))
            status = await connection.head()
        except BaseException as error:
            self._fail(connection, watched, error)
        if status == 101:
            # From now on it is between its user and the server.
            self.presence.forget(watched)
            connection.reader.http = False
            return connection.reader, connection.writer
        await self._accepted(Stream(self, connection, watched), status)
        connection.end()
        raise Unreachable(f"the daemon answered {status} where it was to give a connection")

    async def ping(self) -> None:
        """Raises an exception unless the daemon answers, whatever it says."""
        connection = await self._connection()
        try:
            await connection.send(self._head("GET", "/v1/ping"))
            await connection.head()
        finally:
            connection.end()

    def _head(self, method: str, path: str, *lines: str) -> bytes:
        host = self._parts.netloc or "forkyard"
        given = [f"{name}: {value}" for name, value in self.headers().items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, *given, "", ""]).encode("latin-1")

    async def _send(self, connection: Connection, content: Iterable[bytes]) -> int:
        """Sends a body as long as no answer comes; the status of that."""
        answering = asyncio.ensure_future(connection.head())
        try:
            try:
                for piece in content:
                    if answering.done():
                        break
                    if piece:
                        await connection.chunk(piece)
                    # Packing a folder reads files: others have their turn.
                    await asyncio.sleep(0)
                else:
                    await connection.send(b"0\r\n\r\n")
            except ConnectionError:
                pass  # The daemon took no more of it, and says why.
            return await answering
        finally:
            answering.cancel()
            with suppress(BaseException):
                if answering.done() and not answering.cancelled():
                    answering.exception()

    async def _accepted(self, stream: Stream, status: int) -> Stream:
        if status < 300:
            return stream
        try:
            answer = await stream.read()
        finally:
            stream.close()
        raise refusal(status, answer)

    def _fail(self, connection: Connection, watched: Watched, error: BaseException) -> None:
        """Closes a connection on which no answer came, and raises what says so."""
        self.presence.forget(watched)
        connection.end()
        if not isinstance(error, _BROKEN):
            raise error
        if watched.lost:
            raise self.silent() from error
        raise Unreachable(f"no daemon answers at {self.url}: {error}") from error

    async def _connected(self) -> Connection:
        """A connection to the daemon, which is started if none runs and none was named."""
        try:
            try:
                return await self._connection()
            except (FileNotFoundError, ConnectionRefusedError):
                starter = self.starter()
                if starter is None:
                    raise
                await _start(starter)
                return await self._connection()
        except TimeoutError as error:
            raise Unreachable(f"no daemon answers at {self.url}: no connection within {_presence.CONNECT:.0f} s") from error
        except OSError as error:
            raise Unreachable(f"no daemon answers at {self.url}: {error}") from error

    async def _connection(self) -> Connection:
        async with asyncio.timeout(_presence.CONNECT):
            if self._parts.scheme == "unix":
                return await _streams(sock=await _unix(self._parts.path))
            context, fingerprint = self.trust()
            connection = await _streams(host=self._parts.hostname, port=self._parts.port or 443, ssl=context)
        try:
            keep_alive(connection.writer.get_extra_info("socket"))
            # Before anything is said: the token is for that daemon alone.
            believe(connection.writer.get_extra_info("ssl_object").getpeercert(True), fingerprint)
        except BaseException:
            connection.end()
            raise
        return connection


async def _streams(**where: Any) -> Connection:
    loop = asyncio.get_running_loop()
    reader = _Reader(limit=HEAD, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, **where)
    return Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def _unix(path: str) -> socket.socket:
    """Connects to a Unix socket. asyncio takes one whose queue is full for connected: it is asked again here."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:
                await asyncio.sleep(_FULL)
    except BaseException:
        sock.close()
        raise


async def _start(command: list[str]) -> None:
    """Runs the command that starts a daemon. Cancelled, it goes on."""
    starting = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    _, said = await starting.communicate()
    if starting.returncode:
        raise OSError(said.decode(errors="replace").strip())
