"""The hub's side of a bridge: one host session with its own messages, capabilities and identity."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw

from portico.auth.principal import Principal
from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import InvalidParams, MissingClientCapability
from portico.protocol.jsonrpc import JsonRpcMessage, MalformedMessage, to_line
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


class _LineReply:
    """Destination of the response to one line of the host. The response carries the number of the line."""

    __slots__ = ("_prefix", "_session")

    def __init__(self, session: HostSession, prefix: bytes) -> None:
        self._session, self._prefix = session, prefix

    def notify(self, method: str, params: Any) -> None:
        self._session.channel.notify(method, params)

    @property
    def send(self) -> Callable[[bytes], None]:
        return self._session.send

    def require_scopes(self, scopes: frozenset[str]) -> None: ...

    def set_retry_after(self, seconds: float) -> None: ...

    def finish(self, message: bytes | None) -> None:
        # A cancelled request has no response, but its line is done.
        self._session.write_numbered(self._prefix, message)

    async def drain(self) -> None:
        await self._session.drain()

    def detach(self) -> None: ...


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
        # The daemon has one event loop; asking for it is a system call per message.
        self.channel.dispatcher.loop = asyncio.get_running_loop()
        # A host may still answer a question of an earlier hub; its answer must not be taken for another one.
        self.channel.use_unique_ids(int.from_bytes(os.urandom(5), "big"))
        self._on_roots_changed = on_roots_changed
        self._received = 0
        self._stops = False

    # Messages of the host

    def _receive(self, line: bytes | None) -> bytes | None:
        self._received += 1
        if line is None:
            return b"%d %b" % (self._received, super()._receive(line) or b"")
        message = jsonrpc.decode_message(line, jsonrpc.MAX_JSON_NODES)
        prefix = b"%d" % self._received
        method: object = UNSET
        if type(message) is JsonRpcMessage:
            method = message.method
            if method in _SESSION_METHODS:
                prefix += b"!"
                if method == "initialize" and self.session.state == "CREATED":
                    # Before the handshake is answered: that may already start the server, which sees the host's
                    # features.
                    self._note_host(message.params)
        stream = _LineReply(self, prefix)
        reply = self.channel.receive_decoded(message, line, stream)
        if reply is not None:
            return b"%b %b" % (prefix, to_line(reply))
        if not self._is_running(message):
            if method == notifications.ROOTS_LIST_CHANGED:
                self._on_roots_changed()
            self.write_numbered(prefix, None)
        return None

    def _is_running(self, message: JsonRpcMessage | MalformedMessage | list[Any]) -> bool:
        """Return whether a task works on a message, or on a member of a batch, and reports the line as done."""
        if type(message) is JsonRpcMessage:
            return message.method is not UNSET and self.channel.is_running(message.id)  # type: ignore[arg-type]
        return type(message) is list and any(map(self._is_running, message))

    def _note_host(self, encoded: Raw) -> None:
        try:
            params = METHODS["initialize"].decode(encoded)
        except InvalidParams:
            return  # the handshake is refused
        self.host.client_capabilities, self.host.client = params.capabilities, params.client_info

    # Messages to the host

    def send(self, message: bytes) -> None:
        self._write_bytes(b" %b\n" % to_line(message))

    def write_numbered(self, prefix: bytes, message: bytes | None) -> None:
        """Report that the line of this number is done, with its response if it has one."""
        self._write_bytes(b"%b\n" % prefix if message is None else b"%b %b\n" % (prefix, to_line(message)))

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
