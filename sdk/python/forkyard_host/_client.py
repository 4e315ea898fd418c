"""The client that blocks."""

from __future__ import annotations

import socket
import ssl
import time
from base64 import b64encode
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Iterable, List, Mapping, Sequence

from . import _calls
from ._calls import of_vm
from ._copy import Packed, get, pieces, put
from ._events import Events
from ._http import Endpoint
from ._output import INLINE, given, octets
from ._process import Process
from ._types import ExecResult, FileEntry, Forked, ForkyardError
from ._view import View, Waiting, activated, command, forked, used
from ._watch import Changes


class Pipe:
    """Standard input that is written to as the command runs."""


PIPE = Pipe()
"""For `stdin` of Vm.start."""


class Forkyard:
    """A host of VMs.

    `url` is `unix:///path/of/api.sock` or `https://host:port`; if absent
    FORKYARD_URL, or the daemon of this host. `token`, for https, is
    FORKYARD_TOKEN if absent. Which certificate is believed: `context` says,
    or else FORKYARD_CA, `sha256:` and its fingerprint or a PEM file, or else
    what this host trusts.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, context: ssl.SSLContext | None = None) -> None:
        self._end = Endpoint(url, token, context)

    def run(
        self, image: str, *, name: str | None = None, vcpus: int = 1, memory: int = 256 << 20, warm: int = 0, **more: Any
    ) -> Vm:
        """Boot a VM; returns once its agent answers. `memory` is in bytes; `memory_mib` is taken, too. `warm` clones are
        kept ready for its forks.

        `more`: other fields of the API's request, such as network, secrets, labels={"user": "ada"},
        env={"LANG": "C"} for all its commands, data=[{"name": "pg", "size": 20 << 30}] for disks that are volumes, lifetime={"ttl_s": 600, "action": "pause"},
        idle={"after_s": 600, "action": "pause"} to have it sleep when it is not used, or restart="always", "on-failure" or "on-failure:3".
        """
        return Vm(self._end, self._end.ask(_calls.run(image, name, vcpus, memory, warm, more)))

    def vms(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None, limit: int | None = None, after: Vm | None = None
    ) -> list[Vm]:
        """Every VM, or those that have all these labels and this state, the oldest first. Checkpoints are among them.

        `state`: starting, running, paused, stopped or checkpoint, or several with commas between them.
        `limit`: a page of at most so many; `after`: the last VM of the page before, which may be gone meanwhile.
        """
        views = self._end.ask(_calls.vms(labels, state, limit, after))
        return [Vm(self._end, view) for view in _calls.labelled(views, labels)]

    def checkpoints(self) -> list[Vm]:
        """Every checkpoint, the oldest first. One is forked, renamed and removed like a VM."""
        return self.vms(state="checkpoint")

    def hosts(self) -> list[str]:
        """Other hosts that VMs can be forked and moved to: nodes of the cluster, or peers, by name."""
        return list(self._end.ask(_calls.hosts()))

    def usage(self) -> dict[str, Any]:
        """What every VM has used of the host so far: `vms` with cpu_us, resident, private and more of each, and `at_us`.

        The difference between two answers is the use in between.
        """
        return dict(self._end.ask(_calls.usage()))

    def vm(self, name: str) -> Vm:
        """The VM of this name or id; ForkyardError of kind not_found if there is none."""
        return Vm(self._end, self._end.ask(_calls.vm(name)))

    def events(
        self,
        *,
        vm: str | None = None,
        family: str | None = None,
        kinds: Iterable[str] = (),
        since: str | int | None = None,
        follow: bool = True,
    ) -> Events:
        """Events of the host, as they happen: iterate over it.

        Only those of this VM, by name or id, of this family and of these kinds, if given.
        `since`: after this position, an event's id or 0 for all that are kept; else from now on.
        Without `follow` it ends after those that there are. See Event for what it yields; one whose
        `what` is lagged tells of events that were missed.
        """
        return Events(self._end, vm, family, kinds, since, follow)

    def migrate(self, vms: Iterable[str], to: str, **more: Any) -> list[dict[str, Any]]:
        """Move VMs of this host to another as one: all of them, or none. The report of each.

        `vms`: names or ids, 64 at most. `more`: max_gap_ms, deadline_ms, if_stuck, disk.
        ForkyardError if they stay, or if it is not known yet whether they moved.
        """
        answer = self._end.ask(_calls.migrate_together(vms, to, more))
        return [dict(it["report"]) for it in [answer, *answer.get("together", [])]]

    def substrates(self) -> list[dict[str, Any]]:
        """Every substrate that this user may activate, the oldest first."""
        return list(self._end.ask(_calls.substrates()))

    def substrate(self, name: str) -> dict[str, Any]:
        """Where a substrate's bytes are; ForkyardError of kind not_found if there is none."""
        return dict(self._end.ask(_calls.substrate(name)))

    def activate(
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
    ) -> list[Vm]:
        """Make VMs of a substrate, each with a family and a network of its own.

        `name`: of the VM, or the beginning of the names of several. `memory` and `disk`, in bytes, and
        `vcpus`: of each; without them as was docked. `to`: hosts to make them on, in turns; `spread`: in a
        cluster, each on the node with most vCPUs free. `more`: other fields of the API's request, such as
        network. ForkyardError if one was not made; the others are removed.
        """
        more = {**more, **_calls.on_hosts(to, spread)}
        answer = self._end.ask(_calls.activate(substrate, count, name, (memory, vcpus, disk), more))
        made, failed = activated(answer, lambda view: Vm(self._end, view))
        if failed:
            for vm in made:
                vm.remove()
            raise failed[0]
        return made

    def keep_standby(
        self,
        substrate: str,
        count: int | None = None,
        *,
        memory_mib: int = 1024,
        vm_memory: int | None = None,
        vm_vcpus: int | None = None,
        vm_disk: int | None = None,
    ) -> dict[str, Any]:
        """Keep VMs of a substrate ready, which `activate` takes; returns the substrate.

        `count`: so many, 0 for none any more; without it as many as recent demand asks for.
        `memory_mib`: what they may take together of the host's memory. `vm_memory` and `vm_disk`, in
        bytes, and `vm_vcpus`: the size of each, as of `activate`; each size is kept beside the others.
        """
        return dict(self._end.ask(_calls.keep_standby(substrate, count, memory_mib, (vm_memory, vm_vcpus, vm_disk))))

    def remove_substrate(self, name: str) -> None:
        """Remove a substrate that nothing lies over."""
        self._end.ask(_calls.remove_substrate(name))

    def push_substrate(self, name: str, to: str, *, verify: bool = False) -> dict[str, Any]:
        """Put a substrate into an object store (`s3://bucket/prefix`, `file:///folder`) or a folder of the host.

        A store is sent what it has not: `sent` and `shared` in the result are bytes. `verify`: read what it has
        already, and send again what is damaged there. For the host's operator.
        """
        return dict(self._end.ask(_calls.push_substrate(name, to, verify)))

    def pull_substrate(self, place: str, *, name: str | None = None, trust: str | None = None) -> dict[str, Any]:
        """Bring a substrate in from a store (`s3://bucket/prefix/name`) or its folder.

        `name`: that it is to have here. `trust`: the public key of the host that has signed it. For the host's operator.
        """
        return dict(self._end.ask(_calls.pull_substrate(place, name, trust)))

    def stored_substrates(self, store: str) -> list[dict[str, Any]]:
        """Every substrate in an object store, by name. For the host's operator."""
        return list(self._end.ask(_calls.stored_substrates(store)))

    def remove_stored_substrate(self, store: str, name: str) -> dict[str, Any]:
        """Remove a substrate from an object store, with what nothing there needs any more. For the host's operator."""
        return dict(self._end.ask(_calls.remove_stored_substrate(store, name)))

    def volumes(self) -> list[dict[str, Any]]:
        """Every volume, sorted by name. A VM boots on one by `run(image, volume={"name": ...})`."""
        return list(self._end.ask(_calls.volumes()))

    def volume(self, name: str) -> dict[str, Any]:
        """A volume, its snapshots, and the VMs that have it; ForkyardError of kind not_found if there is none."""
        return dict(self._end.ask(_calls.volume(name)))

    def images(self) -> list[dict[str, Any]]:
        """Every image: recipes, and what was imported, pulled, built or committed."""
        return [dict(image) for image in self._end.ask(_calls.images())]

    def image(self, name: str) -> dict[str, Any]:
        """An image: where it is from, its digest, what it runs; ForkyardError of kind not_found if there is none."""
        return dict(self._end.ask(_calls.image(name)))

    def pull_image(
        self, reference: str, name: str, *, start: bool = False, size: int | None = None, size_mib: int | None = None
    ) -> dict[str, Any]:
        """Make an image of a container image in a registry. With `start` VMs start its entry point.
        `size` of the guest's disk is in bytes."""
        return dict(self._end.ask(_calls.pull_image(reference, name, start, size, size_mib)))

    def build_image(
        self,
        name: str,
        context: str | PathLike[str],
        *,
        dockerfile: str = "Dockerfile",
        build_args: Mapping[str, str] | None = None,
        size: int | None = None,
        start: bool = False,
    ) -> dict[str, Any]:
        """Make an image from a Dockerfile, which is in the folder `context`, of which COPY copies. With `start` VMs start its
        entry point; `size` of the guest's disk is in bytes. For root of the daemon's host, which needs buildah."""
        packed = Packed(fspath(context).rstrip("/") + "/.")
        try:
            return dict(self._end.ask(_calls.build_image(name, dockerfile, build_args or {}, size, start), packed))
        except ForkyardError:
            # What could not be read here comes first: the rest follows from it.
            if packed.error is not None:
                raise packed.error from None
            raise

    def commit_image(self, vm: str, name: str) -> dict[str, Any]:
        """Make an image of a VM's disk, without what is that VM's alone. One that runs goes on."""
        return dict(self._end.ask(_calls.commit_image(vm, name)))

    def remove_image(self, name: str) -> None:
        """Remove an image that no VM is of."""
        self._end.ask(_calls.remove_image(name))

    def create_volume(
        self, name: str, size: int | None = None, *, image: str | None = None, encrypted: bool = False, key_file: str | None = None
    ) -> dict[str, Any]:
        """Make a volume of `size` bytes: of zeroes, or a copy of an image's disk. Its blocks are encrypted on the host's disk if
        `encrypted`, with the key in the host's file `key_file`, or one that is made and goes with the volume."""
        return dict(self._end.ask(_calls.create_volume(name, size, image, encrypted, key_file)))

    def snapshot_volume(self, name: str, snapshot: str) -> dict[str, Any]:
        """Keep a volume as it is, also while a VM writes it."""
        return dict(self._end.ask(_calls.snapshot_volume(name, snapshot)))

    def remove_volume_snapshot(self, name: str, snapshot: str) -> dict[str, Any]:
        """Remove a snapshot of a volume that no VM lies over."""
        return dict(self._end.ask(_calls.remove_volume_snapshot(name, snapshot)))

    def resize_volume(self, name: str, size: int) -> dict[str, Any]:
        """Give a volume that no VM has so many bytes."""
        return dict(self._end.ask(_calls.resize_volume(name, size)))

    def volume_why(self, name: str, block: int) -> dict[str, Any]:
        """Why a block of 4096 bytes went to other hosts, came from there, or did not: the law applied to it, and its latest transfers."""
        return dict(self._end.ask(_calls.volume_why(name, block)))

    def tune_volume(self, name: str, *, k: float | None = None, s: float | None = None) -> dict[str, Any]:
        """Change the law by which blocks are sent ahead, also while a VM writes the volume: K·fr/fw + fr if fr/fw ≥ S."""
        return dict(self._end.ask(_calls.tune_volume(name, k, s)))

    def mirror_volume(self, name: str, *hosts: str, away: str = "wait") -> dict[str, Any]:
        """Have these hosts hold every flush of a volume; none of them ends it. `away`: flushes "wait" for a host that is away, or "go-on" without it."""
        return dict(self._end.ask(_calls.mirror_volume(name, hosts, away)))

    def promote_volume(self, name: str) -> dict[str, Any]:
        """Make a copy that is held for another host a volume that is at home here; that host is fenced."""
        return dict(self._end.ask(_calls.promote_volume(name)))

    def move_volume(self, name: str, to: str, *, disk: str = "auto") -> dict[str, Any]:
        """Move a volume that no VM has, with its snapshots, to another host or node. `disk`: what is sent before it is at home there, "ahead" (all), "on-demand" or "auto"."""
        return dict(self._end.ask(_calls.move_volume(name, to, disk)))

    def bring_volume(self, name: str, from_host: str | None = None, *, disk: str = "auto") -> dict[str, Any]:
        """Move a volume that no VM has here, from this host; in a cluster, from the node that has it."""
        return dict(self._end.ask(_calls.bring_volume(name, from_host, disk)))

    def links(self) -> list[dict[str, Any]]:
        """Links to other hosts, with their budgets and what was sent today."""
        return list(self._end.ask(_calls.links()))

    def set_link_budget(
        self, host: str, *, rate: str | None = None, daily: int | None = None, price: float | None = None, money: float | None = None
    ) -> dict[str, Any]:
        """Bound what is sent to a host of volumes' blocks that nothing waits for: `rate` as 20mbit, `daily` bytes, `money` a day at `price` for 10^9 bytes."""
        budget = {"rate": rate, "daily": daily, "price": price, "money": money}
        return dict(self._end.ask(_calls.set_link_budget(host, budget)))

    def remove_volume(self, name: str) -> None:
        """Remove a volume that no VM has, with its snapshots."""
        self._end.ask(_calls.remove_volume(name))


class Vm(View):
    """A VM. As a context manager it is removed at the end."""

    def __init__(self, end: Endpoint, view: dict[str, Any]) -> None:
        super().__init__(view)
        self._end = end
        self.files = Files(self)

    def __enter__(self) -> Vm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.remove()
        except ForkyardError as gone:
            if gone.kind != "not_found":
                raise

    def refresh(self) -> Vm:
        """Ask the host how it is."""
        self.view = self._end.ask(_calls.vm(self.id))
        return self

    def inspect(self) -> dict[str, Any]:
        """Ask for all that is known of it: where its bytes are, what its forks took, its network, its notes."""
        return dict(self._end.ask(_calls.inspect(self.id)))

    def usage(self) -> dict[str, Any]:
        """What it has used of the host so far: cpu_us, waited_us, and bytes of memory, resident and private.

        The difference between two answers, of which `at_us` is the time, is the use in between.
        """
        return used(self._end.ask(_calls.usage()), self)

    def wait(self, until: str = "running", timeout: float | None = None) -> Vm:
        """Wait until it is "running", "paused", "stopped" or "removed".

        ForkyardError of kind timeout if it is not within so many seconds, and of kind conflict if it can be no more.
        """
        waiting = Waiting(self.name, until, timeout)
        while not waiting.over(self._state()):
            time.sleep(waiting.pause())
        return self

    def _state(self) -> str | None:
        try:
            return self.refresh().state
        except ForkyardError as error:
            if error.kind != "not_found":
                raise
            return None

    def fork(self, count: int = 1, *, live: bool = False, **more: Any) -> Forked[Vm]:
        """Fork it. Returns once every clone runs with its own identity, or has failed.

        `live` spares this VM at the clones' cost. `more`: other fields of the
        API's request, such as scrub or inherit_secrets. ForkyardError if nothing was
        forked at all; see Forked for clones that failed by themselves.
        """
        return forked(self._end.ask(_calls.fork(self.id, count, live, more)), lambda view: Vm(self._end, view))

    def forks(self) -> list[dict[str, Any]]:
        """Forks of it that are under way, and the last ones that were: how far each host is with its clones."""
        return list(self._end.ask(_calls.forks(self.id)))

    def checkpoint(self, name: str | None = None, *, live: bool = False) -> Vm:
        """Keep this instant on disk, to be forked later."""
        return Vm(self._end, self._end.ask(_calls.checkpoint(self.id, name, live)))

    def migrate(self, to: str, **more: Any) -> dict[str, Any]:
        """Move it to another host, where it goes on under its identity; the report of how that went.

        `more`: other fields of the API's request: max_gap_ms, deadline_ms,
        if_stuck, keep_copy (name of a checkpoint that stays where it was), disk (auto, ahead
        or on-demand: the part of its volumes that is sent before it moves).
        Several that move as one: Forkyard.migrate.
        """
        return self._moved(self._end.ask(_calls.migrate(self.id, to, more)))

    def make_independent(self) -> dict[str, Any]:
        """Have its disk come to depend on no substrate or image, in the background; returns what `inspect` shows.

        `independence` in that tells how far it is.
        """
        return dict(self._end.ask(_calls.act(self.id, "independence")))

    def dock(self, name: str, kind: str = "public", *, live: bool = False, **more: Any) -> dict[str, Any]:
        """Make a substrate of it: kind public, restricted or private.

        It ends as the substrate; with `live` a clone does, and it runs on. `more`: other fields of
        the API's request, such as keep_services.
        """
        return dict(self._end.ask(_calls.dock(self.id, name, kind, live, more)))

    def pause(self) -> None:
        """Have it stand still; it can be forked so."""
        self.view = self._end.ask(_calls.act(self.id, "pause"))

    def resume(self) -> None:
        """Let it go on."""
        self.view = self._end.ask(_calls.act(self.id, "resume"))

    def schedule(self, **settings: Any) -> dict[str, Any]:
        """Have its vCPUs scheduled on its host; what is absent stays as it is. Returns the state of that host.

        `settings`: policy="sbco", level="observe", "place" or "enforce", parallel="yes" or "no", weight=256,
        cap (per cent of one CPU; 0 lifts it), slice_us and period_us. All scheduled VMs of a host have one policy.
        """
        return dict(self._end.ask(_calls.schedule(self.id, settings)))

    def unschedule(self) -> dict[str, Any]:
        """Let its vCPUs go, as if they had never been scheduled; returns the state of its host."""
        return dict(self._end.ask(_calls.unschedule(self.id)))

    def scheduling(self) -> dict[str, Any]:
        """State of the vCPUs that are scheduled on its host; a ForkyardError of kind not_found if none is."""
        return dict(self._end.ask(_calls.scheduling(self.id)))

    def make_friendly(self, *changes: str, **settings: Any) -> dict[str, Any]:
        """Have it adapt its demand to what its host can give; returns its state.

        `changes`: constants such as "monitor.threshold=2". `settings`: law="quick", group="exec" or "image",
        config (text in TOML). What is absent stays as it is.
        """
        return dict(self._end.ask(_calls.make_friendly(self.id, changes, settings)))

    def end_friendly(self) -> dict[str, Any]:
        """End that: everything in it is as it was before; returns its state."""
        return dict(self._end.ask(_calls.end_friendly(self.id)))

    def friendly(self) -> dict[str, Any]:
        """Its state as a friendly guest: `friendly`, what it senses, what it does."""
        return dict(self._end.ask(_calls.friendly(self.id)))

    def boot(self) -> None:
        """Boot it again, from its own disk, once it has stopped."""
        self.view = self._end.ask(_calls.act(self.id, "start"))

    def stop(self) -> None:
        """Power it off; its record stays until it is removed."""
        self.view = self._end.ask(_calls.act(self.id, "stop"))

    def remove(self) -> None:
        """End it, and remove all that is its own."""
        self._end.ask(_calls.remove(self.id))

    def start(
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
    ) -> Process:
        """Start a command whose output is read as it comes; see exec().

        With `stdin=PIPE` it is written to as it runs. `tty`, the rows and columns of a terminal,
        gives it one; what it writes is all standard output then. With `keep` it goes on whatever
        becomes of this client: attach() follows it again, by its pid.
        """
        wanted = command(argv, env, timeout, workdir, user, tty, keep, tag)
        path = of_vm(self.id, "exec")
        if isinstance(stdin, Pipe):
            return Process(argv, self._end.duplex(path, wanted))
        whole = octets(stdin, "stdin is bytes or PIPE")
        return Process(argv, self._end.open("POST", path, {**wanted, "stdin": b64encode(whole).decode() if whole else None}))

    def exec(
        self,
        *argv: str,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        workdir: str | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        What is left out is as the VM's container image says, if it was made of one: environment,
        working directory, user. `stdin` may be an iterator over pieces, a file opened with mode "rb" say,
        which are passed on as the command reads them; an exception of the iterator ends the command and is raised. After `timeout` seconds, rounded up to whole ones, the
        command and all that it started is killed: ForkyardError of kind timeout. NotStarted if it
        cannot be run. With `check`, CommandFailed unless it exits with 0.
        """
        source = given(stdin)
        if isinstance(source, bytes) and len(source) <= INLINE:
            process = self.start(*argv, stdin=source, env=env, timeout=timeout, workdir=workdir, user=user)
        else:
            process = self.start(*argv, stdin=PIPE, env=env, timeout=timeout, workdir=workdir, user=user)
            process.feed([source] if isinstance(source, bytes) else source)
        with process:
            return process.finish(check)

    def detach(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | None = None,
        tag: str | None = None,
    ) -> int:
        """Start a command and leave it to itself; its process id in the guest.

        It reads nothing, and goes on whatever becomes of this client. The last of what it writes is
        kept for attach().
        """
        wanted = {**command(argv, env, None, workdir, user, None, False, tag), "detach": True}
        with Process(argv, self._end.open("POST", of_vm(self.id, "exec"), wanted), False) as process:
            process.finish()
            return process.pid or 0

    def sessions(self) -> list[dict[str, Any]]:
        """Commands that it keeps: those that run, whose exit is None, and the last that have ended."""
        return list(self._end.ask(_calls.sessions(self.id)))

    def attach(self, pid: int) -> Process:
        """Follow a command that it keeps: what it has written, as far as that is kept, comes first.

        It is written to as one that was started with `stdin=PIPE`, and goes on when it is left.
        """
        return Process((), self._end.duplex(of_vm(self.id, "sessions", str(pid)), None))

    def kill_session(self, pid: int, signal: int = 9) -> None:
        """Send a command that it keeps a signal; 9 kills all that it started, too."""
        self._end.ask(_calls.kill_session(self.id, pid, signal))

    def keepalive(self, ttl: int | None, action: str | None = None) -> None:
        """Want it for `ttl` seconds from now on, or until it is removed if None.

        `action`: what becomes of it then: rm, stop, pause or checkpoint; as before, or rm, if absent.
        """
        self.view = self._end.ask(_calls.keepalive(self.id, ttl, action))

    def egress(self, out: str = "nat", *, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> dict[str, Any]:
        """Say what the VMs of its family, on its host, may reach from now on; returns their network policy.

        `out`: "nat" or "none". `allow`: all that may be reached, as "192.0.2.0/24:443"; if there is none,
        all but private networks. `deny`: what may not, even if it is allowed.
        """
        return dict(self._end.ask(_calls.egress(self.id, out, allow, deny)))

    def share(self, port: int, expires: int = 3600, *, base: str | None = None, note: str = "") -> dict[str, Any]:
        """Give out a token with which clients of a gateway reach one port, for `expires` seconds.

        Returns `token`, which is shown this once, `share`, as it is listed, and with the gateway's
        `base`, such as "https://vms.example.org", `url`: the address to give away.
        """
        return self._shared(self._end.ask(_calls.share(self.id, port, expires, note)), port, base)

    def shares(self) -> list[dict[str, Any]]:
        """Tokens for its ports that hold, the oldest first: `id`, `port`, `expires`, `note`, `hash`."""
        return list(self._end.ask(_calls.shares(self.id)))

    def unshare(self, share: str) -> None:
        """Take a token back, by its id: gateways refuse it within two seconds."""
        self._end.ask(_calls.unshare(self.id, share))

    def idle(self, after: int | None, action: str = "pause") -> None:
        """Have it sleep or end once it has not been used for `after` seconds, or run on if None.

        `action`: pause, stop, checkpoint or rm. Once paused or stopped, its next use wakes it: a command,
        a session, a copy, a connection.
        """
        self.view = self._end.ask(_calls.idle(self.id, after, action))

    def set_restart(self, restart: str) -> None:
        """Say whether it is started again when it ends by itself, from now on: "no", "always", "on-failure" or "on-failure:N".

        ForkyardError for clones, which cannot be, but for "no".
        """
        self.view = self._end.ask(_calls.set_restart(self.id, restart))

    def rename(self, name: str) -> None:
        """Give it another name, which no other has. Its guest's host name stays until it boots again."""
        self.view = self._end.ask(_calls.rename(self.id, name))
        self.name = self.view["name"]

    def publish(self, *ports: str) -> list[str]:
        """Have ports of the host lead to it until it stops: "[ADDRESS:]PORT:GUESTPORT[/udp]"; all that do.

        "ADDRESS/routed" and "ADDRESS/bridge" give it an address of its own outside the host.
        """
        self.view = self._end.ask(_calls.publish(self.id, ports))
        return self.published

    def unpublish(self, port: int | str, transport: str = "tcp") -> None:
        """Close a port of the host that leads to it, or take an address from it. Open connections go on."""
        self.view = self._end.ask(_calls.unpublish(self.id, port, transport))

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Give it these labels instead of those it had."""
        self.view = self._end.ask(_calls.set_labels(self.id, labels))

    def logs(self) -> bytes:
        """Read what it wrote to its serial console, as far as that is kept; of a clone since its fork."""
        stream = self._end.open("GET", of_vm(self.id, "logs"))
        try:
            return stream.read()
        finally:
            stream.close()

    def connect(self, port: int) -> socket.socket:
        """Connect to a TCP port of it, through the daemon: a connected socket.

        Its server may listen on the VM's loopback alone. ForkyardError if nothing listens there.
        Over the network the socket is one of TLS: it has no timeouts, and close() ends both directions, none alone.
        """
        return self._end.upgrade(of_vm(self.id, "ports", str(port)))


class Files:
    """Files of a VM. Its agent does the work: nothing of the image is needed."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """The content, or a part of it; ForkyardError if it cannot be read, or without a limit has more than 1 GiB."""
        stream = self._vm._end.open("GET", _calls.read(self._vm.id, path, offset, limit))
        content = _calls.Content(path, limit)
        try:
            while piece := stream.some(INLINE):
                content.add(piece)
            return content.whole()
        finally:
            stream.close()

    def write(self, path: str, content: bytes, mode: int | None = None, *, parents: bool = False) -> None:
        """Replace a file as a whole: it is the old one or the new one at any moment.

        Its mode stays unless one is given; a new one has 0o644. `parents` makes
        the folders above it. ForkyardError if it cannot be written.
        """
        to = _calls.write(self._vm.id, path, mode, parents)
        self._vm._end.open("PUT", to, content=pieces(content)).close()

    def stat(self, path: str) -> FileEntry:
        """Facts of a file; of a link itself. ForkyardError of kind not_found if there is none."""
        return FileEntry.of(self._vm._end.ask(_calls.stat(self._vm.id, path)))

    def list(self, path: str) -> List[FileEntry]:
        """What is in a folder, by name."""
        return [FileEntry.of(entry) for entry in self._vm._end.ask(_calls.folder(self._vm.id, path))]

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it that are not there."""
        self._vm._end.ask(_calls.make_folder(self._vm.id, path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or an empty folder, or with `recursive` one with all that is in it."""
        self._vm._end.ask(_calls.remove_file(self._vm.id, path, recursive))

    def move(self, path: str, to: str) -> None:
        """Move a file or folder; folders above `to` that are not there are made."""
        self._vm._end.ask(_calls.move(self._vm.id, path, to))

    def watch(self, path: str, *, recursive: bool = False) -> Changes:
        """Changes in a folder from now on, with `recursive` in all folders below as well: iterate over it.

        ForkyardError if it cannot be watched.
        """
        return Changes(self._vm._end, self._vm.id, path, recursive)

    def put(self, here: str | PathLike[str], there: str) -> None:
        """Copy a file or folder of this host's into the VM, where it is root's.

        Into `there` if that is a folder, else as `there`; `here` that ends in `/.`
        is what is in it. Links stay links; sockets, FIFOs and devices are left out.
        OSError if it cannot be read here, ForkyardError if it cannot be written there.
        """
        put(self._vm._end, self._vm.id, fspath(here), there)

    def get(self, there: str, here: str | PathLike[str]) -> None:
        """Copy a file or folder of the VM's to this host.

        Into `here` if that is a folder, else as `here`. Nothing is written
        elsewhere, whatever the guest sends. ForkyardError if it cannot be read
        there, OSError if it cannot be written here.
        """
        get(self._vm._end, self._vm.id, there, fspath(here))
