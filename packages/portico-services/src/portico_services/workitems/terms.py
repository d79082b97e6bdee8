"""What a text is found by: the terms that an index has of it, and those that a query looks for.

A query is words, each of which occurs somewhere in the text, also in the middle of a word: `arse` is in `Parser`. So a
text is taken apart into runs of letters and runs of signs, its terms, and every term can be found by each of its ends:
`parser`, `arser`, `rser`, …, of which the beginning is kept. What a query asks for is then the beginning of an end.

A very long run is cut into terms that overlap, and of a text with very many terms only some are indexed. Whatever an
index finds is therefore looked at once more; it may find too much, never too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# How much of an end is kept.
LONGEST_SUFFIX = 12
LONGEST_TERM = 2 * LONGEST_SUFFIX
MOST_TERMS = 1000
# Instead of the terms that are not indexed, where a text has too many. No run is empty.
MANY = ""
_RUN = re.compile(r"\w+|[^\w\s]+")
_LAST = "\U0010ffff"


def of(folded: str) -> list[str]:
    """The terms of a text, each once and in order. Those that it begins with come in first."""
    found: dict[str, None] = {}
    for run in _RUN.finditer(folded):
        found |= dict.fromkeys(_pieces(run[0]))
        if len(found) > MOST_TERMS:
            return sorted([MANY, *list(found)[: MOST_TERMS - 1]])
    return sorted(found)


def _pieces(run: str) -> Iterator[str]:
    """Whatever is at most LONGEST_SUFFIX long and in the run is in one of these."""
    for start in range(0, max(len(run) - LONGEST_SUFFIX, 1), LONGEST_SUFFIX):
        yield run[start : start + LONGEST_TERM]


def suffixes(terms: Iterable[str]) -> list[tuple[str, str]]:
    """The ends of each term, and the term."""
    return sorted(
        {(term[start : start + LONGEST_SUFFIX], term) for term in terms for start in range(max(len(term), 1))}
    )


def looked_for(word: str) -> list[tuple[str, str]]:
    """For each run of a word of a query, the range of suffixes that stand for it; the longest run first."""
    runs = sorted({run[0] for run in _RUN.finditer(word)}, key=lambda run: (-len(run), run))
    return [(run[:LONGEST_SUFFIX], run[:LONGEST_SUFFIX] + _LAST) for run in runs]
