"""stdio: one message a line.

The process's descriptors 0 and 1 are claimed for the protocol: a `print`, or a C library that writes to standard
output, lands on standard error and can never break the stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypedDict, Unpack

from portico.protocol import jsonrpc
from portico.protocol.errors import InvalidRequest, UsageError
from portico.protocol.jsonrpc import to_line
from portico.rpc.call import Handler, members
from portico.rpc.channel import MOST_IN_FLIGHT, Channel
from portico.rpc.handshake.session import Lifecycle, Session
from portico.telemetry import start_telemetry
from portico.transports import event_loop
from portico.transports.event_loop import Lifespan, on_signals

log = logging.getLogger("portico")

LONGEST_MESSAGE = 4 * 1024 * 1024
GRACE_SECONDS = 5.0
_CHUNK = 64 * 1024
# Beyond this, log messages and progress are dropped until the client reads again.
_CONGESTED = 4 * 1024 * 1024


class Lines:
    """Bytes to lines, with a bound: of a line that is too long nothing is kept, and the next one is served."""

    def __init__(self, longest: int = LONGEST_MESSAGE) -> None:
        self.longest = longest
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that end in this data. None stands for one that was too long, once, as soon as that is known."""
        head, *rest = data.split(b"\n")
        found: list[bytes | None] = []
        self._add(head, found)
        for part in rest:
            self._end(found)
            self._add(part, found)
        return found

    def _add(self, part: bytes, found: list[bytes | None]) -> None:
        if self._skipping or not part:
            return
        self._size += len(part)
        if self._size > self.longest:
            self._parts.clear()
            self._skipping = True
            found.append(None)
        else:
            self._parts.append(part)

    def _end(self, found: list[bytes | None]) -> None:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if line and not line.isspace():
            found.append(line)
        self._parts.clear()
        self._size = 0
        self._skipping = False

    def rest(self) -> list[bytes | None]:
        """What came after the last newline, at the end of the stream."""
        found: list[bytes | None] = []
        self._end(found)
        return found


class Stdio(asyncio.Protocol):
    """A Channel between two descriptors, and the back-pressure between them."""

    def __init__(self, handler: Handler, *, longest: int, most_in_flight: int, lifecycle: Lifecycle) -> None:
        self.session = Session(handler, lifecycle=lifecycle)
        self.channel = Channel(
            handler, self.send, session=self.session, drain=self.drain, most_in_flight=most_in_flight
        )
        self.channel.congested = self._is_congested
        self.ended = asyncio.Event()
        self.broken = False
        self._lines = Lines(longest)
        self._backlog: deque[bytes | None] = deque()
        self._at_end = False
        self._direct = -1
        self._reader: Any = None
        self._writer: Any = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connect(self, reader: Any, writer: Any, direct: int = -1) -> None:
        """`direct`: the descriptor behind the writer, if writing to it cannot block."""
        self._reader, self._writer, self._direct = reader, writer, direct

    # Reading

    def data_received(self, data: bytes) -> None:
        self._backlog.extend(self._lines.feed(data))
        self._pump()

    def eof_received(self) -> None:
        if not self._at_end:
            self._at_end = True
            self._backlog.extend(self._lines.rest())
            self._pump()
            # A client that has said its last word and does not read the answers is not waited for without end.
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self.ended.set)

    def connection_lost(self, failure: Exception | None) -> None:
        self.eof_received()

    def _pump(self) -> None:
        """Serve the lines that are there, but never faster than the answers are read."""
        replies: list[bytes] = []
        size = 0
        while self._backlog and self._writable.is_set():
            reply = self._take(self._backlog.popleft())
            if reply is not None:
                replies.append(reply)
                size += len(reply)
                if size > _CHUNK:
                    self._write(replies)
                    replies, size = [], 0
        if replies:
            self._write(replies)
        if self._at_end and not self._backlog:
            self.ended.set()
        self._balance()

    def _take(self, line: bytes | None) -> bytes | None:
        if line is not None:
            return self.channel.receive(line)
        refusal = InvalidRequest(f"Invalid request: a message is at most {self._lines.longest} bytes long")
        return jsonrpc.error(None, refusal, self.channel.revision)

    def _balance(self) -> None:
        if self._reader is None:
            return
        if self._backlog and not self._at_end:
            self._reader.pause_reading()
        elif not self._at_end and not self._reader.is_reading():
            self._reader.resume_reading()

    # Writing

    def _write(self, messages: list[bytes]) -> None:
        self._put(b"\n".join([*map(to_line, messages), b""]))

    def send(self, message: bytes) -> None:
        self._put(to_line(message) + b"\n")

    def _put(self, data: bytes) -> None:
        # The pipe may be closing before the loop has told us.
        if self.broken or self._writer.is_closing():
            return
        if self._direct >= 0 and not self._writer.get_write_buffer_size():
            # Nothing waits to be written, so nothing can be overtaken: at once, without the loop's turn for it.
            try:
                data = data[os.write(self._direct, data) :]
            except BlockingIOError:
                pass
            except OSError:
                self.reader_gone()
                return
            if not data:
                return
        self._writer.write(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._pump()

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def _is_congested(self) -> bool:
        return not self._writable.is_set() and self._writer.get_write_buffer_size() > _CONGESTED

    def reader_gone(self) -> None:
        """The client does not read our answers any more."""
        self.broken = True
        self._writable.set()
        self.ended.set()


class _Output(asyncio.Protocol):
    """The writing side of the same connection, as the loop sees it."""

    def __init__(self, stdio: Stdio) -> None:
        self.stdio = stdio
        self.closed = asyncio.Event()

    def pause_writing(self) -> None:
        self.stdio.pause_writing()

    def resume_writing(self) -> None:
        self.stdio.resume_writing()

    def connection_lost(self, failure: Exception | None) -> None:
        self.closed.set()
        self.stdio.reader_gone()


class _ThreadReader:
    """For what a loop cannot wait on: files, terminals, and pipes on Windows."""

    def __init__(self, fd: int, protocol: Stdio, loop: asyncio.AbstractEventLoop) -> None:
        self._fd, self._protocol, self._loop = fd, protocol, loop
        self._may_read = threading.Event()
        self._may_read.set()
        threading.Thread(target=self._read, name="portico-stdin", daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._fd, _CHUNK):
                self._loop.call_soon_threadsafe(self._protocol.data_received, data)
                self._may_read.wait()
        except OSError:
            pass
        try:
            self._loop.call_soon_threadsafe(self._protocol.eof_received)
        except RuntimeError:
            pass  # the loop has ended before the input

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set()

    def close(self) -> None:
        self._may_read.set()


class _PlainWriter:
    """Writes at once, to files and terminals."""

    def __init__(self, fd: int, output: _Output) -> None:
        self._fd, self._output = fd, output

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._output.connection_lost(None)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._output.connection_lost(None)


def claim() -> tuple[int, int]:
    """Take descriptors 0 and 1 for the protocol; code that uses them from now on gets nothing, and standard error."""
    try:
        stdin, stdout = os.dup(0), os.dup(1)
    except OSError:
        raise UsageError("stdio needs an open standard input and output") from None
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout


def _can_wait(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class StdioOptions(TypedDict, total=False):
    """The keywords of `serve`, and of `server.run()`, which says what each of them means."""

    longest: int
    most_in_flight: int
    lifecycle: Lifecycle
    grace: float


async def serve(
    handler: Handler,
    stdin: int,
    stdout: int,
    *,
    longest: int = LONGEST_MESSAGE,
    most_in_flight: int = MOST_IN_FLIGHT,
    lifecycle: Lifecycle = "auto",
    grace: float = GRACE_SECONDS,
) -> None:
    """Serve one client on two descriptors until it goes away."""
    about = members(handler).info
    start_telemetry("portico" if about is None else about.name)
    stdio = Stdio(handler, longest=longest, most_in_flight=most_in_flight, lifecycle=lifecycle)
    await converse(stdio, stdin, stdout, grace)


async def converse(stdio: Stdio, stdin: int, stdout: int, grace: float = GRACE_SECONDS) -> None:
    """Connect it with two descriptors until one of its ends is over."""
    loop = asyncio.get_running_loop()
    output = _Output(stdio)
    if _can_wait(stdout):
        writer: Any = (await loop.connect_write_pipe(lambda: output, os.fdopen(stdout, "wb", 0)))[0]
    else:
        writer = _PlainWriter(stdout, output)
    direct = stdout if _can_wait(stdout) else -1
    stdio.connect(None, writer, direct)
    # Before the first message can be answered, so that a client that has an answer may send a signal.
    with on_signals(stdio.ended.set), _parent(stdio, loop):
        if _can_wait(stdin):
            reader: Any = (await loop.connect_read_pipe(lambda: stdio, os.fdopen(stdin, "rb", 0)))[0]
        else:
            reader = _ThreadReader(stdin, stdio, loop)
        stdio.connect(reader, writer, direct)
        await stdio.ended.wait()
        await _finish(stdio, 0 if stdio.broken else grace)
    reader.close()
    writer.close()
    await _within(1.0, output.closed)


async def _finish(stdio: Stdio, grace: float) -> None:
    """Give the calls in flight a moment; a second signal, or a client that does not read, takes it away again."""
    stdio.ended.clear()
    finishing = asyncio.ensure_future(stdio.channel.end(grace))
    hurry = asyncio.ensure_future(stdio.ended.wait())
    await asyncio.wait({finishing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    stdio.channel.close()
    stdio.session.close()
    hurry.cancel()
    await finishing


async def _within(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


@contextmanager
def _parent(stdio: Stdio, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """A dead parent ends us, even when another process still holds the other end of our input."""
    try:
        parent = os.getppid()
        watched = os.pidfd_open(parent) if parent > 1 else -1
    except (AttributeError, OSError):
        watched = -1
    if watched < 0:
        yield
        return
    loop.add_reader(watched, stdio.ended.set)
    try:
        yield
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def run(handler: Handler, lifespan: Lifespan = nullcontext, **options: Unpack[StdioOptions]) -> None:
    """Serve the process's own standard input and output."""
    stdin, stdout = claim()
    event_loop.run(lambda: serve(handler, stdin, stdout, **options), lifespan)
