"""A connection a request: HTTP over a Unix socket, or over TLS with a token."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import json
import os
import select
import shutil
import socket
import ssl
import subprocess
import threading
from typing import Any, Callable, Iterable, TypeVar
from urllib.parse import quote, urlsplit

from . import _presence
from ._presence import Presence, Watched
from ._types import ForkyardError, Unreachable


T = TypeVar("T")
_HEAD = 64 << 10  # Most bytes of an answer's head.
# The kernel finds out within a minute that a host is gone, where it can be told to.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


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
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if hasattr(socket, option):
                self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        # Before anything is said: the token is for that daemon alone.
        shown = hashlib.sha256(self.sock.getpeercert(True) or b"").hexdigest()
        if self._fingerprint and not hmac.compare_digest(shown, self._fingerprint):
            self.close()
            raise OSError(f"its certificate is sha256:{shown}, not the one of FORKYARD_CA")
        self.sock.settimeout(None)
        self.sock.__class__ = _SharedTls


def _trust(context: ssl.SSLContext | None) -> tuple[ssl.SSLContext, str | None]:
    """What a certificate is held to, and the fingerprint it must have, if any."""
    held_to = os.environ.get("FORKYARD_CA", "")
    if context:
        return context, None
    if not held_to.startswith("sha256:"):
        return ssl.create_default_context(cafile=held_to or None), None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context, held_to.removeprefix("sha256:").lower()


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
        except OSError as error:
            raise self._broke(error) from error

    def end(self) -> None:
        """Ends the body."""
        try:
            self._connection.send(b"0\r\n\r\n")
        except OSError:
            pass  # It has ended.


class Endpoint:
    """Where the daemon is. Safe to use from many threads: it holds no connection."""

    def __init__(self, url: str | None, token: str | None, context: ssl.SSLContext | None) -> None:
        run = os.environ.get("FORKYARD_RUN_DIR", "/run/forkyard")
        given = url or os.environ.get("FORKYARD_URL")
        self.url = given or f"unix://{run}/api.sock"
        self._run_dir = None if given else run
        """Whose daemon may be started; none if a daemon was named."""
        self._token = token or os.environ.get("FORKYARD_TOKEN")
        self._context = context
        self._parts = urlsplit(self.url)
        if self._parts.scheme not in ("unix", "https"):
            raise ValueError(f"{self.url}: wanted unix:///path or https://host:port")
        self.presence = Presence(self._ping)
        """Connections that wait for this daemon."""

    def silent(self) -> Unreachable:
        """What is told of a daemon that does not even answer pings."""
        seconds = _presence.MISSES * (_presence.PAUSE + _presence.ANSWER)
        return Unreachable(f"the daemon at {self.url} has answered no ping for up to {seconds:.0f} s: it hangs, or its host is gone")

    def _ping(self) -> None:
        """Raises an exception unless the daemon answers in time, whatever it says."""
        connection = self._connection()
        # It may have been closed by the time that is up.
        timer = threading.Timer(_presence.ANSWER, lambda: _shut(connection.sock))
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            connection.request("GET", "/v1/ping", headers=self._headers())
            connection.getresponse().read()
        finally:
            timer.cancel()
            connection.close()

    def _headers(self) -> dict[str, str]:
        if self._token and self._parts.scheme == "https":
            return {"Authorization": f"Bearer {self._token}"}
        return {}

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
        return _TlsConnection(self._parts.netloc, *_trust(self._context))

    def _connected(self) -> http.client.HTTPConnection:
        """A connection to the daemon, which is started if none runs and none was named."""
        connection = self._connection()
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            program = shutil.which("forkyard")
            if self._run_dir is None or program is None:
                raise
            started = subprocess.run([program, "--run-dir", self._run_dir, "ps"], capture_output=True)
            if started.returncode:
                raise OSError(started.stderr.decode(errors="replace").strip()) from None
            connection.connect()
        return connection

    def open(self, method: str, path: str, body: Any = None, content: Iterable[bytes] | None = None) -> Stream:
        """Sends a request, with a body as JSON or with content as it is. ForkyardError unless it succeeds."""
        headers = {"Content-Type": "application/json" if content is None else "application/octet-stream", **self._headers()}
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
                    connection.request(method, path, None if body is None else json.dumps(body), headers)
            except (BrokenPipeError, ConnectionResetError):
                # The daemon took no more of it, and says why.
                if content is None:
                    raise
            # The response takes it away from the connection.
            sock = connection.sock
            stream = Stream(self, connection, connection.getresponse(), watched, sock)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(connection, watched, error) from error
        status = stream._response.status
        if status < 300:
            return stream
        try:
            answer = stream.read()
        finally:
            stream.close()
        raise _refusal(status, answer)

    def duplex(self, path: str, first: Any) -> Duplex:
        """Posts lines of JSON, of which this is the first, if any. ForkyardError unless the request is taken."""
        connection: http.client.HTTPConnection | None = None
        watched: Watched | None = None
        try:
            connection = self._connected()
            watched = self.presence.watch(connection.sock)
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/x-ndjson")
            connection.putheader("Transfer-Encoding", "chunked")
            for name, value in self._headers().items():
                connection.putheader(name, value)
            connection.endheaders()
            sock = connection.sock
            # An empty line says nothing.
            line = (b"" if first is None else json.dumps(first).encode()) + b"\n"
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
        raise _refusal(response.status, answer)

    def upgrade(self, path: str) -> socket.socket:
        """A connection of TCP that a request becomes. ForkyardError if it is refused."""
        connection: http.client.HTTPConnection | None = None
        watched: Watched | None = None
        try:
            connection = self._connected()
            sock = connection.sock
            watched = self.presence.watch(sock)
            lines = [f"GET {path} HTTP/1.1", f"Host: {self._parts.netloc or 'forkyard'}", "Connection: Upgrade", "Upgrade: tcp"]
            lines += [f"{name}: {value}" for name, value in self._headers().items()]
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            # Byte by byte: what follows the head is the server's, and is to be read from the socket.
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                byte = sock.recv(1)
                if not byte or len(head) > _HEAD:
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
        raise _refusal(status, answer)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and reads the whole answer."""
        stream = self.open(method, path, body)
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


def of_vm(vm: str, *rest: str) -> str:
    """The path of a VM, or of something it can do."""
    return "/v1/vms/" + "/".join(quote(part, safe="") for part in (vm, *rest))


def of_substrate(name: str, *rest: str) -> str:
    """The path of a substrate, or of something that is done with it."""
    return "/v1/substrates/" + "/".join(quote(part, safe="") for part in (name, *rest))


def of_volume(name: str, *rest: str) -> str:
    """The path of a volume, or of something that is done with it."""
    return "/v1/volumes/" + "/".join(quote(part, safe="") for part in (name, *rest))


def of_image(name: str, *rest: str) -> str:
    """The path of an image, or of something that is done with it."""
    return "/v1/images/" + "/".join(quote(part, safe="") for part in (name, *rest))


def of_files(vm: str, what: str, **query: str) -> str:
    """The path of a request about files of a VM."""
    return of_vm(vm, what) + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


def _refusal(status: int, answer: bytes) -> ForkyardError:
    try:
        return ForkyardError.of(json.loads(answer))
    except (ValueError, AttributeError):
        return ForkyardError("host", f"the daemon answered {status}: {answer[:200].decode(errors='replace')}")
