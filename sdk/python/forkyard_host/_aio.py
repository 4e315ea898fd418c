"""The client for asyncio: the other one, each call on a thread of its own; there is no pool, so no call waits for another.

A call that is cancelled is carried out all the same, but for a command, which
is hung up on.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from os import PathLike
from types import TracebackType
from typing import Any, Callable, Generic, Iterable, List, Literal, Mapping, Protocol, Self, TypeVar

from ._client import _INLINE, PIPE, Files, Forkyard, Pipe, Vm
from ._events import Events
from ._process import Process
from ._threads import on_thread
from ._types import Event, ExecResult, FileChange, FileEntry, Forked, ForkyardError

Item = TypeVar("Item", covariant=True)


class _Stream(Protocol[Item]):
    def next(self) -> Item | None: ...

    def close(self) -> None: ...


class AsyncForkyard:
    """A host of VMs; see Forkyard."""

    def __init__(self, url: str | None = None, token: str | None = None, *, context: ssl.SSLContext | None = None) -> None:
        self._sync = Forkyard(url, token, context=context)

    async def run(
        self, image: str, *, name: str | None = None, vcpus: int = 1, memory: int = 256 << 20, warm: int = 0, **more: Any
    ) -> AsyncVm:
        """Boot a VM; see Forkyard.run."""
        options: dict[str, Any] = {"name": name, "vcpus": vcpus, "memory": memory, "warm": warm, **more}
        return AsyncVm(await on_thread(self._sync.run, image, **options))

    async def vms(self) -> list[AsyncVm]:
        """Every VM, the oldest first."""
        return [AsyncVm(vm) for vm in await on_thread(self._sync.vms)]

    async def vm(self, name: str) -> AsyncVm:
        """The VM of this name or id."""
        return AsyncVm(await on_thread(self._sync.vm, name))

    async def events(
        self,
        *,
        vm: str | None = None,
        family: str | None = None,
        kinds: Iterable[str] = (),
        since: str | int | None = None,
        follow: bool = True,
    ) -> AsyncEvents:
        """Events of the host, as they happen; see Forkyard.events. Iterate with `async for`."""
        options: dict[str, Any] = {"vm": vm, "family": family, "kinds": kinds, "since": since, "follow": follow}
        return AsyncEvents(await on_thread(self._sync.events, **options))

    async def migrate(self, vms: Iterable[str], to: str, **more: Any) -> list[dict[str, Any]]:
        """Move VMs of this host to another as one; see Forkyard.migrate."""
        return await on_thread(self._sync.migrate, vms, to, **more)

    async def substrates(self) -> list[dict[str, Any]]:
        """Every substrate that this user may activate."""
        return await on_thread(self._sync.substrates)

    async def substrate(self, name: str) -> dict[str, Any]:
        """Where a substrate's bytes are."""
        return await on_thread(self._sync.substrate, name)

    async def activate(self, substrate: str, count: int = 1, *, name: str | None = None, **more: Any) -> list[AsyncVm]:
        """Make VMs of a substrate; see Forkyard.activate."""
        made = await on_thread(self._sync.activate, substrate, count, name=name, **more)
        return [AsyncVm(vm) for vm in made]

    async def keep_standby(
        self, substrate: str, count: int | None = None, *, memory_mib: int = 1024
    ) -> dict[str, Any]:
        """Keep VMs of a substrate ready; see Forkyard.keep_standby."""
        return await on_thread(self._sync.keep_standby, substrate, count, memory_mib=memory_mib)

    async def remove_substrate(self, name: str) -> None:
        """Remove a substrate that nothing lies over."""
        await on_thread(self._sync.remove_substrate, name)

    async def volumes(self) -> list[dict[str, Any]]:
        """Every volume, sorted by name."""
        return await on_thread(self._sync.volumes)

    async def volume(self, name: str) -> dict[str, Any]:
        """A volume, its snapshots, and the VMs that have it."""
        return await on_thread(self._sync.volume, name)

    async def images(self) -> list[dict[str, Any]]:
        """Every image."""
        return await on_thread(self._sync.images)

    async def image(self, name: str) -> dict[str, Any]:
        """An image: where it is from, its digest, what it runs."""
        return await on_thread(self._sync.image, name)

    async def pull_image(
        self, reference: str, name: str, *, start: bool = False, size: int | None = None, size_mib: int | None = None
    ) -> dict[str, Any]:
        """Make an image of a container image in a registry; see Forkyard.pull_image."""
        size_of = {"size": size, "size_mib": size_mib}
        return await on_thread(self._sync.pull_image, reference, name, start=start, **size_of)

    async def commit_image(self, vm: str, name: str) -> dict[str, Any]:
        """Make an image of a VM's disk; see Forkyard.commit_image."""
        return await on_thread(self._sync.commit_image, vm, name)

    async def remove_image(self, name: str) -> None:
        """Remove an image that no VM is of."""
        await on_thread(self._sync.remove_image, name)

    async def create_volume(self, name: str, size: int | None = None, *, image: str | None = None) -> dict[str, Any]:
        """Make a volume; see Forkyard.create_volume."""
        return await on_thread(self._sync.create_volume, name, size, image=image)

    async def snapshot_volume(self, name: str, snapshot: str) -> dict[str, Any]:
        """Keep a volume as it is, also while a VM writes it."""
        return await on_thread(self._sync.snapshot_volume, name, snapshot)

    async def remove_volume(self, name: str) -> None:
        """Remove a volume that no VM has, with its snapshots."""
        await on_thread(self._sync.remove_volume, name)


class AsyncVm:
    """A VM; see Vm. As an async context manager it is removed at the end."""

    def __init__(self, vm: Vm) -> None:
        self._sync = vm
        self.id = vm.id
        self.name = vm.name
        self.ip = vm.ip
        self.files = AsyncFiles(vm.files)

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"

    async def __aenter__(self) -> AsyncVm:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.remove()
        except ForkyardError as gone:
            if gone.kind != "not_found":
                raise

    @property
    def state(self) -> str:
        """As of the last answer."""
        return self._sync.state

    async def refresh(self) -> AsyncVm:
        """Ask the host how it is."""
        await on_thread(self._sync.refresh)
        return self

    async def fork(self, count: int = 1, *, live: bool = False, **more: Any) -> Forked[AsyncVm]:
        """Fork it; see Vm.fork."""
        made = await on_thread(self._sync.fork, count, live=live, **more)
        return Forked(made.id, [AsyncVm(vm) for vm in made.vms], made.errors, made.report)

    async def checkpoint(self, name: str | None = None, *, live: bool = False) -> AsyncVm:
        """Keep this instant on disk."""
        return AsyncVm(await on_thread(self._sync.checkpoint, name, live=live))

    async def migrate(self, to: str, **more: Any) -> dict[str, Any]:
        """Move it to another host; see Vm.migrate."""
        return await on_thread(self._sync.migrate, to, **more)

    async def make_independent(self) -> dict[str, Any]:
        """Have its disk come to depend on nothing; see Vm.make_independent."""
        return await on_thread(self._sync.make_independent)

    async def dock(self, name: str, kind: str = "public", *, live: bool = False, **more: Any) -> dict[str, Any]:
        """Make a substrate of it; see Vm.dock."""
        return await on_thread(self._sync.dock, name, kind, live=live, **more)

    async def pause(self) -> None:
        """Have it stand still."""
        await on_thread(self._sync.pause)

    async def resume(self) -> None:
        """Let it go on."""
        await on_thread(self._sync.resume)

    async def boot(self) -> None:
        """Boot it again, from its own disk, once it has stopped."""
        await asyncio.to_thread(self._sync.boot)

    async def stop(self) -> None:
        """Power it off."""
        await on_thread(self._sync.stop)

    async def remove(self) -> None:
        """End it, and remove all that is its own."""
        await on_thread(self._sync.remove)

    async def start(
        self,
        *argv: str,
        stdin: bytes | Pipe = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        workdir: str | None = None,
        user: str | None = None,
        tty: tuple[int, int] | None = None,
    ) -> AsyncProcess:
        """Start a command whose output is read as it comes; see Vm.start. Cancelled, it is hung up on."""
        options: dict[str, Any] = {"stdin": stdin, "env": env, "timeout": timeout, "workdir": workdir, "user": user, "tty": tty}
        starting = asyncio.ensure_future(on_thread(self._sync.start, *argv, **options))
        try:
            return AsyncProcess(await asyncio.shield(starting))
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().close())
            raise

    async def exec(
        self,
        *argv: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        workdir: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Run a command to its end; see Vm.exec. Cancelled, it is hung up on."""
        more: dict[str, Any] = {"env": env, "timeout": timeout, "workdir": workdir, "user": user}
        async with await self.start(*argv, stdin=PIPE if len(stdin) > _INLINE else stdin, **more) as process:
            if len(stdin) > _INLINE:
                process._sync.feed([stdin])
            return await process.finish(check)

    async def detach(self, *argv: str, **more: Any) -> int:
        """Start a command and leave it to itself; see Vm.detach."""
        return await on_thread(self._sync.detach, *argv, **more)

    async def sessions(self) -> list[dict[str, Any]]:
        """Commands that it keeps."""
        return await on_thread(self._sync.sessions)

    async def attach(self, pid: int) -> AsyncProcess:
        """Follow a command that it keeps; see Vm.attach."""
        return AsyncProcess(await on_thread(self._sync.attach, pid))

    async def kill_session(self, pid: int, signal: int = 9) -> None:
        """Send a command that it keeps a signal; see Vm.kill_session."""
        await on_thread(self._sync.kill_session, pid, signal)

    async def rename(self, name: str) -> None:
        """Give it another name; see Vm.rename."""
        await on_thread(self._sync.rename, name)

    async def publish(self, *ports: str) -> list[str]:
        """Have ports of the host lead to it; see Vm.publish."""
        return await on_thread(self._sync.publish, *ports)

    async def unpublish(self, port: int, transport: str = "tcp") -> None:
        """Close a port of the host that leads to it."""
        await on_thread(self._sync.unpublish, port, transport)

    async def keepalive(self, ttl: int | None, action: str | None = None) -> None:
        """Say for how long it is wanted; see Vm.keepalive."""
        await on_thread(self._sync.keepalive, ttl, action)

    async def egress(self, out: str = "nat", *, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> dict[str, Any]:
        """Say what the VMs of its family may reach from now on; see Vm.egress."""
        return await on_thread(self._sync.egress, out, allow=allow, deny=deny)

    async def share(self, port: int, expires: int = 3600, *, base: str | None = None, note: str = "") -> dict[str, Any]:
        """Give out a token with which clients of a gateway reach one port; see Vm.share."""
        return await on_thread(self._sync.share, port, expires, base=base, note=note)

    async def shares(self) -> list[dict[str, Any]]:
        """Tokens for its ports that hold; see Vm.shares."""
        return await on_thread(self._sync.shares)

    async def unshare(self, share: str) -> None:
        """Take a token back, by its id; see Vm.unshare."""
        await on_thread(self._sync.unshare, share)

    async def idle(self, after: int | None, action: str = "pause") -> None:
        """Have it sleep or end once it is not used; see Vm.idle."""
        await on_thread(self._sync.idle, after, action)

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Give it these labels instead of those it had."""
        await on_thread(self._sync.set_labels, labels)

    async def logs(self) -> bytes:
        """Read what it wrote to its serial console; see Vm.logs."""
        return await on_thread(self._sync.logs)

    async def connect(self, port: int) -> socket.socket:
        """Connect to a TCP port of it; see Vm.connect."""
        return await on_thread(self._sync.connect, port)


class AsyncProcess:
    """A command under way; see Process. Iterate with `async for`. A call that is cancelled hangs up on it."""

    def __init__(self, process: Process) -> None:
        self._sync = process
        self._events = iter(process)
        self.argv = process.argv

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await on_thread(self._sync.close)

    @property
    def code(self) -> int | None:
        """Once it has ended, as a shell reports it."""
        return self._sync.code

    def __aiter__(self) -> AsyncProcess:
        return self

    async def __anext__(self) -> tuple[Literal["stdout", "stderr"], bytes]:
        said = await self._attend(next, self._events, None)
        if said is None:
            raise StopAsyncIteration
        return said  # type: ignore[no-any-return]

    async def finish(self, check: bool = False) -> ExecResult:
        """Read all that is left."""
        return await self._attend(self._sync.finish, check)  # type: ignore[no-any-return]

    async def write(self, data: bytes) -> None:
        """Pass bytes to its standard input."""
        await self._attend(self._sync.write, data)

    async def close_stdin(self) -> None:
        """Nothing follows on its standard input."""
        await self._attend(self._sync.close_stdin)

    async def send_signal(self, number: int) -> None:
        """Send it a signal; see Process.send_signal."""
        await self._attend(self._sync.send_signal, number)

    async def resize(self, rows: int, cols: int) -> None:
        """Its terminal has another size."""
        await self._attend(self._sync.resize, rows, cols)

    async def _attend(self, call: Callable[..., Any], *args: Any) -> Any:
        doing = asyncio.ensure_future(on_thread(call, *args))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            self._sync.hang_up()
            await asyncio.wait([doing])
            doing.exception()  # It failed because of us.
            raise


class _AsyncNext(Generic[Item]):
    """A stream that blocks, to be iterated over with `async for`. Cancelled, it is closed."""

    def __init__(self, sync: _Stream[Item]) -> None:
        self._stream = sync

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def __anext__(self) -> Item:
        reading = asyncio.ensure_future(on_thread(self._stream.next))
        try:
            item = await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._stream.close()
            await asyncio.wait([reading])
            reading.exception()  # It failed because of us.
            raise
        if item is None:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        """End it."""
        await on_thread(self._stream.close)


class AsyncEvents(_AsyncNext[Event]):
    """Events of a host; see Events. Iterate with `async for`. Cancelled, it is closed."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._sync = events

    @property
    def position(self) -> str | None:
        """Where to go on after a break."""
        return self._sync.position


class AsyncChanges(_AsyncNext[FileChange]):
    """Changes in a folder of a guest; see Changes. Iterate with `async for`. Cancelled, it is closed."""


class AsyncFiles:
    """Files of a VM; see Files."""

    def __init__(self, files: Files) -> None:
        self._sync = files

    async def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """The content, or a part of it."""
        return await on_thread(self._sync.read, path, offset, limit)

    async def write(self, path: str, content: bytes, mode: int | None = None, *, parents: bool = False) -> None:
        """Replace a file as a whole; see Files.write."""
        await on_thread(self._sync.write, path, content, mode, parents=parents)

    async def stat(self, path: str) -> FileEntry:
        """Facts of a file."""
        return await on_thread(self._sync.stat, path)

    async def list(self, path: str) -> List[FileEntry]:
        """What is in a folder."""
        return await on_thread(self._sync.list, path)

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it."""
        await on_thread(self._sync.make_folder, path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or folder; see Files.remove."""
        await on_thread(self._sync.remove, path, recursive=recursive)

    async def move(self, path: str, to: str) -> None:
        """Move a file or folder; see Files.move."""
        await on_thread(self._sync.move, path, to)

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncChanges:
        """Changes in a folder from now on; see Files.watch."""
        return AsyncChanges(await on_thread(self._sync.watch, path, recursive=recursive))

    async def put(self, here: str | PathLike[str], there: str) -> None:
        """Copy a file or folder into the VM; see Files.put."""
        await on_thread(self._sync.put, here, there)

    async def get(self, there: str, here: str | PathLike[str]) -> None:
        """Copy a file or folder out of the VM; see Files.get."""
        await on_thread(self._sync.get, there, here)
