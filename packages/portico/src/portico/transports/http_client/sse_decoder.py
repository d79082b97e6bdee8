"""Decoder of server-sent events, as the HTML standard defines them, with a size limit."""

from __future__ import annotations

from msgspec import Struct

from portico.protocol.errors import ProtocolError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(Struct, frozen=True, gc=False):
    """One event. `id` is the last id that was received, which is used for resumption."""

    data: bytes
    name: str = "message"
    id: str | None = None


class SseDecoder:
    """Decodes bytes to events. Supports all three line endings, also when a read splits them."""

    def __init__(self, max_event_bytes: int) -> None:
        # Last event id for resumption. None if there is none, or if the server sent an empty one.
        self.last_id: str | None = None
        # Delay before resumption in seconds, if the server specified one.
        self.retry_ms: float | None = None
        # Totals across all streams.
        self.event_count = self.total_bytes = 0
        self._max_event_bytes = max_event_bytes
        self.reset()

    def reset(self) -> None:
        """Start a new stream. An incomplete event of the previous stream is discarded: the server repeats it."""
        # Not lists of parts: many small objects use several times the memory of their contents.
        self._line = bytearray()
        self._data: bytearray | None = None
        self._name = ""
        self._id = self.last_id
        self._cut = False
        self._has_started = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self.total_bytes += len(chunk)
        if not self._has_started:
            chunk = self._strip_bom(chunk)
        if chunk and (b"\r" in chunk or self._cut):
            chunk = self._decode_simple(chunk)
        *lines, rest = chunk.split(b"\n")
        results: list[ServerSentEvent] = []
        for line in lines:
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            self._parse_line(line, results)
        self._line += rest
        self.event_count += len(results)
        if len(self._line) + len(self._data or b"") > self._max_event_bytes:
            raise self._too_long()
        return results

    def _strip_bom(self, chunk: bytes) -> bytes:
        """Remove a byte order mark at the start of the stream, which may arrive in parts."""
        chunk = bytes(self._line) + chunk
        self._line.clear()
        if len(chunk) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(chunk):
            self._line += chunk
            return b""
        self._has_started = True
        return chunk.removeprefix(_BYTE_ORDER_MARK)

    def _decode_simple(self, chunk: bytes) -> bytes:
        if self._cut and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._cut = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _parse_line(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._add(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id" and len(value) <= 1024 and value.isascii() and value.decode().isprintable():
            # Ids that are not valid in a header could not be sent back.
            self._id = value.decode() or None
        elif field == b"retry" and value.isdigit() and len(value) <= 9:
            self.retry_ms = int(value) / 1000

    def _add(self, value: bytes) -> None:
        if self._data is None:
            self._data = bytearray(value)
        else:
            self._data += b"\n"
            self._data += value
        if len(self._data) > self._max_event_bytes:
            raise self._too_long()

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        # Only now: resuming with the id of an incomplete event would skip that event.
        self.last_id = self._id
        if self._data is not None:
            events.append(ServerSentEvent(bytes(self._data), self._name or "message", self.last_id))
        self._data, self._name = None, ""

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"an event is longer than {self._max_event_bytes} bytes")
