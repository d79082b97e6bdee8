"""Suggestion of similar names, for any number of names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from portico.jsonschema import closest_names

# Limits: names scanned for common trigrams, and candidates compared in detail.
MAX_SCANNED = 5000
MAX_COMPARED = 100


class FuzzyNames:
    """Trigram index of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(dict.fromkeys(names))
        self._positions: dict[str, list[int]] = {}
        for at, name in enumerate(self._names):
            for part in _trigrams(name):
                self._positions.setdefault(part, []).append(at)

    def nearest(self, name: str, limit: int = 3) -> list[str]:
        """Return the most similar names first. Names that share the rarest trigrams are compared first."""
        shared: Counter[int] = Counter()
        left = MAX_SCANNED
        # Rare trigrams first: `_to` occurs in thousands of names and says nothing, and the scan is
        # limited.
        for positions in sorted(
            (self._positions[part] for part in _trigrams(name) if part in self._positions), key=len
        ):
            shared.update(positions[:left])
            left -= len(positions)
            if left <= 0:
                break
        likely = (self._names[at] for at, _ in shared.most_common(MAX_COMPARED))
        return closest_names(name, likely, limit)


def _trigrams(name: str) -> set[str]:
    """Return the trigrams of a name, with markers for its beginning and end."""
    # The markers make the first and last letters count more, where typing errors are rare.
    marked = f"^{name[:300].lower()}$"
    return {marked[at : at + 3] for at in range(len(marked) - 2)} or {marked}
