"""Lists as a caller sees them: what it may not see is not there. Those who see the same share what is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from msgspec import Raw, Struct

from portico.protocol.versions import LATEST, Revision
from portico.server.policy.interfaces import Kind, Owned, Sight
from portico.server.registry.catalog import KINDS, Catalog

# Of each list: classes of callers, not callers.
MOST_VIEWS = 256


class _KeptView(Struct, eq=False):
    # What it was made of: it holds as long as these are the same objects.
    sources: Sequence[Any]
    listed: Sequence[Any]
    pages: dict[tuple[Revision, int], Raw] = {}


class KeptViews:
    """The lists of one server as they were last seen."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, _KeptView] = OrderedDict()

    def find(self, key: Any, sources: Sequence[Any], make: Callable[[], Sequence[Any]]) -> _KeptView:
        found = self._kept.get(key)
        if found is None or len(found.sources) != len(sources) or not all(map(is_, found.sources, sources)):
            found = self._kept[key] = _KeptView(sources, make(), {})
            if len(self._kept) > MOST_VIEWS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def clear(self) -> None:
        self._kept.clear()


class CallerView(Struct, frozen=True):
    """What one caller sees of a server. `owned` says whose one of the server's own components is, `own` whose it is
    that the server itself answers to by a name."""

    sight: Sight
    kept: KeptViews
    owned: Callable[[Any], Owned]
    own: Callable[[Kind, str], Owned | None]

    def sees(self, kind: Kind, owned: Owned) -> bool:
        return self.sight.sees(kind, owned)

    def definitions(self, catalog: Catalog[Any]) -> list[Any]:
        """The server's own entries."""
        kind = KINDS[catalog.method]
        return [one.definition for one in catalog if self.sight.sees(kind, self.owned(one))]

    def page(
        self,
        catalog: Catalog[Any],
        sources: Sequence[Any],
        make: Callable[[], Sequence[Any]],
        revision: Revision | None,
        cursor: str | None,
    ) -> Raw:
        """A page of the list that `make` gives, kept for as long as `sources` are the same objects."""
        kept = self.kept.find((catalog.method, self.sight.view), sources, make)
        start = 0 if cursor is None else catalog.start(cursor, len(kept.listed))
        key = (revision or LATEST, start)
        page = kept.pages.get(key)
        if page is None:
            page = kept.pages[key] = catalog.encode(kept.listed, key[0], start)
        return page
