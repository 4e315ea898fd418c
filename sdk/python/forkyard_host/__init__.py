"""Fork running virtual machines from outside.

    from forkyard_host import Forkyard

    fy = Forkyard()
    with fy.run("tiny") as vm:               # ended and removed at the end
        vm.exec("sh", "-c", "echo warm >/state")
        a, b = vm.fork(2)                    # raises PartialFork if one is missing
        with a, b:
            print(a.exec("cat", "/state").text)
            b.files.write("/etc/motd", b"hello")

`AsyncForkyard` is the same with `await`, on the event loop alone. Standard library only. Inside a guest
there is another module, `forkyard`: there a program forks the VM it runs in.
"""

from ._aio import AsyncFiles, AsyncForkyard, AsyncVm
from ._aio_process import AsyncChanges, AsyncEvents, AsyncProcess
from ._client import PIPE, Files, Forkyard, Vm
from ._events import Events
from ._process import Process
from ._types import CommandFailed, Event, ExecResult, FileChange, FileEntry, Forked, ForkyardError, NotStarted, PartialFork, Unreachable
from ._watch import Changes

__all__ = [
    "AsyncChanges",
    "AsyncEvents",
    "AsyncFiles",
    "AsyncForkyard",
    "AsyncProcess",
    "AsyncVm",
    "Changes",
    "CommandFailed",
    "Event",
    "Events",
    "ExecResult",
    "FileChange",
    "FileEntry",
    "Files",
    "Forked",
    "Forkyard",
    "ForkyardError",
    "NotStarted",
    "PIPE",
    "PartialFork",
    "Process",
    "Unreachable",
    "Vm",
]
