"""What the tools of a server promise of their results, as far as they were looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from portico.client import results
from portico.client.pagination import Lists
from portico.client.requests import Requests
from portico.client.results import Promise
from portico.protocol.errors import Error
from portico.protocol.tools import Tool

log = logging.getLogger("portico")


class Promises:
    """The promises of tools, by their names. They are good until the tools change."""

    def __init__(self, lists: Lists, requests: Requests) -> None:
        self.known: dict[str, Promise] = {}
        # Whether others need not be looked for.
        self._knows_all = False
        self._lists = lists
        self._requests = requests

    def forget(self) -> None:
        self.known, self._knows_all = {}, False

    def learn(self, tools: Iterable[Tool]) -> None:
        """These are all tools."""
        self.known, self._knows_all = {tool.name: results.promise(tool) for tool in tools}, True

    async def of(self, name: str, timeout: float | None = None, *, fresh: bool = False) -> Promise | None:
        """What a tool has promised. To know that, it has to be found among the tools, page by page."""
        if name not in self.known and not self._knows_all:
            try:
                async with asyncio.timeout(self._requests.limit(timeout)):
                    tool = await self._lists.started_over(lambda: self._lists.find_tool(name, fresh=fresh))
            except (Error, TimeoutError) as failure:
                log.debug("%s: what its tools promise is not known: %s", self._requests.name, failure)
                tool = None
            if tool is None:
                self._knows_all = True
            else:
                self.known[name] = results.promise(tool)
        return self.known.get(name)
