"""Cluster of workers from the perspective of one worker: start, end, and the operations that endpoints need."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from portico.rpc.supervision import BackgroundTasks
from portico.store.database import retry_until_ready
from portico.store.errors import StoreError
from portico.store.keys import SigningKeys
from portico.transports.http_server import error_responses
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.cluster_hooks import RemoteSessions
from portico.transports.http_server.listener import Listener
from portico.transports.http_server.messages import HttpRequest, HttpResponse, ResponseWriter
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.workers import metrics, status
from portico.transports.http_server.workers.change_broadcast import ChangeBroadcast
from portico.transports.http_server.workers.forwarding import RequestForwarder
from portico.transports.http_server.workers.lease import WorkerLease
from portico.transports.http_server.workers.local_sessions import LocalSessions
from portico.transports.http_server.workers.session_router import RETRY_DELAY_SECONDS, RetryCallback, SessionRouter
from portico.transports.http_server.workers.signing import ForwardSigner, SignedSessionIds
from portico.transports.http_server.workers.socket_dir import WorkerSocketDir
from portico.transports.http_server.workers.store import WorkerStore, open_worker_store

if TYPE_CHECKING:
    from portico.transports.http_server.endpoint import Endpoint

log = logging.getLogger("portico")

SWEEP_INTERVAL_SECONDS = 300.0
SHUTDOWN_TIMEOUT_SECONDS = 2.0
# Cache duration and limit of the sessions of other workers, which are shown to operators.
REMOTE_SESSIONS_CACHE_SECONDS = 2.0
MAX_LISTED_SESSIONS = 500


class ClusterConfig(Struct, kw_only=True):
    """Configuration with which a worker joins a cluster."""

    # Unique id of the worker process, never reused.
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    # Id of the server: several servers may share the store.
    server: str
    store: str
    # Folder of the sockets through which workers of one machine reach each other.
    folder: str
    # Signing key. None derives it from the store's own key, which all processes that share the store have.
    key: bytes | None = None
    # `host:port` or `https://host:port`, at which workers of other machines reach the internal listener.
    address: str | None = None


class WorkerCluster:
    """Membership of one worker in a cluster.

    `on_keys` receives the shared signing keys, and `on_change` the method and URI of changes in other workers.
    """

    def __init__(
        self,
        config: ClusterConfig,
        application: HttpApplication,
        on_keys: Callable[[Sequence[bytes]], None],
        on_change: Callable[[str, str | None], None],
    ) -> None:
        self.worker_id = config.id
        self._config = config
        self._application = application
        self._use_keys = on_keys
        self._on_change = on_change
        self._keys = SigningKeys([config.key] if config.key is not None else [])
        self._ids = SignedSessionIds(self._keys, config.id)
        self._signer = ForwardSigner(self._keys)
        self._socket_dir = WorkerSocketDir(config.folder, config.id)
        self._background_tasks = BackgroundTasks()
        self._supervisor = BackgroundTasks()
        # Listeners for forwarded requests: from this machine, and from other machines.
        self._internal_listener = Listener(application, internal="machine")
        self._network = Listener(application, internal="network")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store: WorkerStore | None = None
        # Sessions of the other workers, and when they were last read.
        self._remote_sessions = RemoteSessions(0, [])
        self._last_listed = -REMOTE_SESSIONS_CACHE_SECONDS

    # Start and end

    async def start(self) -> None:
        """Join the cluster."""
        self._loop = asyncio.get_running_loop()
        self._socket_dir.open()
        config = self._config
        self._store = rows = await retry_until_ready(
            partial(open_worker_store, config.store, self.worker_id, config.server, self._keys, config.key)
        )
        self._lease = WorkerLease(
            partial(self._renew_lease, rows),
            self._on_lease_acquired,
            self._on_lease_expired,
            single_machine=rows.is_local,
        )
        self._sessions = LocalSessions(rows, self._application, self._background_tasks, self._lease)
        await self._lease.renew()
        self._use_keys(self._keys.keys)
        self._supervisor.run("worker lease renewal", self._lease.renew_forever)
        self._supervisor.repeat("worker session sweep", partial(self._sweep, rows), SWEEP_INTERVAL_SECONDS)
        self.forwarder = RequestForwarder(
            self.worker_id,
            self._socket_dir,
            rows,
            self._signer,
            self._application,
            self._sessions,
            self._background_tasks,
        )
        self._session_router = SessionRouter(
            self.worker_id, self._ids, rows, self._sessions, self.forwarder, self._background_tasks, self._lease
        )
        self._change_broadcast = ChangeBroadcast(
            rows, self._config.server, self.worker_id, self._background_tasks, self._on_change
        )
        self._supervisor.run("worker change relay", self._change_broadcast.listen)
        await self._change_broadcast.replay_retained()
        self._application.join_cluster(self)
        # Last: requests may be forwarded here as soon as the socket exists.
        await self._internal_listener.listen_on([self._socket_dir.bind()])

    async def _renew_lease(self, rows: WorkerStore, late: bool) -> None:
        if self._config.key is None:
            keys = await rows.load_signing_keys(self._config.server)
            if keys != self._keys.keys:
                self._keys.keys = keys
                self._use_keys(keys)
        self._signer.clock_offset = await rows.renew_lease(self._config.address) - time.time()
        if late:
            lost = await self._sessions.drop_lost_sessions()
            if lost:
                self._session_router.mark_moved(lost)

    def _on_lease_acquired(self) -> None:
        self._sessions.save_pending()

    def _on_lease_expired(self) -> None:
        log.warning(
            "other workers may take over the sessions of this worker; they are not served here until the store "
            "responds again"
        )
        self._sessions.end_get_streams()

    async def _sweep(self, rows: WorkerStore) -> None:
        try:
            await rows.delete_expired(self._application.settings.session_idle_timeout)
        except StoreError as failure:
            log.warning("could not delete expired rows: %s", failure)

    @property
    def is_lease_expired(self) -> bool:
        return self._lease.is_expired

    async def listen_for_machines(
        self, sockets: Sequence[socket.socket], address: str | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept requests of workers on other machines on these sockets, and publish the address."""
        if self._store is None or not sockets:
            return
        await self._network.listen_on(sockets, tls)
        self._config.address = address
        if address is not None:
            await self._publish_address(self._store, address)

    async def _publish_address(self, rows: WorkerStore, address: str) -> None:
        try:
            await rows.renew_lease(address)
        except StoreError as failure:
            log.warning("could not publish the address of this worker: %s", failure)

    async def leave(self) -> None:
        await self._sessions.release_idle()

    async def release_idle_sessions(self, deadline: float) -> int:
        """Release idle sessions to the other workers, no faster than they can take them while there is time.

        Returns how many sessions remain for now.
        """

        async def wait_for_accept_queue() -> None:
            # Clients reconnect immediately, and all together they would overflow the accept queues. A busy worker
            # answers this probe late, which slows down the release.
            if time.monotonic() < deadline:
                await asyncio.gather(
                    *(self._query_worker(other, "/readyz") for other in self._socket_dir.list_other_workers())
                )

        return await self._sessions.release_idle(wait_for_accept_queue)

    async def close(self) -> None:
        # Remove the socket first, so that no new requests arrive; those already received are answered.
        self._socket_dir.remove(self.worker_id)
        self._network.stop_accepting()
        await self._internal_listener.wait_empty(SHUTDOWN_TIMEOUT_SECONDS, min_seconds=RETRY_DELAY_SECONDS)
        await self._internal_listener.stop(0)
        self._supervisor.cancel()
        await self._network.stop(0)
        self._background_tasks.cancel()
        if self._store is not None:
            self._lease.close()
            await self._store.delete_self()
            await self._store.close()
        self._socket_dir.close()

    # ClusterHooks interface

    def new_session_id(self) -> str:
        return self._ids.new_id()

    def on_session_started(self, session: HttpSession, path: str, callback: Callable[[], None]) -> None:
        self._sessions.on_session_started(session, path, callback)

    def on_session_changed(self, session: HttpSession) -> None:
        self._sessions.on_session_changed(session)

    def on_session_ended(self, session: HttpSession) -> None:
        self._sessions.on_session_ended(session)

    def route_to_owner(
        self, endpoint: Endpoint, id: str, request: HttpRequest, writer: ResponseWriter, retry: RetryCallback
    ) -> bool:
        return self._session_router.route_to_owner(endpoint, id, request, writer, retry)

    def route_to_suspended_call(
        self, params: bytes, request: HttpRequest, writer: ResponseWriter, retry: Callable[[], None]
    ) -> bool:
        return self._session_router.route_to_suspended_call(params, request, writer, retry)

    def reject_forwarded(self, request: HttpRequest) -> HttpResponse | None:
        return self.forwarder.reject_forwarded(request)

    def receive_forwarded(self, request: HttpRequest, writer: ResponseWriter) -> None:
        self.forwarder.receive_forwarded(request, writer)

    def broadcast_change(self, method: str, uri: str | None) -> None:
        """Broadcast a change to the other workers. Thread-safe."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._broadcast_change, method, uri)

    def _broadcast_change(self, method: str, uri: str | None) -> None:
        if self._store is not None:
            self._change_broadcast.publish(method, uri)

    # Status

    @property
    def is_ready(self) -> bool:
        return not self._sessions.retiring and self._lease.is_recorded

    def aggregate_metrics(self, local_metrics: str, callback: Callable[[str], None]) -> None:
        self._background_tasks.start(self._aggregate_metrics(local_metrics, callback))

    async def _aggregate_metrics(self, own: str, callback: Callable[[str], None]) -> None:
        responses = await asyncio.gather(
            *(self._query_worker(other, "/metrics") for other in self._socket_dir.list_other_workers())
        )
        texts = [own, *(answer.body.decode() for answer in responses if answer is not None)]
        callback(
            metrics.aggregate_metrics(texts) + f"# TYPE mcp_server_workers gauge\nmcp_server_workers {len(texts)}\n"
        )

    async def describe_workers(self) -> list[dict[str, Any]]:
        """Return a summary of each other worker on this machine."""
        others = sorted(self._socket_dir.list_other_workers())
        responses = await asyncio.gather(*(self._query_worker(other, "/metrics") for other in others))
        return [_summarize_worker(name, answer) for name, answer in zip(others, responses, strict=True)]

    async def ask_others(self, path: str, principal: Any) -> list[bytes]:
        """Return the responses of the other workers on this machine for a path and a principal."""
        answers = await asyncio.gather(
            *(self._query_worker(other, path, principal) for other in self._socket_dir.list_other_workers())
        )
        return [answer.body for answer in answers if answer is not None and answer.status == 200]

    def remote_sessions(self) -> RemoteSessions:
        """Return the cached sessions of the other workers on all machines. Refreshes them in the background."""
        now = time.monotonic()
        if self._store is not None and now - self._last_listed > REMOTE_SESSIONS_CACHE_SECONDS:
            self._last_listed = now
            self._background_tasks.start(self._load_remote_sessions(self._store))
        return self._remote_sessions

    async def _load_remote_sessions(self, rows: WorkerStore) -> None:
        loader = partial(status.list_remote_sessions, self._config.server, self.worker_id, MAX_LISTED_SESSIONS)
        try:
            count, items = await rows.read(loader)
        except StoreError as failure:
            log.debug("could not read the sessions of other workers: %s", failure)
            return
        self._remote_sessions = RemoteSessions(
            count, [(item.row.id, item.row.path, item.row.decode_snapshot(), item.used_at) for item in items]
        )

    def route_to_first_worker(self, request: HttpRequest, writer: ResponseWriter, retry: Callable[[], None]) -> bool:
        first = min(self._socket_dir.list_other_workers(), default=self.worker_id)
        if request.hops or first > self.worker_id or first == self.worker_id:
            return False
        task = self._background_tasks.start(self._forward_to(first, request, writer, retry))
        writer.on_close = task.cancel  # type: ignore[assignment]
        return True

    async def _forward_to(
        self, worker: str, request: HttpRequest, writer: ResponseWriter, again: Callable[[], None]
    ) -> None:
        try:
            outcome = await self.forwarder.send_page(worker, request, writer)
        except Exception:
            log.warning("could not forward a request to the first worker")
            writer.respond(error_responses.overloaded_response(request))
            return
        if outcome != "answered":
            writer.on_close = None
            again()

    async def _query_worker(self, other: str, path: str, principal: Any = None) -> HttpResponse | None:
        """Return the response of another worker on this machine for a path, or None if it does not respond."""
        return await self.forwarder.query_worker(self._socket_dir.request_socket_path(other), other, path, principal)


def _summarize_worker(name: str, answer: HttpResponse | None) -> dict[str, Any]:
    """Return a summary of a worker from its metrics."""
    text = "" if answer is None else answer.body.decode()

    def value(series: str) -> int:
        lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith(series))
        return int(sum(float(number) for _, _, number in lines))

    return {
        "id": name,
        "state": "silent" if answer is None else "serving",
        "sessions": value("mcp_server_sessions "),
        "in_flight": value("mcp_server_in_flight "),
        "calls": value("mcp_server_operation_duration_seconds_count"),
    }
