"""Sessions, each with a worker of its own, and a few workers more that wait for the next session."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Struct

from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.forked_worker import Forking
from portico_services.livepython.sandbox.landlock import obstacle
from portico_services.livepython.sandbox.limits import MIB, PART, Limits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.spawned_worker import Spawning
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import (
    NOTHING,
    REPLY_SECONDS,
    UNASKED,
    PythonWorker,
    WorkerEnded,
    WorkerReply,
)

log = logging.getLogger("portico")

MAIN = "main"
# Names that a session goes on without.
MOST_TOLD = 10
# What Python takes by itself.
SMALLEST_MEMORY = 64 * MIB
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

# The owner of a session, and its name. No owner reaches the session of another.
Key = tuple[str | None, str]


def check_name(name: str) -> None:
    """Raises InspectionError if no session can have this name. One that can is also a part of a file's name."""
    if not _NAME.fullmatch(name):
        raise InspectionError("A session's name is 1 to 64 letters, digits, dots, dashes and underscores.")


class Starter(Protocol):
    """Makes workers that are ready to be asked."""

    version: str
    # The packages of projects.
    packages: list[str]
    limits: Limits

    async def open(self) -> None: ...

    async def start(self) -> PythonWorker: ...

    async def close(self) -> None: ...


class Interpreters(Protocol):
    """Where code runs: sessions in workers, or the application itself."""

    async def open(self) -> None: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, key: Key, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply: ...

    def sessions(self, owner: str | None) -> list[SessionInfo]: ...

    def reset(self, key: Key) -> bool: ...

    def info(self) -> dict[str, Any]: ...


class LiveSession:
    """Names that last from call to call, as long as the worker does that has them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.worker: PythonWorker | None = None
        self.lock = asyncio.Lock()
        self.evaluations = 0
        self.used = self.begun = time.monotonic()
        # What became of the worker before this one, until its owner has been told.
        self.loss: str | None = None
        self.begun_anew = False

    @property
    def busy(self) -> bool:
        """Also with what was cancelled and has not stopped yet."""
        return self.lock.locked() or (self.worker is not None and self.worker.busy)


class SessionInfo(Struct, rename="camel"):
    """What a list of sessions says of one."""

    name: Annotated[str, "Its name"]
    evaluations: Annotated[int, "How many expressions it has evaluated"]
    busy: Annotated[bool, "Whether it evaluates one now"]
    seconds_idle: Annotated[float, "For how long it has had nothing to do"]


class SessionPool:
    """Asks on behalf of sessions. A worker that has ended is replaced, and the session says so."""

    def __init__(self, starter: Starter, *, most: int, spare: int, idle: float) -> None:
        self.starter = starter
        self.most = most
        self.spare = spare
        self.idle = idle
        self._sessions: dict[Key, LiveSession] = {}
        self._spares: deque[PythonWorker] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._open = self._closed = False

    async def open(self) -> None:
        """Raises SandboxUnavailable with the reason if a worker cannot be made."""
        self._closed = False
        await self.ready()

    async def ready(self) -> None:
        """Open by now, also when it was added to a server that was running already, or is used without one."""
        if self._open:
            return
        async with self._opening:
            if self._closed:
                raise SandboxUnavailable("live Python has ended")
            if not self._open:
                await self.starter.open()
                if self.spare:
                    self._spares.append(await self.starter.start())
                self._open = True

    async def close(self) -> None:
        self._open, self._closed = False, True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        for worker in [*self._spares, *(one.worker for one in self._sessions.values() if one.worker)]:
            worker.kill("the server is ending")
        self._spares.clear()
        self._sessions.clear()
        await self.starter.close()

    # Asking

    async def ask(self, key: Key, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        """Raises WorkerEnded if the worker ended over this, InspectionError if there can be no such session."""
        await self.ready()
        while True:
            session = self._session(key)
            async with session.lock:
                # It may have been reset while we waited for it.
                if self._sessions.get(key) is session:
                    return await self._asked(session, op, arguments, seconds)

    async def _asked(self, session: LiveSession, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        session.evaluations += op == "evaluate"
        try:
            answer = await self._insist(session, op, arguments, seconds)
        except WorkerEnded as end:
            # The caller is told, so the next one need not be.
            ended, session.worker = session.worker, None
            end.answer.note, session.loss = session.loss, None
            end.kept = await self._revive(session, ended)
            raise
        finally:
            session.used = time.monotonic()
        answer.note, answer.begun_anew = session.loss, session.begun_anew
        if op == "evaluate":
            session.loss, session.begun_anew = None, False
        return answer

    async def _insist(self, session: LiveSession, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        try:
            return await self._ask(session, op, arguments, seconds)
        except WorkerEnded as end:
            if end.reason != UNASKED:
                raise
        # It may have answered what was asked before, which code had answered already in its name. Nothing is left of
        # what it did, so it can be asked again, once.
        return await self._ask(session, op, arguments, seconds)

    async def _ask(self, session: LiveSession, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        if session.worker is not None and session.worker.busy:
            await session.worker.settled()
        if session.worker is not None and session.worker.ended:
            ended, session.worker = session.worker, None
            kept = await self._revive(session, ended)
            how = f"begins anew, without its names: {ended.reason}." if kept is None else f"{kept} ({ended.reason})."
            session.loss, session.begun_anew = f"Session {session.name!r} {how}", kept is None
        if session.worker is None:
            session.worker = await self._take()
            session.worker.has_names = True
        return await session.worker.ask(op, arguments, seconds)

    async def _revive(self, session: LiveSession, ended: PythonWorker | None) -> str | None:
        """Give a session another worker, with the names that the one before has saved in its last moment. In words what
        came of it; None if there is nothing left of them."""
        if ended is None or ended.rescued.about is NOTHING:
            return None
        names = bytes(ended.rescued.names)
        worker = await self._take()
        worker.has_names = True
        try:
            saved = replies.read(ended.rescued.about, replies.NamesSaved)
            for at in range(0, len(names), PART):
                part = b64encode(names[at : at + PART]).decode()
                await worker.ask("restore_part", {"at": at, "data": part}, REPLY_SECONDS)
            said = await worker.ask("restore", {}, REPLY_SECONDS)
            told = replies.read(said.result, replies.NamesTold)
        except WorkerEnded:
            return None
        except BaseException as failure:
            worker.kill("its names could not be restored")
            if isinstance(failure, InvalidReply):
                return None
            raise
        session.worker = worker
        failed = [*saved.failed, *told.failed]
        lost = ", ".join(f"{one.name} ({one.reason})" for one in failed[:MOST_TOLD])
        lost += f" and {len(failed) - MOST_TOLD} more" if len(failed) > MOST_TOLD else ""
        return "goes on in another process, with its names" + (f", but without {lost}" if lost else "")

    async def _take(self) -> PythonWorker:
        worker = None
        while self._spares and (worker is None or worker.ended):
            worker = self._spares.popleft()
        if worker is None or worker.ended:
            worker = await self.starter.start()
        self._fill()
        return worker

    def _fill(self) -> None:
        if self._open and len(self._spares) < self.spare and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._start_spares())

    async def _start_spares(self) -> None:
        while len(self._spares) < self.spare:
            try:
                self._spares.append(await self.starter.start())
            except SandboxUnavailable as reason:
                # The next session that needs one will be told.
                log.warning("no worker for live Python: %s", reason)
                return

    # Sessions

    def _session(self, key: Key) -> LiveSession:
        session = self._sessions.get(key)
        if session is None:
            owner, name = key
            check_name(name)
            if self._held_by(owner) >= self._share(owner):
                self._evict([key for key in self._sessions if key[0] == owner], self.idle, self._share(owner))
            elif len(self._sessions) >= self.most:
                self._make_room(owner)
            session = self._sessions[key] = LiveSession(name)
        return session

    def _share(self, owner: str | None) -> int:
        """How many sessions an owner may have. Where clients log in, none of them may take every one."""
        return self.most if owner is None else max(1, self.most // 2)

    def _held_by(self, owner: str | None) -> int:
        return sum(whose == owner for whose, _ in self._sessions)

    def _make_room(self, owner: str | None) -> None:
        """Take a session from the owner who has most of them, if that is more than the newcomer then has."""
        held = Counter(whose for whose, _ in self._sessions)
        greedy, count = held.most_common(1)[0]
        if count > held[owner] + 1:
            self._evict([key for key in self._sessions if key[0] == greedy], 0.0, self.most)
        else:
            self._evict(list(self._sessions), self.idle, self.most)

    def _evict(self, among: Sequence[Key], idle_seconds: float, most: int) -> None:
        """Drop the session that was idle for longest, if for so many seconds. Raises InspectionError if none was."""
        idle = [key for key in among if not self._sessions[key].busy]
        oldest = min(idle, key=lambda key: self._sessions[key].used, default=None)
        if oldest is None or time.monotonic() - self._sessions[oldest].used < idle_seconds:
            raise InspectionError(f"There are {most} sessions already: reset one that is not needed any more.")
        self._drop(oldest)

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key)
        if session.worker is not None:
            session.worker.kill("the session was reset")

    def sessions(self, owner: str | None) -> list[SessionInfo]:
        now = time.monotonic()
        return [
            SessionInfo(one.name, one.evaluations, one.busy, round(now - one.used, 1))
            for (whose, _), one in self._sessions.items()
            if whose == owner
        ]

    def info(self) -> dict[str, Any]:
        limits = self.starter.limits
        return {
            "python": self.starter.version,
            "mostSessions": self.most,
            "memory": limits.memory,
            "cpuSeconds": limits.cpu,
            "threads": limits.threads,
            "scratch": limits.scratch,
            "output": limits.output,
            **({"projectPackages": self.starter.packages} if self.starter.packages else {}),
        }

    def reset(self, key: Key) -> bool:
        """Forget a session and end its worker, whatever that is doing. False if there is none."""
        if key not in self._sessions:
            return False
        self._drop(key)
        return True


def session_pool(
    python: str,
    limits: Limits,
    *,
    strict: bool,
    unsafe: bool,
    readable: Sequence[str],
    projects: Sequence[str],
    preload: Sequence[str],
    **bounds: Any,
) -> SessionPool:
    """Sessions whose code runs in a Linux sandbox, in WebAssembly (`strict`), or in no jail at all (`unsafe`).

    Raises SandboxUnavailable with the reason where that cannot be done.
    """
    if strict and unsafe:
        raise SandboxUnavailable("live Python is strict or unsafe, not both")
    if strict and projects:
        raise SandboxUnavailable("strict Python has no files, so it has no projects either")
    if limits.memory < SMALLEST_MEMORY:
        raise SandboxUnavailable(f"Python itself needs {SMALLEST_MEMORY // MIB} MiB of memory")
    reason = None if strict or unsafe else obstacle(limits)
    if reason is not None:
        raise SandboxUnavailable(f"{reason}. Set strict to true, or unsafe if code may do whatever you may do")
    if strict:
        return SessionPool(Spawning(python, limits), **bounds)
    starter = Forking(python, limits, readable=readable, projects=projects, preload=preload, jailed=not unsafe)
    return SessionPool(starter, **bounds)
