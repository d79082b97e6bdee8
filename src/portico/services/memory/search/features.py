"""The features of the second ranking stage. Each has a name, and a weight in `weights.txt`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from portico.services.memory.search import positions
from portico.services.memory.search.ids import ASSISTANT, NOTE, PERSON, USER
from portico.services.memory.search.matching import UNIT, Matches, total
from portico.services.memory.search.question import Question
from portico.services.memory.search.terms import (
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
    "alike",             # the share of the question, by rarity, that it has in other words
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
    """A memory that the second stage scores."""

    seat: int
    memory: str
    author: int | None
    kind: int
    substance: int
    flags: int


class NamedAuthors(Struct, frozen=True):
    """The authors whom the question names, and the scopes they have written in."""

    authors: Collection[int]
    scopes: Collection[int]


def measure(
    question: Question, matches: Matches, named: NamedAuthors, candidates: Iterable[Candidate]
) -> list[tuple[float, ...]]:
    """The features of each candidate, in the order of FEATURES. A search spends most of its time here: one loop."""
    get, shift, head_shift, bits = matches.by_seat.get, matches.shift, matches.head_shift, matches.bits
    thread_best, thread_all = matches.thread_best.get, matches.thread_all.get
    shares, rarities, everything = _shares(matches)
    alike, everything = matches.alike.get, UNIT * everything
    about = ASSISTANT if question.of_assistant else USER
    kinds: dict[tuple[int, int, int, bool], tuple[float, ...]] = {}
    found = []
    for one in candidates:
        seat, kind = one.seat, one.kind
        # What its words have of the question, and those of its neighbours.
        own, before, after, before_two = get(seat, 0), get(seat - 1, 0), get(seat + 1, 0), get(seat - 2, 0)
        around = own | before | after | before_two | get(seat + 2, 0)
        further = around | get(seat - 3, 0) | get(seat + 3, 0) | get(seat - 4, 0) | get(seat + 4, 0)
        thread = positions.thread_of(seat)
        head = shares[own >> head_shift & bits]
        is_named = kind == about if kind > PERSON else one.author in named.authors
        # Few different ones of these occur.
        alone = (one.flags, kind, one.substance, kind != NOTE and positions.place_of(seat) == 0)
        of_kind = kinds.get(alone)
        if of_kind is None:
            of_kind = kinds[alone] = _kind(*alone, question)
        found.append(
            (
                (own >> shift) / UNIT,
                head,
                rarities[around & bits],
                rarities[further >> head_shift & bits],
                (before >> shift) / UNIT,
                (after >> shift) / UNIT,
                (before_two >> shift) / UNIT,
                (thread_best(thread, 0) >> shift) / UNIT,
                rarities[thread_all(thread, 0) & bits],
                alike(seat, 0) / everything,
                is_named,
                head if is_named else 0.0,
                kind == PERSON and not is_named and positions.scope_of(seat) in named.scopes,
                *of_kind,
            )
        )
    return found


def _kind(flags: int, kind: int, words: int, opens: bool, question: Question) -> tuple[float, ...]:
    """The features that depend on the text and the question alone; a truth value counts as 1 or 0."""
    substance = math.log(1 + words)
    return (
        substance,
        substance if question.broad else 0.0,
        flags & QUESTION != 0,
        flags & AFTER_QUESTION != 0,
        opens,
        flags & REPLIES != 0,
        flags & SPEAKS_TO_OTHER != 0,
        flags & SPEAKS_OF_SELF != 0,
        flags & NAMES != 0,
        flags & NUMBER != 0,
        flags & TIME != 0,
        question.when and flags & TIME != 0,
        question.request and kind != ASSISTANT and flags & STANDING != 0,
        1.0,
    )


class _Sums(dict[int, float]):
    """For each set of terms, which is a mask of bits, the sum of what they are worth. Few different sets occur."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def __missing__(self, mask: int) -> float:
        self[mask] = found = total(self._values, mask)
        return found


def _shares(matches: Matches) -> tuple[_Sums, _Sums, float]:
    """The shares of the question that sets of its terms are, by what they count and by their rarity too; and all that
    there is of the latter."""
    terms, order = matches.terms, matches.order
    # Words that no memory has count as well: a question half of which is unknown is half answered.
    unknown = sum(share for term, share in terms.items() if term not in order)
    shares = [terms[term] for term in order]
    whole = (sum(shares) + unknown) or 1.0
    rarities = [share * rarity for share, rarity in zip(shares, matches.rarity, strict=True)]
    everything = (sum(rarities) + unknown * math.log(2 + 2 * matches.memories)) or 1.0
    return _Sums([one / whole for one in shares]), _Sums([one / everything for one in rarities]), everything
