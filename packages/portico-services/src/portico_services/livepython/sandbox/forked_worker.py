"""Sandboxed workers forked from a process with Python loaded, seen from the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import portico
import portico_services
from portico_services.livepython.sandbox import scratch_dir
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.rescue import RESCUE_SIGNAL as RESCUE
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import REPLY_TIMEOUT_SECONDS, PythonWorker, WorkerEnded

# The default capacity of a pipe on Linux: one read empties it.
CHUNK_BYTES = 1 << 16
# How long to wait for the exit status of a worker.
CLOSE_TIMEOUT_SECONDS = 0.5

# The packages may be installed in different directories.
SOURCES = "\n".join({str(Path(str(package.__file__)).parent.parent): "" for package in (portico, portico_services)})

# The complete environment of sandboxed code. Numeric libraries would otherwise start one thread per CPU.
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


def program(call: str) -> str:
    """Return a program that imports a module of this package, with SOURCES as its first argument, and calls it.

    The import path is restored afterwards, so that code sees only the modules of its own Python.
    """
    return (
        "import sys; sources = sys.argv[1].splitlines(); sys.path[:0] = sources; "
        f"from portico_services.livepython.sandbox import {call.partition('.')[0]}; "
        f"del sys.path[: len(sources)]; {call}"
    )


class ForkedProcess:
    """The server's descriptors of one worker."""

    output_in_messages = False

    def __init__(self, channel: socket.socket, output: int, home: str, *, sandboxed: bool = True) -> None:
        self.scratch = home
        self._sandboxed = sandboxed
        # CPU time of the worker when its files were last counted.
        self._counted_at: int | None = None
        self.pid = 0
        self._process = -1
        self._channel = channel
        self._output = output
        self._unsent = b""
        # Whether a writer is registered with the event loop.
        self._waits = False
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[int] = self._loop.create_future()
        channel.setblocking(False)
        os.set_blocking(output, False)

    def set_process(self, pid: int, process: int) -> None:
        self.pid, self._process = pid, process

    def listen(
        self, on_packet: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]
    ) -> None:
        def channel_readable() -> None:
            try:
                data = self._channel.recv(CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                on_packet(data)
            else:
                self._loop.remove_reader(self._channel.fileno())
                end()

        def output_readable() -> None:
            data = self._read(CHUNK_BYTES)
            if data:
                print(data)
            elif data is not None:
                self._loop.remove_reader(self._output)

        self._loop.add_reader(self._channel.fileno(), channel_readable)
        self._loop.add_reader(self._output, output_readable)

    def _read(self, limit: int) -> bytes | None:
        """Read output. Return None if none is available, and empty bytes at the end of the stream."""
        if self._output < 0:
            return None
        try:
            return os.read(self._output, limit)
        except BlockingIOError:
            return None

    def drain(self, limit: int) -> bytes:
        parts: list[bytes] = []
        # The limit is checked per chunk: a worker could otherwise print for as long as it is drained.
        while limit > 0 and (data := self._read(CHUNK_BYTES)):
            parts.append(data)
            limit -= len(data)
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        # Without blocking: a worker that does not read its channel must not stall the event loop of the server.
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._channel.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The worker has ended; the reader notices the end of the channel.
            self._unsent = b""
            sent = 0
        self._unsent = self._unsent[sent:]
        if self._unsent and not self._waits:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        elif self._waits and not self._unsent:
            self._loop.remove_writer(self._channel.fileno())
        self._waits = bool(self._unsent)

    def suspend(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def interrupt(self) -> bool:
        """Interrupt the worker like Ctrl-C in a terminal, including child processes where code can start any."""
        alive = self._signal(signal.SIGINT)
        if alive and not self._sandboxed:
            try:
                # Only without a sandbox: seccomp does not let sandboxed code start processes.
                os.killpg(self.pid, signal.SIGINT)
            except ProcessLookupError:
                pass  # it has ended in between
        return True

    def request_rescue(self) -> bool:
        return self._signal(RESCUE)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """Send a signal and return False if the process has ended. A pidfd never refers to another process."""
        if self._process < 0:
            return False
        try:
            signal.pidfd_send_signal(self._process, number)
        except ProcessLookupError:
            return False
        return True

    def limit_exceeded(self, limits: SandboxLimits) -> str | None:
        """Return which limit of the scratch directory is exceeded, or None.

        A worker that has used no CPU time since the last check has not written files, and is skipped.
        """
        ran = scratch_dir.cpu_time_ns(self.pid)
        if ran is not None and ran == self._counted_at:
            return None
        self._counted_at = ran
        used, entries = scratch_dir.disk_usage(self.scratch, self.pid, limit=limits.max_scratch_entries)
        if used > limits.scratch_bytes:
            return f"it wrote more than {limits.scratch_bytes // 2**20} MiB to its directory"
        return (
            f"it made more than {limits.max_scratch_entries:,} files" if entries > limits.max_scratch_entries else None
        )

    async def status(self) -> int | None:
        # A suspended process does not receive the signal that ends it until it is resumed.
        self.resume()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                return await asyncio.shield(self.gone)
        except TimeoutError:
            return None

    def close(self) -> None:
        if self._output < 0:
            return
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        self._loop.remove_reader(self._output)
        self._channel.close()
        os.close(self._output)
        if self._process >= 0:
            os.close(self._process)
        self._output = self._process = -1


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ForkedWorkerFactory:
    """Starts workers. `open` starts the fork server, which is restarted if it has ended."""

    def __init__(
        self,
        python: str,
        limits: SandboxLimits,
        *,
        readable: Sequence[str] = (),
        projects: Sequence[str] = (),
        preload: Sequence[str] = (),
        sandboxed: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        # Isolated mode ignores PYTHON* variables, so it is not used if some are set explicitly.
        self._environment = ENVIRONMENT | dict(environment or {})
        self._isolation = ["-s", "-P"] if environment else ["-I"]
        self.version = ""
        self.packages: list[str] = []
        self._python = python
        self._setup = {
            "limits": asdict(limits),
            "readable": list(readable),
            "projects": list(projects),
            "preload": list(preload),
            "sandboxed": sandboxed,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._directory: str | None = None
        self._lock = asyncio.Lock()
        # Futures of workers being started, by number. A caller may be cancelled before the reply arrives.
        self._pending_replies: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._alive: dict[int, ForkedProcess] = {}
        self._last = 0
        self._heard = b""

    async def open(self) -> None:
        """Start the fork server. Raises SandboxUnavailable with the reason if this Python cannot be used."""
        async with self._lock:
            await self._start_server()

    async def _start_server(self) -> None:
        if self._control is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Blocking, but it takes only about a millisecond.
                self._process = subprocess.Popen(  # noqa: ASYNC220
                    [
                        self._python,
                        *self._isolation,
                        "-c",
                        program("fork_server.main(int(sys.argv[2]))"),
                        SOURCES,
                        str(theirs.fileno()),
                    ],
                    pass_fds=[theirs.fileno()],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C in the server's terminal must reach the server only, which then ends the workers in
                    # order.
                    start_new_session=True,
                )
            except OSError as failure:
                ours.close()
                raise SandboxUnavailable(f"cannot start {self._python}: {failure.strerror}") from None
        ours.setblocking(False)
        self._control, self._heard = ours, b""
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_message)
        try:
            up, _ = await self._send_command(self._setup)
        except BaseException:
            self._on_server_lost()
            raise
        self.version, self._directory, self.packages = up["up"], up["directory"], up["packages"]

    async def _send_command(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a message to the fork server and wait for the reply."""
        assert self._control is not None
        # Replies carry the number of their worker; 0 is the setup, which has none.
        number = message.get("worker", 0)
        reply: asyncio.Future[tuple[dict[str, Any], list[int]]] = asyncio.get_running_loop().create_future()
        self._pending_replies[number] = reply
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
            async with asyncio.timeout(REPLY_TIMEOUT_SECONDS):
                return await reply
        except (OSError, TimeoutError):
            self._on_server_lost()
            raise SandboxUnavailable(
                f"{self._python} does not start workers: it must be Python 3.11 or newer"
            ) from None
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled():
                # The reply arrived, but its caller was cancelled: close the received descriptors.
                _close(reply.result()[1])
            raise
        finally:
            self._pending_replies.pop(number, None)

    def _on_message(self) -> None:
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, CHUNK_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._on_server_lost()
            return
        # A stream socket does not preserve message boundaries: the rest of the last line is retained.
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "gone" in message:
                ends = self._alive.pop(message["gone"], None)
                if ends is not None and not ends.gone.done():
                    ends.gone.set_result(message["status"])
                continue
            waiting = self._pending_replies.get(message.get("worker", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result((message, list(descriptors)))
                descriptors = []
        _close(descriptors)

    def _on_server_lost(self) -> None:
        """Clean up after the fork server has ended. Its workers end too, which each channel reports."""
        if self._control is None or self._process is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        for ends in self._alive.values():
            # The fork server is the parent and would have reported the status; its workers are killed with it.
            ends.gone.set_result(-signal.SIGKILL)
        self._alive.clear()
        for waiting in self._pending_replies.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())
        self._process.kill()
        self._process.wait()
        if self._directory is not None:
            scratch_dir.remove_tree(self._directory)

    async def start(self) -> PythonWorker:
        """Start a sandboxed worker. Raises SandboxUnavailable with the reason if that fails."""
        async with self._lock:
            await self._start_server()
            self._last += 1
            number = self._last
            ours, theirs = socket.socketpair()
            read, write = os.pipe()
            assert self._directory is not None
            home = os.path.join(self._directory, str(number))
            ends = ForkedProcess(ours, read, home, sandboxed=bool(self._setup["sandboxed"]))
            self._alive[number] = ends
            worker = PythonWorker(ends, self.limits)
            try:
                reply, descriptors = await self._send_command({"worker": number}, [theirs.fileno(), write])
            except BaseException:
                ends.close()
                raise
            finally:
                theirs.close()
                os.close(write)
            ends.set_process(reply["pid"], descriptors[0])
        try:
            await worker.ready()
        except WorkerEnded as refused:
            raise SandboxUnavailable(refused.reason) from None
        return worker

    async def close(self) -> None:
        """Close the connection, and wait until the fork server and all workers have ended."""
        async with self._lock:
            if self._control is None or self._process is None:
                return
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            try:
                await asyncio.to_thread(self._process.wait, REPLY_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
