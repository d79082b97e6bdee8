"""Client transports: one connection to a server, as a Handler."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import ConnectionClosed, InternalError, InvalidParams
from portico.protocol.jsonrpc import ErrorObject, JsonRpcMessage, MalformedMessage, RequestId
from portico.protocol.methods import LONG_LIVED_METHODS, METHODS
from portico.protocol.tools import Tool
from portico.protocol.versions import FIRST_MODERN_VERSION, V2025_03_26, ProtocolVersion
from portico.rpc.call import Call, Handler
from portico.rpc.channel import Channel
from portico.rpc.dispatcher import PeerInfo
from portico.rpc.handshake.session import HandshakeSession
from portico.text import one_line

log = logging.getLogger("portico")

# Largest message accepted from a server.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# Limits for recorded lines that are not messages.
MAX_NOISE_LINES = 5
MAX_NOISE_BYTES = 200
# As much of it as an error message quotes.
MAX_NOISE_HINT_CHARS = 80

TraceCallback = Callable[[str, bytes], None]
'Receives every message: "sent" or "received", and its bytes.'

# Whether a server message arrived on the stream of one request. That request is then the one of the current task.
in_request_stream: ContextVar[bool] = ContextVar("on_own_stream", default=False)

_REQUEST_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})\b')
_BATCH = re.compile(rb"\s*\[")
_raw_decoder = msgspec.json.Decoder(Raw)


def is_batch(data: bytes) -> bool:
    """Return whether a message is a JSON array, without decoding its contents.

    This is checked first because decoding a long array is slow. Programs print lines that only begin like an array, so
    the whole message is validated.
    """
    try:
        return _BATCH.match(data) is not None and bool(_raw_decoder.decode(data))
    except (msgspec.DecodeError, RecursionError):
        return False


def cancelled_subscription_id(notification: JsonRpcMessage) -> RequestId | None:
    """Return the id of the subscription that a server ends with this notification, or None.

    2026-07-28, basic/patterns/cancellation: servers cancel nothing else.
    """
    if notification.method != notifications.CANCELLED or notification.id is not UNSET:
        return None
    try:
        id: RequestId = METHODS[notifications.CANCELLED].decode(notification.params).request_id
    except InvalidParams:
        return None
    return id


class ClientTransport:
    """One connection to a server: `await transport(call)` sends a Call and returns its undecoded result.

    The id of a Call is its id on the wire, and its params are sent unchanged; a Call without an id is a notification.
    Cancelling the Call notifies the server. Other messages of the server go to the handler that the transport was
    created with. The Reply of a Call is closed when its response arrives.
    """

    channel: Channel
    name = "the server"
    # Called when messages may have been missed, or when the connection ended without being closed.
    on_missed_messages: Callable[[], None] = staticmethod(lambda: None)
    # Changes when another user logs in: results cached for the previous user must not be reused.
    auth_generation = 0
    # Why a request may have timed out, as far as the transport can tell: "; it sent …".
    timeout_hint = ""

    def __init__(self, trace: TraceCallback | None = None) -> None:
        self.new_id: Callable[[], int] = count(1).__next__
        self._trace = trace
        self._warned = False

    @property
    def closed(self) -> bool:
        return self.channel.closed

    @property
    def stderr_tail(self) -> list[str]:
        """Return the last lines that the server wrote to stderr, where available."""
        return []

    def set_trace(self, trace: TraceCallback | None) -> None:
        self._trace = trace

    async def start(self) -> None:
        """Open the connection."""

    async def __call__(self, call: Call) -> Any:
        raise NotImplementedError

    def set_protocol_version(self, protocol_version: ProtocolVersion) -> None:
        """Apply the negotiated protocol version."""

    def filter_callable_tools(self, tools: list[Tool]) -> list[Tool]:
        """Return the listed tools that can be called over this transport."""
        return tools

    async def close(self) -> None:
        self.channel.close()

    def _reject_server_request(self) -> None:
        # Warn once: a server without a response may keep sending requests.
        if not self._warned:
            log.warning(
                ("%s sent a request in a protocol version without server-to-client requests; it is ignored"), self.name
            )
        self._warned = True


class DuplexTransport(ClientTransport):
    """Transport with a single stream for all server messages. Only ids relate responses to requests."""

    def __init__(self, trace: TraceCallback | None = None) -> None:
        super().__init__(trace)
        self._pending: dict[RequestId, Call] = {}
        self._last_id = 0
        self._modern = False
        # The first lines that are not messages, such as a banner printed to standard output.
        self.noise: list[str] = []

    async def __call__(self, call: Call) -> Any:
        id = call.id
        if id is None:
            await self._notify(call.method, call.params)
            return None
        assert isinstance(id, int)
        self._last_id = max(self._last_id, id)
        self._pending[id] = call
        try:
            return await self._send_request(id, call.method, call.params)
        finally:
            del self._pending[id]

    async def _send_request(self, id: int, method: str, params: Raw) -> Raw:
        return await self.channel.request(method, params, id=id)

    async def _notify(self, method: str, params: Raw) -> None:
        self.channel.notify(method, params or None)

    def set_protocol_version(self, protocol_version: ProtocolVersion) -> None:
        self._modern = protocol_version >= FIRST_MODERN_VERSION
        self.channel.batching_enabled = protocol_version == V2025_03_26

    def receive(self, data: bytes) -> None:
        """Handle one message."""
        if self._trace is not None:
            self._trace("received", data)
        if not self.channel.batching_enabled and is_batch(data):
            self._fail_sole_pending("a batch, which this protocol version does not support")
            return
        frame = jsonrpc.decode_message(data)
        if isinstance(frame, MalformedMessage):
            self._on_malformed(frame, data)
            return
        if type(frame) is JsonRpcMessage and not self._is_expected(frame):
            return
        reply = self.channel.receive_message(frame)
        if reply is not None:
            self.channel.send(reply)

    def _is_expected(self, frame: JsonRpcMessage) -> bool:
        """Return whether the Channel should handle a message. Other messages have been handled here."""
        if frame.method is UNSET:
            call = self._pending.get(frame.id)  # type: ignore[arg-type]
            if call is None:
                self._on_unmatched_response(frame)
                return False
            # Close immediately: notifications that follow the response in the same read are too late.
            call.reply.close()
        elif self._modern and frame.id is not UNSET:
            self._reject_server_request()
            return False
        elif self._modern and (id := cancelled_subscription_id(frame)) is not None:
            if id in self._pending and self._pending[id].method in LONG_LIVED_METHODS:
                self.channel.fail_pending(ConnectionClosed(f"{self.name} has ended {self._pending[id].method}"), id)
            return False
        return True

    # Invalid messages

    def _on_unmatched_response(self, frame: JsonRpcMessage) -> None:
        """Handle a response whose id is not pending: it is late, or wrong."""
        id = frame.id
        if isinstance(id, int) and 0 < id <= self._last_id:
            log.debug("%s: late response to request %d", self.name, id)
        elif isinstance(id, int | str):
            reason = f"a response with the unknown id {str(id)[:100]!r}"
            self.timeout_hint = f"; it sent {reason}"
            # A server that converts numeric ids to strings will keep doing so. Otherwise the right response may still
            # arrive.
            for candidate in [item for item in self._pending if str(item) == id]:
                self._fail(candidate, reason)
        elif isinstance(frame.error, ErrorObject) and len(pending := self._pending_requests()) == 1:
            # The server could not parse our message, so it could not read its id.
            self._complete(pending[0], frame.error)
        else:
            self.timeout_hint = "; it sent a response without an id"

    def _on_malformed(self, malformed: MalformedMessage, data: bytes) -> None:
        """Handle an unreadable message. If its id can be recovered, fail that request."""
        id: RequestId | None = malformed.id
        if id is None and data.lstrip()[:1] == b"{" and (match := _REQUEST_ID.search(data)):
            id = int(match[1])
        is_request = b'"method"' in data and not malformed.is_response
        if id in self._pending and not is_request:
            self._fail(id, f"a response that cannot be decoded: {malformed.error.message}")
        elif malformed.id is not None and is_request and not self._modern:
            self.channel.send(jsonrpc.encode_error(malformed.id, malformed.error, self.channel.protocol_version))
        else:
            # Programs print arbitrary text to standard output.
            if len(self.noise) < MAX_NOISE_LINES:
                self.noise.append(data[:MAX_NOISE_BYTES].decode(errors="replace"))
                self.timeout_hint = f"; it printed {one_line(self.noise[0], MAX_NOISE_HINT_CHARS)!r}, not a message"
            log.debug("%s: %s", self.name, malformed.error.message)

    def _fail_sole_pending(self, reason: str) -> None:
        """Fail the pending request if there is only one: the invalid response must belong to it."""
        self.timeout_hint = f"; it sent {reason}"
        pending = self._pending_requests()
        if len(pending) == 1:
            self._fail(pending[0], reason)

    def _pending_requests(self) -> list[RequestId]:
        return [id for id, call in self._pending.items() if call.method not in LONG_LIVED_METHODS]

    def _fail_all(self, reason: str) -> None:
        for id in list(self._pending):
            self._fail(id, reason)

    def _fail(self, id: RequestId, reason: str) -> None:
        self._complete(
            id, ErrorObject(InternalError.code, f"{self.name}, {self._pending[id].method}: it sent {reason}")
        )

    def _complete(self, id: RequestId, error: ErrorObject) -> None:
        self.channel.receive_message(JsonRpcMessage(jsonrpc="2.0", id=id, error=error))


class InMemoryTransport(DuplexTransport):
    """Connection to a Handler in this process. Messages are real bytes and pass the same dispatcher as over stdio."""

    def __init__(self, server: Handler, client: Handler, *, principal: Any, trace: TraceCallback | None) -> None:
        super().__init__(trace)
        self.session = HandshakeSession(server)
        self._server_channel = Channel(server, self._to_client, session=self.session, peer=PeerInfo(principal))
        self.channel = Channel(client, self._to_server)

    def _to_server(self, message: bytes) -> None:
        if self._trace is not None:
            self._trace("sent", message)
        # Delivered by the event loop, as from a real stream: the sender must not be re-entered.
        asyncio.get_running_loop().call_soon(self._deliver, message)

    def _deliver(self, message: bytes) -> None:
        reply = self._server_channel.receive(message)
        if reply is not None:
            self._to_client(reply)

    def _to_client(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.receive, message)

    async def close(self) -> None:
        self.channel.close()
        await self._server_channel.shutdown(0)
        self.session.close()
