"""Supervisor: opens the sockets, starts the workers, and replaces those that exit. Serves no requests itself.

Workers are started with the supervisor's command line, not forked, so that per-process state (ids, keys, threads,
database connections) is never duplicated. The listening sockets stay open here, so that connections wait in them while
a worker is replaced.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.transports.http_server.workers.assignment import (
    MAX_LINE_BYTES,
    WorkerAssignment,
    encode_line,
    worker_environment,
)

log = logging.getLogger("portico")

MAX_COVERED_SLOTS = 64

# A worker that ran this long did not fail at its start.
STABLE_AFTER_SECONDS = 10.0
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 10.0
# Time for a worker to become ready.
STARTUP_TIMEOUT_SECONDS = 60.0
# How often an exiting process is polled.
EXIT_POLL_INTERVAL_SECONDS = 0.01
KILL_TIMEOUT_SECONDS = 5.0


class WorkerProcess:
    """Worker process, as its supervisor sees it."""

    def __init__(self, slot: int, id: str, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self.slot = slot
        self.id = id
        self.process = process
        self.socket = line
        self.started_at = time.monotonic()
        self.ready = False
        # The worker was asked to stop. It is killed at the deadline.
        self.retired = False
        # The worker closed its end of the control socket, so it is exiting.
        self.disconnected = False
        self.deadline = self.started_at + STARTUP_TIMEOUT_SECONDS
        self._buffer = b""

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages of the worker, or None when its end of the control socket is closed."""
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self._buffer += data
        if not data or len(self._buffer) > MAX_LINE_BYTES:
            return None
        *lines, self._buffer = self._buffer.split(b"\n")
        return [msgspec.json.decode(line) for line in lines]

    def send(self, **fields: Any) -> None:
        with suppress(OSError):
            self.socket.sendall(encode_line(fields))

    def terminate(self, seconds: float) -> None:
        """Ask the worker to stop. It is killed after `seconds`."""
        self.retired = True
        self.deadline = time.monotonic() + seconds
        with suppress(ProcessLookupError):
            self.process.terminate()

    def retire(self, seconds: float) -> None:
        """Ask a replaced worker to stop after it has released its sessions. It is killed after `seconds`."""
        self.retired = True
        self.deadline = time.monotonic() + seconds
        self.send(retire=True)


class WorkerSlot(Struct):
    """Slot of one worker at a time: its sockets, and its failure count."""

    sockets: list[socket.socket]
    failures: int = 0
    # Start of the next worker, after a failure.
    pause_until: float = 0.0
    # The worker of another slot that accepts the connections of this slot for now.
    cover: WorkerProcess | None = None


class Supervisor:
    """Runs workers until it is stopped.

    `on_ready` is called once, when all workers are listening. `command` starts a worker.
    """

    def __init__(
        self,
        sockets: list[list[socket.socket]],
        *,
        socket_dir: str,
        options: dict[str, Any],
        shutdown_timeout: float,
        command: list[str] | None = None,
        on_ready: Callable[[], None] = lambda: None,
        internal: Sequence[socket.socket] = (),
    ) -> None:
        self._internal = [item.fileno() for item in internal]
        self.slots = [WorkerSlot(item) for item in sockets]
        # Signs requests that workers forward to each other. It lives as long as the supervisor and is never
        # stored.
        self.signing_key = secrets.token_bytes(32)
        self._socket_dir = socket_dir
        self._options = options
        self._shutdown_timeout = shutdown_timeout
        self._command = command or current_command()
        self._announce = on_ready
        self._announced = False
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        # The self-pipe trick: a signal handler may only do what is safe at any moment, such as writing to a
        # socket.
        self._waking, self._wake = socket.socketpair()
        self._waking.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        self._stopping = False
        # Slots whose workers are to be replaced, in order.
        self._to_replace: list[int] = []
        self._status = 0
        # Whether each slot has its own sockets. With very many slots, connections wait for their own worker instead of
        # being covered.
        self._slots_have_own_sockets = 1 < len(sockets) <= MAX_COVERED_SLOTS and sockets[0][0] is not sockets[1][0]

    # Commands, from any thread or signal handler

    def stop(self) -> None:
        self._send_command(b"s")

    def reload(self) -> None:
        self._send_command(b"r")

    def _send_command(self, word: bytes) -> None:
        with suppress(OSError):
            self._wake.send(word)

    # Running

    def run(self) -> int:
        """Run the workers until stopped. Return the exit status: 0, or that of a worker that failed to start."""
        try:
            # Only one worker at first: if the user's code is broken, the error appears once and not for every
            # worker.
            self._start(0)
            while self._workers or not self._stopping:
                self._run_once()
            return self._status
        finally:
            for worker in list(self._workers):
                worker.process.kill()
                worker.process.wait()
                self._forget(worker)
            self._selector.close()
            self._waking.close()
            self._wake.close()

    def _run_once(self) -> None:
        for key, _ in self._selector.select(self._next_timeout()):
            if key.fileobj is self._waking:
                self._process_commands()
            else:
                self._receive(key.data)
        for worker in list(self._workers):
            if worker.process.poll() is not None:
                self._on_exit(worker)
        self._kill_overdue()
        self._start_missing()
        self._assign_cover()

    def _next_timeout(self) -> float:
        """Return the seconds until the next deadline."""
        if any(worker.disconnected for worker in self._workers):
            return EXIT_POLL_INTERVAL_SECONDS
        due = [worker.deadline for worker in self._workers if worker.retired or not worker.ready]
        due += [slot.pause_until for index, slot in enumerate(self.slots) if not self._workers_in_slot(index)]
        return max(0.0, min([*due, time.monotonic() + 60.0]) - time.monotonic())

    def _process_commands(self) -> None:
        words = b""
        with suppress(OSError):
            words = self._waking.recv(4096)
        if b"s" in words and not self._stopping:
            self._stopping = True
            self._to_replace = []
            for worker in self._workers:
                worker.terminate(self._shutdown_timeout + KILL_TIMEOUT_SECONDS)
        if b"r" in words and not self._stopping:
            self._to_replace = list(range(len(self.slots)))
            log.info("replacing %d workers, one by one", len(self.slots))

    def _receive(self, worker: WorkerProcess) -> None:
        messages = worker.receive()
        if messages is None:
            self._selector.unregister(worker.socket)
            worker.disconnected = True
            return
        for item in messages:
            if item.get("ready"):
                self._on_ready(worker)

    def _on_ready(self, worker: WorkerProcess) -> None:
        worker.ready = True
        for other in self._workers_in_slot(worker.slot):
            if other is not worker and not other.retired:
                # The old worker retires only now, so the slot always has a process that accepts connections.
                other.retire(self._shutdown_timeout + KILL_TIMEOUT_SECONDS)
                log.info(
                    "worker %d was replaced: process %d instead of %d",
                    worker.slot,
                    worker.process.pid,
                    other.process.pid,
                )
        if not self._announced and all(self._has_ready_worker(index) for index in range(len(self.slots))):
            self._announced = True
            self._announce()

    def _has_ready_worker(self, index: int) -> bool:
        return any(worker.ready for worker in self._workers_in_slot(index))

    def _workers_in_slot(self, index: int) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.slot == index]

    def _assign_cover(self) -> None:
        """Let another worker accept the connections of a slot without a worker, until it has one again."""
        for index, slot in enumerate(self.slots) if self._announced and self._slots_have_own_sockets else ():
            if self._has_ready_worker(index):
                if slot.cover is not None:
                    slot.cover.send(uncover=index)
                slot.cover = None
            elif slot.cover not in self._workers or slot.cover.retired:
                serving = (
                    worker for worker in self._workers if worker.ready and not worker.retired and worker.slot != index
                )
                slot.cover = next(serving, None)
                if slot.cover is not None:
                    slot.cover.send(cover=index)

    # Starting and stopping

    def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        slot = self.slots[index]
        numbers = [item.fileno() for item in slot.sockets]
        others = {
            position: [item.fileno() for item in other.sockets]
            for position, other in enumerate(self.slots if self._slots_have_own_sockets else ())
            if position != index
        }
        try:
            process = subprocess.Popen(
                self._command,
                pass_fds=[theirs.fileno(), *numbers, *self._internal, *chain.from_iterable(others.values())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **worker_environment(theirs)},
            )
        finally:
            theirs.close()
        worker = WorkerProcess(index, secrets.token_hex(8), process, ours)
        assignment = WorkerAssignment(
            id=worker.id,
            sockets=numbers,
            others=others,
            internal=self._internal,
            key=self.signing_key,
            folder=self._socket_dir,
            options=self._options,
        )
        with suppress(OSError):
            ours.sendall(encode_line(assignment))
        ours.setblocking(False)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _start_missing(self) -> None:
        """Start missing workers, once the first one is ready, and then replacements."""
        if self._stopping or not (self._announced or any(worker.ready for worker in self._workers)):
            return
        now = time.monotonic()
        for index, slot in enumerate(self.slots):
            if all(worker.retired for worker in self._workers_in_slot(index)) and now >= slot.pause_until:
                self._start(index)
        starting = any(not worker.ready and not worker.retired for worker in self._workers)
        # One replacement at a time, so that a reload needs memory for one additional worker only.
        if self._to_replace and not starting and self._announced:
            self._start(self._to_replace.pop(0))

    def _on_exit(self, worker: WorkerProcess) -> None:
        self._forget(worker)
        status = worker.process.returncode
        if worker.retired or self._stopping:
            return
        if not worker.ready and not self._announced:
            # The first workers fail to start: others would fail as well.
            self._status = status if status > 0 else 1
            self.stop()
            return
        if not worker.ready and self._workers_in_slot(worker.slot):
            self._to_replace = []
            log.error("the new worker failed to start (status %d); keeping the old workers", status)
            return
        self._back_off(self.slots[worker.slot], worker)
        log.error("worker %d exited with status %d; restarting it", worker.slot, status)

    def _back_off(self, slot: WorkerSlot, worker: WorkerProcess) -> None:
        """Set the start of the next worker: immediately, unless this one failed soon after its start."""
        now = time.monotonic()
        if worker.ready and now - worker.started_at >= STABLE_AFTER_SECONDS:
            slot.failures = 0
            return
        pause = min(INITIAL_BACKOFF_SECONDS * 2.0**slot.failures, MAX_BACKOFF_SECONDS)
        slot.failures += 1
        # Jitter: workers that failed together, for example with their database, must not all start together.
        slot.pause_until = now + pause * random.uniform(0.75, 1.25)

    def _forget(self, worker: WorkerProcess) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(worker.socket)
        worker.socket.close()
        self._workers.remove(worker)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if (worker.retired or not worker.ready) and now >= worker.deadline:
                log.error(
                    "killing worker %d: it did not %s in time", worker.slot, "stop" if worker.retired else "start"
                )
                worker.process.kill()
                # A process in uninterruptible sleep survives SIGKILL for a while; try again, but do not loop.
                worker.deadline = now + KILL_TIMEOUT_SECONDS


def current_command() -> list[str]:
    """Return the command line with which this process was started."""
    words = sys.orig_argv[1:]
    if not words or hasattr(sys, "ps1"):
        raise UsageError("cannot start workers: this process was not started with a command line that can be repeated")
    return [sys.executable, *words]


@contextmanager
def handle_signals(supervisor: Supervisor) -> Iterator[None]:
    """Stop on SIGTERM and SIGINT, and replace the workers on SIGHUP. Main thread only."""
    terminal = _has_terminal()

    def hangup(*_: Any) -> None:
        # SIGHUP from a closed terminal stops the supervisor.
        (supervisor.stop if terminal and not _has_terminal() else supervisor.reload)()

    handlers: dict[int, Any] = {
        signal.SIGTERM: lambda *_: supervisor.stop(),
        signal.SIGINT: lambda *_: supervisor.stop(),
        signal.SIGHUP: hangup,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
