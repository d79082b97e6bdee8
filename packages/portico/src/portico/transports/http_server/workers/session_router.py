"""Sessions that are not here: with whom they are, and what happens when no worker has them any more.

A session is with the worker that its id names, or with the one that its row names since. A request for it is sent on,
once; when the worker that had it is gone, the one that was asked takes it over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from portico.rpc.background_tasks import Errands
from portico.store.errors import StoreError
from portico.transports.http_server import error_responses
from portico.transports.http_server.messages import Answer, Request, ResponseWriter
from portico.transports.http_server.workers import reverse_proxy
from portico.transports.http_server.workers.forwarding import Delivery, MaybeDone
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.local_sessions import NoRoom, OwnSessions, UnreadableSession
from portico.transports.http_server.workers.signing import SessionIds
from portico.transports.http_server.workers.store import FleetRows

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

MOST_TRIES = 30
UNREACHABLE_TRIES = 5
LEAVING_SECONDS = 0.1
MOST_KNOWN = 100_000

Again = Callable[[Request, ResponseWriter], Any]


class SessionSearch:
    """Looks for sessions on behalf of requests that have come to the wrong worker."""

    def __init__(
        self,
        worker: str,
        ids: SessionIds,
        rows: FleetRows,
        sessions: OwnSessions,
        delivery: Delivery,
        errands: Errands,
        lease: WorkerLease,
    ) -> None:
        self._worker = worker
        self._ids = ids
        self._rows = rows
        self._sessions = sessions
        self._delivery = delivery
        self._errands = errands
        self._lease = lease
        # Sessions that are not where their ids say.
        self._moved: dict[str, str] = {}
        # Workers that have said that they leave: most of their sessions are anyone's by now.
        self._leaving: set[str] = set()
        self._adopting: dict[str, asyncio.Lock] = {}

    def find(self, endpoint: Endpoint, id: str, request: Request, writer: ResponseWriter, again: Again) -> bool:
        if id in endpoint.sessions:
            if self._sessions.has(id):
                return False
            # It was ours; whether it still is, the store has to say.
            task = self._errands.do(self._when_confirmed(id, request, writer, again))
            writer.on_close = task.cancel  # type: ignore[assignment]
            return True
        owner = self._ids.owner(id)
        retiring = self._sessions.retiring
        if owner is None or (owner == self._worker and id not in self._moved and not retiring):
            return False
        if request.hops and (retiring or not request.seeks):
            # The one who has sent it on looks further, unless it is here by then.
            said = reverse_proxy.LEAVING if retiring else reverse_proxy.ABSENT

            def settled() -> None:
                if id in endpoint.sessions:
                    _answer_here(request, writer, again)
                else:
                    writer.answer(said)

            self._errands.do(self._sessions.when_settled(id, settled))
            return True
        task = self._errands.do(self._find(endpoint, id, owner, request, writer, again))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _when_confirmed(self, id: str, request: Request, writer: ResponseWriter, again: Again) -> None:
        await self._lease.confirm()
        if self._sessions.has(id) is not None:
            writer.on_close = None
            _answer_here(request, writer, again)
        elif request.hops:
            # The one who has sent it on may take it over, if the store agrees.
            writer.answer(reverse_proxy.GONE)
        else:
            writer.answer(error_responses.busy(request, "the storage that says where the session is cannot be asked"))

    async def _find(
        self, endpoint: Endpoint, id: str, owner: str, request: Request, writer: ResponseWriter, again: Again
    ) -> None:
        try:
            here = await self._comes_here(endpoint, id, owner, request, writer)
        except (_NotFound, UnreadableSession):
            writer.answer(error_responses.error(request, 404, "Session not found", request.cors))
        except Exception as failure:
            writer.answer(refused(request, failure))
        else:
            if here:
                writer.on_close = None
                _answer_here(request, writer, again)

    async def _comes_here(
        self, endpoint: Endpoint, id: str, owner: str, request: Request, writer: ResponseWriter
    ) -> bool:
        """Whether the session is here now, so that we answer. False: it was answered."""
        for attempt in range(1, MOST_TRIES + 1):
            target = self._moved.get(id, owner)
            # Rows are read for many at a time, and a worker is asked for each.
            here = target in self._leaving and await self._is_here(endpoint, id, target, "leaving")
            if not here:
                target = self._moved.get(id, owner)
                try:
                    outcome = await self._delivery.send(target, request, writer)
                except reverse_proxy.Unreachable:
                    # A worker that stops removes its socket first, and says in its rows a moment later that it is gone.
                    if attempt == UNREACHABLE_TRIES:
                        raise
                    outcome = "leaving"
                if outcome == "answered":
                    return False
                if outcome == "leaving":
                    # Until its row says that it is anyone's.
                    self._leaving.add(target)
                    await asyncio.sleep(LEAVING_SECONDS)
                here = await self._is_here(endpoint, id, target, outcome)
                if not here and outcome == "gone":
                    # Until its lease has ended.
                    await asyncio.sleep(LEAVING_SECONDS)
            if here:
                return True
            if self._sessions.retiring and await self._delivery.leave_to_another(request, writer):
                return False
        writer.answer(error_responses.busy(request))
        return False

    def find_parked(self, params: bytes, request: Request, writer: ResponseWriter, again: Callable[[], None]) -> bool:
        owner = None if request.hops else self._keeper(params)
        if owner in (None, self._worker):
            return False
        task = self._errands.do(self._find_parked(owner or "", request, writer, again))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    def _keeper(self, params: bytes) -> str | None:
        """The worker that keeps what a request goes on with: `.name.rest`, in the words of all who keep something."""
        try:
            named = _parked.decode(params)
        except msgspec.DecodeError:
            return None
        parts = (named.request_state or named.task_id).split(".", 2)
        return self._ids.owner(parts[1]) if len(parts) == 3 and not parts[0] else None

    async def _find_parked(
        self, owner: str, request: Request, writer: ResponseWriter, again: Callable[[], None]
    ) -> None:
        try:
            # Once. What was kept by a worker that is gone is over, and so it is said to be by any other.
            if await self._delivery.send(owner, request, writer, whole=False) != "answered":
                writer.on_close = None
                again()
        except Exception as failure:
            writer.answer(refused(request, failure))

    async def _is_here(self, endpoint: Endpoint, id: str, target: str, outcome: reverse_proxy.Outcome | None) -> bool:
        """Whether we have it by now. False: another worker has it, who is to be asked. `outcome` is of the last one."""
        lock = self._adopting.setdefault(id, asyncio.Lock())
        try:
            async with lock:
                if id in endpoint.sessions:
                    return True
                row = await self._rows.find(id)
                if row is None or (outcome == "absent" and row.owner == target):
                    # It has ended, whether its row is still there or not.
                    raise _NotFound
                if outcome == "leaving" and row.owner == target:
                    return False
                if row.owner not in (None, target):
                    self._remember(id, row.owner or "")
                    return False
                if not await self._sessions.adopt(endpoint, row):
                    return False
                self._remember(id, self._worker)
                return True
        finally:
            if not lock.locked():
                self._adopting.pop(id, None)

    def has_moved(self, ids: Iterable[str]) -> None:
        """These were ours, and their rows say whose they are."""
        for id in ids:
            self._remember(id, self._worker)

    def _remember(self, id: str, owner: str) -> None:
        if len(self._moved) >= MOST_KNOWN:
            self._moved.clear()
        self._moved[id] = owner


class _ParkedParams(Struct, rename="camel"):
    """What a request says that goes on with a call or a task."""

    request_state: str = ""
    task_id: str = ""


_parked = msgspec.json.Decoder(_ParkedParams)


class _NotFound(Exception):
    """There is no such session."""


def _answer_here(request: Request, writer: ResponseWriter, again: Again) -> None:
    try:
        again(request, writer)
    except Exception:
        log.exception("error while answering %s %s", request.method, request.path)
        writer.answer(Answer(500))


def refused(request: Request, failure: Exception) -> Answer:
    """What a client is told of a request that could not be brought to its worker."""
    if isinstance(failure, MaybeDone):
        reason = "Service unavailable: the process that had to answer has ended; it may or may not have made the call"
        return error_responses.error(request, 502, reason, request.cors)
    # Of everything else nothing was done: it can be tried again.
    if isinstance(failure, StoreError):
        log.warning("a session cannot be looked for: %s", failure)
        return error_responses.busy(request, "the storage that sessions are found by cannot be asked")
    if isinstance(failure, reverse_proxy.Unreachable):
        log.warning("a worker cannot be reached: %s", failure)
        return error_responses.busy(request, "the process that has the session cannot be reached")
    if not isinstance(failure, NoRoom):
        log.error("error while looking for a session", exc_info=failure)
    return error_responses.busy(request)
