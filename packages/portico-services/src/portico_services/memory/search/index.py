"""Index writes: add memories when they are stored and remove them when they are deleted.

Every function takes a Transaction, so a memory and its index entries are written atomically. The weight of a term in a
memory is computed once, when it is written (`bm25_weight`).

Unexpected rows are overwritten: a damaged index must not prevent a memory from being stored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter

from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.search.analyzer import FOLLOWS_QUESTION, IS_QUESTION, AnalyzedText, analyze
from portico_services.memory.search.id_allocator import (
    AUTHOR_KINDS,
    MESSAGE,
    NO_ID,
    NOTE,
    PERSON,
    IdAllocator,
    ScopeKey,
)
from portico_services.memory.store import counters
from portico_services.memory.store.records import MemoryRecord

# Okapi BM25 with a mild length normalization towards a text of 100 terms.
K1, B, AVERAGE_LENGTH_TERMS = 0.9, 0.2, 100.0
# Weights are integers, so that every database engine computes the same sums; 64 is 1.0. The lowest bit marks a term in
# the head.
WEIGHT_SCALE = 64
# Tables of the index, referencing tables first.
INDEX_TABLES = ("posting", "vector", "sign", "seat", "author_word", "author", "thread", "scope")

# Row of memory_seat: seat, memory, author, kind, substance, marks.
_DocumentRow = tuple[int, str, int | None, int, int, int]


def index_documents(tx: Transaction, memories: Sequence[MemoryRecord], *, before: Sequence[MemoryRecord] = ()) -> None:
    """Add memories of the table `memory` to the index, in chronological order within a thread.

    `before` holds the previous versions of memories that may be indexed already. They are removed first and keep their
    document ids.
    """
    sql = "select memory, seat from memory_seat where memory in :ids"
    doc_ids = dict(tx.fetch_all(tuple[str, int], sql, {"ids": [memory.id for memory in before]})) if before else {}
    if doc_ids:
        remove_documents(tx, before)
    # Counted before allocation, so that one statement per scope reserves the thread numbers of the whole batch.
    threads = defaultdict[ScopeKey, list[str | None]](list)
    for memory in memories:
        threads[memory.domain, memory.namespace, memory.project or ""].append(memory.thread)
    ids = IdAllocator(tx, threads)
    rows: list[_DocumentRow] = []
    readings: list[tuple[int, AnalyzedText]] = []
    for memory in memories:
        reading = analyze_record(memory)
        scope = ids.scope_id((memory.domain, memory.namespace, memory.project or ""))
        doc_id, after_question = ids.allocate_doc_id(
            scope, memory.thread, doc_ids.get(memory.id), bool(reading.flags & IS_QUESTION)
        )
        # Whether a memory follows a question is only known once its position in the thread is allocated.
        flags = reading.flags | (FOLLOWS_QUESTION if after_question else 0)
        kind = author_kind_of(memory)
        author = None if memory.author is None else ids.author_id(scope, memory.author, named=kind == PERSON)
        rows.append((doc_id, memory.id, author, kind, reading.substance, flags))
        readings.append((doc_id, reading))
    _write(tx, rows, readings)


def remove_documents(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    """Remove memories from the index, given as they were indexed.

    Their document ids stay reserved while they are in the table `memory`, so a restored memory returns to its position.
    """
    sql = f"select memory, seat from memory_seat where memory in :ids and kind <> {NO_ID}"
    result = dict(tx.fetch_all(tuple[str, int], sql, {"ids": [memory.id for memory in memories]}))
    if not result:
        return
    removed = [
        (term, result[memory.id]) for memory in memories if memory.id in result for term in analyze_record(memory).terms
    ]
    params = {"seats": list(result.values())}
    if tx.execute_many("delete from memory_posting where term = ? and seat = ?", sorted(removed)) < len(removed):
        # Some postings remain: the text was tokenized differently when it was indexed, for example by a Python with an
        # older Unicode database. This statement scans the whole table.
        tx.execute("delete from memory_posting where seat in :seats", params)
    tx.execute("delete from memory_sign where seat in :seats", params)
    vectors = tx.execute("delete from memory_vector where seat in :seats", params)
    counters.adjust(tx, "vector", {"": -vectors})
    tx.execute(f"update memory_seat set kind = {NO_ID}, model = null where seat in :seats", params)
    fewer = Counter(map(id_allocator.scope_from_doc_id, result.values()))
    tx.execute_many(
        "update memory_scope set memories = memories - ? where number = ?", [(n, s) for s, n in sorted(fewer.items())]
    )


def purge_documents(tx: Transaction, memories: Sequence[MemoryRecord]) -> None:
    """Delete all index rows of memories that are about to be deleted, and of authors, threads and scopes without other
    memories.
    """
    remove_documents(tx, memories)
    ids = {"ids": [memory.id for memory in memories]}
    rows = tx.fetch_all(tuple[int, int | None], "select seat, author from memory_seat where memory in :ids", ids)
    if not rows:
        return
    tx.execute("delete from memory_seat where memory in :ids", ids)
    authors = list({author for _, author in rows if author is not None})
    scopes = list({id_allocator.scope_from_doc_id(doc_id) for doc_id, _ in rows})
    threads = list({id_allocator.thread_number(doc_id) for doc_id, _ in rows})
    occupied = "exists (select 1 from memory_seat where seat >= {0} * {1} and seat < ({0} + 1) * {1}{2})"
    of_author = occupied.format(
        "memory_author.scope", id_allocator.SCOPE, " and memory_seat.author = memory_author.number"
    )
    # An author name is personal data: the last memory of an author takes the name out of the index.
    lonely = tx.fetch_all(
        int, f"select number from memory_author where number in :authors and not {of_author}", {"authors": authors}
    )
    tx.execute("delete from memory_author_word where author in :lonely", {"lonely": lonely})
    tx.execute("delete from memory_author where number in :lonely", {"lonely": lonely})
    thread = f"(memory_thread.scope * {id_allocator.MAX_THREADS} + memory_thread.number)"
    tx.execute(
        "delete from memory_thread where scope in :scopes and number in :threads "
        f"and not {occupied.format(thread, id_allocator.PLACES, '')}",
        {"scopes": scopes, "threads": threads},
    )
    of_scope = occupied.format("memory_scope.number", id_allocator.SCOPE, "")
    tx.execute(f"delete from memory_scope where number in :scopes and not {of_scope}", {"scopes": scopes})


def analyze_record(item: MemoryRecord) -> AnalyzedText:
    return analyze(item.content, item.at, (*item.tags, item.source, item.path))


def author_kind_of(item: MemoryRecord) -> int:
    if item.author_kind is None:
        return NOTE if item.thread is None else MESSAGE
    return AUTHOR_KINDS.get(item.author_kind, PERSON)


def bm25_weight(count: int, length: int, in_head: bool) -> int:
    """Return the BM25 weight of a term as an integer; the lowest bit is `in_head`."""
    fullness = count * (K1 + 1) / (count + K1 * (1 - B + B * length / AVERAGE_LENGTH_TERMS))
    return round(WEIGHT_SCALE * fullness) << 1 | in_head


def _postings(readings: Sequence[tuple[int, AnalyzedText]]) -> tuple[list[str], list[int], list[int]]:
    """Return the postings as columns (terms, seats, weights), in index order, which is the fastest order for
    inserts.
    """
    if len(readings) == 1:
        [(doc_id, reading)] = readings
        weighed = sorted(zip(reading.terms, _term_weights(reading), strict=True))
        return [term for term, _ in weighed], [doc_id] * len(weighed), [weight for _, weight in weighed]
    by_term = defaultdict[str, tuple[list[int], list[int]]](lambda: ([], []))
    for doc_id, reading in sorted(readings, key=itemgetter(0)):
        for term, weight in zip(reading.terms, _term_weights(reading), strict=True):
            doc_ids, weights = by_term[term]
            doc_ids.append(doc_id)
            weights.append(weight)
    columns: tuple[list[str], list[int], list[int]] = ([], [], [])
    for term in sorted(by_term):
        doc_ids, weights = by_term[term]
        columns[0].extend(repeat(term, len(doc_ids)))
        columns[1].extend(doc_ids)
        columns[2].extend(weights)
    return columns


def _term_weights(reading: AnalyzedText) -> list[int]:
    """Return the weights of the terms of a text, in order."""
    heads, length = reading.heads, reading.length
    # Most terms occur once in a text, so their two possible weights are computed up front.
    once = bm25_weight(1, length, False), bm25_weight(1, length, True)
    return [
        once[term in heads] if count == 1 else bm25_weight(count, length, term in heads)
        for term, count in reading.terms.items()
    ]


def _write(tx: Transaction, rows: list[_DocumentRow], readings: list[tuple[int, AnalyzedText]]) -> None:
    tx.execute_many(
        "insert into memory_seat (seat, memory, author, kind, substance, marks) values (?, ?, ?, ?, ?, ?) "
        "on conflict (memory) do update set seat = excluded.seat, author = excluded.author, kind = excluded.kind, "
        "substance = excluded.substance, marks = excluded.marks, model = null",
        rows,
    )
    tx.execute_columns(
        "insert into memory_posting (term, seat, weight) values (?, ?, ?) "
        "on conflict (term, seat) do update set weight = excluded.weight",
        _postings(readings),
    )
