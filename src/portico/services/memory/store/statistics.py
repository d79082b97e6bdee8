"""How many memories there are, of which kinds, and what they are about."""

from __future__ import annotations

from msgspec import Struct

from portico.extend import Transaction
from portico.services.memory.search import index_build
from portico.services.memory.store.namespaces import CURRENT

# Of each kind of count, those that occur most; there are fewer namespaces and domains than this.
MOST_COUNTED = 50


class MemoryCounts(Struct, frozen=True):
    total: int
    by_namespace: dict[str, int]
    by_domain: dict[str, int]
    by_status: dict[str, int]
    # Of the facets, those that occur most.
    by_project: dict[str, int]
    by_branch: dict[str, int]
    conflicts: int
    tags: dict[str, int]
    oldest: int | None
    newest: int | None
    # How many can be found by their words, and by their meaning.
    indexed: int
    embedded: int


def counts(tx: Transaction) -> MemoryCounts:
    oldest, newest = tx.one(
        tuple[int | None, int | None],
        "select min(memory.at), max(memory.at) from memory where status in :current",
        {"current": list(CURRENT)},
    )
    by_namespace = _by(tx, "namespace")
    return MemoryCounts(
        total=sum(by_namespace.values()),
        by_namespace=by_namespace,
        by_domain=_by(tx, "domain"),
        by_status=dict(tx.all(tuple[str, int], "select status, count(*) from memory group by status order by status")),
        by_project=_by(tx, "project", order="count(*) desc, "),
        by_branch=_by(tx, "branch", order="count(*) desc, "),
        conflicts=tx.one(int, "select count(*) from memory_conflict"),
        tags=topics(tx, MOST_COUNTED),
        oldest=oldest,
        newest=newest,
        indexed=tx.one(int, "select count(*) from memory_terms"),
        embedded=tx.one(int, "select count(*) from memory_vector"),
    )


def _by(tx: Transaction, column: str, *, order: str = "") -> dict[str, int]:
    sql = (
        f"select {column}, count(*) from memory where status in :current and {column} is not null "
        f"group by {column} order by {order}{column} limit cast(:limit as bigint)"
    )
    return dict(tx.all(tuple[str, int], sql, {"current": list(CURRENT), "limit": MOST_COUNTED}))


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
    if index_build.is_whole(tx):
        # The index has counted them. A store is asked this when it is opened, and should not be read for it.
        sql = "select distinct domain, namespace from memory_scope where memories > 0 order by domain, namespace"
        return tx.all(tuple[str, str], sql)
    sql = "select distinct domain, namespace from memory where status in :current order by domain, namespace"
    return tx.all(tuple[str, str], sql, {"current": list(CURRENT)})
