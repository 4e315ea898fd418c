//! Commands in guests: streams, terminals, signals, and what is left of them.

use forkyard_e2e::Host;

#[test]
fn commands_stream_both_ways_have_terminals_and_leave_nothing_behind() {
    let host = Host::with_busy_p();
    host.python(
        r#"
import asyncio, fcntl, os, pty, select, signal, struct, subprocess, termios, time
from forkyard_host import PIPE, AsyncForkyard, Forkyard, ForkyardError, NotStarted

p = Forkyard().vm("p")

def eventually(what, call):
    for _ in range(1200):
        if call():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {what}")

def left():
    return p.exec("sh", "-c", "pidof sleep || true").text

def cli(*words, **more):
    return subprocess.Popen(["forkyard", "exec", *words], stdout=subprocess.PIPE, **more)

# A dialogue: each answer comes before the next question, and the input stays open.
talk = cli("-i", "p", "sh", stdin=subprocess.PIPE)
for n in range(3):
    talk.stdin.write(b"echo answer %d\n" % n)
    talk.stdin.flush()
    assert talk.stdout.readline() == b"answer %d\n" % n
talk.stdin.close()
assert talk.wait() == 0
# A command that does not read it all ends it all the same.
with open("/dev/zero", "rb") as zero:
    assert cli("-i", "p", "head", "-c", "3", stdin=zero).communicate()[0] == b"\0" * 3

# A signal is the command's, also while input waits for it; the second one ends all of it.
trap = "trap 'echo told; exit 9' INT; echo ready; while :; do sleep 0.1; done"
with open("/dev/zero", "rb") as zero:
    told = cli("-i", "p", "sh", "-c", trap, stdin=zero)
    assert told.stdout.readline() == b"ready\n"
    told.send_signal(signal.SIGINT)
    assert (told.stdout.read(), told.wait()) == (b"told\n", 9)
# However many small pieces wait before it.
small = cli("-i", "p", "sh", "-c", trap, stdin=subprocess.PIPE)
assert small.stdout.readline() == b"ready\n"
for n in range(100):
    small.stdin.write(b"%d\n" % n)
    small.stdin.flush()
    time.sleep(0.002)
small.send_signal(signal.SIGINT)
assert (small.stdout.read(), small.wait()) == (b"told\n", 9)
small.stdin.close()
# Of one that it ends nothing is left, whatever that has done to be left: another session, parent and environment.
astray = "(env -i setsid sleep 1000 &) >/dev/null 2>&1; "
for told, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
    ended = cli("p", "sh", "-c", astray + "echo ready; sleep 1000")
    assert ended.stdout.readline() == b"ready\n"
    ended.send_signal(told)
    assert ended.wait() == code
    eventually("end of what was told to end", lambda: left() == "")
# Keys of a terminal are for the process group, any other signal for the command's own process.
child = "trap \"echo INT >>/tmp/told; exit\" INT; for s in TERM HUP; do trap \"echo $s >>/tmp/told\" $s; done; echo ready; while :; do sleep 0.1; done"
for told, heard in [(signal.SIGINT, ["INT"]), (signal.SIGTERM, ["HUP"])]:
    parent = cli("p", "sh", "-c", f"rm -f /tmp/told; sh -c '{child}'; true")
    assert parent.stdout.readline() == b"ready\n"
    parent.send_signal(told)
    assert parent.wait() == 128 + told
    told_to = lambda: p.exec("sh", "-c", "cat /tmp/told || true").text.split()
    eventually(f"{heard}", lambda: told_to() == heard)
eventually("end of children that go on", lambda: left() == "")
deaf = cli("p", "sh", "-c", astray + "trap '' INT; setsid sleep 1000 & echo ready; sleep 1000")
assert deaf.stdout.readline() == b"ready\n"
for _ in range(2):
    deaf.send_signal(signal.SIGINT)
    time.sleep(0.3)
assert deaf.wait() == 130
eventually("end of what a client left", lambda: left() == "")
# A client that is killed, and a timeout.
gone = cli("p", "sh", "-c", astray + "FORKYARD_COMMAND=x setsid sleep 1000 & setsid sleep 1000 & echo ready; sleep 1000")
assert gone.stdout.readline() == b"ready\n"
gone.kill()
gone.wait()
eventually("end of what a killed client left", lambda: left() == "")
assert cli("--timeout", "1", "p", "sh", "-c", astray + "setsid sleep 1000 & sleep 1000").wait() == 124
eventually("end of what took too long", lambda: left() == "")
session = subprocess.check_output(["forkyard", "exec", "-d", "p", "sh", "-c", astray + "sleep 1000"], text=True).strip()
eventually("all of a session", lambda: len(left().split()) == 2)
subprocess.run(["forkyard", "sessions", "kill", "p", session], check=True)
eventually("end of what a session left", lambda: left() == "")
# A control group goes with its command.
groups = "ls /opt/forkyard/cgroup/user/exec | grep -c ^command-"
eventually("one group, of the command that looks", lambda: p.exec("sh", "-c", groups).text == "1")
# What a command leaves running when it ends goes on, and so does what is left to itself.
assert cli("p", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &").wait() == 0
assert cli("-d", "p", "sleep", "1000").wait() == 0
assert len(left().split()) == 2
p.exec("killall", "sleep")

# A terminal: its size, that it changes, and keys that are signals.
ours, its = pty.openpty()
def size(rows, cols):
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
size(33, 99)
shell = subprocess.Popen(["forkyard", "exec", "-it", "p", "sh"], stdin=its, stdout=its, stderr=its)
seen = b""
def shows(text):
    global seen
    def look():
        global seen
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        return text in seen
    eventually(text, look)
    seen = seen[seen.index(text) + len(text):]
os.write(ours, b"tty; stty size; id -u >/dev/tty\n")
shows(b"/dev/pts/")
shows(b"33 99")
size(44, 111)
shell.send_signal(signal.SIGWINCH)
os.write(ours, b"until stty size | grep '44 111'; do sleep 0.1; done\n")
shows(b"\n44 111")
# Said by the shell once the terminal is no longer that of its line editor, which takes keys as they are.
os.write(ours, b"echo begun $((5 * 5)); sleep 1000; echo ended $((6 * 7))\n")
shows(b"begun 25")
eventually("sleep", lambda: left() != "")
os.write(ours, b"\x03")
os.write(ours, b"echo and on $((7 * 7))\n")
shows(b"and on 49")
os.write(ours, b"exit 3\n")
assert shell.wait() == 3
assert cli("-it", "p", "true", stdin=subprocess.DEVNULL).wait() == 125
# Input that cannot be read is not taken for its end.
assert cli("-i", "p", "cat", stdin=os.open("/", os.O_RDONLY)).wait() == 125
# The terminal is as it was, however this program ends.
unread = cli("-it", "p", "yes", stdin=its)
assert unread.stdout.readline()
unread.stdout.close()
assert unread.wait() == 141
assert termios.tcgetattr(its)[3] & termios.ICANON
# A console whose reader has closed its pipe ends so.
unread = subprocess.Popen(["forkyard", "console", "p"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
unread.stdout.close()
unread.stdin.write(b"\n")
unread.stdin.flush()
assert unread.wait() == 141

# Users, folders, and what cannot be started. Nobody but root writes where our programs are.
assert p.exec("stat", "-c", "%a", "/opt/forkyard").text == "755"
ran = p.exec("sh", "-c", "pwd; id -u; echo $HOME", workdir="/tmp", user="nobody").text
assert ran.split() == ["/tmp", "65534", "/nonexistent"], ran
for words, more, code in [
    (["nosuch"], {}, 127), (["/etc/passwd"], {}, 126), (["true"], {"user": "nosuch"}, 126), (["true"], {"workdir": "/nosuch"}, 126),
]:
    try:
        p.exec(*words, **more)
        raise AssertionError(f"{words} ran")
    except NotStarted as error:
        assert error.code == code, (words, error.code)

# The same from Python, in constant memory.
with p.start("cat", stdin=PIPE) as cat:
    said = iter(cat)
    for line in [b"one\n", b"two\n"]:
        cat.write(line)
        assert next(said) == ("stdout", line)
    cat.close_stdin()
    assert cat.finish().code == 0
pieces = (bytes(1 << 16) for _ in range(64))
assert p.exec("wc", "-c", stdin=pieces).text.strip() == str(4 << 20)
with p.start("sh", "-c", "trap 'exit 7' USR1; echo on; while :; do sleep 0.1; done", stdin=PIPE, tty=(5, 6)) as it:
    assert next(iter(it))[1].strip() == b"on"
    it.send_signal(signal.SIGUSR1)
    assert it.finish().code == 7

async def main():
    vm = await AsyncForkyard().vm("p")
    # None waits for another, and none takes a thread.
    threads = len(os.listdir("/proc/self/task"))
    long = [asyncio.create_task(vm.exec("sleep", "1000")) for _ in range(40)]
    await asyncio.wait_for(vm.refresh(), 60)
    # One of those before may have been ending.
    assert len(os.listdir("/proc/self/task")) <= threads
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    async with await vm.start("sh", stdin=PIPE) as shell:
        await shell.write(b"echo hello\n")
        assert await anext(shell) == ("stdout", b"hello\n")
        await shell.write(b"exit 5\n")
        assert (await shell.finish()).code == 5
    large = bytes(range(256)) * (16 << 10)
    assert (await vm.exec("cat", stdin=large)).stdout == large
    pid = await vm.detach("sh", "-c", "echo kept; sleep 1000")
    async with await vm.attach(pid) as kept:
        assert await anext(kept) == ("stdout", b"kept\n")
    await vm.kill_session(pid)
    await vm.detach("nc", "-l", "-p", "7007", "-e", "cat")
    for _ in range(1200):
        try:
            reader, writer = await vm.connect(7007)
            break
        except ForkyardError:
            await asyncio.sleep(0.05)
    writer.write(b"there and back\n")
    assert await reader.readline() == b"there and back\n"
    writer.close()
    async with await AsyncForkyard().events(vm="p", since=0) as events:
        assert (await anext(events)).vm == "p"

asyncio.run(main())
eventually("end of what was cancelled", lambda: left() == "")
"#,
    );
    host.end();
}
