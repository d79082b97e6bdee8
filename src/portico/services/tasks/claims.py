"""Claims: the next task is given to one worker alone, and taken back when its lease ends.

On PostgreSQL those who look at the same moment pass over what the others are about to take; SQLite has one writer.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from portico.extend import Transaction
from portico.services.tasks import records
from portico.services.tasks.errors import ClaimedByOther
from portico.services.tasks.records import LISTED, Item
from portico.services.tasks.states import transition

# Of those whose leases have ended, so many in one transaction.
MOST_TAKEN_BACK = 100

# The words of the index `work_item_ready`, in its order: the most urgent, and of these the oldest.
_READY = "status = 'pending' and blocked = false and children_open = 0"
_NEXT = (
    "update work_item set status = 'in_progress', started_at = :now, updated_at = :now, worker = :worker, "
    "lease_until = cast(:lease_until as bigint), version = version + 1 where id = "
    f"(select id from work_item where {_READY} order by priority, id limit 1 for update skip locked) "
    f"returning {LISTED}"
)


def claim(tx: Transaction, worker: str, now: int, lease: int | None, *, who: str = "") -> Item | None:
    """The most urgent task that can be begun, and of these the oldest, begun by this worker."""
    take_back(tx, now)
    values = {"now": now, "worker": worker, "lease_until": None if lease is None else now + lease}
    taken = tx.maybe(Item, _NEXT, values)
    if taken is None:
        return None
    fields: dict[str, list[Any]] = {
        "status": ["pending", "in_progress"],
        "started_at": [None, now],
        "worker": [None, worker],
    }
    if lease is not None:
        fields["lease_until"] = [None, taken.lease_until]
    records.note(tx, taken, "claimed", fields, who=who or worker, reason="")
    records.tell(tx, [taken], ("pending", "ready"))
    return taken


def take_back(tx: Transaction, now: int) -> list[Item]:
    """What workers did not finish in time can be begun by others again."""
    found = records.which(
        tx,
        "lease_until <= :now order by lease_until limit cast(:most as bigint) for update skip locked",
        {"now": now, "most": MOST_TAKEN_BACK},
    )
    return [
        records.save(
            tx,
            one,
            replace(one, **transition(one.id, one.status, "pending", now, None), updated_at=now),
            "lease ended",
            reason=f"{one.worker} did not finish or renew it in time",
        )
        for one in found
    ]


def next_end(tx: Transaction) -> int | None:
    """When the first lease ends."""
    found = tx.all(int, "select lease_until from work_item where lease_until is not null order by lease_until limit 1")
    return found[0] if found else None


def same_worker(item: Item, worker: str | None) -> None:
    """A worker that gives its name can change only tasks that are its own or unclaimed."""
    if worker is not None and item.status == "in_progress" and item.worker not in (None, worker):
        raise ClaimedByOther(item.id, str(item.worker), worker)
