"""How many memories there are, of which kinds, and what they are about."""

from __future__ import annotations

from msgspec import Struct

from portico.services.memory.namespaces import CURRENT
from portico.store.transaction import Transaction

MOST_TAGS = 50


class Counts(Struct, frozen=True):
    total: int
    by_namespace: dict[str, int]
    by_domain: dict[str, int]
    by_status: dict[str, int]
    tags: dict[str, int]
    oldest: int | None
    newest: int | None


def counts(tx: Transaction) -> Counts:
    current: dict[str, list[str]] = {"current": list(CURRENT)}
    oldest, newest = tx.one(
        tuple[int | None, int | None],
        "select min(memory.at), max(memory.at) from memory where status in :current",
        current,
    )
    by_namespace = _by(tx, "namespace", current)
    return Counts(
        total=sum(by_namespace.values()),
        by_namespace=by_namespace,
        by_domain=_by(tx, "domain", current),
        by_status=dict(tx.all(tuple[str, int], "select status, count(*) from memory group by status order by status")),
        tags=topics(tx, MOST_TAGS),
        oldest=oldest,
        newest=newest,
    )


def _by(tx: Transaction, column: str, current: dict[str, list[str]]) -> dict[str, int]:
    sql = f"select {column}, count(*) from memory where status in :current group by {column} order by {column}"
    return dict(tx.all(tuple[str, int], sql, current))


def topics(tx: Transaction, limit: int, beginning: str = "") -> dict[str, int]:
    """Tags, the most frequent first."""
    sql = (
        "select memory_tag.tag, count(*) from memory_tag join memory on memory.id = memory_tag.memory "
        "where memory.status in :current and memory_tag.tag >= :beginning and memory_tag.tag < :end "
        "group by memory_tag.tag order by count(*) desc, memory_tag.tag limit cast(:limit as bigint)"
    )
    values = {"current": list(CURRENT), "beginning": beginning, "end": beginning + "\U0010ffff", "limit": limit}
    return dict(tx.all(tuple[str, int], sql, values))


def places(tx: Transaction) -> list[tuple[str, str]]:
    """Which namespaces of which domains have something in them."""
    sql = "select distinct domain, namespace from memory where status in :current order by domain, namespace"
    return tx.all(tuple[str, str], sql, {"current": list(CURRENT)})


def authors(tx: Transaction, limit: int) -> list[str]:
    sql = (
        "select author from memory where author is not null group by author order by count(*) desc, author "
        "limit cast(:limit as bigint)"
    )
    return tx.all(str, sql, {"limit": limit})
