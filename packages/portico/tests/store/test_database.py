"""Reads and writes are equal on every engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Raw, Struct

from portico.protocol.errors import PorticoError, UsageError
from portico.store import sqlite
from portico.store.database import Database, parse_database_url
from portico.store.errors import (
    ConstraintViolation,
    DatabaseClosed,
    DatabaseOpenError,
    InvalidStatement,
    InvalidValue,
    ReadOnlyDatabase,
    RowMismatch,
    StoreError,
    UniqueViolation,
)
from portico.store.rows import encode_json_column
from portico.store.sqlite import execute_with_retry
from portico.store.transaction import Transaction
from support import postgres

TIMEOUT_SECONDS = 60.0


class Colour(StrEnum):
    RED = "red"


class Detail(Struct, frozen=True):
    width: int


class Item(Struct, frozen=True, rename="camel"):
    id: int
    name: str
    count: int = 0
    weight: float | None = None
    done: bool = False
    detail: Detail | None = None


def add(tx: Transaction, name: str, **more: Any) -> int:
    values = {"name": name, **more}
    columns, marks = ", ".join(values), ", ".join(f":{column}" for column in values)
    return tx.fetch_one(int, f"insert into item ({columns}) values ({marks}) returning id", values)


def names(tx: Transaction) -> list[str]:
    return tx.fetch_all(str, "select name from item order by id")


# Addresses


@pytest.mark.parametrize(
    ("url", "engine", "address"),
    [
        ("sqlite:///var/lib/x.db", "sqlite", "/var/lib/x.db"),
        ("sqlite:////var/lib/x.db", "sqlite", "/var/lib/x.db"),
        ("sqlite:///with%20space.db", "sqlite", "/with space.db"),
        ("sqlite:///C:/data/x.db", "sqlite", "C:/data/x.db"),
        ("relative/x.db", "sqlite", "relative/x.db"),
        ("sqlite://", "sqlite", ":memory:"),
        ("sqlite:///:memory:", "sqlite", ":memory:"),
        (":memory:", "sqlite", ":memory:"),
        ("postgresql://u:p@h/d?sslmode=require", "postgresql", "postgresql://u:p@h/d?sslmode=require"),
        ("postgres://h/d", "postgresql", "postgres://h/d"),
    ],
)
def test_url_says_which_engine_and_where(url: str, engine: str, address: str) -> None:
    assert parse_database_url(url) == (engine, address)


def test_path_is_an_address_too(tmp_path: Path) -> None:
    assert parse_database_url(str(tmp_path / "x.db")) == ("sqlite", str(tmp_path / "x.db"))
    assert Database(tmp_path / "x.db").engine == "sqlite"


@pytest.mark.parametrize("url", ["mysql://host/name", "sqlite://relative.db"])
def test_invalid_database_url_error_shows_an_example(url: str) -> None:
    with pytest.raises(DatabaseOpenError, match=r"sqlite:///path/to/file\.db"):
        Database(url)


def test_every_error_is_an_error_of_ours() -> None:
    assert issubclass(StoreError, PorticoError)


# Rows


async def test_row_becomes_a_struct(db: Database) -> None:
    id = await db.write(lambda tx: add(tx, "a", count=3, weight=1.5, done=True, detail=encode_json_column(Detail(7))))
    message = await db.read(
        lambda tx: tx.fetch_one(
            Item, "select id, name, count, weight, done, detail from item where id = :id", {"id": id}
        )
    )
    assert message == Item(id, "a", 3, 1.5, True, Detail(7))


async def test_null_columns_and_unselected_fields_use_defaults(db: Database) -> None:
    id = await db.write(lambda tx: add(tx, "a"))
    assert await db.read(lambda tx: tx.fetch_one(Item, "select id, name, weight, detail from item")) == Item(id, "a")


async def test_raw_json_is_stored_unchanged(db: Database) -> None:
    class Kept(Struct):
        name: str
        detail: Raw = Raw()

    await db.write(lambda tx: add(tx, "a", detail='{"b" : 1,  "a": 2.0}'))
    await db.write(lambda tx: add(tx, "b"))
    message = await db.read(lambda tx: tx.fetch_all(Kept, "select name, detail from item order by id"))
    assert [bytes(item.detail) for item in message] == [b'{"b" : 1,  "a": 2.0}', b""]


async def test_json_can_be_lists_and_open_values(db: Database) -> None:
    await db.write(lambda tx: add(tx, "a", detail=encode_json_column([1, 2])))
    assert await db.read(lambda tx: tx.fetch_one(list[int], "select detail from item")) == [1, 2]

    class Open(Struct):
        detail: Any

    assert (await db.read(lambda tx: tx.fetch_one(Open, "select detail from item"))).detail == [1, 2]


async def test_plain_values_of_every_kind(db: Database) -> None:
    class Kinds(Struct):
        name: Colour
        count: Annotated[int, Meta(ge=0)]
        picture: bytes | None
        done: bool | None
        weight: float = 0.0

    class Narrow(Struct):
        name: Literal["red", "blue"]

    big = 2**62 + 1
    await db.write(lambda tx: add(tx, "red", count=big, picture=b"\x00\xff", weight=3.0))
    message = await db.read(lambda tx: tx.fetch_one(Kinds, "select name, count, picture, done, weight from item"))
    assert (message.name, message.count, message.picture, message.done, message.weight) == (
        Colour.RED,
        big,
        b"\0\xff",
        False,
        3,
    )
    assert (await db.read(lambda tx: tx.fetch_one(Narrow, "select name from item"))).name == "red"


async def test_tuple_is_a_row_and_a_plain_type_is_its_only_column(db: Database) -> None:
    await db.write(lambda tx: (add(tx, "a", count=1), add(tx, "b", count=2)))
    pairs = await db.read(lambda tx: tx.fetch_all(tuple[str, int], "select name, count from item order by id"))
    assert pairs == [("a", 1), ("b", 2)]
    assert await db.read(lambda tx: tx.fetch_one(int, "select count(*) from item")) == 2
    assert await db.read(lambda tx: tx.fetch_one(int, "select sum(count) from item")) == 3
    assert await db.read(lambda tx: tx.fetch_one(float, "select avg(count) from item")) == 1.5


async def test_tuple_may_have_lists_of_json(db: Database) -> None:
    await db.write(lambda tx: (add(tx, "a", count=1), add(tx, "a", count=2), add(tx, "b", count=3)))
    listed = "coalesce(cast(json_agg(item.{0}) as text), '[]')"
    sql = f"select name, {listed.format('count')} from item group by name order by name"
    assert await db.read(lambda tx: tx.fetch_all(tuple[str, list[int]], sql)) == [("a", [1, 2]), ("b", [3])]
    rows = f"select {listed.format('count')}, {listed.format('name')} from item where name = 'c'"
    assert await db.read(lambda tx: tx.fetch_one(tuple[list[int], list[str]], rows)) == ([], [])
    with pytest.raises(RowMismatch, match="Expected `int`"):
        await db.read(lambda tx: tx.fetch_all(tuple[list[int]], f"select {listed.format('name')} from item"))


async def test_fetch_one_requires_exactly_one_row(db: Database) -> None:
    assert await db.read(lambda tx: tx.fetch_optional(Item, "select id, name from item")) is None
    assert await db.read(lambda tx: tx.fetch_optional(int, "select max(count) from item")) is None
    with pytest.raises(RowMismatch, match="expected one row, got 0"):
        await db.read(lambda tx: tx.fetch_one(Item, "select id, name from item"))
    await db.write(lambda tx: (add(tx, "a"), add(tx, "b")))
    for ask in (Transaction.fetch_one, Transaction.fetch_optional):
        with pytest.raises(RowMismatch, match="one row, got 2"):
            await db.read(lambda tx, ask=ask: ask(tx, Item, "select id, name from item"))


async def test_row_mismatch_error_names_the_type(db: Database) -> None:
    await db.write(lambda tx: add(tx, "a", detail="[]"))
    with pytest.raises(RowMismatch, match="does not match Item"):
        await db.read(lambda tx: tx.fetch_all(Item, "select id, name, detail from item"))
    with pytest.raises(RowMismatch, match="Expected `int`"):
        await db.read(lambda tx: tx.fetch_all(int, "select name from item"))
    with pytest.raises(UsageError, match="Item does not have"):
        await db.read(lambda tx: tx.fetch_all(Item, "select id, name, picture from item"))
    with pytest.raises(UsageError, match="2 columns"):
        await db.read(lambda tx: tx.fetch_all(int, "select id, name from item"))


# Parameters


async def test_parameters_by_name_and_by_position(db: Database) -> None:
    await db.write(lambda tx: tx.execute("insert into item (name, count) values (?, ?)", ["a", 1]))
    await db.write(
        lambda tx: tx.execute("insert into item (name, count) values (:n, :c)", {"n": "b", "c": 2, "unused": 1})
    )
    message = await db.read(
        lambda tx: tx.fetch_all(str, "select name from item where count = :c or name = :n", {"c": 1, "n": "a"})
    )
    assert message == ["a"]


async def test_placeholders_in_quotes_and_comments_are_not_parameters(db: Database) -> None:
    sql = """select ':a ? % it''s' || :a /* :b ? */ -- ? :c '
    """
    assert await db.read(lambda tx: tx.fetch_one(str, sql, {"a": "!"})) == ":a ? % it's!"
    assert await db.read(lambda tx: tx.fetch_one(str, "select ':a ? %%'")) == ":a ? %%"
    assert await db.read(lambda tx: tx.fetch_one(int, "select 7 % cast(? as bigint)", [4])) == 3


async def test_list_parameter_is_expanded(db: Database) -> None:
    await db.write(lambda tx: [add(tx, name, count=n) for n, name in enumerate(["a", "b", "it's ☃"])])

    def ask(sql: str, parameters: Any) -> Any:
        return db.read(lambda tx: tx.fetch_all(str, f"select name from item where {sql} order by id", parameters))

    assert await ask("name in :names", {"names": ["a", "it's ☃", "z"]}) == ["a", "it's ☃"]
    assert await ask("name not in :names", {"names": ["a"]}) == ["b", "it's ☃"]
    assert await ask("count in ? and name <> ?", [[0, 1], "a"]) == ["b"]
    assert await ask("count in :counts", {"counts": []}) == []
    assert await ask("count not in :counts", {"counts": []}) == ["a", "b", "it's ☃"]
    assert await ask("count in :counts", {"counts": list(range(50_000))}) == ["a", "b", "it's ☃"]


@pytest.mark.parametrize(
    "text", ["'; drop table item; --", '"', "\\", "\\u0000", "%s %(a)s", ":a", "\u202e☃\U0001f600", "a\nb\r"]
)
async def test_text_is_data(db: Database, text: str) -> None:
    await db.write(lambda tx: add(tx, text))
    assert await db.read(lambda tx: tx.fetch_all(str, "select name from item where name = :name", {"name": text})) == [
        text
    ]
    values = {"names": ["", "NULL", text, "{a,b}"]}
    assert await db.read(lambda tx: tx.fetch_all(str, "select name from item where name in :names", values)) == [text]


@pytest.mark.parametrize("values", [[1], [-1, 2**62], [None, 1], []])
async def test_lists_of_numbers_of_any_size_are_one_parameter(db: Database, values: list[int | None]) -> None:
    stored = [value for value in values if value is not None and value > 0]
    await db.write(lambda tx: [add(tx, str(value), count=value) for value in stored])
    sql = "select count from item where count in :values"
    assert await db.read(lambda tx: tx.fetch_all(int, sql, {"values": values})) == stored


@pytest.mark.parametrize("values", [{"name": "a\0b"}, {"names": ["a", "b\0"]}, {"names": ["a"], "name": "\0"}])
async def test_nul_is_rejected_with_the_same_message_by_both_engines(db: Database, values: dict[str, Any]) -> None:
    condition = " and ".join(f"name {'in' if name == 'names' else '='} :{name}" for name in values)
    with pytest.raises(
        InvalidValue, match=r"^Text with a NUL character cannot be stored\. Remove it, or store bytes\.$"
    ):
        await db.read(lambda tx: tx.fetch_all(str, f"select name from item where {condition}", values))


@pytest.mark.parametrize("value", ["a\0b", "half \ud800", 2**63])
async def test_values_unsupported_by_one_engine_are_rejected_by_both(db: Database, value: Any) -> None:
    column = "name" if isinstance(value, str) else "count"
    with pytest.raises(InvalidValue):
        await db.write(lambda tx: add(tx, **{"name": "a", column: value}))
    assert await db.read(names) == []


async def test_many_runs_once_for_each_row(db: Database) -> None:
    def fill(tx: Transaction) -> list[int]:
        return [
            tx.execute_many(
                "insert into item (name, count) values (:name, :count)",
                ({"name": f"n{n}", "count": n} for n in range(9)),
            ),
            tx.execute_many("insert into item (name) values (?)", [("a",), ("b",)]),
            tx.execute_many("insert into item (name) values (?)", []),
            tx.execute_many("delete from item where name = ?", [("n1",), ("z",), ("b",)]),
            tx.execute_many("delete from item where name = ?", [("z",)]),
        ]

    assert await db.write(fill) == [9, 2, 0, 2, 0]
    assert await db.read(lambda tx: tx.fetch_one(int, "select count(*) from item")) == 9


async def test_rows_may_be_given_as_columns(db: Database) -> None:
    def fill(tx: Transaction) -> list[int]:
        sql = "insert into item (name, count) values (?, ?)"
        return [tx.execute_columns(sql, columns) for columns in ((["a", "b", "c"], [1, 2, 3]), (["d"], [4]), ([], []))]

    assert await db.write(fill) == [3, 1, 0]
    rows = await db.read(lambda tx: tx.fetch_all(tuple[str, int], "select name, count from item order by name"))
    assert rows == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.parametrize("column", [["red", "gr\0een"], ["gr\0een"], ["gr\0een", None]])
async def test_nul_is_found_in_a_column(db: Database, column: list[str | None]) -> None:
    with pytest.raises(InvalidValue):
        await db.write(
            lambda tx: tx.execute_columns("insert into item (name, count) values (?, ?)", (column, [1] * len(column)))
        )
    assert await db.read(lambda tx: tx.fetch_one(int, "select count(*) from item")) == 0


async def test_columns_of_different_lengths_write_nothing(db: Database) -> None:
    with pytest.raises(ValueError, match="shorter"):
        await db.write(
            lambda tx: tx.execute_columns("insert into item (name, count) values (?, ?)", (["a", "b", "c"], [1, 2]))
        )
    assert await db.read(names) == []


async def test_execute_returns_the_number_of_changed_rows(db: Database) -> None:
    await db.write(lambda tx: [add(tx, name) for name in "abc"])
    assert await db.write(lambda tx: tx.execute("update item set count = 1 where name <> 'a'")) == 2
    assert await db.write(lambda tx: tx.execute("delete from item where name = 'z'")) == 0


# What both engines share


async def test_upserts_and_returning(db: Database) -> None:
    sql = """
    insert into owner (name) values (:name)
    on conflict (name) do update set name = excluded.name
    returning id
    """
    first = await db.write(lambda tx: tx.fetch_one(int, sql, {"name": "a"}))
    assert await db.write(lambda tx: tx.fetch_one(int, sql, {"name": "a"})) == first
    ignored = "insert into owner (name) values ('a') on conflict do nothing returning id"
    assert await db.write(lambda tx: tx.fetch_optional(int, ignored)) is None


async def test_ids_are_never_given_out_twice(db: Database) -> None:
    first = await db.write(lambda tx: add(tx, "a"))
    await db.write(lambda tx: tx.execute("delete from item"))
    assert await db.write(lambda tx: add(tx, "b")) > first


async def test_locking_clauses_are_understood(db: Database) -> None:
    await db.write(lambda tx: add(tx, "a"))
    sql = "select name from item where done = false order by id limit 1 for update{}"
    for suffix in ("", " skip locked", " nowait", " of item skip locked"):
        response = await db.write(
            lambda tx, suffix=suffix: tx.fetch_all(str, sql.format(suffix)), isolation="read committed"
        )
        assert response == ["a"]


async def test_like_minds_case_and_text_is_ordered_by_its_bytes(db: Database) -> None:
    await db.write(lambda tx: [add(tx, name) for name in ["b", "a", "B", "ä", "_"]])
    assert await db.read(lambda tx: tx.fetch_all(str, "select name from item order by name")) == [
        "B",
        "_",
        "a",
        "b",
        "ä",
    ]
    assert await db.read(lambda tx: tx.fetch_all(str, "select name from item where name like 'B%'")) == ["B"]


async def test_name_can_be_locked(db: Database) -> None:
    def locked(tx: Transaction) -> int:
        tx.advisory_lock("the counter")
        return add(tx, "a")

    assert await db.write(locked)


# Constraints


async def test_violated_constraint_says_which(db: Database) -> None:
    owner = await db.write(lambda tx: tx.fetch_one(int, "insert into owner (name) values ('o') returning id"))
    await db.write(lambda tx: add(tx, "a", owner=owner))
    with pytest.raises(UniqueViolation) as unique:
        await db.write(lambda tx: add(tx, "a", owner=owner))
    assert (unique.value.table, unique.value.columns) == ("item", ("owner", "name"))
    assert "item.owner, name" in str(unique.value)
    with pytest.raises(ConstraintViolation, match=": check") as check:
        await db.write(lambda tx: add(tx, "b", count=-1))
    assert check.value.constraint == "count_is_not_negative"
    with pytest.raises(ConstraintViolation, match="not null") as missing:
        await db.write(lambda tx: tx.execute("insert into item (name) values (null)"))
    assert (missing.value.table, missing.value.columns) == ("item", ("name",))
    with pytest.raises(ConstraintViolation, match="foreign key"):
        await db.write(lambda tx: add(tx, "c", owner=owner + 1))
    assert await db.read(names) == ["a"]


async def test_foreign_keys_cascade(db: Database) -> None:
    owner = await db.write(lambda tx: tx.fetch_one(int, "insert into owner (name) values ('o') returning id"))
    await db.write(lambda tx: add(tx, "a", owner=owner))
    await db.write(lambda tx: tx.execute("delete from owner"))
    assert await db.read(names) == []


async def test_deferred_constraint_fails_only_its_transaction(db: Database) -> None:
    await db.write(
        lambda tx: tx.execute(
            "create table late (id bigint primary key, next bigint references late (id) deferrable initially deferred)"
        )
    )

    def link(id: int, next: int) -> Any:
        return db.write(lambda tx: tx.execute("insert into late (id, next) values (?, ?)", [id, next]))

    outcomes = await asyncio.gather(link(1, 1), link(2, 77), link(3, 3), return_exceptions=True)
    assert outcomes[0] == outcomes[2] == 1
    assert isinstance(outcomes[1], ConstraintViolation) and outcomes[1].rule == "foreign key"
    assert await db.read(lambda tx: tx.fetch_all(int, "select id from late order by id")) == [1, 3]


async def test_wrong_sql_is_a_clear_error(db: Database) -> None:
    for sql in ("selekt 1", "select * from nowhere", "select nothing from item"):
        with pytest.raises(InvalidStatement):
            await db.read(lambda tx, sql=sql: tx.fetch_all(int, sql))
    with pytest.raises(InvalidStatement, match="returns no rows"):
        await db.write(lambda tx: tx.fetch_all(int, "update item set count = 0"))
    with pytest.raises(InvalidStatement):
        await db.read(lambda tx: tx.fetch_one(int, "select cast(:a as bigint)", {"b": 1}))
    assert await db.read(lambda tx: tx.fetch_one(int, "select 1")) == 1


# All or nothing


async def test_failed_transaction_is_rolled_back(db: Database) -> None:
    class Odd(Exception):
        pass

    def half(tx: Transaction) -> None:
        add(tx, "a")
        raise Odd("no")

    with pytest.raises(Odd):
        await db.write(half)
    assert await db.read(names) == []


async def test_failed_transactions_do_not_fail_their_batch(db: Database) -> None:
    def some(n: int) -> Any:
        def work(tx: Transaction) -> int:
            add(tx, f"{n:03}")
            if n % 3 == 0:
                raise ValueError(n)
            if n % 7 == 0:
                add(tx, f"{n:03}", id=1 if n else 2, count=-1)
            return n

        return db.write(work)

    outcomes = await asyncio.gather(*map(some, range(100)), return_exceptions=True)
    assert [n for n, one in enumerate(outcomes) if isinstance(one, ValueError)] == list(range(0, 100, 3))
    assert all(isinstance(outcomes[n], ConstraintViolation) for n in range(0, 100, 7) if n % 3)
    written = [n for n in range(100) if n % 3 and n % 7]
    assert [outcomes[n] for n in written] == written
    assert sorted(map(int, await db.read(names))) == written


@pytest.mark.parametrize("rows", [[("red", 1), ("gr\0een", 2)], [("gr\0een", 1), (None, 2)], [{"a": "\0", "b": 1}]])
async def test_nul_is_rejected_in_bulk_inserts(db: Database, rows: list[Any]) -> None:
    marks = ":a, :b" if isinstance(rows[0], dict) else "?, ?"
    with pytest.raises(InvalidValue):
        await db.write(lambda tx: tx.execute_many(f"insert into item (name, count) values ({marks})", rows))
    assert await db.read(names) == []


async def test_bulk_insert_accepts_any_iterable(db: Database) -> None:
    rows = ((name, number) for number, name in enumerate(["red", "green"]))
    await db.write(lambda tx: tx.execute_many("insert into item (name, count) values (?, ?)", rows))
    await db.write(lambda tx: tx.execute_many("insert into item (name, count) values (?, ?)", []))
    assert await db.read(names) == ["red", "green"]


async def test_concurrent_increments_are_not_lost(db: Database) -> None:
    """Read, then write: as if one ran after the other, on every engine."""
    id = await db.write(lambda tx: add(tx, "a"))

    def more(tx: Transaction) -> int:
        count = tx.fetch_one(int, "select count from item where id = ?", [id])
        tx.execute("update item set count = ? where id = ?", [count + 1, id])
        return count

    counts = await asyncio.gather(*(db.write(more) for _ in range(60)))
    assert sorted(counts) == list(range(60))


async def test_concurrent_changes_cannot_violate_an_invariant(db: Database) -> None:
    """Write skew: each looks at what the other changes. Only what is serializable keeps them apart."""
    await db.write(lambda tx: (add(tx, "a", count=1), add(tx, "b", count=1)))

    def take(name: str) -> Any:
        def work(tx: Transaction) -> bool:
            if tx.fetch_one(int, "select sum(count) from item") < 2:
                return False
            tx.execute("update item set count = 0 where name = ?", [name])
            return True

        return db.write(work)

    for _ in range(10):
        await db.write(lambda tx: tx.execute("update item set count = 1"))
        assert sorted(await asyncio.gather(take("a"), take("b"))) == [False, True]


async def test_another_role_cannot_replace_functions_of_statements(
    postgres_server: postgres.Server, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = postgres_url.partition("@/")[2].partition("?")[0]
    async with Database(postgres_url):
        assert "revoke create" not in caplog.text
    postgres_server.sql("create schema if not exists public; grant create on schema public to public", database)
    for first in ("text", "varchar"):
        postgres_server.sql(
            f"create function public.hashtextextended({first}, integer) returns bigint language plpgsql "
            "as $$ begin raise exception 'replaced'; end $$",
            database,
        )
    async with Database(postgres_url) as db:
        await db.write(lambda tx: tx.advisory_lock("name"))
    assert "revoke create on schema public" in caplog.text


async def test_savepoint_rolls_back_only_its_block(db: Database) -> None:
    def work(tx: Transaction) -> None:
        add(tx, "a")
        with pytest.raises(ConstraintViolation, match=": check"), tx.savepoint():
            add(tx, "b")
            tx.publish("item", "b")
            with pytest.raises(ValueError), tx.savepoint():
                add(tx, "c")
                raise ValueError
            add(tx, "d", count=-1)
        with tx.savepoint():
            add(tx, "e")
        assert tx.events == []

    await db.write(work)
    assert await db.read(names) == ["a", "e"]


async def test_failure_that_is_swallowed_still_ends_the_transaction(db: Database) -> None:
    def goes_on(tx: Transaction) -> None:
        with pytest.raises(ConstraintViolation, match=": check"):
            add(tx, "a", count=-1)
        add(tx, "b")

    def returns(tx: Transaction) -> None:
        add(tx, "c")
        with pytest.raises(ConstraintViolation, match=": check"):
            add(tx, "a", count=-1)

    for work in (goes_on, returns):
        with pytest.raises(InvalidStatement, match=r"savepoint.*count_is_not_negative"):
            await db.write(work)
    assert await db.read(names) == []


async def test_reading_does_not_write(db: Database) -> None:
    with pytest.raises(ReadOnlyDatabase):
        await db.read(lambda tx: add(tx, "a"))
    assert await db.read(names) == []
    await db.write(lambda tx: add(tx, "b"))
    assert await db.read(names) == ["b"]


async def test_function_that_waits_is_rejected(db: Database) -> None:
    async def wrong(tx: Transaction) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match="async"):
        await db.write(wrong)


async def test_stop_iteration_does_not_end_the_waiting_caller(db: Database) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await db.write(lambda tx: next(iter(())))


async def test_read_sees_one_moment(shared_url: str) -> None:
    async with Database(shared_url) as db:
        await db.write(lambda tx: tx.execute("create table t (n bigint)"))
        looked, written = threading.Event(), threading.Event()

        def look(tx: Transaction) -> tuple[int, int]:
            first = tx.fetch_one(int, "select count(*) from t")
            looked.set()
            assert written.wait(TIMEOUT_SECONDS)
            return first, tx.fetch_one(int, "select count(*) from t")

        reading = asyncio.ensure_future(db.read(look))
        assert await asyncio.to_thread(looked.wait, TIMEOUT_SECONDS)
        await db.write(lambda tx: tx.execute("insert into t (n) values (1)"))
        written.set()
        assert await reading == (0, 0)
        assert await db.read(lambda tx: tx.fetch_one(int, "select count(*) from t")) == 1


async def test_reads_run_concurrently(shared_url: str) -> None:
    async with Database(shared_url, max_connections=3) as db:
        together = threading.Barrier(3, timeout=TIMEOUT_SECONDS)
        assert sorted(await asyncio.gather(*(db.read(lambda tx: together.wait()) for _ in range(3)))) == [0, 1, 2]


# Cancelling, closing


async def test_cancelled_write_has_happened_wholly_or_not_at_all(shared_url: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        tx.execute("insert into t (n) values (1)")
        begun.set()
        assert go_on.wait(TIMEOUT_SECONDS)
        tx.execute("insert into t (n) values (2)")

    async with Database(shared_url) as db:
        await db.write(lambda tx: tx.execute("create table t (n bigint)"))
        writing = asyncio.ensure_future(db.write(slow))
        assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await db.read(lambda tx: tx.fetch_all(int, "select n from t")) == []
        go_on.set()
    async with Database(shared_url) as db:
        assert await db.read(lambda tx: tx.fetch_all(int, "select n from t order by n")) == [1, 2]


async def test_write_that_is_cancelled_before_its_turn_never_runs(sqlite_url: str) -> None:
    async with Database(sqlite_url) as db:
        begun, go_on = threading.Event(), threading.Event()

        def slow(tx: Transaction) -> None:
            tx.execute("create table t (n bigint)")
            begun.set()
            assert go_on.wait(TIMEOUT_SECONDS)

        first = asyncio.ensure_future(db.write(slow))
        assert await asyncio.to_thread(begun.wait, TIMEOUT_SECONDS)
        second = asyncio.ensure_future(db.write(lambda tx: tx.execute("insert into t (n) values (1)")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        go_on.set()
        await first
        assert await db.write(lambda tx: tx.fetch_one(int, "select count(*) from t")) == 0


@asynccontextmanager
async def locked_by_another(url: str, table: str) -> AsyncIterator[None]:
    """Nobody else can write to the table meanwhile: on SQLite, to no table at all."""
    async with Database(url) as other:
        locked, free = threading.Event(), threading.Event()

        def hold(tx: Transaction) -> None:
            if tx.engine == "postgresql":
                tx.execute(f"lock table {table} in exclusive mode")
            locked.set()
            assert free.wait(TIMEOUT_SECONDS)

        holding = asyncio.ensure_future(other.write(hold))
        assert await asyncio.to_thread(locked.wait, TIMEOUT_SECONDS)
        try:
            yield
        finally:
            free.set()
            await holding


@pytest.mark.parametrize("looks_first", [False, True])
async def test_write_that_is_cancelled_while_it_waits_for_a_lock_is_not_stored(
    shared_url: str, looks_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)

    def begin(connection: Any, sql: str, patience: float) -> Any:
        if sql == "begin immediate":
            tried.release()
        return execute_with_retry(connection, sql, patience)

    def insert(tx: Transaction, n: int) -> int:
        tried.release()
        if looks_first:
            tx.fetch_one(int, "select count(*) from t")
        return tx.execute("insert into t (n) values (:n)", {"n": n})

    async with Database(shared_url, timeout=TIMEOUT_SECONDS) as db:
        await db.write(lambda tx: tx.execute("create table t (n bigint)"))
        async with locked_by_another(shared_url, "t"):
            monkeypatch.setattr(sqlite, "execute_with_retry", begin)
            writes = [asyncio.ensure_future(db.write(partial(insert, n=n))) for n in range(6)]
            # On PostgreSQL each waits within its function, on SQLite the first one waits for all of them.
            for _ in writes if db.engine == "postgresql" else writes[:1]:
                assert await asyncio.to_thread(tried.acquire, True, TIMEOUT_SECONDS)
            for write in writes[::2]:
                write.cancel()
            await asyncio.wait(writes[::2])
        assert await asyncio.gather(*writes[1::2]) == [1, 1, 1]
    async with Database(shared_url) as db:
        assert await db.read(lambda tx: tx.fetch_all(int, "select n from t order by n")) == [1, 3, 5]


async def test_closing_completes_started_work(shared_url: str) -> None:
    db = await Database(shared_url).open()
    await db.write(lambda tx: tx.execute("create table t (n bigint)"))
    writes = [asyncio.ensure_future(db.write(lambda tx: tx.execute("insert into t (n) values (1)"))) for _ in range(50)]
    await asyncio.sleep(0)
    await db.close()
    assert await asyncio.gather(*writes) == [1] * 50
    for ask in (db.read, db.write):
        with pytest.raises(DatabaseClosed):
            await ask(lambda tx: None)
    with pytest.raises(DatabaseClosed):
        db.subscribe("t")
    await db.close()
    async with Database(shared_url) as again:
        assert await again.read(lambda tx: tx.fetch_one(int, "select count(*) from t")) == 50


async def test_threads_end_with_the_database(url: str) -> None:
    before = set(threading.enumerate())
    async with Database(url) as db:
        await asyncio.gather(*(db.read(lambda tx: tx.fetch_one(int, "select 1")) for _ in range(20)))
        ours = set(threading.enumerate()) - before
    for thread in ours:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()


def test_one_database_can_be_opened_by_one_loop_after_the_other(sqlite_url: str) -> None:
    async def once() -> int:
        async with Database(sqlite_url) as db:
            await db.write(lambda tx: tx.execute("create table if not exists t (n bigint)"))
            return await db.write(lambda tx: tx.execute("insert into t (n) values (1)"))

    assert [asyncio.run(once()), asyncio.run(once())] == [1, 1]


def test_importing_portico_does_not_import_a_database() -> None:
    program = (
        "import sys, portico; from portico import Server; print(*sorted({'sqlite3', 'psycopg'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.strip() == b""


def test_store_does_not_import_psycopg_before_it_is_needed() -> None:
    program = "import sys, portico.store.database; print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.strip() == b"False"
