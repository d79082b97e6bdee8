"""The sessions that a worker has: what is known of them is written down, and at its end they are left to the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from portico.rpc.background_tasks import Errands
from portico.store.errors import StoreError
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_snapshot import SessionMemo
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.session_queries import SessionRow
from portico.transports.http_server.workers.store import MOST_AT_ONCE, FleetRows

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

# How long the answer to a handshake waits for its row; a session without one is there as long as its worker.
WRITE_SECONDS = 1.0


class UnreadableSession(Exception):
    """What was written of a session is not what we write."""


class NoRoom(Exception):
    """There are as many sessions as there may be, and all are in use."""


class OwnSessions:
    """Those that are here."""

    def __init__(self, rows: FleetRows, exchange: Exchange, errands: Errands, lease: WorkerLease) -> None:
        self._rows = rows
        self._lease = lease
        self._exchange = exchange
        self._errands = errands
        # Whether nothing is taken over any more.
        self.retiring = False
        self._paths: dict[str, str] = {}
        # Those that have changed while there was no lease.
        self._unsaved: set[str] = set()
        # Those that are being left to the others: not here any more, and not yet to be found by their rows.
        self._leaving: dict[str, asyncio.Event] = {}
        # Those that are being taken over: their rows may say already that they are here.
        self._arriving: dict[str, asyncio.Event] = {}

    def has(self, id: str) -> bool | None:
        """Whether one is here. None: another worker may have taken it over, as long as our lease is over."""
        if self._lease.is_over and self._rows.may_have(id):
            return None
        return id in self._arriving or any(id in endpoint.sessions for endpoint in self._exchange.endpoints.values())

    def began(self, session: HttpSession, path: str, then: Callable[[], None]) -> None:
        self._paths[session.id] = path
        session.session.on_change = partial(self.changed, session)
        written = self._save(session)
        if written is None:
            then()
        else:
            self._errands.do(_when_written(written, then))

    def changed(self, session: HttpSession) -> None:
        self._save(session)

    def _save(self, session: HttpSession) -> asyncio.Future[None] | None:
        memo = session.memo()
        path = self._paths.get(session.id)
        if memo is None or path is None:
            return None
        if self._lease.is_over:
            # Without a lease it would be anyone's as soon as it is written.
            self._unsaved.add(session.id)
            return None
        return self._rows.save(session.id, path, memo)

    def ended(self, session: HttpSession) -> None:
        self._unsaved.discard(session.id)
        if self._paths.pop(session.id, None) is not None:
            self._rows.remove(session.id)

    async def adopt(self, endpoint: Endpoint, row: SessionRow) -> bool:
        """Go on with one that another worker had. Whether it is here now."""
        # Not by one who leaves as well.
        if self.retiring:
            return False
        arrived = self._arriving[row.id] = asyncio.Event()
        try:
            return await self._rows.adopt(row.id, row.owner) and await self._go_on(endpoint, row)
        finally:
            del self._arriving[row.id]
            arrived.set()

    async def _go_on(self, endpoint: Endpoint, row: SessionRow) -> bool:
        """Be what its row says. Raises UnreadableSession, and NoRoom."""
        try:
            if not self._rows.is_authentic(row):
                raise ValueError("its signature is missing or wrong")
            memo = row.read()
        except (ValueError, msgspec.DecodeError, RecursionError) as failure:
            log.warning("a session has ended, because its row in the store cannot be used: %s", failure)
            self._rows.remove(row.id)
            raise UnreadableSession from None
        self._paths[row.id] = row.path
        try:
            if not await endpoint.restore(row.id, memo):
                raise NoRoom
        except BaseException:
            # Others are not to look for it here.
            self._paths.pop(row.id, None)
            self._errands.do(self._release(row.id))
            raise
        log.debug("took over a session from %s", row.owner)
        return True

    async def _release(self, id: str) -> None:
        try:
            await self._rows.release(id)
        except StoreError as failure:
            log.warning("a session that we cannot go on with is still ours: %s", failure)

    def end_listening(self) -> None:
        """End what clients listen to where another worker may speak to them from now on. What was asked before that is
        still answered: no other worker knows of it."""
        for endpoint in self._exchange.endpoints.values():
            for session in endpoint.sessions.values():
                if self._rows.may_have(session.id):
                    session.end_listening()

    async def drop_taken(self) -> set[str]:
        """Give up what others have taken over, or ended, while we said nothing: nothing is said in two places. Gives
        those that are not here any more."""
        taken = await self._rows.not_ours(list(self._paths))
        for endpoint in self._exchange.endpoints.values():
            for session in endpoint.sessions.values():
                if session.id in taken:
                    self._paths.pop(session.id, None)
                    endpoint.sessions.take_out(session)
                    session.close()
        if taken:
            # Their clients come back, and are sent on.
            log.warning("%d sessions were taken over by other workers, which have not heard of us", len(taken))
        return taken

    def save_unsaved(self) -> None:
        """Write those down that have begun or changed while there was no lease."""
        unsaved, self._unsaved = self._unsaved, set()
        for endpoint in self._exchange.endpoints.values() if unsaved else ():
            for session in endpoint.sessions.values():
                if session.id in unsaved:
                    self._save(session)

    async def give_up(self, breathe: Callable[[], Awaitable[None]] | None = None) -> int:
        """Leave those that nothing is worked on in to the others. Gives how many stay for now.

        Some at a time: the first ones are found elsewhere while the last are still served here; in between others may
        `breathe`.
        """
        self.retiring = True
        stay = 0
        for endpoint in self._exchange.endpoints.values():
            waiting = iter(endpoint.sessions.values())
            while some := list(islice(waiting, MOST_AT_ONCE)):
                given = await self._give_up(endpoint, some)
                stay += len(some) - given
                if given and breathe is not None:
                    await breathe()
        return stay

    async def _give_up(self, endpoint: Endpoint, sessions: list[HttpSession]) -> int:
        given: dict[str, tuple[str, SessionMemo]] = {}
        for session in sessions:
            memo = session.memo(events=True) if session.is_idle and session.id in self._paths else None
            if memo is not None:
                given[session.id] = self._paths.pop(session.id), memo
        # They are gone from here before they can be found elsewhere: nothing is said in two places.
        left = asyncio.Event()
        self._leaving |= dict.fromkeys(given, left)
        for session in sessions:
            if session.id in given:
                endpoint.sessions.take_out(session)
        try:
            if given:
                await self._rows.give_up(given)
        except StoreError as failure:
            # Their rows are still ours: they are found when we are gone, without the last events.
            log.warning("sessions are left to others as they were last written down: %s", failure)
        finally:
            left.set()
            for id in given:
                self._leaving.pop(id, None)
            # Clients come back as soon as their streams end, and then others can find their sessions.
            for session in sessions:
                if session.id in given:
                    session.close()
        return len(given)

    async def when_settled(self, id: str, then: Callable[[], None]) -> None:
        """Once one that is being left can be found by its row, or one that arrives is here; at once for any other."""
        moving = self._leaving.get(id) or self._arriving.get(id)
        if moving is not None:
            await moving.wait()
        then()


async def _when_written(written: asyncio.Future[None], then: Callable[[], None]) -> None:
    await asyncio.wait([written], timeout=WRITE_SECONDS)
    then()
