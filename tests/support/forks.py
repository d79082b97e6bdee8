"""Fork `portico` commands from a process that has imported the package: a short command spends most time on imports.

Everything that the interpreter decides at start-up is the same for all forks: encodings, imported modules, and the
effect of environment variables that begin with PYTHON. Tests of these start `python -m portico`.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Self, TextIO

TIMEOUT_SECONDS = 30.0
MAX_REQUEST_BYTES = 1 << 17
# Modules that commands import when they need them.
PRELOADED_MODULES = ("portico.search.tool_search", "jsonschema_rs", "rich.console", "uvloop")


class ForkedCommand:
    """A started command, with the subset of `Popen` that tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = _number(os.read(self._ended, 4))
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            select.select([self._ended], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("portico", timeout)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just exited
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PipedCommand(ForkedCommand):
    """A command whose standard streams are text pipes."""

    def __init__(self, pid: int, ended: int, stdin: TextIO, stdout: TextIO, stderr: TextIO) -> None:
        super().__init__(pid, ended)
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    def communicate(self, said: bytes = b"", timeout: float = TIMEOUT_SECONDS) -> tuple[str, str]:
        """Write to its input, wait for its end, and return its output and standard error."""
        with ThreadPoolExecutor(3) as threads:
            threads.submit(_write, self.stdin, said)
            printed = [threads.submit(_read, pipe) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            finally:
                self.kill()
            out, err = (item.result(timeout) for item in printed)
            return out, err


class AsyncCommand:
    """A piped command with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, fork: PipedCommand, stdin: asyncio.WriteTransport) -> None:
        self.pid, self.kill = fork.pid, fork.kill
        self.stdin, self.stdout, self.stderr = stdin, asyncio.StreamReader(), asyncio.StreamReader()
        self._fork = fork

    @classmethod
    async def of(cls, fork: PipedCommand) -> Self:
        loop = asyncio.get_running_loop()
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, fork.stdin)
        made = cls(fork, stdin)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(made.stdout), fork.stdout)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(made.stderr), fork.stderr)
        return made

    async def wait(self) -> int:
        return await asyncio.to_thread(self._fork.wait, TIMEOUT_SECONDS)


def _with_support() -> dict[str, str]:
    """Return our environment with `tests/` as an import folder: a program may use these helpers."""
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


class ForkServer:
    """The process that has imported the package, and forks."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(number)], pass_fds=[number], env=_with_support()
            )

    def start(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = ".",
        program: Path | None = None,
    ) -> PipedCommand:
        """Start a `portico` command, or with `program` a Python file."""
        stdin, *printed = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin[0], *(pipe[1] for pipe in printed)]
        pid, ended = self._fork(words, env, cwd, theirs, program)
        for their in theirs:
            os.close(their)
        return PipedCommand(pid, ended, os.fdopen(stdin[1], "w"), *(os.fdopen(pipe[0]) for pipe in printed))

    def start_at(self, terminal: int, *words: str | Path, env: Mapping[str, str], cwd: str | Path) -> ForkedCommand:
        """Start a command in a terminal."""
        return ForkedCommand(*self._fork(words, env, cwd, [terminal] * 3))

    def _fork(
        self,
        words: Sequence[str | Path],
        env: Mapping[str, str] | None,
        cwd: str | Path,
        streams: list[int],
        program: Path | None = None,
    ) -> tuple[int, int]:
        """Return its process id, and the descriptor from which its exit status can be read."""
        ended, telling = os.pipe()
        run = None if program is None else str(program)
        environment = dict(os.environ if env is None else env)
        request = json.dumps([list(map(str, words)), environment, os.path.abspath(cwd), run])
        socket.send_fds(self._requests, [request.encode()], [*streams, telling])
        os.close(telling)
        return _number(os.read(ended, 4)), ended

    def run(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = ".",
        stdin: str | bytes = b"",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        fork = self.start(*words, env=env, cwd=cwd)
        out, err = fork.communicate(stdin.encode() if isinstance(stdin, str) else stdin)
        assert fork.returncode is not None
        return subprocess.CompletedProcess(words, fork.returncode, out, err)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


def _write(pipe: TextIO, data: bytes) -> None:
    try:
        with pipe:
            pipe.buffer.write(data)
    except BrokenPipeError:
        pass  # a command may ignore its input


def _read(pipe: TextIO) -> str:
    with pipe:
        return pipe.read()


# Code of the forking process


def answer(requests: socket.socket) -> None:
    """Fork for each request until the socket is closed."""
    started: dict[int, int] = {}

    def reap(*_: object) -> None:
        while started:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break  # the handler of a later signal has reaped the rest
            if not pid:
                break
            _write_number(started[pid], os.waitstatus_to_exitcode(status))
            os.close(started.pop(pid))

    signal.signal(signal.SIGCHLD, reap)
    while True:
        request, streams, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not request:
            break
        ended = streams.pop()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # until its process id is recorded
        pid = os.fork()
        if not pid:
            requests.close()
            os.close(ended)
            run(request, streams)
        _write_number(ended, pid)
        started[pid] = ended
        for stream in streams:
            os.close(stream)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def run(request: bytes, streams: list[int]) -> NoReturn:
    """Run the command as `python -m portico` does, or the program, and exit."""
    words, env, cwd, program = json.loads(request)
    for number in (signal.SIGCHLD, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    if os.isatty(0):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv, sys.path[0] = [program or "portico", *words], os.path.dirname(program) if program else cwd
    status: object = 0
    try:
        if program:
            runpy.run_path(program, run_name="__main__")
        else:
            import_module("portico.cli.main").main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    # Shut down as an interpreter does, without deallocating all modules.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def _write_number(descriptor: int, number: int) -> None:
    try:
        os.write(descriptor, number.to_bytes(4, "little", signed=True))
    except BrokenPipeError:
        pass


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def load() -> None:
    from portico.cli.commands import all_commands
    from portico_services.assembly import SERVICE_CLASSES

    for name in (*(command.module for command in all_commands().values()), *PRELOADED_MODULES):
        import_module(name)
    for name, service in SERVICE_CLASSES.values():
        getattr(import_module(name), service)
    gc.freeze()  # otherwise garbage collection would copy these pages in each fork


if __name__ == "__main__":
    load()
    answer(socket.socket(fileno=int(sys.argv[1])))
