"""The tools of the console about what happens: calls, sessions, workers."""

from __future__ import annotations

import os
import time
from typing import Any

from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_snapshot import SessionMemo
from portico_console.call_metrics import Sampler
from portico_console.tool_responses import shown

MOST_SESSIONS = 500
# Of an id: who has the whole of one may speak in its session.
SHOWN_ID = 8
READS = {"readOnlyHint": True}


class HappeningService(Service):
    """What an exchange is doing."""

    name = "happening"

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self.sampler = Sampler(exchange)

    @tool(annotations=READS)
    async def metrics(self) -> ToolResult:
        """Calls a second, how long they take and how many fail, now and in the last minutes."""
        numbers = self.sampler.look()
        return shown({**_plain(numbers), "history": list(self.sampler.history)})

    @tool(annotations=READS)
    async def sessions(self) -> ToolResult:
        """The sessions of clients that speak a revision with a handshake."""
        return shown(self.look_at_sessions())

    def look_at_sessions(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        total = 0
        for path, endpoint in self._exchange.endpoints.items():
            total += len(endpoint)
            found += [_session(path, one) for one in endpoint.sessions.values()[: MOST_SESSIONS - len(found)]]
        if self._exchange.elsewhere is not None:
            others = self._exchange.elsewhere.other_sessions()
            total += others.total
            found += [_session_elsewhere(*one) for one in others.some[: MOST_SESSIONS - len(found)]]
        return {"sessions": found, "total": total}

    @tool(annotations=READS)
    async def workers(self) -> ToolResult:
        """The processes that serve together, as far as this machine knows."""
        own = {
            "id": "this one",
            "pid": os.getpid(),
            "state": "draining" if self._exchange.draining else "serving",
            "sessions": sum(map(len, self._exchange.endpoints.values())),
            "in_flight": self._exchange.metrics.in_flight,
            "calls": sum(sum(counts) for counts in self._exchange.metrics.counts().values()),
        }
        others = [] if self._exchange.elsewhere is None else await self._exchange.elsewhere.look_around()
        return shown({"workers": [own, *others]})


def _session(path: str, one: HttpSession) -> dict[str, Any]:
    facts, principal = one.session.facts, one.principal
    return {
        "id": one.id[:SHOWN_ID],
        "revision": one.channel.revision,
        "client": None if facts is None else facts.client,
        "principal": getattr(principal, "id", None),
        "address": one.address,
        "endpoint": path,
        # To a whole second: a page is told when something has changed.
        "idle": int(time.monotonic() - one.used) // 5 * 5,
        "listens": one.is_heard,
    }


def _session_elsewhere(id: str, path: str, memo: SessionMemo, used_at: float) -> dict[str, Any]:
    """As its process has written it down: whether its client listens is not."""
    return {
        "id": id[:SHOWN_ID],
        "revision": memo.facts.revision,
        "client": memo.facts.client,
        "principal": getattr(memo.principal, "id", None),
        "address": memo.address,
        "endpoint": path,
        "idle": int(time.time() - used_at) // 5 * 5,
        "listens": memo.listened,
    }


def _plain(numbers: Any) -> dict[str, Any]:
    return {name: getattr(numbers, name) for name in numbers.__struct_fields__}
