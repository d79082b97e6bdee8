"""What a memory has of a question in other words, by the thesaurus: `PostgreSQL` of “which database”.

A word of the question counts once, by the nearest of the other words that a memory has, and not at all where the memory
has the word itself. What it counts is the rarity of the word of the question, times how near the other one is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portico.extend import Transaction, neighbours
from portico_services.memory.search.bm25 import (
    MANY_MEMORIES,
    SEATS,
    UNIT,
    Matches,
    newest_first,
    one_by_one,
    term_values,
    within,
)

# How many other words are looked for; and how many of those that are nearer than this.
MOST, MOST_NEAR, NEAR = 12, 64, 0.54
# Of a frequent word in a large store, so many of the newest memories that have it.
MOST_POSTINGS = 100
# How many are candidates because of other words.
CANDIDATES = 16


# Less than nothing by what it counts, a word, the word of the question that it stands for, and how near these are. The
# lowest is the best.
_OtherWord = tuple[float, str, str, float]


def add_other_words(
    tx: Transaction,
    found: Matches,
    terms: Mapping[str, float],
    scopes: Sequence[int] | None,
    among: Sequence[int] | None = None,
) -> list[int]:
    """Add to what was found what memories have in other words; the seats of those that have most of it. `among` are the
    only seats that matter, if these are known."""
    wanted = _chosen(found, terms)
    if not wanted:
        return []
    words = list(dict.fromkeys([word for _, word, _, _ in wanted]))
    by_word = _newest(tx, words, scopes, found.memories) if among is None else _among(tx, words, among)
    nearest: dict[str, dict[int, int]] = {}
    # The nearest comes last, and is what stays.
    for worth, word, term, _ in reversed(wanted):
        if seats := by_word.get(word):
            nearest.setdefault(term, {}).update(dict.fromkeys(seats, round(UNIT * -worth)))
    alike, get, get_own = found.alike, found.alike.get, found.by_seat.get
    for term, values in nearest.items():
        bit = 1 << found.order.index(term) if term in found.order else 0
        for seat, value in values.items():
            if not get_own(seat, 0) & bit:
                alike[seat] = get(seat, 0) + value
    return [seat for _, seat in sorted(zip(alike.values(), alike, strict=True), reverse=True)[:CANDIDATES]]


def _chosen(found: Matches, terms: Mapping[str, float]) -> list[_OtherWord]:
    """The other words that are worth most, and all that are near; the most worth first."""
    others: list[_OtherWord] = []
    for term, share in terms.items():
        known = neighbours(term)
        if known:
            worth = -share * found.rarity_of(term)
            others += [(worth * near, word, term, near) for word, near in known if word not in terms]
    others.sort()
    return others[:MOST] + [one for one in others[MOST:] if one[3] >= NEAR][: MOST_NEAR - MOST]


def _among(tx: Transaction, words: list[str], seats: Sequence[int]) -> dict[str, list[int]]:
    return _by_word(tx, words, "memory_posting as p where p.seat in :seats and", {"seats": list(seats)})


def _newest(tx: Transaction, words: list[str], scopes: Sequence[int] | None, memories: int) -> dict[str, list[int]]:
    """Which memories have each word; of a frequent one in a large store, the newest."""
    source, values = within(scopes)
    if memories <= MANY_MEMORIES:
        return _by_word(tx, words, source, values)
    newest = f"select p.seat from {source} p.term = :term_{{0}} order by {newest_first(scopes)} limit {MOST_POSTINGS}"
    sql = one_by_one(f"select {{0}}, {SEATS} from ({newest}) as p", len(words))
    found = tx.all(tuple[int, list[int]], sql, values | term_values(words))
    return {words[number]: seats for number, seats in found}


def _by_word(tx: Transaction, words: list[str], source: str, values: dict[str, Any]) -> dict[str, list[int]]:
    # Most of them no memory has, so a list is quicker than to look for each by itself.
    sql = f"select p.term, {SEATS} from {source} p.term in :words group by p.term"
    return dict(tx.all(tuple[str, list[int]], sql, {"words": words, **values}))
