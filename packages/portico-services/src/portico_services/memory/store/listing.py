"""Listing: the memories that match a filter, newest first."""

from __future__ import annotations

from typing import Any

from portico.extend import Transaction
from portico_services.memory.store import query_plan, records
from portico_services.memory.store.filters import MemoryFilter, to_sql
from portico_services.memory.store.namespaces import CURRENT_STATUSES
from portico_services.memory.store.query_plan import OrderedScan
from portico_services.memory.store.records import NOT_EXPIRED_SQL, ListKey, MemoryRecord


def list_memories(
    tx: Transaction,
    filter: MemoryFilter,
    *,
    limit: int,
    offset: int = 0,
    statuses: tuple[str, ...] = CURRENT_STATUSES,
    at: int,
    after: ListKey | None = None,
) -> list[MemoryRecord]:
    """Return the memories that match a filter, newest first. `after` is the key of the last memory of the previous
    page.
    """
    keys = list_keys(tx, filter, limit=limit, offset=offset, statuses=statuses, at=at, after=after)
    # Keys first, rows second: the sort and the limit then work on narrow index entries.
    rows = records.fetch_existing(tx, [id for _, id in keys])
    return [rows[id] for _, id in keys]


def list_keys(
    tx: Transaction,
    filter: MemoryFilter,
    *,
    limit: int,
    offset: int = 0,
    statuses: tuple[str, ...] = CURRENT_STATUSES,
    at: int,
    after: ListKey | None = None,
    many: bool = False,
) -> list[ListKey]:
    """Return time and id of each match. `many` states that no condition is selective, which skips that check."""
    sql, values = _scan_sql(tx, filter, statuses, after, many=many)
    return tx.fetch_all(
        tuple[int, str],
        f"select at, id from ({sql}) as streams order by at desc, id "
        "limit cast(:limit as bigint) offset cast(:offset as bigint)",
        {**values, "limit": limit, "offset": offset, "reach": limit + offset, "now": at},
    )


def _scan_sql(
    tx: Transaction, filter: MemoryFilter, statuses: tuple[str, ...], after: ListKey | None, *, many: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return a statement that selects the newest matches of a filter, and its parameters."""
    streams, rest = query_plan.plan_scans(tx, filter, statuses, many=many)
    condition, values = to_sql(rest, statuses)
    parts = []
    for stream in streams:
        phrases = [stream.phrase, condition]
        if filter.known_at is not None:
            # Memories dated later than this were rarely known by then. SQLite uses the first bound it reads for the
            # index.
            phrases.insert(1, f"{stream.moment} <= :filter_known")
        phrases += [f"{stream.moment} >= :filter_since"] if filter.since is not None else []
        phrases += [f"{stream.moment} <= :filter_until"] if filter.until is not None else []
        values |= stream.values
        parts.append((stream, phrases))
    if filter.known_at is not None:
        # The exceptions, dated after they were stored, have a separate index; the whole filter applies to them.
        where, more = to_sql(filter, statuses, "ahead")
        values |= more
        parts.append((OrderedScan(), ["memory.at > :ahead_known and memory.at > memory.created_at", where]))
    sql = []
    for number, (stream, phrases) in enumerate(parts):
        if after is not None:
            phrases.append(
                # The first comparison is implied by the second; it lets both engines start the index scan at the
                # cursor.
                f"{stream.moment} <= :after_at and ({stream.moment} < :after_at or {stream.id} > cast(:after_id as "
                "text))"
            )
            values |= {"after_at": after[0], "after_id": after[1]}
        # Each scan is limited by itself, so that the union reads at most `reach` rows per scan.
        sql.append(
            f"select * from (select {stream.moment} as at, {stream.id} as id from {stream.source} "
            f"where {' and '.join([*phrases, NOT_EXPIRED_SQL])} "
            f"order by {stream.moment} desc, {stream.id} limit cast(:reach as bigint)) as stream_{number}"
        )
    # `union`, not `union all`: a memory with two of the wanted tags is found by both scans.
    return " union ".join(sql) or "select memory.at, memory.id from memory where false", values


def count_memories(
    tx: Transaction, filter: MemoryFilter, *, statuses: tuple[str, ...] = CURRENT_STATUSES, at: int, limit: int
) -> int:
    """Count the matches of a filter, up to `limit`."""
    sql, values = _scan_sql(tx, filter, statuses, None)
    return tx.fetch_one(
        int,
        f"select count(*) from (select 1 from ({sql}) as streams limit cast(:most as bigint)) as counted",
        {**values, "reach": limit, "most": limit, "now": at},
    )
