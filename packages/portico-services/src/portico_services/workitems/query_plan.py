"""Query planning for searches by words, labels or ancestor.

Lists are read in the order of an index, but a filter may match few of very many tasks. If it matches few, those are
fetched and sorted; if it matches many, the list is scanned until the page is full. To decide, the matches of each part
of the filter are counted, up to MAX_SELECTIVE_ITEMS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from portico.extend import Transaction
from portico_services.workitems import text_index, validation
from portico_services.workitems.records import COLUMNS, DESCENDANTS_CTE

# Up to here, fetching and sorting all matches is cheaper than scanning a list in order.
MAX_SELECTIVE_ITEMS = 2000
# With at most this many matches, the other parts are not counted.
MAX_SORTED_ITEMS = 100
# Number of query terms that are counted, the longest first: they match the fewest tasks.
MAX_COUNTED_TERMS = 6
# Columns that a condition may use; the others can be very long.
_LIST_COLUMNS = ", ".join(name for name in COLUMNS if name not in ("description", "context", "result"))
# Tasks that match by a term, tasks with too many terms to index, and tasks that are not indexed yet.
_TERM_MATCH_SQL = (
    "select item from work_item_suffix join work_item_posting on work_item_posting.term = work_item_suffix.term "
    "where suffix >= :{0}_first and suffix < :{0}_last "
    "union all select item from work_item_posting where term = '' union all select item from work_item_unindexed"
)
_LABELLED = "select item from work_item_label where label = :{}"


class TextFilter(Struct, frozen=True, kw_only=True):
    """Filter by words, labels and ancestor; all of them must match."""

    query: str = ""
    labels: Sequence[str] = ()
    above: str | None = None

    @property
    def is_empty(self) -> bool:
        return not self.query.strip() and not self.labels and self.above is None

    def where(self) -> tuple[str, dict[str, Any]]:
        """Return the filter as an SQL condition and its parameters."""
        parts, values = ["true"], dict[str, Any]()
        for number, pattern in enumerate(validation.like_patterns(self.query)):
            # The text index may return too many tasks, so every match is verified against the text itself.
            parts.append(f"words like :word{number} escape '\\'")
            values[f"word{number}"] = pattern
        for number, label in enumerate(self.labels):
            parts.append(
                "exists (select 1 from work_item_label where work_item_label.item = work_item.id "
                f"and label = :label{number})"
            )
            values[f"label{number}"] = label
        if self.above is not None:
            parts.append(f"work_item.id in ({DESCENDANTS_CTE})")
            values["above"] = self.above
        return " and ".join(parts), values

    def cheapest_lookup(self, tx: Transaction) -> tuple[str, dict[str, Any]] | None:
        """Return a statement that selects few tasks including all matches, or None if every part has many matches."""
        best: tuple[int, str, dict[str, Any]] | None = None
        for sql, values in self._label_lookups():
            count = tx.fetch_one(
                int,
                # The limit inside bounds the count: a common word would otherwise be counted in all tasks.
                f"select count(*) from (select 1 from ({sql}) counted limit {MAX_SELECTIVE_ITEMS + 1}) counted_so_far",
                values,
            )
            if count <= MAX_SELECTIVE_ITEMS and (best is None or count < best[0]):
                best = count, sql, values
                # Good enough: counting further parts would cost more than it saves.
                if count <= MAX_SORTED_ITEMS:
                    break
        return None if best is None else best[1:]

    def _label_lookups(self) -> list[tuple[str, dict[str, Any]]]:
        lookups = [(_LABELLED.format(f"way{n}"), {f"way{n}": label}) for n, label in enumerate(self.labels)]
        if self.above is not None:
            lookups.append((DESCENDANTS_CTE, {"above": self.above}))
        runs = {
            suffix_range
            for word in validation.query_words(self.query)
            for suffix_range in text_index.suffix_ranges(word)
        }
        for n, (first, last) in enumerate(sorted(runs, key=lambda run: -len(run[0]))[:MAX_COUNTED_TERMS]):
            lookups.append((_TERM_MATCH_SQL.format(f"run{n}"), {f"run{n}_first": first, f"run{n}_last": last}))
        return lookups


def selective_ids(
    tx: Transaction, narrowing: TextFilter, condition: str, values: dict[str, Any], order: str, limit: int
) -> list[str] | None:
    """Return the ids that also satisfy a fixed SQL condition, in order; None if the list should be scanned instead."""
    # None means that every part of the filter matches too many tasks to fetch and sort them.
    lookup = narrowing.cheapest_lookup(tx)
    if lookup is None:
        return None
    filter_condition, more = narrowing.where()
    sql, bounds = lookup
    return tx.fetch_all(
        str,
        # Materialize the matches first: the index of a list does not help here, but SQLite would use it.
        f"with found as materialized (select {_LIST_COLUMNS} from work_item where id in ({sql}) and "
        f"{filter_condition}) "
        f"select id from found where {condition} order by {order} limit cast(:limit as bigint)",
        {**values, **more, **bounds, "limit": limit},
    )
