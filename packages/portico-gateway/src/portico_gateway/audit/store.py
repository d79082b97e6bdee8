"""The audit in a store: its records, its checkpoints, how far each chain has come, and whether that is intact."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from portico.audit.checkpoints import (
    FIRST,
    ChainMarks,
    Checkpoint,
    Cut,
    ExpectedHead,
    OwnPart,
    StoredCheckpoint,
    signed,
)
from portico.audit.hash_chain import ChainHead
from portico.audit.signing_keys import AuditKey, TrustedKeys
from portico.audit.verification import AuditReport, ChainCheck, CheckpointCheck, report
from portico.store.transaction import Transaction

HISTORY = "audit"
MIGRATIONS = Path(__file__).parent / "migrations"
# Read at once.
PAGE = 20_000


StoredRow = tuple[str, int, int, str, str]
"""The chain, the number, the moment, the body and the hash. The body is what was hashed; the moment is to be searched
by."""


# With one statement for each row the thread that writes would give way to the others as often.
AT_ONCE = 200
_ONE = "insert into audit_record (chain, number, at, body, hash) values (?, ?, ?, ?, ?)"
_SOME = _ONE + ", (?, ?, ?, ?, ?)" * (AT_ONCE - 1)


def has_record(tx: Transaction, row: StoredRow) -> bool:
    found = tx.maybe(str, "select hash from audit_record where chain = ? and number = ?", row[:2])
    return found == row[4]


def add_records(tx: Transaction, rows: list[StoredRow], ended: bool) -> None:
    """The next records of one chain."""
    whole = len(rows) - len(rows) % AT_ONCE
    for at in range(0, whole, AT_ONCE):
        tx.run(_SOME, list(chain.from_iterable(rows[at : at + AT_ONCE])))
    if whole < len(rows):
        tx.many(_ONE, rows[whole:])
    name, number, _, _, hash = rows[-1]
    tx.run(
        "insert into audit_head (chain, number, hash, ended) values (:chain, :number, :hash, :ended) "
        "on conflict (chain) do update set number = excluded.number, hash = excluded.hash, ended = excluded.ended",
        {"chain": name, "number": number, "hash": hash, "ended": ended},
    )


def lock(tx: Transaction) -> None:
    """Only one process signs at a time."""
    tx.lock("portico audit checkpoint")


def last_checkpoint(tx: Transaction) -> StoredCheckpoint | None:
    return tx.maybe(
        StoredCheckpoint, "select number, body, signature from audit_checkpoint order by number desc limit 1"
    )


def add_checkpoint(
    tx: Transaction, key: AuditKey, at: int, own: OwnPart | None, seen: int, cut: Cut | None = None
) -> StoredCheckpoint:
    """Sign what all chains have come to. `seen` is the highest number that is known to have been given: if the store
    has forgotten it, the gap stays."""
    lock(tx)
    last = last_checkpoint(tx)
    number = max(seen, last.number if last is not None else 0) + 1
    heads = {
        name: ChainHead(length, hash, ended)
        for name, length, hash, ended in tx.all(
            tuple[str, int, str, bool], "select chain, number, hash, ended from audit_head where number > covered"
        )
    }
    written: dict[str, ChainMarks] = {}
    if own is not None:
        # Our own word counts, not what the store has made of it.
        heads[own.chain] = own.head
        written = own.marks()
    previous = FIRST if last is None else last.hash
    stored = signed(Checkpoint(number, at, previous, key.id, heads=heads, marks=written, cut=cut), key)
    tx.run(
        "insert into audit_checkpoint (number, at, body, signature) values (?, ?, ?, ?)",
        [number, at, stored.body, stored.signature],
    )
    for name, head in heads.items():
        tx.run(
            "update audit_head set covered = :number where chain = :chain and covered < :number",
            {"chain": name, "number": head.number},
        )
    return stored


# Reading


def checkpoints(tx: Transaction) -> Iterator[StoredCheckpoint]:
    after = 0
    while True:
        page = tx.all(
            StoredCheckpoint,
            "select number, body, signature from audit_checkpoint where number > ? order by number limit ?",
            [after, PAGE],
        )
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].number


def chains(tx: Transaction) -> Iterator[str]:
    """The names of all chains that have records. By steps: to look for what is distinct would read every row."""
    name = ""
    while True:
        found = tx.maybe(str, "select min(chain) from audit_record where chain > ?", [name])
        if found is None:
            return
        yield found
        name = found


def records_of(tx: Transaction, name: str) -> Iterator[list[tuple[int, int, str, str]]]:
    """The number, moment, body and hash of each record, in the order of their numbers, a page at a time."""
    after = -(2**62)
    while True:
        page = tx.all(
            tuple[int, int, str, str],
            "select number, at, body, hash from audit_record where chain = ? and number > ? order by number limit ?",
            [name, after, PAGE],
        )
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1][0]


# Verifying


def verify_store(tx: Transaction, keys: TrustedKeys, expected: ExpectedHead | None = None) -> AuditReport:
    """The audit of a store, as it is at one moment."""
    signed = CheckpointCheck(keys, expected)
    for stored in checkpoints(tx):
        signed.feed(stored)
    signed.end()
    return report(signed, _store_checks(tx, signed))


def _store_checks(tx: Transaction, signed: CheckpointCheck) -> Iterator[ChainCheck]:
    for name in sorted({*signed.chains, *chains(tx)}):
        check = ChainCheck(name, signed.chains.get(name))
        for page in records_of(tx, name):
            check.feed(page)
        check.end()
        yield check
