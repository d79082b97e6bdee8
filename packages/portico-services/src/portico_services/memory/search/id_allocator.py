"""Integer ids of the index: scopes, threads, authors, and the document id of each memory.

A document id combines the scope, the thread and the position in the thread:

    18 bits scope | 29 bits thread | 16 bits position

The postings of a scope are therefore one range of the index, and the neighbours of a memory have adjacent ids. A memory
without a thread gets a separate thread and the position in the middle of it, which marks it as having no neighbours.
A full thread continues in another one; there are no neighbours across that boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portico.extend import Transaction
from portico.search import tokenize_words
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search.analyzer import IS_QUESTION

# 63 bits: an id must fit a signed 64-bit column of both engines.
POSITION_BITS, _THREAD_BITS, _SCOPE_BITS = 16, 29, 18
PLACES = 1 << POSITION_BITS
MAX_THREADS = 1 << _THREAD_BITS
MAX_SCOPES_IN_STORE = 1 << _SCOPE_BITS
# Position of a memory without a thread, and the maximum length of a thread, which leaves a gap of four positions so
# that the two never become neighbours.
ALONE = PLACES // 2
MAX_THREAD_LENGTH = ALONE - 4
# Bit offset of the scope, and the number of document ids of a scope.
SCOPE_SHIFT = _THREAD_BITS + POSITION_BITS
SCOPE = 1 << SCOPE_SHIFT


def make_doc_id(scope: int, thread: int, position: int) -> int:
    """Return the document id of a position in a thread."""
    return (scope << _THREAD_BITS | thread) << POSITION_BITS | position


def scope_from_doc_id(doc_id: int) -> int:
    return doc_id >> SCOPE_SHIFT


def thread_from_doc_id(doc_id: int) -> int:
    """Return the thread number including the scope, which is unique in the store."""
    return doc_id >> POSITION_BITS


def thread_number(doc_id: int) -> int:
    """Return the number of the thread within its scope."""
    return thread_from_doc_id(doc_id) % MAX_THREADS


def place_of(doc_id: int) -> int:
    return doc_id & PLACES - 1


def first_doc_id(scope: int) -> int:
    """Return the lowest document id of a scope. The highest one is below the first id of the next scope."""
    return scope * SCOPE


# Kind of a memory: no author and no thread, no author in a thread, or the kind of author. A memory that is not indexed
# keeps its document id, with the kind NO_ID.
NOTE, MESSAGE, PERSON, USER, ASSISTANT = range(5)
NO_ID = -1
AUTHOR_KINDS = {"person": PERSON, "user": USER, "assistant": ASSISTANT}

ScopeKey = tuple[str, str, str]


class IdAllocator:
    """Allocates the ids for one batch of memories and caches them. `expected` maps each scope to the threads of the
    memories that it will receive.
    """

    def __init__(self, tx: Transaction, expected: Mapping[ScopeKey, Sequence[str | None]]) -> None:
        self._tx = tx
        self._expected = expected
        self._scopes: dict[ScopeKey, int] = {}
        # Next free thread number by scope.
        self._free: dict[int, int] = {}
        # By thread name: its number, its next position, and whether its last memory contains a question.
        self._threads: dict[tuple[int, str], tuple[int, int, bool]] = {}
        self._authors: dict[tuple[int, str], int] = {}

    def scope_id(self, key: ScopeKey) -> int:
        """Return the number of a scope.

        The first call for a scope reserves thread numbers for the whole batch in one statement and reads the ends of
        its threads in another.
        """
        cached = self._scopes.get(key)
        if cached is not None:
            return cached
        count = len(self._expected[key])
        values = {"domain": key[0], "namespace": key[1], "project": key[2], "count": count}
        optional = self._tx.fetch_optional(
            tuple[int, int],
            "update memory_scope set memories = memories + :count, threads = threads + :count "
            "where domain = :domain and namespace = :namespace and project = :project returning number, threads",
            values,
        )
        # Not an upsert: PostgreSQL would consume a sequence number on each conflict, and scope numbers have only 18
        # bits.
        number, threads = optional or self._tx.fetch_one(
            tuple[int, int],
            "insert into memory_scope (domain, namespace, project, memories, threads) "
            "values (:domain, :namespace, :project, :count, :count) returning number, threads",
            values,
        )
        if number >= MAX_SCOPES_IN_STORE or threads >= MAX_THREADS:
            raise InvalidInput(f"The index is full: no ids are left for {'/'.join(key)}.")
        self._scopes[key] = number
        self._free[number] = threads - count
        if named := [name for name in set(self._expected[key]) if name is not None]:
            self._find_ends(number, named)
        return number

    def allocate_doc_id(self, scope: int, thread: str | None, previous_id: int | None, asks: bool) -> tuple[int, bool]:
        """Return the document id of a memory, and whether the previous memory contains a question. `known` is the
        previous id of the memory, if it was indexed before.
        """
        if (
            previous_id is not None
            and scope_from_doc_id(previous_id) == scope
            and self._thread_name(previous_id) == thread
        ):
            # Later memories of the thread were written after it, so the position is still correct.
            return previous_id, self._ends_with_question(previous_id - 1)
        if thread is None:
            return make_doc_id(scope, self._new_thread(scope), ALONE), False
        number, place, follows_question = self._threads.get((scope, thread)) or (
            self._open_thread(scope, thread),
            0,
            False,
        )
        if place >= MAX_THREAD_LENGTH:
            number, place, follows_question = self._open_thread(scope, thread), 0, False
        self._threads[scope, thread] = (number, place + 1, asks)
        return make_doc_id(scope, number, place), follows_question

    def author_id(self, scope: int, name: str, *, named: bool) -> int:
        """Return the number of an author. With `named`, its words are indexed as a name; “the user” in a query is not a
        name.
        """
        key = (scope, name)
        number = self._authors.get(key)
        if number is None:
            number = self._tx.fetch_optional(int, "select number from memory_author where scope = ? and name = ?", key)
        if number is None:
            number = self._tx.fetch_one(
                int, "insert into memory_author (scope, name) values (?, ?) returning number", key
            )
            called = list(dict.fromkeys(tokenize_words(name.lower()))) if named else []
            self._tx.execute_many(
                "insert into memory_author_word (word, scope, author, words) values (?, ?, ?, ?) "
                "on conflict (word, scope, author) do nothing",
                [(word, scope, number, len(called)) for word in called],
            )
        self._authors[key] = number
        return number

    def _find_ends(self, scope: int, names: Sequence[str]) -> None:
        """Read the number, the next free position and the last flags of the given threads. Other writers of the scope
        wait until this transaction ends, because the scope's row is locked.
        """
        first = f"(thread.scope * {SCOPE} + thread.number * {PLACES})"
        rows = self._tx.fetch_all(
            tuple[str, int, int | None, int | None],
            "select thread.name, thread.number, last.seat, last.marks from memory_thread as thread "
            "left join memory_seat as last on last.seat = (select max(seat) from memory_seat "
            f"where seat >= {first} and seat < {first} + {PLACES}) "
            # The plus sign prevents SQLite from scanning all threads of the scope in numeric order.
            "where thread.scope = :scope and thread.name in :names order by +thread.number",
            {"scope": scope, "names": list(names)},
        )
        # A name can have several threads if earlier ones were full. They are ordered by number, so the last one wins.
        for name, number, doc_id, marks in rows:
            position = 0 if doc_id is None else place_of(doc_id) + 1
            self._threads[scope, name] = (number, position, bool((marks or 0) & IS_QUESTION))

    def _open_thread(self, scope: int, name: str) -> int:
        number = self._new_thread(scope)
        self._tx.execute("insert into memory_thread (scope, number, name) values (?, ?, ?)", (scope, number, name))
        return number

    def _new_thread(self, scope: int) -> int:
        number = self._free[scope]
        self._free[scope] = number + 1
        return number

    def _thread_name(self, doc_id: int) -> str | None:
        key = (scope_from_doc_id(doc_id), thread_number(doc_id))
        return self._tx.fetch_optional(str, "select name from memory_thread where scope = ? and number = ?", key)

    def _ends_with_question(self, doc_id: int) -> bool:
        marks = self._tx.fetch_optional(int, "select marks from memory_seat where seat = ?", (doc_id,))
        return marks is not None and bool(marks & IS_QUESTION)
