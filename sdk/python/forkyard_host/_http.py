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

from ._types import ForkyardError, Unreachable


T = TypeVar("T")
_HEAD = 64 << 10  # Most bytes of an answer's head.


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("forkyard")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.connect(self._path)
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
        super().connect()
        # Before anything is said: the token is for that daemon alone.
        shown = hashlib.sha256(self.sock.getpeercert(True) or b"").hexdigest()
        if self._fingerprint and not hmac.compare_digest(shown, self._fingerprint):
            self.close()
            raise OSError(f"its certificate is sha256:{shown}, not the one of FORKYARD_CA")
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

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, sock: socket.socket) -> None:
        self._connection = connection
        self._response = response
        self._sock = sock

    def line(self) -> bytes:
        """The next line, or none at the end. Blocks."""
        try:
            return self._response.readline()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the daemon closed the connection: {error}") from error

    def read(self, size: int | None = None) -> bytes:
        """The rest, or so many bytes of it at most. Blocks."""
        try:
            return self._response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the daemon closed the connection: {error}") from error

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
        self._response.close()
        self._connection.close()


class Duplex(Stream):
    """A request whose body is still being sent while its answer is read. Each may be on a thread of its own."""

    def send(self, data: bytes) -> None:
        """Sends bytes of the body. Blocks while the daemon takes no more."""
        try:
            self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        except OSError as error:
            raise Unreachable(f"the daemon closed the connection: {error}") from error

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
        headers = {"Content-Type": "application/json" if content is None else "application/octet-stream"}
        if self._token and self._parts.scheme == "https":
            headers["Authorization"] = f"Bearer {self._token}"
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._connected()
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
            stream = Stream(connection, connection.getresponse(), sock)
        except (OSError, http.client.HTTPException) as error:
            if connection:
                connection.close()
            raise Unreachable(f"no daemon answers at {self.url}: {error}") from error
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
        try:
            connection = self._connected()
            connection.putrequest("POST", path)
            connection.putheader("Content-Type", "application/x-ndjson")
            connection.putheader("Transfer-Encoding", "chunked")
            if self._token and self._parts.scheme == "https":
                connection.putheader("Authorization", f"Bearer {self._token}")
            connection.endheaders()
            sock = connection.sock
            # An empty line says nothing.
            line = (b"" if first is None else json.dumps(first).encode()) + b"\n"
            connection.send(b"%x\r\n%b\r\n" % (len(line), line))
            response = connection.getresponse()
            # The response takes it away from the connection, which goes on sending.
            connection.sock = sock
            stream = Duplex(connection, response, sock)
        except (OSError, http.client.HTTPException) as error:
            if connection:
                connection.close()
            raise Unreachable(f"no daemon answers at {self.url}: {error}") from error
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
        try:
            connection = self._connected()
            sock = connection.sock
            lines = [f"GET {path} HTTP/1.1", f"Host: {self._parts.netloc or 'forkyard'}", "Connection: Upgrade", "Upgrade: tcp"]
            if self._token and self._parts.scheme == "https":
                lines.append(f"Authorization: Bearer {self._token}")
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
                return sock
            left = int(http.client.parse_headers(io.BytesIO(rest)).get("Content-Length", "0"))
            answer = b""
            while len(answer) < left and (piece := sock.recv(left - len(answer))):
                answer += piece
        except (OSError, http.client.HTTPException, ValueError, IndexError) as error:
            if connection:
                connection.close()
            raise Unreachable(f"no daemon answers at {self.url}: {error}") from error
        connection.close()
        raise _refusal(status, answer)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and reads the whole answer."""
        stream = self.open(method, path, body)
        try:
            return json.loads(stream.read() or "null")
        finally:
            stream.close()


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
