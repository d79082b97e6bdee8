"""The hub's side of a bridge: one host session with its own messages, capabilities and identity."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.auth.principal import Principal
from portico.protocol import notifications
from portico.protocol.errors import InvalidParams, MissingClientCapability
from portico.protocol.jsonrpc import to_line
from portico.protocol.meta import NO_CAPABILITIES, ClientCapabilities, Implementation
from portico.protocol.methods import METHODS
from portico.rpc.call import Call, Handler, HandlerWrapper, get_capabilities
from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS
from portico.rpc.dispatcher import PeerInfo
from portico.transports.stdio import MAX_MESSAGE_BYTES, StdioConnection

# A user may think about a question for a while; the host has its own limit.
CLIENT_REQUEST_TIMEOUT_SECONDS = 3600.0
# Lines that a bridge has to send again to another hub.
_SESSION_METHODS = frozenset(
    (
        "initialize",
        notifications.INITIALIZED,
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
    )
)


class _Initialize(Struct):
    params: Raw


class _Envelope(Struct):
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET


_envelope = msgspec.json.Decoder(_Envelope)


def _read_envelope(message: bytes) -> _Envelope:
    try:
        return _envelope.decode(message)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()


class HostSession(StdioConnection):
    """Connection of a bridge after its greeting. Messages to it carry the number of the line that they answer."""

    def __init__(self, handler: Handler, names: list[str], pid: int, on_roots_changed: Callable[[], None]) -> None:
        self.host = _ObservingHandler(handler)
        super().__init__(
            self.host,
            max_message_size=MAX_MESSAGE_BYTES,
            max_concurrent_requests=MAX_IN_FLIGHT_REQUESTS,
            lifecycle="auto",
        )
        self.names, self.pid = names, pid
        # Tasks, suspended calls and fair shares belong to a principal, so each host session is one.
        self.channel.peer = PeerInfo(Principal(id=f"host-{os.urandom(16).hex()}"))
        # A host may still answer a question of an earlier hub; its answer must not be taken for another one.
        self.channel.use_unique_ids(int.from_bytes(os.urandom(5), "big"))
        self._on_roots_changed = on_roots_changed
        self._received = 0
        self._stops = False
        # Number of the line of each request in flight; lines of batches.
        self._numbers: dict[int | str, int] = {}
        self._marks: set[int] = set()
        self._batches: deque[int] = deque()

    # Messages of the host

    def _receive(self, line: bytes | None) -> bytes | None:
        self._received += 1
        number = self._received
        envelope = _Envelope() if line is None else _read_envelope(line)
        if line is not None and envelope.method == "initialize" and self.session.state == "CREATED":
            # Before the handshake is answered: that may already start the server, which sees the host's features.
            self._note_host(line)
        reply = super()._receive(line)
        mark = b"!" if envelope.method in _SESSION_METHODS else b""
        if reply is not None:
            return b"%d%b %b" % (number, mark, to_line(reply))
        if isinstance(envelope.id, int | str) and self.channel.is_running(envelope.id):
            self._numbers[envelope.id] = number
            if mark:
                self._marks.add(number)
            return None
        if line is not None and line.lstrip()[:1] == b"[":
            self._batches.append(number)
            return None
        if envelope.method == notifications.ROOTS_LIST_CHANGED:
            self._on_roots_changed()
        self._forget_cancelled()
        self._write_bytes(b"%d%b\n" % (number, mark))
        return None

    def _note_host(self, line: bytes) -> None:
        try:
            params = METHODS["initialize"].decode(msgspec.json.decode(line, type=_Initialize).params)
        except (msgspec.DecodeError, InvalidParams, RecursionError):
            return  # the handshake is refused
        self.host.client_capabilities, self.host.client = params.capabilities, params.client_info

    def _forget_cancelled(self) -> None:
        """Report the lines of cancelled requests as done: they get no response."""
        ended = [id for id in self._numbers if not self.channel.is_running(id)]
        for id in ended:
            self._write_bytes(b"%d\n" % self._numbers.pop(id))

    # Messages to the host

    def send(self, message: bytes) -> None:
        self._write_bytes(b"%b %b\n" % (self._number_of(message), to_line(message)))

    def _number_of(self, message: bytes) -> bytes:
        """Return the number of the line that a message answers, with its mark; empty for other messages."""
        if message[:1] == b"[":
            return b"%d" % self._batches.popleft() if self._batches else b""
        envelope = _read_envelope(message)
        if envelope.method is not UNSET or not isinstance(envelope.id, int | str):
            return b""
        number = self._numbers.pop(envelope.id, None)
        if number is None:
            return b""
        if number in self._marks:
            self._marks.discard(number)
            return b"%d!" % number
        return b"%d" % number

    def stop_reading(self) -> None:
        """Process no more lines, and tell the bridge which lines it can send to another hub."""
        if not self._stops and not self.broken:
            self._stops = True
            self._backlog.clear()
            self._write_bytes(b"end %d\n" % self._received)

    def data_received(self, data: bytes) -> None:
        if not self._stops:
            super().data_received(data)

    def tell_stop(self) -> None:
        """Tell the bridge not to start another hub before its host sends a message."""
        self._write_bytes(b"stop\n")


class _ObservingHandler(HandlerWrapper):
    """Notes the capabilities and the name of a host: in its handshake, or in its first request."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self.client_capabilities: ClientCapabilities = NO_CAPABILITIES
        self.client: Implementation | None = None
        self._start = get_capabilities(handler).start

    def start(self, call: Call) -> Any:
        if self.client is None and (call.client is not None or call.capabilities is not NO_CAPABILITIES):
            self.client_capabilities, self.client = call.capabilities, call.client
        return self._start(call)


class HostClient:
    """The host as the client of a server that serves it alone. The session is set once it exists."""

    session: HostSession | None = None

    @property
    def capabilities(self) -> ClientCapabilities:
        return NO_CAPABILITIES if self.session is None else self.session.host.client_capabilities

    @property
    def info(self) -> Implementation | None:
        return None if self.session is None else self.session.host.client

    @property
    def can_request(self) -> bool:
        return self.session is not None and self.session.session.state in ("INITIALIZING", "OPERATING")

    async def request(self, method: str, params: Any) -> Raw:
        if self.session is None or not self.can_request:
            raise MissingClientCapability({method.partition("/")[0]: {}})
        prepared = await self.session.session.prepare_request(method, params)
        return await self.session.channel.request(method, prepared, timeout=CLIENT_REQUEST_TIMEOUT_SECONDS)

    def notify(self, method: str, params: Any) -> None:
        if self.session is not None and self.session.session.state == "OPERATING":
            self.session.channel.notify(method, params)
