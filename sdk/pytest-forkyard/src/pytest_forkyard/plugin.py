"""Fixtures and hooks, as pytest loads them."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any, Generator, Iterator, NoReturn

import pytest
from forkyard_host import CommandFailed, Forkyard, ForkyardError, Unreachable, Vm

from ._fleet import KEPT, Fleet, Warm, WarmUp

_LINES = 100  # Of a console, in a report.
_FLEET = pytest.StashKey[Fleet]()
_CLONE = pytest.StashKey[Vm]()
_FAILED = pytest.StashKey[bool]()
_TOLD = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forkyard", "virtual machines forked for tests")
    group.addoption("--forkyard-keep", action="store_true", help="keep the clones of tests that fail, to look at them")
    parser.addini("forkyard_image", "image of warm_vm (tiny)", default="tiny")
    parser.addini("forkyard_memory", "MiB of memory of warm_vm (256)", default="256")
    parser.addini("forkyard_warm_up", "script for sh -e that warms warm_vm up", default="")
    parser.addini("forkyard_ttl", "seconds after which VMs of a run that was killed are removed (300)", default="300")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "forkyard(image=None, warm_up=None, **options): forked_vm is a clone of a VM of this image, warmed up so; "
        "options are those of forkyard_host.Forkyard.run",
    )
    given = getattr(config, "workerinput", {})
    run = given.get("forkyard_run") or uuid.uuid4().hex
    lock = Path(given.get("forkyard_lock") or Path(tempfile.gettempdir(), f"pytest-forkyard-{run}"))
    config.stash[_FLEET] = Fleet(run, lock, max(2, _number(config, "forkyard_ttl")), given.get("workerid", ""))
    config.stash[_TOLD] = []
    if not given:
        config.pluginmanager.register(_Controller(run, lock), "forkyard-controller")


class _Controller:
    """What the process does that the others, if there are any, are workers of."""

    def __init__(self, run: str, lock: Path) -> None:
        self._run, self._lock = run, lock

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker of pytest-xdist whose run it is in."""
        node.workerinput |= {"forkyard_run": self._run, "forkyard_lock": str(self._lock)}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told = session.config.stash[_TOLD]
        try:
            for vm in session.config.stash[_FLEET].clear():
                told.append(f"{vm.name} is kept, of {vm.labels[KEPT]}: forkyard exec -t {vm.name} -- sh; forkyard rm {vm.name}")
        except ForkyardError as error:
            told.append(f"VMs of this run may be left, and end by themselves in a while: {error}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        for line in config.stash[_TOLD]:
            terminalreporter.write_line(f"forkyard: {line}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if fleet := config.stash.get(_FLEET, None):
        fleet.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    clone = item.stash.get(_CLONE, None)
    if clone and report.failed:
        item.stash[_FAILED] = True
        report.sections.append((f"Console of {clone.name}", _console(clone)))
    return report


@pytest.fixture(scope="session")
def forkyard(pytestconfig: pytest.Config) -> Forkyard:
    """The host that VMs are on: FORKYARD_URL, or this one."""
    return pytestconfig.stash[_FLEET].host


@pytest.fixture(scope="session")
def forkyard_warm(pytestconfig: pytest.Config) -> Warm:
    """Returns a VM that was booted and warmed up once in this run, whoever asks for it, and is removed at its end."""

    def warm(image: str | None = None, warm_up: WarmUp | None = None, **options: Any) -> Vm:
        if image is None:
            image = str(pytestconfig.getini("forkyard_image"))
            if "memory_mib" not in options:
                options.setdefault("memory", _number(pytestconfig, "forkyard_memory") << 20)
        try:
            return pytestconfig.stash[_FLEET].warm(image, warm_up, options)
        except (ForkyardError, CommandFailed) as error:
            _fail(f"no warm VM of {image}", error)

    return warm


@pytest.fixture(scope="session")
def warm_vm(forkyard_warm: Warm, pytestconfig: pytest.Config) -> Vm:
    """The VM that tests have clones of. Override it to say which, and what warms it up."""
    return forkyard_warm(warm_up=str(pytestconfig.getini("forkyard_warm_up")))


@pytest.fixture
def forked_vm(request: pytest.FixtureRequest) -> Iterator[Vm]:
    """A clone for this test alone: of warm_vm, or of the VM that the marker `forkyard` describes."""
    fleet = request.config.stash[_FLEET]
    marker = request.node.get_closest_marker("forkyard")
    if marker:
        parent = request.getfixturevalue("forkyard_warm")(*marker.args, **marker.kwargs)
    else:
        parent = request.getfixturevalue("warm_vm")
    try:
        clone = fleet.fork(parent)
    except ForkyardError as error:
        _fail(f"{parent.name} was not forked", error)
    stash = request.node.stash
    stash[_CLONE], stash[_FAILED] = clone, False
    yield clone
    del stash[_CLONE]
    if stash[_FAILED] and request.config.getoption("forkyard_keep"):
        fleet.keep(clone, request.node.nodeid)
    else:
        fleet.remove(clone)


def _fail(what: str, error: Exception) -> NoReturn:
    lines = [f"{what}: {error}"]
    if isinstance(error, Unreachable):
        lines.append("start it as root with `forkyardd`, or have FORKYARD_URL name one elsewhere")
    elif hint := getattr(error, "hint", None):
        lines.append(hint)
    # Alone, without those that caused it: it says what they say.
    raise pytest.fail.Exception("\n".join(lines), pytrace=False) from None


def _console(clone: Vm) -> str:
    """The end of what the clone wrote there since it was forked."""
    try:
        text = clone.logs().decode(errors="replace").replace("\r\n", "\n")
    except ForkyardError as error:
        return f"cannot be read: {error}"
    return "\n".join(text.splitlines()[-_LINES:]) or "(nothing since the fork)"


def _number(config: pytest.Config, name: str) -> int:
    given = str(config.getini(name))
    if not given.isdecimal():
        raise pytest.UsageError(f"{name} is {given!r}, and should be a whole number")
    return int(given)
