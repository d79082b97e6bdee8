"""HTTP session of 2025-03-26 to 2025-11-25. Messages sent while no GET stream is open are queued, within limits."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from portico.protocol import jsonrpc
from portico.protocol.errors import ConnectionClosed, InternalError
from portico.protocol.jsonrpc import RequestId
from portico.protocol.versions import V2025_11_25
from portico.rpc.call import Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import PeerInfo
from portico.rpc.handshake.session import HandshakeSession, LifecycleMode, SessionState
from portico.rpc.identity import principal_id
from portico.rpc.metrics import Metrics
from portico.transports.http_server.messages import HeaderPairs, HttpRequest, ResponseWriter, TrafficCounters
from portico.transports.http_server.session_snapshot import EventSnapshot, SessionSnapshot
from portico.transports.http_server.session_streams import GetStream, ReplayBuffer, SessionStream

if TYPE_CHECKING:
    from portico.transports.http_server.session_manager import SessionManager

# Limits of the events that a session stores for resumption.
MAX_REPLAY_EVENTS = 1000
MAX_REPLAY_BYTES = 1024 * 1024
# Limits of the messages to the session as a whole, sent on GET streams or queued.
MAX_QUEUED_NOTIFICATIONS = 100
MAX_QUEUED_NOTIFICATION_BYTES = 32 * 1024
# Maximum number of concurrent GET streams of a session.
MAX_GET_STREAMS = 8
# An event id consists of the stream, the event number, and the number of the connection that started after it. GET
# streams begin with `s`. In a cluster, POST streams end with the request id.
_EVENT_ID = re.compile(r"(s?[0-9]{1,11}(?:\.[ix][0-9a-f]{1,64})?)-([0-9]{1,11})(?:-[0-9]{1,11})?")
MAX_ENCODED_ID_BYTES = 32
# A session that was taken over starts its numbers at this step times the number of takeovers, so that no event id is
# reused.
SEQUENCE_STEP_PER_TAKEOVER = 10_000_000
MAX_SEQUENCE = 99_999_999_999


class HttpSession:
    """Session of one client: a HandshakeSession with its Channel, and their streams."""

    def __init__(
        self,
        handler: Handler,
        peer: PeerInfo,
        traffic: TrafficCounters,
        metrics: Metrics,
        sessions: SessionManager,
        lifecycle: LifecycleMode = "auto",
    ) -> None:
        self.traffic = traffic
        self.sessions = sessions
        # POST requests may overtake each other, so the order of the handshake is only enforced if configured.
        is_strict = lifecycle == "strict"
        self.session = HandshakeSession(handler, lifecycle=lifecycle, ordered=is_strict, list_changes=sessions.changes)
        self.id = sessions.new_id()
        # The principal that started the session.
        self.principal = peer.principal
        self._owner = principal_id(peer.principal)
        self.address = peer.address or ""
        self.channel = Channel(handler, self.send, session=self.session, metrics=metrics, peer=peer)
        self.channel.session_id = self.id
        self.last_used = time.monotonic()
        # Streams of POST and of GET requests. The newest GET stream receives messages.
        self._post_streams: dict[str, SessionStream] = {}
        self._get_streams: list[GetStream] = []
        self._last = self._event = self._connection = 0
        self.replay_buffer = ReplayBuffer(MAX_REPLAY_EVENTS, MAX_REPLAY_BYTES)
        self.get_replay_buffer = ReplayBuffer(MAX_QUEUED_NOTIFICATIONS, MAX_QUEUED_NOTIFICATION_BYTES)
        # Queued while no GET stream is open: notifications without duplicates, and requests.
        self._queued_notifications: dict[bytes, None] = {}
        self._notice_bytes = 0
        self._queued_requests: list[bytes] = []
        # Whether a GET stream was open before, and may be opened again.
        self._had_get_stream = False
        # How often the session was taken over from another process.
        self._takeovers = 0

    def belongs_to(self, principal: Any) -> bool:
        """Return whether the session belongs to a principal, whatever its current scopes: a step-up changes them."""
        return self._owner == principal_id(principal)

    @property
    def supports_resumption(self) -> bool:
        return self.channel.protocol_version is not None and self.channel.protocol_version >= V2025_11_25

    @property
    def has_get_stream(self) -> bool:
        """Return whether a client listens for messages to the session as a whole."""
        return bool(self._get_streams)

    def open_post_stream(
        self, writer: ResponseWriter, headers: HeaderPairs, id: RequestId | None = None
    ) -> SessionStream:
        """Open the stream of a POST request, whose message may have an id."""
        coded = _encode_request_id(id) if self.sessions.cluster is not None else ""
        stream = SessionStream(self, f"{self._new_stream()}{coded}", writer)
        stream.headers = headers
        writer.on_close = stream.on_disconnect
        self._post_streams[stream.name] = stream
        return stream

    def open_get_stream(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Open the stream of a GET request. A client may have several; each message is sent on one of them."""
        self._attach_get_stream(f"s{self._new_stream()}", request, writer, self._event)

    def _attach_get_stream(self, name: str, request: HttpRequest, writer: ResponseWriter, after: int) -> None:
        stream = GetStream(self, name, None)
        stream.principal, stream.token_expires_at = request.principal, request.until
        stream.attach(writer, request.cors, after)
        self._get_streams.append(stream)
        self._had_get_stream = True
        self.session.set_reachable(True)
        waiting, self._queued_notifications, self._notice_bytes = (
            [*self._queued_requests, *self._queued_notifications],
            {},
            0,
        )
        self._queued_requests = []
        for message in waiting:
            self.send(message)
        if len(self._get_streams) > MAX_GET_STREAMS:
            self._get_streams[0].end()

    def resume_stream(self, last_event: str, request: HttpRequest, writer: ResponseWriter) -> None:
        """Resume a stream after an event. If the event is unknown, send what is available."""
        match = _EVENT_ID.fullmatch(last_event)
        if match is None:
            self.open_get_stream(request, writer)
            return
        name, seen = match[1], int(match[2])
        if name.startswith("s"):
            for stream in [get_stream for get_stream in self._get_streams if get_stream.name == name]:
                stream.end()
            self._attach_get_stream(name, request, writer, seen)
        else:
            (self._post_streams.get(name) or self._open_replay_stream(name)).attach(writer, request.cors, seen)

    def _open_replay_stream(self, name: str) -> SessionStream:
        """Return a completed stream, whose stored events can still be read."""
        stream = SessionStream(self, name, None)
        stream.done = True
        if self._takeovers and not self.replay_buffer.events_after(name, 0) and "." in name:
            # The process that ran the call has ended, and the call with it.
            lost = InternalError("Internal error: the process that ran this call has ended")
            self.replay_buffer.append(
                EventSnapshot(
                    name,
                    MAX_SEQUENCE,
                    jsonrpc.encode_error(_decode_request_id(name), lost, self.channel.protocol_version),
                )
            )
        return stream

    def remove_stream(self, stream: SessionStream) -> None:
        self._post_streams.pop(stream.name, None)
        if not self.session.lasting:
            self.session.close()

    def load_state(self, state: SessionState | None) -> None:
        """Serve a single request with a given state, or a handshake without one."""
        self.session.lasting = False
        if state is not None:
            self.session.assume_protocol_version(state.protocol_version)
            self.session.client = state.client

    def on_stream_detached(self, stream: SessionStream) -> None:
        self.sessions.open_streams.pop(stream, None)
        if isinstance(stream, GetStream) and stream in self._get_streams:
            self._get_streams.remove(stream)
            if not self._get_streams:
                self.session.set_reachable(False)

    # Sequence numbers

    def _new_stream(self) -> int:
        self._last += 1
        return self._last

    def next_event_number(self) -> int:
        self._event += 1
        return self._event

    def next_connection_number(self) -> int:
        self._connection += 1
        return self._connection

    # Messages to the session as a whole

    def send(self, message: bytes) -> None:
        """Send a message on one stream, or queue it for the next one. Duplicate notifications are queued once."""
        if self._get_streams:
            self._get_streams[-1].send_event(message)
            return
        self._notice_bytes += 0 if self._queued_notifications.pop(message, True) is None else len(message)
        self._queued_notifications[message] = None
        while (
            len(self._queued_notifications) > MAX_QUEUED_NOTIFICATIONS
            or self._notice_bytes > MAX_QUEUED_NOTIFICATION_BYTES
        ):
            oldest = next(iter(self._queued_notifications))
            del self._queued_notifications[oldest]
            self._notice_bytes -= len(oldest)

    def send_request(self, message: bytes) -> None:
        """Send or queue a request. A call waits for each response, so the calls in flight bound their number."""
        if self._get_streams:
            self._get_streams[-1].send_event(message)
        elif self._had_get_stream:
            self._queued_requests.append(message)
        else:
            raise ConnectionClosed("the client accepts no events and has no stream for server requests")

    def end_get_streams(self) -> None:
        """End the GET streams. A client can resume them."""
        for stream in list(self._get_streams):
            stream.end()

    # Transfer to another process

    def snapshot(self, *, include_events: bool = False) -> SessionSnapshot | None:
        """Return the state for another process, with the stored events if `include_events` is set."""
        facts = self.session.export_state
        if facts is None:
            return None
        memo = SessionSnapshot(facts=facts, principal=self.principal, address=self.address, moves=self._takeovers)
        if include_events:
            memo.events, memo.events_of_get = list(self.replay_buffer), list(self.get_replay_buffer)
            memo.notices, memo.questions = list(self._queued_notifications), self._queued_requests
        memo.listened = self._had_get_stream
        return memo

    async def restore(self, id: str, snapshot: SessionSnapshot) -> None:
        """Restore a session of another process."""
        self.id = self.channel.session_id = id
        self._takeovers = snapshot.moves + 1
        self._last = self._event = self._connection = self._takeovers * SEQUENCE_STEP_PER_TAKEOVER
        for event in snapshot.events:
            self.replay_buffer.append(event)
        for event in snapshot.events_of_get:
            self.get_replay_buffer.append(event)
        self._queued_requests, self._had_get_stream = snapshot.questions, snapshot.listened
        for message in snapshot.notices:
            self.send(message)
        await self.session.restore(snapshot.facts, snapshot.principal, snapshot.address)

    # Activity

    @property
    def is_idle(self) -> bool:
        """Return whether no call is active, so that another process can take over the session."""
        return not self.channel.in_flight and not self._post_streams

    @property
    def is_in_use(self) -> bool:
        """Return whether a client is connected, or a call is active."""
        connected = self._get_streams or any(stream.writer is not None for stream in self._post_streams.values())
        return bool(connected or self.channel.in_flight)

    def close_channel(self) -> None:
        """Close the channel. Streams stay open."""
        self.channel.close()
        self.session.close()

    def close(self) -> None:
        self.close_channel()
        for stream in [*self._post_streams.values(), *self._get_streams]:
            stream.done = True
            stream.end()


def _encode_request_id(id: RequestId | None) -> str:
    """Return the request id as part of a stream name. Empty if it is too long."""
    if isinstance(id, int) and id >= 0:
        return f".i{id:x}"
    data = id.encode() if isinstance(id, str) else b""
    return f".x{data.hex()}" if 0 < len(data) <= MAX_ENCODED_ID_BYTES else ""


def _decode_request_id(name: str) -> RequestId | None:
    code = name.partition(".")[2]
    if code.startswith("i"):
        # A client may send any name; no message has a larger number.
        number = int(code[1:], 16)
        return number if number < 2**63 else None
    try:
        return bytes.fromhex(code[1:]).decode()
    except ValueError:
        return None
