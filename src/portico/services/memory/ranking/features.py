"""What speaks for a memory, as numbers: the second of two looks. Each has a name, and a weight in `weights.py`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from msgspec import Struct

from portico.services.memory.ranking import seats
from portico.services.memory.ranking.desk import ASSISTANT, NOTE, PERSON, USER
from portico.services.memory.ranking.marks import (
    AFTER_QUESTION,
    NAMES,
    NUMBER,
    QUESTION,
    REPLIES,
    SPEAKS_OF_SELF,
    SPEAKS_TO_OTHER,
    STANDING,
    TIME,
)
from portico.services.memory.ranking.matching import UNIT, Matches, total
from portico.services.memory.ranking.question import Question

FEATURES = (
    "words",             # how much its words say of the question: BM25
    "head",              # the share of the question's words that are near its beginning
    "around",            # the share of the question, by rarity, that it and two neighbours on each side have
    "further_around",    # the same near the beginnings, of four on each side
    "before",            # the words of the one before it
    "after",             # …after it
    "before_two",        # …two before it, which is by the same author where two talk
    "thread_best",       # the words of the best in its thread
    "thread_share",      # the share of the question that its thread has
    "named",             # by whom the question is about
    "named_head",        # `head`, of those
    "in_company",        # by another one than the named, where the named is known
    "substance",         # how many words it has
    "broad_substance",   # the same, for a broad question
    "asks",
    "answers",           # the one before it asks
    "opens",             # the first of its thread
    "replies",           # begins as an answer: yes, thanks, hmm
    "to_other",          # says you
    "of_self",           # says I
    "names",             # has names in it
    "number",
    "time",
    "when_time",         # says when, and the question wants to know
    "standing",          # a wish for all time, and the question wants something done
    "at_all",            # always one: what the others are for the usual memory of its kind, taken off again
)  # fmt: skip


class Candidate(Struct, frozen=True):
    """A memory that may be an answer."""

    seat: int
    memory: str
    author: int | None
    kind: int
    substance: int
    marks: int


class Named(Struct, frozen=True):
    """Whom the question names, of those who have written something."""

    authors: Collection[int]
    scopes: Collection[int]


def measure(
    question: Question, matches: Matches, named: Named, candidates: Iterable[Candidate]
) -> list[tuple[float, ...]]:
    """The features of each candidate, in the order of FEATURES."""
    shares = _Shares(matches)
    about = ASSISTANT if question.of_assistant else USER
    return [
        _text(one, matches, shares) + _kind(one, question, named, about, shares.heads(matches.by_seat.get(one.seat, 0)))
        for one in candidates
    ]


def _text(one: Candidate, matches: Matches, shares: _Shares) -> tuple[float, ...]:
    """What its words, those of its neighbours and those of its thread have of the question."""
    seat, get, shift = one.seat, matches.by_seat.get, matches.shift
    own = get(seat, 0)
    before, after, before_two, after_two = get(seat - 1, 0), get(seat + 1, 0), get(seat - 2, 0), get(seat + 2, 0)
    around = own | before | after | before_two | after_two
    further = around | get(seat - 3, 0) | get(seat + 3, 0) | get(seat - 4, 0) | get(seat + 4, 0)
    thread = seats.thread_of(seat)
    return (
        (own >> shift) / UNIT,
        shares.heads(own),
        shares.words_by_rarity(around),
        shares.heads_by_rarity(further),
        (before >> shift) / UNIT,
        (after >> shift) / UNIT,
        (before_two >> shift) / UNIT,
        (matches.thread_best.get(thread, 0) >> shift) / UNIT,
        shares.words_by_rarity(matches.thread_all.get(thread, 0)),
    )


def _kind(one: Candidate, question: Question, named: Named, about: int, head: float) -> tuple[float, ...]:
    """Who says it, and how."""
    seat, marks, kind = one.seat, one.marks, one.kind
    is_named = kind == about if kind > PERSON else one.author in named.authors
    substance = math.log(1 + one.substance)
    return (
        1.0 if is_named else 0.0,
        head if is_named else 0.0,
        1.0 if kind == PERSON and not is_named and seats.scope_of(seat) in named.scopes else 0.0,
        substance,
        substance if question.broad else 0.0,
        1.0 if marks & QUESTION else 0.0,
        1.0 if marks & AFTER_QUESTION else 0.0,
        1.0 if kind != NOTE and seats.place_of(seat) == 0 else 0.0,
        1.0 if marks & REPLIES else 0.0,
        1.0 if marks & SPEAKS_TO_OTHER else 0.0,
        1.0 if marks & SPEAKS_OF_SELF else 0.0,
        1.0 if marks & NAMES else 0.0,
        1.0 if marks & NUMBER else 0.0,
        1.0 if marks & TIME else 0.0,
        1.0 if question.when and marks & TIME else 0.0,
        1.0 if question.request and kind != ASSISTANT and marks & STANDING else 0.0,
        1.0,
    )


class _Shares:
    """Which share of the question a set of its terms is. A set is a mask of bits, and few different ones are met."""

    def __init__(self, matches: Matches) -> None:
        terms, order = matches.terms, matches.order
        self._bits, self._shift = matches.bits, matches.head_shift
        # Words that no memory has count as well: a question half of which is unknown is half answered.
        unknown = sum(share for term, share in terms.items() if term not in order)
        shares = [terms[term] for term in order]
        everything = (sum(shares) + unknown) or 1.0
        self._shares = [share / everything for share in shares]
        rarities = [share * rarity for share, rarity in zip(shares, matches.rarity, strict=True)]
        everything = (sum(rarities) + unknown * math.log(2 + 2 * matches.memories)) or 1.0
        self._rarities = [rarity / everything for rarity in rarities]
        self._known: dict[int, float] = {}
        self._known_by_rarity: dict[int, float] = {}

    def heads(self, value: int) -> float:
        mask = value >> self._shift & self._bits
        found = self._known.get(mask)
        if found is None:
            found = self._known[mask] = total(self._shares, mask)
        return found

    def words_by_rarity(self, value: int) -> float:
        return self._by_rarity(value & self._bits)

    def heads_by_rarity(self, value: int) -> float:
        return self._by_rarity(value >> self._shift & self._bits)

    def _by_rarity(self, mask: int) -> float:
        found = self._known_by_rarity.get(mask)
        if found is None:
            found = self._known_by_rarity[mask] = total(self._rarities, mask)
        return found
