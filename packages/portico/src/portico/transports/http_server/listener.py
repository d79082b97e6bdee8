"""Our own door: sockets, the connections that come through them, and one clock for all of their deadlines."""

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

from portico.rpc.networks import network_of
from portico.rpc.supervision import BackgroundTasks
from portico.transports.event_loop import on_signals
from portico.transports.http_server.application import KEEP_ALIVE_SECONDS, Exchange
from portico.transports.http_server.bind_address import BACKLOG, Place, origins_of
from portico.transports.http_server.connection import TICK_SECONDS, Connection, Deadlines
from portico.transports.http_server.fast_head_parser import PlainHeads
from portico.transports.http_server.messages import Internal, Pairs, Request, encode_headers

log = logging.getLogger("portico")

MOST_HEADS = 100
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Listener:
    """Sockets, and the connections that came through them."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        deadlines: Deadlines = Deadlines(),
        most_connections: int = 20_000,
        most_per_address: int | None = None,
        internal: Internal = "",
    ) -> None:
        self.exchange = exchange
        # Whether it is for other workers alone: see `Request.internal`.
        self.internal: Internal = internal
        self.deadlines = deadlines
        self.most_connections = min(most_connections, _most_sockets())
        # One client leaves room for others. A proxy, who is many clients, is not counted.
        self.most_per_address = most_per_address or max(1, self.most_connections * 3 // 4)
        self.held = 0
        self.retiring = False
        # Set when the last connection has gone.
        self._empty = asyncio.Event()
        self.now = time.monotonic()
        # The beginnings of responses, for as long as they have the same date.
        self.heads: dict[tuple[int, Pairs, bool], bytes] = {}
        self._date = b""
        self.known: dict[tuple[str | bytes | None, ...], Request] = {}
        self.plain = PlainHeads()
        self._connections: set[Connection] = set()
        # The same by address (IPv6: by network); the oldest of each comes first.
        self._addresses: dict[str, dict[Connection, None]] = {}
        self._servers: list[asyncio.Server] = []
        self._supervisor = BackgroundTasks()
        self._is_ticking = False

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)
        beside = self._addresses.setdefault(network_of(connection.peer), {})
        beside[connection] = None
        if len(self._connections) > self.most_connections:
            self._make_room(max(self._addresses.values(), key=len), connection)
        elif len(beside) > self.most_per_address and not connection.proxied:
            self._make_room(beside, connection)

    def _make_room(self, connections: dict[Connection, None], newest: Connection) -> None:
        """Close the oldest connection that nothing is asked on; if there is none, the newest."""
        waiting = (one for one in connections if one is not newest and one.is_idle())
        left = next(waiting, newest)
        self.remove(left)
        left.close()

    def remove(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()
        network = network_of(connection.peer)
        beside = self._addresses.get(network, {})
        beside.pop(connection, None)
        if not beside:
            self._addresses.pop(network, None)

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> list[tuple[str, int]]:
        """Listen at an address. Gives the addresses, for a port that was left to the system."""
        [sockets] = Place(host=host, port=port, reuse_port=reuse_port).open()
        await self.start_on(sockets, tls)
        return [one.getsockname()[:2] for one in sockets]

    async def start_on(
        self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> list[asyncio.Server]:
        """Take what comes by these sockets, which are closed at the end, or with what is given back."""
        loop = asyncio.get_running_loop()
        self.exchange.stay_on(loop)
        self.exchange.bind(origins_of(sockets, secure=tls is not None))
        self._tick()
        started: list[asyncio.Server] = []
        for one in sockets:
            if one.family == socket.AF_UNIX:
                # Others may listen at the path as well: it is not for us to remove.
                stays: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
                server = await loop.create_unix_server(self.made, sock=one, ssl=tls, backlog=BACKLOG, **stays)
            else:
                server = await loop.create_server(self.made, sock=one, ssl=tls, backlog=BACKLOG)
            started.append(server)
        self._servers += started
        self._start_ticking()
        return started

    def _tick(self) -> None:
        self.now = time.monotonic()
        self._date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        self.heads.clear()

    def head(self, status: int, headers: Pairs, keep: bool) -> bytes:
        """The beginning of a response, up to its length."""
        head = _STATUS[status] + self._date + encode_headers(headers) + (b"" if keep else b"connection: close\r\n")
        # A page's origin is in its headers, and there may be many of them.
        if len(self.heads) < MOST_HEADS:
            self.heads[status, headers, keep] = head
        return head

    def _start_ticking(self) -> None:
        """Check all connections once a second, instead of with a timer for each."""
        if not self._is_ticking:
            self._is_ticking = True
            self._supervisor.repeat("http connection timeouts", self._tick_on, TICK_SECONDS)
            self._supervisor.repeat("http session expiry", self.exchange.expire, TICK_SECONDS)
            self._supervisor.repeat("http keep-alive", self.exchange.keep_alive, KEEP_ALIVE_SECONDS)

    def _tick_on(self) -> None:
        self._tick()
        failures: list[Exception] = []
        for connection in list(self._connections):
            # One that cannot be checked must not keep the others open.
            try:
                connection.check(self.now)
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def idle(self) -> list[Connection]:
        """The connections that nothing is asked on."""
        return [one for one in self._connections if one.is_idle()]

    def made(self) -> Connection:
        return Connection(self)

    @property
    def is_empty(self) -> bool:
        return not self._connections

    def retire(self) -> None:
        """No new connections, while others take them: what comes by those that are open is still answered, and each
        answer says that it is the last one there."""
        for server in self._servers:
            server.close()
        self.retiring = True

    async def emptied(self, seconds: float, *, least: float | None = None) -> None:
        """Wait for the last connection to go, but no longer than this. At `least` so long, for what is on its way."""
        if least is not None:
            await asyncio.sleep(least)
            if self.is_empty:
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._empty.clear()
                await self._empty.wait()

    async def stop(self, grace: float) -> None:
        """No new connections, no new calls; what is running may finish; streams end properly."""
        for server in self._servers:
            server.close()
        self.exchange.draining = True
        for connection in list(self._connections):
            connection.close_if_idle()
        await self.exchange.drain(grace)
        self._supervisor.cancel()
        for connection in list(self._connections):
            connection.close()
        # Let the last bytes out before the loop is gone.
        await asyncio.sleep(0)


async def serve(
    exchange: Exchange,
    place: Place,
    sockets: Sequence[socket.socket] | None = None,
    *,
    ready: Callable[[str, socket.socket], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until told to stop, by a signal or by `stop`: on `sockets`, or on those of the place."""
    stop = stop or asyncio.Event()
    listener = Listener(exchange)
    try:
        with on_signals(stop.set):
            sockets = place.open()[0] if sockets is None else sockets
            await listener.start_on(sockets, place.tls())
            if ready is not None:
                ready(place.url(sockets[0], exchange.settings.path), sockets[0])
            await stop.wait()
    finally:
        # A second signal does what it always does: there is a limit to patience.
        await listener.stop(place.grace)
        place.leave()


def _most_sockets() -> int:
    """How many connections the process can have, and still open files."""
    try:
        import resource  # not on Windows
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit * 9 // 10)
