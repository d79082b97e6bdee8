"""Per-caller `tools/list` results, and values derived from them.

The handler receives the request as the caller would send it, so a caller never learns of a tool that is hidden from it.
An unchanged page is the same object and is decoded once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico.caching import LruCache
from portico.protocol import jsonrpc
from portico.protocol.errors import InternalError
from portico.protocol.pagination import Paginator
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, ProtocolVersion
from portico.rpc.call import Call, Handler, get_capabilities

MAX_CACHED_LISTS = 256
MAX_CACHED_PAGES = 4096
# Pages recognized by identity, without hashing.
MAX_RECENT_PAGES = 256

T = TypeVar("T")


class ToolPage(Struct, eq=False):
    """One page of `tools/list`, with its entries undecoded."""

    data: Raw
    cursor: str | None
    entries: list[Raw]


class VisibleTools(Generic[T]):
    """Fetches the pages of `tools/list` for a caller, and caches the result of `build` for each distinct list."""

    def __init__(
        self, handler: Handler, build: Callable[[Sequence[ToolPage]], T], max_lists: int = MAX_CACHED_LISTS
    ) -> None:
        self.handler = handler
        self._start = get_capabilities(handler).start
        self._build = build
        self._pages: LruCache[bytes, ToolPage] = LruCache(MAX_CACHED_PAGES)
        self._recent: LruCache[int, tuple[Raw, ToolPage]] = LruCache(MAX_RECENT_PAGES)
        # Keyed by the identity of the pages. The entry references them, so the ids cannot be reused.
        self._built: LruCache[tuple[int, ...], tuple[Sequence[ToolPage], T]] = LruCache(max_lists)

    async def get(self, call: Call) -> T:
        """Return the result of `build` for the list that the sender of a call sees now."""
        pages = await self.pages(call)
        # Equal pages are the same object (see `_read`), so comparing ids replaces hashing every page on each
        # call.
        key = tuple(map(id, pages))
        cached = self._built.get(key)
        if cached is None:
            cached = self._built[key] = (pages, self._build(pages))
        return cached[1]

    def clear(self) -> None:
        """Drop the cached results."""
        self._built.clear()

    async def pages(self, call: Call, revision: ProtocolVersion = LATEST_PROTOCOL_VERSION) -> list[ToolPage]:
        """Return the pages that the sender of a call sees, in the format of a protocol version."""
        pages: list[ToolPage] = []
        paging, params = Paginator(), Raw(b"{}")
        while True:
            request = replace(
                call, method="tools/list", params=params, protocol_version=revision, progress_token=None, read=None
            )
            result = self._start(request)
            page = self._read(await result if type(result) is CoroutineType else result)
            pages.append(page)
            cursor = paging.next_cursor(page.cursor, len(page.entries))
            if cursor is None:
                return pages
            params = Raw(jsonrpc.encode({"cursor": cursor}))

    def _read(self, result: Any) -> ToolPage:
        recent = self._recent.get(id(result))
        if recent is not None and recent[0] is result:
            return recent[1]
        data = result if type(result) is Raw else Raw(jsonrpc.encode(result))
        # Callers with the same rights see equal pages. The digest makes them share one entry, and is safe
        # against collisions that an upstream could construct for a faster hash.
        digest = hashlib.sha256(data).digest()
        page = self._pages.get(digest)
        if page is None:
            try:
                decoded = _page_decoder.decode(data)
            except msgspec.DecodeError as failure:
                raise InternalError(f"invalid result of tools/list: {failure}") from None
            page = self._pages[digest] = ToolPage(data, decoded.nextCursor, decoded.tools or [])
        if data is result:
            self._recent[id(result)] = (data, page)
        return page


class _ListedPage(Struct):
    tools: list[Raw] | None = None
    nextCursor: str | None = None


_page_decoder = msgspec.json.Decoder(_ListedPage)
