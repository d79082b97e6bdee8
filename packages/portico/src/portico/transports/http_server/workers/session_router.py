"""Routing of requests to the worker that has their session, and takeover of sessions without a worker.

A session belongs to the worker that its id names, or to the one that its row names since. A request is forwarded once;
if the owner is gone, the worker that received the request takes over the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from portico.caching import LruCache
from portico.rpc.supervision import BackgroundTasks
from portico.store.errors import StoreError
from portico.transports.http_server import error_responses
from portico.transports.http_server.messages import HttpRequest, HttpResponse, ResponseWriter
from portico.transports.http_server.workers import reverse_proxy
from portico.transports.http_server.workers.forwarding import ForwardOutcomeUnknown, RequestForwarder
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.local_sessions import (
    LocalSessions,
    SessionLimitReached,
    SessionNotFound,
)
from portico.transports.http_server.workers.signing import SignedSessionIds
from portico.transports.http_server.workers.store import WorkerStore

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

MAX_ATTEMPTS = 30
UNREACHABLE_TRIES = 5
RETRY_DELAY_SECONDS = 0.1
MAX_CACHED_OWNERS = 100_000

RetryCallback = Callable[[HttpRequest, ResponseWriter], Any]


class SessionRouter:
    """Locates the sessions of requests that arrived at the wrong worker."""

    def __init__(
        self,
        worker: str,
        ids: SignedSessionIds,
        store: WorkerStore,
        sessions: LocalSessions,
        forwarder: RequestForwarder,
        background_tasks: BackgroundTasks,
        lease: WorkerLease,
    ) -> None:
        self._worker = worker
        self._ids = ids
        self._store = store
        self._sessions = sessions
        self._forwarder = forwarder
        self._background_tasks = background_tasks
        self._lease = lease
        # Owners of sessions that have moved since their id was created.
        self._owner_cache: LruCache[str, str] = LruCache(MAX_CACHED_OWNERS)
        # Workers that are retiring: most of their sessions are already released.
        self._retiring_workers: set[str] = set()
        self._adopting: dict[str, asyncio.Lock] = {}

    def route_to_owner(
        self, endpoint: Endpoint, id: str, request: HttpRequest, writer: ResponseWriter, retry: RetryCallback
    ) -> bool:
        if id in endpoint.sessions:
            if self._sessions.has(id):
                return False
            # The lease has expired, so only the store knows whether the session is still here.
            task = self._background_tasks.start(self._route_when_confirmed(id, request, writer, retry))
            writer.on_close = task.cancel  # type: ignore[assignment]
            return True
        owner = self._ids.owner_of(id)
        retiring = self._sessions.retiring
        if owner is None or (owner == self._worker and id not in self._owner_cache and not retiring):
            return False
        # Not forwarded again unless it asks for it: two workers with different views of the owner would otherwise pass
        # a request back and forth.
        if request.hops and (retiring or not request.seeks):
            # The forwarding worker continues the search, unless the session arrives here first.
            error_response = reverse_proxy.RETIRING_RESPONSE if retiring else reverse_proxy.NO_SESSION_RESPONSE

            def on_settled() -> None:
                if id in endpoint.sessions:
                    _retry_locally(request, writer, retry)
                else:
                    writer.respond(error_response)

            self._background_tasks.start(self._sessions.call_when_settled(id, on_settled))
            return True
        task = self._background_tasks.start(self._route(endpoint, id, owner, request, writer, retry))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _route_when_confirmed(
        self, id: str, request: HttpRequest, writer: ResponseWriter, again: RetryCallback
    ) -> None:
        await self._lease.confirm()
        if self._sessions.has(id) is not None:
            writer.on_close = None
            _retry_locally(request, writer, again)
        elif request.hops:
            # The forwarding worker may take over the session, if the store agrees.
            writer.respond(reverse_proxy.GONE_RESPONSE)
        else:
            writer.respond(error_responses.overloaded_response(request, "the session store is not available"))

    async def _route(
        self,
        endpoint: Endpoint,
        id: str,
        owner: str,
        request: HttpRequest,
        writer: ResponseWriter,
        again: RetryCallback,
    ) -> None:
        try:
            is_local = await self._resolve_owner(endpoint, id, owner, request, writer)
        except SessionNotFound:
            writer.respond(error_responses.error_response(request, 404, "Session not found", request.cors))
        except Exception as failure:
            writer.respond(routing_error_response(request, failure))
        else:
            if is_local:
                writer.on_close = None
                _retry_locally(request, writer, again)

    async def _resolve_owner(
        self, endpoint: Endpoint, id: str, owner: str, request: HttpRequest, writer: ResponseWriter
    ) -> bool:
        """Forward the request to the session's owner, or take over the session. Return True if it is here now, False if
        the request was answered.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            target = self._owner_cache.get(id, owner)
            # Rows are read in batches, while a worker has to be asked for each session.
            is_local = target in self._retiring_workers and await self._try_take_over(endpoint, id, target, "leaving")
            if not is_local:
                target = self._owner_cache.get(id, owner)
                try:
                    outcome = await self._forwarder.forward(target, request, writer)
                except reverse_proxy.WorkerUnreachable:
                    # A stopping worker removes its socket first, and updates its rows a moment later.
                    if attempt == UNREACHABLE_TRIES:
                        raise
                    outcome = "leaving"
                if outcome == "answered":
                    return False
                if outcome == "leaving":
                    # Wait until the row is released.
                    self._retiring_workers.add(target)
                    await asyncio.sleep(RETRY_DELAY_SECONDS)
                is_local = await self._try_take_over(endpoint, id, target, outcome)
                if not is_local and outcome == "gone":
                    # Wait until the lease has ended.
                    await asyncio.sleep(RETRY_DELAY_SECONDS)
            if is_local:
                return True
            if self._sessions.retiring and await self._forwarder.forward_to_any(request, writer):
                return False
        writer.respond(error_responses.overloaded_response(request))
        return False

    def route_to_suspended_call(
        self, params: bytes, request: HttpRequest, writer: ResponseWriter, retry: Callable[[], None]
    ) -> bool:
        owner = None if request.hops else self._suspended_call_owner(params)
        if owner in (None, self._worker):
            return False
        task = self._background_tasks.start(self._route_suspended(owner or "", request, writer, retry))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    def _suspended_call_owner(self, params: bytes) -> str | None:
        """Return the worker that holds a suspended call or task. Its id has the form `.worker.rest`."""
        try:
            named = _suspended_decoder.decode(params)
        except msgspec.DecodeError:
            return None
        parts = (named.request_state or named.task_id).split(".", 2)
        return self._ids.owner_of(parts[1]) if len(parts) == 3 and not parts[0] else None

    async def _route_suspended(
        self, owner: str, request: HttpRequest, writer: ResponseWriter, again: Callable[[], None]
    ) -> None:
        try:
            # Forward once. A suspended call of a worker that is gone is lost, and any other worker reports that.
            if await self._forwarder.forward(owner, request, writer) != "answered":
                writer.on_close = None
                again()
        except Exception as failure:
            writer.respond(routing_error_response(request, failure))

    async def _try_take_over(
        self, endpoint: Endpoint, id: str, target: str, outcome: reverse_proxy.ForwardOutcome | None
    ) -> bool:
        """Try to take over a session. Return whether it is here now. `outcome` is that of the last forward."""
        # Concurrent requests of one session arrive together after a failover. Only the first may restore it.
        lock = self._adopting.setdefault(id, asyncio.Lock())
        try:
            async with lock:
                if id in endpoint.sessions:
                    return True
                row = await self._store.find_session(id)
                if row is None or (outcome == "absent" and row.owner == target):
                    # The session has ended, whether or not its row still exists.
                    raise SessionNotFound
                if outcome == "leaving" and row.owner == target:
                    return False
                # Another worker was faster. The next attempt forwards the request to it.
                if row.owner not in (None, target):
                    self._cache_owner(id, row.owner or "")
                    return False
                if not await self._sessions.take_over(endpoint, row):
                    return False
                self._cache_owner(id, self._worker)
                return True
        finally:
            if not lock.locked():
                self._adopting.pop(id, None)

    def mark_moved(self, ids: Iterable[str]) -> None:
        """Record that these sessions have moved, so that their rows determine the owner."""
        for id in ids:
            self._cache_owner(id, self._worker)

    def _cache_owner(self, id: str, owner: str) -> None:
        self._owner_cache[id] = owner


class _SuspendedCallParams(Struct, rename="camel"):
    """Params that refer to a suspended call or a task."""

    request_state: str = ""
    task_id: str = ""


_suspended_decoder = msgspec.json.Decoder(_SuspendedCallParams)


def _retry_locally(request: HttpRequest, writer: ResponseWriter, again: RetryCallback) -> None:
    try:
        again(request, writer)
    except Exception:
        log.exception("error while answering %s %s", request.method, request.path)
        writer.respond(HttpResponse(500))


def routing_error_response(request: HttpRequest, failure: Exception) -> HttpResponse:
    """Return the error response for a request that could not be routed to its worker."""
    if isinstance(failure, ForwardOutcomeUnknown):
        reason = (
            "Service unavailable: the process that handled the request has exited; the call may or may not have "
            "been executed"
        )
        return error_responses.error_response(request, 502, reason, request.cors)
    # In all other cases the request was not executed and can be retried.
    if isinstance(failure, StoreError):
        log.warning("could not look up a session: %s", failure)
        return error_responses.overloaded_response(request, "the session store is not available")
    if isinstance(failure, reverse_proxy.WorkerUnreachable):
        log.warning("could not reach a worker: %s", failure)
        return error_responses.overloaded_response(request, "the process that has the session cannot be reached")
    if not isinstance(failure, SessionLimitReached):
        log.error("error while looking up a session", exc_info=failure)
    return error_responses.overloaded_response(request)
