"""Pages of lists: what the gateway has itself, and then what its upstreams have, as far as a caller may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Raw

from portico.protocol.versions import LATEST, Revision
from portico.rpc.call import Call, Facet
from portico.server.policy.interfaces import Owned
from portico.server.registry.caller_view import CallerView
from portico.server.registry.catalog import KINDS, Catalog
from portico_gateway.gateway.catalog_entries import ListedEntry, list_page, own_entry, written
from portico_gateway.gateway.routing_table import OutwardRoute, RouteTable

# Of lists, as classes of callers see them in each revision.
MOST_PAGES = 1000


class ListPages:
    """Each page is written once, and kept until something changes. `owned` says whose a component is that the gateway
    has itself."""

    def __init__(self, owned: Callable[[Any], Owned]) -> None:
        self._owned = owned
        self._parts: dict[Any, tuple[list[Raw], Any]] = {}
        # Whole pages, each with the hints in it.
        self._pages: dict[Any, tuple[Mapping[str, Any], Raw]] = {}

    def forget(self) -> None:
        self._parts.clear()
        self._pages.clear()

    def page(
        self,
        catalog: Catalog[Any],
        call: Call,
        cursor: str | None,
        view: CallerView | None,
        table: RouteTable,
        hints: Mapping[str, Any],
    ) -> Raw:
        method, facet, revision = catalog.method, call.facet, call.revision or LATEST
        start = 0 if cursor is None else catalog.start(cursor, len(catalog) + len(table.routes(method, facet)))
        seen = None if view is None else view.sight.view
        key = (method, facet, revision, start, id(catalog.definitions), seen, table.key)
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= MOST_PAGES:
                self.forget()
            found = self._parts[key] = self._part(catalog, facet, view, table, revision, start)
        page = self._pages.get(key)
        if page is None or page[0] != hints:
            page = self._pages[key] = (hints, list_page(method, *found, hints, revision))
        return page[1]

    def _part(
        self,
        catalog: Catalog[Any],
        facet: Facet | None,
        view: CallerView | None,
        table: RouteTable,
        revision: Revision,
        start: int,
    ) -> tuple[list[Raw], Any]:
        """The entries of a page, and the cursor of the next one."""
        method = catalog.method
        own: list[tuple[ListedEntry, dict[str, Any]]] = [
            (own_entry(method, one), {}) for one in self._own(catalog, facet, view)
        ]
        theirs = self._theirs(catalog, facet, view, table)
        entries = [*own, *((route.entry, route.shown_at(method, revision)) for _, route in theirs)]
        end = start + catalog.page_size
        part = [written(method, entry, shown, revision) for entry, shown in entries[start:end]]
        return part, catalog.cursor(end) if end < len(entries) else UNSET

    def names(self, catalog: Catalog[Any], call: Call, view: CallerView | None, table: RouteTable) -> list[str]:
        """What a caller is shown in a list of tools or prompts."""
        own = [one.name for one in self._own(catalog, call.facet, view)]
        return [*own, *(name for name, _ in self._theirs(catalog, call.facet, view, table))]

    def _own(self, catalog: Catalog[Any], facet: Facet | None, view: CallerView | None) -> list[Any]:
        kind = KINDS[catalog.method]
        found = [(one.definition, self._owned(one)) for one in catalog]
        return [
            definition
            for definition, owned in found
            if (facet is None or facet.shows(*owned)) and (view is None or view.sees(kind, owned))
        ]

    def _theirs(
        self, catalog: Catalog[Any], facet: Facet | None, view: CallerView | None, table: RouteTable
    ) -> Iterator[tuple[str, OutwardRoute]]:
        kind = KINDS[catalog.method]
        for name, route in table.routes(catalog.method, facet).items():
            if name in catalog:
                continue
            if view is not None:
                owned = view.own(kind, name) or Owned(route.upstream.alias, route.inward)
                if not view.sees(kind, owned):
                    continue
            yield name, route
