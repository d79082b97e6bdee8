"""HTTP listener: sockets, their connections, and one clock for all timeouts."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from portico.caching import LruCache
from portico.rpc.identity import client_network
from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import handle_signals
from portico.transports.http_server.application import KEEP_ALIVE_INTERVAL_SECONDS, HttpApplication
from portico.transports.http_server.bind_address import LISTEN_BACKLOG, BindAddress, origins_of
from portico.transports.http_server.connection import TICK_INTERVAL_SECONDS, ConnectionTimeouts, HttpServerConnection
from portico.transports.http_server.fast_head_parser import FastHeadParser
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, Internal, encode_headers

log = logging.getLogger("portico")

MAX_CACHED_RESPONSE_HEADS = 100
MAX_ADMITTED_HEADS = 1024
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Listener:
    """Sockets and their connections."""

    def __init__(
        self,
        application: HttpApplication,
        *,
        timeouts: ConnectionTimeouts = ConnectionTimeouts(),
        max_connections: int = 20_000,
        max_connections_per_ip: int | None = None,
        internal: Internal = "",
    ) -> None:
        self.application = application
        # Whether it is for other workers only: see `HttpRequest.internal`.
        self.internal: Internal = internal
        self.timeouts = timeouts
        self.max_connections = min(max_connections, _max_sockets())
        # One client must leave room for others. Trusted proxies, which represent many clients, are exempt.
        self.max_connections_per_ip = max_connections_per_ip or max(1, self.max_connections * 3 // 4)
        self.buffered_body_bytes = 0
        self.draining = False
        # Set when the last connection is closed.
        self._empty = asyncio.Event()
        self.now = time.monotonic()
        # Encoded response heads, valid while the date header is the same.
        self.response_head_cache: dict[tuple[int, HeaderPairs, bool], bytes] = {}
        self._date = b""
        self.request_cache: LruCache[tuple[str | bytes | None, ...], HttpRequest] = LruCache(MAX_ADMITTED_HEADS)
        self.head_parser = FastHeadParser()
        self._connections: set[HttpServerConnection] = set()
        # Connections by client network, the oldest first.
        self._addresses: dict[str, dict[HttpServerConnection, None]] = {}
        self._servers: list[asyncio.Server] = []
        self._supervisor = BackgroundTasks()
        self._is_ticking = False

    def add(self, connection: HttpServerConnection) -> None:
        self._connections.add(connection)
        connections = self._addresses.setdefault(client_network(connection.peer), {})
        connections[connection] = None
        if len(self._connections) > self.max_connections:
            self._evict_idle(max(self._addresses.values(), key=len), connection)
        elif len(connections) > self.max_connections_per_ip and not connection.via_trusted_proxy:
            self._evict_idle(connections, connection)

    def _evict_idle(self, connections: dict[HttpServerConnection, None], newest: HttpServerConnection) -> None:
        """Close the oldest idle connection, or the newest one if none is idle."""
        waiting = (connection for connection in connections if connection is not newest and connection.is_idle())
        left = next(waiting, newest)
        self.remove(left)
        left.close()

    def remove(self, connection: HttpServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        network = client_network(connection.peer)
        connections = self._addresses.get(network, {})
        connections.pop(connection, None)
        if not connections:
            self._addresses.pop(network, None)

    async def listen(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> list[tuple[str, int]]:
        """Listen at an address. Return the bound addresses, for a port chosen by the system."""
        [sockets] = BindAddress(host=host, port=port, reuse_port=reuse_port).open_sockets()
        await self.listen_on(sockets, tls)
        return [socket.getsockname()[:2] for socket in sockets]

    async def listen_on(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> list[asyncio.Server]:
        """Accept connections on these sockets. They are closed on shutdown, or with the returned servers."""
        loop = asyncio.get_running_loop()
        self.application.bind_loop(loop)
        self.application.bind(origins_of(sockets, secure=tls is not None))
        self._tick()
        started: list[asyncio.Server] = []
        for item in sockets:
            if item.family == socket.AF_UNIX:
                # Other processes may listen at the path as well, so it must not be removed.
                stays: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
                server = await loop.create_unix_server(
                    self.create_connection, sock=item, ssl=tls, backlog=LISTEN_BACKLOG, **stays
                )
            else:
                server = await loop.create_server(self.create_connection, sock=item, ssl=tls, backlog=LISTEN_BACKLOG)
            started.append(server)
        self._servers += started
        self._start_ticking()
        return started

    def _tick(self) -> None:
        self.now = time.monotonic()
        self._date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        self.response_head_cache.clear()

    def encode_response_head(self, status: int, headers: HeaderPairs, keep_alive: bool) -> bytes:
        """Return the head of a response, up to its length."""
        head = (
            _STATUS_LINES[status]
            + self._date
            + encode_headers(headers)
            + (b"" if keep_alive else b"connection: close\r\n")
        )
        # Bounded: response headers contain the origin of a page, and there may be many.
        if len(self.response_head_cache) < MAX_CACHED_RESPONSE_HEADS:
            self.response_head_cache[status, headers, keep_alive] = head
        return head

    def _start_ticking(self) -> None:
        """Check all connections once per second, instead of using a timer for each."""
        if not self._is_ticking:
            self._is_ticking = True
            self._supervisor.repeat("http connection timeouts", self._tick_forever, TICK_INTERVAL_SECONDS)
            self._supervisor.repeat("http session expiry", self.application.expire_sessions, TICK_INTERVAL_SECONDS)
            self._supervisor.repeat("http keep-alive", self.application.send_keep_alives, KEEP_ALIVE_INTERVAL_SECONDS)

    def _tick_forever(self) -> None:
        self._tick()
        failures: list[Exception] = []
        for connection in list(self._connections):
            # A failing check must not keep other connections open.
            try:
                connection.check_timeouts(self.now)
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def close_idle(self) -> None:
        """Close the connections that wait for a request, as any HTTP server may."""
        for connection in [item for item in self._connections if item.is_idle()]:
            connection.close()

    def create_connection(self) -> HttpServerConnection:
        return HttpServerConnection(self)

    @property
    def is_empty(self) -> bool:
        return not self._connections

    def stop_accepting(self) -> None:
        """Stop accepting connections while other processes take over. Open connections are served, and closed after the
        next response.
        """
        for server in self._servers:
            server.close()
        self.draining = True

    async def wait_empty(self, timeout: float, *, min_seconds: float | None = None) -> None:
        """Wait until the last connection is closed, up to `timeout` seconds, and at least `min_seconds` for connections
        in transit.
        """
        if min_seconds is not None:
            await asyncio.sleep(min_seconds)
            if self.is_empty:
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                self._empty.clear()
                await self._empty.wait()

    async def stop(self, timeout: float) -> None:
        """Stop accepting connections and calls, wait for active calls, and end all streams."""
        for server in self._servers:
            server.close()
        self.application.draining = True
        for connection in list(self._connections):
            connection.close_if_idle()
        await self.application.drain(timeout)
        self._supervisor.cancel()
        for connection in list(self._connections):
            connection.close()
        # Let the transports flush before the event loop ends.
        await asyncio.sleep(0)


async def serve(
    application: HttpApplication,
    bind_address: BindAddress,
    sockets: Sequence[socket.socket] | None = None,
    *,
    on_ready: Callable[[str, socket.socket], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until a signal or `stop`, on `sockets` or on those of `bind_address`."""
    stop = stop or asyncio.Event()
    listener = Listener(application)
    try:
        with handle_signals(stop.set):
            sockets = bind_address.open_sockets()[0] if sockets is None else sockets
            await listener.listen_on(sockets, bind_address.ssl_context())
            if on_ready is not None:
                on_ready(bind_address.url(sockets[0], application.settings.path), sockets[0])
            await stop.wait()
    finally:
        # A second signal has its default effect.
        await listener.stop(bind_address.shutdown_timeout)
        bind_address.unlink_socket()


def _max_sockets() -> int:
    """Return the maximum number of connections of the process, with a reserve for files."""
    try:
        import resource  # not available on Windows
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit * 9 // 10)
