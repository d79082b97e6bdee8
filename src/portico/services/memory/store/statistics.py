"""How many memories there are, of which kinds, and what they are about."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from portico.extend import Transaction
from portico.services.memory.search import index_build
from portico.services.memory.store import tallies
from portico.services.memory.store.namespaces import CURRENT

# Of each kind of count, those that occur most; there are fewer namespaces and domains than this.
MOST_COUNTED = 50
# So many tags that begin alike are compared.
MOST_COMPLETED = 5000
# From so many on that were written at once, and where they are this share of all, the database is told; and what it is
# to look at.
MUCH, SHARE = 5_000, 0.1
TABLES = (
    "memory", "memory_author", "memory_author_word", "memory_entity", "memory_mention", "memory_posting",
    "memory_relation", "memory_scope", "memory_seat", "memory_tag", "memory_tally", "memory_thread",
)  # fmt: skip


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
    by_place = _by_place(tx)
    total = sum(by_place.values())
    others = tallies.most(tx, "status", MOST_COUNTED)
    by_status = {"active": total - others.get("pending", 0), **others}
    return MemoryCounts(
        total=total,
        by_namespace=dict(sorted(_summed(by_place, 1).items())),
        by_domain=dict(sorted(_summed(by_place, 0).items())),
        by_status={status: count for status, count in sorted(by_status.items()) if count},
        by_project=_by_project(tx),
        by_branch=tallies.most(tx, "branch", MOST_COUNTED),
        conflicts=tx.one(int, "select count(*) from memory_conflict"),
        tags=topics(tx, MOST_COUNTED),
        oldest=_moment(tx, ""),
        newest=_moment(tx, "desc"),
        indexed=tx.one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope"),
        embedded=tallies.tallied(tx, "vector", ""),
    )


def by_namespace(tx: Transaction) -> dict[str, int]:
    """How many current memories each namespace has that has any."""
    return _summed(_by_place(tx), 1)


def _by_place(tx: Transaction) -> dict[tuple[str, str], int]:
    """How many current memories each namespace of each domain has that has any."""
    sql = f"select domain, namespace, cast(sum(memories) as bigint) from {_counted(tx)} group by domain, namespace"
    found = tx.all(tuple[str, str, int], sql, {"current": list(CURRENT)})
    return {(domain, namespace): count for domain, namespace, count in found}


def _by_project(tx: Transaction) -> dict[str, int]:
    """The projects that have most of them."""
    sql = (
        f"select project, cast(sum(memories) as bigint) as memories from {_counted(tx)} where project <> '' "
        f"group by project order by 2 desc, 1 limit {MOST_COUNTED}"
    )
    return dict(tx.all(tuple[str, int], sql, {"current": list(CURRENT)}))


def _counted(tx: Transaction) -> str:
    """How many current memories each domain, namespace and project has. The index has counted them; while it is being
    built, each memory counts."""
    if index_build.is_whole(tx):
        return "(select domain, namespace, project, memories from memory_scope where memories > 0) as counted"
    return (
        "(select domain, namespace, coalesce(project, '') as project, 1 as memories from memory "
        "where status in :current) as counted"
    )


def _summed(by_place: dict[tuple[str, str], int], part: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for place, count in by_place.items():
        found[place[part]] += count
    return found


def _moment(tx: Transaction, order: str) -> int | None:
    """The time of the first current memory in this order."""
    sql = f"select memory.at from memory where status in :current order by memory.at {order} limit 1"
    return tx.maybe(int, sql, {"current": list(CURRENT)})


def topics(tx: Transaction, limit: int, beginning: str = "") -> dict[str, int]:
    """Tags, the most frequent first."""
    if not beginning:
        return tallies.most(tx, "tag", limit)
    sql = (
        "select name, memories from (select name, memories from memory_tally where kind = 'tag' and name >= :beginning "
        f"and name < :end order by name limit {MOST_COMPLETED}) as beginning "
        "order by memories desc, name limit cast(:limit as bigint)"
    )
    values = {"beginning": beginning, "end": beginning + "\U0010ffff", "limit": limit}
    return dict(tx.all(tuple[str, int], sql, values))


def note_load(tx: Transaction, written: int) -> None:
    """So many were written at once. A search takes ten times as long where the database believes that there are few."""
    known = tx.one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    if written >= SHARE * known:
        tx.analyze(*TABLES)


def places(tx: Transaction) -> list[tuple[str, str]]:
    """Which namespaces of which domains have something in them."""
    return sorted(_by_place(tx))
