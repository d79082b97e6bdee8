"""Pagination of list requests, bounded against servers that never end a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from portico.client.cache import ResponseCache
from portico.client.requests import RequestSession
from portico.client.results import T
from portico.protocol.errors import InvalidParams, ProtocolError
from portico.protocol.pagination import MAX_PAGES
from portico.protocol.tools import Tool
from portico.transports.upstream import Upstream

# Limits of one list: entries, bytes per page and in total, and consecutive empty pages.
# Limits against servers that never end a list or send huge pages. Iterators have no limit on the number of
# entries.
MAX_ITEMS = 100_000
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_LIST_BYTES = 32 * 1024 * 1024
MAX_EMPTY_PAGES = 100


class _ToolName(Struct):
    name: str


class _NamesPage(Struct, rename="camel"):
    """A page of tools of which only the names are decoded."""

    tools: list[_ToolName]
    next_cursor: str | UnsetType | None = UNSET


class _RawPage(Struct):
    tools: list[Raw]


class ListPaginator:
    """Fetches the lists of a server page by page."""

    def __init__(self, upstream: Upstream, requests: RequestSession, cache: ResponseCache) -> None:
        self._upstream = upstream
        self._requests = requests
        self._cache = cache

    async def pages(self, method: str, kind: Any = None, *, refresh: bool = False) -> AsyncIterator[tuple[Any, Raw]]:
        """Yield every page, decoded as the method's result or as `kind`, with its undecoded bytes.

        Only a missing cursor ends a list; an empty string is a valid cursor.
        """
        params: dict[str, Any] = {}
        seen: set[str] = set()
        empty = 0
        while True:
            response = await self._page(method, params, fresh=refresh)
            if len(bytes(response)) > MAX_PAGE_BYTES:
                raise ProtocolError(
                    f"{self._requests.name}: {method} returned a page of more than {MAX_PAGE_BYTES} bytes"
                )
            page = self._requests.decode_result(method, response, kind)
            yield page, response
            cursor = page.next_cursor
            if cursor is UNSET or cursor is None:
                return
            empty = 0 if any(isinstance(item, list) and item for item in astuple(page)) else empty + 1
            # Filters on the server may empty some pages, so a few empty ones are legal.
            if cursor in seen or empty > MAX_EMPTY_PAGES:
                reason = "the same cursor repeatedly" if cursor in seen else "only empty pages"
                raise ProtocolError(f"{self._requests.name}: {method} returns {reason}")
            # Bounds the memory of an endless iteration; a loop that starts later is not detected.
            if len(seen) < MAX_PAGES:
                seen.add(cursor)
            params = {"cursor": cursor}

    async def _page(self, method: str, params: dict[str, Any], *, fresh: bool) -> Raw:
        try:
            return await self._requests.send_cached_raw(method, params, refresh=fresh)
        except InvalidParams:
            # The previous page may have been cached for longer than its cursor is valid (server/utilities/caching).
            if params:
                self._cache.invalidate_list(method)
            raise

    async def restart_on_bad_cursor(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Run `fetch`, and run it once more from the first page if a cached cursor turned out to be invalid."""
        changes = self._cache.generation
        try:
            return await fetch()
        except InvalidParams:
            if self._cache.generation == changes:
                raise
            return await fetch()

    async def fetch_all(self, method: str, member: str, *, refresh: bool = False) -> list[Any]:
        """Return all entries of a list. Raises `ProtocolError` if it exceeds the limits."""
        return await self.restart_on_bad_cursor(lambda: self._collect_pages(method, member, fresh=refresh))

    async def _collect_pages(self, method: str, member: str, *, fresh: bool) -> list[Any]:
        results: list[Any] = []
        pages = total = 0
        async for page, response in self.pages(method, refresh=fresh):
            results += self._entries(method, page, member)
            pages += 1
            total += len(bytes(response))
            if len(results) > MAX_ITEMS or total > MAX_LIST_BYTES or pages > MAX_PAGES:
                name = self._requests.name
                raise ProtocolError(
                    f"{name}: {method} exceeds the limits after {len(results)} entries; use the iterator instead"
                )
        return results

    async def iter_items(self, method: str, member: str) -> AsyncIterator[Any]:
        """Iterate over the entries of a list without a limit on their number."""
        async for page, _ in self.pages(method):
            for entry in self._entries(method, page, member):
                yield entry

    def _entries(self, method: str, page: Any, member: str) -> list[Any]:
        result: list[Any] = getattr(page, member)
        return self._upstream.transport.filter_callable_tools(result) if method == "tools/list" else result

    async def find_tool(self, name: str, *, refresh: bool) -> Tool | None:
        """Return a tool by name, or None. Only the names of the tools before it are decoded."""
        async for page, response in self.pages("tools/list", _NamesPage, refresh=refresh):
            for at, entry in enumerate(page.tools):
                if entry.name == name:
                    result = self._requests.decode_result(
                        "tools/list", self._requests.decode_result("tools/list", response, _RawPage).tools[at], Tool
                    )
                    return next(iter(self._upstream.transport.filter_callable_tools([result])), None)
        return None
