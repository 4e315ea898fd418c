"""What programs do with the official SDK of E2B, unmodified, against Forkyard.

The environment says where: E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL. `base` is an image with a
shell and busybox. Prints how long some of it took, for who reads that; nothing depends on it.
"""

import asyncio
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timezone

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox as Interpreter

URL = sys.argv[1]
SERVER = sys.argv[2]  # The program of a code interpreter's server.
PORT = int(URL.rsplit(":", 1)[1])


def raises(kind, call, word=""):
    try:
        call()
    except kind as error:
        assert word in str(error), error
        return error
    raise AssertionError(f"no {kind.__name__}")


def eventually(what, condition, seconds=60):
    for _ in range(seconds * 20):
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


def timed(what, call):
    begun = time.monotonic()
    result = call()
    print(f"{what}: {(time.monotonic() - begun) * 1000:.0f} ms")
    return result


def get(sandbox, port, path, headers=None):
    """A request as a browser would make it: the host's name says which sandbox and port."""
    request = urllib.request.Request(URL + path, headers={"Host": sandbox.get_host(port), **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def life():
    raises(AuthenticationException, lambda: Sandbox.create(api_key="wrong"), "token")
    raises(SandboxException, lambda: Sandbox.create("no-such-template"), "no-such-template")
    sandbox = timed(
        "create",
        lambda: Sandbox.create(timeout=600, metadata={"user": "ada", "a b": "c&d"}, envs={"COLOUR": "red"}),
    )
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert (info.sandbox_id, info.template_id, info.state) == (sandbox.sandbox_id, "base", SandboxState.RUNNING)
    assert info.metadata == {"user": "ada", "a b": "c&d"}, info.metadata
    left = (info.end_at - datetime.now(timezone.utc)).total_seconds()
    assert 0 < left <= 600, left
    sandbox.set_timeout(6000)
    left = (sandbox.get_info().end_at - datetime.now(timezone.utc)).total_seconds()
    assert 600 < left <= 6000, left
    return sandbox


def commands(sandbox):
    run = sandbox.commands.run
    first = timed("run", lambda: run("echo $COLOUR; echo $A; pwd; echo oh >&2", envs={"A": "b c"}, cwd="/tmp"))
    assert (first.stdout, first.stderr, first.exit_code) == ("red\nb c\n/tmp\n", "oh\n", 0), first
    error = raises(CommandExitException, lambda: run("echo x; exit 7"))
    assert (error.exit_code, error.stdout) == (7, "x\n")
    raises(InvalidArgumentException, lambda: run("true", cwd="/nowhere"), "/nowhere")
    raises(InvalidArgumentException, lambda: run("true", user="nobody-here"), "nobody-here")
    assert run("id -u", user="nobody").stdout == "65534\n"
    # More than is kept of a command that nobody follows.
    large = timed("1 MB of output", lambda: run("yes 0123456789abcde | head -n 65536"))
    assert len(large.stdout) == 1 << 20, len(large.stdout)

    # Streamed as it comes.
    heard = []
    run("echo one; sleep 0.3; echo two", on_stdout=lambda text: heard.append((time.monotonic(), text)))
    assert [text for _, text in heard] == ["one\n", "two\n"] and heard[1][0] - heard[0][0] > 0.1, heard

    # In the background: listed, followed by another client, killed.
    background = run("echo begun; sleep 1000", background=True)
    found = [p for p in sandbox.commands.list() if p.pid == background.pid]
    assert found and found[0].args[-1] == "echo begun; sleep 1000", found
    background.disconnect()
    again = sandbox.commands.connect(background.pid)
    assert next(iter(again))[0] == "begun\n"
    assert sandbox.commands.kill(background.pid)
    error = raises(CommandExitException, again.wait)
    assert error.exit_code == -1 and "killed" in error.error, error
    assert not sandbox.commands.kill(background.pid)
    raises(NotFoundException, lambda: sandbox.commands.connect(999999))
    assert all(p.pid != background.pid for p in sandbox.commands.list())

    # Standard input, and its end.
    cat = run("cat; echo over", background=True, stdin=True)
    sandbox.commands.send_stdin(cat.pid, "first ")
    cat.send_stdin("second\n")
    sandbox.commands.stream_input(cat.pid, iter(["third ", b"fourth\n"]))
    cat.close_stdin()
    assert cat.wait().stdout == "first second\nthird fourth\nover\n"
    # Without, it is at its end.
    assert run("cat; echo over").stdout == "over\n"

    # A command that takes longer than it was given is killed.
    raises(TimeoutException, lambda: run("sleep 987", timeout=1))
    eventually("it is gone", lambda: not any("sleep 987" in p.args[-1] for p in sandbox.commands.list()))

    # A terminal.
    pty = sandbox.pty.create(PtySize(rows=24, cols=80))
    said = []
    reading = threading.Thread(target=lambda: pty.wait(on_pty=lambda data: said.append(bytes(data))), daemon=True)
    reading.start()
    sandbox.pty.send_stdin(pty.pid, b"stty size; tty\n")
    eventually("the terminal's size", lambda: b"24 80" in b"".join(said))
    sandbox.pty.resize(pty.pid, PtySize(rows=50, cols=132))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    reading.join(60)
    assert b"50 132" in b"".join(said), b"".join(said)


def files(sandbox):
    files = sandbox.files
    info = timed("write", lambda: files.write("/data/a/hello.txt", "hello ä"))
    assert (info.name, info.path, info.type) == ("hello.txt", "/data/a/hello.txt", FileType.FILE)
    assert timed("read", lambda: files.read("/data/a/hello.txt")) == "hello ä"
    large = bytes(range(256)) * 8192
    assert files.write_files([{"path": "/data/x", "data": large}, {"path": "/data/y", "data": b""}])[1].path == "/data/y"
    assert files.read("/data/x", format="bytes") == large
    assert b"".join(files.read("/data/x", format="stream")) == large
    assert files.read("/data/y") == ""
    files.write("/data/z", (large[at : at + 65536] for at in range(0, len(large), 65536)))
    assert sandbox.commands.run("cmp /data/x /data/z && echo same").stdout == "same\n"
    raises(FileNotFoundException, lambda: files.read("/data/none"))

    assert files.exists("/data/x") and not files.exists("/data/none")
    info = files.get_info("/data/x")
    assert (info.size, info.owner, info.type) == (len(large), "root", FileType.FILE), info
    assert files.make_dir("/data/b/c") and not files.make_dir("/data/b/c")
    sandbox.commands.run("ln -s /data/x /data/link; chmod 750 /data/y")
    listed = {entry.name: entry for entry in files.list("/data")}
    assert sorted(listed) == ["a", "b", "link", "x", "y", "z"], sorted(listed)
    assert listed["a"].type == FileType.DIR and listed["link"].symlink_target == "/data/x"
    assert listed["y"].permissions == "-rwxr-x---"
    deep = [entry.path for entry in files.list("/data", depth=2)]
    assert "/data/a/hello.txt" in deep and "/data/b/c" in deep, deep
    assert files.rename("/data/x", "/data/new/moved").path == "/data/new/moved"
    assert files.read("/data/new/moved", format="bytes") == large
    files.remove("/data/new")
    assert not files.exists("/data/new")
    raises(FileNotFoundException, lambda: files.list("/data/new"))

    # Signed addresses need no token, and name no sandbox where all have one address.
    with urllib.request.urlopen(sandbox.download_url("/data/a/hello.txt")) as answer:
        assert answer.read().decode() == "hello ä"
    # Where each has its own, that names it.
    with urllib.request.urlopen(urllib.request.Request(
        sandbox.download_url("/data/a/hello.txt", use_signature_expiration=60),
        headers={"Host": sandbox.get_host(49983)},
    )) as answer:
        assert answer.read().decode() == "hello ä"
    status, _ = get(sandbox, 49983, "/files?path=/data/a/hello.txt")
    assert status == 401, status

    files.write("/data/b/old.txt", "x")
    watcher = files.watch_dir("/data", recursive=True)
    files.write("/data/b/new.txt", "x")
    files.write("/data/b/old.txt", "y")
    sandbox.commands.run("rm /data/y; mkdir /data/d; echo x >/data/d/e")
    seen = set()

    def all_seen():
        seen.update((event.type, event.name) for event in watcher.get_new_events())
        return {
            (FilesystemEventType.CREATE, "b/new.txt"),
            (FilesystemEventType.WRITE, "b/new.txt"),
            (FilesystemEventType.WRITE, "b/old.txt"),
            (FilesystemEventType.REMOVE, "y"),
            (FilesystemEventType.CREATE, "d"),
            (FilesystemEventType.CREATE, "d/e"),
        } <= seen

    eventually("what happened is told", all_seen)
    assert (FilesystemEventType.CREATE, "b/old.txt") not in seen
    assert not any("forkyard" in name for _, name in seen), seen
    watcher.stop()


WS = r"""#!/bin/sh
while read -r line; do line=$(printf '%s' "$line" | tr -d '\r'); [ -z "$line" ] && break; done
printf 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
exec cat
"""


def ports(sandbox):
    sandbox.files.write("/www/index.html", "served from inside")
    sandbox.commands.run("httpd -f -p 127.0.0.1:8080 -h /www", background=True)
    sandbox.files.write("/ws", WS)
    sandbox.commands.run("chmod +x /ws; nc -ll -p 8081 -e /ws", background=True)
    assert eventually("it serves", lambda: get(sandbox, 8080, "/index.html")) is not None
    eventually("it serves", lambda: get(sandbox, 8080, "/index.html") == (200, b"served from inside"))
    assert get(sandbox, 8080, "/none")[0] == 404
    status, said = get(sandbox, 8082, "/")
    assert status == 502 and b"port is not open" in said, (status, said)

    def upgraded():
        with socket.create_connection(("127.0.0.1", PORT), timeout=60) as connection:
            connection.sendall(
                f"GET /chat HTTP/1.1\r\nHost: {sandbox.get_host(8081)}\r\nConnection: Upgrade\r\n"
                "Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n".encode()
            )
            said = b""
            while b"\r\n\r\n" not in said:
                piece = connection.recv(4096)
                if not piece:
                    return False
                said += piece
            if b" 101 " not in said.split(b"\r\n")[0]:
                return False
            connection.sendall(b"ping\n")
            said = said.split(b"\r\n\r\n", 1)[1]
            while not said.endswith(b"ping\n"):
                said += connection.recv(4096)
            return True

    eventually("a connection is upgraded, and carries bytes both ways", upgraded)


def lists(sandbox):
    other = Sandbox.create(timeout=600, metadata={"user": "bob"}, network={"allow_public_traffic": False})
    query = SandboxQuery(metadata={"user": "ada", "a b": "c&d"})
    assert [s.sandbox_id for s in Sandbox.list(query=query).next_items()] == [sandbox.sandbox_id]
    pages = Sandbox.list(limit=1)
    seen = []
    while pages.has_next:
        page = pages.next_items()
        assert len(page) <= 1
        seen += [s.sandbox_id for s in page]
    assert seen[0] == other.sandbox_id and sandbox.sandbox_id in seen, seen

    # Ports that are not public want a token.
    status, _ = get(other, 8080, "/")
    assert status == 401, status
    status, _ = get(other, 8080, "/", {"e2b-traffic-access-token": other.traffic_access_token})
    assert status == 502, status

    # Nobody has another's sandbox by one's own.
    wrong = urllib.request.Request(
        URL + "/files?path=/etc/passwd",
        headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": other._envd_access_token},
    )
    assert raises(urllib.error.HTTPError, lambda: urllib.request.urlopen(wrong)).code == 401

    assert other.kill() and not other.kill()
    assert not other.is_running()
    raises(SandboxNotFoundException, other.get_info)
    raises(SandboxException, lambda: other.commands.run("true"))
    raises(SandboxException, lambda: Sandbox.create(mcp={"x": {}}), "not supported")


def natives():
    """`p` is a VM that the endpoint did not make: it has a server, and no label."""
    native = next(s.sandbox_id for s in Sandbox.list().next_items() if s.template_id == "tiny")

    def status(named, headers=None):
        request = urllib.request.Request(URL + "/", headers={"Host": f"8083-{named}.localhost", **(headers or {})})
        try:
            return urllib.request.urlopen(request, timeout=60).status, False
        except urllib.error.HTTPError as error:
            return error.code, b"sandbox was not found" in error.read()

    # Without a token it is not there: by name, by id, as the host's name or as a header.
    for named in ("p", native):
        assert status(named) == (502, True), status(named)
        assert status("none", {"E2b-Sandbox-Id": named, "E2b-Sandbox-Port": "8083"}) == (502, True)
        assert status(named, {"X-Access-Token": "wrong"}) == (502, True)
    # Who has an API key makes a sandbox of it, which has public ports, by its id.
    adopted = Sandbox.connect("p", timeout=6000)
    assert adopted.commands.run("echo $((6*7))").stdout == "42\n"
    eventually("it serves", lambda: status(native) == (404, False))
    assert status("p") == (502, True), status("p")
    assert status("p", {"X-Access-Token": adopted._envd_access_token}) == (404, False)


def metrics(sandbox):
    first = eventually("a sample", sandbox.get_metrics)[-1]
    sandbox.commands.run("dd if=/dev/zero of=/root/large bs=1M count=8; sync")
    more = eventually("another", lambda: sandbox.get_metrics()[1:])[-1]
    for it in (first, more):
        assert it.cpu_count == 1 and 0 < it.cpu_used_pct <= 100, it
        assert 0 < it.mem_used < it.mem_total, it
        assert 0 < it.disk_used < it.disk_total, it
    assert more.disk_used - first.disk_used >= 8 << 20, (first, more)
    assert sandbox.get_metrics(start=more.timestamp)[0].timestamp == more.timestamp
    assert not sandbox.get_metrics(end=first.timestamp.replace(year=2000))


def pauses(sandbox):
    counting = sandbox.commands.run("while :; do echo tick; sleep 0.1; done", background=True)
    counting.disconnect()
    assert timed("pause", sandbox.pause)
    assert not sandbox.pause()
    assert sandbox.get_info().state == SandboxState.PAUSED
    paused = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
    assert [s.sandbox_id for s in paused] == [sandbox.sandbox_id]
    assert not sandbox.is_running()
    again = timed("connect", lambda: Sandbox.connect(sandbox.sandbox_id, timeout=600))
    assert again.is_running()
    assert counting.pid in [p.pid for p in again.commands.list()]
    assert again.commands.kill(counting.pid)


def forks(sandbox):
    sandbox.files.write("/run/state", "warm")
    counting = sandbox.commands.run("n=0; while :; do n=$((n+1)); echo $n >/run/n; sleep 0.05; done", background=True)
    a, b = timed("fork of two", lambda: sandbox.fork(count=2))
    assert isinstance(a, Sandbox) and isinstance(b, Sandbox), (a, b)
    names = {s.commands.run("hostname").stdout for s in (sandbox, a, b)}
    assert len(names) == 3, names
    assert a.files.read("/run/state") == "warm" and a.get_info().metadata == sandbox.get_info().metadata
    a.files.write("/run/state", "other")
    assert b.files.read("/run/state") == "warm"
    # What ran goes on in each, and is one's own.
    before = int(b.commands.run("cat /run/n").stdout)
    eventually("it goes on", lambda: int(b.commands.run("cat /run/n").stdout or 0) > before)
    assert a.commands.kill(counting.pid)
    assert counting.pid in [p.pid for p in b.commands.list()]
    assert counting.kill()

    # A snapshot is a template.
    # It would be in the place of the image for everybody.
    raises(Exception, lambda: sandbox.create_snapshot(name="tiny"), "name of an image")
    kept = sandbox.create_snapshot(name="warm")
    assert [s.snapshot_id for s in Sandbox.list_snapshots().next_items()] == ["warm"]
    woken = timed("create from a snapshot", lambda: Sandbox.create(kept.snapshot_id, timeout=600, envs={"COLOUR": "blue"}))
    assert woken.files.read("/run/state") == "warm"
    assert woken.commands.run("echo $COLOUR").stdout == "blue\n"
    for each in (a, b, woken):
        assert each.kill()
    assert Sandbox.delete_snapshot("warm") and not Sandbox.delete_snapshot("warm")

    # Time that is up ends a sandbox, or pauses it if that was wanted.
    gone = Sandbox.create(timeout=1)
    kept = Sandbox.create(timeout=1, lifecycle={"on_timeout": "pause"})
    eventually("it is gone", lambda: not gone.is_running())
    eventually("it is paused", lambda: kept.get_info().state == SandboxState.PAUSED)
    raises(SandboxNotFoundException, gone.get_info)
    kept = Sandbox.connect(kept.sandbox_id, timeout=600)
    assert kept.commands.run("echo back").stdout == "back\n"
    kept.kill()


async def concurrently(sandbox_id):
    async with await AsyncSandbox.connect(sandbox_id) as sandbox:
        runs = [sandbox.commands.run(f"sleep 0.2; echo {n}") for n in range(8)]
        assert [r.stdout for r in await asyncio.gather(*runs)] == [f"{n}\n" for n in range(8)]
        events = []
        handle = await sandbox.files.watch_dir("/data", on_event=lambda event: events.append(event.name))
        await sandbox.files.write("/data/async", "x")
        for _ in range(1200):
            if "async" in events:
                break
            await asyncio.sleep(0.05)
        assert "async" in events, events
        await handle.stop()
        assert await sandbox.files.read("/data/async") == "x"
    # Leaving the block killed it.


def interpreter():
    """The template of a code interpreter is one that runs its server: here a snapshot of such a sandbox."""
    making = Sandbox.create(timeout=600)
    with open(SERVER) as program:
        making.files.write("/interpreter", program.read())
    making.commands.run("chmod +x /interpreter")
    making.commands.run("nc -ll -p 49999 -e /interpreter", background=True)

    def serves():
        try:
            return get(making, 49999, "/contexts")[0] == 200
        except OSError:
            return False

    eventually("it serves", serves)
    making.create_snapshot(name="code-interpreter-v1")
    making.kill()

    sandbox = timed("create a code interpreter", lambda: Interpreter.create(timeout=600))
    heard = []
    ran = sandbox.run_code("x=41; echo begun; sleep 0.3; echo $((x+1))", on_stdout=lambda m: heard.append((time.monotonic(), m.line)))
    assert (ran.text, ran.logs.stdout, ran.execution_count) == ("42", ["begun\n", "42\n"], 1), ran
    assert heard[1][0] - heard[0][0] > 0.1, heard
    failed = sandbox.run_code("echo oh >&2; exit 7")
    assert (failed.error.name, failed.error.value, failed.logs.stderr) == ("Exit", "7", ["oh\n"]), failed
    # What it has in memory is forked with it.
    [fork] = sandbox.fork(count=1)
    for each in (sandbox, fork):
        assert each.run_code("echo $x").text == "41"
    context = sandbox.create_code_context(cwd="/tmp")
    assert [c.id for c in sandbox.list_code_contexts()] == [context.id]
    assert sandbox.run_code("pwd", context=context).text == "/tmp"
    sandbox.restart_code_context(context)
    sandbox.remove_code_context(context)
    raises(TimeoutException, lambda: sandbox.run_code("sleep 100", timeout=0.5))
    for each in (sandbox, fork):
        assert each.kill()
    assert Sandbox.delete_snapshot("code-interpreter-v1")


def main():
    natives()
    sandbox = life()
    commands(sandbox)
    files(sandbox)
    ports(sandbox)
    lists(sandbox)
    metrics(sandbox)
    pauses(sandbox)
    forks(sandbox)
    interpreter()
    asyncio.run(concurrently(sandbox.sandbox_id))
    assert not sandbox.is_running()
    print("all of it works")


main()
