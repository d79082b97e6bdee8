"""Recall: a question, and the memories that answer it, the best first.

Of a filter, the domain, the namespace and the project say where to look: the index is sorted by these. The rest is a
condition on what was found there.

Two stages. The first reads the postings of the question's words and finds the candidates: the memories that have the
words, and their neighbours; with a model, also those whose meaning is near. The second scores each of these by its
features (`features.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import mul
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search import doc_ids
from portico_services.memory.search.bm25 import Counted, match, match_among, most_alike
from portico_services.memory.search.embeddings import Sense
from portico_services.memory.search.features import FEATURES, OF_TEXT, Candidate, NamedAuthors, Scorer, of_text
from portico_services.memory.search.index import reading_of
from portico_services.memory.search.query import Manner, Question, ask, terms_of
from portico_services.memory.search.synonyms import add_other_words
from portico_services.memory.store import listing, query_plan
from portico_services.memory.store.filters import Condition, MemoryFilter, where
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.records import Record

Mode = Literal["text", "hybrid", "vector"]
NO_VECTORS = (
    "There are no vectors here. `pip install 'portico-services[memory-vectors]'` and `portico memory model` bring "
    "them; the modes text and hybrid search by words without them."
)
# How many that are not current are looked through, the newest: the index does not have them.
MOST_LOOKED_THROUGH = 500
# So many scopes are looked into one by one; where there are more, in all of them.
MOST_SCOPES = 200
# How many are looked at, and where there are few memories, such as in a scope.
LOOKED_AT, LOOKED_AT_OF_FEW, FEW_MEMORIES = 192, 96, 1000
# How many are looked at because of their meaning.
NEAREST = 64
# A memory is weak if it has less than this share of the question, and its meaning is not as near as this.
LITTLE, NEAR = 0.15, 0.35
# How many of them are kept for each kind of question.
MOST_SCORES_KEPT = 4096
_PLACE = doc_ids.PLACES - 1
# Where a condition leaves too few of those looked at, more are, up to so many; then the newest that it lets through.
MOST_LOOKED_AT = 4 * LOOKED_AT
NEWEST = 200
# Hardly any have expired and are not collected yet; to look each candidate up in `memory` would take longer.
_UNEXPIRED = (
    " and (not exists (select 1 from memory where expires_at <= :recall_now) "
    "or memory_seat.memory not in (select id from memory where expires_at <= :recall_now))"
)


class Scored(NamedTuple):
    """A memory's id, how likely it is beside the best one (1 to 0), and whether it has little of what was asked for."""

    memory: str
    score: float
    weak: bool = False


def _weights() -> tuple[tuple[tuple[float, ...], ...], ...]:
    """By words, and by words and meanings: for each kind of memory, in the order of `ids.py`, the weights."""
    lines = Path(__file__).with_name("weights.txt").read_text(encoding="utf-8").splitlines()
    rows = [[float(number) for number in line.split()[1:]] for line in lines if not line.startswith("#")]
    columns = list(zip(*rows, strict=True))
    # The user and the assistant share one. The last feature is the meaning.
    by_words = (*columns[:4], columns[3])
    return tuple(column[:-1] for column in by_words), (*columns[4:], columns[7])


_WEIGHTS = _weights()
_OF_WORDS = tuple([one[:OF_TEXT] for one in kinds] for kinds in _WEIGHTS)
_OF_MEANING = [one[-1] for one in _WEIGHTS[True]]
# Each feature of words, counted alone; and what a memory is weak without.
_ALONE = [[tuple(map(name.__eq__, FEATURES[:OF_TEXT]))] * len(_OF_WORDS[0]) for name in FEATURES[:OF_TEXT]]
_AROUND = [tuple(name in ("around", "alike") for name in FEATURES[:OF_TEXT])] * len(_OF_WORDS[0])


class _TextScores(dict[tuple[int, int, int, bool], float]):
    """What the features of a text count: by its kind, its substance, its flags, and whether it opens a thread. The same
    ones occur again and again."""

    def __init__(self, by_meaning: bool, manner: Manner) -> None:
        self._weights = [one[OF_TEXT:] for one in _WEIGHTS[by_meaning]]
        self._manner = manner

    def __missing__(self, text: tuple[int, int, int, bool]) -> float:
        if len(self) == MOST_SCORES_KEPT:
            self.clear()
        found: float = sum(map(mul, self._weights[text[0]], of_text(*text, self._manner)))
        self[text] = found
        return found


_text_scores = lru_cache(64)(_TextScores)


class RecallQuery(Struct, frozen=True):
    """A question, and where to search."""

    query: str
    # Numbers of `memory_scope`; none means all. And how many memories these have, where that is known.
    scopes: Sequence[int] | None = None
    memories: int | None = None
    limit: int = 10
    # A phrase of SQL about `memory`, and its parameters.
    condition: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    # What “yesterday” counts from; what has expired by then is not found.
    now: int | None = None
    sense: Sense | None = None
    # The only memories to look at, by their ids; None means all.
    among: Sequence[str] | None = None
    counted: Counted = field(default_factory=dict)


class Look(Struct, frozen=True):
    """The candidates and what they are scored by: for ranking, and for fitting the weights."""

    question: Question
    scorer: Scorer
    candidates: list[Candidate]
    # How near the meaning of each is, with a sense.
    near: list[float] | None

    @property
    def features(self) -> list[tuple[float, ...]]:
        """All, in the order of FEATURES; with a sense, and one more for it."""
        of_words = zip(*[self.scorer.scores(self.candidates, one) for one in _ALONE], strict=True)
        texts = [
            of_text(kind, words, flags, not seat & _PLACE, self.question.manner)
            for seat, _, _, kind, words, flags in self.candidates
        ]
        rows = [(*one, *text) for one, text in zip(of_words, texts, strict=True)]
        return rows if self.near is None else [(*row, near) for row, near in zip(rows, self.near, strict=True)]


def recall(
    tx: Transaction,
    query: str,
    filter: MemoryFilter,
    limit: int,
    *,
    at: int,
    sense: Sense | None = None,
    mode: Mode = "hybrid",
) -> list[Scored]:
    """The best first; what is weak is marked. Where nothing has anything of what was asked for, the newest: of those
    whom the query names, if it does. `sense` is what it means, where there is a model."""
    if mode == "vector" and sense is None:
        raise InvalidInput(NO_VECTORS)
    if is_looked_through(filter):
        found = _looked_through(tx, query, filter, limit, at)
    else:
        found = _ranked_within(tx, query, filter, limit, at, None if mode == "text" else sense, mode)
    found = found or [Scored(id, 1.0) for id in _by_named(tx, query, filter, limit, at)]
    return found or [Scored(id, 0.0, weak=True) for _, id in listing.listed(tx, filter, limit=limit, at=at)]


def _by_named(tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int) -> list[str]:
    """The newest of the authors whom a query names: “what did Ann say” asks for nothing else."""
    named, _ = _named(tx, ask(query, at), _scopes(tx, filter)[0])
    if not named.authors:
        return []
    sql = "select distinct name from memory_author where number in :authors"
    by = Condition("author", tuple(tx.all(str, sql, {"authors": list(named.authors)})))
    theirs = replace(filter, conditions=(*filter.conditions, by))
    return [id for _, id in listing.listed(tx, theirs, limit=limit, at=at)]


def _ranked_within(
    tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int, sense: Sense | None, mode: Mode
) -> list[Scored]:
    """The best of what a filter lets through."""
    scopes, memories, rest = _scopes(tx, filter)
    condition, values = _condition(rest)
    among = query_plan.few_by_condition(tx, rest) if condition else None
    search = RecallQuery(query, scopes, memories, limit, condition, values, at, sense, among)
    rank = _by_meaning if mode == "vector" else _by_features
    found = rank(tx, search)
    if condition and among is None and len(found) < limit:
        # Many fit the filter, and hardly any of them have the words that were looked for first.
        newest = listing.listed(tx, filter, limit=NEWEST, at=at, many=True)
        among = list(dict.fromkeys([*(one.memory for one in found), *(id for _, id in newest)]))
        # The filter lets all of these through.
        found = rank(tx, replace(search, among=among, condition="", values={}))
    return found


def alike(tx: Transaction, record: Record, limit: int, *, longest: int, at: int) -> list[tuple[str, str]]:
    """Ids and contents of memories of the same place that share most words with the beginning of it."""
    sql = "select number, memories from memory_scope where domain = ? and namespace = ? and project = ?"
    scope = tx.maybe(tuple[int, int], sql, (record.domain, record.namespace, record.project or ""))
    terms = terms_of(record.content[:longest])
    if scope is None or not terms:
        return []
    seats = most_alike(tx, terms, *scope, limit)
    if not seats:
        return []
    sql = (
        "select memory_seat.seat, memory.id, memory.content from memory_seat join memory "
        "on memory.id = memory_seat.memory where memory_seat.seat in :seats and memory_seat.kind >= 0 "
        "and (memory.expires_at is null or memory.expires_at > :now)"
    )
    found = {
        seat: (id, content) for seat, id, content in tx.all(tuple[int, str, str], sql, {"seats": seats, "now": at})
    }
    return [found[seat] for seat in seats if seat in found]


# The filter


def _condition(filter: MemoryFilter) -> tuple[str, dict[str, Any]]:
    """What the index does not know. Whatever is in it is current."""
    if (
        not filter.conditions
        and not filter.homes
        and filter.owner is None
        and filter.since is None
        and filter.until is None
    ):
        return "", {}
    return where(filter, CURRENT)


def _scopes(tx: Transaction, filter: MemoryFilter) -> tuple[list[int] | None, int | None, MemoryFilter]:
    """Where a filter allows to look, None being everywhere; how many memories are there, where that is known; and what
    else it says."""
    phrases, values = query_plan.place_phrases(filter)
    conditions = tuple(one for one in filter.conditions if one.key not in query_plan.PLACES)
    rest = replace(filter, homes=(), owner=None, conditions=conditions)
    if not phrases:
        return None, None, rest
    wanted = " and ".join(phrases)
    sql = (
        f"select number, memories, exists (select 1 from memory_scope where not ({wanted})) from memory_scope "
        f"where {wanted} limit {MOST_SCOPES + 1}"
    )
    found = tx.all(tuple[int, int, bool], sql, values)
    if len(found) > MOST_SCOPES:
        return None, None, filter
    everywhere = bool(found) and not found[0][2]
    return None if everywhere else [number for number, *_ in found], sum(memories for _, memories, _ in found), rest


def is_looked_through(filter: MemoryFilter) -> bool:
    """Whether it lets memories through that are not current."""
    return any(one.key == "status" and (one.negated or set(one.values) - set(CURRENT)) for one in filter.conditions)


def _looked_through(tx: Transaction, query: str, filter: MemoryFilter, limit: int, at: int) -> list[Scored]:
    """By the share of the query's words that they have; the newest of those that are alike."""
    wanted = terms_of(query)
    scored = []
    for one in listing.matching(tx, filter, limit=MOST_LOOKED_THROUGH, at=at):
        share = share_of(one, wanted)
        if share:
            scored.append(Scored(one.id, share, share < LITTLE))
    scored.sort(key=lambda one: -one.score)
    return scored[:limit]


def share_of(one: Record, wanted: Mapping[str, float]) -> float:
    """How much of a question's terms a memory has."""
    share = sum(wanted[term] for term in reading_of(one).terms.keys() & wanted.keys())
    return share / sum(wanted.values()) if share else 0.0


# The two stages


def _by_features(tx: Transaction, search: RecallQuery) -> list[Scored]:
    """By words; with a sense, by words and meanings."""
    seen = look(tx, search)
    candidates, near = seen.candidates, seen.near
    scores = seen.scorer.scores(candidates, _OF_WORDS[near is not None])
    if near is not None:
        scores = [
            score + _OF_MEANING[one[3]] * close for score, one, close in zip(scores, candidates, near, strict=True)
        ]
    of_text = _text_scores(near is not None, seen.question.manner)
    scored = [
        (score + of_text[kind, words, flags, not seat & _PLACE], seat, number)
        for number, (score, (seat, _, _, kind, words, flags)) in enumerate(zip(scores, candidates, strict=True))
    ]
    # Of two that are alike, the later one.
    scored.sort(reverse=True)
    del scored[search.limit :]
    best = [candidates[number] for *_, number in scored]
    # Weak is what neither it nor its neighbours have much of the question in, and whose meaning is not near.
    weak = [share < LITTLE for share in seen.scorer.scores(best, _AROUND)]
    if near is not None:
        weak = [one and near[number] < NEAR for one, (*_, number) in zip(weak, scored, strict=True)]
    return [
        Scored(memory, math.exp(score - scored[0][0]), is_weak)
        for (score, *_), (_, memory, *_), is_weak in zip(scored, best, weak, strict=True)
    ]


def _by_meaning(tx: Transaction, search: RecallQuery) -> list[Scored]:
    """By meanings alone."""
    sense = search.sense
    if sense is None:
        return []
    finding = _CandidateReader(tx, search)
    if search.among is None:
        found = finding.enough(lambda most: sense.nearest(tx, search.scopes, most), NEAREST)
    else:
        found = finding.of(search.among)
    near = sense.closeness(tx, [one[0] for one in found])
    scored = [(near[seat], seat, memory) for seat, memory, *_ in found if seat in near]
    scored.sort(reverse=True)
    return [Scored(memory, max(0.0, close), close < NEAR) for close, _, memory in scored[: search.limit]]


def look(tx: Transaction, search: RecallQuery) -> Look:
    question, sense = ask(search.query, search.now), search.sense
    memories = _memories(tx, search.scopes) if search.memories is None else search.memories
    named, names = _named(tx, question, search.scopes)
    terms = {term: share for term, share in question.terms.items() if question.written[term] not in names}
    reader = _CandidateReader(tx, search)
    # If the question is only a name, search for the texts that mention it.
    terms = terms or question.terms
    if search.among is None:
        matches = match(tx, terms, search.scopes, memories, search.counted)
        alike = add_other_words(tx, matches, terms, search.scopes)
        nearest = [] if sense is None else sense.nearest(tx, search.scopes, NEAREST)
        most = max(LOOKED_AT if memories > FEW_MEMORIES else LOOKED_AT_OF_FEW, 3 * search.limit)
        # What a condition leaves of them is not known before.
        choose = matches.candidates if search.condition else partial(matches.candidates, wanted=search.limit)
        candidates = reader.enough(choose, most, [*alike, *nearest])
    else:
        candidates = reader.of(search.among)
        seats = [one[0] for one in candidates]
        matches = match_among(tx, terms, search.scopes, memories, search.counted, seats)
        add_other_words(tx, matches, terms, search.scopes, seats)
        if sense is None:
            candidates = [one for one in candidates if matches.is_near(one[0])]
    near = None if sense is None else _nearness(tx, sense, candidates)
    return Look(question, Scorer(question, matches, named), candidates, near)


def _nearness(tx: Transaction, sense: Sense, candidates: list[Candidate]) -> list[float]:
    """How near the meaning of each is; of a memory without a vector, the mean of the others."""
    near = sense.closeness(tx, [one[0] for one in candidates])
    usual = sum(near.values()) / len(near) if near else 0.0
    return [near.get(one[0], usual) for one in candidates]


def _memories(tx: Transaction, scopes: Sequence[int] | None) -> int:
    if scopes is None:
        return tx.one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    sql = "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope where number in :scopes"
    return tx.one(int, sql, {"scopes": list(scopes)})


def _named(tx: Transaction, question: Question, scopes: Sequence[int] | None) -> tuple[NamedAuthors, set[str]]:
    """The authors whom the question names: by a word with a capital letter, or by all of their name. And by which words
    with a capital letter, which are not looked for in texts then: those who say a name are seldom those who bear it.
    A word that is written small may be any word."""
    if not question.names:
        return NamedAuthors((), ()), set()
    values: dict[str, Any] = {"words": list(question.names)}
    within = ""
    if scopes is not None:
        within = " and scope in :scopes"
        values["scopes"] = list(scopes)
    sql = f"select word, scope, author, words from memory_author_word where word in :words{within}"
    called: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for word, scope, author, count in tx.all(tuple[str, int, int, int], sql, values):
        called[author, scope, count].append(word)
    meant = {
        (author, scope): [word for word in said if question.names[word]]
        for (author, scope, count), said in called.items()
        if len(said) == count or any(question.names[word] for word in said)
    }
    named = NamedAuthors({author for author, _ in meant}, {scope for _, scope in meant})
    return named, {word for said in meant.values() for word in said}


class _CandidateReader:
    """Reads the candidates at given positions, as far as a condition lets them through."""

    def __init__(self, tx: Transaction, search: RecallQuery) -> None:
        self._tx = tx
        self._search = search
        self._source = (
            "memory_seat join memory on memory.id = memory_seat.memory" if search.condition else "memory_seat"
        )
        self._where = f"memory_seat.kind >= 0{_UNEXPIRED if search.now is not None else ''}"
        self._values = {**search.values, "recall_now": search.now} if search.now is not None else search.values
        if search.condition:
            self._where += f" and ({search.condition})"

    def enough(self, choose: Callable[[int], list[int]], most: int, also: Sequence[int] = ()) -> list[Candidate]:
        """As many candidates as are wanted, of those that `choose` returns first. Where the condition leaves too few of
        them, more and more of what `choose` returns."""
        known: dict[int, Candidate | None] = {}
        while True:
            chosen = choose(most)
            wanted = dict.fromkeys([*chosen, *also])
            fresh = [seat for seat in wanted if seat not in known]
            known |= dict.fromkeys(fresh) | {one[0]: one for one in self._candidates("seat", fresh)}
            found = [one for one in map(known.__getitem__, wanted) if one is not None]
            if len(found) >= self._search.limit or len(chosen) < most or not self._search.condition:
                return found
            most *= 4
            if most > max(MOST_LOOKED_AT, 4 * self._search.limit):
                return found

    def of(self, ids: Sequence[str]) -> list[Candidate]:
        """Those of these memories that are indexed and that the condition lets through."""
        found = self._candidates("memory", ids)
        inside = None if self._search.scopes is None else set(self._search.scopes)
        return [one for one in found if inside is None or doc_ids.scope_of(one[0]) in inside]

    def _candidates(self, column: str, keys: Sequence[int | str]) -> list[Candidate]:
        if not keys:
            return []
        # As one list, because each row takes a turn of the interpreter's lock.
        sql = (
            "select coalesce(cast(json_agg(json_build_array(memory_seat.seat, memory_seat.memory, memory_seat.author, "
            "memory_seat.kind, memory_seat.substance, memory_seat.marks)) as text), '[]') "
            f"from {self._source} where memory_seat.{column} in :keys and {self._where}"
        )
        return self._tx.one(list[Candidate], sql, {**self._values, "keys": list(keys)})
