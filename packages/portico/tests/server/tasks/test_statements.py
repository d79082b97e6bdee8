"""Polling statements of the task engine take constant time, however many jobs are finished."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from portico.server.tasks import jobs, leases
from portico.server.tasks.engine import MIGRATIONS
from portico.store.dialect import to_sqlite_sql
from portico.store.rows import encode_json_column


class Explaining:
    """In place of a transaction: how SQLite would go about each statement."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        for migration in sorted(MIGRATIONS.glob("*.sql")):
            self.connection.executescript(migration.read_text())
        self.plans: dict[str, list[str]] = {}

    def _explain(self, sql: str, parameters: dict[str, Any]) -> None:
        values = {name: encode_json_column(one) if isinstance(one, list) else one for name, one in parameters.items()}
        rows = self.connection.execute(f"explain query plan {to_sqlite_sql(sql)}", values).fetchall()
        self.plans[sql] = [row[3] for row in rows]

    def fetch_all(self, kind: Any, sql: str, parameters: Any = ()) -> list[Any]:
        self._explain(sql, parameters)
        return []

    def fetch_optional(self, kind: Any, sql: str, parameters: Any = ()) -> None:
        self._explain(sql, parameters)

    def fetch_one(self, kind: Any, sql: str, parameters: Any = ()) -> int:
        self._explain(sql, parameters)
        return 0

    def execute(self, sql: str, parameters: Any = ()) -> int:
        self._explain(sql, parameters)
        return 0

    def publish(self, topic: str, payload: str = "") -> None: ...

    def lock(self, name: str) -> None: ...


HOLD = leases.Lease("id", "worker", 1)
OFTEN: dict[str, Callable[[Any], Any]] = {
    "take any": lambda tx: leases.claim(tx, "s", {"a": None, "b": None}, "worker", 0, 0, 5),
    "take one": lambda tx: leases.claim(tx, "s", {"a": None}, "worker", 0, 0, 5),
    "take limited": lambda tx: (leases._any_due(tx, "s", ["c", "d"], 0), leases._running(tx, "s", "c")),
    "take of one tool": lambda tx: leases._select_due_jobs(tx, "s", ["c"], 0, 2),
    "look ahead": lambda tx: leases.next_due(tx, "s", ["a", "b"], 0),
    "live": lambda tx: leases.renew(tx, "s", "worker", 0),
    "look for the dead": lambda tx: (leases.workers(tx, "s"), leases.has_expired_leases(tx, "s", 0)),
    "take up again": lambda tx: leases.reclaim(tx, "s", ["worker"], 0),
    "write": lambda tx: (leases.locked_row(tx, HOLD), leases.store_progress(tx, HOLD, 1, 2, "x", 0)),
    "let go": lambda tx: leases.release_all(tx, "s", "worker", 0),
    "sweep": lambda tx: jobs.sweep(tx, 0),
    "get": lambda tx: jobs.get(tx, "s", "id"),
    "get some": lambda tx: jobs.get_many(tx, "s", ["id"]),
    "answer": lambda tx: jobs.store_responses(tx, "id", {}, 0),
    "cancel": lambda tx: jobs.cancel(tx, "id", 0),
    "list": lambda tx: jobs.list_jobs(tx, "s", "owner", (0, "id")),
    "list for people": lambda tx: jobs.list_recent(tx, None, 50),
}


@pytest.mark.parametrize("what", OFTEN)
def test_due_jobs_are_read_by_index_in_order(what: str) -> None:
    tx = Explaining()
    OFTEN[what](tx)
    assert tx.plans
    for sql, plan in tx.plans.items():
        for step in plan:
            indexed = "USING INDEX" in step or "USING COVERING INDEX" in step
            assert "portico_job" not in step or indexed, f"{sql}: {step}"
            # By the server alone it would lead to all its finished jobs.
            assert "portico_job_owned (server=?)" not in step, f"{sql}: {step}"
            assert "TEMP B-TREE" not in step, f"{sql}: {step}"
            # Along the whole of an index only where the index leases no more than what is asked for.
            assert not step.startswith("SCAN portico_job") or what == "list for people", f"{sql}: {step}"
    tx.connection.close()
