"""Claims: the next task is given to one worker alone, and taken back when its lease ends.

On PostgreSQL those who look at the same moment pass over what the others are about to take; SQLite has one writer.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico.extend import Transaction
from portico.services.tasks import inputs, records
from portico.services.tasks.records import LISTED, READY, Item
from portico.services.tasks.states import transition

# Of those whose leases have ended, so many in one transaction.
MOST_TAKEN_BACK = 100

# In the order of the index `work_item_ready`: the most urgent, and of these the oldest.
_NEXT = (
    "update work_item set status = 'in_progress', started_at = :now, updated_at = :now, worker = :worker, "
    "lease_until = cast(:lease_until as bigint), version = version + 1 where id = "
    "(select id from work_item where {condition} order by urgency, id limit 1 for update skip locked) "
    f"returning {LISTED}"
)
_BELOW = (
    "id in (with recursive part(id) as (select id from work_item where parent_id = :above union all "
    "select work_item.id from work_item join part on work_item.parent_id = part.id) select id from part)"
)


class Scope(Struct, frozen=True, kw_only=True):
    """Which tasks are asked for: those below one, and those that all words of a query occur in."""

    above: str | None = None
    query: str = ""

    def where(self) -> tuple[str, dict[str, Any]]:
        """READY and what is asked for, as a condition with its values."""
        parts, values = [READY], dict[str, Any]()
        if self.above is not None:
            parts.append(_BELOW)
            values["above"] = self.above
        for number, pattern in enumerate(inputs.patterns(self.query)):
            parts.append(f"words like :word{number} escape '\\'")
            values[f"word{number}"] = pattern
        return " and ".join(parts), values


_LATE = "{0.worker} did not finish or renew it in time"


def claim(
    tx: Transaction, worker: str, now: int, lease: int | None, *, who: str = "", scope: Scope = Scope()
) -> Item | None:
    """The most urgent task that can be begun, and of these the oldest, begun by this worker."""
    take_back(tx, now)
    if scope.above is not None:
        records.get(tx, scope.above)
    condition, values = scope.where()
    values |= {"now": now, "worker": worker, "lease_until": None if lease is None else now + lease}
    taken = tx.maybe(Item, _NEXT.format(condition=condition), values)
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
    ended, lock = "lease_until <= :now", "for update skip locked"
    overdue = records.which(tx, ended, {"now": now}, order="lease_until", limit=MOST_TAKEN_BACK, lock=lock)
    return [records.save(tx, item, _released(item, now), "lease ended", reason=_LATE.format(item)) for item in overdue]


def _released(item: Item, now: int) -> Item:
    return replace(item, **transition(item.id, item.status, "pending", now, None), updated_at=now)


def next_end(tx: Transaction) -> int | None:
    """When the first lease ends."""
    return tx.maybe(int, "select lease_until from work_item where lease_until is not null order by lease_until limit 1")
