"""The tools of the console about the wire: what was said, and taking it along."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from portico.protocol.errors import ToolError
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico_console.message_log import WireLog, WireMessage, short
from portico_console.tool_responses import shown

MOST_LISTED = 1000
_ARROWS = {"sent": "→", "received": "←"}


class WireService(Service):
    """The messages of all targets, and of this server's clients while a page watches."""

    name = "wire"

    def __init__(self, wire: WireLog) -> None:
        super().__init__()
        self._wire = wire
        # Whether there are other workers, of which nothing is heard here.
        self.one_worker = False

    @tool(annotations={"readOnlyHint": True})
    async def wire(
        self,
        after: int = 0,
        limit: int = 200,
        target: str | None = None,
        hop: Literal["client", "target", "upstream"] | None = None,
        find: str | None = None,
        errors: bool = False,
    ) -> ToolResult:
        """The last messages, the oldest first; with `after`, those that came after one."""
        found = list(self._wire.find(after, hop=hop, peer=target, text=find, errors=errors))
        limit = max(1, min(limit, MOST_LISTED))
        kept = found[:limit] if after else found[-limit:]
        last = kept[-1].id if kept else max(after, self._wire.last)
        messages = [short(one) for one in kept]
        about = {"last": last, "dropped": self._wire.dropped, "one_worker": self.one_worker}
        return shown({"messages": messages, **about})

    @tool(annotations={"readOnlyHint": True})
    async def wire_message(self, id: int) -> ToolResult:
        """One message, whole."""
        found = self._wire.get(id)
        if found is None:
            raise ToolError(f"the message {id} is not kept any more")
        return shown(found)

    @tool
    async def clear_wire(self) -> ToolResult:
        """Forget the messages so far."""
        self._wire.clear()
        return shown({})

    @tool(annotations={"readOnlyHint": True})
    async def export_wire(
        self,
        form: Literal["jsonl", "text", "transcript"] = "jsonl",
        target: str | None = None,
        hop: Literal["client", "target", "upstream"] | None = None,
        find: str | None = None,
        errors: bool = False,
    ) -> ToolResult:
        """The messages as a file: all that is known of each in a line, or to be read by people."""
        found = self._wire.find(hop=hop, peer=target, text=find, errors=errors)
        if form == "jsonl":
            text = "".join(msgspec.json.encode(one).decode() + "\n" for one in found)
            return shown({"name": "wire.jsonl", "type": "application/x-ndjson", "text": text})
        write = _as_text if form == "text" else _as_transcript
        return shown({"name": f"{form}.txt", "type": "text/plain", "text": "".join(map(write, found))})


def _as_text(one: WireMessage) -> str:
    about = " ".join(str(part) for part in (one.kind, one.method, one.name, one.status) if part is not None)
    took = "" if one.seconds is None else f" ({one.seconds * 1000:.1f} ms)"
    return f"{_moment(one.at)} {one.hop} {one.peer} {_ARROWS[one.way]} {about}{took}\n{one.text}\n\n"


def _as_transcript(one: WireMessage) -> str:
    """A line for each message: the way it went, and the message itself."""
    return f"{_ARROWS[one.way]} {one.text}\n" if one.text else ""


def _moment(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
