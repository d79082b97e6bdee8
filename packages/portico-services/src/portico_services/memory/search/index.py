"""The index: what is written when a memory is stored, and deleted when it is forgotten.

Everything here is a function of a Transaction, so a memory and its index are written together or not at all. The
weight of a term in a memory is computed once, when it is written (`posting_weight`).

An unexpected row is overwritten: a damaged index must not prevent a memory from being stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter

from portico.extend import Transaction
from portico_services.memory.search import doc_ids
from portico_services.memory.search.analyzer import AFTER_QUESTION, QUESTION, TextTerms, read
from portico_services.memory.search.id_allocator import ABSENT, KINDS, LINE, NOTE, PERSON, IdAllocator, Place
from portico_services.memory.store import counters
from portico_services.memory.store.records import Record

# Okapi BM25 with a mild correction for length, towards a text of a hundred words.
K1, B, USUAL_LENGTH = 0.9, 0.2, 100.0
# A weight is a whole number, so that every engine adds up to the same: 64 is one. The lowest bit says “in the head”.
ONE = 64
# What holds the index, those first that refer to others.
TABLES = ("posting", "vector", "sign", "seat", "author_word", "author", "thread", "scope")

# A row of memory_seat: seat, memory, author, kind, substance, marks.
_Seated = tuple[int, str, int | None, int, int, int]


def index(tx: Transaction, memories: Sequence[Record], *, before: Sequence[Record] = ()) -> None:
    """Put memories that are in the table `memory` into the index; those of a thread in the order of their time.
    `before` are those that may be in it already, as they were then: they are indexed again, at the same position."""
    sql = "select memory, seat from memory_seat where memory in :ids"
    known = dict(tx.all(tuple[str, int], sql, {"ids": [one.id for one in before]})) if before else {}
    if known:
        unindex(tx, before)
    threads = defaultdict[Place, list[str | None]](list)
    for one in memories:
        threads[one.domain, one.namespace, one.project or ""].append(one.thread)
    ids = IdAllocator(tx, threads)
    rows: list[_Seated] = []
    readings: list[tuple[int, TextTerms]] = []
    for one in memories:
        reading = reading_of(one)
        scope = ids.scope((one.domain, one.namespace, one.project or ""))
        seat, after_question = ids.seat(scope, one.thread, known.get(one.id), bool(reading.flags & QUESTION))
        flags = reading.flags | (AFTER_QUESTION if after_question else 0)
        kind = kind_of(one)
        author = None if one.author is None else ids.author(scope, one.author, named=kind == PERSON)
        rows.append((seat, one.id, author, kind, reading.substance, flags))
        readings.append((seat, reading))
    _write(tx, rows, readings)


def unindex(tx: Transaction, memories: Sequence[Record]) -> None:
    """Take memories out of the index, given as they were indexed. They keep their positions as long as they are in the
    table `memory`, so that a restored one is where it was."""
    sql = f"select memory, seat from memory_seat where memory in :ids and kind <> {ABSENT}"
    found = dict(tx.all(tuple[str, int], sql, {"ids": [one.id for one in memories]}))
    if not found:
        return
    gone = [(term, found[one.id]) for one in memories if one.id in found for term in reading_of(one).terms]
    places = {"seats": list(found.values())}
    if tx.many("delete from memory_posting where term = ? and seat = ?", sorted(gone)) < len(gone):
        # They were read otherwise when they were written, say by a Python that knew fewer characters. This reads all.
        tx.run("delete from memory_posting where seat in :seats", places)
    tx.run("delete from memory_sign where seat in :seats", places)
    vectors = tx.run("delete from memory_vector where seat in :seats", places)
    counters.add(tx, "vector", {"": -vectors})
    tx.run(f"update memory_seat set kind = {ABSENT}, model = null where seat in :seats", places)
    fewer = Counter(map(doc_ids.scope_of, found.values()))
    tx.many(
        "update memory_scope set memories = memories - ? where number = ?", [(n, s) for s, n in sorted(fewer.items())]
    )


def forget(tx: Transaction, memories: Sequence[Record]) -> None:
    """Delete all index rows of memories that are about to leave the table `memory`, and of the authors, threads and
    scopes that have no others."""
    unindex(tx, memories)
    ids = {"ids": [one.id for one in memories]}
    found = tx.all(tuple[int, int | None], "select seat, author from memory_seat where memory in :ids", ids)
    if not found:
        return
    tx.run("delete from memory_seat where memory in :ids", ids)
    authors = list({author for _, author in found if author is not None})
    scopes = list({doc_ids.scope_of(seat) for seat, _ in found})
    threads = list({doc_ids.number_of_thread(seat) for seat, _ in found})
    taken = "exists (select 1 from memory_seat where seat >= {0} * {1} and seat < ({0} + 1) * {1}{2})"
    of_author = taken.format("memory_author.scope", doc_ids.SCOPE, " and memory_seat.author = memory_author.number")
    lonely = tx.all(
        int, f"select number from memory_author where number in :authors and not {of_author}", {"authors": authors}
    )
    tx.run("delete from memory_author_word where author in :lonely", {"lonely": lonely})
    tx.run("delete from memory_author where number in :lonely", {"lonely": lonely})
    thread = f"(memory_thread.scope * {doc_ids.MOST_THREADS} + memory_thread.number)"
    tx.run(
        "delete from memory_thread where scope in :scopes and number in :threads "
        f"and not {taken.format(thread, doc_ids.PLACES, '')}",
        {"scopes": scopes, "threads": threads},
    )
    of_scope = taken.format("memory_scope.number", doc_ids.SCOPE, "")
    tx.run(f"delete from memory_scope where number in :scopes and not {of_scope}", {"scopes": scopes})


def reading_of(one: Record) -> TextTerms:
    return read(one.content, one.at, (*one.tags, one.source, one.path))


def kind_of(one: Record) -> int:
    if one.author_kind is None:
        return NOTE if one.thread is None else LINE
    return KINDS.get(one.author_kind, PERSON)


def posting_weight(count: int, length: int, in_head: bool) -> int:
    fullness = count * (K1 + 1) / (count + K1 * (1 - B + B * length / USUAL_LENGTH))
    return round(ONE * fullness) << 1 | in_head


def _postings(readings: Sequence[tuple[int, TextTerms]]) -> tuple[list[str], list[int], list[int]]:
    """As columns: terms, seats, weights. In the order of the index, which is the quickest way to fill it."""
    if len(readings) == 1:
        [(seat, reading)] = readings
        weighed = sorted(zip(reading.terms, _weights(reading), strict=True))
        return [term for term, _ in weighed], [seat] * len(weighed), [weight for _, weight in weighed]
    by_term = defaultdict[str, tuple[list[int], list[int]]](lambda: ([], []))
    for seat, reading in sorted(readings, key=itemgetter(0)):
        for term, weight in zip(reading.terms, _weights(reading), strict=True):
            seats, weights = by_term[term]
            seats.append(seat)
            weights.append(weight)
    columns: tuple[list[str], list[int], list[int]] = ([], [], [])
    for term in sorted(by_term):
        seats, weights = by_term[term]
        columns[0].extend(repeat(term, len(seats)))
        columns[1].extend(seats)
        columns[2].extend(weights)
    return columns


def _weights(reading: TextTerms) -> list[int]:
    """Those of the terms of a text, in their order."""
    heads, length = reading.heads, reading.length
    # Of most words there is one.
    once = posting_weight(1, length, False), posting_weight(1, length, True)
    return [
        once[term in heads] if count == 1 else posting_weight(count, length, term in heads)
        for term, count in reading.terms.items()
    ]


def _write(tx: Transaction, rows: list[_Seated], readings: list[tuple[int, TextTerms]]) -> None:
    tx.many(
        "insert into memory_seat (seat, memory, author, kind, substance, marks) values (?, ?, ?, ?, ?, ?) "
        "on conflict (memory) do update set seat = excluded.seat, author = excluded.author, kind = excluded.kind, "
        "substance = excluded.substance, marks = excluded.marks, model = null",
        rows,
    )
    tx.fill(
        "insert into memory_posting (term, seat, weight) values (?, ?, ?) "
        "on conflict (term, seat) do update set weight = excluded.weight",
        _postings(readings),
    )
