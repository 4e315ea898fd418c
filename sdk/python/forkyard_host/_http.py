"""A connection a request: HTTP over a Unix socket, or over TLS with a token."""

from __future__ import annotations

import http.client
import io
import json
import select
import socket
import ssl
import subprocess
import threading
from typing import Any, Callable, Iterable, TypeVar

from . import _presence
from ._calls import Call, encoded
from ._place import HEAD, Place, believe, keep_alive, refusal
from ._presence import Presence, Watched
from ._types import Unreachable


T = TypeVar("T")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("forkyard")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # One that accepts nothing has room for some, and then for none.
            self.sock.settimeout(_presence.CONNECT)
            self.sock.connect(self._path)
            self.sock.settimeout(None)
        except OSError:
            self.sock.close()
            raise


class _SharedTls(ssl.SSLSocket):
    """One thread may read while another writes: TLS itself allows one at a time."""

    def _turns(self, call: Callable[[], T]) -> T:
        lock = self.__dict__.setdefault("_turn", threading.Lock())
        while True:
            try:
                with lock:
                    self.setblocking(False)
                    return call()
            except ssl.SSLWantReadError:
                select.select([self], [], [])
            except ssl.SSLWantWriteError:
                select.select([], [self], [])

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        return self._turns(lambda: ssl.SSLSocket.recv_into(self, buffer, nbytes, flags))

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return self._turns(lambda: ssl.SSLSocket.recv(self, buflen, flags))

    def send(self, data: Any, flags: int = 0) -> int:
        return self._turns(lambda: ssl.SSLSocket.send(self, data, flags))

    def sendall(self, data: Any, flags: int = 0) -> None:
        left = memoryview(data).cast("B")
        while left:
            sent = self._turns(lambda: ssl.SSLSocket.send(self, left, flags))
            left = left[sent:]


class _TlsConnection(http.client.HTTPSConnection):
    """Believes one certificate, whoever vouches for it, if given its fingerprint."""

    def __init__(self, netloc: str, context: ssl.SSLContext, fingerprint: str | None) -> None:
        super().__init__(netloc, context=context)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        self.timeout = _presence.CONNECT
        super().connect()
        keep_alive(self.sock)
        try:
            # Before anything is said: the token is for that daemon alone.
            believe(self.sock.getpeercert(True), self._fingerprint)
        except OSError:
            self.close()
            raise
        self.sock.settimeout(None)
        self.sock.__class__ = _SharedTls


class Stream:
    """An answer that is still being given."""

    def __init__(
        self,
        end: Endpoint,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        watched: Watched,
        sock: socket.socket,
    ) -> None:
        self._end = end
        self._connection = connection
        self._response = response
        self._watched = watched
        self._sock = sock

    def line(self) -> bytes:
        """The next line, or none at the end. Blocks."""
        return self._got(self._response.readline)

    def read(self, size: int | None = None) -> bytes:
        """The rest, or so many bytes of it at most. Blocks."""
        return self._got(lambda: self._response.read(size))

    def some(self, size: int) -> bytes:
        """So many bytes of it at most, and at least one unless it has ended. Blocks."""
        return self._got(lambda: self._response.read1(size))

    def _got(self, read: Callable[[], bytes]) -> bytes:
        try:
            got = read()
        except (OSError, http.client.HTTPException) as error:
            raise self._broke(error) from error
        # An end that was made here is none of the answer.
        if not got and self._watched.lost:
            raise self._broke(None)
        return got

    def _broke(self, error: Exception | None) -> Unreachable:
        return self._end.silent() if self._watched.lost else Unreachable(f"the daemon closed the connection: {error}")

    def patience(self, seconds: float) -> None:
        """Bounds the wait for each line; over TLS there is no bound."""
        self._sock.settimeout(seconds)

    def hang_up(self) -> None:
        """Ends it, also under another thread that reads."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has ended.

    def close(self) -> None:
        self._end.presence.forget(self._watched)
        self._response.close()
        self._connection.close()


class Duplex(Stream):
    """A request whose body is still being sent while its answer is read. Each may be on a thread of its own."""

    def send(self, data: bytes) -> None:
        """Sends bytes of the body. Blocks while the daemon takes no more."""
        try:
            self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        except (OSError, http.client.NotConnected) as error:
            raise self._broke(error) from error

    def end(self) -> None:
        """Ends the body."""
        try:
            self._connection.send(b"0\r\n\r\n")
        except (OSError, http.client.NotConnected):
            pass  # It has ended.


class Endpoint(Place):
    """A daemon. Safe to use from many threads: it holds no connection."""

    def __init__(self, url: str | None, token: str | None, context: ssl.SSLContext | None) -> None:
        super().__init__(url, token, context)
        self.presence = Presence(self._ping)
        """Connections that wait for this daemon."""

    def _ping(self) -> None:
        """Raises an exception unless the daemon answers in time, whatever it says."""
        connection = self._connection()
        # It may have been closed by the time that is up.
        timer = threading.Timer(_presence.ANSWER, lambda: _shut(connection.sock))
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            connection.request("GET", "/v1/ping", headers=self.headers())
            connection.getresponse().read()
        finally:
            timer.cancel()
            connection.close()

    def _failed(self, connection: http.client.HTTPConnection | None, watched: Watched | None, error: Exception) -> Unreachable:
        """Closes a connection on which no answer came; the exception that says so."""
        if watched:
            self.presence.forget(watched)
        if connection:
            connection.close()
        if watched and watched.lost:
            return self.silent()
        return Unreachable(f"no daemon answers at {self.url}: {error}")

    def _connection(self) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path)
        return _TlsConnection(self._parts.netloc, *self.trust())

    def _connected(self) -> http.client.HTTPConnection:
        """A connection to the daemon, which is started if none runs and none was named."""
        connection = self._connection()
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            starter = self.starter()
            if starter is None:
                raise
            started = subprocess.run(starter, capture_output=True)
            if started.returncode:
                raise OSError(started.stderr.decode(errors="replace").strip()) from None
            connection.connect()
        return connection

    def open(self, method: str, path: str, body: Any = None, content: Iterable[bytes] | None = None) -> Stream:
        """Sends a request, with a body as JSON or with content as it is. ForkyardError unless it succeeds."""
        headers = {"Content-Type": "application/json" if content is None else "application/octet-stream", **self.headers()}
        sent = None if body is None else encoded(body)
        connection: http.client.HTTPConnection | None = None
        watched: Watched | None = None
        try:
            connection = self._connected()
            watched = self.presence.watch(connection.sock)
            try:
                if content is not None:
                    headers["Transfer-Encoding"] = "chunked"
                    connection.request(method, path, content, headers, encode_chunked=True)
                else:
                    connection.request(method, path, sent, headers)
            except (BrokenPipeError, ConnectionResetError):
                # The daemon took no more of it, and says why.
                if content is None:
                    raise
            # The response takes it away from the connection.
            sock = connection.sock
            stream = Stream(self, connection, connection.getresponse(), watched, sock)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(connection, watched, error) from error
        except BaseException as error:
            # Of what gives the content.
            self._failed(connection, watched, OSError(error))
            raise
        status = stream._response.status
        if status < 300:
            return stream
        try:
            answer = stream.read()
        finally:
            stream.close()
        raise refusal(status, answer)

    def duplex(self, path: str, first: Any) -> Duplex:
        """Posts lines of JSON, of which this is the first, if any. ForkyardError unless the request is taken."""
        begin = b"" if first is None else encoded(first)
        connection: http.client.HTTPConnection | None = None
        watched: Watched | None = None
        try:
            connection = self._connected()
            watched = self.presence.watch(connection.sock)
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/x-ndjson")
            connection.putheader("Transfer-Encoding", "chunked")
            for name, value in self.headers().items():
                connection.putheader(name, value)
            connection.endheaders()
            sock = connection.sock
            # An empty line says nothing.
            # Once it is closed, what still is fed must not open another one.
            connection.auto_open = 0
            line = begin + b"\n"
            connection.send(b"%x\r\n%b\r\n" % (len(line), line))
            response = connection.getresponse()
            # The response takes it away from the connection, which goes on sending.
            connection.sock = sock
            stream = Duplex(self, connection, response, watched, sock)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(connection, watched, error) from error
        if response.status < 300:
            return stream
        try:
            answer = stream.read()
        finally:
            stream.close()
        raise refusal(response.status, answer)

    def upgrade(self, path: str) -> socket.socket:
        """A connection of TCP that a request becomes. ForkyardError if it is refused."""
        connection: http.client.HTTPConnection | None = None
        watched: Watched | None = None
        try:
            connection = self._connected()
            sock = connection.sock
            watched = self.presence.watch(sock)
            lines = [f"GET {path} HTTP/1.1", f"Host: {self._parts.netloc or 'forkyard'}", "Connection: Upgrade", "Upgrade: tcp"]
            lines += [f"{name}: {value}" for name, value in self.headers().items()]
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            # Byte by byte: what follows the head is the server's, and is to be read from the socket.
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                byte = sock.recv(1)
                if not byte or len(head) > HEAD:
                    raise OSError("the daemon closed the connection")
                head += byte
            first, _, rest = head.partition(b"\r\n")
            status = int(first.split()[1])
            if status == 101:
                # From now on it is between its user and the server.
                self.presence.forget(watched)
                return sock
            left = int(http.client.parse_headers(io.BytesIO(rest)).get("Content-Length", "0"))
            answer = b""
            while len(answer) < left and (piece := sock.recv(left - len(answer))):
                answer += piece
        except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
            raise self._failed(connection, watched, error) from error
        self.presence.forget(watched)
        connection.close()
        raise refusal(status, answer)

    def ask(self, call: Call, content: Iterable[bytes] | None = None) -> Any:
        """Sends a request and reads the whole answer."""
        stream = self.open(call.method, call.path, call.body, content)
        try:
            return json.loads(stream.read() or "null")
        finally:
            stream.close()


def _shut(sock: socket.socket | None) -> None:
    """Ends a connection under whatever waits on it."""
    try:
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended.
