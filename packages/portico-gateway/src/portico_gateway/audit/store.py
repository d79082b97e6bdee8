"""Tables of the audit log: records, checkpoints and chain heads, and their verification."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from portico.audit.checkpoints import (
    GENESIS_HASH,
    ChainProgress,
    Checkpoint,
    CheckpointRef,
    HashPrefixes,
    RetentionPoint,
    SignedCheckpoint,
    sign_checkpoint,
)
from portico.audit.hash_chain import ChainHead
from portico.audit.signing_keys import AuditSigningKey, TrustedKeys
from portico.audit.verification import ChainVerifier, CheckpointVerifier, VerificationReport, build_report
from portico.store.transaction import Transaction

MIGRATION_HISTORY = "audit"
MIGRATIONS = Path(__file__).parent / "migrations"
# Rows read in one query.
PAGE_ROWS = 20_000


StoredRow = tuple[str, int, int, str, str]
"Chain, number, time, body and hash. The hash covers the body; the time is for searches."


# One statement for many rows: with a statement for each, the writing thread would release the GIL as often.
INSERT_BATCH_ROWS = 200
_INSERT_ROW = "insert into audit_record (chain, number, at, body, hash) values (?, ?, ?, ?, ?)"
_INSERT_BATCH = _INSERT_ROW + ", (?, ?, ?, ?, ?)" * (INSERT_BATCH_ROWS - 1)


def record_exists(tx: Transaction, row: StoredRow) -> bool:
    """Return whether a record with the same hash is stored."""
    optional = tx.fetch_optional(str, "select hash from audit_record where chain = ? and number = ?", row[:2])
    return optional == row[4]


def insert_records(tx: Transaction, rows: list[StoredRow], ended: bool) -> None:
    """Insert the next records of a chain and update its head."""
    full_batches = len(rows) - len(rows) % INSERT_BATCH_ROWS
    for at in range(0, full_batches, INSERT_BATCH_ROWS):
        tx.execute(_INSERT_BATCH, list(chain.from_iterable(rows[at : at + INSERT_BATCH_ROWS])))
    if full_batches < len(rows):
        tx.execute_many(_INSERT_ROW, rows[full_batches:])
    name, number, _, _, hash = rows[-1]
    tx.execute(
        "insert into audit_head (chain, number, hash, ended) values (:chain, :number, :hash, :ended) "
        "on conflict (chain) do update set number = excluded.number, hash = excluded.hash, ended = excluded.ended",
        {"chain": name, "number": number, "hash": hash, "ended": ended},
    )


def lock_signing(tx: Transaction) -> None:
    """Take the lock that allows one process to sign at a time."""
    tx.advisory_lock("portico audit checkpoint")


def last_checkpoint(tx: Transaction) -> SignedCheckpoint | None:
    return tx.fetch_optional(
        SignedCheckpoint, "select number, body, signature from audit_checkpoint order by number desc limit 1"
    )


def insert_checkpoint(
    tx: Transaction,
    key: AuditSigningKey,
    at: int,
    progress: ChainProgress | None,
    min_number: int,
    retention_point: RetentionPoint | None = None,
) -> SignedCheckpoint:
    """Sign the heads of all chains and store the checkpoint.

    `min_number` is the highest number known to be issued: if the store has lost it in a rollback, the gap remains
    visible.
    """
    lock_signing(tx)
    last = last_checkpoint(tx)
    number = max(min_number, last.number if last is not None else 0) + 1
    heads = {
        name: ChainHead(length, hash, ended)
        for name, length, hash, ended in tx.fetch_all(
            tuple[str, int, str, bool], "select chain, number, hash, ended from audit_head where number > covered"
        )
    }
    written: dict[str, HashPrefixes] = {}
    if progress is not None:
        # Use our own head, not the one in the store, which may have been changed.
        heads[progress.chain] = progress.head
        written = progress.hash_prefixes()
    previous = GENESIS_HASH if last is None else last.hash
    stored = sign_checkpoint(
        Checkpoint(number, at, previous, key.id, heads=heads, marks=written, cut=retention_point), key
    )
    tx.execute(
        "insert into audit_checkpoint (number, at, body, signature) values (?, ?, ?, ?)",
        [number, at, stored.body, stored.signature],
    )
    for name, head in heads.items():
        tx.execute(
            "update audit_head set covered = :number where chain = :chain and covered < :number",
            {"chain": name, "number": head.number},
        )
    return stored


# Queries


def iter_checkpoints(tx: Transaction) -> Iterator[SignedCheckpoint]:
    after = 0
    while True:
        page = tx.fetch_all(
            SignedCheckpoint,
            "select number, body, signature from audit_checkpoint where number > ? order by number limit ?",
            [after, PAGE_ROWS],
        )
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].number


def list_chains(tx: Transaction) -> Iterator[str]:
    """Yield the names of all chains with records. A loop over min() uses the index; `distinct` would read every row."""
    name = ""
    while True:
        optional = tx.fetch_optional(str, "select min(chain) from audit_record where chain > ?", [name])
        if optional is None:
            return
        yield optional
        name = optional


def iter_chain_records(tx: Transaction, name: str) -> Iterator[list[tuple[int, int, str, str]]]:
    """Yield number, time, body and hash of the records of a chain in order, in pages."""
    after = -(2**62)
    while True:
        page = tx.fetch_all(
            tuple[int, int, str, str],
            "select number, at, body, hash from audit_record where chain = ? and number > ? order by number limit ?",
            [name, after, PAGE_ROWS],
        )
        if page:
            yield page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]


# Verification


def verify_store(tx: Transaction, keys: TrustedKeys, expected: CheckpointRef | None = None) -> VerificationReport:
    """Verify the audit log of a store, within one transaction."""
    signed = CheckpointVerifier(keys, expected)
    for stored in iter_checkpoints(tx):
        signed.add(stored)
    signed.finish()
    return build_report(signed, _verify_chains(tx, signed))


def _verify_chains(tx: Transaction, signed: CheckpointVerifier) -> Iterator[ChainVerifier]:
    for name in sorted({*signed.chains, *list_chains(tx)}):
        check = ChainVerifier(name, signed.chains.get(name))
        for page in iter_chain_records(tx, name):
            check.add(page)
        check.finish()
        yield check
