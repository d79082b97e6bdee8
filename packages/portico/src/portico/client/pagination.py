"""The lists of a server, page by page, with an end whatever the server says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from portico.client.cache import Cache
from portico.client.requests import Requests
from portico.client.results import T
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.tools import Tool
from portico.transports.upstream import Upstream

# What is listed at once: so many entries, so many bytes a page and in all.
MOST_LISTED = 100_000
LONGEST_PAGE = 16 * 1024 * 1024
LONGEST_LIST = 32 * 1024 * 1024
MOST_PAGES = 10_000
MOST_EMPTY = 100


class _ToolName(Struct):
    name: str


class _NamesPage(Struct, rename="camel"):
    """A page of the tools, of which only the names are read."""

    tools: list[_ToolName]
    next_cursor: str | UnsetType | None = UNSET


class _RawPage(Struct):
    tools: list[Raw]


class Lists:
    """What a server lists."""

    def __init__(self, upstream: Upstream, requests: Requests, cache: Cache) -> None:
        self._upstream = upstream
        self._requests = requests
        self._cache = cache

    async def pages(self, method: str, kind: Any = None, *, fresh: bool = False) -> AsyncIterator[tuple[Any, Raw]]:
        """Every page, as its method has it or as this kind, and undecoded. Only a missing cursor ends a list; an empty
        one is a cursor."""
        params: dict[str, Any] = {}
        seen: set[str] = set()
        empty = 0
        while True:
            said = await self._page(method, params, fresh=fresh)
            if len(bytes(said)) > LONGEST_PAGE:
                raise ProtocolError(f"{self._requests.name}: {method} gave more than {LONGEST_PAGE} bytes at once")
            page = self._requests.decoded(method, said, kind)
            yield page, said
            cursor = page.next_cursor
            if cursor is UNSET or cursor is None:
                return
            empty = 0 if any(isinstance(one, list) and one for one in astuple(page)) else empty + 1
            if cursor in seen or empty > MOST_EMPTY:
                what = "the same cursor again and again" if cursor in seen else "one empty page after the other"
                raise ProtocolError(f"{self._requests.name}: {method} gives {what}")
            if len(seen) < MOST_PAGES:
                seen.add(cursor)
            params = {"cursor": cursor}

    async def _page(self, method: str, params: dict[str, Any], *, fresh: bool) -> Raw:
        try:
            return await self._requests.cached_raw(method, params, fresh=fresh)
        except InvalidParams:
            # The page before may have been kept for longer than its cursor was good (server/utilities/caching).
            if params:
                self._cache.forget(method)
            raise

    async def started_over(self, look: Callable[[], Awaitable[T]]) -> T:
        """What looking through a list gives; once more from its beginning, if a page has led nowhere."""
        changes = self._cache.changes
        try:
            return await look()
        except InvalidParams:
            if self._cache.changes == changes:
                raise
            return await look()

    async def all(self, method: str, member: str, *, fresh: bool = False) -> list[Any]:
        return await self.started_over(lambda: self._gathered(method, member, fresh=fresh))

    async def _gathered(self, method: str, member: str, *, fresh: bool) -> list[Any]:
        found: list[Any] = []
        pages = total = 0
        async for page, said in self.pages(method, fresh=fresh):
            found += self._entries(method, page, member)
            pages += 1
            total += len(bytes(said))
            if len(found) > MOST_LISTED or total > LONGEST_LIST or pages > MOST_PAGES:
                name = self._requests.name
                raise ProtocolError(
                    f"{name}: {method} has no end: {len(found)} entries, and more to come. Use the iterator."
                )
        return found

    async def each(self, method: str, member: str) -> AsyncIterator[Any]:
        async for page, _ in self.pages(method):
            for one in self._entries(method, page, member):
                yield one

    def _entries(self, method: str, page: Any, member: str) -> list[Any]:
        found: list[Any] = getattr(page, member)
        return self._upstream.link.usable_tools(found) if method == "tools/list" else found

    async def find_tool(self, name: str, *, fresh: bool) -> Tool | None:
        """Of the tools before it only the names are read."""
        async for page, said in self.pages("tools/list", _NamesPage, fresh=fresh):
            for at, one in enumerate(page.tools):
                if one.name == name:
                    found = self._requests.decoded(
                        "tools/list", self._requests.decoded("tools/list", said, _RawPage).tools[at], Tool
                    )
                    return next(iter(self._upstream.link.usable_tools([found])), None)
        return None
