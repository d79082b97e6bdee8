"""Where messages are seen with their HTTP around them: at the connections of a target, and at our own door.

A tap is there while a page watches. Otherwise nothing of it is on the way of a call.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from portico.transports.http_client.connection import Response
from portico.transports.http_client.pool import Location, Pool
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.messages import Answer, Pairs, Request, ResponseWriter
from portico.transports.upstream import Upstream
from portico_console.message_log import Hop, WireLog, WireMessage, http_part

# A person cannot read more, and a server that is busy is not to be slowed down by being watched.
MOST_A_SECOND = 50


class Ration:
    """So many in a second, and the others are counted."""

    def __init__(self, wire: WireLog, most: int = MOST_A_SECOND) -> None:
        self._wire, self._most = wire, most
        self._second, self._left = 0, most

    def take(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._left = second, self._most
        if self._left:
            self._left -= 1
            return True
        self._wire.dropped += 1
        return False


class PoolNotes:
    """Notes the HTTP around the messages of one peer."""

    def __init__(self, wire: WireLog, hop: Hop, peer: str) -> None:
        self._wire, self._hop, self._peer = wire, hop, peer

    def asked(self, request: bytes) -> WireMessage | None:
        """The message that a request carries, if it was noted, or the request itself, if it carries none."""
        head, _, body = request.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = (*line.split(" "), "", "")[:3]
        pairs = [(name, value.strip()) for name, _, value in (one.partition(":") for one in lines)]
        http = http_part(pairs, method, path)
        if not body:
            return self._wire.add(self._hop, self._peer, "sent", b"", http=http)
        return self._wire.sent_by(self._peer, http, body)

    def answered(self, asked: WireMessage | None, response: Response) -> None:
        if asked is not None:
            self._wire.answered(asked, response.status, http_part(response.headers.items()))


class TappedPool(Pool):
    """The connections of a target, whose requests and responses are noted."""

    def __init__(self, wire: WireLog, peer: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self._notes = PoolNotes(wire, "target", peer)

    async def _exchange(self, location: Location, proxy: Location | None, request: bytes) -> Response:
        asked = self._notes.asked(request)
        response = await super()._exchange(location, proxy, request)
        self._notes.answered(asked, response)
        return response


class ExchangeTap:
    """Notes what clients say to an exchange, and what they hear, from `attach` to `remove`."""

    def __init__(self, exchange: Exchange, wire: WireLog) -> None:
        self._exchange, self._wire = exchange, wire
        self._ration = Ration(wire)
        self._plain = Exchange.handle.__get__(exchange)
        self._ids = count(1)
        self._watching = 0

    def attach(self) -> None:
        self._watching += 1
        if self._watching == 1:
            # A connection looks its exchange's `handle` up each time, and finds this one before that of the class.
            self._exchange.handle = self._handle  # type: ignore[method-assign]

    def look(self) -> None:
        """There is one exchange, and it stays."""

    def remove(self) -> None:
        self._watching -= 1
        if not self._watching:
            del self._exchange.handle

    def _handle(self, request: Request, writer: ResponseWriter) -> None:
        # Pages, probes and the console itself are no messages.
        ours = self._exchange.has(request.path) or request.path == "/"
        if not ours or not self._ration.take():
            self._plain(request, writer)
            return
        began, trip = time.time(), f"c{next(self._ids)}"
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.items()]
        http = http_part(pairs, request.method, request.path + (f"?{request.query}" if request.query else ""))
        self._wire.add("client", request.peer, "received", request.body, http=http, trip=trip)
        self._plain(request, TappedWriter(writer, _Noting(self._wire, request.peer, trip, began)))


class UpstreamTap:
    """Log the messages between a gateway and its upstreams.

    `connections` returns the connections that are there now, each with the alias of its upstream.
    """

    def __init__(self, connections: Callable[[], Iterable[tuple[str, Upstream]]], wire: WireLog) -> None:
        self._connections, self._wire = connections, wire
        self._ration = Ration(wire, 4 * MOST_A_SECOND)
        self._watching = 0
        self._tapped: dict[int, Upstream] = {}
        self._pools: dict[int, Any] = {}

    def attach(self) -> None:
        self._watching += 1
        self.look()

    def look(self) -> None:
        """Connections come and go."""
        for alias, connection in self._connections():
            if id(connection) not in self._tapped:
                self._tapped[id(connection)] = connection
                connection.set_trace(partial(self._note, alias))
            # A connection that was made anew has others.
            pool = getattr(connection.link, "pool", None) if connection.is_open else None
            if pool is not None and id(pool) not in self._pools:
                self._pools[id(pool)] = pool
                pool._exchange = partial(_noted_exchange, PoolNotes(self._wire, "upstream", alias), pool._exchange)

    def _note(self, alias: str, way: str, data: bytes) -> None:
        if self._ration.take():
            self._wire.add("upstream", alias, "sent" if way == "sent" else "received", data)

    def remove(self) -> None:
        self._watching -= 1
        if not self._watching:
            for connection in self._tapped.values():
                connection.set_trace(None)
            for pool in self._pools.values():
                del pool._exchange
            self._tapped.clear()
            self._pools.clear()


async def _noted_exchange(notes: PoolNotes, plain: Any, location: Any, proxy: Any, request: bytes) -> Response:
    asked = notes.asked(request)
    response: Response = await plain(location, proxy, request)
    notes.answered(asked, response)
    return response


class _Noting:
    """What goes back to a client."""

    def __init__(self, wire: WireLog, peer: str, trip: str, began: float) -> None:
        self._add: Callable[..., Any] = wire.add
        self._about = {"trip": trip, "began": began}
        self._peer = peer
        self._rest = b""

    def answer(self, status: int, headers: Pairs, body: bytes) -> None:
        shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        self._add("client", self._peer, "sent", body, http=http_part(shown), status=status, **self._about)

    def event(self, data: bytes) -> None:
        """Events are written whole, and mostly each by itself."""
        lines = [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]
        text = b"\n".join(lines)
        if text:
            self._add("client", self._peer, "sent", text, **self._about)


class TappedWriter:
    """A writer that lets be seen what is written."""

    def __init__(self, writer: ResponseWriter, noting: _Noting) -> None:
        self.__dict__["_writer"] = writer
        self.__dict__["_noting"] = noting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `on_close` is for the one below.
        setattr(self._writer, name, value)

    def answer(self, answer: Answer) -> None:
        self._noting.answer(answer.status, answer.headers, answer.body)
        self._writer.answer(answer)

    def start(self, status: int, headers: Pairs) -> None:
        self._noting.answer(status, headers, b"")
        self._writer.start(status, headers)

    def write(self, data: bytes) -> None:
        self._noting.event(data)
        self._writer.write(data)
