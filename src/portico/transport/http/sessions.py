"""Sessions over HTTP, 2025-03-26 to 2025-11-25: streams that outlive their connections.

Each POST that has to wait has a stream of its own, and a GET may open one more. A stream's events have ids and are
kept, within bounds, so that a client that lost its connection comes back with the last id it saw and misses nothing.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from portico.legacy.session import Session
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.door import Sender
from portico.rpc.metrics import Metrics
from portico.transport.http import sse
from portico.transport.http.response import JSON, MOST_UNREAD, Answer, Pairs, ResponseWriter, Traffic
from portico.wire import jsonrpc
from portico.wire.revisions import V2025_11_25

# How many events a session keeps for clients that come back, and how many bytes of them.
MOST_EVENTS = 1000
MOST_BYTES = 1024 * 1024
RETRY_MS = 1000
IDLE_SECONDS = 1800.0


class _SentEvent(Struct):
    stream: int
    number: int
    message: bytes


class SessionStream:
    """The messages of one POST, or of the session as a whole; with or without a client connected to it."""

    def __init__(self, session: HttpSession, number: int, writer: ResponseWriter | None) -> None:
        self.session = session
        self.number = number
        self.writer = writer
        self.headers: Pairs = ()
        # Whether its client takes events at all.
        self.plain = False
        self.done = False
        self._events = 0
        self._delivered = 0
        self._started = False

    # What a Channel needs of it

    def emit(self, method: str, params: Any) -> None:
        self.send(jsonrpc.notification(method, params))

    def send(self, message: bytes) -> None:
        # What cannot be said here is said to the session, if a client listens to it.
        (self.session.default_stream if self.plain and not self._started else self)._say(message)

    def finish(self, message: bytes | None) -> None:
        """The answer. Plain JSON when nothing was said before it; an event otherwise."""
        if self.done:
            return
        self.done = True
        if self._started or self.writer is None:
            if message is not None:
                self._say(message)
            self.end()
        else:
            writer, self.writer = self.writer, None
            writer.on_close = None
            self.session.traffic.sent += len(message or b"")
            writer.answer(
                Answer(202, self.headers) if message is None else Answer(200, (*JSON, *self.headers), message)
            )
        self.session.forget(self)

    def release(self) -> None:
        """Let the client go; it comes back for the rest."""
        if self.session.resumes and self.number != 0 and not self.plain:
            self.start()
            self.end()

    # Connections

    def start(self, at: int = 0) -> None:
        if self._started or self.writer is None:
            return
        self._started = True
        self.writer.start(200, (*sse.HEADERS, *self.headers))
        if self.session.resumes:
            # 2025-11-25 alone: clients before it do not expect an event without data. It names the place they are at.
            self.writer.write(sse.priming(self._id(at), RETRY_MS))

    def attach(self, writer: ResponseWriter, headers: Pairs, after: int | None) -> None:
        """A client is here (again): what it has not seen comes first."""
        self.end()
        self.writer, self.headers, self._started = writer, headers, False
        writer.on_close = self.detach
        place = self._delivered if after is None else after
        self.start(place)
        for event in self.session.events(self.number, place):
            self._delivered = event.number
            writer.write(sse.event(event.message, self._id(event.number)))
        if self.done:
            self.end()

    async def drain(self) -> None:
        if self.writer is not None:
            await self.writer.drain()

    def detach(self) -> None:
        """The connection is gone. That is no cancellation: the work goes on (basic/transports, Resumability)."""
        self.writer = None

    def end(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        writer.on_close = None
        if self._started:
            writer.end()
        else:
            writer.answer(Answer(202, self.headers))

    def _say(self, message: bytes) -> None:
        self._events += 1
        self.session.keep(_SentEvent(self.number, self._events, message))
        if self.writer is None:
            return
        self.start()
        if self.writer.buffered() > MOST_UNREAD:
            self.writer.abort()
        else:
            self._delivered = self._events
            self.session.traffic.sent += len(message)
            self.writer.write(sse.event(message, self._id(self._events)))

    def _id(self, number: int) -> bytes:
        return b"%d-%d" % (self.number, number)


class HttpSession:
    """One client's conversation: a Session and its Channel, and the streams they talk through."""

    def __init__(self, handler: Handler, sender: Sender, traffic: Traffic, metrics: Metrics) -> None:
        self.traffic = traffic
        # POSTs may overtake each other, so a client is not held to the order of the handshake.
        self.session = Session(handler, lifecycle="lenient")
        self.id = os.urandom(24).hex()
        self.principal = sender.principal
        self.default_stream = SessionStream(self, 0, None)
        self.channel = Channel(handler, self.default_stream.send, session=self.session, metrics=metrics, sender=sender)
        self.used = time.monotonic()
        self._streams: dict[int, SessionStream] = {0: self.default_stream}
        self._last = 0
        self._kept: deque[_SentEvent] = deque()
        self._bytes = 0

    @property
    def resumes(self) -> bool:
        return self.channel.revision is not None and self.channel.revision >= V2025_11_25

    def open(self, writer: ResponseWriter, headers: Pairs) -> SessionStream:
        """A stream for one POST."""
        self._last += 1
        stream = SessionStream(self, self._last, writer)
        stream.headers = headers
        writer.on_close = stream.detach
        self._streams[self._last] = stream
        return stream

    def resume(self, last_event: str, writer: ResponseWriter, headers: Pairs) -> None:
        """Go on after an event. One we no longer have, or never had, is answered by what there is."""
        number, _, seen = last_event.partition("-")
        stream = self._streams.get(int(number)) if number.isdecimal() and len(number) < 12 else None
        if stream is None:
            stream = self._replay(int(number)) if number.isdecimal() and len(number) < 12 else self.default_stream
        stream.attach(writer, headers, int(seen) if seen.isdecimal() and len(seen) < 12 else 0)

    def _replay(self, number: int) -> SessionStream:
        """A stream that is over: what is left of it can still be read."""
        stream = SessionStream(self, number, None)
        stream.done = True
        return stream

    def forget(self, stream: SessionStream) -> None:
        self._streams.pop(stream.number, None)

    # Events

    def keep(self, event: _SentEvent) -> None:
        self._kept.append(event)
        self._bytes += len(event.message)
        while self._kept and (len(self._kept) > MOST_EVENTS or self._bytes > MOST_BYTES):
            self._bytes -= len(self._kept.popleft().message)

    def events(self, stream: int, after: int) -> Iterator[_SentEvent]:
        return (one for one in list(self._kept) if one.stream == stream and one.number > after)

    # Age

    def is_idle(self, now: float, seconds: float) -> bool:
        connected = any(stream.writer is not None for stream in self._streams.values())
        return not connected and not self.channel.in_flight and now - self.used > seconds

    def writers(self) -> Iterator[ResponseWriter]:
        return (stream.writer for stream in self._streams.values() if stream.writer is not None and stream._started)

    def close(self) -> None:
        self.channel.close()
        self.session.close()
        for stream in list(self._streams.values()):
            stream.done = True
            stream.end()


class Sessions(dict[str, HttpSession]):
    """The sessions of one process, by id. The id of another principal is an unknown id."""

    def find(self, id: str, principal: Any) -> HttpSession | None:
        session = self.get(id)
        if session is None or session.principal != principal:
            return None
        session.used = time.monotonic()
        return session

    def end(self, session: HttpSession) -> None:
        if self.pop(session.id, None) is not None:
            session.close()

    def expire(self, idle_seconds: float) -> None:
        now = time.monotonic()
        for session in list(self.values()):
            if session.is_idle(now, idle_seconds):
                self.end(session)

    def close(self) -> None:
        for session in list(self.values()):
            self.end(session)
