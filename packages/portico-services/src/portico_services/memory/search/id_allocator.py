"""Allocates the integer ids of the index: of scopes, threads, authors, and the position of each memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portico.extend import Transaction, words
from portico_services.memory.errors import InvalidInput
from portico_services.memory.search import doc_ids
from portico_services.memory.search.analyzer import QUESTION

# The kind of a memory: without an author and a thread, without an author in a thread, or by whom. An absent one keeps
# its position, but is not in the index.
NOTE, LINE, PERSON, USER, ASSISTANT = range(5)
ABSENT = -1
KINDS = {"person": PERSON, "user": USER, "assistant": ASSISTANT}

Place = tuple[str, str, str]


class IdAllocator:
    """Lives as long as one batch of memories is indexed, and remembers the ids of it. `expected` has the threads of all
    memories that each scope will get."""

    def __init__(self, tx: Transaction, expected: Mapping[Place, Sequence[str | None]]) -> None:
        self._tx = tx
        self._expected = expected
        self._scopes: dict[Place, int] = {}
        # Of each scope, the next free number of a thread.
        self._free: dict[int, int] = {}
        # Of each thread by name: its number, its next place, and whether its last memory asks something.
        self._threads: dict[tuple[int, str], tuple[int, int, bool]] = {}
        self._authors: dict[tuple[int, str], int] = {}

    def scope(self, place: Place) -> int:
        """The number of a scope. The first call reserves the thread numbers for the whole batch in one statement, and
        looks where its threads end in another one."""
        known = self._scopes.get(place)
        if known is not None:
            return known
        count = len(self._expected[place])
        values = {"domain": place[0], "namespace": place[1], "project": place[2], "count": count}
        found = self._tx.maybe(
            tuple[int, int],
            "update memory_scope set memories = memories + :count, threads = threads + :count "
            "where domain = :domain and namespace = :namespace and project = :project returning number, threads",
            values,
        )
        # Not one statement for both: PostgreSQL would use up a number each time, and there are not so many.
        number, threads = found or self._tx.one(
            tuple[int, int],
            "insert into memory_scope (domain, namespace, project, memories, threads) "
            "values (:domain, :namespace, :project, :count, :count) returning number, threads",
            values,
        )
        if number >= doc_ids.MOST_SCOPES or threads >= doc_ids.MOST_THREADS:
            raise InvalidInput(f"{'/'.join(place)} has no room in the index of this store any more.")
        self._scopes[place] = number
        self._free[number] = threads - count
        if named := [name for name in set(self._expected[place]) if name is not None]:
            self._find_ends(number, named)
        return number

    def seat(self, scope: int, thread: str | None, known: int | None, asks: bool) -> tuple[int, bool]:
        """The position of a memory, and whether the one before it asks something. `known` is its earlier position."""
        if known is not None and doc_ids.scope_of(known) == scope and self._name_of(known) == thread:
            # What follows it was written after it, so the position is still right.
            return known, self._asks(known - 1)
        if thread is None:
            return doc_ids.seat(scope, self._new(scope), doc_ids.ALONE), False
        number, place, asked = self._threads.get((scope, thread)) or (self._open(scope, thread), 0, False)
        if place >= doc_ids.MOST_IN_THREAD:
            number, place, asked = self._open(scope, thread), 0, False
        self._threads[scope, thread] = (number, place + 1, asks)
        return doc_ids.seat(scope, number, place), asked

    def author(self, scope: int, name: str, *, named: bool) -> int:
        """The number of an author. `named` is for people: “the user” in a question is not a name."""
        key = (scope, name)
        number = self._authors.get(key)
        if number is None:
            number = self._tx.maybe(int, "select number from memory_author where scope = ? and name = ?", key)
        if number is None:
            number = self._tx.one(int, "insert into memory_author (scope, name) values (?, ?) returning number", key)
            called = list(dict.fromkeys(words(name.lower()))) if named else []
            self._tx.many(
                "insert into memory_author_word (word, scope, author, words) values (?, ?, ?, ?) "
                "on conflict (word, scope, author) do nothing",
                [(word, scope, number, len(called)) for word in called],
            )
        self._authors[key] = number
        return number

    def _find_ends(self, scope: int, names: Sequence[str]) -> None:
        """Note which threads there are, the next free place of each, and whether its last memory asks something. Others
        who write to the scope wait until this transaction is over: its row is locked."""
        first = f"(thread.scope * {doc_ids.SCOPE} + thread.number * {doc_ids.PLACES})"
        found = self._tx.all(
            tuple[str, int, int | None, int | None],
            "select thread.name, thread.number, last.seat, last.marks from memory_thread as thread "
            "left join memory_seat as last on last.seat = (select max(seat) from memory_seat "
            f"where seat >= {first} and seat < {first} + {doc_ids.PLACES}) "
            # The plus sign keeps SQLite from scanning all threads of the scope in the order of their numbers.
            "where thread.scope = :scope and thread.name in :names order by +thread.number",
            {"scope": scope, "names": list(names)},
        )
        # Of those that were full, the last one counts.
        for name, number, seat, marks in found:
            place = 0 if seat is None else doc_ids.place_of(seat) + 1
            self._threads[scope, name] = (number, place, bool((marks or 0) & QUESTION))

    def _open(self, scope: int, name: str) -> int:
        number = self._new(scope)
        self._tx.run("insert into memory_thread (scope, number, name) values (?, ?, ?)", (scope, number, name))
        return number

    def _new(self, scope: int) -> int:
        number = self._free[scope]
        self._free[scope] = number + 1
        return number

    def _name_of(self, seat: int) -> str | None:
        place = (doc_ids.scope_of(seat), doc_ids.number_of_thread(seat))
        return self._tx.maybe(str, "select name from memory_thread where scope = ? and number = ?", place)

    def _asks(self, seat: int) -> bool:
        marks = self._tx.maybe(int, "select marks from memory_seat where seat = ?", (seat,))
        return marks is not None and bool(marks & QUESTION)
