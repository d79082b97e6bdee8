"""Forwarding of requests between workers.

On the same machine a request is forwarded through a Unix socket; to another machine over HTTP, to the internal listener
of a worker there. Forwarded requests are rejected at the addresses that clients use. A request that may have arrived is
never sent twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable

from portico.auth.principal import Principal
from portico.caching import LruCache
from portico.rpc.supervision import BackgroundTasks
from portico.store.errors import StoreError
from portico.transports.http_server import error_responses
from portico.transports.http_server.application import HttpApplication, cors_headers
from portico.transports.http_server.cluster_hooks import FORWARDED_HEADER
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, HttpResponse, ResponseWriter
from portico.transports.http_server.workers import reverse_proxy
from portico.transports.http_server.workers.local_sessions import LocalSessions
from portico.transports.http_server.workers.signing import ForwardClaims, ForwardSigner
from portico.transports.http_server.workers.socket_dir import WorkerSocketDir
from portico.transports.http_server.workers.store import WorkerStore

log = logging.getLogger("portico")

MAX_HOPS = 2
WORKER_QUERY_TIMEOUT_SECONDS = 2.0
# How long the result of a liveness check of a local worker is cached.
LIVENESS_CACHE_SECONDS = 5.0
MAX_CACHED_LIVENESS = 1000


class ForwardOutcomeUnknown(Exception):
    """A worker exited with a request that it may have executed."""


class RequestForwarder:
    """Sends requests to other workers, and receives theirs."""

    def __init__(
        self,
        worker: str,
        socket_dir: WorkerSocketDir,
        store: WorkerStore,
        signer: ForwardSigner,
        application: HttpApplication,
        sessions: LocalSessions,
        background_tasks: BackgroundTasks,
    ) -> None:
        self._worker = worker
        self._socket_dir = socket_dir
        self._store = store
        self._signer = signer
        self._application = application
        self._sessions = sessions
        self._background_tasks = background_tasks
        # Results of liveness checks of local workers: expiry, and whether the worker is unresponsive.
        self._liveness_cache: LruCache[str, tuple[float, bool]] = LruCache(MAX_CACHED_LIVENESS)
        # GET streams of other workers that are relayed to clients here.
        self._relayed_streams: set[reverse_proxy.ProxiedRequest] = set()

    # Outgoing requests

    async def forward(
        self, target: str, request: HttpRequest, writer: ResponseWriter, *, locate_session: bool = False
    ) -> reverse_proxy.ForwardOutcome | None:
        """Forward a request to a worker. Return None if it does not exist, and "absent" if it does not have the
        session.
        """
        if target == self._worker or await self._is_unresponsive(target):
            return None
        envelope = _envelope(target, request)
        envelope.seeks = locate_session
        sealed = self._signer.sign(envelope, request)
        outcome = await reverse_proxy.proxy_request(
            self._socket_dir.request_socket_path(target), request, writer, sealed, self._relayed_streams
        )
        if outcome is None:
            outcome = await self._forward_remote(target, request, writer, sealed)
        if outcome == "lost" and request.method == "POST":
            raise ForwardOutcomeUnknown
        return outcome

    async def send_page(
        self, target: str, request: HttpRequest, writer: ResponseWriter
    ) -> reverse_proxy.ForwardOutcome | None:
        """Forward a request to a custom route of a local worker, with its cookie, which that worker checks again."""
        if await self._is_unresponsive(target):
            return None
        envelope = _envelope(target, request)
        # The user is identified by the cookie alone.
        envelope.principal = envelope.until = None
        sealed = self._signer.sign(envelope, request)
        outcome = await reverse_proxy.proxy_request(
            self._socket_dir.request_socket_path(target),
            request,
            writer,
            sealed,
            self._relayed_streams,
            with_cookie=True,
        )
        if outcome == "lost" and request.method == "POST":
            raise ForwardOutcomeUnknown
        return outcome

    async def _forward_remote(
        self, target: str, request: HttpRequest, writer: ResponseWriter, sealed: bytes
    ) -> reverse_proxy.ForwardOutcome | None:
        """Forward a request to a worker without a local socket: it is on another machine, or gone."""
        if self._socket_dir.remove(target):
            # A local worker that died without removing its socket. Its row is deleted so that nobody looks for it.
            await self._store.delete_worker(target)
            return None
        worker = await self._store.find_worker(target)
        if worker is None:
            return None
        outcome = None
        if worker.address is not None and (
            worker.lives or await self.query_worker(worker.address, target, "/healthz") is not None
        ):
            outcome = await reverse_proxy.proxy_request(worker.address, request, writer, sealed, self._relayed_streams)
        if outcome is None and worker.lives:
            # Its lease is valid, so its sessions must not be taken over.
            raise reverse_proxy.WorkerUnreachable(
                "it is on another machine and cannot be reached at its PORTICO_ADVERTISED_ADDRESS"
            )
        if outcome == "gone":
            # The workers at its address know that it is gone, unless it has renewed its lease since.
            await self._store.end_lease(target, worker.lease_until)
            return None
        return outcome

    async def _is_unresponsive(self, target: str) -> bool:
        """Return whether a local worker exists, does not respond, and has no valid lease."""
        until, stopped = self._liveness_cache.get(target, (0.0, False))
        if time.monotonic() < until:
            return stopped
        try:
            # A worker without a local socket is looked up elsewhere.
            await self._query_worker(self._socket_dir.request_socket_path(target), target, "/healthz")
            stopped = False
        except (TimeoutError, reverse_proxy.WorkerUnreachable):
            stopped = await self._has_ended(target)
            if not stopped:
                # It may be busy: forward the request anyway.
                return False
        self._liveness_cache[target] = (time.monotonic() + LIVENESS_CACHE_SECONDS, stopped)
        return stopped

    async def _has_ended(self, target: str) -> bool:
        try:
            worker = await self._store.find_worker(target)
        except StoreError:
            # Without the store its sessions cannot be taken over either.
            return False
        return worker is None or not worker.lives

    async def query_worker(
        self, address: str, worker: str, path: str, principal: Principal | None = None
    ) -> HttpResponse | None:
        """Return the response of a worker for a path and a principal, or None if it does not respond."""
        try:
            return await self._query_worker(address, worker, path, principal)
        except (OSError, reverse_proxy.WorkerUnreachable):
            return None

    async def _query_worker(
        self, address: str, worker: str, path: str, principal: Principal | None = None
    ) -> HttpResponse | None:
        """Query a worker. Raises `TimeoutError` for a stopped process, which accepts data but never responds."""
        request = HttpRequest("GET", path, "", Headers())
        collected = _CapturedResponse()
        sealed = self._signer.sign(ForwardClaims(to=worker, principal=principal), request)
        async with asyncio.timeout(WORKER_QUERY_TIMEOUT_SECONDS):
            await reverse_proxy.proxy_request(address, request, collected, sealed)
        return collected.response

    async def forward_to_any(self, request: HttpRequest, writer: ResponseWriter) -> bool:
        """Forward a request to any other worker, which then locates its session. Used while this worker retires."""
        others = self._socket_dir.list_other_workers()
        random.shuffle(others)
        for other in others if not request.hops else ():
            if await self.forward(other, request, writer, locate_session=True) == "answered":
                return True
        return False

    def end_streams(self) -> None:
        """End the relayed streams, which have no end by themselves. Their clients resume them."""
        for sent in list(self._relayed_streams):
            sent.end()

    # Incoming requests

    def reject_forwarded(self, request: HttpRequest) -> HttpResponse | None:
        """Return the error response for an invalid forwarded request, before its body is read, or None."""
        return (
            None
            if self._signer.precheck(request.headers[FORWARDED_HEADER], request)
            else _unauthorized_forward_response(request)
        )

    def receive_forwarded(self, request: HttpRequest, writer: ResponseWriter) -> None:
        sealed = request.headers.pop(FORWARDED_HEADER)
        envelope = self._signer.verify(sealed, request)
        if envelope is None or not 1 <= envelope.hops <= MAX_HOPS:
            writer.respond(_unauthorized_forward_response(request))
            return
        if request.internal == "network" and self._application.is_page(request):
            # Custom routes are only forwarded within a machine.
            writer.respond(_unauthorized_forward_response(request))
            return
        if envelope.to != self._worker:
            self._relay(envelope, request, writer)
            return
        if self._application.draining:
            writer.respond(reverse_proxy.RETIRING_RESPONSE)
            return
        request.principal, request.until, request.peer = envelope.principal, envelope.until, envelope.peer
        request.root, request.hops, request.seeks = envelope.root, envelope.hops, envelope.seeks
        request.secure, request.cors = envelope.secure, cors_headers(request.headers)
        self._application.handle_forwarded(request, writer)

    def _relay(self, envelope: ForwardClaims, request: HttpRequest, writer: ResponseWriter) -> None:
        """Relay a request of another machine to another local worker."""
        if envelope.hops >= MAX_HOPS or not os.path.exists(self._socket_dir.request_socket_path(envelope.to)):
            writer.respond(reverse_proxy.GONE_RESPONSE)
            return
        envelope.hops += 1
        task = self._background_tasks.start(self._relay_local(envelope, request, writer))
        writer.on_close = task.cancel  # type: ignore[assignment]

    async def _relay_local(self, envelope: ForwardClaims, request: HttpRequest, writer: ResponseWriter) -> None:
        sealed = self._signer.sign(envelope, request)
        try:
            outcome = await reverse_proxy.proxy_request(
                self._socket_dir.request_socket_path(envelope.to), request, writer, sealed, self._relayed_streams
            )
        except reverse_proxy.WorkerUnreachable as failure:
            log.warning("could not reach a worker: %s", failure)
            writer.respond(error_responses.overloaded_response(request))
            return
        if outcome == "lost":
            writer.abort()
        elif outcome != "answered":
            writer.respond(
                {"leaving": reverse_proxy.RETIRING_RESPONSE, "absent": reverse_proxy.NO_SESSION_RESPONSE}.get(
                    outcome or "", reverse_proxy.GONE_RESPONSE
                )
            )


def _envelope(target: str, request: HttpRequest) -> ForwardClaims:
    return ForwardClaims(
        to=target,
        principal=request.principal if isinstance(request.principal, Principal) else None,
        until=request.until,
        peer=request.peer,
        root=request.root,
        secure=request.secure,
        hops=request.hops + 1,
    )


def _unauthorized_forward_response(request: HttpRequest) -> HttpResponse:
    return error_responses.error_response(
        request, 403, ("Forbidden: this request was not forwarded by a worker of this server")
    )


class _CapturedResponse:
    """ResponseWriter that captures the response to an internal query."""

    on_close: Callable[[], None] | None = None
    response: HttpResponse | None = None

    def respond(self, response: HttpResponse) -> None:
        self.response = response

    def start(self, status: int, headers: HeaderPairs) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...

    def buffered_bytes(self) -> int:
        return 0

    async def drain(self) -> None: ...
