"""The streams of a session, which outlive their connections.

Each POST that has to wait has one of its own, and a GET opens one for what is said to the session as a whole. Events
have ids and are kept, within bounds, so that a client that lost its connection comes back with the last id it saw and
misses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Any

from portico.protocol import jsonrpc, notifications
from portico.protocol.jsonrpc import RequestId
from portico.transports.http_server import sse
from portico.transports.http_server.messages import JSON, MOST_UNREAD, Answer, Pairs, Request, ResponseWriter
from portico.transports.http_server.session_snapshot import EventMemo

if TYPE_CHECKING:
    from portico.transports.http_server.session import HttpSession

RETRY_MS = 1000

_MISSABLE = frozenset({notifications.MESSAGE, notifications.PROGRESS})


class KeptEvents:
    """The newest events, so many of them and so many bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: deque[EventMemo] = deque()
        self.bytes = 0

    def keep(self, event: EventMemo) -> None:
        self._kept.append(event)
        self.bytes += len(event.message)
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self.bytes -= len(self._kept.popleft().message)

    def __iter__(self) -> Iterator[EventMemo]:
        return iter(self._kept)

    def after(self, stream: str, number: int) -> list[EventMemo]:
        return [one for one in self._kept if one.stream == stream and one.number > number]


class SessionStream:
    """The messages of one POST, or of the session as a whole; with or without a client connected to it."""

    def __init__(self, session: HttpSession, name: str, writer: ResponseWriter | None) -> None:
        self.session = session
        self.name = name
        self.writer = writer
        self.headers: Pairs = ()
        # The one request of a POST, and its id; none for a batch.
        self.asked: tuple[Request, RequestId] | None = None
        # The scopes without which it is not answered.
        self._lacking: frozenset[str] | None = None
        # The seconds after which to try again, where too much was asked.
        self._retry_after: float | None = None
        # By whom it was opened, and when the token ends that was shown for it, in seconds since 1970.
        self.principal: Any = None
        self.until: float | None = None
        # Whether its client takes events at all.
        self.plain = False
        self.done = False
        self._events = 0
        self._started = False

    # What a Channel needs of it

    def emit(self, method: str, params: Any) -> None:
        # What cannot be said here is said to the session, if a client listens to it.
        if not self.plain or self._started:
            self.say(jsonrpc.notification(method, params))
        elif method not in _MISSABLE or self.session.is_heard:
            self.session.say(jsonrpc.notification(method, params))

    def send(self, message: bytes) -> None:
        if self.plain and not self._started:
            self.session.ask(message)
        else:
            self.say(message)

    def lack(self, scopes: frozenset[str]) -> None:
        self._lacking = scopes

    def postpone(self, seconds: float) -> None:
        self._retry_after = seconds

    def finish(self, message: bytes | None) -> None:
        """The answer. Plain JSON when nothing was said before it; an event otherwise."""
        if self.done:
            return
        self.done = True
        if self._started or self.writer is None:
            if message is not None:
                self.say(message)
            self.end()
        else:
            writer, self.writer = self.writer, None
            writer.on_close = None
            self.session.traffic.sent += len(message or b"")
            writer.answer(self._answer(message))
        self.session.forget(self)

    def _answer(self, message: bytes | None) -> Answer:
        if message is None:
            return Answer(202, self.headers)
        forbidden = self.session.sessions.forbidden
        if self._lacking is not None and self.asked is not None and forbidden is not None:
            request, id = self.asked
            refused = forbidden(request, self._lacking, id)
            if refused is not None:
                return refused
        if self._retry_after is not None and self.asked is not None:
            wait = (b"retry-after", b"%d" % ceil(self._retry_after))
            return Answer(429, (*JSON, wait, *self.headers), message)
        return Answer(200, (*JSON, *self.headers), message)

    def release(self) -> None:
        """Let the client go; it comes back for the rest."""
        if self.session.resumes and not self.plain:
            self.start()
            self.end()

    # Connections

    def start(self, at: int = 0) -> None:
        if self._started or self.writer is None:
            return
        self._started = True
        self.writer.start(200, (*sse.HEADERS, *self.headers))
        self.session.sessions.open_streams[self] = None
        if self.session.resumes:
            # 2025-11-25 alone: clients before it do not expect an event without data. It names the place they are at,
            # and the connection, because an id may not be given twice.
            self.writer.write(sse.priming(self._id(at) + b"-%d" % self.session.connection(), RETRY_MS))

    def attach(self, writer: ResponseWriter, headers: Pairs, after: int) -> None:
        """A client is here (again): what it has not seen comes first."""
        self.end()
        self.writer, self.headers, self._started = writer, headers, False
        writer.on_close = self.detach
        self.start(after)
        for event in self.kept.after(self.name, after):
            writer.write(sse.event(event.message, self._id(event.number)))
        if self.done:
            self.end()

    async def drain(self) -> None:
        if self.writer is not None:
            await self.writer.drain()

    def detach(self) -> None:
        """The connection is gone. That is no cancellation: the work goes on (basic/transports, Resumability)."""
        self.writer = None
        self.session.detached(self)

    def end(self) -> None:
        writer = self.writer
        if writer is None:
            return
        self.detach()
        writer.on_close = None
        if self._started:
            writer.end()
        else:
            writer.answer(Answer(202, self.headers))

    def say(self, message: bytes) -> None:
        self._events = self._next()
        self.kept.keep(EventMemo(self.name, self._events, message))
        if self.writer is None:
            return
        self.start()
        if self.writer.buffered() > MOST_UNREAD:
            self.writer.abort()
        else:
            self.session.traffic.sent += len(message)
            self.writer.write(sse.event(message, self._id(self._events)))

    def keep_alive(self) -> None:
        if self.writer is not None:
            self.writer.write(sse.KEEP_ALIVE)

    def _next(self) -> int:
        return self._events + 1

    @property
    def kept(self) -> KeptEvents:
        return self.session.kept

    def _id(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode()


class GetStream(SessionStream):
    """What is said to the session as a whole. Streams by GET share the numbers of their events, so that one that is
    gone on with needs nothing but its name."""

    def _next(self) -> int:
        return self.session.event()

    @property
    def kept(self) -> KeptEvents:
        return self.session.kept_of_get
