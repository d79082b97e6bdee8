"""Queries on the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from portico.audit.records import AuditEvent
from portico.store.transaction import Transaction
from portico_gateway.audit import store
from portico_gateway.audit.store import StoredRow

PAGE_ROWS = 2000
# Beyond every valid timestamp, in both directions.
_MAX_TIMESTAMP_US = 2**62


class AuditFilter(Struct, frozen=True):
    """Filter for audit records. `tool` is a name, or a pattern for names or for `owner.name`."""

    since: int = -_MAX_TIMESTAMP_US
    until: int = _MAX_TIMESTAMP_US
    principal: str | None = None
    tool: str | None = None
    outcome: str | None = None

    def matches(self, record: AuditEvent) -> bool:
        if self.principal is not None and record.principal != self.principal:
            return False
        if self.outcome is not None and record.outcome != self.outcome:
            return False
        if self.tool is None:
            return True
        names = (record.name, record.shown, f"{record.owner}.{record.name}")
        return any(fnmatchcase(name, self.tool) for name in names)


_record = msgspec.json.Decoder(AuditEvent)


def newest_events(tx: Transaction, filter: AuditFilter, limit: int) -> list[tuple[StoredRow, AuditEvent]]:
    """Return the newest matching records, the oldest of them first."""
    results: list[tuple[StoredRow, AuditEvent]] = []
    for stored in _iter_newest_first(tx, filter):
        record = parse_event(stored[3])
        if record is not None and filter.matches(record):
            results.append((stored, record))
            if len(results) >= limit:
                break
    return results[::-1]


def _iter_newest_first(tx: Transaction, filters: AuditFilter) -> Iterator[StoredRow]:
    at, chain, number = filters.until, "~", _MAX_TIMESTAMP_US
    while True:
        page = tx.fetch_all(
            tuple[str, int, int, str, str],
            "select chain, number, at, body, hash from audit_record where at >= :since and at <= :at and "
            "(at, chain, number) < (:at, :chain, :number) order by at desc, chain desc, number desc limit :page",
            {"since": filters.since, "at": at, "chain": chain, "number": number, "page": PAGE_ROWS},
        )
        yield from page
        if len(page) < PAGE_ROWS:
            return
        chain, number, at = page[-1][:3]


def iter_bodies(tx: Transaction, since: int, until: int) -> Iterator[str]:
    """Yield the records of a period as JSON, oldest first. `until` is exclusive."""
    at, chain, number = since, "", -_MAX_TIMESTAMP_US
    while True:
        page = tx.fetch_all(
            tuple[str, int, int, str],
            "select chain, number, at, body from audit_record where at >= :at and at < :until and "
            "(at, chain, number) > (:at, :chain, :number) order by at, chain, number limit :page",
            {"until": until, "at": at, "chain": chain, "number": number, "page": PAGE_ROWS},
        )
        for row in page:
            yield row[3]
        if len(page) < PAGE_ROWS:
            return
        chain, number, at = page[-1][:3]


def iter_by_chain(tx: Transaction, filter: AuditFilter) -> Iterator[tuple[StoredRow, AuditEvent]]:
    """Yield all matching records chain by chain, the order in which they can be verified."""
    for chain in store.list_chains(tx):
        for page in store.iter_chain_records(tx, chain):
            for number, at, body, hash in page:
                record = parse_event(body) if filter.since <= at <= filter.until else None
                if record is not None and filter.matches(record):
                    yield (chain, number, at, body, hash), record


def parse_event(body: str) -> AuditEvent | None:
    """Decode a record, or return None if it is invalid; verification reports that."""
    try:
        return _record.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
