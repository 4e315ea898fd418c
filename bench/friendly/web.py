"""The paper's section 5.2: four guests with a web server each, and sessions that go on asking for pages.

A session thinks for a while, asks for a page by a connection of its own, waits for it, and thinks again: httperf's sessions
(`--wsess`), but that a session whose page is late goes on with the next one. httperf itself looks for work all the time, which
takes a CPU whole: the paper had four more machines for it, here the guests would pay.
"""

import asyncio
import bisect
import random
import shutil
import socket
import subprocess
import threading
import time

import host as hosts
import jobs

IMAGE = "bench-apache"
SERVERS = 4
PAGE = 4000  # Bytes at the least.
# As docs/friendly.md has it for servers whose pages keep a CPU busy: few at a time, and hardly more after a while.
CONSTANTS = ["threads.start=3", 'threads.law={kind="steady",add=0.1,divide=1.5,calm=0.25,wait=2}']
REQUEST = b"GET /page HTTP/1.0\r\nHost: guest\r\n\r\n"


def recipe(images):
    """Puts the recipe of the image into a folder of recipes. Its name."""
    shutil.copy(hosts.HERE / "apache.toml", images / f"{IMAGE}.toml")
    hosts.compiled("page.c", images / "page")
    return IMAGE


def free_ports(count):
    held = []
    for _ in range(count):
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        held.append(one)
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def boot(host, mib):
    """The servers, and the ports of this host that lead to them."""
    host.ok("image", "build", IMAGE)
    ports = free_ports(SERVERS)
    for number, port in enumerate(ports):
        host.run(f"w{number}", IMAGE, mib, "--publish", f"127.0.0.1:{port}:80")
    for port in ports:
        asyncio.run(first_page(port))
    return host.names, ports


async def first_page(port):
    begun = time.monotonic()
    while not await asks(port, 30):
        if time.monotonic() - begun > 300:
            raise SystemExit("bench-friendly: a web server has not answered for five minutes")
        await asyncio.sleep(0.5)


async def asks(port, patience):
    """Whether a page came, whole and in time."""

    async def page():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(REQUEST)
            said = await reader.read(-1)
        finally:
            writer.close()
        status, _, _ = said.partition(b"\r\n")
        return b" 200 " in status + b" " and len(said) >= PAGE

    try:
        return await asyncio.wait_for(page(), patience)
    except (OSError, asyncio.TimeoutError):
        return False


class Watch(threading.Thread):
    """Asks a guest's agent every few seconds what it sees."""

    def __init__(self, host, vm, begun, every):
        super().__init__(daemon=True)
        self.host, self.vm, self.begun, self.every = host, vm, begun, every
        self.seen, self.over = [], threading.Event()

    def run(self):
        while not self.over.wait(self.every):
            state = self.host.show(self.vm)
            if "vct_ms" not in state:
                continue
            limit = state.get("state", {})
            # Below one thread: the part of the time in which that one runs.
            allowed = limit.get("threads", state.get("duty"))
            at = time.monotonic() - self.begun
            self.seen.append([round(at, 1), state["vct_ms"], allowed])


async def session(port, until, options, exact, answered, late):
    think = options.think
    await asyncio.sleep(random.uniform(0, think))
    while time.monotonic() < until:
        asked = time.monotonic()
        came = await asks(port, options.patience)
        (answered if came else late).append((time.monotonic(), asked))
        # One that is refused is not to ask all the time.
        await asyncio.sleep(think if exact else random.expovariate(1 / think))


async def load(ports, sessions, until, options, exact=False):
    """When each server answered, and when somebody gave up; each with when it was asked. `exact`: sessions think for as long each time."""
    answered, late = [[] for _ in ports], [[] for _ in ports]
    tasks = [
        asyncio.create_task(session(port, until, options, exact, answered[number], late[number]))
        for number, port in enumerate(ports)
        for _ in range(sessions)
    ]
    await asyncio.sleep(until - time.monotonic())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answered, late


def switched(host, vms, ports, sessions, options, turns):
    """The same load all the time, meanwhile kinds take turns."""
    until = time.monotonic() + turns.length
    told = []
    # Nobody waits for anybody, so that how much is done would be a matter of how long they happen to think.
    loading = threading.Thread(target=lambda: told.append(asyncio.run(load(ports, sessions, until, options, exact=True))), daemon=True)
    loading.start()
    turns.take(host, vms, options, "image")
    loading.join()
    [(answered, _)] = told
    done = lambda number, moment: bisect.bisect_left(answered[number], (moment,))
    waited = lambda number, begun, end: [came - asked for came, asked in answered[number][done(number, begun) : done(number, end)]]
    yield from turns.compared(done, vms, dict(sessions=sessions), waited)


def measure(host, vms, ports, kind, sessions, options, settle, seconds, every):
    """Pages a second of each server, and what is seen of them meanwhile."""
    jobs.tell(host, vms, kind, options, group="image")
    if kind != "roomy":
        host.squeeze()
    back, begun = host.group.read_back(), time.monotonic()
    until = begun + settle + seconds
    watches = [Watch(host, vm, begun, every) for vm in vms]
    for one in watches:
        one.start()
    answered, late = ([[at for at, _ in one] for one in times] for times in asyncio.run(load(ports, sessions, until, options)))
    back = (host.group.read_back() - back) / (settle + seconds)
    host.relax()
    for one in watches:
        one.over.set()
        one.join()
    for vm, port in zip(vms, ports):
        # What nobody waits for any more is not to meet the next run.
        host.ok("friendly", "set", vm, "--off")
        subprocess.run([host.program, "exec", vm, "--", "killall", "-9", "page"], env=host.env, capture_output=True)
        asyncio.run(first_page(port))
    after = lambda times: len(times) - bisect.bisect_left(times, begun + settle)
    steps = [begun + 5 * n for n in range(int((settle + seconds) // 5) + 1)]
    return dict(
        guests=len(vms),
        sessions=sessions,
        kind=kind,
        rates=[after(times) / seconds for times in answered],
        late=[after(times) / seconds for times in late],
        read_back=back,
        vct_ms=[[seen[1] for seen in watch.seen if settle <= seen[0] <= settle + seconds] for watch in watches],
        progress=[[[round(step - begun, 1), bisect.bisect_left(times, step)] for step in steps] for times in answered],
        seen=[watch.seen for watch in watches],
    )
