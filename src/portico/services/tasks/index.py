"""The index of what stands in tasks, for queries; see `terms.py`. Each of these is a function of a Transaction."""

from __future__ import annotations

from collections.abc import Sequence

from portico.extend import Transaction
from portico.services.tasks import terms
from portico.services.tasks.terms import MANY

LOCK = "portico work item terms"
# So many tasks in one transaction, when tasks of an older store are indexed.
BATCH = 200


def add(tx: Transaction, texts: Sequence[tuple[str, str]]) -> None:
    """Index tasks: the id of each and its folded text."""
    found = [(id, terms.of(text)) for id, text in texts]
    _learn(tx, {term for _, some in found for term in some if term != MANY})
    tx.many(
        "insert into work_item_posting (term, item) values (?, ?) on conflict (term, item) do nothing",
        sorted((term, id) for id, some in found for term in some),
    )


def remove(tx: Transaction, texts: Sequence[tuple[str, str]]) -> None:
    """What it learned it keeps: others may be about to use the same words."""
    gone = sorted((term, id) for id, text in texts for term in terms.of(text))
    tx.many("delete from work_item_posting where term = ? and item = ?", gone)


def change(tx: Transaction, id: str, before: str, after: str) -> None:
    if before != after:
        remove(tx, [(id, before)])
        add(tx, [(id, after)])


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


def is_whole(tx: Transaction) -> bool:
    return tx.maybe(str, "select after from work_item_unindexed") is None


def build(tx: Transaction) -> bool:
    """Index some tasks of a store that is older than the index; whether there are more."""
    after = tx.maybe(str, "select after from work_item_unindexed for update")
    if after is None:
        return False
    some = tx.all(
        tuple[str, str],
        f"select id, words from work_item where id > :after order by id limit {BATCH}",
        {"after": after},
    )
    add(tx, some)
    if len(some) == BATCH:
        tx.run("update work_item_unindexed set after = :after", {"after": some[-1][0]})
        return True
    tx.run("delete from work_item_unindexed", {})
    return False
