"""Reading an audit: the records that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from portico.audit.records import CallRecord
from portico.store.transaction import Transaction
from portico_gateway.audit import store
from portico_gateway.audit.store import StoredRow

PAGE = 2000
# Beyond what a moment can be, in either direction.
_FAR = 2**62


class RecordFilter(Struct, frozen=True):
    """Which records are wanted. A tool is a name, a pattern for names, or one for `owner.name`."""

    since: int = -_FAR
    until: int = _FAR
    principal: str | None = None
    tool: str | None = None
    outcome: str | None = None

    def takes(self, record: CallRecord) -> bool:
        if self.principal is not None and record.principal != self.principal:
            return False
        if self.outcome is not None and record.outcome != self.outcome:
            return False
        if self.tool is None:
            return True
        names = (record.name, record.shown, f"{record.owner}.{record.name}")
        return any(fnmatchcase(name, self.tool) for name in names)


_record = msgspec.json.Decoder(CallRecord)


def newest(tx: Transaction, wanted: RecordFilter, limit: int) -> list[tuple[StoredRow, CallRecord]]:
    """The newest that are wanted, the oldest of them first."""
    found: list[tuple[StoredRow, CallRecord]] = []
    for stored in _downwards(tx, wanted):
        record = read_record(stored[3])
        if record is not None and wanted.takes(record):
            found.append((stored, record))
            if len(found) >= limit:
                break
    return found[::-1]


def _downwards(tx: Transaction, wanted: RecordFilter) -> Iterator[StoredRow]:
    at, chain, number = wanted.until, "~", _FAR
    while True:
        page = tx.all(
            tuple[str, int, int, str, str],
            "select chain, number, at, body, hash from audit_record where at >= :since and at <= :at and "
            "(at, chain, number) < (:at, :chain, :number) order by at desc, chain desc, number desc limit :page",
            {"since": wanted.since, "at": at, "chain": chain, "number": number, "page": PAGE},
        )
        yield from page
        if len(page) < PAGE:
            return
        chain, number, at = page[-1][:3]


def by_chain(tx: Transaction, wanted: RecordFilter) -> Iterator[tuple[StoredRow, CallRecord]]:
    """All that are wanted, chain by chain: in this order they can be verified."""
    for chain in store.chains(tx):
        for page in store.records_of(tx, chain):
            for number, at, body, hash in page:
                record = read_record(body) if wanted.since <= at <= wanted.until else None
                if record is not None and wanted.takes(record):
                    yield (chain, number, at, body, hash), record


def read_record(body: str) -> CallRecord | None:
    """None: it is none, and verifying says so."""
    try:
        return _record.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
