"""Record every frame that our side sends, as a server or as a client, over any transport, and validate it against the
schema of the negotiated protocol version.

The functions that encode frames are wrapped; the packages do not know of it. Frames are validated after the test, and
equal frames once per process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from portico.protocol import jsonrpc
from portico.protocol.meta import PROTOCOL_VERSION_META_KEY
from portico.protocol.versions import FIRST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.channel import Channel, ChannelReply
from portico.rpc.dispatcher import Dispatcher, _InProcessReply
from portico.transports.base import DuplexTransport
from portico.transports.http_client.streamable_http import StreamableHttpTransport
from portico.transports.http_server.session_streams import SessionStream
from portico.transports.http_server.stateless import HttpReply
from support.frames import complaints


class SentFrame(NamedTuple):
    """A frame, its protocol version (None before one is negotiated), and the method that it responds to."""

    frame: bytes
    revision: str | None
    answers: str
    key: int


_sent: list[SentFrame] = []
_seen: set[int] = set()
# The negotiated version by client channel and dispatcher.
_agreed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# The version of the notification that is being sent.
_saying = threading.local()


def record(frame: bytes, revision: str | None, answers: str = "", *, text: bytes | None = None) -> None:
    """Store a frame for validation. `text` is the part without its id, for finding equal frames."""
    key = hash((text or frame, revision, answers))
    if key not in _seen:
        _seen.add(key)
        _sent.append(SentFrame(frame, revision, answers, key))


def check(item: pytest.Item) -> None:
    """Fail a test that sent invalid frames, unless it is marked with `broken_frames`."""
    if item.get_closest_marker("broken_frames") is not None:
        forget()
    elif results := list(iterate_invalid_frames()):
        pytest.fail("invalid frames for their protocol version:\n" + "\n".join(results), pytrace=False)


def iterate_invalid_frames() -> Iterator[str]:
    """Yield the violations of the frames that were sent since the last call."""
    sent = _sent[:]
    del _sent[: len(sent)]
    for frame, revision, answers, key in sent:
        data = msgspec.json.decode(frame)
        known_names = revision if "method" not in data else _revision_in(data) or revision
        for complaint in complaints(data, known_names, answers):
            _seen.discard(key)
            about = f" in answer to {answers}" if answers else ""
            yield f"{complaint}\n  in what was sent{about} ({known_names}): {frame[:1000].decode()}"


def forget() -> None:
    """Discard the frames that were sent since the last call."""
    for sent in _sent:
        _seen.discard(sent.key)
    _sent.clear()


def _revision_in(request: dict[str, Any]) -> str | None:
    """Return the version that a request names. Unknown versions count as the newest."""
    params = request.get("params")
    if not isinstance(params, dict):
        return None
    if request["method"] == "initialize":
        response = params.get("protocolVersion")
        return response if response in SUPPORTED_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
    meta = params.get("_meta")
    response = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    return response if response is None or response in SUPPORTED_PROTOCOL_VERSIONS else FIRST_MODERN_VERSION


class LineRecorder:
    """Records the frames of a server in another process where they are received."""

    def __init__(self) -> None:
        self._asked: dict[Any, tuple[str | None, str]] = {}
        self._agreed: str | None = None

    def record_request(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if isinstance(message, dict) and isinstance(message.get("id"), int | str) and "method" in message:
            modern = None if message["method"] == "initialize" else _revision_in(message)
            self._asked[message["id"]] = modern, str(message["method"])

    def record_response(self, line: bytes) -> None:
        message = msgspec.json.decode(line)
        if not isinstance(message, dict):
            return
        revision, method = self._asked.get(message.get("id"), (None, "")) if "method" not in message else (None, "")
        if method == "initialize" and "result" in message:
            self._agreed = message["result"]["protocolVersion"]
        record(
            line.rstrip(), revision or self._agreed or (FIRST_MODERN_VERSION if "method" in message else None), method
        )


# Wrappers


def install() -> None:
    """Start recording in this process."""
    _wrap(jsonrpc, "encode_error", _error)
    _wrap(jsonrpc, "encode_notification", _notification)
    _wrap(Dispatcher, "_encode", _encode)
    _wrap(Channel, "request", _request)
    _wrap(
        Channel,
        "notify",
        lambda emit: _record_emitted(emit, lambda self: getattr(_saying, "revision", None) or _channel_version(self)),
    )
    _wrap(ChannelReply, "_notify", lambda emit: _record_emitted(emit, _of_reply))
    _wrap(
        SessionStream, "notify", lambda emit: _record_emitted(emit, lambda self: self.session.channel.protocol_version)
    )
    _wrap(HttpReply, "_notify", lambda emit: _record_emitted(emit, lambda self: FIRST_MODERN_VERSION))
    _wrap(StreamableHttpTransport, "_send_http_request", _dispatch)
    for link in (DuplexTransport, StreamableHttpTransport):
        _wrap(link, "set_protocol_version", _set_revision)


def _wrap(place: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    setattr(place, name, wrapper(getattr(place, name)))


def _current_version() -> str | None:
    return getattr(_saying, "revision", None)


def _channel_version(channel: Channel) -> str | None:
    return _agreed.get(channel) or channel.protocol_version or channel.dispatcher.protocol_version


def _of_reply(reply: ChannelReply) -> str | None:
    # A request that names its version cannot be answered with a request.
    return _channel_version(reply._channel) if reply.can_request else FIRST_MODERN_VERSION


def _error(error: Any) -> Any:
    def recorded(id: Any, failure: Any, revision: str | None = None) -> bytes:
        frame: bytes = error(id, failure, revision)
        record(frame, revision if revision in SUPPORTED_PROTOCOL_VERSIONS else None)
        return frame

    return recorded


def _notification(notification: Any) -> Any:
    def recorded(method: str, params: Any) -> bytes:
        frame: bytes = notification(method, params)
        record(frame, _current_version())
        return frame

    return recorded


def _record_emitted(emit: Any, revision_of: Callable[[Any], str | None]) -> Any:
    """Record a notification in the version of the stream that sends it."""

    def recorded(self: Any, method: str, params: Any) -> None:
        before, _saying.revision = _current_version(), revision_of(self)
        try:
            emit(self, method, params)
        finally:
            _saying.revision = before

    return recorded


def _encode(encode: Any) -> Any:
    def recorded(self: Dispatcher, call: Any, result: Any) -> bytes:
        frame: bytes = encode(self, call, result)
        if type(call.reply) is not _InProcessReply:  # it does not leave this process
            record(
                frame, call.protocol_version or _agreed.get(self), call.method, text=frame.partition(b',"result":')[2]
            )
        return frame

    return recorded


def _request(request: Any) -> Any:
    async def recorded(self: Channel, method: str, params: Any, *, send: Any = None, **options: Any) -> Any:
        through = send or self.send

        def seen(frame: bytes) -> None:
            record(frame, _channel_version(self), text=frame.partition(b',"method":')[2])
            through(frame)

        return await request(self, method, params, send=seen, **options)

    return recorded


def _dispatch(dispatch: Any) -> Any:
    def recorded(
        self: StreamableHttpTransport, method: str, location: Any, headers: Any, body: bytes = b"", operation: str = ""
    ) -> Any:
        # Responses were recorded when they were encoded.
        if b'"method":' in body:
            record(body, self._protocol_version, text=body.partition(b',"method":')[2])
        return dispatch(self, method, location, headers, body, operation)

    return recorded


def _set_revision(set_revision: Any) -> Any:
    def recorded(self: Any, revision: str) -> None:
        _agreed[self.channel] = _agreed[self.channel.dispatcher] = revision
        set_revision(self, revision)

    return recorded
