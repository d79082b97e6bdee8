"""The filter language: `ns:decisions tag:db,sql -tag:old since:7d until:2026-01-31 author:ann`.

Words with a known key in front of a colon are conditions; `a,b` is one or the other, and a key said twice is both. A
value with spaces stands in quotes. Whatever else is in a filter is text to search for. Nothing of it is ever part of a
statement: each condition is a fixed phrase, and what was written is its parameter.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from portico_services import git_project
from portico_services.memory.errors import InvalidInput
from portico_services.memory.store import validation
from portico_services.memory.store.namespaces import DOMAINS, NAMESPACES, STATUSES, checked_domain

KEYS = (
    "ns", "tag", "since", "until", "source", "project", "branch", "path", "status", "author", "thread", "domain",
    "entity",
)  # fmt: skip
_OTHER_NAMES = {"namespace": "ns", "tags": "tag", "scope": "domain"}
LONGEST = 10_000
MOST = 100
_WORD = re.compile(r'(?P<minus>-?)(?:(?P<key>[A-Za-z]+):)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')


class Condition(Struct, frozen=True):
    key: str
    values: tuple[str, ...]
    negated: bool = False

    @property
    def column(self) -> str:
        """The column of the table `memory`, for a key that has one."""
        return "namespace" if self.key == "ns" else self.key


class MemoryFilter(Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    since: int | None = None
    until: int | None = None
    # What was no condition.
    words: str = ""
    # The names of the project whose memories are looked at, besides those that belong to no project. A `project:` says
    # otherwise.
    homes: tuple[str, ...] = ()
    # Whose memories of the user domain are visible (see `ownership`); None: everybody's.
    owner: str | None = ""
    # Only what was stored by this moment and has not changed since.
    known_at: int | None = None

    def also(self, key: str, value: str | None) -> MemoryFilter:
        """The same with one more condition; without a value it is the same."""
        if value is None:
            return self
        return replace(self, conditions=(*self.conditions, _condition(key, value, negated=False)))

    def within(self, homes: tuple[str, ...], owner: str | None = "") -> MemoryFilter:
        """The same filter as seen from a project and by an owner. Its own conditions cannot widen the latter."""
        return replace(self, homes=() if self.names("project") else homes, owner=owner)

    def names(self, key: str) -> bool:
        return any(one.key == key for one in self.conditions)

    @property
    def is_empty(self) -> bool:
        return not self.conditions and self.since is None and self.until is None and not self.words


def parse(text: str, at: int) -> MemoryFilter:
    """`at` is now, for `since:7d`."""
    if len(text) > LONGEST:
        raise InvalidInput(f"The filter has {len(text):,} characters; at most {LONGEST:,} are read.")
    conditions: list[Condition] = []
    since: int | None = None
    until: int | None = None
    words: list[str] = []
    for found in _WORD.finditer(text):
        key = (found["key"] or "").lower()
        key = _OTHER_NAMES.get(key, key)
        value = found["quoted"] if found["quoted"] is not None else found["plain"]
        if key not in KEYS:
            words.append(found[0])
        elif key == "since":
            since = max(validation.ago_or_moment(value, at), since or 0)
        elif key == "until":
            until = min(
                validation.ago_or_moment(value, at), until if until is not None else at + validation.LONGEST_SPAN_MS
            )
        else:
            conditions.append(_condition(key, value, negated=bool(found["minus"])))
    if len(conditions) > MOST:
        raise InvalidInput(f"The filter has {len(conditions)} conditions; at most {MOST} are read.")
    return MemoryFilter(tuple(conditions), since, until, " ".join(words))


def _condition(key: str, value: str, *, negated: bool) -> Condition:
    values = tuple(part for part in value.split(",") if part)
    if not values:
        raise InvalidInput(f"{key}: needs a value, as in {key}:name.")
    if key == "domain":
        values = tuple(checked_domain(one) for one in values)
    if key == "project":
        # Also as it was written when its capitals counted.
        values = tuple(dict.fromkeys(name for one in values for name in (one, git_project.spelled(one))))
    if key == "path" and len(values) > MOST:
        raise InvalidInput(f"path: has {len(values)} values; at most {MOST} are read.")
    known: tuple[str, ...] | None = {"ns": tuple(NAMESPACES), "status": STATUSES, "domain": DOMAINS}.get(key)
    for one in values if known is not None else ():
        if one not in (known or ()):
            raise InvalidInput(f"{key}:{one[:40]} cannot match anything. Use one of {', '.join(known or ())}.")
    return Condition(key, tuple(one.lower() for one in values) if key in ("tag", "entity") else values, negated)


def where(filter: MemoryFilter, usual_statuses: tuple[str, ...], prefix: str = "filter") -> tuple[str, dict[str, Any]]:
    """A condition on the table `memory`, and its parameters, whose names begin with `prefix`."""
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, one in enumerate(filter.conditions):
        name = f"{prefix}_{number}"
        phrase, given = _phrase(one, name)
        parts.append(f"not ({phrase})" if one.negated else f"({phrase})")
        values |= given
    if not filter.names("status"):
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


def _phrase(one: Condition, name: str) -> tuple[str, dict[str, Any]]:
    if one.key == "tag":
        return (
            f"exists (select 1 from memory_tag where memory_tag.memory = memory.id and memory_tag.tag in :{name})",
            {name: list(one.values)},
        )
    if one.key == "entity":
        return (
            "exists (select 1 from memory_mention where memory_mention.memory = memory.id "
            f"and memory_mention.entity in :{name})",
            {name: list(one.values)},
        )
    if one.key == "path":
        return _paths(one.values, name)
    if one.key == "project" and "*" in one.values:
        return "true", {}
    if one.key == "project":
        # Of memories of the user domain, the column holds the owner: these belong to no project.
        phrase = f"memory.domain <> 'user' and coalesce(memory.project, '') in :{name}"
        return phrase, {name: list(one.values)}
    return f"coalesce(memory.{one.column}, '') in :{name}", {name: list(one.values)}


def _paths(paths: tuple[str, ...], name: str) -> tuple[str, dict[str, Any]]:
    """A folder stands for what is in it, and a `*` at the end for anything. Not `like`: it is not the same on both
    engines."""
    phrases: list[str] = []
    given: dict[str, Any] = {}
    for at, path in enumerate(paths):
        begins = path.removesuffix("*")
        key = f"{name}_{at}"
        given[key] = begins
        if path.endswith(("/", "*")):
            given[f"{key}_length"] = len(begins)
            phrases.append(f"substr(coalesce(memory.path, ''), 1, cast(:{key}_length as integer)) = :{key}")
        else:
            phrases.append(f"coalesce(memory.path, '') = :{key}")
    return " or ".join(phrases), given
