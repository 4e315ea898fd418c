//! The Python package for programs outside, against a real host.

use forkyard_e2e::Host;
use forkyard_types::TokenGrant;

/// Calls to a daemon that hangs, and to one whose work takes long.
const HANGS: &str = r#"
import concurrent.futures, http.server, socket, socketserver, tempfile, threading, time
from forkyard_host import Forkyard, Unreachable, _presence

_presence.PAUSE, _presence.ANSWER = 0.05, 0.5

class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/v1/ping":
            time.sleep(1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def address_string(self):
        return ""

    def log_message(self, *words):
        pass

def hangs(ask):
    try:
        ask(Forkyard(f"unix://{folder}/deaf"))
    except Unreachable as error:
        return str(error)

with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(f"{folder}/deaf")
    deaf.listen(64)
    asked = [lambda host: host.vms(), lambda host: host.events(), lambda host: host.vm("p")]
    for told in pool.map(hangs, asked):
        assert told and "no ping" in told, told
    with socketserver.ThreadingUnixStreamServer(f"{folder}/slow", Slow) as slow:
        threading.Thread(target=slow.serve_forever, daemon=True).start()
        assert Forkyard(f"unix://{folder}/slow").vms() == []
        slow.shutdown()
"#;

#[test]
fn a_python_program_runs_forks_commands_and_removes_vms() {
    let host = Host::with_woken_p([]);
    let told = host.python(
        r#"
from forkyard_host import PIPE, CommandFailed, Forkyard, ForkyardError, Unreachable

def refused(kind, call):
    try:
        call()
    except ForkyardError as error:
        assert error.kind == kind, (error.kind, str(error))
        return error
    raise AssertionError("not refused")

fy = Forkyard()
p = fy.vm("p")
p.files.write("/state", b"warm")
with p:
    a, b = p.fork(2)
    with a:
        assert a.exec("cat", "/state").text == "warm"
        ran = a.exec("sh", "-c", "cat; echo $A >&2; exit 7", stdin=b"in", env={"A": "b c"})
        assert (ran.code, ran.stdout, ran.stderr) == (7, b"in", b"b c\n"), ran
        try:
            a.exec("sh", "-c", "echo why >&2; exit 3", check=True)
            raise AssertionError("not told")
        except CommandFailed as error:
            assert error.result.code == 3 and "why" in str(error)
        # Larger than one request may be.
        large = bytes(range(256)) * (80 << 12)
        a.files.write("/tmp/large", large, mode=0o600)
        assert a.files.read("/tmp/large") == large
        assert a.exec("sh", "-c", "stat -c %a /tmp/large; ls /tmp | wc -l").text == "600\n1"
        a.files.write("/tmp/large", b"")
        assert a.files.read("/tmp/large") == b""
        try:
            a.files.write("/nowhere/x", b"x")
            raise AssertionError("not told")
        except ForkyardError:
            pass
        refused("timeout", lambda: a.exec("sleep", "1000", timeout=0.5))
        # Output as it comes, and a command that is hung up on.
        with a.start("sh", "-c", "echo one; sleep 1000") as process:
            assert next(iter(process)) == ("stdout", b"one\n")
        # One that is kept goes on without its client.
        with a.start("cat", stdin=PIPE, keep=True, tag="t") as process:
            process.write(b"first ")
            assert next(iter(process)) == ("stdout", b"first ")
            pid = process.pid
        assert [s["tag"] for s in a.sessions() if s["exit"] is None] == ["t"]
        with a.attach(pid) as process:
            process.write(b"second")
            process.close_stdin()
            assert process.finish().stdout == b"first second"
        lone = a.detach("sleep", "1000")
        a.kill_session(lone)
        with a.attach(lone) as process:
            assert process.finish().code == 137
        a.set_labels({"user": "ada"})
        assert [vm.name for vm in fy.vms(labels={"user": "ada"})] == [a.name] and a.labels == {"user": "ada"}
        a.keepalive(3600, "pause")
        assert a.view["ends"]["action"] == "pause"
        a.keepalive(None)
        assert a.view["ends"] is None
        a.pause()
        assert (a.state, a.refresh().state) == ("paused", "paused")
        assert "resume" in refused("conflict", lambda: a.exec("true")).hint
        a.resume()
        assert a.exec("true").code == 0
    error = refused("not_found", lambda: fy.vm(a.name))
    assert "forkyard ps" in error.hint and error.hint in str(error), str(error)
    refused("invalid", lambda: p.fork(1000))
    b.remove()
    print([vm.name for vm in fy.vms()])
refused("unreachable", lambda: Forkyard("unix:///nonexistent").vms())
"#,
    );
    assert_eq!(told, "['p']");
    host.python(HANGS);
    // With the last VM its daemon goes by itself, and the next call starts another.
    host.nothing_left();
    host.python("from forkyard_host import Forkyard; assert Forkyard().vms() == []");
    host.nothing_left();
}

#[test]
fn an_async_python_program_does_many_things_at_once_and_cancels_a_command() {
    let host = Host::with_woken_p([]);
    host.python(
        r#"
import asyncio
from forkyard_host import AsyncForkyard

async def main():
    async with await AsyncForkyard().vm("p") as p:
        clones = await p.fork(3)
        names = await asyncio.gather(*(vm.exec("hostname", check=True) for vm in clones))
        assert [n.text for n in names] == [vm.name for vm in clones], names
        try:
            await asyncio.wait_for(p.exec("sleep", "1000"), 1)
            raise AssertionError("not cancelled")
        except asyncio.TimeoutError:
            pass
        while (await p.exec("pidof", "sleep")).code == 0:
            await asyncio.sleep(0.05)
        await p.files.write("/x", b"y")
        assert await p.files.read("/x") == b"y"
        async with await p.files.watch("/tmp") as changes:
            await p.files.write("/tmp/w/n", b"1", parents=True)
            assert (await anext(changes)).name == "w"
        await p.exec("sh", "-c", "echo heard >/dev/console")
        while b"heard" not in await p.logs():
            await asyncio.sleep(0.05)
        await asyncio.gather(*(vm.remove() for vm in clones))

asyncio.run(main())
"#,
    );
    // With the last VM its daemon goes by itself.
    host.nothing_left();
}

#[test]
fn over_the_network_a_python_program_believes_one_certificate_alone() {
    let host = Host::new();
    host.with_loopback();
    let run = ["run", "tiny", "--name", "p"];
    host.start_with(run, [("FORKYARD_LISTEN", "127.0.0.1:7433")])
        .wait()
        .exited(0);
    let grant: TokenGrant = host.json(["token", "create", "py"]);
    let pin = grant.remote.expect("it listens").fingerprint;
    let cert = host.folder().join("state/tls/cert.pem");
    let program = format!(
        r#"
import os
from forkyard_host import Forkyard, ForkyardError, Unreachable

url, token = "https://127.0.0.1:7433", "{token}"
os.environ["FORKYARD_CA"] = "{pin}"
p = Forkyard(url, token).vm("p")
assert p.exec("sh", "-c", "hostname; exit 7").code == 7
os.environ["FORKYARD_CA"] = "{cert}"
assert Forkyard(url, token).vm("p").id == p.id
for ca in ["sha256:" + "0" * 64, ""]:
    os.environ["FORKYARD_CA"] = ca
    try:
        Forkyard(url, token).vms()
        raise AssertionError("believed")
    except Unreachable as error:
        assert "certificate" in str(error), error
os.environ["FORKYARD_CA"] = "{pin}"
try:
    Forkyard(url, token + "x").vms()
    raise AssertionError("let in")
except ForkyardError as error:
    assert "forkyard token create" in error.hint, error
"#,
        token = grant.token.0,
        cert = cert.display(),
    );
    host.python(&program);
    host.end();
}

#[test]
fn python_copies_folders_in_and_out_whole_or_not_at_all_and_believes_no_guest() {
    let host = Host::with_woken_p([]);
    host.python(
        r##"
import asyncio, io, os, pathlib, shutil, tarfile, tempfile
from forkyard_host import AsyncForkyard, Forkyard, ForkyardError
from forkyard_host._copy import unpack as unpacking

here = pathlib.Path(tempfile.mkdtemp())
large = bytes(range(256)) * (40 << 10) + b"x"
deep = here / "in" / "deep"
deep.mkdir(parents=True)
(deep / "large").write_bytes(large)
(deep / "empty").write_bytes(b"")
(here / "in" / "run").write_text("#!/bin/sh\necho ran\n")
(here / "in" / "run").chmod(0o755)
(here / "in" / "link").symlink_to("deep/large")

def fails(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("it did not fail")

fy = Forkyard()
p = fy.vm("p")
p.files.put(here / "in", "/m/there")
assert p.exec("sh", "-c", "/m/there/run; readlink /m/there/link; stat -c %u:%g /m/there/run").text == "ran\ndeep/large\n0:0"
p.files.get("/m/there", str(here / "out"))
assert (here / "out" / "link").is_symlink() and (here / "out" / "link").read_bytes() == large
assert (here / "out" / "deep" / "empty").read_bytes() == b""
assert (here / "out" / "run").stat().st_mode & 0o777 == 0o755
# Into a folder that exists, and a file over a file.
p.files.put(here / "in" / "run", "/m")
p.files.put(here / "in" / "run", "/m/there/run")
p.files.get("/m/run", here / "out")
assert "nowhere" in str(fails(ForkyardError, lambda: p.files.put(here / "in", "/nowhere/x")))
assert "nowhere" in str(fails(ForkyardError, lambda: p.files.get("/nowhere/x", here / "x")))
fails(OSError, lambda: p.files.put(here / "nothing", "/m"))
fails(OSError, lambda: p.files.get("/m/run", here / "no" / "such"))
p.files.write("/m/s/a", b"one", mode=0o640, parents=True)
p.files.write("/m/s/a", b"other")
assert p.files.read("/m/s/a", 1, 3) == b"the"
assert p.files.stat("/m/s/a").mode == 0o640
p.files.make_folder("/m/s/b/c")
assert [(f.name, f.kind) for f in p.files.list("/m/s")] == [("a", "file"), ("b", "folder")]
p.files.get("/m/s/.", here / "contents")
assert (here / "contents" / "a").read_bytes() == b"other"
p.files.get("/proc/cpuinfo", here / "contents")
assert (here / "contents" / "cpuinfo").read_bytes()
(here / "contents" / "holes").touch()
os.truncate(here / "contents" / "holes", 1 << 20)
with p.files.watch("/m/s", recursive=True) as changes:
    p.files.move("/m/s/b/c", "/m/s/d/e")
    told = set()
    while not told >= {("moved_away", "b/c"), ("created", "d"), ("created", "d/e")}:
        change = next(changes)
        told.add((change.change, change.name))
assert list(changes) == []
p.files.remove("/m/s", recursive=True)
assert fails(ForkyardError, lambda: p.files.stat("/m/s")).kind == "not_found"
shutil.rmtree(here / "contents")
assert sorted(os.listdir(here)) == ["in", "out"]
assert p.exec("ls", "-A", "/m").text == "run\nthere"

async def copies():
    vm = await AsyncForkyard().vm("p")
    await asyncio.gather(*(vm.files.put(here / "in", f"/m/{n}") for n in range(3)))
    await asyncio.gather(*(vm.files.get(f"/m/{n}/deep", here / f"out{n}") for n in range(3)))
    assert all((here / f"out{n}" / "large").read_bytes() == large for n in range(3))

asyncio.run(copies())

# What a hostile guest may send: links to elsewhere, files through them, files above.
away, into = here / "away", here / "into"
away.mkdir()
into.mkdir()
def unpack(*entries):
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as stream:
        for name, kind, link in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
            stream.addfile(entry, io.BytesIO(b"bad"))
    sent.seek(0)
    with tempfile.TemporaryDirectory(dir=into) as half:
        list(unpacking(sent, half, "evil", {}))
        return sorted(os.listdir(pathlib.Path(half) / "it"))

FILE, FOLDER, LINK, SAME = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
top = ("evil", FOLDER, "")
for hostile in (
    [("evil", LINK, str(away))],
    [("evil", SAME, "/etc/passwd")],
    [("other", FILE, "")],
    [top, ("evil/link", LINK, str(away)), ("evil/link/planted", FILE, "")],
    [top, ("evil/../../planted", FILE, "")],
    [top, ("../planted", FILE, "")],
    [top, ("evil/hard", SAME, "../../etc/passwd")],
):
    fails(ForkyardError, lambda: unpack(*hostile))
odd = [("evil/good", FILE, ""), ("evil/pipe", tarfile.FIFOTYPE, ""), ("evil/device", tarfile.CHRTYPE, "")]
assert unpack(top, *odd) == ["good"]
assert os.listdir(away) == os.listdir(into) == [] and not (here / "planted").exists()
p.remove()
shutil.rmtree(here)
"##,
    );
    // With the last VM its daemon goes by itself.
    host.nothing_left();
}

#[test]
fn a_python_program_is_told_of_each_clone_that_was_not_made() {
    let host = Host::with_p(["--warm", "3"]);
    host.wait_warm("p", 3);
    let parent = host.vm("p").pid;
    let shells = host.processes("qemu-system-x86_64");
    let shell = shells.iter().find(|qemu| Some(qemu.pid) != parent);
    shell.expect("warm").kill();
    host.python(
        r#"
from forkyard_host import Forkyard, ForkyardError, PartialFork

with Forkyard().vm("p") as p:
    made = p.fork(3)
    assert (len(made.vms), len(made.errors)) == (2, 1), made
    why = made.errors[0]
    assert isinstance(why, ForkyardError) and why.kind and str(why), why
    for use in (list, len, lambda made: made[0]):
        try:
            use(made)
            raise AssertionError("not told")
        except PartialFork as error:
            assert error.forked is made
            assert "1 of 3" in str(error) and str(why) in str(error), error
    for vm in made.vms:
        with vm:
            assert vm.exec("hostname", check=True).text == vm.name
    whole = p.fork(2)
    assert not whole.errors and len(whole) == 2
    for vm in whole:
        vm.remove()
"#,
    );
    host.nothing_left();
}
