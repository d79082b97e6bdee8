"""The features of the second ranking stage. Each has a name, and a weight in `weights.txt`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from portico_services.memory.search import doc_ids
from portico_services.memory.search.analyzer import (
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
from portico_services.memory.search.bm25 import UNIT, Matches, SumsOfBits
from portico_services.memory.search.id_allocator import ASSISTANT, NOTE, PERSON, USER
from portico_services.memory.search.query import Manner, Question

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

OF_TEXT = FEATURES.index("substance")


# A memory that the second stage scores: seat, memory, author, kind, substance, flags.
Candidate = tuple[int, str, int | None, int, int, int]


class NamedAuthors(Struct, frozen=True):
    """The authors whom the question names, and the scopes they have written in."""

    authors: Collection[int]
    scopes: Collection[int]


# The weights of the features up to OF_TEXT, for each kind of memory.
WordWeights = Sequence[tuple[float, ...]]


class Scorer:
    """What candidates have of a question."""

    def __init__(self, question: Question, matches: Matches, named: NamedAuthors) -> None:
        self._matches = matches
        self._named = named
        self._about = ASSISTANT if question.manner.of_assistant else USER
        self._shares, self._rarities, self._everything = _shares(matches)

    def scores(self, candidates: Iterable[Candidate], weights: WordWeights) -> list[float]:
        """What the features of each candidate up to OF_TEXT count together. A search spends most of its time here: one
        loop, and no list of the features."""
        matches, shares, rarities = self._matches, self._shares, self._rarities
        get, head_shift, bits = matches.by_seat.get, matches.head_shift, matches.bits
        thread_best, thread_all, alike = matches.thread_best.get, matches.thread_all.get, matches.alike.get
        authors, scopes, about = self._named.authors, self._named.scopes, self._about
        unit, alike_unit = 1 / (UNIT << matches.shift), 1 / (UNIT * self._everything)
        found: list[float] = []
        for seat, _, author, kind, _, _ in candidates:
            (
                of_words, of_head, of_around, of_further, of_before, of_after, of_before_two, of_best, of_share,
                of_alike, of_named, of_named_head, of_company,
            ) = weights[kind]  # fmt: skip
            # What its words have of the question, and those of its neighbours.
            own, thread = get(seat, 0), seat >> doc_ids.PLACE_BITS
            head = shares[own >> head_shift & bits]
            said = of_words * own + of_best * thread_best(thread, 0)
            around = further = own
            if kind != NOTE:
                before, after, before_two = get(seat - 1, 0), get(seat + 1, 0), get(seat - 2, 0)
                around = own | before | after | before_two | get(seat + 2, 0)
                further = around | get(seat - 3, 0) | get(seat + 3, 0) | get(seat - 4, 0) | get(seat + 4, 0)
                said += of_before * before + of_after * after + of_before_two * before_two
            score = (
                said * unit
                + of_head * head
                + of_around * rarities[around & bits]
                + of_further * rarities[further >> head_shift & bits]
                + of_share * rarities[thread_all(thread, 0) & bits]
                + of_alike * alike(seat, 0) * alike_unit
            )
            if kind == about if kind > PERSON else author in authors:
                score += of_named + of_named_head * head
            elif kind == PERSON and seat >> doc_ids.SCOPE_SHIFT in scopes:
                score += of_company
            found.append(score)
        return found


def of_text(kind: int, words: int, flags: int, opens: bool, question: Manner) -> tuple[float, ...]:
    """The features from OF_TEXT on, which depend on the text and the kind of question alone; a truth value counts as 1
    or 0."""
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


def _shares(matches: Matches) -> tuple[SumsOfBits, SumsOfBits, float]:
    """The shares of the question that sets of its terms are, by what they count and by their rarity too; and all that
    there is of the latter."""
    terms, order = matches.terms, matches.order
    # Words that no memory has count as well: a question half of which is unknown is half answered.
    unknown = sum(share for term, share in terms.items() if term not in order)
    shares = [terms[term] for term in order]
    whole = (sum(shares) + unknown) or 1.0
    rarities = [share * rarity for share, rarity in zip(shares, matches.rarity, strict=True)]
    everything = (sum(rarities) + unknown * math.log(2 + 2 * matches.memories)) or 1.0
    return SumsOfBits([one / whole for one in shares]), SumsOfBits([one / everything for one in rarities]), everything
