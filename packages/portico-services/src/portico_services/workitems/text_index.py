"""The index of what stands in tasks, for queries; see `terms.py`. Each of these is a function of a Transaction.

A task that is written is only put down as one that has to be indexed, because to index many at once costs a fraction of
doing it one by one. Until then every query looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence

from portico.extend import Transaction
from portico_services.workitems import terms
from portico_services.workitems.terms import MANY

LOCK = "portico work item terms"
# So many tasks in one transaction.
BATCH = 200


def enqueue(tx: Transaction, ids: Sequence[str]) -> None:
    """These have to be indexed. Called after a text was changed: if the text of before is just being indexed, this
    waits, so that the new one is not forgotten."""
    tx.many(
        "insert into work_item_unindexed (item) values (?) on conflict (item) do update set item = excluded.item",
        [(id,) for id in ids],
    )


def remove(tx: Transaction, texts: Sequence[tuple[str, str]]) -> None:
    """Take out tasks, by the id of each and its folded text. Words that were learned are kept: others may be about to
    use them."""
    gone = sorted((term, id) for id, text in texts for term in terms.of(text))
    tx.many("delete from work_item_posting where term = ? and item = ?", gone)
    tx.run("delete from work_item_unindexed where item in :ids", {"ids": [id for id, _ in texts]})


def work_off(tx: Transaction) -> bool:
    """Index some of those that have to be; whether there are more."""
    ids = tx.all(str, f"select item from work_item_unindexed limit {BATCH} for update skip locked")
    found = tx.all(tuple[str, str], "select id, words from work_item where id in :ids", {"ids": ids})
    indexed = [(id, terms.of(text)) for id, text in found]
    _learn(tx, {term for _, some in indexed for term in some if term != MANY})
    tx.many(
        "insert into work_item_posting (term, item) values (?, ?) on conflict (term, item) do nothing",
        # In the order of the table, which is the quickest way to fill it.
        sorted((term, id) for id, some in indexed for term in some),
    )
    tx.run("delete from work_item_unindexed where item in :ids", {"ids": ids})
    return len(ids) == BATCH


def _learn(tx: Transaction, wanted: set[str]) -> None:
    """Have the suffixes of these terms."""
    fresh = wanted - set(tx.all(str, "select term from work_item_term where term in :terms", {"terms": list(wanted)}))
    if not fresh:
        return
    # One after the other: on PostgreSQL two that bring the same words in another order would wait for one another.
    tx.lock(LOCK)
    tx.many(
        "insert into work_item_suffix (suffix, term) values (?, ?) on conflict (suffix, term) do nothing",
        terms.suffixes(fresh),
    )
    tx.many("insert into work_item_term (term) values (?) on conflict (term) do nothing", [(one,) for one in fresh])
