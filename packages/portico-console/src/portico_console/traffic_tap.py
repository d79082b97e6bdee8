"""Taps that log messages with their HTTP metadata, at the connections of a target and at our own HTTP server.

A tap is attached only while a page is subscribed. Otherwise calls take their normal path.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from portico.rpc.rate_limit import RateLimit, RateLimiter
from portico.transports.http_client.connection import HttpClientResponse
from portico.transports.http_client.pool import HttpConnectionPool, HttpUrl
from portico.transports.http_server.application import HttpApplication
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, HttpResponse, ResponseWriter
from portico.transports.upstream import Upstream
from portico_console.message_log import Hop, LoggedMessage, MessageLog, make_http_metadata

# No user can read more, and watching a busy server must not slow it down.
MAX_MESSAGES_PER_SECOND = 50


class RateCap:
    """Limits the logged messages per second and counts the dropped ones."""

    def __init__(self, wire: MessageLog, limit: int = MAX_MESSAGES_PER_SECOND) -> None:
        self._wire, self._limiter = wire, RateLimiter(RateLimit(1 / limit, limit), 1)

    def acquire(self) -> bool:
        """Return whether a message may be logged."""
        # Messages beyond the cap are counted and not logged: observing a busy server must not slow it down.
        if self._limiter.take(None, time.monotonic()):
            self._wire.dropped += 1
            return False
        return True


class HttpCapture:
    """Captures the HTTP around the messages of one peer."""

    def __init__(self, wire: MessageLog, hop: Hop, peer: str) -> None:
        self._wire, self._hop, self._peer = wire, hop, peer

    def on_request(self, request: bytes) -> LoggedMessage | None:
        """Return the logged message of a request, or log the request itself if it has no body."""
        head, _, body = request.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        # Tolerates a malformed request line, which is exactly what someone may be debugging.
        method, path, _ = (*line.split(" "), "", "")[:3]
        pairs = [(name, value.strip()) for name, _, value in (item.partition(":") for item in lines)]
        http = make_http_metadata(pairs, method, path)
        if not body:
            return self._wire.add(self._hop, self._peer, "sent", b"", http=http)
        return self._wire.attach_http(self._peer, http, body)

    def on_response(self, request: LoggedMessage | None, response: HttpClientResponse) -> None:
        if request is not None:
            self._wire.on_response(request, response.status, make_http_metadata(response.headers.items()))


class TappedConnectionPool(HttpConnectionPool):
    """Connection pool of a target that logs requests and responses."""

    def __init__(self, wire: MessageLog, peer: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self._notes = HttpCapture(wire, "target", peer)

    async def _exchange(self, location: HttpUrl, proxy: HttpUrl | None, request: bytes) -> HttpClientResponse:
        logged_request = self._notes.on_request(request)
        response = await super()._exchange(location, proxy, request)
        self._notes.on_response(logged_request, response)
        return response


class ExchangeTap:
    """Logs the messages between clients and an HTTP application, from `attach` to `detach`."""

    def __init__(self, exchange: HttpApplication, wire: MessageLog) -> None:
        self._exchange, self._wire = exchange, wire
        self._ration = RateCap(wire)
        # Bound to the class, not to the instance, so that two taps cannot wrap each other endlessly.
        self._plain = HttpApplication.handle.__get__(exchange)
        self._ids = count(1)
        self._watching = 0

    def attach(self) -> None:
        self._watching += 1
        if self._watching == 1:
            # A connection looks up `handle` each time, and finds this attribute before the method of the class.
            self._exchange.handle = self._handle  # type: ignore[method-assign]

    def refresh(self) -> None:
        """Do nothing: there is one HTTP application, and it stays the same."""

    def detach(self) -> None:
        self._watching -= 1
        if not self._watching:
            del self._exchange.handle

    def _handle(self, request: HttpRequest, writer: ResponseWriter) -> None:
        # Pages, probes and console requests are not protocol messages.
        ours = self._exchange.is_endpoint_path(request.path) or request.path == "/"
        if not ours or not self._ration.acquire():
            self._plain(request, writer)
            return
        started_at, trip = time.time(), f"c{next(self._ids)}"
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.items()]
        http = make_http_metadata(pairs, request.method, request.path + (f"?{request.query}" if request.query else ""))
        self._wire.add("client", request.peer, "received", request.body, http=http, exchange_id=trip)
        self._plain(request, TappedResponseWriter(writer, _ResponseCapture(self._wire, request.peer, trip, started_at)))


class UpstreamTap:
    """Logs the messages between a gateway and its upstreams.

    `connections` returns the current connections, each with the alias of its upstream.
    """

    def __init__(self, connections: Callable[[], Iterable[tuple[str, Upstream]]], wire: MessageLog) -> None:
        self._connections, self._wire = connections, wire
        # One client request may lead to several upstream messages, hence the larger cap.
        self._ration = RateCap(wire, 4 * MAX_MESSAGES_PER_SECOND)
        self._watching = 0
        self._tapped: dict[int, Upstream] = {}
        self._pools: dict[int, Any] = {}

    def attach(self) -> None:
        self._watching += 1
        self.refresh()

    def refresh(self) -> None:
        """Attach to new connections and connection pools."""
        for alias, connection in self._connections():
            if id(connection) not in self._tapped:
                self._tapped[id(connection)] = connection
                connection.set_trace(partial(self._log_message, alias))
            # A reconnected upstream has a new pool.
            pool = getattr(connection.transport, "pool", None) if connection.is_open else None
            if pool is not None and id(pool) not in self._pools:
                self._pools[id(pool)] = pool
                pool._exchange = partial(
                    _exchange_with_capture, HttpCapture(self._wire, "upstream", alias), pool._exchange
                )

    def _log_message(self, alias: str, direction: str, data: bytes) -> None:
        if self._ration.acquire():
            self._wire.add("upstream", alias, "sent" if direction == "sent" else "received", data)

    def detach(self) -> None:
        self._watching -= 1
        if not self._watching:
            for connection in self._tapped.values():
                connection.set_trace(None)
            for pool in self._pools.values():
                del pool._exchange
            self._tapped.clear()
            self._pools.clear()


async def _exchange_with_capture(
    notes: HttpCapture, plain: Any, location: Any, proxy: Any, request: bytes
) -> HttpClientResponse:
    logged_request = notes.on_request(request)
    response: HttpClientResponse = await plain(location, proxy, request)
    notes.on_response(logged_request, response)
    return response


class _ResponseCapture:
    """Logs the responses to a client."""

    def __init__(self, wire: MessageLog, peer: str, trip: str, started_at: float) -> None:
        self._add: Callable[..., Any] = wire.add
        self._about = {"exchange_id": trip, "started_at": started_at}
        self._peer = peer
        self._buffer = b""

    def answer(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        decoded_headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        self._add(
            "client", self._peer, "sent", body, http=make_http_metadata(decoded_headers), status=status, **self._about
        )

    def event(self, data: bytes) -> None:
        """Log the data of an event. Events are written as a whole, usually one at a time."""
        lines = [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]
        text = b"\n".join(lines)
        if text:
            self._add("client", self._peer, "sent", text, **self._about)


class TappedResponseWriter:
    """A response writer that logs what is written."""

    def __init__(self, writer: ResponseWriter, noting: _ResponseCapture) -> None:
        # Written past __setattr__, which passes assignments on to the wrapped writer.
        self.__dict__["_writer"] = writer
        self.__dict__["_noting"] = noting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `on_close` belongs to the wrapped writer.
        setattr(self._writer, name, value)

    def respond(self, answer: HttpResponse) -> None:
        self._noting.answer(answer.status, answer.headers, answer.body)
        self._writer.respond(answer)

    def start(self, status: int, headers: HeaderPairs) -> None:
        self._noting.answer(status, headers, b"")
        self._writer.start(status, headers)

    def write(self, data: bytes) -> None:
        self._noting.event(data)
        self._writer.write(data)
