"""Parser that groups a recording into requests with their notifications, server requests and responses. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from portico.protocol.jsonrpc import ErrorObject
from portico.protocol.meta import PROTOCOL_VERSION_META_KEY, SUBSCRIPTION_ID_META_KEY
from portico.protocol.methods import LONG_LIVED_METHODS
from portico.protocol.notifications import CANCELLED, PROGRESS
from portico.testing.recording.file import RecordedMessage

HANDSHAKE_METHODS = ("initialize", "server/discover")


class RecordedNotification(Struct, frozen=True):
    """A notification that arrived before the response, or after it without belonging to another request."""

    method: str
    params: Any


class RecordedServerRequest(Struct):
    """A server-to-client request and the client's response."""

    method: str
    params: Any
    response: Any = UNSET


class RecordedCall(Struct):
    """A client request with everything that it led to."""

    method: str
    params: dict[str, Any]
    # From the request itself if it carries one, otherwise from the handshake.
    protocol_version: str | None
    steps: list[RecordedNotification | RecordedServerRequest] = []
    result: Any = UNSET
    error: ErrorObject | UnsetType = UNSET
    replay_count: int = 0

    @property
    def key(self) -> tuple[str, bytes]:
        """Return the key that equal requests share."""
        return request_key(self.method, self.params)

    @property
    def has_response(self) -> bool:
        """Return whether the recording contains a result or an error for this request."""
        return self.result is not UNSET or self.error is not UNSET


def request_key(method: str, params: dict[str, Any]) -> tuple[str, bytes]:
    """Return the key that equal requests share: method and params without `_meta`, such as tokens and client info."""
    key_params = {
        # Absent and empty arguments mean the same, and clients differ in which they send.
        name: value
        for name, value in params.items()
        if name != "_meta" and (name, value) != ("arguments", {})
    }
    return method, msgspec.json.encode(key_params, order="sorted")


class RecordingParser:
    """Processes the messages in order and tracks pending requests."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        # Server messages before the first request, and server requests that belong to no request.
        self.unmatched = 0
        self._protocol_version: str | None = None
        self._pending: dict[Any, RecordedCall] = {}
        self._server_requests: dict[Any, RecordedServerRequest] = {}

    def feed(self, entry: RecordedMessage) -> None:
        """Process one recorded message, or each message of a batch."""
        for message in _messages(entry.message):
            if "method" not in message:
                self._add_response(entry.sender, message)
            elif entry.sender == "client":
                self._from_client(message)
            else:
                self._from_server(message)

    def _from_client(self, message: dict[str, Any]) -> None:
        params = _object(message.get("params"))
        if "id" in message:
            # Since 2026-07-28 each request names its version; before, the handshake decided.
            own = _object(params.get("_meta")).get(PROTOCOL_VERSION_META_KEY)
            call = RecordedCall(str(message["method"]), params, own or self._protocol_version)
            self.calls.append(call)
            self._pending[message["id"]] = call
        elif message["method"] == CANCELLED:
            # A cancelled request gets no response, so it must not collect further messages.
            self._pending.pop(params.get("requestId"), None)

    def _from_server(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        call = self._find_call(message["method"], _object(params))
        if call is None:
            self.unmatched += 1
            return
        if "id" not in message:
            call.steps.append(RecordedNotification(str(message["method"]), params))
            return
        server_request = RecordedServerRequest(str(message["method"]), params)
        self._server_requests[message["id"]] = server_request
        # The replaying server does not ping; recorded pings have no part in a result.
        if server_request.method != "ping":
            call.steps.append(server_request)

    def _find_call(self, method: str, params: dict[str, Any]) -> RecordedCall | None:
        """Return the request that a server message belongs to.

        That is the request that the message names, else the newest pending one, else the newest finished one.
        """
        if method == PROGRESS:
            token = params.get("progressToken")
            return next((item for item in reversed(self.calls) if progress_token(item.params) == token), None)
        id = _object(params.get("_meta")).get(SUBSCRIPTION_ID_META_KEY)
        if id in self._pending:
            return self._pending[id]
        # Before 2026-07-28 a notification does not name its request, so the newest pending one is the best guess.
        pending = [item for item in self._pending.values() if item.method not in LONG_LIVED_METHODS]
        candidates = pending or [
            item for item in self.calls if item.method not in (*HANDSHAKE_METHODS, *LONG_LIVED_METHODS)
        ]
        return candidates[-1] if candidates else None

    def _add_response(self, sender: str, message: dict[str, Any]) -> None:
        id = message.get("id")
        if sender == "client":
            server_request = self._server_requests.pop(id, None)
            if server_request is not None:
                server_request.response = message.get("result", UNSET)
            return
        # A response to a cancelled request no longer has an entry.
        call = self._pending.pop(id, None)
        if call is None:
            return
        if "error" in message:
            call.error = msgspec.convert(message["error"], ErrorObject, strict=False)
        else:
            call.result = message.get("result")
        if call.method == "initialize":
            self._protocol_version = call.protocol_version = _object(call.result).get("protocolVersion")


def parse_recording(entries: Iterable[RecordedMessage]) -> RecordingParser:
    """Parse the messages of a recording."""
    listener = RecordingParser()
    for entry in entries:
        listener.feed(entry)
    return listener


def progress_token(params: dict[str, Any]) -> Any:
    """Return the progress token of a request, or UNSET."""
    return _object(params.get("_meta")).get("progressToken", UNSET)


def _messages(value: Any) -> Iterator[dict[str, Any]]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
