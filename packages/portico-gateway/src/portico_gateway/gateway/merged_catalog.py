"""What is in any of several lists. Each costs what is in it to add and to remove, however many others there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from portico_gateway.gateway.catalog_cache import Lists
from portico_gateway.gateway.catalog_entries import LISTS, ListedEntry

Digests = Mapping[str, Sequence[bytes]]
"""Of the entries of each list, in their order."""


class _CountedEntry(Struct):
    """An entry, and in how many lists it is."""

    entry: ListedEntry
    count: int = 0


class MergedLists:
    """Of entries with one name, but different otherwise, the one counts that is there for longest."""

    def __init__(self) -> None:
        # By method, by name, by digest.
        self._found: dict[str, dict[str, dict[bytes, _CountedEntry]]] = {method: {} for method in LISTS}
        # Whether `entries` are others than those that were last looked at.
        self.has_changed = False

    def add(self, lists: Lists, digests: Digests) -> None:
        for method, entries in lists.items():
            names = self._found[method]
            for entry, digest in zip(entries, digests[method], strict=True):
                same = names.setdefault(entry.key, {})
                self.has_changed |= not same
                same.setdefault(digest, _CountedEntry(entry)).count += 1

    def remove(self, lists: Lists, digests: Digests) -> None:
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

    def look(self) -> tuple[Lists, Digests]:
        """The entries, and their digests."""
        self.has_changed = False
        chosen = {m: [next(iter(same.items())) for same in names.values()] for m, names in self._found.items()}
        entries = {method: tuple(one.entry for _, one in found) for method, found in chosen.items()}
        return entries, {method: [digest for digest, _ in found] for method, found in chosen.items()}
