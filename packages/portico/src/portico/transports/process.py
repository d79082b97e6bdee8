"""A server that is a child process: its pipes, what it writes to stderr, and its end, which is never after ours."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from portico.protocol.errors import Closed, ConnectFailed, ProtocolError
from portico.protocol.jsonrpc import to_line
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transports.base import LONGEST_ANSWER, Duplex, Trace
from portico.transports.deadlines import closing_seconds
from portico.transports.stdio import Lines
from portico.transports.watchdog import watchdog

log = logging.getLogger("portico")

MOST_LAST_LINES = 20
# A server of ours keeps its things where those of the shell are. (PORTICO_STORE may hold a password.)
_INHERITED = """
    HOME LANG LANGUAGE LOGNAME PATH SHELL TERM TMPDIR TZ USER
    HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_DIR SSL_CERT_FILE NODE_EXTRA_CA_CERTS
    PORTICO_DATA VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
    APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA PATHEXT PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES
    SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR
"""
_FAMILIES = ("LC_", "XDG_")
LONGEST_LINE = 2000
# Its exit status and the ends of its pipes are reported in any order: this long is waited for the rest.
EXIT_NEWS_SECONDS = 0.25
# How many bytes of our answers it may leave unread. Our requests wait until there is room.
MOST_UNREAD = 16 * 1024 * 1024
# basic/lifecycle, Shutdown: close its input, then ask it to end, then end it.
SHUTDOWN_SECONDS = 2.0
# The same for a process that has not answered any request: it has no session to end, and may not read its input at all.
UNANSWERED_SHUTDOWN_SECONDS = 0.5


class ProcessLink(Duplex, asyncio.SubprocessProtocol):
    """A link to a child process. It has a process group of its own, so that its children end with it."""

    def __init__(
        self,
        command: Sequence[str],
        handler: Handler,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(trace)
        self.command = list(command)
        self.name = os.path.basename(self.command[0])
        self.channel = Channel(handler, self._send, drain=self._drain)
        self.exited = asyncio.Event()
        self._env = {**inherited(), **(env or {})}
        self._cwd = cwd
        self._lines = Lines(LONGEST_ANSWER)
        self._error_lines = Lines(64 * 1024)
        self._stderr: deque[str] = deque(maxlen=MOST_LAST_LINES)
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Any = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread = 0
        self._ended_pipes: set[int] = set()
        self._was_asked = self._has_answered = False

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"env": self._env, "cwd": self._cwd}
        if sys.platform != "win32":
            options["start_new_session"] = True
        if sys.platform == "linux":
            options["preexec_fn"] = _die_with_parent(os.getpid())
        try:
            self._transport, _ = await loop.subprocess_exec(
                lambda: self,
                *self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **options,
            )
        except OSError as failure:
            raise ConnectFailed(f"cannot start {self.command[0]!r}: {failure.strerror or failure}") from None
        self._stdin = self._transport.get_pipe_transport(0)
        if sys.platform != "win32":
            watchdog.watch(self._transport.get_pid())

    # What it says

    @property
    def last_lines(self) -> list[str]:
        """What it wrote last to stderr."""
        return list(self._stderr)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            for line in self._error_lines.feed(data):
                text = (line or b"(a very long line)").decode(errors="replace").rstrip()
                self._stderr.append(text[:LONGEST_LINE])
            return
        for line in self._lines.feed(data):
            if line is None:
                self._fail_all(f"an answer of more than {self._lines.longest} bytes")
            else:
                self.take(line)

    # What we say

    def _send(self, message: bytes) -> None:
        """Send a reply; close the connection when more than MOST_UNREAD bytes are unread."""
        if not self._writable.is_set():
            self._unread += len(message)
            if self._unread > MOST_UNREAD:
                self.channel.close(self._end_error("asks without end, and does not read the answers"))
                self._writable.set()
                return
        self._write(message)

    def _write(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(to_line(message) + b"\n")

    async def _ask(self, id: int, method: str, params: Raw) -> Raw:
        # Again and again, for the request that goes first may take all the room there is.
        while not self._writable.is_set():
            await self._writable.wait()
        self._was_asked = True
        try:
            result = await self.channel.request(method, params, send=self._write, id=id)
        except ProtocolError:
            self._has_answered = True
            raise
        self._has_answered = True
        return result

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._unread = 0
        self._writable.set()

    async def _drain(self) -> None:
        await self._writable.wait()

    # Its end

    def pipe_connection_lost(self, fd: int, failure: Exception | None) -> None:
        self._ended_pipes.add(fd)
        if fd == 0:
            # What waits to be written will not be.
            self._writable.set()
        elif fd == 1 or self.exited.is_set():
            # It may live on, but it will not answer any more.
            self._await_end("closed its output")

    def process_exited(self) -> None:
        self.exited.set()
        self._await_end("")

    def _await_end(self, what: str) -> None:
        """Wait a moment: its status and its last lines may still be on their way, and they say more."""
        if self.exited.is_set() and self._ended_pipes >= {1, 2}:
            self._over(what)
        else:
            asyncio.get_running_loop().call_later(EXIT_NEWS_SECONDS, self._over, what)

    def _over(self, what: str) -> None:
        if not self.closed:
            code = self._transport.get_returncode() if self._transport is not None else None
            if self.exited.is_set() and code is not None:
                what = f"exited with status {code}" if code >= 0 else f"was ended by signal {-code}"
            self.channel.close(self._end_error(what or "ended"))
            self.on_gap()

    def _end_error(self, what: str) -> Closed:
        """The error that says what became of it, with its last lines on stderr."""
        lines = "\n".join(self._stderr)
        return Closed(f"{self.name} {what}" + (f"; it said last:\n{lines}" if lines else ""))

    async def close(self) -> None:
        """Close its input, wait, send SIGTERM, wait, kill: the whole group, so that nothing is left behind.

        A process that has left every request unanswered gets SIGTERM immediately.
        """
        transport = self._transport
        if transport is None:
            return
        self.channel.close(Closed("the client was closed"))
        if self._stdin is not None:
            self._stdin.close()
        is_responsive = self._has_answered or not self._was_asked
        if not is_responsive or not await self._ended(SHUTDOWN_SECONDS):
            self._signal(signal.SIGTERM)
            await self._ended(SHUTDOWN_SECONDS if is_responsive else UNANSWERED_SHUTDOWN_SECONDS)
        # Also when it has ended by itself: its children may not have.
        if self._signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
            await self._ended(SHUTDOWN_SECONDS)
            await self._group_gone()
        transport.close()
        if sys.platform != "win32":
            watchdog.forget(transport.get_pid())

    async def _ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(closing_seconds(seconds)):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    async def _group_gone(self) -> None:
        """Wait until the killed group has ended; not for ever, for its orphans may stay as zombies."""
        for _ in range(50):
            if not self._signal(0):
                return
            await asyncio.sleep(0.005)

    def _signal(self, number: int) -> bool:
        """Signal the process group. Returns whether it still exists."""
        if self._transport is None:
            return False
        pid = self._transport.get_pid()
        try:
            if sys.platform == "win32":
                os.kill(pid, number)
            else:
                os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def inherited() -> dict[str, str]:
    """What a child gets of our environment: what it takes to run, and none of the secrets that may be in it."""
    names = _INHERITED.split()
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(_FAMILIES)}


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Linux: the kernel ends the child when we die, however we die."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def apply() -> None:
        prctl(1, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return apply
