"""What was said: a ring of messages, each with its hop, its time and its round trip."""

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

MOST_MESSAGES = 2000
MOST_BYTES = 32 * 1024 * 1024
MOST_OPEN = 1000
# Of an id: the other side may have chosen it to fill our memory.
LONGEST_ID = 200
# Of a message that is longer, the list shows the beginning.
SHOWN = 8 * 1024
# Of all headers of a message, and of one.
LONGEST_HEADERS = 8 * 1024
LONGEST_HEADER = 2000

Hop = Literal["client", "target", "upstream"]
Way = Literal["sent", "received"]
HeaderList = Sequence[tuple[str, str]]

# What opens a door is not shown, in whatever header it stands.
_SECRET = (
    "authorization", "cookie", "token", "secret", "-key", "apikey", "password", "dpop", "portico-console", "jwt",
    "assertion", "credential", "client-cert",
)  # fmt: skip
_SECRET_FIELD = re.compile(
    r"([?&][^=&#]*(?:token|secret|key|password|code|assertion|sig)[^=&#]*=)[^&#]*", re.IGNORECASE
)
_HIDDEN = "•••"


class HttpPart(Struct, frozen=True):
    """The HTTP around a message."""

    method: str | None = None
    path: str | None = None
    headers: HeaderList = ()


class WireMessage(Struct, kw_only=True):
    """One message, or an HTTP request without one."""

    id: int
    at: float
    hop: Hop
    peer: str
    # Seen from here.
    way: Way
    # What a request, all that is said on its way, and its response share.
    trip: str
    kind: Literal["request", "response", "notification", "http"]
    method: str | None = None
    rpc_id: int | str | None = None
    name: str | None = None
    status: int | None = None
    http: HttpPart | None = None
    seconds: float | None = None
    error: bool = False
    size: int = 0
    text: str = ""
    cut: bool = False


class _About(Struct):
    method: str | UnsetType = UNSET
    id: int | str | UnsetType | None = UNSET
    params: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET


class _ProgressMeta(Struct):
    progress: int | str | None = msgspec.field(name="progressToken", default=None)


class _AboutName(Struct):
    name: Any = None
    uri: Any = None
    progress: int | str | None = msgspec.field(name="progressToken", default=None)
    meta: _ProgressMeta | None = msgspec.field(name="_meta", default=None)


class _MaybeError(Struct):
    is_error: Any = msgspec.field(name="isError", default=False)


_about = msgspec.json.Decoder(_About)
_named = msgspec.json.Decoder(_AboutName)
_result = msgspec.json.Decoder(_MaybeError)


class WireLog:
    """The last messages. Who wants to hear of new ones gives a function."""

    def __init__(self, most: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0
        self.listeners: list[Callable[[], None]] = []
        self._most, self._most_bytes = most, most_bytes
        self._messages: deque[WireMessage] = deque()
        self._bytes = 0
        self._ids = count(1)
        # Requests that have no answer yet, and what tells of their progress: the trip, and when it began.
        self._open: dict[tuple[str, str, Any], tuple[str, float]] = {}
        self._progress: dict[tuple[str, Any], str] = {}
        # The heads of responses whose messages have not come yet, by their trips.
        self._heads: dict[str, tuple[int, HttpPart]] = {}

    def add(
        self,
        hop: Hop,
        peer: str,
        way: Way,
        data: bytes,
        *,
        http: HttpPart | None = None,
        status: int | None = None,
        trip: str | None = None,
        began: float | None = None,
    ) -> WireMessage:
        """Note a message. `trip` and `began` are for those who know better than the message what it belongs to."""
        message = WireMessage(
            id=next(self._ids), at=time.time(), hop=hop, peer=peer, way=way, trip=trip or "", kind="http", http=http,
            status=status, size=len(data), text=data.decode("utf-8", "replace").rstrip("\n"),
        )  # fmt: skip
        self._read(message, data)
        if way == "received" and http is None and message.trip in self._heads:
            message.status, message.http = self._heads.pop(message.trip)
            status = message.status
        if began is not None and message.kind == "response":
            message.seconds = message.at - began
        message.trip = message.trip or str(message.id)
        message.error = message.error or (status or 0) >= 400
        self._keep(message)
        return message

    def sent_by(self, peer: str, http: HttpPart, body: bytes) -> WireMessage | None:
        """A message that was noted just now gets its HTTP; None if it was not noted."""
        text = body.decode("utf-8", "replace")
        for message in reversed(self._messages):
            if message.peer == peer and message.way == "sent" and message.http is None and message.text == text:
                message.http = http
                return message
        return None

    def answered(self, asked: WireMessage, status: int, http: HttpPart) -> None:
        """A response has begun. If it has a message, that is still to come."""
        if asked.kind == "request":
            _remember(self._heads, asked.trip, (status, http))
        else:
            self.add(asked.hop, asked.peer, "received", b"", http=http, status=status, trip=asked.trip)

    def _read(self, message: WireMessage, data: bytes) -> None:
        """What a message says of itself. It may be anything: then it is shown as it is."""
        try:
            about = _about.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return
        id = about.id if about.id is not UNSET else None
        if isinstance(about.method, str):
            message.kind = "notification" if about.id is UNSET else "request"
            message.method, message.rpc_id = about.method[:200], _short_id(id)
            named = _decoded(_named, about.params) or _AboutName()
            what = named.name if named.name is not None else named.uri
            message.name = what[:1000] if isinstance(what, str) else None
            self._follow(message, named)
        elif about.id is not UNSET or about.error is not UNSET:
            message.kind, message.rpc_id = "response", _short_id(id)
            result = None if about.error is not UNSET else _decoded(_result, about.result)
            message.error = about.error is not UNSET or (result is not None and result.is_error is True)
            self._answer(message)

    def _follow(self, message: WireMessage, named: _AboutName) -> None:
        if message.kind == "notification":
            progress = _short_id(named.progress)
            trip = self._progress.get((message.peer, progress)) if progress is not None else None
            message.trip = message.trip or trip or ""
            return
        message.trip = message.trip or str(message.id)
        _remember(self._open, (message.peer, message.way, message.rpc_id), (message.trip, message.at))
        if named.meta is not None and named.meta.progress is not None:
            _remember(self._progress, (message.peer, _short_id(named.meta.progress)), message.trip)

    def _answer(self, message: WireMessage) -> None:
        asked = "received" if message.way == "sent" else "sent"
        found = self._open.pop((message.peer, asked, message.rpc_id), None)
        if found is not None:
            message.trip = message.trip or found[0]
            message.seconds = message.at - found[1]

    def _keep(self, message: WireMessage) -> None:
        self._messages.append(message)
        # As it is in memory, where one character of a text can make it four times as long.
        self._bytes += sys.getsizeof(message.text)
        while len(self._messages) > self._most or (self._bytes > self._most_bytes and len(self._messages) > 1):
            self._bytes -= sys.getsizeof(self._messages.popleft().text)
            self.dropped += 1
        for told in self.listeners:
            told()

    # Looking

    @property
    def last(self) -> int:
        return self._messages[-1].id if self._messages else 0

    def find(
        self,
        after: int = 0,
        *,
        hop: str | None = None,
        peer: str | None = None,
        text: str | None = None,
        errors: bool = False,
    ) -> Iterator[WireMessage]:
        """Those that fit, the oldest first."""
        wanted = None if text is None else text.lower()
        for one in self._messages:
            if one.id <= after or (hop and one.hop != hop) or (peer and one.peer != peer) or (errors and not one.error):
                continue
            if wanted is None or wanted in one.text.lower() or wanted in (one.method or "").lower():
                yield one

    def get(self, id: int) -> WireMessage | None:
        return next((one for one in self._messages if one.id == id), None)

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0


def short(message: WireMessage) -> WireMessage:
    """The same, with the beginning of what is long."""
    if len(message.text) <= SHOWN:
        return message
    return msgspec.structs.replace(message, text=message.text[:SHOWN], cut=True)


def http_part(pairs: Iterable[tuple[str, str]], method: str | None = None, path: str | None = None) -> HttpPart:
    """Without what opens a door, and with no more than a person wants to read."""
    shown: list[tuple[str, str]] = []
    left = LONGEST_HEADERS
    for name, value in pairs:
        shown.append((name[:LONGEST_HEADER], _shown(name, value)))
        left -= len(shown[-1][0]) + len(shown[-1][1])
        if left < 0:
            break
    return HttpPart(method, None if path is None else _without_secrets(path)[:LONGEST_HEADER], shown)


def _shown(name: str, value: str) -> str:
    lowered = name.lower()
    if lowered == "mcp-session-id":
        return f"{value[:8]}…"
    if any(part in lowered for part in _SECRET):
        return _HIDDEN
    return (_without_secrets(value) if lowered in ("location", "referer") else value)[:LONGEST_HEADER]


def _without_secrets(url: str) -> str:
    return _SECRET_FIELD.sub(rf"\g<1>{_HIDDEN}", url)


def _short_id(id: Any) -> Any:
    return id[:LONGEST_ID] if isinstance(id, str) else id


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """The oldest goes: what has no answer after so many others has none to come."""
    known.pop(key, None)
    if len(known) >= MOST_OPEN:
        del known[next(iter(known))]
    known[key] = value


def _decoded(decoder: Any, raw: Raw | UnsetType) -> Any:
    if raw is UNSET:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
