"""The tools of the console about what happens: calls, sessions, workers, upstreams."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from portico.auth.principal import Principal
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico.transports.http_server.application import Exchange
from portico.transports.http_server.session import HttpSession
from portico.transports.http_server.session_snapshot import SessionMemo
from portico_console.call_metrics import Sampler
from portico_console.tool_responses import shown
from portico_gateway.gateway import status

MOST_SESSIONS = 500
# Of an id: who has the whole of one may speak in its session.
SHOWN_ID = 8
READS = {"readOnlyHint": True}
# How often the other workers are asked for the state of their upstreams while a page shows it.
ASK_SECONDS = 2.0
# Visitors of the console were let in by the console itself.
_OPERATOR = Principal("console", scopes=frozenset({"operator"}))


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


class UpstreamsService(Service):
    """The servers behind a gateway."""

    name = "upstreams"

    def __init__(self, gateway: Any) -> None:
        super().__init__()
        self._gateway = gateway
        # The exchange that serves the gateway, if it is served over HTTP.
        self.exchange: Exchange | None = None
        self._others: list[dict[str, Any]] = []
        self._asked_at = -ASK_SECONDS
        self._asking: asyncio.Task[None] | None = None

    @tool(annotations=READS)
    async def upstreams(self) -> ToolResult:
        """How the servers behind this gateway are, and what they have said last."""
        await self._ask_others()
        return shown(self._merge())

    def look(self) -> dict[str, Any]:
        """Return the state over all workers, as the others reported it at most ASK_SECONDS ago."""
        now = time.monotonic()
        if self.exchange is not None and self.exchange.elsewhere is not None and now - self._asked_at > ASK_SECONDS:
            self._asked_at = now
            self._asking = asyncio.get_running_loop().create_task(self._ask_others())
        return self._merge()

    def _merge(self) -> dict[str, Any]:
        return status.merge_reports([self._gateway.report(), *self._others])

    async def _ask_others(self) -> None:
        others = None if self.exchange is None else self.exchange.elsewhere
        if others is not None:
            bodies = await others.ask_others(status.PATH, _OPERATOR)
            self._others = [json.loads(body) for body in bodies]


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
