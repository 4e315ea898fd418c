"""The asynchronous client against a small server that frames its answers in every way HTTP/1.1 allows."""

import asyncio
import io
import json
import os
import pathlib
import sys
import tarfile
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from forkyard_host import PIPE, AsyncForkyard, CommandFailed, ForkyardError, NotStarted, Unreachable, _presence  # noqa: E402

VM = {"id": "v1", "name": "p", "state": "running", "address": {"ip": "10.0.0.1"}}


def chunked(data, size=7):
    """A body in chunks that heed no line's end."""
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in cut) + b"0\r\n\r\n"


def answer(body, status=200, extra=""):
    return f"HTTP/1.1 {status} x\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


def lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


OPEN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers each request by the coroutine of its method and path."""

    def __init__(self):
        self.requests = []
        self.answers = {"GET /v1/ping": answer(b"{}")}

    async def __aenter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name + "/api.sock"
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.folder.cleanup()

    def client(self):
        return AsyncForkyard("unix://" + self.path)

    async def vm(self):
        self.answers["GET /v1/vms/p"] = answer(json.dumps(VM).encode())
        return await self.client().vm("p")

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *fields = head.split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields if f)}
            named = " ".join(first.split(" ")[:2])
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            self.requests.append((named, fields, body))
            told = self.answers[named.partition("?")[0]]
            if callable(told):
                await told(reader, writer)
            else:
                writer.write(told)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def chunk(reader):
    size = int(await reader.readuntil(b"\r\n"), 16)
    data = await reader.readexactly(size + 2)
    return data[:-2]


class Framing(unittest.IsolatedAsyncioTestCase):
    async def test_answers_of_known_length_in_chunks_and_to_the_end_are_the_same(self):
        body = json.dumps([VM]).encode()
        for told in (
            answer(body),
            answer(body, extra="HTTP-is: odd\r\n"),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body),
            b"HTTP/1.1 200 OK\r\n\r\n" + body,
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(body),
        ):
            async with Server() as server:
                server.answers["GET /v1/vms"] = told
                [vm] = await server.client().vms()
                self.assertEqual((vm.id, vm.state, vm.ip), ("v1", "running", "10.0.0.1"))

    async def test_an_answer_that_breaks_off_is_unreachable(self):
        for told in (
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[",
            OPEN + b"5\r\nab",
            OPEN + b"zz\r\n",
            b"SSH-2.0-none\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * (70 << 10),
        ):
            async with Server() as server:
                server.answers["GET /v1/vms"] = told
                with self.assertRaises(Unreachable, msg=told[:40]):
                    await server.client().vms()

    async def test_a_refusal_has_its_kind_and_hint(self):
        async with Server() as server:
            told = {"kind": "not_found", "message": "no VM p", "hint": "`forkyard ps` lists them"}
            server.answers["GET /v1/vms/p"] = answer(json.dumps(told).encode(), 404)
            with self.assertRaises(ForkyardError) as caught:
                await server.client().vm("p")
            self.assertEqual((caught.exception.kind, caught.exception.hint), ("not_found", told["hint"]))

    async def test_no_daemon_is_unreachable(self):
        with self.assertRaises(Unreachable):
            await AsyncForkyard("unix:///nowhere/api.sock").vms()

    async def test_a_refusal_before_the_body_is_over_is_heard(self):
        async def refuse(reader, writer):
            await chunk(reader)
            told = json.dumps({"kind": "exhausted", "message": "full"}).encode()
            writer.write(answer(told, 507))
            await writer.drain()

        async with Server() as server:
            vm = await server.vm()
            server.answers["PUT /v1/vms/v1/files"] = refuse
            with self.assertRaises(ForkyardError) as caught:
                await vm.files.write("/x", bytes(32 << 20))
            self.assertEqual(caught.exception.kind, "exhausted")


class Commands(unittest.IsolatedAsyncioTestCase):
    async def test_output_is_read_as_it_comes_and_the_end_is_the_last(self):
        told = lines({"started": {"pid": 7}}, {"stdout": "aGk="}, {"stderr": "b2g="}, {"exit": {"signal": 9}})
        async with Server() as server:
            vm = await server.vm()
            server.answers["POST /v1/vms/v1/exec"] = OPEN + chunked(told)
            done = await vm.exec("x", stdin=b"in", env={"A": "b"}, timeout=0.2)
            self.assertEqual((done.stdout, done.stderr, done.code), (b"hi", b"oh", 137))
            asked = json.loads(server.requests[-1][2])
            self.assertEqual((asked["stdin"], asked["env"], asked["timeout_s"]), ("aW4=", [["A", "b"]], 1))
            with self.assertRaises(CommandFailed):
                await vm.exec("x", check=True)
            server.answers["POST /v1/vms/v1/exec"] = OPEN + chunked(lines({"not_started": {"message": "no", "code": 127}}))
            with self.assertRaises(NotStarted):
                await vm.exec("x")
            server.answers["POST /v1/vms/v1/exec"] = OPEN + chunked(lines({"stdout": "aGk="}))
            with self.assertRaises(Unreachable):
                await vm.exec("x")

    async def test_input_is_sent_while_output_is_read(self):
        async def echo(reader, writer):
            await chunk(reader)
            writer.write(OPEN)
            while True:
                told = json.loads(await chunk(reader) or "null")
                if told == "eof":
                    break
                piece = lines({"stdout": told["stdin"]})
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            end = lines({"exit": {"code": 0}})
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))

        async with Server() as server:
            vm = await server.vm()
            server.answers["POST /v1/vms/v1/exec"] = echo
            async with await vm.start("cat", stdin=PIPE) as it:
                for word in (b"one", b"two"):
                    await it.write(word)
                    self.assertEqual(await anext(it), ("stdout", word))
                await it.close_stdin()
                self.assertEqual((await it.finish()).code, 0)
            large = bytes(range(256)) * (8 << 10)
            self.assertEqual((await vm.exec("cat", stdin=large)).stdout, large)

            async def later():
                for word in (b"a", b"b"):
                    await asyncio.sleep(0)
                    yield word

            self.assertEqual((await vm.exec("cat", stdin=later())).stdout, b"ab")

    async def test_a_cancelled_command_is_hung_up_on(self):
        ended = asyncio.Event()

        async def never(reader, writer):
            writer.write(OPEN)
            await writer.drain()
            try:
                self.assertEqual(await reader.read(), b"")
            except ConnectionResetError:
                pass
            ended.set()

        async with Server() as server:
            vm = await server.vm()
            server.answers["POST /v1/vms/v1/exec"] = never
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(vm.exec("sleep", "1000"), 0.2)
            await asyncio.wait_for(ended.wait(), 10)

    async def test_many_commands_need_no_thread(self):
        async def never(reader, writer):
            writer.write(OPEN)
            await reader.read()

        async with Server() as server:
            vm = await server.vm()
            server.answers["POST /v1/vms/v1/exec"] = never
            running = [asyncio.create_task(vm.exec("sleep", "1000")) for _ in range(200)]
            while len(server.requests) < 201:
                await asyncio.sleep(0.01)
            self.assertEqual(threading.active_count(), 1)
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class Streams(unittest.IsolatedAsyncioTestCase):
    async def test_events_are_told_one_by_one_with_their_position(self):
        def event(n):
            told = {"stream": 5, "seq": n, "time_ms": 1000, "kind": "vm", "what": {"vm_created": {}}, "subject": {}}
            return f"id: 5-{n}\ndata: {json.dumps(told)}\n\n: quiet\n\n".encode()

        async with Server() as server:
            server.answers["GET /v1/events"] = OPEN + chunked(event(1) + event(2))
            async with await server.client().events(since=0, follow=False) as events:
                self.assertEqual([each.seq async for each in events], [1, 2])
                self.assertEqual(events.position, "5-2")
            async with await server.client().events() as events:
                self.assertEqual((await anext(events)).seq, 1)
                await anext(events)
                with self.assertRaises(Unreachable):
                    await anext(events)

    async def test_a_daemon_that_hangs_is_given_up(self):
        async def hang(reader, writer):
            await reader.read()

        async with Server() as server:
            server.answers["GET /v1/vms"] = server.answers["GET /v1/ping"] = hang
            pause, limit = _presence.PAUSE, _presence.ANSWER
            _presence.PAUSE = _presence.ANSWER = 0.02
            try:
                with self.assertRaisesRegex(Unreachable, "no ping"):
                    await asyncio.wait_for(server.client().vms(), 10)
            finally:
                _presence.PAUSE, _presence.ANSWER = pause, limit

    async def test_a_port_becomes_streams(self):
        async def upgrade(reader, writer):
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\n\r\nhello")
            self.assertEqual(await reader.readexactly(4), b"ping")
            writer.write(b" pong")
            await writer.drain()

        async with Server() as server:
            vm = await server.vm()
            server.answers["GET /v1/vms/v1/ports/80"] = upgrade
            reader, writer = await vm.connect(80)
            writer.write(b"ping")
            self.assertEqual(await reader.read(), b"hello pong")
            writer.close()
            server.answers["GET /v1/vms/v1/ports/80"] = answer(b'{"kind":"guest","message":"shut"}', 502)
            with self.assertRaises(ForkyardError) as caught:
                await vm.connect(80)
            self.assertEqual(caught.exception.kind, "guest")


class Copies(unittest.IsolatedAsyncioTestCase):
    async def test_folders_come_back_as_they_were_sent(self):
        sent = bytearray()

        async def take(reader, writer):
            while piece := await chunk(reader):
                sent.extend(piece)
            writer.write(answer(b"null"))

        async with Server() as server:
            vm = await server.vm()
            server.answers["PUT /v1/vms/v1/archive"] = take
            with tempfile.TemporaryDirectory() as folder:
                here = pathlib.Path(folder)
                (here / "in" / "deep").mkdir(parents=True)
                large = os.urandom(600_001)
                (here / "in" / "deep" / "large").write_bytes(large)
                (here / "in" / "empty").write_bytes(b"")
                (here / "in" / ("long" * 60)).write_bytes(b"x" * 512)
                os.link(here / "in" / "empty", here / "in" / "same")
                (here / "in" / "link").symlink_to("deep/large")
                await vm.files.put(here / "in", "/there")
                with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
                    self.assertEqual(len(archive.getmembers()), 7)
                    self.assertEqual(sum(entry.islnk() for entry in archive), 1)
                server.answers["GET /v1/vms/v1/archive"] = OPEN + chunked(bytes(sent), 9999)
                await vm.files.get("/in", here / "out")
                self.assertEqual((here / "out" / "deep" / "large").read_bytes(), large)
                self.assertEqual((here / "out" / "link").readlink(), pathlib.Path("deep/large"))
                self.assertEqual((here / "out" / ("long" * 60)).read_bytes(), b"x" * 512)
                self.assertEqual(os.listdir(here).count("out"), 1)
                with self.assertRaises(FileNotFoundError):
                    await vm.files.put(here / "none", "/there")
                server.answers["GET /v1/vms/v1/archive"] = OPEN + b"5\r\nab"
                with self.assertRaises(Unreachable):
                    await vm.files.get("/in", here / "half")
                self.assertFalse((here / "half").exists())

    async def test_the_loop_goes_on_while_a_file_is_sent(self):
        async def take(reader, writer):
            while await chunk(reader):
                pass
            writer.write(answer(b"null"))

        async with Server() as server:
            vm = await server.vm()
            server.answers["PUT /v1/vms/v1/files"] = take
            longest, last = 0.0, time.monotonic()

            async def tick():
                nonlocal longest, last
                while True:
                    await asyncio.sleep(0)
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()

            ticking = asyncio.create_task(tick())
            await vm.files.write("/x", bytes(64 << 20))
            ticking.cancel()
            self.assertLess(longest, 1.0)


if __name__ == "__main__":
    unittest.main()
