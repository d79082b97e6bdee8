"""Sessions with one worker each, and spare workers for new sessions."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from msgspec import Struct

from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.forked_worker import ForkedWorkerFactory
from portico_services.livepython.sandbox.landlock import unavailable_reason
from portico_services.livepython.sandbox.limits import MIB, SESSION_CHUNK_BYTES, SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.spare_workers import SpareWorkers, WorkerFactory
from portico_services.livepython.sandbox.spawned_worker import SpawnedWorkerFactory
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import (
    EMPTY_RESULT,
    REPLY_TIMEOUT_SECONDS,
    UNSOLICITED_REPLY,
    PythonWorker,
    WorkerEnded,
    WorkerReply,
)

DEFAULT_SESSION = "main"
# Lost names listed in a message; the rest is only counted.
MAX_REPORTED_NAMES = 10
# The interpreter itself needs this much.
MIN_MEMORY_BYTES = 64 * MIB
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)

# The owner and the name of a session. Owners cannot reach each other's sessions.
SessionKey = tuple[str | None, str]


def validate_session_name(name: str) -> None:
    """Raise InspectionError if `name` is not a valid session name. Valid names are also safe as part of a file name."""
    if not _NAME.fullmatch(name):
        raise InspectionError("A session name must be 1 to 64 letters, digits, dots, dashes or underscores.")


class InterpreterPool(Protocol):
    """Where code runs: sessions in workers, or the application itself."""

    async def open(self) -> None: ...

    async def ready(self) -> None: ...

    async def close(self) -> None: ...

    async def request(self, key: SessionKey, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply: ...

    def sessions(self, owner: str | None) -> list[SessionInfo]: ...

    def reset(self, key: SessionKey) -> bool: ...

    def info(self) -> dict[str, Any]: ...


class PythonSession:
    """Names that persist between calls for as long as their worker lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.worker: PythonWorker | None = None
        self.lock = asyncio.Lock()
        self.evaluations = 0
        self.used = self.started_at = time.monotonic()
        # Why the previous worker ended, until the owner has been notified.
        self.lost_reason: str | None = None
        self.was_restarted = False

    @property
    def busy(self) -> bool:
        """Return whether the session is running code, including cancelled code that has not stopped yet."""
        return self.lock.locked() or (self.worker is not None and self.worker.busy)


class SessionInfo(Struct, rename="camel"):
    """A session in the result of `list_sessions`."""

    name: Annotated[str, "Session name"]
    evaluations: Annotated[int, "Number of evaluations"]
    busy: Annotated[bool, "Whether an evaluation is running"]
    seconds_idle: Annotated[float, "Seconds since the last call"]


class SessionPool:
    """Pool of sessions. A worker that ended is replaced, and the next reply of its session reports it."""

    def __init__(self, starter: WorkerFactory, *, max_sessions: int, warm_workers: int, idle_timeout: float) -> None:
        self.workers = SpareWorkers(starter, warm_workers)
        self.max_sessions = max_sessions
        self.idle_timeout = idle_timeout
        self._sessions: dict[SessionKey, PythonSession] = {}
        # Serializes concurrent first requests: the fork server must be started once.
        self._opening = asyncio.Lock()
        self._open = self._closed = False

    async def open(self) -> None:
        """Open the pool. Raises SandboxUnavailable with the reason if a worker cannot be started."""
        self._closed = False
        await self.ready()

    async def ready(self) -> None:
        """Open the pool if it is not open yet.

        This covers services that are added to a running server or used without one.
        """
        if self._open:
            return
        async with self._opening:
            if self._closed:
                raise SandboxUnavailable("live Python was shut down")
            if not self._open:
                await self.workers.starter.open()
                self.workers.open()
                # Start one worker now, so that a failing sandbox is reported at startup and not by the first call.
                if self.workers.spare:
                    self.workers.waiting.append(await self.workers.starter.start())
                self._open = True

    async def close(self) -> None:
        self._open, self._closed = False, True
        for session in self._sessions.values():
            if session.worker is not None:
                session.worker.kill("the server is ending")
        self._sessions.clear()
        await self.workers.close()

    # Requests

    async def request(self, key: SessionKey, op: str, arguments: Mapping[str, Any], seconds: float) -> WorkerReply:
        """Send a request to the worker of a session and return its reply.

        Raises WorkerEnded if the worker ended during the request, and InspectionError if the session cannot be created.
        """
        await self.ready()
        # A session that was reset while this request waited for its lock is replaced by a new one of the same name.
        while True:
            session = self._session(key)
            async with session.lock:
                # The session may have been reset while the lock was awaited.
                if self._sessions.get(key) is session:
                    return await self._request(session, op, arguments, seconds)

    async def _request(
        self, session: PythonSession, op: str, arguments: Mapping[str, Any], seconds: float
    ) -> WorkerReply:
        session.evaluations += op == "evaluate"
        try:
            answer = await self._request_with_retry(session, op, arguments, seconds)
        except WorkerEnded as end:
            # This error reports the loss, so the next call need not repeat it.
            ended, session.worker = session.worker, None
            end.answer.note, session.lost_reason = session.lost_reason, None
            end.was_rescued = await self._restart_worker(session, ended)
            raise
        finally:
            session.used = time.monotonic()
        answer.note, answer.begun_anew = session.lost_reason, session.was_restarted
        if op == "evaluate":
            session.lost_reason, session.was_restarted = None, False
        return answer

    async def _request_with_retry(
        self, session: PythonSession, op: str, arguments: Mapping[str, Any], seconds: float
    ) -> WorkerReply:
        try:
            return await self._send_operation(session, op, arguments, seconds)
        except WorkerEnded as end:
            # Any other end may be an effect of the request itself; repeating it could repeat that effect.
            if end.reason != UNSOLICITED_REPLY:
                raise
        # The worker may have sent its reply to the previous request, which code had already answered by forging one.
        # Nothing
        # remains of its state, so the request can be retried once.
        return await self._send_operation(session, op, arguments, seconds)

    async def _send_operation(
        self, session: PythonSession, op: str, arguments: Mapping[str, Any], seconds: float
    ) -> WorkerReply:
        # Cancelled code is interrupted but may need a moment to stop; its session is not lost for that.
        if session.worker is not None and session.worker.busy:
            await session.worker.wait_idle()
        if session.worker is not None and session.worker.has_ended:
            ended, session.worker = session.worker, None
            restarted = await self._restart_worker(session, ended)
            how = (
                f"was restarted and lost its names: {ended.reason}."
                if restarted is None
                else f"{restarted} ({ended.reason})."
            )
            session.lost_reason, session.was_restarted = f"Session {session.name!r} {how}", restarted is None
        if session.worker is None:
            session.worker = await self.workers.take()
            session.worker.has_names = True
        return await session.worker.request(op, arguments, seconds)

    async def _restart_worker(self, session: PythonSession, ended: PythonWorker | None) -> str | None:
        """Give a session a new worker, with the names that the previous one saved before it ended.

        Returns a description of the outcome, or None if no names could be restored.
        """
        if ended is None or ended.rescued.about is EMPTY_RESULT:
            # EMPTY_RESULT means that the worker ended without saving its names.
            return None
        names = bytes(ended.rescued.names)
        worker = await self.workers.take()
        worker.has_names = True
        try:
            saved = replies.decode_reply(ended.rescued.about, replies.SavedNamesReport)
            # In chunks that fit into one frame when they are encoded in base64.
            for at in range(0, len(names), SESSION_CHUNK_BYTES):
                part = b64encode(names[at : at + SESSION_CHUNK_BYTES]).decode()
                await worker.request("restore_part", {"at": at, "data": part}, REPLY_TIMEOUT_SECONDS)
            reply = await worker.request("restore", {}, REPLY_TIMEOUT_SECONDS)
            report = replies.decode_reply(reply.result, replies.NamesReport)
        except WorkerEnded:
            return None
        except BaseException as failure:
            worker.kill("its names could not be restored")
            if isinstance(failure, InvalidReply):
                return None
            raise
        session.worker = worker
        failed = [*saved.failed, *report.failed]
        lost = ", ".join(f"{item.name} ({item.reason})" for item in failed[:MAX_REPORTED_NAMES])
        lost += f" and {len(failed) - MAX_REPORTED_NAMES} more" if len(failed) > MAX_REPORTED_NAMES else ""
        return "continues in another process, with its names" + (f", but without {lost}" if lost else "")

    # Sessions

    def _session(self, key: SessionKey) -> PythonSession:
        session = self._sessions.get(key)
        if session is None:
            owner, name = key
            validate_session_name(name)
            if self._held_by(owner) >= self._share(owner):
                self._evict([key for key in self._sessions if key[0] == owner], self.idle_timeout, self._share(owner))
            elif len(self._sessions) >= self.max_sessions:
                self._make_room(owner)
            session = self._sessions[key] = PythonSession(name)
        return session

    def _share(self, owner: str | None) -> int:
        """Return how many sessions an owner may have. An authenticated client gets at most half of them."""
        # Without authentication there is only one owner, the local user, who may use everything.
        return self.max_sessions if owner is None else max(1, self.max_sessions // 2)

    def _held_by(self, owner: str | None) -> int:
        return sum(owner_condition == owner for owner_condition, _ in self._sessions)

    def _make_room(self, owner: str | None) -> None:
        """Evict a session of the owner with the most sessions, if that owner still has no fewer than the newcomer.

        Otherwise evict any session that has been idle for long enough.
        """
        sessions_by_owner = Counter(whose for whose, _ in self._sessions)
        greedy, count = sessions_by_owner.most_common(1)[0]
        # Plus one: after the eviction the newcomer has one more, and must not have more than the evicted owner.
        if count > sessions_by_owner[owner] + 1:
            self._evict([key for key in self._sessions if key[0] == greedy], 0.0, self.max_sessions)
        else:
            self._evict(list(self._sessions), self.idle_timeout, self.max_sessions)

    def _evict(self, among: Sequence[SessionKey], idle_seconds: float, limit: int) -> None:
        """Evict the session that has been idle longest. Raises InspectionError if none was idle for `idle_seconds`."""
        # Running code is never evicted.
        idle = [key for key in among if not self._sessions[key].busy]
        oldest = min(idle, key=lambda key: self._sessions[key].used, default=None)
        if oldest is None or time.monotonic() - self._sessions[oldest].used < idle_seconds:
            raise InspectionError(f"The limit of {limit} sessions is reached: reset one that is no longer needed.")
        self._close_session(oldest)

    def _close_session(self, key: SessionKey) -> None:
        session = self._sessions.pop(key)
        if session.worker is not None:
            session.worker.kill("the session was reset")

    def sessions(self, owner: str | None) -> list[SessionInfo]:
        now = time.monotonic()
        return [
            SessionInfo(session.name, session.evaluations, session.busy, round(now - session.used, 1))
            for (owner_id, _), session in self._sessions.items()
            if owner_id == owner
        ]

    def info(self) -> dict[str, Any]:
        limits = self.workers.starter.limits
        return {
            "python": self.workers.starter.version,
            "mostSessions": self.max_sessions,
            "memory": limits.memory_bytes,
            "cpuSeconds": limits.cpu_seconds,
            "threads": limits.max_threads,
            "scratch": limits.scratch_bytes,
            "output": limits.max_output_bytes,
            **({"projectPackages": self.workers.starter.packages} if self.workers.starter.packages else {}),
        }

    def reset(self, key: SessionKey) -> bool:
        """Drop a session and kill its worker, even while it is busy. Return False if it does not exist."""
        if key not in self._sessions:
            return False
        self._close_session(key)
        return True


SandboxKind = Literal["linux", "wasm", "none"]
# The description of each sandbox in `system_info`.
SANDBOX_KINDS: Mapping[SandboxKind, str] = {
    "linux": "in a Linux sandbox",
    "wasm": "in WebAssembly",
    "none": "UNSAFE: without a sandbox",
}


def create_session_pool(
    python: str,
    limits: SandboxLimits,
    *,
    sandbox: SandboxKind,
    readable_paths: Sequence[str],
    project_dirs: Sequence[str],
    preload: Sequence[str],
    **bounds: Any,
) -> SessionPool:
    """Return a pool of sessions whose code runs in the given sandbox.

    Raises SandboxUnavailable with the reason if that sandbox is not available.
    """
    if sandbox == "wasm" and project_dirs:
        raise SandboxUnavailable("project_dirs needs a file system, which sandbox = 'wasm' does not have")
    if limits.memory_bytes < MIN_MEMORY_BYTES:
        raise SandboxUnavailable(
            f"memory_bytes must be at least {MIN_MEMORY_BYTES} ({MIN_MEMORY_BYTES // MIB} MiB), the need of Python "
            f"itself, got {limits.memory_bytes}"
        )
    # Never fall back to a weaker sandbox: whether code may run without isolation is the operator's decision.
    reason = unavailable_reason(limits) if sandbox == "linux" else None
    if reason is not None:
        raise SandboxUnavailable(
            f"{reason}. Set sandbox to 'wasm', or to 'none' if code may do whatever the server's user may do"
        )
    if sandbox == "wasm":
        return SessionPool(SpawnedWorkerFactory(python, limits), **bounds)
    starter = ForkedWorkerFactory(
        python, limits, readable=readable_paths, projects=project_dirs, preload=preload, sandboxed=sandbox == "linux"
    )
    return SessionPool(starter, **bounds)
