"""VMs of one run of pytest, which may be several processes (pytest-xdist).

All of them carry the run's label and a lifetime. The label is how workers find the VM that another
has warmed, and how the controller finds what is left at the end. The lifetime ends VMs of a
run that was killed; while the run is alive, a thread renews it.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Callable, Protocol

from forkyard_host import Forkyard, ForkyardError, Vm

RUN = "pytest-forkyard-run"
WARM = "pytest-forkyard-warm"
KEPT = "pytest-forkyard-kept"
_LABEL = 4096  # Most bytes of a label's value.

WarmUp = Callable[[Vm], object] | str
"""Brings a VM into the state that tests begin with: a function, or a script for `sh -e`."""


class Warm(Protocol):
    """Type of the fixture `forkyard_warm`."""

    def __call__(self, image: str | None = None, warm_up: WarmUp | None = None, **options: Any) -> Vm: ...


class Fleet:
    """`lock`: a path of the run that all of its processes know; the file exists once a VM was wanted."""

    def __init__(self, run: str, lock: Path, ttl: int, worker: str) -> None:
        self._run, self._lock, self._ttl, self._worker = run, lock, ttl, worker
        self._warm: dict[str, Vm] = {}
        self._known: list[object] = []  # What keys have the identity of stays, so that nothing else gets it.
        self._alive: dict[str, Vm] = {}
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    @cached_property
    def host(self) -> Forkyard:
        """The daemon; not before it is wanted, for most runs of pytest have nothing to do with it."""
        return Forkyard()

    def warm(self, image: str, warm_up: WarmUp | None, options: dict[str, Any]) -> Vm:
        """Returns the run's VM that was warmed so; boots and warms it if it is the first to ask."""
        key = self._key(image, warm_up, options)
        if key not in self._warm:
            self._find(key)  # Without a daemon there is nothing to be cleared, and no file of the run's.
            with open(self._lock, "w") as lock:
                # Closing it lets go, as does the end of a worker that dies.
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._warm[key] = self._find(key) or self._boot(key, image, warm_up, options)
            self._renew(self._warm[key])
        return self._warm[key]

    def fork(self, parent: Vm) -> Vm:
        """Makes a clone. Labels and lifetime are its parent's."""
        forked = parent.fork()
        if forked.errors:
            raise forked.errors[0]
        clone = forked.vms[0]
        self._renew(clone)
        if clone.labels.get(RUN) != self._run:
            # Of a VM that the user made.
            clone.set_labels({**clone.labels, RUN: self._run})
            clone.keepalive(self._ttl, "rm")
        return clone

    def remove(self, vm: Vm) -> None:
        """Ends a VM. One that has gone by itself is no error."""
        self._alive.pop(vm.id, None)
        try:
            vm.remove()
        except ForkyardError as gone:
            if gone.kind != "not_found":
                raise

    def keep(self, clone: Vm, test: str) -> None:
        """Leaves a clone to the user."""
        self._alive.pop(clone.id, None)
        clone.set_labels({**clone.labels, KEPT: test.encode()[:_LABEL].decode(errors="ignore")})
        clone.keepalive(None)

    def end(self) -> None:
        """Ends this process's share: lifetimes are renewed no more."""
        self._ended.set()

    def clear(self) -> list[Vm]:
        """Removes all VMs of the run, of every process; returns the clones that are kept."""
        self.end()
        if not self._lock.exists():
            return []  # No test wanted a VM: no daemon is asked, or started.
        self._lock.unlink()
        kept = []
        for vm in self.host.vms(labels={RUN: self._run}):
            if KEPT in vm.labels:
                kept.append(vm)
            else:
                self.remove(vm)
        return kept

    def _key(self, image: str, warm_up: WarmUp | None, options: dict[str, Any]) -> str:
        what: object = warm_up
        if isinstance(warm_up, FunctionType) and "<" not in warm_up.__qualname__:
            what = f"{warm_up.__module__}:{warm_up.__qualname__}"
        elif callable(warm_up):
            # Not known by its name: two of one name may differ, and another process's is not this one.
            self._known.append(warm_up)
            what = (self._worker, id(warm_up))
        text = repr((image, what, sorted(options.items())))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _find(self, key: str) -> Vm | None:
        found = self.host.vms(labels={RUN: self._run, WARM: key})
        return next((vm for vm in found if vm.view["parent"] is None), None)

    def _boot(self, key: str, image: str, warm_up: WarmUp | None, options: dict[str, Any]) -> Vm:
        labels = {**options.get("labels", {}), RUN: self._run}
        vm = self.host.run(image, **{"lifetime": {"ttl_s": self._ttl, "action": "rm"}, **options, "labels": labels})
        self._renew(vm)
        try:
            if callable(warm_up):
                warm_up(vm)
            elif warm_up:
                vm.exec("sh", "-e", "-c", warm_up, check=True)
            # Others may have it from now on.
            vm.set_labels({**labels, WARM: key})
        except BaseException:
            self.remove(vm)
            raise
        return vm

    def _renew(self, vm: Vm) -> None:
        self._alive[vm.id] = vm
        if not self._renewing:
            self._renewing = threading.Thread(target=self._keep_alive, daemon=True, name="pytest-forkyard")
            self._renewing.start()

    def _keep_alive(self) -> None:
        while not self._ended.wait(self._ttl / 3):
            for vm in list(self._alive.values()):
                try:
                    vm.keepalive(self._ttl, "rm")
                except ForkyardError:
                    pass  # Whoever uses it is told.
