"""How many memories there are, of which kinds, and what they are about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import index_builder
from portico_services.memory.store import counters
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.ownership import LOCAL_OWNER, VISIBLE, HiddenCounts, without

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


def counts(tx: Transaction, owner: str = LOCAL_OWNER) -> MemoryCounts:
    """Count the memories that an owner sees."""
    hidden = HiddenCounts(tx, owner)
    by_place = _by_place(tx, owner)
    total = sum(by_place.values())
    others = without(counters.most(tx, "status", MOST_COUNTED), hidden.count("memory.status", current=False))
    by_status = {"active": total - others.get("pending", 0), **others}
    return MemoryCounts(
        total=total,
        by_namespace=dict(sorted(_summed(by_place, 1).items())),
        by_domain=dict(sorted(_summed(by_place, 0).items())),
        by_status={status: count for status, count in sorted(by_status.items()) if count},
        by_project=_by_project(tx),
        by_branch=_most(tx, "branch", hidden.count("memory.branch"), MOST_COUNTED),
        conflicts=_conflicts(tx, hidden, owner),
        tags=topics(tx, MOST_COUNTED, owner=owner),
        oldest=_moment(tx, owner, ""),
        newest=_moment(tx, owner, "desc"),
        indexed=tx.one(
            int, f"select cast(coalesce(sum(memories), 0) as bigint) from memory_scope where {_SEEN}", {"owner": owner}
        ),
        embedded=counters.tallied(tx, "vector", "") - _hidden_vectors(tx, hidden),
    )


# The same as `ownership.VISIBLE`, of the table of places.
_SEEN = "(domain <> 'user' or project = :owner)"


def _conflicts(tx: Transaction, hidden: HiddenCounts, owner: str) -> int:
    if not hidden.exist:
        return tx.one(int, "select count(*) from memory_conflict")
    # Both sides of a conflict are of one place, and so of one owner.
    sql = f"select count(*) from memory_conflict join memory on memory.id = memory_conflict.memory where {VISIBLE}"
    return tx.one(int, sql, {"owner": owner})


def _hidden_vectors(tx: Transaction, hidden: HiddenCounts) -> int:
    source = (
        "memory join memory_seat on memory_seat.memory = memory.id "
        "join memory_vector on memory_vector.seat = memory_seat.seat"
    )
    return sum(hidden.count("memory.domain", source, current=False).values())


def by_namespace(tx: Transaction, owner: str = LOCAL_OWNER) -> dict[str, int]:
    """Count the current memories of each namespace that an owner sees, leaving out empty ones."""
    return _summed(_by_place(tx, owner), 1)


def _by_place(tx: Transaction, owner: str) -> dict[tuple[str, str], int]:
    """Count the current memories of each namespace of each domain, leaving out empty ones."""
    sql = (
        f"select domain, namespace, cast(sum(memories) as bigint) from {_counted(tx)} where {_SEEN} "
        "group by domain, namespace"
    )
    found = tx.all(tuple[str, str, int], sql, {"current": list(CURRENT), "owner": owner})
    return {(domain, namespace): count for domain, namespace, count in found}


def _by_project(tx: Transaction) -> dict[str, int]:
    """The projects that have most of them."""
    sql = (
        f"select project, cast(sum(memories) as bigint) as memories from {_counted(tx)} "
        "where domain = 'project' and project <> '' "
        f"group by project order by 2 desc, 1 limit {MOST_COUNTED}"
    )
    return dict(tx.all(tuple[str, int], sql, {"current": list(CURRENT)}))


def projects(tx: Transaction) -> list[str]:
    """Return the names of all projects that have memories, sorted."""
    sql = f"select distinct project from {_counted(tx)} where domain = 'project' and project <> '' order by 1"
    return tx.all(str, sql, {"current": list(CURRENT)})


def _counted(tx: Transaction) -> str:
    """How many current memories each domain, namespace and project has. The index has counted them; while it is being
    built, each memory counts."""
    if index_builder.is_whole(tx):
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


def _moment(tx: Transaction, owner: str, order: str) -> int | None:
    """Return the time of the first current memory in this order."""
    sql = f"select memory.at from memory where status in :current and {VISIBLE} order by memory.at {order} limit 1"
    return tx.maybe(int, sql, {"current": list(CURRENT), "owner": owner})


def _most(tx: Transaction, kind: counters.Tally, hidden: Mapping[str, int], limit: int) -> dict[str, int]:
    """The names that occur most in what is not hidden. So many more are read that hidden ones cannot displace any."""
    left = without(counters.most(tx, kind, limit + len(hidden)), hidden)
    return dict(sorted(left.items(), key=lambda one: (-one[1], one[0]))[:limit])


def topics(tx: Transaction, limit: int, beginning: str = "", *, owner: str = LOCAL_OWNER) -> dict[str, int]:
    """The tags of the memories that an owner sees, the most frequent first."""
    hidden = HiddenCounts(tx, owner).count_tags()
    if not beginning:
        return _most(tx, "tag", hidden, limit)
    sql = (
        "select name, memories from (select name, memories from memory_tally where kind = 'tag' and name >= :beginning "
        f"and name < :end order by name limit {MOST_COMPLETED}) as beginning "
        "order by memories desc, name limit cast(:limit as bigint)"
    )
    values = {"beginning": beginning, "end": beginning + "\U0010ffff", "limit": limit + len(hidden)}
    left = without(dict(tx.all(tuple[str, int], sql, values)), hidden)
    return dict(sorted(left.items(), key=lambda one: (-one[1], one[0]))[:limit])


def note_load(tx: Transaction, written: int) -> None:
    """So many were written at once. A search takes ten times as long where the database believes that there are few."""
    known = tx.one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    if written >= SHARE * known:
        tx.analyze(*TABLES)


def places(tx: Transaction, owner: str) -> list[tuple[str, str]]:
    """List the namespaces of the domains that have something in them which an owner sees."""
    return sorted(_by_place(tx, owner))
