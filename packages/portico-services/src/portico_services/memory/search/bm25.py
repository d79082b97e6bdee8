"""The first ranking stage: which memories have words of the question, read from the postings.

What the words of a question matched in a memory is one whole number, the sum of what each posting brings:

    score, in units of 1/UNIT | a bit for each word that is near the beginning | a bit for each word

So one addition for each posting collects all that the second stage needs, both database engines get the same sums, and
comparing two of these numbers compares their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import doc_ids
from portico_services.memory.search.index import ONE
from portico_services.memory.search.namespace_boost import NamedNamespace, named_namespaces

UNIT = 1 << 24
# How many postings are read for one question. Frequent words of a large store are looked up only for memories that
# have a rare one.
MOST_POSTINGS = 5_000
# …and for what is like a memory.
FEW_TERMS, FEW_POSTINGS = 8, 64
# From this many memories on, words are counted before they are read.
MANY_MEMORIES = 5_000
BEST = 160
# What counts for the estimate of a memory besides its own words: those of them near its beginning, its neighbours, and
# the best in its thread.
_HEAD, _NEAR, _THREAD = 2.0, 0.4, 0.5
# Of those without a thread, whose estimate is nearly their score, this share of the candidates.
_ALONE = 2 / 3
# The second stage gets at least so many for each wanted one, and those with this share of the last wanted one's
# estimate.
_AT_LEAST, _HOPE = 4, 0.3

_PLACE = doc_ids.PLACES - 1


class Postings(Struct):
    """Which memories have a term, and the weight that it has in each of them."""

    seats: list[int] = []
    weights: list[int] = []


# The same as one row of the index: the number of the term, the position, the weight.
Row = tuple[int, int, int]

# What makes one list of a column: to fetch as many rows would take longer than to read it.
SEATS = "coalesce(cast(json_agg(p.seat) as text), '[]')"
WEIGHTS = "coalesce(cast(json_agg(p.weight) as text), '[]')"


class Matches:
    """What the words of a question matched."""

    def __init__(self, terms: Mapping[str, float], memories: int) -> None:
        self.terms = terms
        self.memories = memories
        # The terms that some memory has, in the order of their bits, and how rare they are.
        self.order: list[str] = []
        self.rarity: list[float] = []
        # How far the score and the bits of the head are to the left.
        self.head_shift = len(terms)
        self.shift = 2 * len(terms)
        self.bits = (1 << len(terms)) - 1
        self.by_seat: dict[int, int] = {}
        # What memories have of the question in other words: of its rarity, in units of 1/UNIT.
        self.alike: dict[int, int] = {}
        # What the best of each thread has, and all of the best in it together.
        self.thread_best: dict[int, int] = {}
        self.thread_all: dict[int, int] = {}

    def add(self, term: str, postings: Postings, frequency: int) -> None:
        """Add the postings of one more term, which `frequency` memories have."""
        worth, by_seat = self.enter(term, frequency), self.by_seat
        get = by_seat.get
        for seat, weight in zip(postings.seats, postings.weights, strict=True):
            by_seat[seat] = get(seat, 0) + worth[weight]

    def add_all(self, by_term: Mapping[str, Postings]) -> None:
        """Add all postings that there are, of all terms."""
        for term in self.terms:
            if term in by_term:
                self.add(term, by_term[term], len(by_term[term].seats))

    def enter(self, term: str, frequency: int) -> _Worth:
        """The next term, and what its postings bring."""
        rarity = self.rarity_at(frequency)
        bit = 1 << len(self.order)
        self.order.append(term)
        self.rarity.append(rarity)
        unit = UNIT * self.terms[term] * rarity / (ONE * math.log(2 + self.memories))
        return _Worth(unit, self.shift, (bit, bit << self.head_shift | bit))

    def rarity_at(self, frequency: int) -> float:
        return math.log(1 + max(0.0, self.memories - frequency + 0.5) / (frequency + 0.5))

    def rarity_of(self, term: str) -> float:
        """That of a term of the question; nothing is rarer than what no memory has."""
        return self.rarity[self.order.index(term)] if term in self.order else math.log(2 + 2 * self.memories)

    def add_namespace(self, named: NamedNamespace) -> None:
        """A namespace is a term that all memories of some scopes have; of those that have no other term, the newest."""
        seats = dict.fromkeys([seat for seat in self.by_seat if seat >> doc_ids.SCOPE_SHIFT in named.scopes])
        seats |= dict.fromkeys(named.newest)
        self.add(named.term, Postings(list(seats), [ONE << 1] * len(seats)), named.memories)

    def settle(self, most: int) -> list[tuple[int, int]]:
        """Find the best, and what their threads have."""
        best, together = self.thread_best, self.thread_all
        leading = self.leading(most)
        for value, seat in leading:
            thread = seat >> doc_ids.PLACE_BITS
            if thread in best:
                together[thread] |= value
            else:
                best[thread] = together[thread] = value
        return leading

    def candidates(self, most: int, wanted: int | None = None) -> list[int]:
        """The positions for the second stage: the best, and their neighbours. Where only `wanted` results are needed,
        those with a low estimate are left out."""
        leading = self.settle(most)
        get, thread_best = self.by_seat.get, self.thread_best
        head_shift, bits, heads = self.head_shift, self.bits, SumsOfBits(self._heads())
        in_threads = [seat for _, seat in leading if seat & _PLACE != doc_ids.ALONE]
        best = [seat for _, seat in leading[: most // 2] if seat & _PLACE != doc_ids.ALONE]
        beside = {seat + step for seat in best for step in (1, 2, -1) if seat & _PLACE or step > 0}
        # The bits below the scores are added as well; that is far below the precision that matters.
        hopeful = [
            (
                (own := get(seat, 0))
                + heads[own >> head_shift & bits]
                + _NEAR * (get(seat - 1, 0) + get(seat + 1, 0) + get(seat - 2, 0))
                + _THREAD * thread_best[seat >> doc_ids.PLACE_BITS],
                seat,
            )
            for seat in beside.union(in_threads)
        ]
        alone = [
            (own + heads[own >> head_shift & bits] + _THREAD * own, seat)
            for own, seat in leading
            if seat & _PLACE == doc_ids.ALONE
        ]
        alone.sort(reverse=True)
        hopeful += alone[: math.ceil(_ALONE * most)]
        hopeful.sort(reverse=True)
        del hopeful[most:]
        if wanted is not None and len(hopeful) > _AT_LEAST * wanted:
            least = _HOPE * hopeful[wanted - 1][0]
            while len(hopeful) > _AT_LEAST * wanted and hopeful[-1][0] < least:
                hopeful.pop()
        return [seat for _, seat in hopeful]

    def leading(self, most: int) -> list[tuple[int, int]]:
        """Those with the highest scores, of equal ones the latest; and what each has."""
        by_seat = self.by_seat
        seats = self._high(most) if len(by_seat) > 8 * most else list(by_seat)
        # Postings come in order, and two sorts of numbers are quicker than one of pairs.
        seats.sort(reverse=True)
        seats.sort(key=by_seat.__getitem__, reverse=True)
        return [(by_seat[seat], seat) for seat in seats[:most]]

    def _high(self, most: int) -> list[int]:
        """At least so many of those with the highest scores: in a sample of an eighth, twice as many are as high."""
        sample = sorted(list(self.by_seat.values())[::8], reverse=True)
        least = sample[most // 4]
        high = [seat for seat, value in self.by_seat.items() if value >= least]
        return high if len(high) >= most else list(self.by_seat)

    def is_near(self, seat: int) -> bool:
        """Whether it has a word of the question, or another one for it, or sits next to one that has."""
        return seat in self.alike or any(seat + step in self.by_seat for step in (0, -1, 1, -2))

    def _heads(self) -> list[float]:
        """What each word is worth near the beginning, in units of what is in `by_seat`."""
        unit = _HEAD * UNIT * (1 << self.shift) / math.log(2 + self.memories)
        return [unit * self.terms[term] * rarity for term, rarity in zip(self.order, self.rarity, strict=True)]


class _Worth(dict[int, int]):
    """What a posting of a term brings, by its weight. Few different weights occur."""

    def __init__(self, unit: float, shift: int, bits: tuple[int, int]) -> None:
        self._unit = unit
        self._shift = shift
        # Those of a word that is not near the beginning, and of one that is.
        self._bits = bits

    def __missing__(self, weight: int) -> int:
        self[weight] = found = round(self._unit * (weight >> 1)) << self._shift | self._bits[weight & 1]
        return found


class SumsOfBits(dict[int, float]):
    """For each set of terms, which is a mask of bits, the sum of what they are worth. Few different sets occur."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values
        self[0] = 0.0

    def __missing__(self, mask: int) -> float:
        last = mask.bit_length() - 1
        self[mask] = found = self[mask ^ 1 << last] + self._values[last]
        return found


# How many memories have each term, as far as it was counted.
Counted = dict[str, int]


def match(
    tx: Transaction, terms: Mapping[str, float], scopes: Sequence[int] | None, memories: int, counted: Counted
) -> Matches:
    """`scopes` are the only ones that are looked into, and `memories` is how many these have."""
    namespaces = list(named_namespaces(tx, terms, scopes))
    found = Matches({**terms, **{one.term: one.share for one in namespaces}}, memories)
    if memories > MANY_MEMORIES:
        frequent = _match_rare(tx, found, _frequencies(tx, terms, scopes, counted), scopes)
        if frequent:
            best = [seat for _, seat in found.leading(BEST)]
            _look_up(tx, found, frequent, sorted({*best, *_beside(best)}))
    else:
        found.add_all(_read_postings(tx, list(terms), scopes))
    for one in namespaces:
        found.add_namespace(one)
    return found


def match_among(
    tx: Transaction,
    terms: Mapping[str, float],
    scopes: Sequence[int] | None,
    memories: int,
    counted: Counted,
    seats: Sequence[int],
) -> Matches:
    """What the words match in these memories, and around the best of them."""
    found = Matches(terms, memories)
    frequencies = _frequencies(tx, terms, scopes, counted)
    own = _at(tx, [term for _, term in frequencies], seats)
    first = Matches(terms, memories)
    for frequency, term in frequencies:
        first.add(term, own[term], frequency)
    near = _beside(seat for _, seat in first.leading(BEST)) - set(seats)
    around = _at(tx, [term for _, term in frequencies], sorted(near))
    for frequency, term in frequencies:
        one, other = own[term], around[term]
        found.add(term, Postings(one.seats + other.seats, one.weights + other.weights), frequency)
    found.settle(BEST)
    return found


def _beside(seats: Iterable[int]) -> set[int]:
    """The positions next to these, two on each side."""
    return {seat + step for seat in seats if seat & _PLACE != doc_ids.ALONE for step in (-2, -1, 1, 2)}


def most_alike(tx: Transaction, terms: Mapping[str, float], scope: int, memories: int, most: int) -> list[int]:
    """The seats of those in a scope that have most of these words. Who has nearly all of them has the rare ones, and
    long words are seldom frequent."""
    longest = sorted(terms, key=lambda term: (-len(term), term))[:FEW_TERMS]
    found = Matches({term: terms[term] for term in longest}, memories)
    by_seat = found.by_seat
    get = by_seat.get
    for postings, term in _rare(tx, longest, scope) or _frequent(tx, longest, scope):
        worth = found.enter(term, len(postings))
        for _, seat, weight in postings:
            by_seat[seat] = get(seat, 0) + worth[weight]
    # Two texts that are alike share most of their words, so at least some of the long ones.
    least = math.ceil(len(found.order) / 4)
    return [seat for value, seat in found.leading(most) if (value & found.bits).bit_count() >= least]


def _match_rare(
    tx: Transaction, found: Matches, frequencies: list[tuple[int, str]], scopes: Sequence[int] | None
) -> list[tuple[int, str]]:
    """The rare words first, for as long as they are not too many; the others are given back with how many have each."""
    left = MOST_POSTINGS
    frequent: list[tuple[int, str]] = []
    for frequency, term in frequencies:
        if frequency > left and left < MOST_POSTINGS:
            frequent.append((frequency, term))
        else:
            found.add(term, _postings_of(tx, term, scopes, left), frequency)
            left -= frequency
    return frequent


def _look_up(tx: Transaction, found: Matches, frequent: list[tuple[int, str]], near: list[int]) -> None:
    by_term = _at(tx, [term for _, term in frequent], near)
    for frequency, term in frequent:
        found.add(term, by_term[term], frequency)


def _at(tx: Transaction, terms: Sequence[str], seats: Sequence[int]) -> dict[str, Postings]:
    """The postings of each of these terms at these positions."""
    sql = (
        f"select p.term, {SEATS}, {WEIGHTS} from memory_posting as p "
        "where p.seat in :seats and p.term in :terms group by p.term"
    )
    found = {term: Postings() for term in terms}
    values = {"terms": list(terms), "seats": list(seats)}
    for term, at, weights in tx.all(tuple[str, list[int], list[int]], sql, values):
        found[term] = Postings(at, weights)
    return found


def _frequencies(
    tx: Transaction, wanted: Iterable[str], scopes: Sequence[int] | None, counted: Counted
) -> list[tuple[int, str]]:
    """Those of these terms that some memory has, and how many have each, the rarest first; of a frequent one, that it
    is in too many to be read."""
    wanted = list(wanted)
    terms = [term for term in wanted if term not in counted]
    if terms:
        counted.update(_counts(tx, terms, scopes))
    return sorted((counted[term], term) for term in wanted if counted[term])


def _counts(tx: Transaction, terms: list[str], scopes: Sequence[int] | None) -> Counted:
    source, values = within(scopes)
    # To skip the postings of a frequent one is quicker than to count them.
    one = (
        "select {0}, coalesce((select {1} from {2} p.term = :term_{0} limit 1 offset {3}), "
        "(select count(*) from {2} p.term = :term_{0}))"
    )
    sql = one_by_one(one.format("{0}", MOST_POSTINGS + 1, source, MOST_POSTINGS), len(terms))
    return {terms[number]: frequency for number, frequency in tx.all(tuple, sql, values | term_values(terms))}


def _read_postings(tx: Transaction, terms: Sequence[str], scopes: Sequence[int] | None) -> dict[str, Postings]:
    """Those that some memory has."""
    source, values = within(scopes)
    sql = one_by_one(f"select {{0}}, {SEATS}, {WEIGHTS} from {source} p.term = :term_{{0}}", len(terms))
    found = tx.all(tuple[int, list[int], list[int]], sql, values | term_values(terms)) if terms else []
    return {terms[number]: Postings(seats, weights) for number, seats, weights in found if seats}


def _postings_of(tx: Transaction, term: str, scopes: Sequence[int] | None, most: int) -> Postings:
    source, values = within(scopes)
    newest = f"select p.seat, p.weight from {source} p.term = :term order by {newest_first(scopes)} limit :most"
    sql = f"select {SEATS}, {WEIGHTS} from ({newest}) as p"
    return Postings(*tx.one(tuple[list[int], list[int]], sql, {"term": term, "most": most, **values}))


# The postings of one of several terms within a range. Of a frequent one, which has a posting after the last that is
# wanted, the range is empty.
_OF_TERM = "from memory_posting where term = :term_{0} and seat >= :first and seat <"
_RARE = (
    f"select {{0}} as number, seat, weight {_OF_TERM} "
    f"coalesce((select :first {_OF_TERM} :end limit 1 offset {FEW_POSTINGS - 1}), :end)"
)


def _rare(tx: Transaction, terms: Sequence[str], scope: int) -> list[tuple[list[Row], str]]:
    """Those of these terms that some memories of a scope have, but not very many, and their postings; the rarest
    first."""
    first = doc_ids.first_of_scope(scope)
    values = term_values(terms) | {"first": first, "end": first + doc_ids.SCOPE}
    read: list[list[Row]] = [[] for _ in terms]
    for row in tx.all(tuple, one_by_one(_RARE, len(terms)), values):
        read[row[0]].append(row)
    found = [(rows, term) for rows, term in zip(read, terms, strict=True) if rows]
    return sorted(found, key=lambda one: len(one[0]))


def _frequent(tx: Transaction, terms: Sequence[str], scope: int) -> list[tuple[list[Row], str]]:
    """The first of these terms that a memory of a scope has, and its newest postings: it distinguishes little, but is
    all there is."""
    for number, term in enumerate(terms):
        postings = _postings_of(tx, term, [scope], FEW_POSTINGS)
        if postings.seats:
            return [(list(zip(repeat(number), postings.seats, postings.weights)), term)]
    return []


def within(scopes: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    """Where to read postings from, and its parameters. A scope is a range of seats, so each is one look into the index;
    `cross join` tells SQLite to begin with the scopes."""
    if scopes is None:
        return "memory_posting as p where", {}
    if len(scopes) == 1:
        first = doc_ids.first_of_scope(scopes[0])
        values = {"first": first, "end": first + doc_ids.SCOPE}
        return "memory_posting as p where p.seat >= :first and p.seat < :end and", values
    source = (
        "memory_scope as s cross join memory_posting as p where s.number in :scopes "
        f"and p.seat >= s.number * {doc_ids.SCOPE} and p.seat < (s.number + 1) * {doc_ids.SCOPE} and"
    )
    return source, {"scopes": list(scopes)}


@lru_cache(256)
def one_by_one(sql: str, terms: int) -> str:
    """A statement for each of so many terms, as one: for the planner that is simpler than a list of them."""
    return " union all ".join([sql.format(number) for number in range(terms)])


def term_values(terms: Iterable[str]) -> dict[str, Any]:
    return {f"term_{number}": term for number, term in enumerate(terms)}


def newest_first(scopes: Sequence[int] | None) -> str:
    """The order of what is read `within` scopes, the highest seats first. That of the scopes is said as well, because
    SQLite reads in this order then, and would sort otherwise."""
    return "p.seat desc" if scopes is None or len(scopes) == 1 else "s.number desc, p.seat desc"
