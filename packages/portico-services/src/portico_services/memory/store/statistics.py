"""Statistics: numbers of memories by namespace, domain, status, project, branch and tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from portico.extend import Transaction
from portico_services.memory.search import index_builder
from portico_services.memory.store import counters
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.ownership import LOCAL_OWNER, VISIBLE, HiddenCounts, without

# Highest counts returned per category. There are fewer namespaces and domains than this.
MAX_COUNTED_VALUES = 50
# Maximum number of tags with a common prefix that are compared.
MAX_COMPARED_TAGS = 5000
# After this many inserts that are at least this share of all memories, the planner statistics of these tables are
# updated.
BULK_LOAD_ROWS, BULK_LOAD_FRACTION = 5_000, 0.1
ANALYZED_TABLES = (
    "memory", "memory_author", "memory_author_word", "memory_entity", "memory_mention", "memory_posting",
    "memory_relation", "memory_scope", "memory_seat", "memory_tag", "memory_tally", "memory_thread",
)  # fmt: skip


class MemoryCounts(Struct, frozen=True):
    """Counts of the memories that an owner sees."""

    total: int
    by_namespace: dict[str, int]
    by_domain: dict[str, int]
    by_status: dict[str, int]
    # Only the highest counts.
    by_project: dict[str, int]
    by_branch: dict[str, int]
    conflicts: int
    tags: dict[str, int]
    oldest: int | None
    newest: int | None
    # Memories available to full-text search and to vector search.
    indexed: int
    embedded: int


def collect_counts(tx: Transaction, owner: str = LOCAL_OWNER) -> MemoryCounts:
    """Count the memories that an owner sees."""
    hidden = HiddenCounts(tx, owner)
    by_place = _by_place(tx, owner)
    total = sum(by_place.values())
    others = without(
        counters.top_counters(tx, "status", MAX_COUNTED_VALUES), hidden.count("memory.status", current=False)
    )
    by_status = {"active": total - others.get("pending", 0), **others}
    return MemoryCounts(
        total=total,
        by_namespace=dict(sorted(_sum_by(by_place, 1).items())),
        by_domain=dict(sorted(_sum_by(by_place, 0).items())),
        by_status={status: count for status, count in sorted(by_status.items()) if count},
        by_project=_by_project(tx),
        by_branch=_top_names(tx, "branch", hidden.count("memory.branch"), MAX_COUNTED_VALUES),
        conflicts=_conflicts(tx, hidden, owner),
        tags=list_topics(tx, MAX_COUNTED_VALUES, owner=owner),
        oldest=_boundary_timestamp(tx, owner, ""),
        newest=_boundary_timestamp(tx, owner, "desc"),
        indexed=tx.fetch_one(
            int, f"select cast(coalesce(sum(memories), 0) as bigint) from memory_scope where {_SEEN}", {"owner": owner}
        ),
        embedded=counters.read_counter(tx, "vector", "") - _hidden_vectors(tx, hidden),
    )


# `ownership.VISIBLE` for the table `memory_scope`.
_SEEN = "(domain <> 'user' or project = :owner)"


def _conflicts(tx: Transaction, hidden: HiddenCounts, owner: str) -> int:
    if not hidden.exist:
        return tx.fetch_one(int, "select count(*) from memory_conflict")
    # Both memories of a conflict are in one scope, and therefore have one owner.
    sql = f"select count(*) from memory_conflict join memory on memory.id = memory_conflict.memory where {VISIBLE}"
    return tx.fetch_one(int, sql, {"owner": owner})


def _hidden_vectors(tx: Transaction, hidden: HiddenCounts) -> int:
    source = (
        "memory join memory_seat on memory_seat.memory = memory.id "
        "join memory_vector on memory_vector.seat = memory_seat.seat"
    )
    return sum(hidden.count("memory.domain", source, current=False).values())


def count_by_namespace(tx: Transaction, owner: str = LOCAL_OWNER) -> dict[str, int]:
    """Count the current memories of each namespace that an owner sees, without empty ones."""
    return _sum_by(_by_place(tx, owner), 1)


def _by_place(tx: Transaction, owner: str) -> dict[tuple[str, str], int]:
    """Count the current memories of each domain and namespace, without empty ones."""
    sql = (
        f"select domain, namespace, cast(sum(memories) as bigint) from {_counted_sql(tx)} where {_SEEN} "
        "group by domain, namespace"
    )
    rows = tx.fetch_all(tuple[str, str, int], sql, {"current": list(CURRENT_STATUSES), "owner": owner})
    return {(domain, namespace): count for domain, namespace, count in rows}


def _by_project(tx: Transaction) -> dict[str, int]:
    """Return the projects with the most memories."""
    sql = (
        f"select project, cast(sum(memories) as bigint) as memories from {_counted_sql(tx)} "
        "where domain = 'project' and project <> '' "
        f"group by project order by 2 desc, 1 limit {MAX_COUNTED_VALUES}"
    )
    return dict(tx.fetch_all(tuple[str, int], sql, {"current": list(CURRENT_STATUSES)}))


def projects(tx: Transaction) -> list[str]:
    """Return the names of all projects that have memories, sorted."""
    sql = f"select distinct project from {_counted_sql(tx)} where domain = 'project' and project <> '' order by 1"
    return tx.fetch_all(str, sql, {"current": list(CURRENT_STATUSES)})


def _counted_sql(tx: Transaction) -> str:
    """Return the subquery with the number of current memories per domain, namespace and project.

    It reads the counts of the index, or the memories themselves while the index is being built.
    """
    if index_builder.is_complete(tx):
        return "(select domain, namespace, project, memories from memory_scope where memories > 0) as counted"
    return (
        "(select domain, namespace, coalesce(project, '') as project, 1 as memories from memory "
        "where status in :current) as counted"
    )


def _sum_by(by_place: dict[tuple[str, str], int], part: int) -> dict[str, int]:
    counter: Counter[str] = Counter()
    for key, count in by_place.items():
        counter[key[part]] += count
    return counter


def _boundary_timestamp(tx: Transaction, owner: str, order: str) -> int | None:
    """Return the time of the first current memory in this order."""
    sql = f"select memory.at from memory where status in :current and {VISIBLE} order by memory.at {order} limit 1"
    return tx.fetch_optional(int, sql, {"current": list(CURRENT_STATUSES), "owner": owner})


def _top_names(tx: Transaction, kind: counters.CounterKind, hidden: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the names with the highest visible counts. Enough names are read that hidden memories cannot displace a
    visible one.
    """
    left = without(counters.top_counters(tx, kind, limit + len(hidden)), hidden)
    return dict(sorted(left.items(), key=lambda entry: (-entry[1], entry[0]))[:limit])


def list_topics(tx: Transaction, limit: int, beginning: str = "", *, owner: str = LOCAL_OWNER) -> dict[str, int]:
    """Return the tags of the memories that an owner sees, most frequent first."""
    hidden = HiddenCounts(tx, owner).count_tags()
    if not beginning:
        return _top_names(tx, "tag", hidden, limit)
    sql = (
        "select name, memories from (select name, memories from memory_tally where kind = 'tag' and name >= :beginning "
        f"and name < :end order by name limit {MAX_COMPARED_TAGS}) as beginning "
        "order by memories desc, name limit cast(:limit as bigint)"
    )
    values = {"beginning": beginning, "end": beginning + "\U0010ffff", "limit": limit + len(hidden)}
    left = without(dict(tx.fetch_all(tuple[str, int], sql, values)), hidden)
    return dict(sorted(left.items(), key=lambda entry: (-entry[1], entry[0]))[:limit])


def analyze_after_load(tx: Transaction, written: int) -> None:
    """Update the planner statistics after a bulk load. With outdated statistics a search takes ten times as long."""
    indexed = tx.fetch_one(int, "select cast(coalesce(sum(memories), 0) as bigint) from memory_scope")
    if written >= BULK_LOAD_FRACTION * indexed:
        tx.analyze(*ANALYZED_TABLES)


def list_scopes(tx: Transaction, owner: str) -> list[tuple[str, str]]:
    """List the domains and namespaces with memories that an owner sees."""
    return sorted(_by_place(tx, owner))
