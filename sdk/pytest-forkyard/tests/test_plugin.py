"""The plug-in against a real daemon: each test here runs a suite of its own, as a user's."""

import signal
import subprocess
import sys
import time

import pytest
from forkyard_host import Forkyard

CONFTEST = """
    import pytest

    def start(vm):
        vm.exec("sh", "-c", "echo warm >/state; mkfifo /fifo", check=True)
        vm.detach("sh", "-c", "while read -r line </fifo; do echo $line; done >/dev/console")

    @pytest.fixture(scope="session")
    def warm_vm(forkyard_warm):
        return forkyard_warm("tiny", start, max_clones=4)
"""

SUITE = """
    import os
    import time
    import pytest

    @pytest.mark.parametrize("number", range(2))
    def test_clean(forked_vm, warm_vm, number):
        assert forked_vm.files.read("/state") == b"warm\\n"
        forked_vm.files.write("/state", b"dirty")
        assert forked_vm.view["parent"] == warm_vm.id
        print("parent", warm_vm.id)

    def test_fails(forked_vm):
        forked_vm.exec("sh", "-c", "echo the service says >/fifo; echo evidence >/state", check=True, timeout=60)
        for _ in range(600):
            if b"says" in forked_vm.logs():
                break
            time.sleep(0.1)
        assert forked_vm.name == "other"

    def test_ends_its_worker(forked_vm):
        os._exit(3)

    @pytest.mark.forkyard("tiny", "echo why >&2; false", labels={"a": "b"})
    def test_warm_up_fails(forked_vm):
        pass

    @pytest.mark.forkyard("no-such-image")
    def test_no_image(forked_vm):
        pass

    def test_without():
        pass
"""


def names():
    return {vm.name for vm in Forkyard().vms()}


def eventually(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "never"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def nothing_left():
    before = names()
    yield
    assert names() == before


def test_each_test_has_a_clone_of_the_vm_that_workers_share_and_a_failed_ones_is_told_of_and_kept(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-n2", "-rP", "--forkyard-keep")
    result.assert_outcomes(passed=3, failed=2, errors=2)
    parents = [line for line in result.outlines if line.startswith("parent ")]
    assert len(parents) == 2 and len(set(parents)) == 1, parents
    result.stdout.fnmatch_lines(["*- Console of * -*", "the service says"])
    result.stdout.fnmatch_lines(["no warm VM of tiny: sh exited with 1: why"])
    result.stdout.fnmatch_lines(["no warm VM of no-such-image: *"])
    kept = [line.split()[1] for line in result.outlines if line.startswith("forkyard: ") and "test_fails" in line]
    assert len(kept) == 1, result.outlines
    with Forkyard().vm(kept[0]) as clone:
        assert clone.files.read("/state") == b"evidence\n"
        assert clone.view["ends"] is None


def test_ini_options_say_what_the_vm_is_and_a_fork_that_is_refused_is_told_with_what_to_do(pytester):
    pytester.makeini("[pytest]\nforkyard_image = tiny\nforkyard_warm_up = echo ini >/state\n")
    pytester.makepyfile("""
        import pytest

        def test_ini(warm_vm, forkyard_warm):
            assert warm_vm.files.read("/state") == b"ini\\n"
            assert forkyard_warm(warm_up="echo ini >/state").id == warm_vm.id

        def test_refused(warm_vm, request, monkeypatch):
            monkeypatch.setattr(warm_vm, "id", "gone")
            request.getfixturevalue("forked_vm")
    """)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["* was not forked: *", "*forkyard ps*"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_interrupted_or_killed(pytester, number):
    pytester.makeini("[pytest]\nforkyard_ttl = 6\n")
    test = pytester.makepyfile("""
        import time

        def test_hangs(forked_vm):
            print("it hangs", flush=True)
            time.sleep(600)
    """)
    before = names()
    with subprocess.Popen([sys.executable, "-m", "pytest", "-s", test], stdout=subprocess.PIPE, text=True) as run:
        try:
            assert any("it hangs" in line for line in run.stdout)
            # Longer than they would live if nothing renewed that.
            time.sleep(8 if number == signal.SIGKILL else 0)
            assert len(names() - before) == 2
            run.send_signal(number)
            run.stdout.read()
        finally:
            run.kill()
    if number == signal.SIGKILL:
        eventually(lambda: names() == before)


def test_without_a_daemon_the_error_says_so(pytester, monkeypatch):
    monkeypatch.setenv("FORKYARD_URL", "unix:///nonexistent/api.sock")
    pytester.makepyfile("def test(forked_vm): pass\ndef test_other(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*no daemon answers at unix:///nonexistent/api.sock*", "start it as root with*"])
    monkeypatch.undo()


def test_options_that_make_no_sense_are_refused(pytester):
    pytester.makeini("[pytest]\nforkyard_ttl = soon\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*forkyard_ttl is 'soon'*whole number*"])
