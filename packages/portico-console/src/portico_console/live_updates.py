"""Live updates, streamed to a page while it is connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from portico.protocol.errors import ToolError
from portico.server.components.results import ToolResult
from portico.server.context.context import Context
from portico.server.registry.service import Service, tool
from portico_console.message_log import truncate_message
from portico_console.session_auth import visitor_of
from portico_console.tool_responses import emit_event, structured_response

if TYPE_CHECKING:
    from portico_console.console import Console

# Streams are renewed, so that a proxy with an idle limit, or a page that vanished without closing, does not hold one
# forever.
MAX_STREAM_SECONDS, AUTH_RECHECK_SECONDS = 600.0, 10.0
# The interval between updates, which is also the longest delay before a page learns that the stream ended.
UPDATE_INTERVAL_SECONDS = 0.2
# The rest follows with the next update: a busy server must not make the page decode thousands of messages together.
MAX_MESSAGES_PER_UPDATE = 100
MAX_STREAMS = 64


class UpdateTopic:
    """A subject of updates. It is polled at each interval and returns None if nothing changed."""

    def subscribe(self) -> Any:
        """Start a subscription and return its initial position."""
        return None

    def poll(self, seen: Any) -> tuple[Any, Any]:
        """Return the new data, or None, and the subscriber's new position."""
        raise NotImplementedError

    def unsubscribe(self) -> None:
        """End a subscription."""


class LiveUpdateService(Service):
    """The long-running call that streams updates to a page."""

    name = "watching"

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.message_topic = MessageTopic(console)
        self._questions = console.server_requests
        self.topics: dict[str, UpdateTopic] = {
            "targets": ChangeTopic(console.targets.listeners, lambda: {"targets": console.targets.states()}),
            "questions": ChangeTopic(
                console.server_requests.listeners, lambda: {"questions": console.server_requests.pending_for()}
            ),
            "wire": self.message_topic,
        }
        # Whether the server is shutting down.
        self.draining: Callable[[], bool] = lambda: False
        self._watching = 0
        self._is_closed = False

    def end(self) -> None:
        """End all streams."""
        self._is_closed = True

    @tool(annotations={"readOnlyHint": True})
    async def watch(self, topics: list[str], ctx: Context) -> ToolResult:
        """Stream events as log messages whose logger is the topic, until the page disconnects."""
        unknown = [name for name in topics if name not in self.topics]
        if unknown:
            raise ToolError(f"unknown topic {unknown[0][:40]!r} (expected one of {', '.join(self.topics)})")
        # Each stream polls five times a second; the limit keeps forgotten tabs from slowing down the server.
        if self._watching >= MAX_STREAMS:
            raise ToolError("too many pages are connected; close one first")
        self._watching += 1
        try:
            async with self._subscribe(dict.fromkeys(topics)) as seen:
                return structured_response({"ended": await self._publish(ctx, seen)})
        finally:
            self._watching -= 1

    @asynccontextmanager
    async def _subscribe(self, names: dict[str, None]) -> AsyncIterator[dict[str, Any]]:
        seen: dict[str, Any] = {}
        try:
            for name in names:
                seen[name] = self.topics[name].subscribe()
            yield seen
        finally:
            for name in seen:
                self.topics[name].unsubscribe()

    async def _publish(self, ctx: Context, seen: dict[str, Any]) -> str:
        # Visitors with a token must reconnect regularly, so that a revoked token takes effect.
        principal = visitor_of(ctx)
        until = time.monotonic() + (MAX_STREAM_SECONDS if principal is None else AUTH_RECHECK_SECONDS)
        while time.monotonic() < until:
            for name in seen:
                update, seen[name] = self.topics[name].poll(seen[name])
                # A visitor sees only the requests of their own calls; the owner sees all.
                if update is not None and name == "questions" and principal is not None:
                    update = {"questions": self._questions.pending_for(principal.identity)}
                if update is not None:
                    emit_event(ctx, name, update)
            if self._is_closed or self.draining():
                return "server"
            await asyncio.sleep(UPDATE_INTERVAL_SECONDS)
        return "time"


class ChangeTopic(UpdateTopic):
    """Topic of an object that reports its changes; a new subscriber receives the current state."""

    def __init__(self, listeners: list[Callable[[], None]], loader: Callable[[], Any]) -> None:
        self._loader = loader
        self._changes = 1
        listeners.append(self._wake_listeners)

    def _wake_listeners(self) -> None:
        self._changes += 1

    def subscribe(self) -> int:
        return 0

    def poll(self, seen: int) -> tuple[Any, int]:
        return (None, seen) if seen == self._changes else (self._loader(), self._changes)


class PolledTopic(UpdateTopic):
    """Topic that is polled at intervals to detect changes."""

    def __init__(self, poll: Callable[[], Any], seconds: float = 1.0) -> None:
        self._loader, self._seconds = poll, seconds

    def subscribe(self) -> tuple[float, Any]:
        return 0.0, None

    def poll(self, seen: tuple[float, Any]) -> tuple[Any, Any]:
        now = time.monotonic()
        if now < seen[0]:
            return None, seen
        result = self._loader()
        return (None if result == seen[1] else result), (now + self._seconds, result)


class MessageTopic(UpdateTopic):
    """Topic of logged messages. While a page is subscribed, messages of clients are logged too."""

    def __init__(self, console: Console) -> None:
        self._wire = console.message_log
        # Attached with the first subscriber, removed with the last one.
        self.taps: list[Any] = []

    def subscribe(self) -> int:
        # Logging all traffic costs time and memory, so it is on only while a page shows it.
        for tap in self.taps:
            tap.attach()
        return self._wire.last

    def poll(self, seen: int) -> tuple[Any, int]:
        for tap in self.taps:
            tap.refresh()
        if self._wire.last <= seen:
            return None, seen
        result = list(self._wire.find(seen))[:MAX_MESSAGES_PER_UPDATE]
        return {"messages": [truncate_message(item) for item in result]}, result[-1].id if result else seen

    def unsubscribe(self) -> None:
        for tap in self.taps:
            tap.detach()
