"""What a function that reads or writes is given: the same on both engines.

    def claim(tx: Transaction) -> Task | None:
        task = tx.maybe(Task, "select … where status = 'queued' order by … limit 1 for update skip locked")
        if task is not None:
            tx.run("update task set status = 'working' where id = :id", {"id": task.id})
            tx.publish("task", task.id)
        return task

    task = await db.write(claim)

Such a function runs in a thread, may be run again from the start, and should be brief: on SQLite all others that write
wait for it. So it must not change anything but the database, and must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.store.errors import BadStatement, NotOneRow, StoreError
from portico.store.rows import Row, decode

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Any]
Engine = Literal["sqlite", "postgresql"]
# `serializable` is what SQLite always is: as if one transaction ran after the other. `read committed` is for functions
# that lock the rows they rely on; on PostgreSQL they then get in each other's way less.
Isolation = Literal["serializable", "read committed"]

LONGEST_TOPIC = 100
# In characters, of which JSON makes six bytes at most: a packet then fits into what NOTIFY takes, which is 8,000 bytes.
LONGEST_PAYLOAD = 1000


class Event(Struct, frozen=True, array_like=True, gc=False):
    """Something about the topic has changed. An empty payload may mean anything about it."""

    topic: str
    payload: str = ""


class Transaction:
    """All of it happens, or nothing. The SQL is described in `dialect.py`, the kinds of rows in `rows.py`."""

    engine: ClassVar[Engine]
    failures: tuple[type[Exception], ...]

    def __init__(self, writes: bool) -> None:
        self.events: list[Event] = []
        # What a statement failed with, and no savepoint has undone.
        self.failure: StoreError | None = None
        self._writes = writes

    def run(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement; how many rows it changed."""
        count: int = self._do(self._run, sql, parameters)
        return count

    def many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Run a statement once for each row of parameters; how many rows it changed in all."""
        count: int = self._do(self._many, sql, rows)
        return count

    def fill(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        """As `many`, with the parameters given column by column: of very many rows that is the quickest way."""
        count: int = self._do(self._fill, sql, columns)
        return count

    def all(self, kind: type[T], sql: str, parameters: Parameters = ()) -> list[T]:
        columns, rows = self._do(self._fetch, sql, parameters)
        return decode(kind, columns, rows)

    def one(self, kind: type[T], sql: str, parameters: Parameters = ()) -> T:
        """The one row that there is."""
        columns, rows = self._do(self._fetch, sql, parameters)
        if len(rows) != 1:
            raise NotOneRow(f"One row was expected, and there are {len(rows)}: {sql}")
        value: T = decode(kind, columns, rows)[0]
        return value

    def maybe(self, kind: type[T], sql: str, parameters: Parameters = ()) -> T | None:
        """The one row that there may be. A single value may also be null."""
        columns, rows = self._do(self._fetch, sql, parameters)
        if len(rows) > 1:
            raise NotOneRow(f"One row was expected, and there are {len(rows)}: {sql}")
        return decode(kind, columns, rows, nullable=True)[0] if rows else None

    def publish(self, topic: str, payload: str = "") -> None:
        """Tell the subscribers of the topic, in every process, once this is committed."""
        if not self._writes:
            raise UsageError("Only a transaction that writes can publish: what has not changed is no news.")
        self.events.append(_event(topic, payload))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """If what stands inside fails, it alone is undone. A failure that is caught outside of one ends it all."""
        told = len(self.events)
        self._do(self._run, "savepoint inside", ())
        try:
            yield
            self._do(self._run, "release savepoint inside", ())
        except BaseException:
            if self.alive:
                self.failure = None
                del self.events[told:]
                self._do(self._run, "rollback to savepoint inside", ())
                self._do(self._run, "release savepoint inside", ())
            raise

    def lock(self, name: str) -> None:
        """Wait until no other transaction, in any process, holds this name; it is ours until the end.

        With `read committed` what the others did meanwhile is seen; otherwise it may be a Conflict, and tried again.
        """
        raise NotImplementedError

    def now(self) -> float:
        """Seconds since 1970 by one clock for all who use the database: machines do not agree on the time."""
        raise NotImplementedError

    def analyze(self, *tables: str) -> None:
        """Have the planner look at tables again into which so much was written that what it knows of them is of no use.
        It would by itself, minutes later. SQLite's goes by what a statement says."""

    def script(self, sql: str) -> None:
        """Several statements without parameters, as migrations have them."""
        self._do(self._script, sql, ())

    def perform(self, fn: Callable[[Transaction], T]) -> T:
        """Run a function and see that it has not swallowed the failure of a statement."""
        value = fn(self)
        if isinstance(value, CoroutineType):
            value.close()
            raise UsageError(f"{fn!r} is an async function; what reads or writes is a plain one that does not wait.")
        if self.failure is not None:
            raise self._aborted()
        return value

    @property
    def alive(self) -> bool:
        """Whether the transaction is still there: a full disk ends it, and a lost connection."""
        raise NotImplementedError

    def _do(self, action: Callable[[str, Any], Any], sql: str, parameters: Any) -> Any:
        if self.failure is not None:
            raise self._aborted()
        try:
            return action(sql, parameters)
        except self.failures as failure:
            self.failure = explained = self._explain(failure)
            raise explained from (None if explained is failure else failure)

    def _aborted(self) -> StoreError:
        # PostgreSQL does nothing more in such a transaction, and SQLite would: so that it is the same on both.
        return BadStatement(
            f"A statement of this transaction failed, and that was caught. Nothing more can be done in it; put "
            f"`with tx.savepoint():` around what may fail. The failure was: {self.failure}"
        )

    def _run(self, sql: str, parameters: Parameters) -> int:
        count: int = self._execute(sql, parameters).rowcount
        return count

    def _fetch(self, sql: str, parameters: Parameters) -> tuple[tuple[str, ...], list[Row]]:
        cursor = self._execute(sql, parameters)
        if cursor.description is None:
            raise BadStatement(f"This gives no rows: {sql}")
        return tuple([column[0] for column in cursor.description]), cursor.fetchall()

    # What an engine brings.

    def _execute(self, sql: str, parameters: Parameters) -> Any:
        """A cursor of the driver, as DB-API 2.0 has it."""
        raise NotImplementedError

    def _many(self, sql: str, rows: Iterable[Parameters]) -> int:
        raise NotImplementedError

    def _fill(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        return self._many(sql, zip(*columns, strict=True))

    def _script(self, sql: str, _: Any) -> None:
        raise NotImplementedError

    def _explain(self, failure: Any) -> StoreError:
        raise NotImplementedError


def _event(topic: str, payload: str) -> Event:
    if not 0 < len(topic) <= LONGEST_TOPIC:
        raise UsageError(f"A topic has 1 to {LONGEST_TOPIC} characters, not {len(topic)}.")
    try:
        (topic + payload).encode()
    except UnicodeEncodeError:
        raise UsageError("Topics and payloads are text, and half a surrogate pair is not.") from None
    return Event(topic, payload if len(payload) <= LONGEST_PAYLOAD else "")
