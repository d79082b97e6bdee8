"""Pages of merged lists: the gateway's own components first, then those of its upstreams, filtered per caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Raw

from portico.protocol.versions import LATEST_PROTOCOL_VERSION, ProtocolVersion
from portico.rpc.call import Call, ServerView
from portico.server.policy.interfaces import QualifiedName
from portico.server.registry.caller_view import CallerView
from portico.server.registry.catalog import KIND_BY_METHOD, Catalog
from portico_gateway.gateway.catalog_entries import CatalogEntry, encode_entry, encode_page, make_local_entry
from portico_gateway.gateway.routing_table import RoutingTable, UpstreamRoute

# Cached pages, by list, visibility and protocol version.
MAX_CACHED_PAGES = 1000


class PageCache:
    """Cache of encoded pages, cleared on every change. `qualify` returns the owner of a local component."""

    def __init__(self, qualify: Callable[[Any], QualifiedName]) -> None:
        self._owned = qualify
        self._parts: dict[Any, tuple[list[Raw], Any]] = {}
        # Encoded pages with their cache hints.
        self._pages: dict[Any, tuple[Mapping[str, Any], Raw]] = {}

    def clear(self) -> None:
        self._parts.clear()
        self._pages.clear()

    def get_page(
        self,
        catalog: Catalog[Any],
        call: Call,
        cursor: str | None,
        view: CallerView | None,
        table: RoutingTable,
        hints: Mapping[str, Any],
    ) -> Raw:
        """Return an encoded page of a list."""
        method, facet, revision = catalog.method, call.facet, call.protocol_version or LATEST_PROTOCOL_VERSION
        start = 0 if cursor is None else catalog.page_start(cursor, len(catalog) + len(table.routes(method, facet)))
        seen = None if view is None else view.visibility.cache_key
        key = (method, facet, revision, start, id(catalog.definitions), seen, table.key)
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= MAX_CACHED_PAGES:
                self.clear()
            part = self._parts[key] = self._build_page(catalog, facet, view, table, revision, start)
        # Cache hints change with time while the entries stay the same, so the two are cached separately.
        page = self._pages.get(key)
        if page is None or page[0] != hints:
            page = self._pages[key] = (hints, encode_page(method, *part, hints, revision))
        return page[1]

    def _build_page(
        self,
        catalog: Catalog[Any],
        facet: ServerView | None,
        view: CallerView | None,
        table: RoutingTable,
        revision: ProtocolVersion,
        start: int,
    ) -> tuple[list[Raw], Any]:
        """Return the encoded entries of a page and the cursor of the next one."""
        method = catalog.method
        own: list[tuple[CatalogEntry, dict[str, Any]]] = [
            (make_local_entry(method, local_entry), {}) for local_entry in self._local_entries(catalog, facet, view)
        ]
        theirs = self._upstream_entries(catalog, facet, view, table)
        entries = [*own, *((route.entry, route.overrides_for(method, revision)) for _, route in theirs)]
        end = start + catalog.page_size
        part = [encode_entry(method, entry, overrides, revision) for entry, overrides in entries[start:end]]
        return part, catalog.issue_cursor(end) if end < len(entries) else UNSET

    def visible_names(
        self, catalog: Catalog[Any], call: Call, view: CallerView | None, table: RoutingTable
    ) -> list[str]:
        """Return the names of the tools or prompts that a caller can see."""
        own = [local_entry.name for local_entry in self._local_entries(catalog, call.facet, view)]
        return [*own, *(name for name, _ in self._upstream_entries(catalog, call.facet, view, table))]

    def _local_entries(self, catalog: Catalog[Any], facet: ServerView | None, view: CallerView | None) -> list[Any]:
        kind = KIND_BY_METHOD[catalog.method]
        result = [(item.definition, self._owned(item)) for item in catalog]
        return [
            definition
            for definition, owned in result
            if (facet is None or facet.includes(*owned)) and (view is None or view.is_visible(kind, owned))
        ]

    def _upstream_entries(
        self, catalog: Catalog[Any], facet: ServerView | None, view: CallerView | None, table: RoutingTable
    ) -> Iterator[tuple[str, UpstreamRoute]]:
        kind = KIND_BY_METHOD[catalog.method]
        for name, route in table.routes(catalog.method, facet).items():
            if name in catalog:
                continue
            if view is not None:
                owned = view.local_name_of(kind, name) or QualifiedName(route.upstream.alias, route.inward)
                if not view.is_visible(kind, owned):
                    continue
            yield name, route
