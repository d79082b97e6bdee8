"""Transaction interface, the same for both engines.

    def claim(tx: Transaction) -> Task | None:
        task = tx.fetch_optional(Task, "select … where status = 'queued' order by … limit 1 for update skip locked")
        if task is not None:
            tx.execute("update task set status = 'working' where id = :id", {"id": task.id})
            tx.publish("task", task.id)
        return task

    task = await db.write(claim)

Such a function runs in a thread, may be retried from the start, and should be short: on SQLite all other writers wait
for it. It must not change anything but the database, and must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from portico.protocol.errors import UsageError
from portico.store.errors import InvalidStatement, RowMismatch, StoreError
from portico.store.rows import Row, decode_rows

T = TypeVar("T")
Parameters = Mapping[str, Any] | Sequence[Any]
Engine = Literal["sqlite", "postgresql"]
# `serializable`, which SQLite always provides: as if transactions ran one after the other. `read committed` is for
# functions that lock the rows they rely on; on PostgreSQL they then conflict less.
Isolation = Literal["serializable", "read committed"]

# Topics are names in the code, such as "task".
MAX_TOPIC_CHARS = 100
# JSON needs at most six bytes per character, so a packet fits into the 8,000 bytes of NOTIFY.
MAX_PAYLOAD_CHARS = 1000


class Event(Struct, frozen=True, array_like=True, gc=False):
    """Notification that something about the topic has changed. An empty payload may mean anything about it."""

    topic: str
    payload: str = ""


class Transaction:
    """Transaction: all of it is applied, or nothing. `dialect.py` describes the SQL, `rows.py` the row types."""

    engine: ClassVar[Engine]
    driver_errors: tuple[type[Exception], ...]

    def __init__(self, is_write: bool) -> None:
        self.events: list[Event] = []
        # Error of a failed statement that no savepoint has undone.
        self.failure: StoreError | None = None
        self._is_write = is_write

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute a statement and return the number of changed rows."""
        count: int = self._do(self._execute_count, sql, parameters)
        return count

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Execute a statement for each row of parameters and return the total number of changed rows."""
        count: int = self._do(self._execute_many, sql, rows)
        return count

    def execute_columns(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        """Execute a statement like `execute_many`, with the parameters by column: the fastest way for many rows."""
        count: int = self._do(self._execute_columns, sql, columns)
        return count

    def fetch_all(self, row_type: type[T], sql: str, parameters: Parameters = ()) -> list[T]:
        """Return all rows."""
        # All rows are fetched before decoding, so that a decoding error leaves no open cursor.
        columns, rows = self._do(self._fetch, sql, parameters)
        return decode_rows(row_type, columns, rows)

    def fetch_one(self, row_type: type[T], sql: str, parameters: Parameters = ()) -> T:
        """Return the only row. Raises RowMismatch."""
        columns, rows = self._do(self._fetch, sql, parameters)
        if len(rows) != 1:
            raise RowMismatch(f"expected one row, got {len(rows)}: {sql}")
        value: T = decode_rows(row_type, columns, rows)[0]
        return value

    def fetch_optional(self, row_type: type[T], sql: str, parameters: Parameters = ()) -> T | None:
        """Return the only row, or None. A single value may also be null."""
        columns, rows = self._do(self._fetch, sql, parameters)
        if len(rows) > 1:
            raise RowMismatch(f"expected at most one row, got {len(rows)}: {sql}")
        return decode_rows(row_type, columns, rows, nullable=True)[0] if rows else None

    def publish(self, topic: str, payload: str = "") -> None:
        """Notify the subscribers of the topic, in every process, after the commit."""
        if not self._is_write:
            raise UsageError("only a transaction that writes can publish events")
        self.events.append(_event(topic, payload))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo only the statements inside if they fail. An error caught outside a savepoint aborts the transaction."""
        event_count = len(self.events)
        self._do(self._execute_count, "savepoint inside", ())
        try:
            yield
            self._do(self._execute_count, "release savepoint inside", ())
        except BaseException:
            if self.is_active:
                self.failure = None
                del self.events[event_count:]
                self._do(self._execute_count, "rollback to savepoint inside", ())
                self._do(self._execute_count, "release savepoint inside", ())
            raise

    def advisory_lock(self, name: str) -> None:
        """Wait until no other transaction, in any process, holds this lock, and hold it until the end.

        With `read committed`, the changes that others made in the meantime are visible; otherwise there may be a
        SerializationConflict and a retry.
        """
        raise NotImplementedError

    def now(self) -> float:
        """Return the time of the database in Unix seconds: the clocks of machines differ."""
        raise NotImplementedError

    def analyze(self, *tables: str) -> None:
        """Update the planner's statistics after bulk writes. PostgreSQL would do it minutes later; SQLite does not need
        it.
        """

    def execute_script(self, sql: str) -> None:
        """Execute several statements without parameters, as in migrations."""
        self._do(self._execute_script, sql, ())

    def run_function(self, fn: Callable[[Transaction], T]) -> T:
        """Run a function and check that it did not swallow the error of a statement."""
        value = fn(self)
        if isinstance(value, CoroutineType):
            value.close()
            raise UsageError(f"{fn!r} is an async function; a transaction function must be synchronous.")
        if self.failure is not None:
            raise self._aborted_error()
        return value

    @property
    def is_active(self) -> bool:
        """Return whether the transaction is still open: a full disk or a lost connection ends it."""
        raise NotImplementedError

    def _do(self, action: Callable[[str, Any], Any], sql: str, parameters: Any) -> Any:
        if self.failure is not None:
            raise self._aborted_error()
        try:
            return action(sql, parameters)
        except self.driver_errors as failure:
            self.failure = error = self._translate_error(failure)
            raise error from (None if error is failure else failure)

    def _aborted_error(self) -> StoreError:
        # PostgreSQL refuses further statements in such a transaction; this makes SQLite behave alike.
        return InvalidStatement(
            "A statement of this transaction failed and the error was caught, so the transaction is aborted; "
            f"put `with tx.savepoint():` around statements that may fail. The error was: {self.failure}"
        )

    def _execute_count(self, sql: str, parameters: Parameters) -> int:
        count: int = self._execute(sql, parameters).rowcount
        return count

    def _fetch(self, sql: str, parameters: Parameters) -> tuple[tuple[str, ...], list[Row]]:
        cursor = self._execute(sql, parameters)
        if cursor.description is None:
            raise InvalidStatement(f"The statement returns no rows: {sql}")
        return tuple([column[0] for column in cursor.description]), cursor.fetchall()

    # Implemented by the engines

    def _execute(self, sql: str, parameters: Parameters) -> Any:
        """Execute a statement and return the driver's cursor (DB-API 2.0)."""
        raise NotImplementedError

    def _execute_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        raise NotImplementedError

    def _execute_columns(self, sql: str, columns: Sequence[Sequence[Any]]) -> int:
        return self._execute_many(sql, zip(*columns, strict=True))

    def _execute_script(self, sql: str, _: Any) -> None:
        raise NotImplementedError

    def _translate_error(self, failure: Any) -> StoreError:
        raise NotImplementedError


def _event(topic: str, payload: str) -> Event:
    if not 0 < len(topic) <= MAX_TOPIC_CHARS:
        raise UsageError(f"A topic must have 1 to {MAX_TOPIC_CHARS} characters, got {len(topic)}.")
    try:
        # NOTIFY and JSON need valid UTF-8; the error should name the caller and not the sender thread.
        (topic + payload).encode()
    except UnicodeEncodeError:
        raise UsageError("Topics and payloads must not contain lone surrogates.") from None
    return Event(topic, payload if len(payload) <= MAX_PAYLOAD_CHARS else "")
