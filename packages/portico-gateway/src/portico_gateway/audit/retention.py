"""Taking away what is old. What is left is bound by a signed word about where it begins: a cut."""

from __future__ import annotations

from portico.audit.checkpoints import Cut, StoredCheckpoint, read_checkpoint
from portico.audit.hash_chain import ChainHead
from portico.audit.signing_keys import AuditKey
from portico.store.transaction import Transaction
from portico_gateway.audit import store


def cut(tx: Transaction, key: AuditKey, at: int, before: int, seen: int) -> StoredCheckpoint | None:
    """Remove records and checkpoints from before a moment; the checkpoint that says so. None: there are none."""
    store.lock(tx)
    ends = _ends(tx, before)
    kept = tx.maybe(StoredCheckpoint, _FIRST_KEPT, {"before": before}) or store.last_checkpoint(tx)
    first = None if kept is None else read_checkpoint(kept.body)
    older = first is not None and tx.one(int, "select count(*) from audit_checkpoint where number < ?", [first.number])
    if first is None or (not ends and not older):
        return None
    stored = store.add_checkpoint(tx, key, at, None, seen, Cut(ends, first.number, first.previous))
    for chain, head in ends.items():
        tx.run("delete from audit_record where chain = ? and number <= ?", [chain, head.number])
        tx.run(_GONE, {"chain": chain})
    tx.run("delete from audit_checkpoint where number < ?", [first.number])
    return stored


_FIRST_KEPT = """
select number, body, signature from audit_checkpoint where at >= :before order by number limit 1
"""
# A chain that has come to its end, and has nothing left.
_GONE = """
delete from audit_head where chain = :chain and ended
and not exists (select 1 from audit_record where audit_record.chain = audit_head.chain)
"""


def _ends(tx: Transaction, before: int) -> dict[str, ChainHead]:
    """Of each chain that has old records the last of them that a checkpoint has signed. A chain is cut at one place:
    a call that took long stays with those that ended before it."""
    found: dict[str, ChainHead] = {}
    for chain, covered in tx.all(tuple[str, int], "select chain, covered from audit_head"):
        young = tx.maybe(int, "select min(number) from audit_record where chain = ? and at >= ?", [chain, before])
        number = covered if young is None else min(young - 1, covered)
        hash = tx.maybe(str, "select hash from audit_record where chain = ? and number = ?", [chain, number])
        if hash is not None:
            found[chain] = ChainHead(number, hash)
    return found
