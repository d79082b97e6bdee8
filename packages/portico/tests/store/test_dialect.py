"""One SQL for both engines: the translation."""

from __future__ import annotations

import pytest

from portico.store.dialect import to_postgres_sql, to_sqlite_sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1 from t where a = :a", "select 1 from t where a = :a"),
        ("select 1 from t limit 1 FOR UPDATE\n  SKIP LOCKED", "select 1 from t limit 1 "),
        ("select 1 from t for update of t nowait", "select 1 from t "),
        ("select 'for update' /* for update */ from t -- for update", None),
        ("create trigger x after update of a on t for each row begin select 1; end", None),
        ('name text COLLATE "C" not null', "name text  not null"),
        ('name text collate "de" not null', None),
        ("id bigint generated always as identity primary key", "id integer primary key autoincrement"),
        ("where a in :a and b not in ?", None),
        ("where a in (:a, :b)", None),
        ("where a in (select 1)", None),
        ("select JSON_AGG(a), 'json_agg' from t", "select json_group_array(a), 'json_agg' from t"),
        ("select json_build_array(a, b) from t", "select json_array(a, b) from t"),
    ],
)
def test_for_sqlite(sql: str, expected: str | None) -> None:
    if ":a and b" in sql:
        expected = "where a in (select value from json_each(:a)) and b not in (select value from json_each(?))"
    assert to_sqlite_sql(sql) == (sql if expected is None else expected)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select :a, :a_b2", "select %(a)s, %(a_b2)s"),
        ("select a::text, ':a', \":a\", $$ :a $$, $x$ :a $x$ -- :a", None),
        ("select '%' || a % 2", "select '%%' || a %% 2"),
        ("select data ? 'key'", None),
        ("select a[1:2]", None),
        ("where a in :a and b not in :b", "where a = any(%(a)s) and b <> all(%(b)s)"),
        ("where a in (:a, :b)", "where a in (%(a)s, %(b)s)"),
        ("for update skip locked", None),
    ],
)
def test_for_postgresql_by_name(sql: str, expected: str | None) -> None:
    assert to_postgres_sql(sql, True).decode() == (sql if expected is None else expected)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select ?, '?', :a, 5 % 2", "select %s, '?', :a, 5 %% 2"),
        ("where a in ? and b not  in ?", "where a = any(%s) and b <> all(%s)"),
    ],
)
def test_for_postgresql_by_position(sql: str, expected: str) -> None:
    assert to_postgres_sql(sql, False).decode() == expected
