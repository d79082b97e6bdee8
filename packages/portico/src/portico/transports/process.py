"""Servers as child processes: pipes, stderr, and a shutdown that leaves no process behind."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Raw

from portico.protocol.errors import ConnectError, ConnectionClosed, ProtocolError
from portico.protocol.jsonrpc import to_line
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transports.base import MAX_MESSAGE_BYTES, DuplexTransport, TraceCallback
from portico.transports.deadlines import closing_seconds
from portico.transports.stdio import LineDecoder
from portico.transports.watchdog import watchdog

log = logging.getLogger("portico")

MAX_STDERR_LINES = 20
# Separates the reason of a failure from the last stderr lines. A gateway splits its messages here, because only the
# operator may see the lines: they can contain paths, commands and secrets.
STDERR_MARKER = "; last lines on stderr:\n"
# PORTICO_DATA is inherited so that Portico servers use the same data folder. PORTICO_STORE is not: it may contain a
# password.
_INHERITED_VARIABLES = """
    HOME LANG LANGUAGE LOGNAME PATH SHELL TERM TMPDIR TZ USER
    HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_DIR SSL_CERT_FILE NODE_EXTRA_CA_CERTS
    PORTICO_DATA VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
    APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA PATHEXT PROCESSOR_ARCHITECTURE PROGRAMDATA PROGRAMFILES
    SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR
"""
_INHERITED_PREFIXES = ("LC_", "XDG_")
MAX_STDERR_LINE_CHARS = 2000
# The exit status and the ends of the pipes are reported in any order; wait this long for the rest.
EXIT_STATUS_WAIT_SECONDS = 0.25
# Bytes of our responses that the server may leave unread. Requests wait until there is room instead.
MAX_WRITE_BUFFER_BYTES = 16 * 1024 * 1024
# basic/lifecycle, Shutdown: close stdin, then SIGTERM, then SIGKILL.
SHUTDOWN_TIMEOUT_SECONDS = 2.0
# For a process that has not answered any request: it has no session to end, and may not read its input at all.
UNANSWERED_SHUTDOWN_SECONDS = 0.5


class ProcessTransport(DuplexTransport, asyncio.SubprocessProtocol):
    """Connection to a child process, which has its own process group so that its children end with it."""

    def __init__(
        self,
        command: Sequence[str],
        handler: Handler,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        trace: TraceCallback | None = None,
    ) -> None:
        super().__init__(trace)
        self.command = list(command)
        self.name = os.path.basename(self.command[0])
        self.channel = Channel(handler, self._send, drain=self._drain)
        self.exited = asyncio.Event()
        self._env = {**get_default_environment(), **(env or {})}
        self._cwd = cwd
        self._lines = LineDecoder(MAX_MESSAGE_BYTES)
        self._stderr_decoder = LineDecoder(64 * 1024)
        self._stderr: deque[str] = deque(maxlen=MAX_STDERR_LINES)
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Any = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._buffered_bytes = 0
        self._ended_pipes: set[int] = set()
        self._was_asked = self._has_answered = False
        self._finished = asyncio.Event()
        self._end_reason = "ended"

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
            raise ConnectError(
                f"cannot start {self.command[0]!r}: {_start_problem(self.command[0], failure)}"
            ) from None
        self._stdin = self._transport.get_pipe_transport(0)
        if sys.platform != "win32":
            watchdog.add_group(self._transport.get_pid())

    @property
    def pid(self) -> int | None:
        """Return the process id while the process runs."""
        return None if self._transport is None or self.exited.is_set() else self._transport.get_pid()

    # Receiving

    @property
    def stderr_tail(self) -> list[str]:
        """Return the last lines that the server wrote to stderr."""
        return list(self._stderr)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            for line in self._stderr_decoder.feed(data):
                text = (line or b"(a very long line)").decode(errors="replace").rstrip()
                self._stderr.append(text[:MAX_STDERR_LINE_CHARS])
            return
        for line in self._lines.feed(data):
            if line is None:
                self._fail_all(f"a response of more than {self._lines.max_line_bytes} bytes")
            else:
                self.receive(line)

    # Sending

    def _send(self, message: bytes) -> None:
        """Send a response. Close the connection if more than `MAX_WRITE_BUFFER_BYTES` are unread."""
        if not self._writable.is_set():
            self._buffered_bytes += len(message)
            if self._buffered_bytes > MAX_WRITE_BUFFER_BYTES:
                self.channel.close(self._end_error("keeps sending requests but does not read the responses"))
                self._writable.set()
                return
        self._write(message)

    def _write(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(to_line(message) + b"\n")

    async def _send_request(self, id: int, method: str, params: Raw) -> Raw:
        # Check again after each wait: another request may have filled the buffer first.
        while not self._writable.is_set():
            await self._writable.wait()
        if not self.closed and (self.exited.is_set() or self._ended_pipes & {0, 1}):
            # The end of the process is known, but not reported yet. It cannot receive the request, so that the
            # request can be sent to the next process, even if it must not run twice. The exit status and the last
            # lines on stderr explain the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_STATUS_WAIT_SECONDS):
                    await self._finished.wait()
            raise ConnectError(str(self._end_error(self._end_reason)))
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
        self._buffered_bytes = 0
        self._writable.set()

    async def _drain(self) -> None:
        await self._writable.wait()

    # Shutdown

    def pipe_connection_lost(self, fd: int, failure: Exception | None) -> None:
        self._ended_pipes.add(fd)
        if fd == 0:
            # Pending writes will not complete; wake their tasks.
            self._writable.set()
        elif fd == 1 or self.exited.is_set():
            # The process may continue, but it no longer responds.
            self._finish_later("closed its output")

    def process_exited(self) -> None:
        self.exited.set()
        self._finish_later("")

    def _finish_later(self, reason: str) -> None:
        """Finish after a short delay: the exit status and the last stderr lines may still arrive and are more
        informative.
        """
        if self.exited.is_set() and self._ended_pipes >= {1, 2}:
            self._on_closed(reason)
        else:
            asyncio.get_running_loop().call_later(EXIT_STATUS_WAIT_SECONDS, self._on_closed, reason)

    def _on_closed(self, reason: str) -> None:
        if not self.closed:
            code = self._transport.get_returncode() if self._transport is not None else None
            if self.exited.is_set() and code is not None:
                reason = f"exited with status {code}" if code >= 0 else f"was terminated by signal {-code}"
            self._end_reason = reason or "ended"
            self._finished.set()
            self.channel.close(self._end_error(self._end_reason))
            self.on_missed_messages()

    def _end_error(self, reason: str) -> ConnectionClosed:
        """Return the error for the end of the process, with its last stderr lines."""
        lines = "\n".join(self._stderr)
        return ConnectionClosed(f"{self.name} {reason}" + (f"{STDERR_MARKER}{lines}" if lines else ""))

    async def close(self) -> None:
        """Close stdin, wait, send SIGTERM, wait, and kill the whole process group.

        A process that has left every request unanswered gets SIGTERM immediately.
        """
        transport = self._transport
        if transport is None:
            return
        self.channel.close(ConnectionClosed("the client was closed"))
        if self._stdin is not None:
            self._stdin.close()
        is_responsive = self._has_answered or not self._was_asked
        if not is_responsive or not await self._wait_exit(SHUTDOWN_TIMEOUT_SECONDS):
            self._signal(signal.SIGTERM)
            await self._wait_exit(SHUTDOWN_TIMEOUT_SECONDS if is_responsive else UNANSWERED_SHUTDOWN_SECONDS)
        # Also after a normal exit: its children may still be running.
        if self._signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
            await self._wait_exit(SHUTDOWN_TIMEOUT_SECONDS)
            await self._wait_group_exit()
        transport.close()
        if sys.platform != "win32":
            watchdog.remove_group(transport.get_pid())

    async def _wait_exit(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(closing_seconds(seconds)):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_group_exit(self) -> None:
        """Wait until the killed group has ended, for a limited time: orphans may remain as zombies."""
        for _ in range(50):
            if not self._signal(0):
                return
            await asyncio.sleep(0.005)

    def _signal(self, number: int) -> bool:
        """Signal the process group. Return whether it still exists."""
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


def _start_problem(program: str, failure: OSError) -> str:
    # The system reports a directory as "Permission denied".
    if os.path.isdir(program):
        return "it is a directory; name a file, a command or a URL"
    if "://" in program or program.lower().startswith(("http:", "https:")):
        return "expected an http or https URL"
    if failure.errno == errno.ENOEXEC:
        return f"the file has no #! line; name its interpreter, such as 'python3 {program}'"
    if os.path.isfile(program):
        if os.access(program, os.X_OK):
            is_local = os.path.basename(program) == program
            # The system reports a missing interpreter as if the script itself were missing.
            return (
                f"command not found (did you mean './{program}'?)"
                if is_local
                else "the program in its #! line is missing"
            )
        return "the file is not executable; name a Python file, a configuration file (.json, .toml), a command or a URL"
    if isinstance(failure, FileNotFoundError) and os.path.isfile(f"{program}.py"):
        return f"command not found (did you mean {program + '.py'!r}?)"
    return failure.strerror or str(failure)


def get_default_environment() -> dict[str, str]:
    """Return the environment variables that a child inherits: those it needs to run, without possible secrets."""
    names = _INHERITED_VARIABLES.split()
    return {name: value for name, value in os.environ.items() if name in names or name.startswith(_INHERITED_PREFIXES)}


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the Linux kernel end the child when this process dies."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def apply() -> None:
        prctl(1, signal.SIGTERM)
        # The parent may have died before `prctl` took effect.
        if os.getppid() != parent:
            os._exit(1)

    return apply
