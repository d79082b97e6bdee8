"""The names that are most like one that does not exist, out of however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from portico.jsonschema import nearest

# How many names are looked at for what they have in common with one, and how many of them are compared closely.
MOST_LOOKED_AT = 5000
MOST_COMPARED = 100


class NearNames:
    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._places: dict[str, list[int]] = {}
        for at, name in enumerate(self._names):
            for part in _parts(name):
                self._places.setdefault(part, []).append(at)

    def nearest(self, name: str, most: int = 3) -> list[str]:
        """The likest first. The rarest parts of the name say the most, so those that have them are looked at first."""
        shared: Counter[int] = Counter()
        left = MOST_LOOKED_AT
        for places in sorted((self._places[part] for part in _parts(name) if part in self._places), key=len):
            shared.update(places[:left])
            left -= len(places)
            if left <= 0:
                break
        likely = (self._names[at] for at, _ in shared.most_common(MOST_COMPARED))
        return nearest(name, likely, most)


def _parts(name: str) -> set[str]:
    """Three letters each, with the beginning and the end of the name as letters."""
    marked = f"^{name[:300].lower()}$"
    return {marked[at : at + 3] for at in range(len(marked) - 2)} or {marked}
