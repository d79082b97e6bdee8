"""Strict workers: a process each, with pipes, on any system that has Python."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import cast

import msgspec

import portico
import portico_services
from portico_services.livepython.sandbox.forked_worker import CLOSE_SECONDS, ENVIRONMENT
from portico_services.livepython.sandbox.framing import pack
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import PythonWorker, WorkerEnded

# The packages may be installed in different folders.
_SOURCES = "\n".join({str(Path(str(package.__file__)).parent.parent): "" for package in (portico, portico_services)})
_BEGIN = (
    "import sys; sources = sys.argv[1].splitlines(); sys.path[:0] = sources; "
    "from portico_services.livepython.sandbox import wasm; "
    "del sys.path[: len(sources)]; wasm.main()"
)
# What an empty session takes, beside what code in it is given.
IMAGE = 256 * 1024 * 1024


class Piped(asyncio.SubprocessProtocol):
    """The server's ends of one worker: its standard input and output. Code inside cannot reach them."""

    prints = True

    def __init__(self) -> None:
        self.pid = 0
        self.exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._hear: Callable[[bytes], None] = lambda data: None
        self._end: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transport says so of itself: uvloop's is one, and no subclass.
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def listen(self, hear: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._hear, self._end = hear, end

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._hear(data)

    def process_exited(self) -> None:
        self.exited.set()
        self._end()

    def send(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)

    def rest(self, most: int) -> bytes:
        return b""

    def freeze(self) -> None:
        """Nothing runs between two questions."""

    def thaw(self) -> None:
        """So there is nothing to let go on."""

    def interrupt(self) -> bool:
        """Nothing inside can be interrupted: WebAssembly has no signals, and what stops it from outside breaks it."""
        return False

    def rescue(self) -> bool:
        return False

    def kill(self) -> None:
        if self._transport is not None:
            try:
                self._transport.kill()
            except ProcessLookupError:
                pass  # it has ended already

    async def status(self) -> int | None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.exited.wait()
        except TimeoutError:
            return None
        return self._transport.get_returncode() if self._transport is not None else None

    def excess(self, limits: Limits) -> str | None:
        """WebAssembly's own bound is 4 GiB; ours is looked after from outside, where the system tells."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return None
        if resident > limits.memory + IMAGE:
            return f"it used more than {limits.memory // 2**20} MiB of memory"
        return None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Spawning:
    """Starts strict workers."""

    def __init__(self, python: str, limits: Limits) -> None:
        self.limits = limits
        self.version = ""
        # There are no files inside, so none of a project's either.
        self.packages: list[str] = []
        self._python = python
        self._started: set[Piped] = set()

    async def open(self) -> None:
        """Nothing to prepare: each worker is on its own."""

    async def start(self) -> PythonWorker:
        """Raises SandboxUnavailable with the reason, for instance that there is no pyeryx."""
        loop = asyncio.get_running_loop()
        # Windows cannot load its own libraries without knowing where it is.
        needed = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        try:
            _, ends = await loop.subprocess_exec(
                Piped,
                self._python,
                "-I",
                "-c",
                _BEGIN,
                _SOURCES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**ENVIRONMENT, **needed},
                start_new_session=True,
            )
        except OSError as failure:
            raise SandboxUnavailable(f"cannot start {self._python}: {failure.strerror}") from None
        self._started = {one for one in self._started if not one.exited.is_set()} | {ends}
        worker = PythonWorker(ends, self.limits)
        ends.send(pack(msgspec.json.encode(asdict(self.limits))))
        try:
            await worker.ready()
            if not self.version:
                answer = await worker.ask("version", {}, CLOSE_SECONDS)
                self.version = msgspec.json.decode(answer.result)["version"]
        except WorkerEnded as refused:
            raise SandboxUnavailable(refused.reason) from None
        return worker

    async def close(self) -> None:
        for ends in self._started:
            ends.kill()
        for ends in self._started:
            await ends.exited.wait()
