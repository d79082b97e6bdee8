"""The other workers, as one of them sees them: which of them has a session, and how a request gets there.

A session is with the worker that its id names, or with the one that its row names since. A request for it that comes
to another worker is sent on, once; when the worker that had it is gone, the one that was asked takes it over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from portico.auth.principal import Principal
from portico.fleet import sending
from portico.fleet.rows import FleetRows, SessionRow, opened
from portico.fleet.signing import Forwarding, Forwardings, SessionIds
from portico.store.database import when_ready
from portico.store.errors import StoreError
from portico.transport.http import refusals
from portico.transport.http.elsewhere import SENT_ON
from portico.transport.http.exchange import Exchange
from portico.transport.http.memo import SessionMemo
from portico.transport.http.place import BACKLOG
from portico.transport.http.response import Answer, Request, ResponseWriter
from portico.transport.http.sessions import HttpSession

if TYPE_CHECKING:
    from portico.transport.http.endpoint import Endpoint

log = logging.getLogger("portico")

RENEW_SECONDS = 5.0
SWEEP_SECONDS = 300.0
# How long the answer to a handshake waits for its row; a session without one is there as long as its worker.
WRITE_SECONDS = 1.0
MOST_TRIES = 4
MOST_HOPS = 2
MOST_KNOWN = 100_000

Again = Callable[[Request, ResponseWriter], Any]


class Fleet:
    """One worker's knowledge of the others."""

    def __init__(self, id: str, key: bytes, folder: str, store: str, exchange: Exchange) -> None:
        self.id = id
        self.retiring = False
        self._ids = SessionIds(key, id)
        self._envelopes = Forwardings(key)
        self._folder = folder
        self._store = store
        self._exchange = exchange
        self._rows: FleetRows | None = None
        self._tending: asyncio.Task[None] | None = None
        # Sessions that are not where their ids say.
        self._moved: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        self._adopting: dict[str, asyncio.Lock] = {}
        self._errands: set[asyncio.Task[None]] = set()
        # Sessions that are being left to the others: not here any more, and not yet to be found by their rows.
        self._leaving: dict[str, asyncio.Event] = {}

    # From the beginning to the end

    async def start(self) -> socket.socket:
        """Be one of them. Gives the socket by which the others reach us."""
        self._rows = await when_ready(partial(opened, self._store, self.id))
        self._tending = asyncio.get_running_loop().create_task(self._tend(self._rows))
        self._exchange.join(self)
        return _listening(self._path(self.id))

    async def _tend(self, rows: FleetRows) -> None:
        swept = time.monotonic()
        while True:
            try:
                await rows.renew(None)
                if time.monotonic() - swept > SWEEP_SECONDS:
                    swept = time.monotonic()
                    await rows.sweep(self._exchange.settings.idle_session)
            except StoreError as failure:
                log.warning("the other workers are not told that we are here: %s", failure)
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.8, 1.2))

    async def close(self) -> None:
        for task in (*self._errands, self._tending):
            if task is not None:
                task.cancel()
        if self._rows is not None:
            await self._rows.leave()
            await self._rows.close()
        try:
            os.unlink(self._path(self.id))
        except OSError:
            pass

    def _path(self, worker: str) -> str:
        return os.path.join(self._folder, worker)

    # Sessions that are here

    def new_id(self) -> str:
        return self._ids.make()

    def began(self, session: HttpSession, path: str, then: Callable[[], None]) -> None:
        self._paths[session.id] = path
        session.session.on_change = partial(self.changed, session)
        written = self._save(session)
        if written is None:
            then()
        else:
            self._do(_when_written(written, then))

    def changed(self, session: HttpSession) -> None:
        self._save(session)

    def _save(self, session: HttpSession) -> asyncio.Future[None] | None:
        memo = session.memo()
        path = self._paths.get(session.id)
        if memo is None or path is None or self._rows is None:
            return None
        return self._rows.save(session.id, path, memo)

    def ended(self, session: HttpSession) -> None:
        if self._paths.pop(session.id, None) is not None and self._rows is not None:
            self._rows.remove(session.id)

    async def give_up(self) -> int:
        """Leave the sessions that nothing is worked on in to the others. Gives how many stay for now."""
        self.retiring = True
        stay = 0
        given: dict[str, tuple[str, SessionMemo]] = {}
        leaving: list[tuple[Endpoint, HttpSession]] = []
        for endpoint in self._exchange.endpoints.values():
            for session in endpoint.sessions.values():
                memo = session.memo(events=True) if session.is_idle else None
                if memo is not None and session.id in self._paths:
                    given[session.id] = self._paths.pop(session.id), memo
                    leaving.append((endpoint, session))
                else:
                    stay += 1
        # They are gone from here before they can be found elsewhere: nothing is said in two places.
        left = asyncio.Event()
        self._leaving |= dict.fromkeys(given, left)
        for endpoint, session in leaving:
            endpoint.sessions.remove(session)
        try:
            if given and self._rows is not None:
                await self._rows.give_up(given)
        finally:
            left.set()
            for id in given:
                self._leaving.pop(id, None)
        return stay

    # Sessions that are not

    def find(self, endpoint: Endpoint, id: str, request: Request, writer: ResponseWriter, again: Again) -> bool:
        owner = self._ids.owner(id)
        if owner is None or (owner == self.id and id not in self._moved and not self.retiring):
            return False
        if request.hops and not request.seeks:
            # The one who has sent it on looks further.
            self._do(_when(self._leaving.get(id), partial(writer.answer, Answer(sending.MISDIRECTED))))
            return True
        task = self._do(self._find(endpoint, id, owner, request, writer, again))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _find(
        self, endpoint: Endpoint, id: str, owner: str, request: Request, writer: ResponseWriter, again: Again
    ) -> None:
        try:
            for _ in range(MOST_TRIES):
                target = self._moved.get(id, owner)
                outcome = await self._send(target, request, writer)
                if outcome == "answered":
                    return
                if await self._is_here(endpoint, id, target, there=outcome == "absent"):
                    writer.on_close = None
                    again(request, writer)
                    return
                if self.retiring and await self._leave_to_another(request, writer):
                    return
            writer.answer(refusals.busy(request))
        except _NotFound:
            writer.answer(refusals.error(request, 404, "Session not found", request.cors))
        except StoreError as failure:
            log.warning("a session cannot be looked for: %s", failure)
            writer.answer(refusals.busy(request))
        except _MaybeDone:
            reason = "Service unavailable: the process of this session ended; it may or may not have made the call"
            writer.answer(refusals.error(request, 502, reason, request.cors))
        except Exception:
            log.exception("error while looking for a session")
            writer.answer(Answer(500))

    async def _send(
        self, target: str, request: Request, writer: ResponseWriter, *, seeks: bool = False
    ) -> sending.Outcome | None:
        """Send it to a worker. None: it is not there; "absent": it does not have the session."""
        if target == self.id:
            return None
        principal = request.principal if isinstance(request.principal, Principal) else None
        envelope = Forwarding(
            to=target, principal=principal, peer=request.peer, root=request.root, hops=request.hops + 1, seeks=seeks
        )
        sealed = self._envelopes.seal(envelope, request)
        outcome = await sending.send(self._path(target), request, writer, sealed)
        if outcome == "lost" and request.method == "POST":
            raise _MaybeDone
        return outcome

    async def _leave_to_another(self, request: Request, writer: ResponseWriter) -> bool:
        """A worker that leaves takes nothing over: another one is to see to it."""
        others = [name for name in os.listdir(self._folder) if len(name) == len(self.id) and name != self.id]
        random.shuffle(others)
        for other in others if not request.hops else ():
            if await self._send(other, request, writer, seeks=True) == "answered":
                return True
        return False

    async def _is_here(self, endpoint: Endpoint, id: str, target: str, *, there: bool) -> bool:
        """Whether we have it by now. False: another worker has it, who is to be asked. `there`: the last one lives."""
        assert self._rows is not None
        lock = self._adopting.setdefault(id, asyncio.Lock())
        try:
            async with lock:
                if id in endpoint.sessions:
                    return True
                row = await self._rows.find(id)
                if row is None or (there and row.owner == target):
                    # It has ended, whether its row is still there or not.
                    raise _NotFound
                if row.owner not in (None, target):
                    self._remember(id, row.owner or "")
                    return False
                return await self._adopt(endpoint, row)
        finally:
            if not lock.locked():
                self._adopting.pop(id, None)

    async def _adopt(self, endpoint: Endpoint, row: SessionRow) -> bool:
        assert self._rows is not None
        if self.retiring:
            # Not to one who leaves as well.
            return False
        if not await self._rows.adopt(row.id, row.owner):
            return False
        self._paths[row.id] = row.path
        self._remember(row.id, self.id)
        memo = row.read()
        if not await endpoint.restore(row.id, memo):
            return False
        log.debug("took over a session from %s", row.owner)
        return True

    def _remember(self, id: str, owner: str) -> None:
        if len(self._moved) >= MOST_KNOWN:
            self._moved.clear()
        self._moved[id] = owner

    def _do(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task

    # Requests that others have sent on

    def receive(self, request: Request, writer: ResponseWriter) -> None:
        sealed = request.headers.pop(SENT_ON)
        envelope = self._envelopes.open(sealed, request)
        if envelope is None or not 1 <= envelope.hops <= MOST_HOPS:
            writer.answer(refusals.error(request, 403, "Forbidden: this was not sent on by one of us"))
            return
        if envelope.to != self.id:
            writer.answer(Answer(sending.MISDIRECTED))
            return
        if self._exchange.draining:
            writer.answer(refusals.busy(request))
            return
        request.principal, request.peer = envelope.principal, envelope.peer
        request.root, request.hops, request.seeks = envelope.root, envelope.hops, envelope.seeks
        self._exchange.answer_at(request, writer)


class _NotFound(Exception):
    """There is no such session."""


class _MaybeDone(Exception):
    """A worker went away with a request, which it may have answered."""


async def _when_written(written: asyncio.Future[None], then: Callable[[], None]) -> None:
    await asyncio.wait([written], timeout=WRITE_SECONDS)
    then()


async def _when(event: asyncio.Event | None, then: Callable[[], None]) -> None:
    if event is not None:
        await event.wait()
    then()


def _listening(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.bind(path)
        one.listen(BACKLOG)
    except BaseException:
        one.close()
        raise
    return one
