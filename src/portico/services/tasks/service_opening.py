"""A service that has work items: opening them, refusing, and telling servers of what changes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from portico.rpc.call import Call
from portico.server.context import Context
from portico.server.server import Server
from portico.server.service import Service
from portico.server.tools import Tool
from portico.services.tasks import moments, records
from portico.services.tasks.errors import ReadOnly, Trouble
from portico.services.tasks.items import WorkItems
from portico.services.tasks.states import STATUSES
from portico.store.bus import Subscription
from portico.store.database import Database
from portico.wire.content import TextContent
from portico.wire.tools import CallToolParams, CallToolResult

log = logging.getLogger("portico")

ERROR = "portico/error"
SCHEME = "tasks"
LISTS = ("all", "ready", "blocked", *(f"status/{one}" for one in STATUSES))
# How long at most nobody looks whether a lease has ended: the news of a new one may be lost.
LONGEST_LOOK = 60.0
# And how often they look at most, however much is being claimed. No lease is shorter than a second.
SHORTEST_LOOK = 0.2
LONGEST_NAME = 200


class RefusingTool(Tool):
    """A tool whose refusals are said to the model, and beside it in one word for programs."""

    async def call(self, call: Call, params: CallToolParams, server: Server) -> Any:
        try:
            return await super().call(call, params, server)
        except Trouble as trouble:
            said = [TextContent(text=str(trouble))]
            return CallToolResult(content=said, is_error=True, meta={ERROR: trouble.described()})


def who(ctx: Context) -> str:
    """For the history: a principal that was checked, or what the client calls itself."""
    if ctx.principal is not None:
        return str(ctx.principal.id)[:LONGEST_NAME]
    return (ctx.client.name if ctx.client is not None else "")[:LONGEST_NAME]


class Opening(Service):
    def __init__(self, store: str | os.PathLike[str], *, read_only: bool) -> None:
        super().__init__()
        self._database = Database(store)
        self._items: WorkItems | None = None
        self._opening = asyncio.Lock()
        self._read_only = read_only
        self._servers: set[Server] = set()
        self._opened = AsyncExitStack()
        self._leased = asyncio.Event()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await self.items()
        try:
            yield
        finally:
            await self.close()

    async def items(self) -> WorkItems:
        """Opened by whoever comes first: a service that is added while the server runs has no lifespan yet."""
        if self._items is not None:
            return self._items
        async with self._opening:
            if self._items is None:
                self._items = await self._open()
        return self._items

    async def _open(self) -> WorkItems:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._database)
            items = WorkItems(self._database)
            await items.open()
            # Before anybody is answered, so that nothing is missed.
            events = await stack.enter_async_context(self._database.subscribe(records.TOPIC))
            stack.push_async_callback(_end, asyncio.create_task(self._tell_of_changes(events)))
            if not self._read_only:
                stack.push_async_callback(_end, asyncio.create_task(self._take_back(items)))
            self._opened = stack.pop_all()
        return items

    async def writing(self) -> WorkItems:
        if self._read_only:
            raise ReadOnly
        return await self.items()

    async def close(self) -> None:
        self._items = None
        await self._opened.aclose()

    # Telling

    def added(self, server: Server) -> None:
        """Whom to tell of changes."""
        self._servers.add(server)

    async def _tell_of_changes(self, events: Subscription) -> None:
        """Also of those that other processes make."""
        async for event in events:
            id, *lists = event.payload.split(" ")
            if not id or "in_progress" in lists:
                self._leased.set()
            self._tell(["all", id, *map(_list_uri, lists)] if id else LISTS)

    def _tell(self, places: list[str] | tuple[str, ...]) -> None:
        for server in self._servers:
            for place in places:
                server.resource_updated(f"{SCHEME}://{place}")

    # Leases

    async def _take_back(self, items: WorkItems) -> None:
        """What was not finished in time is pending again, and listeners hear of it, also when nobody asks for work."""
        while True:
            self._leased.clear()
            try:
                await items.take_back()
                end = await items.next_end()
            except Trouble as trouble:
                log.warning("leases of tasks could not be looked at: %s", trouble)
                end = None
            await asyncio.sleep(SHORTEST_LOOK)
            pause = LONGEST_LOOK if end is None else (end - moments.now()) / moments.SECOND
            try:
                async with asyncio.timeout(min(max(pause, 0.0), LONGEST_LOOK)):
                    await self._leased.wait()
            except TimeoutError:
                continue


def _list_uri(name: str) -> str:
    return f"status/{name}" if name in STATUSES else name


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
