"""The client for asyncio: the calls of the other one, on the event loop. It has no thread of its own.

A call that is cancelled closes its connection; the daemon carries out what changes something all the same. A command is hung up on.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from base64 import b64encode
from os import PathLike, fspath
from types import TracebackType
from typing import Any, AsyncIterable, Iterable, List, Mapping, Sequence

from . import _calls
from ._aio_http import AsyncEndpoint
from ._aio_process import AsyncChanges, AsyncEvents, AsyncProcess
from ._calls import of_events, of_files, of_vm
from ._client import PIPE, Pipe
from ._copy import Destination, Packed, pieces
from ._output import INLINE, given, octets
from ._types import ExecResult, FileEntry, Forked, ForkyardError, Unreachable
from ._view import View, Waiting, activated, command, forked, used
from ._watch import of_watch


class AsyncForkyard:
    """A host of VMs; see Forkyard."""

    def __init__(self, url: str | None = None, token: str | None = None, *, context: ssl.SSLContext | None = None) -> None:
        self._end = AsyncEndpoint(url, token, context)

    async def run(
        self, image: str, *, name: str | None = None, vcpus: int = 1, memory: int = 256 << 20, warm: int = 0, **more: Any
    ) -> AsyncVm:
        """Boot a VM; see Forkyard.run."""
        return AsyncVm(self._end, await self._end.ask(_calls.run(image, name, vcpus, memory, warm, more)))

    async def vms(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None, limit: int | None = None, after: AsyncVm | None = None
    ) -> list[AsyncVm]:
        """Every VM, or those of a selection, the oldest first; see Forkyard.vms."""
        views = await self._end.ask(_calls.vms(labels, state, limit, after))
        return [AsyncVm(self._end, view) for view in _calls.labelled(views, labels)]

    async def checkpoints(self) -> list[AsyncVm]:
        """Every checkpoint, the oldest first."""
        return await self.vms(state="checkpoint")

    async def hosts(self) -> list[str]:
        """Other hosts that VMs can be forked and moved to: nodes of the cluster, or peers, by name."""
        return list(await self._end.ask(_calls.hosts()))

    async def usage(self) -> dict[str, Any]:
        """What every VM has used of the host so far; see Forkyard.usage."""
        return dict(await self._end.ask(_calls.usage()))

    async def vm(self, name: str) -> AsyncVm:
        """The VM of this name or id."""
        return AsyncVm(self._end, await self._end.ask(_calls.vm(name)))

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
        stream = await self._end.open("GET", of_events(vm, family, kinds, since, follow))
        return AsyncEvents(stream, follow)

    async def migrate(self, vms: Iterable[str], to: str, **more: Any) -> list[dict[str, Any]]:
        """Move VMs of this host to another as one; see Forkyard.migrate."""
        answer = await self._end.ask(_calls.migrate_together(vms, to, more))
        return [dict(it["report"]) for it in [answer, *answer.get("together", [])]]

    async def substrates(self) -> list[dict[str, Any]]:
        """Every substrate that this user may activate."""
        return list(await self._end.ask(_calls.substrates()))

    async def substrate(self, name: str) -> dict[str, Any]:
        """Where a substrate's bytes are."""
        return dict(await self._end.ask(_calls.substrate(name)))

    async def activate(
        self,
        substrate: str,
        count: int = 1,
        *,
        name: str | None = None,
        memory: int | None = None,
        vcpus: int | None = None,
        disk: int | None = None,
        to: Sequence[str] = (),
        spread: bool = False,
        **more: Any,
    ) -> list[AsyncVm]:
        """Make VMs of a substrate; see Forkyard.activate."""
        more = {**more, **_calls.on_hosts(to, spread)}
        answer = await self._end.ask(_calls.activate(substrate, count, name, (memory, vcpus, disk), more))
        made, failed = activated(answer, lambda view: AsyncVm(self._end, view))
        if failed:
            for vm in made:
                await vm.remove()
            raise failed[0]
        return made

    async def keep_standby(
        self,
        substrate: str,
        count: int | None = None,
        *,
        memory_mib: int = 1024,
        vm_memory: int | None = None,
        vm_vcpus: int | None = None,
        vm_disk: int | None = None,
    ) -> dict[str, Any]:
        """Keep VMs of a substrate ready; see Forkyard.keep_standby."""
        return dict(await self._end.ask(_calls.keep_standby(substrate, count, memory_mib, (vm_memory, vm_vcpus, vm_disk))))

    async def remove_substrate(self, name: str) -> None:
        """Remove a substrate that nothing lies over."""
        await self._end.ask(_calls.remove_substrate(name))

    async def push_substrate(self, name: str, to: str, *, verify: bool = False) -> dict[str, Any]:
        """Put a substrate into an object store or a folder of the host; see Forkyard.push_substrate."""
        return dict(await self._end.ask(_calls.push_substrate(name, to, verify)))

    async def pull_substrate(self, place: str, *, name: str | None = None, trust: str | None = None) -> dict[str, Any]:
        """Bring a substrate in; see Forkyard.pull_substrate."""
        return dict(await self._end.ask(_calls.pull_substrate(place, name, trust)))

    async def stored_substrates(self, store: str) -> list[dict[str, Any]]:
        """Every substrate in an object store, by name."""
        return list(await self._end.ask(_calls.stored_substrates(store)))

    async def remove_stored_substrate(self, store: str, name: str) -> dict[str, Any]:
        """Remove a substrate from an object store; see Forkyard.remove_stored_substrate."""
        return dict(await self._end.ask(_calls.remove_stored_substrate(store, name)))

    async def volumes(self) -> list[dict[str, Any]]:
        """Every volume, sorted by name."""
        return list(await self._end.ask(_calls.volumes()))

    async def volume(self, name: str) -> dict[str, Any]:
        """A volume, its snapshots, and the VMs that have it."""
        return dict(await self._end.ask(_calls.volume(name)))

    async def images(self) -> list[dict[str, Any]]:
        """Every image."""
        return [dict(image) for image in await self._end.ask(_calls.images())]

    async def image(self, name: str) -> dict[str, Any]:
        """An image: where it is from, its digest, what it runs."""
        return dict(await self._end.ask(_calls.image(name)))

    async def pull_image(
        self, reference: str, name: str, *, start: bool = False, size: int | None = None, size_mib: int | None = None
    ) -> dict[str, Any]:
        """Make an image of a container image in a registry; see Forkyard.pull_image."""
        return dict(await self._end.ask(_calls.pull_image(reference, name, start, size, size_mib)))

    async def build_image(
        self,
        name: str,
        context: str | PathLike[str],
        *,
        dockerfile: str = "Dockerfile",
        build_args: Mapping[str, str] | None = None,
        size: int | None = None,
        start: bool = False,
    ) -> dict[str, Any]:
        """Make an image from a Dockerfile; see Forkyard.build_image."""
        packed = Packed(fspath(context).rstrip("/") + "/.")
        try:
            return dict(await self._end.ask(_calls.build_image(name, dockerfile, build_args or {}, size, start), packed))
        except ForkyardError:
            # What could not be read here comes first: the rest follows from it.
            if packed.error is not None:
                raise packed.error from None
            raise

    async def commit_image(self, vm: str, name: str) -> dict[str, Any]:
        """Make an image of a VM's disk; see Forkyard.commit_image."""
        return dict(await self._end.ask(_calls.commit_image(vm, name)))

    async def remove_image(self, name: str) -> None:
        """Remove an image that no VM is of."""
        await self._end.ask(_calls.remove_image(name))

    async def create_volume(
        self, name: str, size: int | None = None, *, image: str | None = None, encrypted: bool = False, key_file: str | None = None
    ) -> dict[str, Any]:
        """Make a volume; see Forkyard.create_volume."""
        return dict(await self._end.ask(_calls.create_volume(name, size, image, encrypted, key_file)))

    async def snapshot_volume(self, name: str, snapshot: str) -> dict[str, Any]:
        """Keep a volume as it is, also while a VM writes it."""
        return dict(await self._end.ask(_calls.snapshot_volume(name, snapshot)))

    async def remove_volume_snapshot(self, name: str, snapshot: str) -> dict[str, Any]:
        """Remove a snapshot of a volume that no VM lies over."""
        return dict(await self._end.ask(_calls.remove_volume_snapshot(name, snapshot)))

    async def resize_volume(self, name: str, size: int) -> dict[str, Any]:
        """Give a volume that no VM has so many bytes."""
        return dict(await self._end.ask(_calls.resize_volume(name, size)))

    async def volume_why(self, name: str, block: int) -> dict[str, Any]:
        """Why a block was sent, or was not; see Forkyard.volume_why."""
        return dict(await self._end.ask(_calls.volume_why(name, block)))

    async def tune_volume(self, name: str, *, k: float | None = None, s: float | None = None) -> dict[str, Any]:
        """Change the law by which blocks are sent ahead; see Forkyard.tune_volume."""
        return dict(await self._end.ask(_calls.tune_volume(name, k, s)))

    async def mirror_volume(self, name: str, *hosts: str, away: str = "wait") -> dict[str, Any]:
        """Have hosts hold every flush of a volume; see Forkyard.mirror_volume."""
        return dict(await self._end.ask(_calls.mirror_volume(name, hosts, away)))

    async def promote_volume(self, name: str) -> dict[str, Any]:
        """Make a copy a volume that is at home here; see Forkyard.promote_volume."""
        return dict(await self._end.ask(_calls.promote_volume(name)))

    async def move_volume(self, name: str, to: str, *, disk: str = "auto") -> dict[str, Any]:
        """Move a volume that no VM has to another host; see Forkyard.move_volume."""
        return dict(await self._end.ask(_calls.move_volume(name, to, disk)))

    async def bring_volume(self, name: str, from_host: str | None = None, *, disk: str = "auto") -> dict[str, Any]:
        """Move a volume that no VM has here; see Forkyard.bring_volume."""
        return dict(await self._end.ask(_calls.bring_volume(name, from_host, disk)))

    async def links(self) -> list[dict[str, Any]]:
        """Links to other hosts; see Forkyard.links."""
        return list(await self._end.ask(_calls.links()))

    async def set_link_budget(
        self, host: str, *, rate: str | None = None, daily: int | None = None, price: float | None = None, money: float | None = None
    ) -> dict[str, Any]:
        """Bound what is sent to a host; see Forkyard.set_link_budget."""
        budget = {"rate": rate, "daily": daily, "price": price, "money": money}
        return dict(await self._end.ask(_calls.set_link_budget(host, budget)))

    async def remove_volume(self, name: str) -> None:
        """Remove a volume that no VM has, with its snapshots."""
        await self._end.ask(_calls.remove_volume(name))


class AsyncVm(View):
    """A VM; see Vm. As an async context manager it is removed at the end."""

    def __init__(self, end: AsyncEndpoint, view: dict[str, Any]) -> None:
        super().__init__(view)
        self._end = end
        self.files = AsyncFiles(self)

    async def __aenter__(self) -> AsyncVm:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.remove()
        except ForkyardError as gone:
            if gone.kind != "not_found":
                raise

    async def refresh(self) -> AsyncVm:
        """Ask the host how it is."""
        self.view = await self._end.ask(_calls.vm(self.id))
        return self

    async def inspect(self) -> dict[str, Any]:
        """Ask for all that is known of it; see Vm.inspect."""
        return dict(await self._end.ask(_calls.inspect(self.id)))

    async def usage(self) -> dict[str, Any]:
        """What it has used of the host so far; see Vm.usage."""
        return used(await self._end.ask(_calls.usage()), self)

    async def wait(self, until: str = "running", timeout: float | None = None) -> AsyncVm:
        """Wait until it is running, paused, stopped or removed; see Vm.wait."""
        waiting = Waiting(self.name, until, timeout)
        while not waiting.over(await self._state()):
            await asyncio.sleep(waiting.pause())
        return self

    async def _state(self) -> str | None:
        try:
            return (await self.refresh()).state
        except ForkyardError as error:
            if error.kind != "not_found":
                raise
            return None

    async def fork(self, count: int = 1, *, live: bool = False, **more: Any) -> Forked[AsyncVm]:
        """Fork it; see Vm.fork."""
        return forked(await self._end.ask(_calls.fork(self.id, count, live, more)), lambda view: AsyncVm(self._end, view))

    async def forks(self) -> list[dict[str, Any]]:
        """Forks of it that are under way, and the last that were; see Vm.forks."""
        return list(await self._end.ask(_calls.forks(self.id)))

    async def checkpoint(self, name: str | None = None, *, live: bool = False) -> AsyncVm:
        """Keep this instant on disk."""
        return AsyncVm(self._end, await self._end.ask(_calls.checkpoint(self.id, name, live)))

    async def migrate(self, to: str, **more: Any) -> dict[str, Any]:
        """Move it to another host; see Vm.migrate."""
        return self._moved(await self._end.ask(_calls.migrate(self.id, to, more)))

    async def make_independent(self) -> dict[str, Any]:
        """Have its disk come to depend on nothing; see Vm.make_independent."""
        return dict(await self._end.ask(_calls.act(self.id, "independence")))

    async def dock(self, name: str, kind: str = "public", *, live: bool = False, **more: Any) -> dict[str, Any]:
        """Make a substrate of it; see Vm.dock."""
        return dict(await self._end.ask(_calls.dock(self.id, name, kind, live, more)))

    async def pause(self) -> None:
        """Have it stand still."""
        self.view = await self._end.ask(_calls.act(self.id, "pause"))

    async def resume(self) -> None:
        """Let it go on."""
        self.view = await self._end.ask(_calls.act(self.id, "resume"))

    async def schedule(self, **settings: Any) -> dict[str, Any]:
        """Have its vCPUs scheduled on its host; see Vm.schedule."""
        return dict(await self._end.ask(_calls.schedule(self.id, settings)))

    async def unschedule(self) -> dict[str, Any]:
        """Let its vCPUs go; see Vm.unschedule."""
        return dict(await self._end.ask(_calls.unschedule(self.id)))

    async def scheduling(self) -> dict[str, Any]:
        """State of the vCPUs that are scheduled on its host; see Vm.scheduling."""
        return dict(await self._end.ask(_calls.scheduling(self.id)))

    async def make_friendly(self, *changes: str, **settings: Any) -> dict[str, Any]:
        """Have it adapt its demand; see Vm.make_friendly."""
        return dict(await self._end.ask(_calls.make_friendly(self.id, changes, settings)))

    async def end_friendly(self) -> dict[str, Any]:
        """End that; see Vm.end_friendly."""
        return dict(await self._end.ask(_calls.end_friendly(self.id)))

    async def friendly(self) -> dict[str, Any]:
        """Its state as a friendly guest; see Vm.friendly."""
        return dict(await self._end.ask(_calls.friendly(self.id)))

    async def boot(self) -> None:
        """Boot it again, from its own disk, once it has stopped."""
        self.view = await self._end.ask(_calls.act(self.id, "start"))

    async def stop(self) -> None:
        """Power it off."""
        self.view = await self._end.ask(_calls.act(self.id, "stop"))

    async def remove(self) -> None:
        """End it, and remove all that is its own."""
        await self._end.ask(_calls.remove(self.id))

    async def start(
        self,
        *argv: str,
        stdin: bytes | Pipe = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        workdir: str | None = None,
        user: str | None = None,
        tty: tuple[int, int] | None = None,
        keep: bool = False,
        tag: str | None = None,
    ) -> AsyncProcess:
        """Start a command whose output is read as it comes; see Vm.start. Cancelled, it is hung up on."""
        wanted = command(argv, env, timeout, workdir, user, tty, keep, tag)
        path = of_vm(self.id, "exec")
        if isinstance(stdin, Pipe):
            return AsyncProcess(argv, await self._end.duplex(path, wanted))
        whole = octets(stdin, "stdin is bytes or PIPE")
        wanted["stdin"] = b64encode(whole).decode() if whole else None
        return AsyncProcess(argv, await self._end.open("POST", path, wanted))

    async def exec(
        self,
        *argv: str,
        stdin: bytes | Iterable[bytes] | AsyncIterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        workdir: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Run a command to its end; see Vm.exec. `stdin` may be an async iterator, too. Cancelled, it is hung up on."""
        source = given(stdin)
        inline = source if isinstance(source, bytes) and len(source) <= INLINE else None
        first: bytes | Pipe = PIPE if inline is None else inline
        process = await self.start(*argv, stdin=first, env=env, timeout=timeout, workdir=workdir, user=user)
        if inline is None:
            process.feed([source] if isinstance(source, bytes) else source)
        async with process:
            return await process.finish(check)

    async def detach(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | None = None,
        tag: str | None = None,
    ) -> int:
        """Start a command and leave it to itself; see Vm.detach."""
        wanted = {**command(argv, env, None, workdir, user, None, False, tag), "detach": True}
        async with AsyncProcess(argv, await self._end.open("POST", of_vm(self.id, "exec"), wanted), False) as process:
            await process.finish()
            return process.pid or 0

    async def sessions(self) -> list[dict[str, Any]]:
        """Commands that it keeps."""
        return list(await self._end.ask(_calls.sessions(self.id)))

    async def attach(self, pid: int) -> AsyncProcess:
        """Follow a command that it keeps; see Vm.attach."""
        return AsyncProcess((), await self._end.duplex(of_vm(self.id, "sessions", str(pid)), None))

    async def kill_session(self, pid: int, signal: int = 9) -> None:
        """Send a command that it keeps a signal; see Vm.kill_session."""
        await self._end.ask(_calls.kill_session(self.id, pid, signal))

    async def set_restart(self, restart: str) -> None:
        """Say whether it is started again when it ends by itself; see Vm.set_restart."""
        self.view = await self._end.ask(_calls.set_restart(self.id, restart))

    async def rename(self, name: str) -> None:
        """Give it another name; see Vm.rename."""
        self.view = await self._end.ask(_calls.rename(self.id, name))
        self.name = self.view["name"]

    async def publish(self, *ports: str) -> list[str]:
        """Have ports of the host lead to it; see Vm.publish."""
        self.view = await self._end.ask(_calls.publish(self.id, ports))
        return self.published

    async def unpublish(self, port: int | str, transport: str = "tcp") -> None:
        """Close a port of the host that leads to it."""
        self.view = await self._end.ask(_calls.unpublish(self.id, port, transport))

    async def keepalive(self, ttl: int | None, action: str | None = None) -> None:
        """Say for how long it is wanted; see Vm.keepalive."""
        self.view = await self._end.ask(_calls.keepalive(self.id, ttl, action))

    async def egress(self, out: str = "nat", *, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> dict[str, Any]:
        """Say what the VMs of its family may reach from now on; see Vm.egress."""
        return dict(await self._end.ask(_calls.egress(self.id, out, allow, deny)))

    async def share(self, port: int, expires: int = 3600, *, base: str | None = None, note: str = "") -> dict[str, Any]:
        """Give out a token with which clients of a gateway reach one port; see Vm.share."""
        return self._shared(await self._end.ask(_calls.share(self.id, port, expires, note)), port, base)

    async def shares(self) -> list[dict[str, Any]]:
        """Tokens for its ports that hold; see Vm.shares."""
        return list(await self._end.ask(_calls.shares(self.id)))

    async def unshare(self, share: str) -> None:
        """Take a token back, by its id; see Vm.unshare."""
        await self._end.ask(_calls.unshare(self.id, share))

    async def idle(self, after: int | None, action: str = "pause") -> None:
        """Have it sleep or end once it is not used; see Vm.idle."""
        self.view = await self._end.ask(_calls.idle(self.id, after, action))

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Give it these labels instead of those it had."""
        self.view = await self._end.ask(_calls.set_labels(self.id, labels))

    async def logs(self) -> bytes:
        """Read what it wrote to its serial console; see Vm.logs."""
        stream = await self._end.open("GET", of_vm(self.id, "logs"))
        try:
            return await stream.read()
        finally:
            stream.close()

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a TCP port of it, through the daemon: streams, as of asyncio.open_connection(); see Vm.connect."""
        return await self._end.upgrade(of_vm(self.id, "ports", str(port)))


class AsyncFiles:
    """Files of a VM; see Files."""

    def __init__(self, vm: AsyncVm) -> None:
        self._vm = vm
        self._end = vm._end

    async def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """The content, or a part of it; see Files.read."""
        stream = await self._end.open("GET", _calls.read(self._vm.id, path, offset, limit))
        content = _calls.Content(path, limit)
        try:
            async for piece in stream.pieces():
                content.add(piece)
            return content.whole()
        finally:
            stream.close()

    async def write(self, path: str, content: bytes, mode: int | None = None, *, parents: bool = False) -> None:
        """Replace a file as a whole; see Files.write."""
        (await self._end.open("PUT", _calls.write(self._vm.id, path, mode, parents), content=pieces(content))).close()

    async def stat(self, path: str) -> FileEntry:
        """Facts of a file."""
        return FileEntry.of(await self._end.ask(_calls.stat(self._vm.id, path)))

    async def list(self, path: str) -> List[FileEntry]:
        """What is in a folder."""
        return [FileEntry.of(entry) for entry in await self._end.ask(_calls.folder(self._vm.id, path))]

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it."""
        await self._end.ask(_calls.make_folder(self._vm.id, path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or folder; see Files.remove."""
        await self._end.ask(_calls.remove_file(self._vm.id, path, recursive))

    async def move(self, path: str, to: str) -> None:
        """Move a file or folder; see Files.move."""
        await self._end.ask(_calls.move(self._vm.id, path, to))

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncChanges:
        """Changes in a folder from now on; see Files.watch."""
        return AsyncChanges(await self._end.open("GET", of_watch(self._vm.id, path, recursive)))

    async def put(self, here: str | PathLike[str], there: str) -> None:
        """Copy a file or folder into the VM; see Files.put. It is read in pieces, between which the loop goes on."""
        packed = Packed(fspath(here))
        try:
            (await self._end.open("PUT", of_files(self._vm.id, "archive", path=there), content=packed)).close()
        except ForkyardError:
            # What could not be read here comes first: the rest follows from it.
            if packed.error is not None:
                raise packed.error from None
            raise

    async def get(self, there: str, here: str | PathLike[str]) -> None:
        """Copy a file or folder out of the VM; see Files.get.

        It is kept beside its destination until all of it is here, and then unpacked: that takes its size twice for
        a while. It is unpacked in pieces, between which the loop goes on.
        """
        place = Destination(there, fspath(here))
        with place.half() as half, tempfile.TemporaryFile(dir=half) as whole:
            stream = await self._end.open("GET", of_files(self._vm.id, "archive", path=there))
            broken: list[Unreachable] = []
            try:
                async for piece in stream.pieces():
                    whole.write(piece)
            except Unreachable as error:
                # The guest may have said why.
                broken.append(error)
            finally:
                stream.close()
            whole.seek(0)
            for _ in place.unpack(whole, half, broken):
                await asyncio.sleep(0)
            if broken:
                raise broken[0]
            place.take(half)
