"""stdio transport: one message per line.

The transport claims the file descriptors 0 and 1. A `print`, or a C library that writes to standard output, goes to
standard error and cannot corrupt the stream.
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
from portico.rpc.call import Handler, get_capabilities
from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS, Channel
from portico.rpc.handshake.session import HandshakeSession, LifecycleMode
from portico.telemetry import start_telemetry
from portico.transports import event_loop
from portico.transports.event_loop import Lifespan, handle_signals

log = logging.getLogger("portico")

# The same limit as for HTTP bodies, so that a tool call that works on one transport works on the other.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
SHUTDOWN_TIMEOUT_SECONDS = 5.0
_READ_BYTES = 64 * 1024
# Above this, log messages and progress are dropped until the client reads again.
_WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024


# Line separators are only `\n`: 2025-11-25 (basic/transports) forbids embedded newlines in messages, and
# `splitlines` would also split at U+2028, which is legal inside JSON strings.
class LineDecoder:
    """Splits bytes into lines, with a length limit. Lines above the limit are discarded, and decoding continues."""

    def __init__(self, max_line_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that end in this data. None marks a line above the limit, once, as soon as that is known."""
        head, *rest = data.split(b"\n")
        results: list[bytes | None] = []
        self._add(head, results)
        for part in rest:
            self._end_line(results)
            self._add(part, results)
        return results

    def _add(self, part: bytes, lines: list[bytes | None]) -> None:
        if self._skipping or not part:
            return
        self._size += len(part)
        if self._size > self.max_line_bytes:
            self._parts.clear()
            self._skipping = True
            lines.append(None)
        else:
            self._parts.append(part)

    def _end_line(self, lines: list[bytes | None]) -> None:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        # Blank lines and a `\r` before the newline, as sent by Windows clients, are harmless.
        if line and not line.isspace():
            lines.append(line)
        self._parts.clear()
        self._size = 0
        self._skipping = False

    def flush(self) -> list[bytes | None]:
        """Return the data after the last newline, at the end of the stream."""
        results: list[bytes | None] = []
        self._end_line(results)
        return results


class StdioConnection(asyncio.Protocol):
    """Channel over two file descriptors, with backpressure between them."""

    def __init__(
        self, handler: Handler, *, max_message_size: int, max_concurrent_requests: int, lifecycle: LifecycleMode
    ) -> None:
        self.session = HandshakeSession(handler, lifecycle=lifecycle)
        self.channel = Channel(
            handler, self.send, session=self.session, drain=self.drain, max_in_flight=max_concurrent_requests
        )
        self.channel.is_congested = self._is_congested
        self.ended = asyncio.Event()
        self.broken = False
        self._lines = LineDecoder(max_message_size)
        self._backlog: deque[bytes | None] = deque()
        self._at_end = False
        self._direct = -1
        self._reader: Any = None
        self._writer: Any = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connect(self, reader: Any, writer: Any, direct_fd: int = -1) -> None:
        """Attach the streams. `direct_fd` is the writer's file descriptor if writing to it cannot block."""
        self._reader, self._writer, self._direct = reader, writer, direct_fd

    # Reading

    def data_received(self, data: bytes) -> None:
        self._backlog.extend(self._lines.feed(data))
        self._process_lines()

    def eof_received(self) -> None:
        if not self._at_end:
            self._at_end = True
            # The last message may lack its newline, for example in `echo … | server`.
            self._backlog.extend(self._lines.flush())
            self._process_lines()
            # A client that closed its input but does not read the responses must not block the shutdown.
            asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_SECONDS, self.ended.set)

    def connection_lost(self, failure: Exception | None) -> None:
        self.eof_received()

    def _process_lines(self) -> None:
        """Serve the received lines, but never faster than the responses are read."""
        replies: list[bytes] = []
        size = 0
        while self._backlog and self._writable.is_set():
            reply = self._receive(self._backlog.popleft())
            if reply is not None:
                replies.append(reply)
                size += len(reply)
                # Responses of one read are written together, but not so many that a pipelining client waits for
                # all of them.
                if size > _READ_BYTES:
                    self._write(replies)
                    replies, size = [], 0
        if replies:
            self._write(replies)
        if self._at_end and not self._backlog:
            self.ended.set()
        self._apply_backpressure()

    def _receive(self, line: bytes | None) -> bytes | None:
        if line is not None:
            return self.channel.receive(line)
        refusal = InvalidRequest(f"Invalid request: a message must not exceed {self._lines.max_line_bytes} bytes")
        return jsonrpc.encode_error(None, refusal, self.channel.protocol_version)

    def _apply_backpressure(self) -> None:
        if self._reader is None:
            return
        # Stops reading while the client does not read its responses; the pipe then blocks the client instead of
        # our memory.
        if self._backlog and not self._at_end:
            self._reader.pause_reading()
        elif not self._at_end and not self._reader.is_reading():
            self._reader.resume_reading()

    # Writing

    def _write(self, messages: list[bytes]) -> None:
        self._write_bytes(b"\n".join([*map(to_line, messages), b""]))

    def send(self, message: bytes) -> None:
        self._write_bytes(to_line(message) + b"\n")

    def _write_bytes(self, data: bytes) -> None:
        # The pipe may be closing before the event loop has reported it.
        if self.broken or self._writer.is_closing():
            return
        if self._direct >= 0 and not self._writer.get_write_buffer_size():
            # The write buffer is empty, so no data is overtaken: write immediately, without waiting for the event loop.
            try:
                data = data[os.write(self._direct, data) :]
            except BlockingIOError:
                pass
            except OSError:
                self.on_reader_closed()
                return
            if not data:
                return
        self._writer.write(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        self._process_lines()

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def _is_congested(self) -> bool:
        return not self._writable.is_set() and self._writer.get_write_buffer_size() > _WRITE_HIGH_WATER_BYTES

    def on_reader_closed(self) -> None:
        """Handle the end of the client's reading side."""
        self.broken = True
        self._writable.set()
        self.ended.set()


class _Output(asyncio.Protocol):
    """Writing side of the same connection, as the event loop's protocol."""

    def __init__(self, stdio: StdioConnection) -> None:
        self.stdio = stdio
        self.closed = asyncio.Event()

    def pause_writing(self) -> None:
        self.stdio.pause_writing()

    def resume_writing(self) -> None:
        self.stdio.resume_writing()

    def connection_lost(self, failure: Exception | None) -> None:
        self.closed.set()
        self.stdio.on_reader_closed()


class _ThreadReader:
    """Reader for inputs that an event loop cannot poll: files, terminals, and pipes on Windows."""

    def __init__(self, fd: int, protocol: StdioConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._fd, self._protocol, self._loop = fd, protocol, loop
        # A thread cannot be interrupted in `os.read`, so it is a daemon and only pauses between reads.
        self._may_read = threading.Event()
        self._may_read.set()
        threading.Thread(target=self._read, name="portico-stdin", daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._fd, _READ_BYTES):
                self._loop.call_soon_threadsafe(self._protocol.data_received, data)
                self._may_read.wait()
        except OSError:
            pass
        try:
            self._loop.call_soon_threadsafe(self._protocol.eof_received)
        except RuntimeError:
            pass  # the event loop ended before the input

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_reading(self) -> bool:
        return self._may_read.is_set()

    def close(self) -> None:
        self._may_read.set()


class _BlockingWriter:
    """Blocking writer for files and terminals."""

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


def claim_stdio() -> tuple[int, int]:
    """Claim the descriptors 0 and 1 for the protocol. Other code then reads nothing and writes to standard error."""
    try:
        stdin, stdout = os.dup(0), os.dup(1)
    except OSError:
        raise UsageError("stdio requires an open standard input and standard output") from None
    # A library that reads standard input, such as `input()` in user code, would otherwise steal protocol
    # messages.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout


def _is_selectable(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class StdioOptions(TypedDict, total=False):
    """Keyword arguments of `serve` and `server.run()`, which documents them."""

    max_message_size: int
    max_concurrent_requests: int
    lifecycle: LifecycleMode
    shutdown_timeout: float


async def serve(
    handler: Handler,
    stdin: int,
    stdout: int,
    *,
    max_message_size: int = MAX_MESSAGE_BYTES,
    max_concurrent_requests: int = MAX_IN_FLIGHT_REQUESTS,
    lifecycle: LifecycleMode = "auto",
    shutdown_timeout: float = SHUTDOWN_TIMEOUT_SECONDS,
) -> None:
    """Serve one client on two file descriptors until it disconnects."""
    about = get_capabilities(handler).info
    start_telemetry("portico" if about is None else about.name)
    stdio = StdioConnection(
        handler, max_message_size=max_message_size, max_concurrent_requests=max_concurrent_requests, lifecycle=lifecycle
    )
    await serve_connection(stdio, stdin, stdout, shutdown_timeout)


async def serve_connection(
    stdio: StdioConnection, stdin: int, stdout: int, shutdown_timeout: float = SHUTDOWN_TIMEOUT_SECONDS
) -> None:
    """Connect `stdio` with two file descriptors until one of them ends."""
    loop = asyncio.get_running_loop()
    output = _Output(stdio)
    if _is_selectable(stdout):
        writer: Any = (await loop.connect_write_pipe(lambda: output, os.fdopen(stdout, "wb", 0)))[0]
    else:
        writer = _BlockingWriter(stdout, output)
    direct = stdout if _is_selectable(stdout) else -1
    stdio.connect(None, writer, direct)
    # Before the first message is answered: a client may send a signal as soon as it has a response.
    with handle_signals(stdio.ended.set), _watch_parent(stdio, loop):
        if _is_selectable(stdin):
            reader: Any = (await loop.connect_read_pipe(lambda: stdio, os.fdopen(stdin, "rb", 0)))[0]
        else:
            reader = _ThreadReader(stdin, stdio, loop)
        stdio.connect(reader, writer, direct)
        await stdio.ended.wait()
        # With a broken pipe no response can be delivered, so waiting for the calls would be pointless.
        await _drain_calls(stdio, 0 if stdio.broken else shutdown_timeout)
    reader.close()
    writer.close()
    await _wait_until(1.0, output.closed)


async def _drain_calls(stdio: StdioConnection, shutdown_timeout: float) -> None:
    """Wait for the active calls until the timeout, a second signal, or the client no longer reads."""
    stdio.ended.clear()
    finishing = asyncio.ensure_future(stdio.channel.shutdown(shutdown_timeout))
    hurry = asyncio.ensure_future(stdio.ended.wait())
    await asyncio.wait({finishing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    stdio.channel.close()
    stdio.session.close()
    hurry.cancel()
    await finishing


async def _wait_until(seconds: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


@contextmanager
def _watch_parent(stdio: StdioConnection, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Stop when the parent process dies, even if another process still holds the other end of our input."""
    try:
        parent = os.getppid()
        # A parent of 1 means that the parent died already, or that this is a container's first child.
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
    """Serve the standard input and output of this process."""
    stdin, stdout = claim_stdio()
    event_loop.run_with_lifespan(lambda: serve(handler, stdin, stdout, **options), lifespan)
