"""Ring buffer of messages, each with its hop, time and round trip."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from portico.caching import LruCache

MAX_MESSAGES = 2000
MAX_LOG_BYTES = 32 * 1024 * 1024
MAX_OPEN_REQUESTS = 1000
# The peer chooses ids, so their length is limited to bound memory.
MAX_ID_CHARS = 200
# Longer messages are truncated in lists.
PREVIEW_CHARS = 8 * 1024
# Limits for all headers of a message, and for a single one.
MAX_HEADERS_CHARS = 8 * 1024
MAX_HEADER_CHARS = 2000

Hop = Literal["client", "target", "upstream"]
Direction = Literal["sent", "received"]
HeaderList = Sequence[tuple[str, str]]

# Headers whose names contain one of these are redacted, because they carry credentials.
# Matched as parts of names, since vendors invent headers such as X-Vendor-Api-Key. A false positive hides a harmless
# value, a false negative shows a credential.
_SECRET = (
    "authorization",
    "cookie",
    "token",
    "secret",
    "-key",
    "apikey",
    "password",
    "dpop",
    "portico-console",
    "jwt",
    "assertion",
    "credential",
    "client-cert",
)
_SECRET_FIELD = re.compile(
    r"([?&][^=&#]*(?:token|secret|key|password|code|assertion|sig)[^=&#]*=)[^&#]*", re.IGNORECASE
)
_REDACTED = "•••"


class HttpMetadata(Struct, frozen=True):
    """The HTTP request or response around a message."""

    method: str | None = None
    path: str | None = None
    headers: HeaderList = ()


class LoggedMessage(Struct, kw_only=True):
    """A message, or an HTTP request without one."""

    id: int
    at: float
    hop: Hop
    peer: str
    # From the point of view of this process.
    way: Direction
    # Shared by a request, its notifications and its response.
    trip: str
    kind: Literal["request", "response", "notification", "http"]
    method: str | None = None
    rpc_id: int | str | None = None
    name: str | None = None
    status: int | None = None
    http: HttpMetadata | None = None
    seconds: float | None = None
    error: bool = False
    size: int = 0
    text: str = ""
    cut: bool = False


class _MessageHeader(Struct):
    method: str | UnsetType = UNSET
    id: int | str | UnsetType | None = UNSET
    params: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET


class _ProgressMeta(Struct):
    progress: int | str | None = msgspec.field(name="progressToken", default=None)


class _ParamsHeader(Struct):
    name: Any = None
    uri: Any = None
    progress: int | str | None = msgspec.field(name="progressToken", default=None)
    meta: _ProgressMeta | None = msgspec.field(name="_meta", default=None)


class _MaybeError(Struct):
    is_error: Any = msgspec.field(name="isError", default=False)


_about = msgspec.json.Decoder(_MessageHeader)
_named = msgspec.json.Decoder(_ParamsHeader)
_result = msgspec.json.Decoder(_MaybeError)


class MessageLog:
    """The most recent messages. Listeners are called for each new one."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.dropped = 0
        self.listeners: list[Callable[[], None]] = []
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages: deque[LoggedMessage] = deque()
        self._bytes = 0
        self._ids = count(1)
        # Pending requests and their progress tokens: the round trip, and its start time.
        # Bounded: a peer that never answers must not grow the log's memory. A response whose request was evicted
        # starts a separate trip.
        self._open: LruCache[tuple[str, str, Any], tuple[str, float]] = LruCache(MAX_OPEN_REQUESTS)
        self._progress: LruCache[tuple[str, Any], str] = LruCache(MAX_OPEN_REQUESTS)
        # HTTP response heads whose messages have not arrived yet, by round trip.
        self._heads: LruCache[str, tuple[int, HttpMetadata]] = LruCache(MAX_OPEN_REQUESTS)

    def add(
        self,
        hop: Hop,
        peer: str,
        direction: Direction,
        data: bytes,
        *,
        http: HttpMetadata | None = None,
        status: int | None = None,
        exchange_id: str | None = None,
        started_at: float | None = None,
    ) -> LoggedMessage:
        """Log a message. `exchange_id` and `started_at` override the round trip derived from the message."""
        message = LoggedMessage(
            id=next(self._ids),
            at=time.time(),
            hop=hop,
            peer=peer,
            way=direction,
            trip=exchange_id or "",
            kind="http",
            http=http,
            status=status,
            size=len(data),
            text=data.decode("utf-8", "replace").rstrip("\n"),
        )
        self._parse_message(message, data)
        # The head arrives before the body and is logged with it as one message.
        if direction == "received" and http is None and message.trip in self._heads:
            message.status, message.http = self._heads.pop(message.trip)
            status = message.status
        if started_at is not None and message.kind == "response":
            message.seconds = message.at - started_at
        message.trip = message.trip or str(message.id)
        message.error = message.error or (status or 0) >= 400
        self._append(message)
        return message

    def attach_http(self, peer: str, http: HttpMetadata, body: bytes) -> LoggedMessage | None:
        """Attach HTTP metadata to a message that was just logged; return None if it was not logged."""
        text = body.decode("utf-8", "replace")
        # The message was logged a moment ago by the connection's trace, so the search ends after a few steps.
        for message in reversed(self._messages):
            if message.peer == peer and message.way == "sent" and message.http is None and message.text == text:
                message.http = http
                return message
        return None

    def on_response(self, request: LoggedMessage, status: int, http: HttpMetadata) -> None:
        """Record the head of a response; its message, if any, follows."""
        if request.kind == "request":
            self._heads[request.trip] = (status, http)
        else:
            self.add(request.hop, request.peer, "received", b"", http=http, status=status, exchange_id=request.trip)

    def _parse_message(self, message: LoggedMessage, data: bytes) -> None:
        """Parse the JSON-RPC members of a message. Invalid data is logged as it is."""
        try:
            # Decodes the members of the envelope only; params and results stay raw.
            about = _about.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return
        id = about.id if about.id is not UNSET else None
        if isinstance(about.method, str):
            message.kind = "notification" if about.id is UNSET else "request"
            message.method, message.rpc_id = about.method[:200], _short_id(id)
            named = _try_decode(_named, about.params) or _ParamsHeader()
            target = named.name if named.name is not None else named.uri
            message.name = target[:1000] if isinstance(target, str) else None
            self._track_request(message, named)
        elif about.id is not UNSET or about.error is not UNSET:
            message.kind, message.rpc_id = "response", _short_id(id)
            result = None if about.error is not UNSET else _try_decode(_result, about.result)
            message.error = about.error is not UNSET or (result is not None and result.is_error is True)
            self._match_response(message)

    def _track_request(self, message: LoggedMessage, named: _ParamsHeader) -> None:
        if message.kind == "notification":
            progress = _short_id(named.progress)
            trip = self._progress.get((message.peer, progress)) if progress is not None else None
            message.trip = message.trip or trip or ""
            return
        message.trip = message.trip or str(message.id)
        # The direction is part of the key, because both sides number their requests from 1.
        self._open[message.peer, message.way, message.rpc_id] = (message.trip, message.at)
        if named.meta is not None and named.meta.progress is not None:
            self._progress[message.peer, _short_id(named.meta.progress)] = message.trip

    def _match_response(self, message: LoggedMessage) -> None:
        request_direction = "received" if message.way == "sent" else "sent"
        result = self._open.pop((message.peer, request_direction, message.rpc_id), None)
        if result is not None:
            message.trip = message.trip or result[0]
            message.seconds = message.at - result[1]

    def _append(self, message: LoggedMessage) -> None:
        self._messages.append(message)
        # The size in memory: a single non-Latin character can quadruple the size of a string.
        self._bytes += sys.getsizeof(message.text)
        while len(self._messages) > self._max_messages or (self._bytes > self._max_bytes and len(self._messages) > 1):
            self._bytes -= sys.getsizeof(self._messages.popleft().text)
            self.dropped += 1
        for listener in self.listeners:
            listener()

    # Queries

    @property
    def last(self) -> int:
        """Return the id of the newest message, or 0."""
        return self._messages[-1].id if self._messages else 0

    def find(
        self,
        after: int = 0,
        *,
        hop: str | None = None,
        peer: str | None = None,
        text: str | None = None,
        errors: bool = False,
    ) -> Iterator[LoggedMessage]:
        """Iterate over the matching messages, oldest first."""
        needle = None if text is None else text.lower()
        for message in self._messages:
            if (
                message.id <= after
                or (hop and message.hop != hop)
                or (peer and message.peer != peer)
                or (errors and not message.error)
            ):
                continue
            if needle is None or needle in message.text.lower() or needle in (message.method or "").lower():
                yield message

    def get(self, id: int) -> LoggedMessage | None:
        """Return a message by id, or None if it was dropped."""
        return next((message for message in self._messages if message.id == id), None)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0


def truncate_message(message: LoggedMessage) -> LoggedMessage:
    """Return the message, with its text truncated if it is long."""
    if len(message.text) <= PREVIEW_CHARS:
        return message
    return msgspec.structs.replace(message, text=message.text[:PREVIEW_CHARS], cut=True)


def make_http_metadata(
    pairs: Iterable[tuple[str, str]], method: str | None = None, path: str | None = None
) -> HttpMetadata:
    """Return HTTP metadata with credentials redacted and long headers truncated."""
    visible_headers: list[tuple[str, str]] = []
    # A peer may send many headers; the log keeps a bounded part of them for each message.
    left = MAX_HEADERS_CHARS
    for name, value in pairs:
        visible_headers.append((name[:MAX_HEADER_CHARS], _redact_header(name, value)))
        left -= len(visible_headers[-1][0]) + len(visible_headers[-1][1])
        if left < 0:
            break
    return HttpMetadata(method, None if path is None else _without_secrets(path)[:MAX_HEADER_CHARS], visible_headers)


def _redact_header(name: str, value: str) -> str:
    lowered = name.lower()
    # The first characters suffice to tell sessions apart, and do not allow anyone to take one over.
    if lowered == "mcp-session-id":
        return f"{value[:8]}…"
    if any(part in lowered for part in _SECRET):
        return _REDACTED
    return (_without_secrets(value) if lowered in ("location", "referer") else value)[:MAX_HEADER_CHARS]


def _without_secrets(url: str) -> str:
    return _SECRET_FIELD.sub(rf"\g<1>{_REDACTED}", url)


def _short_id(id: Any) -> Any:
    return id[:MAX_ID_CHARS] if isinstance(id, str) else id


def _try_decode(decoder: Any, raw: Raw | UnsetType) -> Any:
    if raw is UNSET:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
