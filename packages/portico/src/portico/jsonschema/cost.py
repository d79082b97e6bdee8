"""The cost of a schema: how much work it can make of a value.

A schema of a few kilobytes can say that a value is to be looked at more often than there are atoms: each of its parts
refers to the one before twice. Nothing about it is invalid, so the cost is counted before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from portico.jsonschema import Schema
from portico.jsonschema.reader import ALONE, BY_MEMBER, TOGETHER, VALUES, list_of, properties_of, target_of, unescaped

# A place in a value is looked at by so many parts of a schema at most. Honest ones have dozens.
MOST_TIMES = 10_000
# Counting is work as well.
MOST_STEPS = 200_000

# Longer schemas are not held against anything.
LONGEST_SCHEMA = 256 * 1024
# Nor is a value looked at more often than this, or read with more than so many values in it.
MOST_LOOKS = 20_000_000
LARGEST = 200_000
# The cost of a schema up to which anything may be done with it.
EASY = 500

_OF_ARRAYS = ("items", "contains", "unevaluatedItems", "additionalItems")
_OF_OBJECTS = ("additionalProperties", "propertyNames", "unevaluatedProperties")


class TooCostly(ValueError):
    """The schema is not to be used."""


class Cost(Struct, frozen=True):
    """How often one place in a value is looked at, at worst; and whether that goes on for each level of the value."""

    times: int
    recursive: bool


def cost_of(schema: Schema) -> Cost:
    """Raises TooCostly for a schema that is not to be used."""
    counter = _Counter(schema)
    try:
        return Cost(counter.count(schema), counter.recursive)
    except RecursionError:
        raise TooCostly("it is nested too deeply") from None


def size_of(value: Any, most: int) -> int:
    """How many values are in a value; there may be more once there are that many."""
    waiting, count = [value], 0
    while waiting and count < most:
        one = waiting.pop()
        count += 1
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return count


class _Counter:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._steps = 0
        self._begun: set[int] = set()
        self._documents: dict[str, list[Schema]] = {}
        self._anchors: dict[str, list[Schema]] = {}
        self.recursive = False

    def count(self, schema: Any) -> int:
        """The parts that look at a value itself, and the most that look at something inside it."""
        if not isinstance(schema, dict):
            return 1
        known = self._known.get(id(schema))
        if known is not None:
            return known
        if id(schema) in self._begun:
            # Looked at once for each level of the value: validators remember that they did.
            self.recursive = True
            return 1
        self._begun.add(id(schema))
        parts = list(self._here(schema))
        total = len(parts) + max(self._in_arrays(parts), self._in_objects(parts))
        if total > MOST_TIMES:
            raise TooCostly("it refers to its parts too often")
        self._known[id(schema)] = total
        return total

    def _step(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise TooCostly("it has too many parts")

    def _here(self, schema: Any) -> Iterator[Schema]:
        """All that looks at the same value as this schema, as often as it does."""
        waiting = [(schema, frozenset[int]())]
        count = 0
        while waiting:
            one, above = waiting.pop()
            if id(one) in above:
                self.recursive = True
                continue
            if not isinstance(one, dict):
                continue
            count += 1
            self._step(1)
            if count > MOST_TIMES:
                raise TooCostly("it refers to its parts too often")
            yield one
            above = above | {id(one)}
            waiting += [(part, above) for part in self._parts(one)]

    def _parts(self, schema: Schema) -> Iterator[Any]:
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = schema.get(name)
            if isinstance(reference, str):
                yield from self._targets(reference)
        for name in TOGETHER:
            yield from list_of(schema, name)
        for name in ALONE:
            yield schema.get(name)
        for name in BY_MEMBER:
            yield from _values(schema.get(name))

    def _targets(self, reference: str) -> Iterator[Any]:
        """All that a reference may mean to a validator, which knows schemas by place, by `$id` and by anchor."""
        if not self._documents:
            self._find_names()
        base, _, fragment = unescaped(reference).partition("#")
        documents = self._documents.get(base) or [one for found in self._documents.values() for one in found]
        if not fragment or fragment.startswith("/"):
            yield from (target_of(f"#{fragment}", document) for document in documents)
        else:
            yield from self._anchors.get(fragment, ())

    def _find_names(self) -> None:
        """Schemas inside the schema may have an `$id`, and are then documents of their own."""
        self._documents[""] = [self._root]
        waiting: list[Any] = [self._root]
        while waiting:
            one = waiting.pop()
            self._step(1)
            if isinstance(one, list):
                waiting += one
            elif isinstance(one, dict):
                waiting += [value for key, value in one.items() if key not in VALUES]
                if isinstance(one.get("$id"), str):
                    self._documents.setdefault(one["$id"].rstrip("#"), []).append(one)
                for key in ("$anchor", "$dynamicAnchor"):
                    if isinstance(one.get(key), str):
                        self._anchors.setdefault(one[key], []).append(one)

    def _in_arrays(self, parts: list[Schema]) -> int:
        total = sum(self.count(part[name]) for part in parts for name in _OF_ARRAYS if name in part)
        for part in parts:
            # An array of "items" is of draft-07 and before.
            for places in (list_of(part, "prefixItems"), list_of(part, "items")):
                self._step(len(places))
                total += max(map(self.count, places), default=0)
        return total

    def _in_objects(self, parts: list[Schema]) -> int:
        common = sum(self.count(part[name]) for part in parts for name in _OF_OBJECTS if name in part)
        common += sum(self.count(one) for part in parts for one in _values(part.get("patternProperties")))
        named: dict[str, int] = {}
        for part in parts:
            known = properties_of(part)
            self._step(len(known))
            for name, one in known.items():
                named[name] = named.get(name, 0) + self.count(one)
        return common + max(named.values(), default=0)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
