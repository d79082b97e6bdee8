"""Reference-counted union of several catalogs. The cost of adding or removing one does not depend on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from portico_gateway.gateway.catalog_cache import Catalog
from portico_gateway.gateway.catalog_entries import LIST_METHODS, CatalogEntry

Digests = Mapping[str, Sequence[bytes]]
"Digests of the entries of each list, in order."


class _RefCountedEntry(Struct):
    """An entry, and the number of catalogs that contain it."""

    entry: CatalogEntry
    count: int = 0


class RefCountedUnion:
    """Union of catalogs. If entries with the same name differ, the one that was added first counts."""

    def __init__(self) -> None:
        # Method → name → digest → entry.
        self._found: dict[str, dict[str, dict[bytes, _RefCountedEntry]]] = {method: {} for method in LIST_METHODS}
        # Whether the entries changed since the last snapshot.
        self.has_changed = False

    def add(self, lists: Catalog, digests: Digests) -> None:
        for method, entries in lists.items():
            names = self._found[method]
            for entry, digest in zip(entries, digests[method], strict=True):
                same = names.setdefault(entry.key, {})
                self.has_changed |= not same
                same.setdefault(digest, _RefCountedEntry(entry)).count += 1

    def remove(self, lists: Catalog, digests: Digests) -> None:
        for method, entries in lists.items():
            names = self._found[method]
            for entry, digest in zip(entries, digests[method], strict=True):
                same = names[entry.key]
                same[digest].count -= 1
                if not same[digest].count:
                    self.has_changed |= next(iter(same)) == digest
                    del same[digest]
                    if not same:
                        del names[entry.key]

    def snapshot(self) -> tuple[Catalog, Digests]:
        """Return the entries and their digests."""
        self.has_changed = False
        chosen = {m: [next(iter(same.items())) for same in names.values()] for m, names in self._found.items()}
        entries = {
            method: tuple(counted.entry for _, counted in counted_entries) for method, counted_entries in chosen.items()
        }
        return entries, {
            method: [digest for digest, _ in counted_entries] for method, counted_entries in chosen.items()
        }
