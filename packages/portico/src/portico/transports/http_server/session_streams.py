"""Resumable streams of a session, which outlive their connections.

Each POST request that has to wait has its own stream, and a GET request opens one for messages to the session as a
whole. Events have ids and are stored, within limits, so that a client can resume after the last id it received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Any

from portico.protocol import jsonrpc, notifications
from portico.protocol.jsonrpc import RequestId
from portico.transports.http_server import sse
from portico.transports.http_server.messages import (
    JSON_HEADERS,
    MAX_UNREAD_BYTES,
    HeaderPairs,
    HttpRequest,
    HttpResponse,
    ResponseWriter,
)
from portico.transports.http_server.session_snapshot import EventSnapshot

if TYPE_CHECKING:
    from portico.transports.http_server.session import HttpSession

SSE_RETRY_MS = 1000


class ReplayBuffer:
    """Latest events, limited by number and size."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._most_bytes = max_bytes
        self._stored_events: deque[EventSnapshot] = deque()
        self.bytes = 0

    def append(self, event: EventSnapshot) -> None:
        self._stored_events.append(event)
        self.bytes += len(event.message)
        while len(self._stored_events) > self._max_events or self.bytes > self._most_bytes:
            self.bytes -= len(self._stored_events.popleft().message)

    def __iter__(self) -> Iterator[EventSnapshot]:
        return iter(self._stored_events)

    def events_after(self, stream: str, number: int) -> list[EventSnapshot]:
        return [item for item in self._stored_events if item.stream == stream and item.number > number]


class SessionStream:
    """Messages of one POST request, or of the session as a whole, with or without a connected client."""

    def __init__(self, session: HttpSession, name: str, writer: ResponseWriter | None) -> None:
        self.session = session
        self.name = name
        self.writer = writer
        self.headers: HeaderPairs = ()
        # The single request of a POST, with its id. None for a batch.
        self.asked: tuple[HttpRequest, RequestId] | None = None
        # The scopes that the request lacks.
        self._missing_scopes: frozenset[str] | None = None
        # Seconds after which a rate-limited request may be retried.
        self._retry_after: float | None = None
        # The principal that opened the stream, and the expiry of its token in seconds since the epoch.
        self.principal: Any = None
        self.token_expires_at: float | None = None
        # Whether the client does not accept events.
        self.json_only = False
        self.done = False
        self._events = 0
        self._started = False

    # RequestStream interface

    def notify(self, method: str, params: Any) -> None:
        # A message that cannot be sent here goes to the session, if a client listens to it.
        if not self.json_only or self._started:
            self.send_event(jsonrpc.encode_notification(method, params))
        elif method not in notifications.DROPPABLE or self.session.has_get_stream:
            self.session.send(jsonrpc.encode_notification(method, params))

    def send(self, message: bytes) -> None:
        if self.json_only and not self._started:
            self.session.send_request(message)
        else:
            self.send_event(message)

    def require_scopes(self, scopes: frozenset[str]) -> None:
        self._missing_scopes = scopes

    def set_retry_after(self, seconds: float) -> None:
        self._retry_after = seconds

    def finish(self, message: bytes | None) -> None:
        """Send the response: as plain JSON if nothing was sent before it, otherwise as an event."""
        if self.done:
            return
        self.done = True
        if self._started or self.writer is None:
            if message is not None:
                self.send_event(message)
            self.end()
        else:
            writer, self.writer = self.writer, None
            writer.on_close = None
            self.session.traffic.sent_bytes += len(message or b"")
            writer.respond(self._send_result(message))
        self.session.remove_stream(self)

    def _send_result(self, message: bytes | None) -> HttpResponse:
        if message is None:
            return HttpResponse(202, self.headers)
        forbidden = self.session.sessions.scope_error
        if self._missing_scopes is not None and self.asked is not None and forbidden is not None:
            request, id = self.asked
            refused = forbidden(request, self._missing_scopes, id)
            if refused is not None:
                return refused
        if self._retry_after is not None and self.asked is not None:
            wait = (b"retry-after", b"%d" % ceil(self._retry_after))
            return HttpResponse(429, (*JSON_HEADERS, wait, *self.headers), message)
        return HttpResponse(200, (*JSON_HEADERS, *self.headers), message)

    def detach(self) -> None:
        """Disconnect the client, which resumes the stream later."""
        if self.session.supports_resumption and not self.json_only:
            self.start()
            self.end()

    # Connections

    def start(self, at: int = 0) -> None:
        if self._started or self.writer is None:
            return
        self._started = True
        self.writer.start(200, (*sse.EVENT_STREAM_HEADERS, *self.headers))
        self.session.sessions.open_streams[self] = None
        if self.session.supports_resumption:
            # Only 2025-11-25: earlier clients do not expect an event without data. Its id contains the current position
            # and the connection number, because an id must not be used twice.
            self.writer.write(
                sse.encode_priming_event(
                    self._event_id(at) + b"-%d" % self.session.next_connection_number(), SSE_RETRY_MS
                )
            )

    def attach(self, writer: ResponseWriter, headers: HeaderPairs, after: int) -> None:
        """Connect a client, and send the events it has not received."""
        self.end()
        self.writer, self.headers, self._started = writer, headers, False
        writer.on_close = self.on_disconnect
        self.start(after)
        for event in self.replay_buffer.events_after(self.name, after):
            writer.write(sse.encode_event(event.message, self._event_id(event.number)))
        if self.done:
            self.end()

    async def drain(self) -> None:
        if self.writer is not None:
            await self.writer.drain()

    def on_disconnect(self) -> None:
        """Handle a disconnect. It does not cancel the request: the work continues (basic/transports, Resumability)."""
        self.writer = None
        self.session.on_stream_detached(self)

    def end(self) -> None:
        writer = self.writer
        if writer is None:
            return
        self.on_disconnect()
        writer.on_close = None
        if self._started:
            writer.end()
        else:
            writer.respond(HttpResponse(202, self.headers))

    def send_event(self, message: bytes) -> None:
        self._events = self._next_sequence()
        self.replay_buffer.append(EventSnapshot(self.name, self._events, message))
        if self.writer is None:
            return
        self.start()
        if self.writer.buffered_bytes() > MAX_UNREAD_BYTES:
            self.writer.abort()
        else:
            self.session.traffic.sent_bytes += len(message)
            self.writer.write(sse.encode_event(message, self._event_id(self._events)))

    def send_keep_alive(self) -> None:
        if self.writer is not None:
            self.writer.write(sse.KEEP_ALIVE_COMMENT)

    def _next_sequence(self) -> int:
        return self._events + 1

    @property
    def replay_buffer(self) -> ReplayBuffer:
        return self.session.replay_buffer

    def _event_id(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode()


class GetStream(SessionStream):
    """Stream for messages to the session as a whole. GET streams share their event numbers, so a stream can be resumed
    by its name alone.
    """

    def _next_sequence(self) -> int:
        return self.session.next_event_number()

    @property
    def replay_buffer(self) -> ReplayBuffer:
        return self.session.get_replay_buffer
