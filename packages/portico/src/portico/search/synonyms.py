"""Synonyms: `login` and `authentication`, `queue` and `kafka`.

`thesaurus.txt` has one line per stem, sorted. The file is memory-mapped and searched by bisection, so nothing is read
before a query needs it, and processes share its pages.
"""

from __future__ import annotations

import mmap
from functools import cache, lru_cache
from pathlib import Path

SYNONYMS_PATH = Path(__file__).with_name("thesaurus.txt")

Synonyms = tuple[tuple[str, float], ...]


# A query has a few dozen terms, and queries of one session repeat them.
@lru_cache(4096)
def find_synonyms(term: str) -> Synonyms:
    """Return synonyms with their similarity (0 to 1), the most similar first; empty for an unknown term."""
    line = _line(_map_file(), term.encode())
    # The header of the file is not an entry.
    if line is None or line.startswith(b"#"):
        return ()
    words = line.decode("ascii").split(" ")[1:]
    return tuple((word, int(close) / 100) for word, close in zip(words[::2], words[1::2], strict=True))


@cache
def _map_file() -> mmap.mmap:
    with SYNONYMS_PATH.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _line(text: mmap.mmap, term: bytes) -> bytes | None:
    """Return the line that begins with a term and a space, or None."""
    prefix = term + b" "
    low, high = 0, len(text)
    while low < high:
        # The line around the midpoint.
        middle = (low + high) // 2
        # `rfind` returns -1 without a line break between, and then the line begins at `low`.
        start = text.rfind(b"\n", low, middle) + 1 or low
        end = text.find(b"\n", middle)
        line = text[start:end]
        if line.startswith(prefix):
            return line
        if line < prefix:
            low = end + 1
        else:
            high = start
    return None
