"""Arguments and standard input that cannot be sent, and copies that cannot be made, by both clients: none of them waits for ever."""

import array
import asyncio
import io
import json
import os
import pathlib
import socket
import tarfile
import tempfile
import unittest
import unittest.mock

from test_aio import OPEN, Server, answer, chunk, chunked, lines

from forkyard_host import PIPE, Forkyard, ForkyardError

LIMIT = 20  # Seconds; nothing here takes one.


async def echo(reader, writer):
    """A command that writes what it reads, and waits for more; a client that hangs up ends it."""
    await chunk(reader)
    writer.write(OPEN)
    while True:
        told = json.loads(await chunk(reader) or "null")
        if told == "eof":
            break
        if told is not None:
            piece = lines({"stdout": told["stdin"]})
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
    end = lines({"exit": {"code": 0}})
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
    await writer.drain()


async def inline(reader, writer):
    raise AssertionError("not to be asked")


class Both(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.server = Server()
        await self.server.__aenter__()
        self.addAsyncCleanup(self.server.__aexit__)
        self.later = await self.server.vm()
        self.blocking = await asyncio.to_thread(lambda: Forkyard("unix://" + self.server.path).vm("p"))

    async def each(self, call):
        """Outcomes of a call by both clients; each ends."""
        for ask in (lambda: call(self.later), lambda: asyncio.to_thread(call, self.blocking)):
            try:
                yield await asyncio.wait_for(ask(), LIMIT)
            except TimeoutError:
                raise AssertionError("it hangs") from None
            except Exception as error:
                yield error

    async def refused(self, kind, words, call):
        async for outcome in self.each(call):
            self.assertIsInstance(outcome, kind)
            self.assertRegex(str(outcome), words)


class Input(Both):
    async def test_a_failing_source_of_standard_input_ends_the_command_and_is_raised(self):
        self.server.answers["POST /v1/vms/v1/exec"] = echo

        def raising():
            yield b"one"
            raise KeyError("mine")

        closed = io.BytesIO(b"x")
        closed.close()
        for kind, words, source in (
            (TypeError, "bytes are written.*not str", lambda: iter(["abc"])),
            (TypeError, "bytes are written.*not int", lambda: iter([1, 2])),
            (TypeError, "stdin is bytes.*not str", lambda: "abc"),
            (TypeError, "stdin is bytes.*not int", lambda: 5),
            (TypeError, "stdin is bytes.*not NoneType", lambda: None),
            (TypeError, "stdin is bytes.*'rb'.*a file of text", lambda: open("/etc/passwd")),
            (ValueError, "closed", lambda: closed),
            (KeyError, "mine", raising),
        ):
            with self.subTest(words):
                await self.refused(kind, words, lambda vm: vm.exec("cat", stdin=source()))

    async def test_bytes_like_standard_input_is_sent_whole(self):
        self.server.answers["POST /v1/vms/v1/exec"] = echo
        told = OPEN + chunked(lines({"exit": {"code": 0}}))
        large = os.urandom(2 << 20)
        for source, wanted in (
            (lambda: bytearray(large), large),
            (lambda: memoryview(large), large),
            (lambda: io.BytesIO(b"a\nb\n"), b"a\nb\n"),
            (lambda: iter([b"a", bytearray(b"b"), memoryview(b"c")]), b"abc"),
            (lambda: [b"a", array.array("H", [0x6161])], b"aaa"),
        ):
            async for done in self.each(lambda vm: vm.exec("cat", stdin=source())):
                self.assertEqual(done.stdout, wanted)
        self.server.answers["POST /v1/vms/v1/exec"] = told
        async for done in self.each(lambda vm: vm.exec("cat", stdin=bytearray(b"in"))):
            self.assertEqual(json.loads(self.server.requests[-1][2])["stdin"], "aW4=")

    async def test_nothing_is_written_once_standard_input_is_closed(self):
        self.server.answers["POST /v1/vms/v1/exec"] = echo
        async with await self.later.start("cat", stdin=PIPE) as it:
            await it.close_stdin()
            await it.close_stdin()
            with self.assertRaisesRegex(ValueError, "close_stdin"):
                await it.write(b"late")

        def late():
            with self.blocking.start("cat", stdin=PIPE) as it:
                it.close_stdin()
                it.close_stdin()
                with self.assertRaisesRegex(ValueError, "close_stdin"):
                    it.write(b"late")

        await asyncio.to_thread(late)


class Files(Both):
    async def test_a_file_without_an_end_is_refused_rather_than_held(self):
        self.server.answers["GET /v1/vms/v1/files"] = OPEN + chunked(b"abcdef")
        async for content in self.each(lambda vm: vm.files.read("/f", limit=6)):
            self.assertEqual(content, b"abcdef")
        await self.refused(ForkyardError, "/f has more than 5 bytes.*in parts", lambda vm: vm.files.read("/f", limit=5))
        with unittest.mock.patch("forkyard_host._calls.MOST_READ", 5):
            await self.refused(ForkyardError, "more than 5 bytes", lambda vm: vm.files.read("/f"))


class Words(Both):
    async def test_what_json_cannot_hold_is_refused_in_words_before_it_is_sent(self):
        self.server.answers["POST /v1/vms/v1/exec"] = inline
        for kind, words, call in (
            (ValueError, "timeout is a number of seconds above 0", lambda vm: vm.exec("x", timeout=0)),
            (ValueError, "timeout is a number of seconds above 0", lambda vm: vm.exec("x", timeout=-1)),
            (ValueError, "timeout is a number of seconds above 0", lambda vm: vm.exec("x", timeout=float("nan"))),
            (ValueError, "timeout is a number of seconds above 0", lambda vm: vm.exec("x", timeout=float("inf"))),
            (TypeError, "arguments of a command are str, not bytes: decode", lambda vm: vm.exec(b"x")),
            (TypeError, "arguments of a command are str, not int", lambda vm: vm.exec("x", 5)),
            (ValueError, "no text in UTF-8", lambda vm: vm.exec("x", "a\udcffb")),
            (ValueError, "no text in UTF-8", lambda vm: vm.exec("x", env={"A": "\ud800"})),
            (ValueError, "no text in UTF-8", lambda vm: vm.files.read("/\udcff")),
            (TypeError, "is bytes, not text", lambda vm: vm.exec("x", workdir=b"/")),
            (ValueError, "offset is a count of bytes", lambda vm: vm.files.read("/x", offset=-1)),
            (ValueError, "limit is a count of bytes", lambda vm: vm.files.read("/x", limit=-1)),
            (TypeError, "content of a file is bytes, not str", lambda vm: vm.files.write("/x", "text")),
        ):
            with self.subTest(words):
                await self.refused(kind, words, call)

    async def test_a_path_is_an_argument(self):
        self.server.answers["POST /v1/vms/v1/exec"] = OPEN + chunked(lines({"exit": {"code": 0}}))
        async for done in self.each(lambda vm: vm.exec(pathlib.Path("/bin/true"))):
            self.assertEqual(done.code, 0)
            self.assertEqual(json.loads(self.server.requests[-1][2])["argv"], ["/bin/true"])


class Copies(Both):
    async def test_what_cannot_be_copied_is_told_by_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = folder + "/fifo"
            os.mkfifo(fifo)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(folder + "/sock")
            self.addCleanup(listener.close)
            for path in (fifo, folder + "/sock", "/dev/zero"):
                await self.refused(OSError, f"FIFO, socket or device.*{path}", lambda vm: vm.files.put(path, "/x"))
            await self.refused(OSError, "/proc/self/mem", lambda vm: vm.files.put("/proc/self/mem", "/x"))
            if os.access("/proc/kcore", os.R_OK):
                await self.refused(OSError, "its size says nothing.*/proc/kcore", lambda vm: vm.files.put("/proc/kcore", "/x"))

    async def test_the_reason_of_a_guest_comes_before_the_end_of_its_stream(self):
        # As the guest's agent writes it: a word, and no end.
        words = b"FORKYARD.failure=it is a device, which cannot be copied\n"
        record = b"%d %b" % (len(words) + 3, words)
        head = tarfile.TarInfo("././@PaxHeader")
        head.type, head.size = tarfile.XGLTYPE, len(record)
        told = head.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512)
        broken = OPEN + b"%x\r\n%b\r\n" % (len(told), told)
        with tempfile.TemporaryDirectory() as folder:
            self.server.answers["GET /v1/vms/v1/archive"] = broken
            await self.refused(ForkyardError, "^it is a device", lambda vm: vm.files.get("/dev/zero", folder + "/z"))
            self.assertEqual(os.listdir(folder), [])

    async def test_holes_stay_holes(self):
        sent = bytearray()

        async def take(reader, writer):
            sent.clear()
            while piece := await chunk(reader):
                sent.extend(piece)
            writer.write(answer(b"null"))
            await writer.drain()

        self.server.answers["PUT /v1/vms/v1/archive"] = take
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/holes"
            with open(path, "wb") as file:
                file.truncate(40 << 20)
                file.seek(20 << 20)
                file.write(b"here")
            if os.stat(path).st_blocks * 512 >= 40 << 20:
                self.skipTest("the file system has no holes")
            wanted = pathlib.Path(path).read_bytes()
            async for done in self.each(lambda vm: vm.files.put(path, "/x")):
                self.assertIsNone(done)
                self.assertLess(len(sent), 1 << 20)
                with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
                    [entry] = archive
                    self.assertEqual((entry.name, entry.size), ("holes", 40 << 20))
                    self.assertEqual(archive.extractfile(entry).read(), wanted)
            self.server.answers["GET /v1/vms/v1/archive"] = OPEN + chunked(bytes(sent), 9999)
            async for done in self.each(lambda vm: vm.files.get("/holes", folder + "/back")):
                self.assertIsNone(done)
                self.assertEqual(pathlib.Path(folder + "/back").read_bytes(), wanted)
                self.assertLess(os.stat(folder + "/back").st_blocks * 512, 1 << 20)


if __name__ == "__main__":
    unittest.main()
