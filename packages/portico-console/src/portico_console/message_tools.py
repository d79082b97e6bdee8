"""Console tools for the message log, and OAuth debugging."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from portico.protocol.errors import ToolError
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_client.oauth_debugger import debug_discovery
from portico_console.message_log import LoggedMessage, MessageLog, truncate_message
from portico_console.tool_responses import structured_response

MAX_LISTED_MESSAGES = 1000
_ARROWS = {"sent": "→", "received": "←"}


class MessageService(Service):
    """Messages of all targets, and of this server's clients while a page is subscribed."""

    name = "wire"

    def __init__(self, wire: MessageLog) -> None:
        super().__init__()
        self._wire = wire
        # Whether there are other workers, whose messages are not visible here.
        self.covers_one_worker_only = False

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
        """List the most recent messages, oldest first; with `after`, only newer ones."""
        result = list(self._wire.find(after, hop=hop, peer=target, text=find, errors=errors))
        limit = max(1, min(limit, MAX_LISTED_MESSAGES))
        page = result[:limit] if after else result[-limit:]
        last = page[-1].id if page else max(after, self._wire.last)
        messages = [truncate_message(item) for item in page]
        about = {"last": last, "dropped": self._wire.dropped, "one_worker": self.covers_one_worker_only}
        return structured_response({"messages": messages, **about})

    @tool(annotations={"readOnlyHint": True})
    async def wire_message(self, id: int) -> ToolResult:
        """Return one complete message."""
        result = self._wire.get(id)
        if result is None:
            raise ToolError(f"message {id} is no longer in the log")
        return structured_response(result)

    @tool
    async def clear_wire(self) -> ToolResult:
        """Clear the message log."""
        self._wire.clear()
        return structured_response({})

    @tool(annotations={"readOnlyHint": True})
    async def export_wire(
        self,
        form: Literal["jsonl", "text", "transcript"] = "jsonl",
        target: str | None = None,
        hop: Literal["client", "target", "upstream"] | None = None,
        find: str | None = None,
        errors: bool = False,
    ) -> ToolResult:
        """Export the messages as JSON lines, as readable text, or as a transcript."""
        result = self._wire.find(hop=hop, peer=target, text=find, errors=errors)
        if form == "jsonl":
            text = "".join(msgspec.json.encode(item).decode() + "\n" for item in result)
            return structured_response({"name": "wire.jsonl", "type": "application/x-ndjson", "text": text})
        write = _as_text if form == "text" else _as_transcript
        return structured_response({"name": f"{form}.txt", "type": "text/plain", "text": "".join(map(write, result))})


def _as_text(item: LoggedMessage) -> str:
    about = " ".join(str(part) for part in (item.kind, item.method, item.name, item.status) if part is not None)
    took = "" if item.seconds is None else f" ({item.seconds * 1000:.1f} ms)"
    return f"{_format_timestamp(item.at)} {item.hop} {item.peer} {_ARROWS[item.way]} {about}{took}\n{item.text}\n\n"


def _as_transcript(item: LoggedMessage) -> str:
    """Return one line per message: its direction and its text."""
    return f"{_ARROWS[item.way]} {item.text}\n" if item.text else ""


def _format_timestamp(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


class OAuthDebugService(Service):
    """OAuth discovery, for clients without a token."""

    name = "oauth"

    @tool(annotations={"readOnlyHint": True, "openWorldHint": True})
    async def oauth_chain(self, url: str) -> ToolResult:
        """Run OAuth discovery against a server and report the findings of each step."""
        steps = await debug_discovery(url)
        return structured_response({"url": url, "steps": steps, "ok": all(step.ok for step in steps)})
