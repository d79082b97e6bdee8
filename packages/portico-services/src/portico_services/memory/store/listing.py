"""Lists: the memories that a filter lets through, the newest first."""

from __future__ import annotations

from typing import Any

from portico.extend import Transaction
from portico_services.memory.store import query_plan, records
from portico_services.memory.store.filters import MemoryFilter, where
from portico_services.memory.store.namespaces import CURRENT
from portico_services.memory.store.query_plan import NewestFirst
from portico_services.memory.store.records import ALIVE, Listed, Record


def matching(
    tx: Transaction,
    filter: MemoryFilter,
    *,
    limit: int,
    offset: int = 0,
    statuses: tuple[str, ...] = CURRENT,
    at: int,
    after: Listed | None = None,
) -> list[Record]:
    """The newest first; `after` is the place of one, and those behind it are wanted."""
    found = listed(tx, filter, limit=limit, offset=offset, statuses=statuses, at=at, after=after)
    rows = records.fetch_named(tx, [id for _, id in found])
    return [rows[id] for _, id in found]


def listed(
    tx: Transaction,
    filter: MemoryFilter,
    *,
    limit: int,
    offset: int = 0,
    statuses: tuple[str, ...] = CURRENT,
    at: int,
    after: Listed | None = None,
    many: bool = False,
) -> list[Listed]:
    """Time and id of each that `matching` gives. `many`: it is known that each condition lets many through."""
    sql, values = _streamed(tx, filter, statuses, after, many=many)
    return tx.all(
        tuple[int, str],
        f"select at, id from ({sql}) as streams order by at desc, id "
        "limit cast(:limit as bigint) offset cast(:offset as bigint)",
        {**values, "limit": limit, "offset": offset, "reach": limit + offset, "now": at},
    )


def _streamed(
    tx: Transaction, filter: MemoryFilter, statuses: tuple[str, ...], after: Listed | None, *, many: bool = False
) -> tuple[str, dict[str, Any]]:
    """A statement that gives the newest that a filter lets through, and its parameters."""
    streams, rest = query_plan.streams(tx, filter, statuses, many=many)
    condition, values = where(rest, statuses)
    parts = []
    for one in streams:
        phrases = [one.phrase, condition]
        if filter.known_at is not None:
            # Hardly anything that is dated later was known then. SQLite goes by the first bound that it reads.
            phrases.insert(1, f"{one.moment} <= :filter_known")
        phrases += [f"{one.moment} >= :filter_since"] if filter.since is not None else []
        phrases += [f"{one.moment} <= :filter_until"] if filter.until is not None else []
        values |= one.values
        parts.append((one, phrases))
    if filter.known_at is not None:
        # …and that has an index of its own, by which everything else is looked at.
        whole, more = where(filter, statuses, "ahead")
        values |= more
        parts.append((NewestFirst(), ["memory.at > :ahead_known and memory.at > memory.created_at", whole]))
    sql = []
    for number, (one, phrases) in enumerate(parts):
        if after is not None:
            phrases.append(
                f"{one.moment} <= :after_at and ({one.moment} < :after_at or {one.id} > cast(:after_id as text))"
            )
            values |= {"after_at": after[0], "after_id": after[1]}
        sql.append(
            f"select * from (select {one.moment} as at, {one.id} as id from {one.source} "
            f"where {' and '.join([*phrases, ALIVE])} "
            f"order by {one.moment} desc, {one.id} limit cast(:reach as bigint)) as stream_{number}"
        )
    return " union ".join(sql) or "select memory.at, memory.id from memory where false", values


def count(tx: Transaction, filter: MemoryFilter, *, statuses: tuple[str, ...] = CURRENT, at: int, most: int) -> int:
    """How many a filter lets through; of very many, that they are at least so many."""
    sql, values = _streamed(tx, filter, statuses, None)
    return tx.one(
        int,
        f"select count(*) from (select 1 from ({sql}) as streams limit cast(:most as bigint)) as counted",
        {**values, "reach": most, "most": most, "now": at},
    )
