"""Workers in the jail: copies of a process that has Python loaded, with the server's ends of their descriptors."""

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
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.rescue import SIGNAL as RESCUE
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import REPLY_SECONDS, PythonWorker, WorkerEnded

CHUNK = 1 << 16
# How long we wait to hear what became of a worker.
CLOSE_SECONDS = 0.5

# The packages may be installed in different folders.
_SOURCES = "\n".join({str(Path(str(package.__file__)).parent.parent): "" for package in (portico, portico_services)})
# Our code, then nothing of where it came from: the path is for the modules of that Python alone.
_BEGIN = (
    "import sys; sources = sys.argv[1].splitlines(); sys.path[:0] = sources; "
    "from portico_services.livepython.sandbox import fork_server; "
    "del sys.path[: len(sources)]; fork_server.main(int(sys.argv[2]))"
)

# All that code can see of an environment. Libraries of numbers start threads by the number of processors if not told.
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


class Forked:
    """The server's ends of one worker."""

    prints = False

    def __init__(self, channel: socket.socket, output: int, home: str, *, jailed: bool = True) -> None:
        self.scratch = home
        self._jailed = jailed
        # How long it had run when its files were last counted.
        self._counted_at: int | None = None
        self.pid = 0
        self._process = -1
        self._channel = channel
        self._output = output
        self._unsent = b""
        # Whether it is told when more can be sent.
        self._waits = False
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[int] = self._loop.create_future()
        channel.setblocking(False)
        os.set_blocking(output, False)

    def begun(self, pid: int, process: int) -> None:
        self.pid, self._process = pid, process

    def listen(self, hear: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]) -> None:
        def channel_readable() -> None:
            try:
                data = self._channel.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                hear(data)
            else:
                self._loop.remove_reader(self._channel.fileno())
                end()

        def output_readable() -> None:
            data = self._read(CHUNK)
            if data:
                print(data)
            elif data is not None:
                self._loop.remove_reader(self._output)

        self._loop.add_reader(self._channel.fileno(), channel_readable)
        self._loop.add_reader(self._output, output_readable)

    def _read(self, most: int) -> bytes | None:
        """None: nothing there. Empty: nothing any more."""
        if self._output < 0:
            return None
        try:
            return os.read(self._output, most)
        except BlockingIOError:
            return None

    def rest(self, most: int) -> bytes:
        parts: list[bytes] = []
        while most > 0 and (data := self._read(CHUNK)):
            parts.append(data)
            most -= len(data)
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._channel.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # It has gone; its reader is told by the end of the channel.
            self._unsent = b""
            sent = 0
        self._unsent = self._unsent[sent:]
        if self._unsent and not self._waits:
            self._loop.add_writer(self._channel.fileno(), self._flush)
        elif self._waits and not self._unsent:
            self._loop.remove_writer(self._channel.fileno())
        self._waits = bool(self._unsent)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def interrupt(self) -> bool:
        """As the keys of a terminal do: also of what code has started, where it can start anything."""
        alive = self._signal(signal.SIGINT)
        if alive and not self._jailed:
            try:
                os.killpg(self.pid, signal.SIGINT)
            except ProcessLookupError:
                pass  # it has ended meanwhile
        return True

    def rescue(self) -> bool:
        return self._signal(RESCUE)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """False if it has ended; it cannot be mistaken for another."""
        if self._process < 0:
            return False
        try:
            signal.pidfd_send_signal(self._process, number)
        except ProcessLookupError:
            return False
        return True

    def excess(self, limits: Limits) -> str | None:
        """What has not run since the last look has not made any files either, and is not counted again."""
        ran = scratch_dir.time_run(self.pid)
        if ran is not None and ran == self._counted_at:
            return None
        self._counted_at = ran
        used, entries = scratch_dir.usage(self.scratch, self.pid, most=limits.entries)
        if used > limits.scratch:
            return f"it wrote more than {limits.scratch // 2**20} MiB to its directory"
        return f"it made more than {limits.entries:,} files" if entries > limits.entries else None

    async def status(self) -> int | None:
        self.thaw()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
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
    for one in descriptors:
        os.close(one)


class Forking:
    """Starts workers. `open` starts the fork server; it is started again if it has ended."""

    def __init__(
        self,
        python: str,
        limits: Limits,
        *,
        readable: Sequence[str] = (),
        projects: Sequence[str] = (),
        preload: Sequence[str] = (),
        jailed: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        # Python's own variables are not read by one that is isolated. Nothing else of the environment is there anyway.
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
            "jailed": jailed,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._directory: str | None = None
        self._lock = asyncio.Lock()
        # The futures of workers that the fork server is starting, by number. One may be cancelled before its answer.
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._alive: dict[int, Forked] = {}
        self._last = 0
        self._heard = b""

    async def open(self) -> None:
        """Raises SandboxUnavailable with the reason if there is no such Python, or it is not one that we can use."""
        async with self._lock:
            await self._open()

    async def _open(self) -> None:
        if self._control is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # It takes a millisecond, and then the fork server is on its own.
                self._process = subprocess.Popen(  # noqa: ASYNC220
                    [self._python, *self._isolation, "-c", _BEGIN, _SOURCES, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as failure:
                ours.close()
                raise SandboxUnavailable(f"cannot start {self._python}: {failure.strerror}") from None
        ours.setblocking(False)
        self._control, self._heard = ours, b""
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear)
        try:
            up, _ = await self._order(self._setup)
        except BaseException:
            self._lost()
            raise
        self.version, self._directory, self.packages = up["up"], up["directory"], up["packages"]

    async def _order(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Say something to the fork server, and wait for what it says to that."""
        assert self._control is not None
        number = message.get("worker", 0)
        said: asyncio.Future[tuple[dict[str, Any], list[int]]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = said
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
            async with asyncio.timeout(REPLY_SECONDS):
                return await said
        except (OSError, TimeoutError):
            self._lost()
            raise SandboxUnavailable(
                f"{self._python} does not start workers: it must be Python 3.11 or newer"
            ) from None
        except asyncio.CancelledError:
            if said.done() and not said.cancelled():
                # The answer came, and its caller has gone.
                _close(said.result()[1])
            raise
        finally:
            self._waiting.pop(number, None)

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, CHUNK, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._lost()
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "gone" in message:
                ends = self._alive.pop(message["gone"], None)
                if ends is not None and not ends.gone.done():
                    ends.gone.set_result(message["status"])
                continue
            waiting = self._waiting.get(message.get("worker", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result((message, list(descriptors)))
                descriptors = []
        _close(descriptors)

    def _lost(self) -> None:
        """The fork server has ended. Its workers end with it, and we are told of each by its channel."""
        if self._control is None or self._process is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        for ends in self._alive.values():
            ends.gone.set_result(-signal.SIGKILL)
        self._alive.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())
        self._process.kill()
        self._process.wait()
        if self._directory is not None:
            scratch_dir.remove(self._directory)

    async def start(self) -> PythonWorker:
        """A worker that is locked up. Raises SandboxUnavailable with the reason if that could not be done."""
        async with self._lock:
            await self._open()
            self._last += 1
            number = self._last
            ours, theirs = socket.socketpair()
            read, write = os.pipe()
            assert self._directory is not None
            home = os.path.join(self._directory, str(number))
            ends = Forked(ours, read, home, jailed=bool(self._setup["jailed"]))
            self._alive[number] = ends
            worker = PythonWorker(ends, self.limits)
            try:
                said, descriptors = await self._order({"worker": number}, [theirs.fileno(), write])
            except BaseException:
                ends.close()
                raise
            finally:
                theirs.close()
                os.close(write)
            ends.begun(said["pid"], descriptors[0])
        try:
            await worker.ready()
        except WorkerEnded as refused:
            raise SandboxUnavailable(refused.reason) from None
        return worker

    async def close(self) -> None:
        """Hang up, and wait until the fork server and all workers have gone."""
        async with self._lock:
            if self._control is None or self._process is None:
                return
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            try:
                await asyncio.to_thread(self._process.wait, REPLY_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
