"""How to get at the memories that a filter lets through: by the index that leaves the fewest of them.

A planner does not know how many memories have a tag, and reads all of them where it guesses wrong. So it is counted
here: what at most a few memories have is read whole, and of the rest the newest are read in the order of an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from portico.extend import Transaction
from portico_services.memory.search import doc_ids
from portico_services.memory.store.filters import Condition, MemoryFilter
from portico_services.memory.store.namespaces import CURRENT, SHARED_DOMAINS, STATUSES

# What at most so many memories have is read whole; first looked for is what hardly any have.
VERY_FEW, FEW = 64, 1000
# How far a condition is counted in order to choose one; and how many conditions are looked at.
MOST_COUNTED, MOST_CONDITIONS = 20_000, 10
# So many scopes, or values of one condition, are read side by side.
MOST_SCOPES = 200
PLACES = ("ns", "domain", "project")
_COLUMNS = ("author", "thread", "source", "branch")
_TABLES = {"tag": ("memory_tag", "tag"), "entity": ("memory_mention", "entity")}

# A statement that gives ids, and its parameters.
_Ids = tuple[str, dict[str, Any]]


class NewestFirst(Struct, frozen=True):
    """Memories in the order of an index, the newest first: where from, which of them, and what has time and id."""

    source: str = "memory"
    phrase: str = "true"
    values: dict[str, Any] = field(default_factory=dict)
    moment: str = "memory.at"
    id: str = "memory.id"


def few(tx: Transaction, filter: MemoryFilter, statuses: Sequence[str] = CURRENT) -> list[str] | None:
    """The ids of all that one condition lets through, if they are few; None if every condition lets many through. Where
    a filter says nothing about it, only memories of these statuses are wanted."""
    ids = few_by_condition(tx, filter)
    return _few_of_place(tx, filter, statuses) if ids is None else ids


def few_by_condition(tx: Transaction, filter: MemoryFilter) -> list[str] | None:
    """The same, without a look at the place that a filter names."""
    indexed = list(_indexed(filter))[: 2 * MOST_CONDITIONS]
    for most in (VERY_FEW, FEW):
        for sql, values in indexed:
            ids = tx.all(str, f"{sql} limit {most + 1}", values)
            if len(ids) <= most:
                return list(dict.fromkeys(ids))
    return None


def streams(
    tx: Transaction, filter: MemoryFilter, statuses: Sequence[str], *, many: bool = False
) -> tuple[list[NewestFirst], MemoryFilter]:
    """What together has everything that a filter lets through, and as little else as can be known; and what of the
    filter has still to be looked at. `many`: `few_by_condition` has found that there is more of each."""
    ids = _few_of_place(tx, filter, statuses) if many else few(tx, filter, statuses)
    if ids is not None:
        return [NewestFirst(phrase="memory.id in :narrow_ids", values={"narrow_ids": ids})], filter
    options = [(_counted(tx, one), one) for one in _positive(filter) if one.key in (*_COLUMNS, *_TABLES)]
    least, narrowest = min(options, key=lambda option: option[0], default=(MOST_COUNTED, None))
    scopes = _scopes(tx, filter, statuses)
    if scopes is not None and (narrowest is None or sum(memories for *_, memories in scopes) < least):
        rest = [one for one in filter.conditions if one.key not in PLACES]
        found = [_of_place(number, *place) for number, (_, *place, _) in enumerate(scopes)]
        return found, replace(filter, conditions=tuple(rest), homes=(), owner=None)
    if narrowest is None:
        return [NewestFirst()], filter
    # A planner that was told twice would expect far fewer.
    rest = [one for one in filter.conditions if one is not narrowest]
    found = [_of_value(number, narrowest, value) for number, value in enumerate(narrowest.values)]
    return found, replace(filter, conditions=tuple(rest))


def _scopes(
    tx: Transaction, filter: MemoryFilter, statuses: Sequence[str]
) -> list[tuple[int, str, str, str, int]] | None:
    """The number, domain, namespace and project of each place that a filter names, and how many current memories it
    has. None where it names none or too many, where more than the current ones are wanted, or while the index that
    counts them is being built."""
    said = [set(_statuses(one)) for one in filter.conditions if one.key == "status"]
    if not any(wanted <= set(CURRENT) for wanted in said or [set(statuses)]):
        return None
    if not (filter.homes or any(one.key in PLACES for one in filter.conditions)) or not _are_counted(tx):
        return None
    phrases, values = place_phrases(filter)
    sql = (
        "select number, domain, namespace, project, memories from memory_scope "
        f"where {' and '.join(phrases)} limit {MOST_SCOPES + 1}"
    )
    found = tx.all(tuple[int, str, str, str, int], sql, values)
    return found if len(found) <= MOST_SCOPES else None


def _are_counted(tx: Transaction) -> bool:
    return tx.maybe(int, "select 1 from memory_indexed where at is null limit 1") is not None


def place_phrases(filter: MemoryFilter) -> tuple[list[str], dict[str, Any]]:
    """What a filter says about domain, namespace and project, as conditions on `memory_scope`."""
    phrases: list[str] = []
    values: dict[str, Any] = {}
    for number, one in enumerate(filter.conditions):
        if one.key == "project" and "*" in one.values:
            phrases += ["false"] if one.negated else []
        elif one.key in PLACES:
            phrase, values[f"scope_{number}"] = _one_of(one.column, f"scope_{number}", one.values)
            if one.key == "project":
                # Of the user domain the project is the owner, and not a project.
                phrase = f"(domain <> 'user' and {phrase})"
            phrases.append(f"not {phrase}" if one.negated else phrase)
    if filter.homes:
        # Said so that both sides have an index.
        phrase, values["homes"] = _one_of("project", "homes", filter.homes)
        phrases.append(f"(domain in {SHARED_DOMAINS} or {phrase})")
    if filter.owner is not None:
        phrases.append("(domain <> 'user' or project = :scope_owner)")
        values["scope_owner"] = filter.owner
    return phrases, values


def _one_of(column: str, name: str, values: Sequence[str]) -> tuple[str, Any]:
    """That a column has one of these values, and the parameter for it. One value is compared without making a list."""
    return (f"{column} = :{name}", values[0]) if len(values) == 1 else (f"{column} in :{name}", list(values))


def _positive(filter: MemoryFilter) -> list[Condition]:
    """Those that an index may serve. Each value is a part of a statement, of which SQLite takes no more than 500."""
    return [one for one in filter.conditions if not one.negated and len(one.values) <= MOST_SCOPES][:MOST_CONDITIONS]


def _statuses(one: Condition) -> tuple[str, ...]:
    return tuple(status for status in STATUSES if (status in one.values) != one.negated)


def _indexed(filter: MemoryFilter) -> Iterator[_Ids]:
    """For each condition that has an index, what gives the ids of all that it lets through."""
    for one in filter.conditions:
        if one.key == "status" and "active" not in _statuses(one):
            sql = "select id from memory where status <> 'active' and status in :values"
            yield sql, {"values": list(_statuses(one))}
    for one in _positive(filter):
        if one.key in _TABLES:
            table, column = _TABLES[one.key]
            yield f"select memory from {table} where {column} in :values", {"values": list(one.values)}
        elif one.key in _COLUMNS:
            yield f"select id from memory where {one.key} in :values", {"values": list(one.values)}
        elif one.key == "path" and "*" not in one.values:
            yield _of_paths(one.values)
    bounds = [("at >= :since", "since", filter.since), ("at <= :until", "until", filter.until)]
    said = [(phrase, name, moment) for phrase, name, moment in bounds if moment is not None]
    if said:
        sql = f"select id from memory where {' and '.join(phrase for phrase, _, _ in said)}"
        yield sql, {name: moment for _, name, moment in said}


def _of_paths(paths: tuple[str, ...]) -> _Ids:
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, path in enumerate(paths):
        begins = path.removesuffix("*")
        phrase = f'path collate "C" = :path_{number}'
        if path.endswith(("/", "*")):
            phrase = f'path collate "C" >= :path_{number} and path collate "C" < :end_{number}'
            values[f"end_{number}"] = begins[:-1] + _after(begins[-1])
        values[f"path_{number}"] = begins
        parts.append(f"select id from memory where {phrase}")
    return " union all ".join(parts), values


def _after(char: str) -> str:
    """What comes after everything that begins with a character."""
    number = ord(char) + 1
    return chr(0xE000 if 0xD800 <= number < 0xE000 else number) if number <= 0x10FFFF else char * 100


def _few_of_place(tx: Transaction, filter: MemoryFilter, statuses: Sequence[str]) -> list[str] | None:
    scopes = _scopes(tx, filter, statuses)
    if scopes is None or sum(memories for *_, memories in scopes) > FEW:
        return None
    sql = (
        "select memory_seat.memory from memory_scope cross join memory_seat where memory_scope.number in :numbers "
        f"and memory_seat.seat >= memory_scope.number * {doc_ids.SCOPE} "
        f"and memory_seat.seat < (memory_scope.number + 1) * {doc_ids.SCOPE} and memory_seat.kind >= 0"
    )
    return tx.all(str, sql, {"numbers": [number for number, *_ in scopes]})


def _counted(tx: Transaction, one: Condition) -> int:
    """How many a condition lets through, as far as that is counted."""
    table, column = _TABLES.get(one.key, ("memory", one.key))
    sql = f"select count(*) from (select 1 from {table} where {column} in :values limit {MOST_COUNTED}) as counted"
    return tx.one(int, sql, {"values": list(one.values)})


def _of_value(number: int, one: Condition, value: str) -> NewestFirst:
    name = f"narrow_{number}"
    if one.key not in _TABLES:
        return NewestFirst(phrase=f"memory.{one.key} = :{name}", values={name: value})
    table, column = _TABLES[one.key]
    return NewestFirst(
        # `cross join` tells SQLite to begin with the first.
        source=f"{table} cross join memory",
        phrase=f"memory.id = {table}.memory and {table}.{column} = :{name}",
        values={name: value},
        moment=f"{table}.at",
        id=f"{table}.memory",
    )


def _of_place(number: int, domain: str, namespace: str, project: str) -> NewestFirst:
    values = {f"domain_{number}": domain, f"namespace_{number}": namespace}
    of_project = "memory.project is null"
    if project:
        of_project = f"memory.project = :project_{number}"
        values[f"project_{number}"] = project
    phrase = f"memory.domain = :domain_{number} and memory.namespace = :namespace_{number} and {of_project}"
    return NewestFirst(phrase=phrase, values=values)
