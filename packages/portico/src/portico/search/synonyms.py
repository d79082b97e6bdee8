"""Words that mean nearly the same: `login` and `authentication`, `queue` and `kafka`.

They stand in `thesaurus.txt`, a line for each stem, sorted. The file is mapped into memory and bisected, so nothing is
read before a question needs it, and processes share it.
"""

from __future__ import annotations

import mmap
from functools import cache, lru_cache
from pathlib import Path

FILE = Path(__file__).with_name("thesaurus.txt")

Neighbours = tuple[tuple[str, float], ...]


@lru_cache(4096)
def neighbours(term: str) -> Neighbours:
    """Other terms and how near each is, 0 to 1, the nearest first; none for a term that is not known."""
    line = _line(_mapped(), term.encode())
    # The head of the file is no entry.
    if line is None or line.startswith(b"#"):
        return ()
    words = line.decode("ascii").split(" ")[1:]
    return tuple((word, int(close) / 100) for word, close in zip(words[::2], words[1::2], strict=True))


@cache
def _mapped() -> mmap.mmap:
    with FILE.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _line(text: mmap.mmap, term: bytes) -> bytes | None:
    """The line that begins with a term and a space."""
    wanted = term + b" "
    low, high = 0, len(text)
    while low < high:
        # The line that the middle is in.
        middle = (low + high) // 2
        start = text.rfind(b"\n", low, middle) + 1 or low
        end = text.find(b"\n", middle)
        line = text[start:end]
        if line.startswith(wanted):
            return line
        if line < wanted:
            low = end + 1
        else:
            high = start
    return None
