"""Retention: deletes old records. A signed retention point records where the remaining records begin."""

from __future__ import annotations

from portico.audit.checkpoints import RetentionPoint, SignedCheckpoint, parse_checkpoint
from portico.audit.hash_chain import ChainHead
from portico.audit.signing_keys import AuditSigningKey
from portico.store.transaction import Transaction
from portico_gateway.audit import store


def apply_retention(
    tx: Transaction, key: AuditSigningKey, at: int, before: int, min_checkpoint: int
) -> SignedCheckpoint | None:
    """Delete records and checkpoints before a time.

    Return the checkpoint that records it, or None if there were none.
    """
    # Another process could otherwise sign a checkpoint that covers records deleted here.
    store.lock_signing(tx)
    ends = _last_signed_before(tx, before)
    checkpoint = tx.fetch_optional(
        SignedCheckpoint, _SELECT_FIRST_RETAINED, {"before": before}
    ) or store.last_checkpoint(tx)
    first = None if checkpoint is None else parse_checkpoint(checkpoint.body)
    older = first is not None and tx.fetch_one(
        int, "select count(*) from audit_checkpoint where number < ?", [first.number]
    )
    if first is None or (not ends and not older):
        return None
    # Signed before the deletion, in one transaction: a missing beginning is legitimate only with this proof.
    stored = store.insert_checkpoint(
        tx, key, at, None, min_checkpoint, RetentionPoint(ends, first.number, first.previous)
    )
    for chain, head in ends.items():
        tx.execute("delete from audit_record where chain = ? and number <= ?", [chain, head.number])
        tx.execute(_DELETE_EMPTY_CHAINS, {"chain": chain})
    tx.execute("delete from audit_checkpoint where number < ?", [first.number])
    return stored


_SELECT_FIRST_RETAINED = """
select number, body, signature from audit_checkpoint where at >= :before order by number limit 1
"""
# Chains that have ended and have no records left.
_DELETE_EMPTY_CHAINS = """
delete from audit_head where chain = :chain and ended
and not exists (select 1 from audit_record where audit_record.chain = audit_head.chain)
"""


def _last_signed_before(tx: Transaction, before: int) -> dict[str, ChainHead]:
    """Return, for each chain with old records, the last one that a checkpoint has signed.

    A chain is cut at a single position: the record of a long call stays with those that were written before it.
    """
    result: dict[str, ChainHead] = {}
    for chain, covered in tx.fetch_all(tuple[str, int], "select chain, covered from audit_head"):
        young = tx.fetch_optional(
            int, "select min(number) from audit_record where chain = ? and at >= ?", [chain, before]
        )
        number = covered if young is None else min(young - 1, covered)
        hash = tx.fetch_optional(str, "select hash from audit_record where chain = ? and number = ?", [chain, number])
        if hash is not None:
            result[chain] = ChainHead(number, hash)
    return result
