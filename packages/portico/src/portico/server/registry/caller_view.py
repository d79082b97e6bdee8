"""Lists filtered by what a caller may see. Callers with the same visibility share cached lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from msgspec import Raw, Struct

from portico.caching import LruCache
from portico.protocol.versions import LATEST_PROTOCOL_VERSION, ProtocolVersion
from portico.server.policy.interfaces import Kind, QualifiedName, Visibility
from portico.server.registry.catalog import KIND_BY_METHOD, Catalog

# Cached per list and class of callers, not per caller.
MAX_CACHED_VIEWS = 256


class _KeptView(Struct, eq=False):
    """A cached filtered list with its encoded pages."""

    # The objects that it was built from: it is valid while these are identical.
    sources: Sequence[Any]
    listed: Sequence[Any]
    pages: dict[tuple[ProtocolVersion, int], Raw] = {}


class ViewCache:
    """Cache of the filtered lists of one server."""

    def __init__(self) -> None:
        self._view_cache: LruCache[Any, _KeptView] = LruCache(MAX_CACHED_VIEWS)

    def find(self, key: Any, sources: Sequence[Any], build: Callable[[], Sequence[Any]]) -> _KeptView:
        """Return the cached view for a key, built again if its sources have changed."""
        result = self._view_cache.get(key)
        # Compare identities, not contents: every source is a tuple that is replaced when it
        # changes, and comparing thousands of definitions would cost more than listing them.
        if result is None or len(result.sources) != len(sources) or not all(map(is_, result.sources, sources)):
            result = self._view_cache[key] = _KeptView(sources, build(), {})
        return result

    def clear(self) -> None:
        self._view_cache.clear()


class CallerView(Struct, frozen=True):
    """A caller's view of a server.

    `qualified_name_of` returns the qualified name of one of the server's own components, `local_name_of` that of a name
    that the server itself answers to, or None.
    """

    visibility: Visibility
    cache: ViewCache
    qualified_name_of: Callable[[Any], QualifiedName]
    local_name_of: Callable[[Kind, str], QualifiedName | None]

    def is_visible(self, kind: Kind, component: QualifiedName) -> bool:
        return self.visibility.is_visible(kind, component)

    def definitions(self, catalog: Catalog[Any]) -> list[Any]:
        """Return the definitions of the server's own visible components."""
        kind = KIND_BY_METHOD[catalog.method]
        return [item.definition for item in catalog if self.visibility.is_visible(kind, self.qualified_name_of(item))]

    def page(
        self,
        catalog: Catalog[Any],
        sources: Sequence[Any],
        build: Callable[[], Sequence[Any]],
        revision: ProtocolVersion | None,
        cursor: str | None,
    ) -> Raw:
        """Return a page of the list that `build` returns, cached while `sources` are the same objects."""
        # `cache_key` identifies the set of rules that apply, so that a thousand users of one group
        # share one list.
        cached = self.cache.find((catalog.method, self.visibility.cache_key), sources, build)
        start = 0 if cursor is None else catalog.page_start(cursor, len(cached.listed))
        key = (revision or LATEST_PROTOCOL_VERSION, start)
        page = cached.pages.get(key)
        if page is None:
            page = cached.pages[key] = catalog.encode(cached.listed, key[0], start)
        return page
