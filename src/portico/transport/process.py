"""A server that is a child process of ours: its pipes, its last words, and its end, which is never later than ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.transport.stdio import Lines
from portico.wire.errors import Closed, ConnectFailed, ProtocolError

log = logging.getLogger("portico")

LONGEST_ANSWER = 64 * 1024 * 1024
LAST_WORDS = 20
# basic/lifecycle, Shutdown: close its input, then ask it to end, then end it.
PATIENCE = 2.0


class Process(asyncio.SubprocessProtocol):
    """A Channel to a child. It is in a process group of its own, so that its children go with it."""

    def __init__(
        self,
        command: Sequence[str],
        handler: Handler,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        longest: int = LONGEST_ANSWER,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        self.command = list(command)
        self.channel = Channel(handler, self._send, drain=self._drain)
        self.exited = asyncio.Event()
        self._env = None if env is None else {**os.environ, **env}
        self._cwd = cwd
        self._lines = Lines(longest)
        self._words = Lines(64 * 1024)
        self._stderr: deque[str] = deque(maxlen=LAST_WORDS)
        self._on_stderr = on_stderr
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Any = None
        self._writable = asyncio.Event()
        self._writable.set()

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

    # What it says

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            for word in self._words.feed(data):
                self._note((word or b"(a very long line)").decode(errors="replace").rstrip())
            return
        for line in self._lines.feed(data):
            if line is None:
                self.channel.fail(ProtocolError(f"{self.name} sent an answer of more than {self._lines.longest} bytes"))
                continue
            reply = self.channel.receive(line)
            if reply is not None:
                self._send(reply)

    def _note(self, line: str) -> None:
        self._stderr.append(line)
        if self._on_stderr is not None:
            self._on_stderr(line)

    @property
    def name(self) -> str:
        return os.path.basename(self.command[0])

    # What we say

    def _send(self, message: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(message + b"\n")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def _drain(self) -> None:
        await self._writable.wait()

    # Its end

    def pipe_connection_lost(self, fd: int, failure: Exception | None) -> None:
        if fd == 1 and not self.exited.is_set():
            # It may live on, but it will not answer any more.
            self.channel.close(self.farewell("closed its output"))

    def process_exited(self) -> None:
        code = self._transport.get_returncode() if self._transport is not None else None
        self.exited.set()
        self.channel.close(self.farewell(f"exited with status {code}"))

    def farewell(self, what: str) -> Closed:
        """What became of it, with its last words."""
        words = "\n".join(self._stderr)
        return Closed(f"{self.name} {what}" + (f"; it said last:\n{words}" if words else ""))

    async def close(self) -> None:
        """Close its input, wait, ask, wait, kill: the whole group, so that nothing is left behind."""
        transport = self._transport
        if transport is None:
            return
        self.channel.close(Closed("the client was closed"))
        if self._stdin is not None:
            self._stdin.close()
        if not await self._ended():
            self._signal(signal.SIGTERM)
            await self._ended()
        # Also when it has ended by itself: its children may not have.
        self._signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        await self._ended()
        transport.close()

    async def _ended(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    def _signal(self, number: int) -> None:
        if self._transport is None:
            return
        pid = self._transport.get_pid()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                os.kill(pid, number)
            else:
                os.killpg(pid, number)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Linux: the kernel ends the child when we die, however we die."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def apply() -> None:
        prctl(1, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return apply
