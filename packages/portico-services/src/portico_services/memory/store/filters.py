"""Filter language: `ns:decisions tag:db,sql -tag:old since:7d until:2026-01-31 author:ann`.

A known key followed by a colon is a condition. `a,b` matches either value; a repeated key must match each time. Values
with spaces are quoted. All other words are the search query. Input never becomes part of an SQL statement: each
condition is a fixed phrase, and the value is a bound parameter.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico_services import git_project
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import validation
from portico_services.memory.store.namespaces import DOMAINS, NAMESPACES, STATUSES, normalize_domain

FILTER_KEYS = (
    "ns", "tag", "since", "until", "source", "project", "branch", "path", "status", "author", "thread", "domain",
    "entity",
)  # fmt: skip
# Columns of the table `memory` with an index of their own.
LABEL_COLUMNS = ("author", "thread", "source", "branch")
_KEY_ALIASES = {"namespace": "ns", "tags": "tag", "scope": "domain"}
MAX_FILTER_CHARS = 10_000
MAX_CONDITIONS = 100
_WORD = re.compile(r'(?P<minus>-?)(?:(?P<key>[A-Za-z]+):)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')


class FilterCondition(Struct, frozen=True):
    """One condition of a filter."""

    key: str
    values: tuple[str, ...]
    negated: bool = False

    @property
    def column(self) -> str:
        """Return the column of the table `memory`, for keys that have one."""
        return "namespace" if self.key == "ns" else self.key


class MemoryFilter(Struct, frozen=True):
    """Parsed filter."""

    conditions: tuple[FilterCondition, ...] = ()
    since: int | None = None
    until: int | None = None
    # Search query: the words that are not conditions.
    words: str = ""
    # Names of the project to search, in addition to memories without a project. A `project:` condition overrides it.
    homes: tuple[str, ...] = ()
    # Owner whose memories in the user domain are visible (see `ownership`); None for all owners.
    owner: str | None = ""
    # Only memories stored by this time and unchanged since.
    known_at: int | None = None

    def with_condition(self, key: str, value: str | None) -> MemoryFilter:
        """Return the filter with an additional condition, or unchanged if the value is None."""
        if value is None:
            return self
        return replace(self, conditions=(*self.conditions, _condition(key, value, negated=False)))

    def with_projects(self, homes: tuple[str, ...], owner: str | None = "") -> MemoryFilter:
        """Return the filter restricted to a project and an owner. Conditions of the filter cannot widen the owner."""
        # The owner comes from the caller’s identity. No text of a filter may reach the memories of another user.
        return replace(self, homes=() if self.has_key("project") else homes, owner=owner)

    def has_key(self, key: str) -> bool:
        return any(condition.key == key for condition in self.conditions)

    @property
    def unknown_conditions(self) -> list[str]:
        """Return the words that look like conditions and have an unknown key. They are searched as text."""
        return [word for word in self.words.split() if (match := _WORD.fullmatch(word)) and match["key"]]

    @property
    def is_empty(self) -> bool:
        return not self.conditions and self.since is None and self.until is None and not self.words


def parse_filter(text: str, at: int) -> MemoryFilter:
    """Parse a filter. `at` is the current time, for relative times such as `since:7d`.

    Raises `InvalidInput` if the filter is too long, has too many conditions or contains an impossible value.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise InvalidInput(f"The filter must have at most {MAX_FILTER_CHARS:,} characters, got {len(text):,}.")
    conditions: list[FilterCondition] = []
    since: int | None = None
    until: int | None = None
    words: list[str] = []
    for match in _WORD.finditer(text):
        key = (match["key"] or "").lower()
        key = _KEY_ALIASES.get(key, key)
        value = match["quoted"] if match["quoted"] is not None else match["plain"]
        # An unknown key is text, not an error: a query may well contain “error:timeout” or a URL.
        if key not in FILTER_KEYS:
            words.append(match[0])
        elif key == "since":
            # A repeated bound narrows the filter, as conditions are joined by AND.
            since = max(validation.parse_relative_timestamp(value, at), since or 0)
        elif key == "until":
            until = min(
                validation.parse_relative_timestamp(value, at),
                until if until is not None else at + validation.MAX_DURATION_MS,
            )
        else:
            conditions.append(_condition(key, value, negated=bool(match["minus"])))
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidInput(f"The filter must have at most {MAX_CONDITIONS} conditions, got {len(conditions)}.")
    return MemoryFilter(tuple(conditions), since, until, " ".join(words))


def _condition(key: str, value: str, *, negated: bool) -> FilterCondition:
    values = tuple(part for part in value.split(",") if part)
    if not values:
        raise InvalidInput(f"{key}: requires a value, for example {key}:name.")
    if key == "domain":
        values = tuple(normalize_domain(item) for item in values)
    if key == "project":
        # Also match the original spelling: older versions stored project names case-sensitively.
        values = tuple(
            dict.fromkeys(name for item in values for name in (item, git_project.normalize_project_name(item)))
        )
    if key == "path" and len(values) > MAX_CONDITIONS:
        raise InvalidInput(f"path: must have at most {MAX_CONDITIONS} values, got {len(values)}.")
    # A misspelled value of a closed set would match nothing, and silence would look like an empty memory.
    allowed: tuple[str, ...] | None = {"ns": tuple(NAMESPACES), "status": STATUSES, "domain": DOMAINS}.get(key)
    for item in values if allowed is not None else ():
        if item not in (allowed or ()):
            raise InvalidInput(f"{key}: expected one of {', '.join(allowed or ())}, got {item[:40]!r}.")
    return FilterCondition(key, tuple(item.lower() for item in values) if key in ("tag", "entity") else values, negated)


def to_sql(filter: MemoryFilter, usual_statuses: tuple[str, ...], prefix: str = "filter") -> tuple[str, dict[str, Any]]:
    """Return the filter as an SQL condition on the table `memory` and its parameters, whose names begin with
    `prefix`.
    """
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(filter.conditions):
        name = f"{prefix}_{number}"
        phrase, parameters = _condition_sql(condition, name)
        parts.append(f"not ({phrase})" if condition.negated else f"({phrase})")
        values |= parameters
    if not filter.has_key("status"):
        parts.append(f"memory.status in :{prefix}_usual")
        values[f"{prefix}_usual"] = list(usual_statuses)
    if filter.homes:
        parts.append(f"(memory.domain <> 'project' or memory.project in :{prefix}_homes)")
        values[f"{prefix}_homes"] = list(filter.homes)
    if filter.owner is not None:
        parts.append(f"(memory.domain <> 'user' or coalesce(memory.project, '') = :{prefix}_owner)")
        values[f"{prefix}_owner"] = filter.owner
    for bound, sign in (("since", ">="), ("until", "<=")):
        moment = getattr(filter, bound)
        if moment is not None:
            parts.append(f"memory.at {sign} :{prefix}_{bound}")
            values[f"{prefix}_{bound}"] = moment
    if filter.known_at is not None:
        parts.append(
            f"memory.created_at <= :{prefix}_known and not exists (select 1 from memory_event "
            f"where memory_event.memory = memory.id and memory_event.at > :{prefix}_known)"
        )
        values[f"{prefix}_known"] = filter.known_at
    return " and ".join(parts) or "true", values


def label_sql(filter: MemoryFilter, id_column: str) -> tuple[str, dict[str, Any]] | None:
    """Return a filter that consists of labels only (tags, entities, author, thread, source, branch) as an SQL condition
    on an id, or None for any other filter.

    Each condition can be answered by an index alone, so no row of `memory` is read. The caller must know that the
    memories are current.
    """
    if filter.homes or filter.owner is not None or filter.known_at is not None:
        return None
    if filter.since is not None or filter.until is not None or not filter.conditions:
        return None
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, condition in enumerate(filter.conditions):
        name = f"filter_{number}"
        if condition.key in ("tag", "entity"):
            phrase, parameters = _condition_sql(condition, name, id_column)
        elif condition.key in LABEL_COLUMNS:
            # Not `coalesce`, which no index serves: PostgreSQL then reads the row of each candidate.
            phrase = (
                f"exists (select 1 from memory as labelled where labelled.id = {id_column} "
                f"and labelled.{condition.key} in :{name})"
            )
            parameters = {name: list(condition.values)}
        else:
            return None
        parts.append(f"not ({phrase})" if condition.negated else f"({phrase})")
        values |= parameters
    return " and ".join(parts), values


def _condition_sql(item: FilterCondition, name: str, id_column: str = "memory.id") -> tuple[str, dict[str, Any]]:
    if item.key == "tag":
        return (
            f"exists (select 1 from memory_tag where memory_tag.memory = {id_column} and memory_tag.tag in :{name})",
            {name: list(item.values)},
        )
    if item.key == "entity":
        return (
            f"exists (select 1 from memory_mention where memory_mention.memory = {id_column} "
            f"and memory_mention.entity in :{name})",
            {name: list(item.values)},
        )
    if item.key == "path":
        return _path_sql(item.values, name)
    if item.key == "project" and "*" in item.values:
        return "true", {}
    if item.key == "project":
        # In the user domain this column holds the owner; those memories belong to no project.
        phrase = f"memory.domain <> 'user' and coalesce(memory.project, '') in :{name}"
        return phrase, {name: list(item.values)}
    return f"coalesce(memory.{item.column}, '') in :{name}", {name: list(item.values)}


def _path_sql(paths: tuple[str, ...], name: str) -> tuple[str, dict[str, Any]]:
    """Return the SQL for path conditions. A folder matches everything below it, and a trailing `*` any suffix.

    Prefixes are compared with `substr`, because `like` differs between the database engines.
    """
    phrases: list[str] = []
    parameters: dict[str, Any] = {}
    for at, path in enumerate(paths):
        begins = path.removesuffix("*")
        key = f"{name}_{at}"
        parameters[key] = begins
        if path.endswith(("/", "*")):
            parameters[f"{key}_length"] = len(begins)
            phrases.append(f"substr(coalesce(memory.path, ''), 1, cast(:{key}_length as integer)) = :{key}")
        else:
            phrases.append(f"coalesce(memory.path, '') = :{key}")
    return " or ".join(phrases), parameters
