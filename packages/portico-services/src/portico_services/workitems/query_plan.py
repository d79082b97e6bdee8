"""Which way to go when tasks are asked for by words, by labels or below another: a list is in an order that an index
has, and what is asked for may be few of very many.

Where it is few, those are fetched and put in order; where it is many, the list is gone through until enough of them
were met. To see which it is, each part of the question is counted, and not beyond FEW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.workitems import terms, validation
from portico_services.workitems.records import BELOW, COLUMNS

FEW = 2000
# So few that the others need not be counted.
VERY_FEW = 100
# Of a query the longest runs: they are in the fewest tasks.
MOST_COUNTED_RUNS = 6
# A phrase can ask for any of these; the others may be very long.
_SHORT = ", ".join(name for name in COLUMNS if name not in ("description", "context", "result"))
# By its words, or not looked at yet; and those of which there is too much to say.
_FOUND = (
    "select item from work_item_suffix join work_item_posting on work_item_posting.term = work_item_suffix.term "
    "where suffix >= :{0}_first and suffix < :{0}_last "
    "union all select item from work_item_posting where term = '' union all select item from work_item_unindexed"
)
_LABELLED = "select item from work_item_label where label = :{}"


class Narrowing(Struct, frozen=True, kw_only=True):
    """What is asked for: all these words, all these labels, and tasks below this one."""

    query: str = ""
    labels: Sequence[str] = ()
    above: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.query.strip() and not self.labels and self.above is None

    def where(self) -> tuple[str, dict[str, Any]]:
        """As a condition on a task, with its values."""
        parts, values = ["true"], dict[str, Any]()
        for number, pattern in enumerate(validation.patterns(self.query)):
            parts.append(f"words like :word{number} escape '\\'")
            values[f"word{number}"] = pattern
        for number, label in enumerate(self.labels):
            parts.append(
                "exists (select 1 from work_item_label where work_item_label.item = work_item.id "
                f"and label = :label{number})"
            )
            values[f"label{number}"] = label
        if self.above is not None:
            parts.append(f"work_item.id in ({BELOW})")
            values["above"] = self.above
        return " and ".join(parts), values

    def way(self, tx: Transaction) -> tuple[str, dict[str, Any]] | None:
        """A statement for a few tasks, among which are all that is asked for. None: there are too many."""
        best: tuple[int, str, dict[str, Any]] | None = None
        for sql, values in self._ways():
            count = tx.one(
                int,
                f"select count(*) from (select 1 from ({sql}) counted limit {FEW + 1}) counted_so_far",
                values,
            )
            if count <= FEW and (best is None or count < best[0]):
                best = count, sql, values
                if count <= VERY_FEW:
                    break
        return None if best is None else best[1:]

    def _ways(self) -> list[tuple[str, dict[str, Any]]]:
        ways = [(_LABELLED.format(f"way{n}"), {f"way{n}": label}) for n, label in enumerate(self.labels)]
        if self.above is not None:
            ways.append((BELOW, {"above": self.above}))
        runs = {one for word in validation.words(self.query) for one in terms.looked_for(word)}
        for n, (first, last) in enumerate(sorted(runs, key=lambda run: -len(run[0]))[:MOST_COUNTED_RUNS]):
            ways.append((_FOUND.format(f"run{n}"), {f"run{n}_first": first, f"run{n}_last": last}))
        return ways


def few(
    tx: Transaction, narrowing: Narrowing, condition: str, values: dict[str, Any], order: str, limit: int
) -> list[str] | None:
    """The ids of those that a phrase of ours is true of, too, in order. None: go through the list."""
    way = narrowing.way(tx)
    if way is None:
        return None
    asked, more = narrowing.where()
    sql, bounds = way
    return tx.all(
        str,
        # First what was found, all of it: no index of a list is of any use here, and SQLite would take one.
        f"with found as materialized (select {_SHORT} from work_item where id in ({sql}) and {asked}) "
        f"select id from found where {condition} order by {order} limit cast(:limit as bigint)",
        {**values, **more, **bounds, "limit": limit},
    )
