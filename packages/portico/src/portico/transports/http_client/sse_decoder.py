"""Server-sent events, as a client reads them: the parsing of the HTML standard, with a bound."""

from __future__ import annotations

from msgspec import Struct

from portico.protocol.errors import ProtocolError

_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(Struct, frozen=True, gc=False):
    """One event. `id` is the last one that was given, which is what to come back with."""

    data: bytes
    name: str = "message"
    id: str | None = None


class EventReader:
    """Bytes to EventReader. Line ends may be any of the three, and may fall between two reads."""

    def __init__(self, longest: int) -> None:
        # What to come back with; None when there is nothing, which is also what an empty id says.
        self.last_id: str | None = None
        # How long to wait before coming back, in seconds, when the server has said so.
        self.retry: float | None = None
        # What has come, on all streams together.
        self.count = self.bytes = 0
        self._longest = longest
        self.restart()

    def restart(self) -> None:
        """A new stream begins. What the last one left unfinished is nothing: it will be said again."""
        # Not lists of pieces: many small ones take many times the room of what is in them.
        self._line = bytearray()
        self._data: bytearray | None = None
        self._name = ""
        self._id = self.last_id
        self._cut = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self.bytes += len(chunk)
        if not self._begun:
            chunk = self._without_mark(chunk)
        if chunk and (b"\r" in chunk or self._cut):
            chunk = self._plain(chunk)
        *lines, rest = chunk.split(b"\n")
        found: list[ServerSentEvent] = []
        for line in lines:
            if self._line:
                self._line += line
                line = bytes(self._line)
                self._line.clear()
            self._take(line, found)
        self._line += rest
        self.count += len(found)
        if len(self._line) + len(self._data or b"") > self._longest:
            raise self._too_long()
        return found

    def _without_mark(self, chunk: bytes) -> bytes:
        """A stream may begin with a byte order mark, and that may come in pieces too."""
        chunk = bytes(self._line) + chunk
        self._line.clear()
        if len(chunk) < len(_MARK) and _MARK.startswith(chunk):
            self._line += chunk
            return b""
        self._begun = True
        return chunk.removeprefix(_MARK)

    def _plain(self, chunk: bytes) -> bytes:
        if self._cut and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._cut = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes, found: list[ServerSentEvent]) -> None:
        if not line:
            self._dispatch(found)
            return
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            self._add(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id" and len(value) <= 1024 and value.isascii() and value.decode().isprintable():
            # What is not fit for a header could not be said back.
            self._id = value.decode() or None
        elif field == b"retry" and value.isdigit() and len(value) <= 9:
            self.retry = int(value) / 1000

    def _add(self, value: bytes) -> None:
        if self._data is None:
            self._data = bytearray(value)
        else:
            self._data += b"\n"
            self._data += value
        if len(self._data) > self._longest:
            raise self._too_long()

    def _dispatch(self, found: list[ServerSentEvent]) -> None:
        # Only now: who comes back with the id of an event that never ended would not be told of it again.
        self.last_id = self._id
        if self._data is not None:
            found.append(ServerSentEvent(bytes(self._data), self._name or "message", self.last_id))
        self._data, self._name = None, ""

    def _too_long(self) -> ProtocolError:
        return ProtocolError(f"an event is longer than {self._longest} bytes")
