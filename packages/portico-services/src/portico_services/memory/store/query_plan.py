"""Query planning for filters: choose the index that leaves the fewest memories.

A database planner does not know how many memories have a tag and reads all of them if it guesses wrong. Conditions are
therefore counted here: matches of a selective condition are read completely, and otherwise the newest memories are read
in index order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import id_allocator
from portico_services.memory.store.filters import LABEL_COLUMNS, FilterCondition, MemoryFilter
from portico_services.memory.store.namespaces import CURRENT_STATUSES, SHARED_DOMAINS, STATUSES

# A condition with at most this many matches is read completely; the most selective ones are tried first.
MAX_SELECTIVE_ROWS, MAX_FULL_READ_ROWS = 64, 1000
# Upper bound when counting the matches of a condition, and the maximum number of conditions considered.
MAX_COUNTED_ROWS, MAX_PLANNED_CONDITIONS = 20_000, 10
# Maximum number of scopes, or values of a condition, read as separate scans.
MAX_PARALLEL_SCOPES = 200
SCOPE_KEYS = ("ns", "domain", "project")
_TABLES = {"tag": ("memory_tag", "tag"), "entity": ("memory_mention", "entity")}

# Statement that selects ids, and its parameters.
_Ids = tuple[str, dict[str, Any]]


class OrderedScan(Struct, frozen=True):
    """Scan of memories in index order, newest first: source, condition, and the columns of time and id."""

    source: str = "memory"
    phrase: str = "true"
    values: dict[str, Any] = field(default_factory=dict)
    moment: str = "memory.at"
    id: str = "memory.id"


def selective_ids_by_condition(tx: Transaction, filter: MemoryFilter) -> list[str] | None:
    """Return all ids that match the most selective condition, or None if every condition has many matches.

    The scopes of the filter are not considered.
    """
    indexed = list(_index_lookups(filter))[: 2 * MAX_PLANNED_CONDITIONS]
    # Two passes over several conditions: one with few matches is found before a larger one is read completely.
    for limit in (MAX_SELECTIVE_ROWS, MAX_FULL_READ_ROWS) if len(indexed) > 1 else (MAX_FULL_READ_ROWS,):
        for sql, values in indexed:
            ids = tx.fetch_all(str, f"{sql} limit {limit + 1}", values)
            if len(ids) <= limit:
                return list(dict.fromkeys(ids))
    return None


def plan_scans(
    tx: Transaction, filter: MemoryFilter, statuses: Sequence[str], *, many: bool = False
) -> tuple[list[OrderedScan], MemoryFilter]:
    """Return the scans that together contain every match of the filter and as little else as possible, and the
    conditions that remain to be checked.

    `many` states that `selective_ids_by_condition` has returned None already.
    """
    ids = None if many else selective_ids_by_condition(tx, filter)
    scopes = _scopes(tx, filter, statuses) if ids is None else None
    ids = _selective_ids_of_scope(tx, scopes) if ids is None else ids
    if ids is not None:
        return [OrderedScan(phrase="memory.id in :narrow_ids", values={"narrow_ids": ids})], filter
    choices = [item for item in _indexable_conditions(filter) if item.key in (*LABEL_COLUMNS, *_TABLES)]
    # A single choice is not counted: it would read up to 20,000 rows, and there is nothing to compare it with.
    has_alternative = len(choices) > 1 or scopes is not None
    options = [(_estimate_rows(tx, item) if has_alternative else 0, item) for item in choices]
    # Ties go to the first condition, which the user wrote first.
    cost, narrowest = min(options, key=lambda option: option[0], default=(MAX_COUNTED_ROWS, None))
    if scopes is not None and (narrowest is None or sum(memories for *_, memories in scopes) < cost):
        rest = [item for item in filter.conditions if item.key not in SCOPE_KEYS]
        result = [_scan_of_scope(number, *position) for number, (_, *position, _) in enumerate(scopes)]
        return result, replace(filter, conditions=tuple(rest), homes=(), owner=None)
    if narrowest is None:
        return [OrderedScan()], filter
    # The condition of the scan is removed from the filter: a planner that sees it twice expects far fewer rows.
    rest = [item for item in filter.conditions if item is not narrowest]
    result = [_scan_of_value(number, narrowest, value) for number, value in enumerate(narrowest.values)]
    return result, replace(filter, conditions=tuple(rest))


def _scopes(
    tx: Transaction, filter: MemoryFilter, statuses: Sequence[str]
) -> list[tuple[int, str, str, str, int]] | None:
    """Return number, domain, namespace, project and size of each scope that a filter selects.

    Returns None if it selects all or too many, if it includes memories that are not current, or while the index that
    counts them is being built.
    """
    status_sets = [set(_statuses(condition)) for condition in filter.conditions if condition.key == "status"]
    if not any(status_set <= set(CURRENT_STATUSES) for status_set in status_sets or [set(statuses)]):
        return None
    if not (
        filter.homes or any(condition.key in SCOPE_KEYS for condition in filter.conditions)
    ) or not _has_scope_counts(tx):
        return None
    phrases, values = scope_conditions(filter)
    where = " and ".join(phrases) or "true"
    sql = (
        "select number, domain, namespace, project, memories, exists (select 1 from memory_scope where not "
        f"({where})) from memory_scope where {where} limit {MAX_PARALLEL_SCOPES + 1}"
    )
    # One more than the limit tells “too many” from “exactly the limit”.
    rows = tx.fetch_all(tuple[int, str, str, str, int, bool], sql, values)
    # All scopes are no restriction: one scan by time is faster than to merge one for each scope.
    if len(rows) > MAX_PARALLEL_SCOPES or (rows and not rows[0][5]):
        return None
    return [(number, domain, namespace, project, memories) for number, domain, namespace, project, memories, _ in rows]


def _has_scope_counts(tx: Transaction) -> bool:
    """Return whether the scope counts are complete, that is, the index build has finished."""
    return tx.fetch_optional(int, "select 1 from memory_indexed where at is null limit 1") is not None


def scope_conditions(filter: MemoryFilter) -> tuple[list[str], dict[str, Any]]:
    """Return the domain, namespace and project conditions of a filter as conditions on `memory_scope`."""
    phrases: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(filter.conditions):
        if condition.key == "project" and "*" in condition.values:
            phrases += ["false"] if condition.negated else []
        elif condition.key in SCOPE_KEYS:
            phrase, values[f"scope_{number}"] = _in_condition(condition.column, f"scope_{number}", condition.values)
            if condition.key == "project":
                # In the user domain this column holds the owner, not a project.
                phrase = f"(domain <> 'user' and {phrase})"
            phrases.append(f"not {phrase}" if condition.negated else phrase)
    if filter.homes:
        # Phrased so that both sides of the `or` can use an index.
        phrase, values["homes"] = _in_condition("project", "homes", filter.homes)
        phrases.append(f"(domain in {SHARED_DOMAINS} or {phrase})")
    if filter.owner is not None:
        phrases.append("(domain <> 'user' or project = :scope_owner)")
        values["scope_owner"] = filter.owner
    return phrases, values


def _in_condition(column: str, name: str, values: Sequence[str]) -> tuple[str, Any]:
    """Return the condition that a column has one of the values, and its parameter. A single value is compared
    directly.
    """
    return (f"{column} = :{name}", values[0]) if len(values) == 1 else (f"{column} in :{name}", list(values))


def _indexable_conditions(filter: MemoryFilter) -> list[FilterCondition]:
    """Return the conditions that an index can serve.

    Each value becomes part of a compound statement, and SQLite limits those to 500 terms.
    """
    return [
        condition
        for condition in filter.conditions
        if not condition.negated and len(condition.values) <= MAX_PARALLEL_SCOPES
    ][:MAX_PLANNED_CONDITIONS]


def _statuses(item: FilterCondition) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if (status in item.values) != item.negated)


def _index_lookups(filter: MemoryFilter) -> Iterator[_Ids]:
    """Yield a statement that selects the matching ids for each condition with an index."""
    for item in filter.conditions:
        if item.key == "status" and "active" not in _statuses(item):
            sql = "select id from memory where status <> 'active' and status in :values"
            yield sql, {"values": list(_statuses(item))}
    for item in _indexable_conditions(filter):
        if item.key in _TABLES:
            table, column = _TABLES[item.key]
            yield f"select memory from {table} where {column} in :values", {"values": list(item.values)}
        elif item.key in LABEL_COLUMNS:
            yield f"select id from memory where {item.key} in :values", {"values": list(item.values)}
        elif item.key == "path" and "*" not in item.values:
            yield _of_paths(item.values)
    bounds = [("at >= :since", "since", filter.since), ("at <= :until", "until", filter.until)]
    set_bounds = [(phrase, name, moment) for phrase, name, moment in bounds if moment is not None]
    if set_bounds:
        sql = f"select id from memory where {' and '.join(phrase for phrase, _, _ in set_bounds)}"
        yield sql, {name: moment for _, name, moment in set_bounds}


def _of_paths(paths: tuple[str, ...]) -> _Ids:
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, path in enumerate(paths):
        begins = path.removesuffix("*")
        # Byte order, so that a prefix is one range of the index whatever the locale of the database is.
        phrase = f'path collate "C" = :path_{number}'
        if path.endswith(("/", "*")):
            phrase = f'path collate "C" >= :path_{number} and path collate "C" < :end_{number}'
            values[f"end_{number}"] = begins[:-1] + _prefix_upper_bound(begins[-1])
        values[f"path_{number}"] = begins
        parts.append(f"select id from memory where {phrase}")
    return " union all ".join(parts), values


def _prefix_upper_bound(char: str) -> str:
    """Return the upper bound of strings that begin with a character."""
    number = ord(char) + 1
    # Skip the surrogates, which are not valid characters.
    return chr(0xE000 if 0xD800 <= number < 0xE000 else number) if number <= 0x10FFFF else char * 100


def _selective_ids_of_scope(tx: Transaction, scopes: list[tuple[int, str, str, str, int]] | None) -> list[str] | None:
    if scopes is None or sum(memories for *_, memories in scopes) > MAX_FULL_READ_ROWS:
        return None
    sql = (
        "select memory_seat.memory from memory_scope cross join memory_seat where memory_scope.number in :numbers "
        f"and memory_seat.seat >= memory_scope.number * {id_allocator.SCOPE} "
        f"and memory_seat.seat < (memory_scope.number + 1) * {id_allocator.SCOPE} and memory_seat.kind >= 0"
    )
    return tx.fetch_all(str, sql, {"numbers": [number for number, *_ in scopes]})


def _estimate_rows(tx: Transaction, item: FilterCondition) -> int:
    """Count the matches of a condition, up to MAX_COUNTED_ROWS."""
    table, column = _TABLES.get(item.key, ("memory", item.key))
    sql = f"select count(*) from (select 1 from {table} where {column} in :values limit {MAX_COUNTED_ROWS}) as counted"
    return tx.fetch_one(int, sql, {"values": list(item.values)})


def _scan_of_value(number: int, item: FilterCondition, value: str) -> OrderedScan:
    name = f"narrow_{number}"
    if item.key not in _TABLES:
        return OrderedScan(phrase=f"memory.{item.key} = :{name}", values={name: value})
    table, column = _TABLES[item.key]
    return OrderedScan(
        # `cross join` makes SQLite iterate over the first table.
        source=f"{table} cross join memory",
        phrase=f"memory.id = {table}.memory and {table}.{column} = :{name}",
        values={name: value},
        moment=f"{table}.at",
        id=f"{table}.memory",
    )


def _scan_of_scope(number: int, domain: str, namespace: str, project: str) -> OrderedScan:
    values = {f"domain_{number}": domain, f"namespace_{number}": namespace}
    of_project = "memory.project is null"
    if project:
        of_project = f"memory.project = :project_{number}"
        values[f"project_{number}"] = project
    phrase = f"memory.domain = :domain_{number} and memory.namespace = :namespace_{number} and {of_project}"
    return OrderedScan(phrase=phrase, values=values)
