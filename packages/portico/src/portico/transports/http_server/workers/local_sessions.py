"""Sessions of one worker: stored so that others can take them over, and released when the worker ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from portico.rpc.supervision import BackgroundTasks
from portico.store.errors import StoreError
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_snapshot import SessionSnapshot
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.session_queries import SessionRow
from portico.transports.http_server.workers.store import MAX_ROWS_PER_STATEMENT, WorkerStore

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

# How long the response to a handshake waits for its row. A session without a row lives as long as its worker.
WRITE_TIMEOUT_SECONDS = 1.0


class SessionNotFound(Exception):
    """The session does not exist, or its stored snapshot is invalid."""


class SessionLimitReached(Exception):
    """The session limit is reached, and all sessions are in use."""


class LocalSessions:
    """Sessions of this worker."""

    def __init__(
        self, store: WorkerStore, application: HttpApplication, background_tasks: BackgroundTasks, lease: WorkerLease
    ) -> None:
        self._store = store
        self._lease = lease
        self._application = application
        self._background_tasks = background_tasks
        # Whether the worker no longer takes over sessions.
        self.retiring = False
        self._paths: dict[str, str] = {}
        # Sessions that changed while there was no lease.
        self._unsaved: set[str] = set()
        # Sessions being released: no longer here, and not yet available through their rows.
        self._releasing: dict[str, asyncio.Event] = {}
        # Sessions being taken over: their rows may already name this worker.
        self._restoring: dict[str, asyncio.Event] = {}

    def has(self, id: str) -> bool | None:
        """Return whether a session is here. None if the lease has expired, so that another worker may have taken it
        over.
        """
        if self._lease.is_expired and self._store.may_be_stored(id):
            return None
        return id in self._restoring or any(
            id in endpoint.sessions for endpoint in self._application.endpoints.values()
        )

    def on_session_started(self, session: HttpSession, path: str, callback: Callable[[], None]) -> None:
        self._paths[session.id] = path
        session.session.on_change = partial(self.on_session_changed, session)
        written = self._save(session)
        if written is None:
            callback()
        else:
            self._background_tasks.start(_call_when_written(written, callback))

    def on_session_changed(self, session: HttpSession) -> None:
        self._save(session)

    def _save(self, session: HttpSession) -> asyncio.Future[None] | None:
        memo = session.snapshot()
        path = self._paths.get(session.id)
        if memo is None or path is None:
            return None
        if self._lease.is_expired:
            # Without a lease, other workers could take it over as soon as it is written.
            self._unsaved.add(session.id)
            return None
        return self._store.save_session(session.id, path, memo)

    def on_session_ended(self, session: HttpSession) -> None:
        self._unsaved.discard(session.id)
        if self._paths.pop(session.id, None) is not None:
            self._store.remove_session(session.id)

    async def take_over(self, endpoint: Endpoint, row: SessionRow) -> bool:
        """Take over a session from another worker. Return whether it is here now."""
        # A retiring worker must not take over sessions.
        if self.retiring:
            return False
        arrived = self._restoring[row.id] = asyncio.Event()
        try:
            # Compare-and-swap on the owner column: of several workers that try it, exactly one succeeds.
            return await self._store.take_over_session(row.id, row.owner) and await self._restore(endpoint, row)
        finally:
            del self._restoring[row.id]
            arrived.set()

    async def _restore(self, endpoint: Endpoint, row: SessionRow) -> bool:
        """Restore a session from its row. Raises `SessionNotFound` and `SessionLimitReached`."""
        try:
            # A session row contains a principal. Without the check, write access to the database would be
            # enough to impersonate any user.
            if not self._store.is_authentic(row):
                raise ValueError("the signature is missing or invalid")
            memo = row.decode_snapshot()
        except (ValueError, msgspec.DecodeError, RecursionError) as failure:
            log.warning("ended a session because its stored row is invalid: %s", failure)
            self._store.remove_session(row.id)
            raise SessionNotFound from None
        self._paths[row.id] = row.path
        try:
            if not await endpoint.restore_session(row.id, memo):
                raise SessionLimitReached
        except BaseException:
            # Other workers must not look for it here.
            self._paths.pop(row.id, None)
            self._background_tasks.start(self._release(row.id))
            raise
        log.debug("took over a session from %s", row.owner)
        return True

    async def _release(self, id: str) -> None:
        try:
            await self._store.release_session(id)
        except StoreError as failure:
            log.warning("could not release a session that failed to restore: %s", failure)

    def end_get_streams(self) -> None:
        """End the GET streams of sessions that another worker may serve from now on. Earlier requests are still
        answered: no other worker knows of them.
        """
        for endpoint in self._application.endpoints.values():
            for session in endpoint.sessions.values():
                if self._store.may_be_stored(session.id):
                    session.end_get_streams()

    async def drop_lost_sessions(self) -> set[str]:
        """Drop the sessions that other workers took over or ended, so that no session is served twice. Return their
        ids.
        """
        lost = await self._store.find_lost_sessions(list(self._paths))
        for endpoint in self._application.endpoints.values():
            for session in endpoint.sessions.values():
                if session.id in lost:
                    self._paths.pop(session.id, None)
                    endpoint.sessions.detach(session)
                    session.close()
        if lost:
            # Their clients reconnect, and are routed to the new owners.
            log.warning("%d sessions were taken over by other workers because this worker's lease expired", len(lost))
        return lost

    def save_pending(self) -> None:
        """Write the sessions that started or changed while there was no lease."""
        unsaved, self._unsaved = self._unsaved, set()
        for endpoint in self._application.endpoints.values() if unsaved else ():
            for session in endpoint.sessions.values():
                if session.id in unsaved:
                    self._save(session)

    async def release_idle(self, throttle: Callable[[], Awaitable[None]] | None = None) -> int:
        """Release idle sessions to the other workers. Return how many sessions remain for now.

        Sessions are released in batches: the first are available elsewhere while the last are still served here.
        `throttle` is awaited between batches.
        """
        self.retiring = True
        stay = 0
        for endpoint in self._application.endpoints.values():
            waiting = iter(endpoint.sessions.values())
            while some := list(islice(waiting, MAX_ROWS_PER_STATEMENT)):
                released = await self._release_batch(endpoint, some)
                stay += len(some) - released
                if released and throttle is not None:
                    await throttle()
        return stay

    async def _release_batch(self, endpoint: Endpoint, sessions: list[HttpSession]) -> int:
        released: dict[str, tuple[str, SessionSnapshot]] = {}
        for session in sessions:
            memo = session.snapshot(include_events=True) if session.is_idle and session.id in self._paths else None
            if memo is not None:
                released[session.id] = self._paths.pop(session.id), memo
        # They are detached here before others can find them, so that no session is served twice.
        left = asyncio.Event()
        self._releasing |= dict.fromkeys(released, left)
        for session in sessions:
            if session.id in released:
                endpoint.sessions.detach(session)
        try:
            if released:
                await self._store.release_sessions(released)
        except StoreError as failure:
            # The rows still belong to this worker: sessions are found after it exits, without the last events.
            log.warning("released sessions without their latest state: %s", failure)
        finally:
            left.set()
            for id in released:
                self._releasing.pop(id, None)
            # Clients reconnect as soon as their streams end; by then others can find the sessions.
            for session in sessions:
                if session.id in released:
                    session.close()
        return len(released)

    async def call_when_settled(self, id: str, callback: Callable[[], None]) -> None:
        """Call `callback` when a session in transit is available through its row or restored here. Immediately for
        others.
        """
        moving = self._releasing.get(id) or self._restoring.get(id)
        if moving is not None:
            await moving.wait()
        callback()


async def _call_when_written(written: asyncio.Future[None], callback: Callable[[], None]) -> None:
    await asyncio.wait([written], timeout=WRITE_TIMEOUT_SECONDS)
    callback()
