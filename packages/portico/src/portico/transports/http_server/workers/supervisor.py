"""One process that answers nothing: it opens the sockets, starts the workers, and starts another for each that ends.

Workers are started anew with the command line of the supervisor, and not forked: what a process has made for itself
(ids, keys, threads, connections to a database) is never there twice. The listening sockets stay open here, so that
connections wait in them while a worker is replaced.
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
from portico.transports.http_server.workers.assignment import LONGEST_LINE, Assignment, variable

log = logging.getLogger("portico")

MOST_COVERED = 64

# A worker that lived for so long did not fail at its start.
SETTLED_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
# How long a worker may take to be ready; and to end, beyond the grace that its calls have.
START_SECONDS = 60.0
# How often it is looked whether a process has ended that is about to.
ENDING_SECONDS = 0.01
END_SECONDS = 5.0


class WorkerProcess:
    """A worker as its supervisor sees it."""

    def __init__(self, slot: int, id: str, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self.slot = slot
        self.id = id
        self.process = process
        self.line = line
        self.began = time.monotonic()
        self.ready = False
        # It was told to end; and when that is no longer waited for.
        self.retired = False
        # Its side of the line is closed, so it ends.
        self.gone = False
        self.deadline = self.began + START_SECONDS
        self._read = b""

    def hear(self) -> list[dict[str, Any]] | None:
        """What it has said; None when its side of the line is closed."""
        try:
            data = self.line.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self._read += data
        if not data or len(self._read) > LONGEST_LINE:
            return None
        *lines, self._read = self._read.split(b"\n")
        return [msgspec.json.decode(one) for one in lines]

    def tell(self, **what: Any) -> None:
        with suppress(OSError):
            self.line.sendall(msgspec.json.encode(what) + b"\n")

    def end(self, seconds: float) -> None:
        """Ask it to end; after so many seconds it is ended."""
        self.retired = True
        self.deadline = time.monotonic() + seconds
        with suppress(ProcessLookupError):
            self.process.terminate()

    def retire(self, seconds: float) -> None:
        """The same for one whose place another has taken: it lets its clients go first."""
        self.retired = True
        self.deadline = time.monotonic() + seconds
        self.tell(retire=True)


class Slot(Struct):
    """The place of one worker at a time: the sockets that it listens on, and how often it has failed."""

    sockets: list[socket.socket]
    failures: int = 0
    # When the next one is started, where one has just failed.
    pause_until: float = 0.0
    # The worker of another place that takes its connections meanwhile.
    cover: WorkerProcess | None = None


class Supervisor:
    """Runs workers until it is told to stop.

    `ready` is called once, when all of them listen. `command` is what each is started with.
    """

    def __init__(
        self,
        sockets: list[list[socket.socket]],
        *,
        folder: str,
        options: dict[str, Any],
        grace: float,
        command: list[str] | None = None,
        ready: Callable[[], None] = lambda: None,
        internal: Sequence[socket.socket] = (),
    ) -> None:
        self._internal = [one.fileno() for one in internal]
        self.slots = [Slot(one) for one in sockets]
        self.key = secrets.token_bytes(32)
        self._folder = folder
        self._options = options
        self._grace = grace
        self._command = command or own_command()
        self._announce = ready
        self._announced = False
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._waking, self._wake = socket.socketpair()
        self._waking.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._waking, selectors.EVENT_READ)
        self._stopping = False
        # The slots whose workers are to be replaced, in order.
        self._to_replace: list[int] = []
        self._status = 0
        # Whether each place has sockets of its own; with very many of them each waits for its own worker.
        self._are_apart = 1 < len(sockets) <= MOST_COVERED and sockets[0][0] is not sockets[1][0]

    # What others tell it, from any thread or signal

    def stop(self) -> None:
        self._say(b"s")

    def replace_all(self) -> None:
        self._say(b"r")

    def _say(self, word: bytes) -> None:
        with suppress(OSError):
            self._wake.send(word)

    # Running

    def run(self) -> int:
        """Returns the exit status: 0, or that of a worker that could not even begin."""
        try:
            self._start(0)
            while self._workers or not self._stopping:
                self._turn()
            return self._status
        finally:
            for worker in list(self._workers):
                worker.process.kill()
                worker.process.wait()
                self._forget(worker)
            self._selector.close()
            self._waking.close()
            self._wake.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self._waking:
                self._obey()
            else:
                self._listen(key.data)
        for worker in list(self._workers):
            if worker.process.poll() is not None:
                self._ended(worker)
        self._end_late()
        self._fill()
        self._cover()

    def _patience(self) -> float:
        """Until something is due."""
        if any(worker.gone for worker in self._workers):
            return ENDING_SECONDS
        due = [worker.deadline for worker in self._workers if worker.retired or not worker.ready]
        due += [slot.pause_until for index, slot in enumerate(self.slots) if not self._at(index)]
        return max(0.0, min([*due, time.monotonic() + 60.0]) - time.monotonic())

    def _obey(self) -> None:
        words = b""
        with suppress(OSError):
            words = self._waking.recv(4096)
        if b"s" in words and not self._stopping:
            self._stopping = True
            self._to_replace = []
            for worker in self._workers:
                worker.end(self._grace + END_SECONDS)
        if b"r" in words and not self._stopping:
            self._to_replace = list(range(len(self.slots)))
            log.info("replacing %d workers, one by one", len(self.slots))

    def _listen(self, worker: WorkerProcess) -> None:
        said = worker.hear()
        if said is None:
            self._selector.unregister(worker.line)
            worker.gone = True
            return
        for one in said:
            if one.get("ready"):
                self._became_ready(worker)

    def _became_ready(self, worker: WorkerProcess) -> None:
        worker.ready = True
        for other in self._at(worker.slot):
            if other is not worker and not other.retired:
                other.retire(self._grace + END_SECONDS)
                log.info(
                    "worker %d has another process: %d in place of %d",
                    worker.slot,
                    worker.process.pid,
                    other.process.pid,
                )
        if not self._announced and all(self._is_served(index) for index in range(len(self.slots))):
            self._announced = True
            self._announce()

    def _is_served(self, index: int) -> bool:
        return any(worker.ready for worker in self._at(index))

    def _at(self, index: int) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.slot == index]

    def _cover(self) -> None:
        """Connections to a place without a worker wait there, so another worker takes them, until it has one again."""
        for index, slot in enumerate(self.slots) if self._announced and self._are_apart else ():
            if self._is_served(index):
                if slot.cover is not None:
                    slot.cover.tell(uncover=index)
                slot.cover = None
            elif slot.cover not in self._workers or slot.cover.retired:
                serving = (one for one in self._workers if one.ready and not one.retired and one.slot != index)
                slot.cover = next(serving, None)
                if slot.cover is not None:
                    slot.cover.tell(cover=index)

    # Starting and ending

    def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        slot = self.slots[index]
        numbers = [one.fileno() for one in slot.sockets]
        others = {
            place: [one.fileno() for one in other.sockets]
            for place, other in enumerate(self.slots if self._are_apart else ())
            if place != index
        }
        try:
            process = subprocess.Popen(
                self._command,
                pass_fds=[theirs.fileno(), *numbers, *self._internal, *chain.from_iterable(others.values())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **variable(theirs)},
            )
        finally:
            theirs.close()
        worker = WorkerProcess(index, secrets.token_hex(8), process, ours)
        assignment = Assignment(
            id=worker.id,
            sockets=numbers,
            others=others,
            internal=self._internal,
            key=self.key,
            folder=self._folder,
            options=self._options,
        )
        with suppress(OSError):
            ours.sendall(msgspec.json.encode(assignment) + b"\n")
        ours.setblocking(False)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _fill(self) -> None:
        """Start what is missing: after the first worker is ready the others, and then what is to be replaced."""
        if self._stopping or not (self._announced or any(worker.ready for worker in self._workers)):
            return
        now = time.monotonic()
        for index, slot in enumerate(self.slots):
            if all(worker.retired for worker in self._at(index)) and now >= slot.pause_until:
                self._start(index)
        starting = any(not worker.ready and not worker.retired for worker in self._workers)
        if self._to_replace and not starting and self._announced:
            self._start(self._to_replace.pop(0))

    def _ended(self, worker: WorkerProcess) -> None:
        self._forget(worker)
        status = worker.process.returncode
        if worker.retired or self._stopping:
            return
        if not worker.ready and not self._announced:
            # The first ones do not even begin: neither would others.
            self._status = status if status > 0 else 1
            self.stop()
            return
        if not worker.ready and self._at(worker.slot):
            self._to_replace = []
            log.error("the new worker did not begin (status %d): the old ones stay", status)
            return
        self._pause(self.slots[worker.slot], worker)
        log.error("worker %d ended with status %d, and is started again", worker.slot, status)

    def _pause(self, slot: Slot, worker: WorkerProcess) -> None:
        """The next one comes at once, unless this one has failed soon after its start."""
        now = time.monotonic()
        if worker.ready and now - worker.began >= SETTLED_SECONDS:
            slot.failures = 0
            return
        pause = min(FIRST_PAUSE_SECONDS * 2.0**slot.failures, LONGEST_PAUSE_SECONDS)
        slot.failures += 1
        slot.pause_until = now + pause * random.uniform(0.75, 1.25)

    def _forget(self, worker: WorkerProcess) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(worker.line)
        worker.line.close()
        self._workers.remove(worker)

    def _end_late(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if (worker.retired or not worker.ready) and now >= worker.deadline:
                log.error("worker %d does not %s, and is killed", worker.slot, "end" if worker.retired else "begin")
                worker.process.kill()
                worker.deadline = now + END_SECONDS


def own_command() -> list[str]:
    """What this process was started with."""
    words = sys.orig_argv[1:]
    if not words or hasattr(sys, "ps1"):
        raise UsageError("workers are started with the command of their supervisor, and this process has none")
    return [sys.executable, *words]


@contextmanager
def obeying_signals(supervisor: Supervisor) -> Iterator[None]:
    """SIGTERM and SIGINT stop it, SIGHUP replaces the workers. Only in the main thread."""
    terminal = _has_terminal()

    def hangup(*_: Any) -> None:
        # Whose terminal is closed ends with it.
        (supervisor.stop if terminal and not _has_terminal() else supervisor.replace_all)()

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
