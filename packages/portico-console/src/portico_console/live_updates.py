"""What happens, told to a page for as long as it listens."""

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
from portico_console.message_log import short
from portico_console.session_auth import visitor_of
from portico_console.tool_responses import say, shown

if TYPE_CHECKING:
    from portico_console.console import Console

LONGEST_SECONDS, JUDGED_SECONDS = 600.0, 10.0
# How often something is said at most, and how long a page may wait to hear that there is no more.
BEAT_SECONDS = 0.2
MOST_AT_ONCE = 100
MOST_WATCHING = 64


class Topic:
    """Something that can be watched. It is asked for news at each beat, and says None where there are none."""

    def begin(self) -> Any:
        """A page watches: what it has seen so far."""
        return None

    def news(self, seen: Any) -> tuple[Any, Any]:
        """What there is to say, or None; and what that watcher has seen now."""
        raise NotImplementedError

    def end(self) -> None:
        """One watches no more."""


class WatchService(Service):
    """The one long call of a page."""

    name = "watching"

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.wire = WireTopic(console)
        self._questions = console.questions
        self.topics: dict[str, Topic] = {
            "targets": Changing(console.targets.listeners, lambda: {"targets": console.targets.states()}),
            "questions": Changing(console.questions.listeners, lambda: {"questions": console.questions.waiting()}),
            "wire": self.wire,
        }
        # Whether there is to be an end to everything.
        self.draining: Callable[[], bool] = lambda: False
        self._watching = 0
        self._ended = False

    def end(self) -> None:
        self._ended = True

    @tool(annotations={"readOnlyHint": True})
    async def watch(self, topics: list[str], ctx: Context) -> ToolResult:
        """Tell what happens, in log messages: their logger is the topic. It ends when the page leaves."""
        unknown = [name for name in topics if name not in self.topics]
        if unknown:
            raise ToolError(f"{unknown[0][:40]!r} cannot be watched here; there are {', '.join(self.topics)}")
        if self._watching >= MOST_WATCHING:
            raise ToolError("too many pages are watching; close one first")
        self._watching += 1
        try:
            async with self._watched(dict.fromkeys(topics)) as seen:
                return shown({"ended": await self._tell(ctx, seen)})
        finally:
            self._watching -= 1

    @asynccontextmanager
    async def _watched(self, names: dict[str, None]) -> AsyncIterator[dict[str, Any]]:
        seen: dict[str, Any] = {}
        try:
            for name in names:
                seen[name] = self.topics[name].begin()
            yield seen
        finally:
            for name in seen:
                self.topics[name].end()

    async def _tell(self, ctx: Context, seen: dict[str, Any]) -> str:
        # Who came with a token is asked for it again: it may have been taken back.
        principal = visitor_of(ctx)
        until = time.monotonic() + (LONGEST_SECONDS if principal is None else JUDGED_SECONDS)
        while time.monotonic() < until:
            for name in seen:
                said, seen[name] = self.topics[name].news(seen[name])
                if said is not None and name == "questions" and principal is not None:
                    said = {"questions": self._questions.waiting(principal.identity)}
                if said is not None:
                    say(ctx, name, said)
            if self._ended or self.draining():
                return "server"
            await asyncio.sleep(BEAT_SECONDS)
        return "time"


class Changing(Topic):
    """Something that tells of its changes; at first as it is."""

    def __init__(self, listeners: list[Callable[[], None]], look: Callable[[], Any]) -> None:
        self._look = look
        self._changes = 1
        listeners.append(self._changed)

    def _changed(self) -> None:
        self._changes += 1

    def begin(self) -> int:
        return 0

    def news(self, seen: int) -> tuple[Any, int]:
        return (None, seen) if seen == self._changes else (self._look(), self._changes)


class LookedAt(Topic):
    """Something that has to be looked at to know whether it has changed: now and then."""

    def __init__(self, look: Callable[[], Any], seconds: float = 1.0) -> None:
        self._look, self._seconds = look, seconds

    def begin(self) -> tuple[float, Any]:
        return 0.0, None

    def news(self, seen: tuple[float, Any]) -> tuple[Any, Any]:
        now = time.monotonic()
        if now < seen[0]:
            return None, seen
        found = self._look()
        return (None if found == seen[1] else found), (now + self._seconds, found)


class WireTopic(Topic):
    """The messages. While a page watches, those of clients are noted too."""

    def __init__(self, console: Console) -> None:
        self._wire = console.wire
        # Attached when the first page watches, removed when the last one leaves.
        self.taps: list[Any] = []

    def begin(self) -> int:
        for tap in self.taps:
            tap.attach()
        return self._wire.last

    def news(self, seen: int) -> tuple[Any, int]:
        for tap in self.taps:
            tap.look()
        if self._wire.last <= seen:
            return None, seen
        found = list(self._wire.find(seen))[:MOST_AT_ONCE]
        return {"messages": [short(one) for one in found]}, found[-1].id if found else seen

    def end(self) -> None:
        for tap in self.taps:
            tap.remove()
