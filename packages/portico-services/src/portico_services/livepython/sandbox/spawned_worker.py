"""Strict (WebAssembly) workers: one process each, connected by pipes, on any system with Python."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from typing import cast

import msgspec

from portico_services.livepython.sandbox.forked_worker import CLOSE_TIMEOUT_SECONDS, ENVIRONMENT, SOURCES, program
from portico_services.livepython.sandbox.framing import encode_frame
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import PythonWorker, WorkerEnded

# Memory of an empty session, in addition to the limit for code.
WASM_BASE_MEMORY_BYTES = 256 * 1024 * 1024


class SpawnedProcess(asyncio.SubprocessProtocol):
    """The server's ends of one worker: its standard input and output. Code inside cannot reach them."""

    output_in_messages = True

    def __init__(self) -> None:
        self.pid = 0
        self.exited = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._hear: Callable[[bytes], None] = lambda data: None
        self._end: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transport is not a subclass.
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self.pid = self._transport.get_pid()

    def listen(
        self, on_packet: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        self._hear, self._end = on_packet, end

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._hear(data)

    def process_exited(self) -> None:
        self.exited.set()
        self._end()

    def send(self, data: bytes) -> None:
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)

    def drain(self, limit: int) -> bytes:
        return b""

    def suspend(self) -> None:
        """Do nothing: no code runs between two requests."""

    def resume(self) -> None:
        """Do nothing: the worker is never suspended."""

    def interrupt(self) -> bool:
        """Return False: WebAssembly has no signals, and stopping it from outside breaks the instance."""
        return False

    def request_rescue(self) -> bool:
        return False

    def kill(self) -> None:
        if self._transport is not None:
            try:
                self._transport.kill()
            except ProcessLookupError:
                pass  # it has ended already

    async def status(self) -> int | None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.exited.wait()
        except TimeoutError:
            return None
        return self._transport.get_returncode() if self._transport is not None else None

    def limit_exceeded(self, limits: SandboxLimits) -> str | None:
        """Return which limit is exceeded, or None.

        WebAssembly itself limits memory to 4 GiB; the configured limit is checked from outside, where the system
        reports usage.
        """
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return None
        if resident > limits.memory_bytes + WASM_BASE_MEMORY_BYTES:
            return f"it used more than {limits.memory_bytes // 2**20} MiB of memory"
        return None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class SpawnedWorkerFactory:
    """Starts strict workers."""

    def __init__(self, python: str, limits: SandboxLimits) -> None:
        self.limits = limits
        self.version = ""
        # There is no file system inside, so projects are not available.
        self.packages: list[str] = []
        self._python = python
        self._started: set[SpawnedProcess] = set()

    async def open(self) -> None:
        """Do nothing: each worker is independent."""

    async def start(self) -> PythonWorker:
        """Start a worker. Raises SandboxUnavailable with the reason, for example that pyeryx is not installed."""
        loop = asyncio.get_running_loop()
        # Windows needs SYSTEMROOT to load its own libraries.
        needed = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
        try:
            _, ends = await loop.subprocess_exec(
                SpawnedProcess,
                self._python,
                "-I",
                "-c",
                program("wasm.main()"),
                SOURCES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**ENVIRONMENT, **needed},
                start_new_session=True,
            )
        except OSError as failure:
            raise SandboxUnavailable(f"cannot start {self._python}: {failure.strerror}") from None
        self._started = {item for item in self._started if not item.exited.is_set()} | {ends}
        worker = PythonWorker(ends, self.limits)
        ends.send(encode_frame(msgspec.json.encode(asdict(self.limits))))
        try:
            await worker.ready()
            if not self.version:
                answer = await worker.request("version", {}, CLOSE_TIMEOUT_SECONDS)
                self.version = msgspec.json.decode(answer.result)["version"]
        except WorkerEnded as refused:
            raise SandboxUnavailable(refused.reason) from None
        return worker

    async def close(self) -> None:
        for ends in self._started:
            ends.kill()
        for ends in self._started:
            await ends.exited.wait()
