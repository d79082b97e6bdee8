"""How much work a schema can make of a value.

A schema of a few kilobytes can say that a value is to be looked at more often than there are atoms: each of its parts
refers to the one before twice. Nothing about it is invalid, so it has to be weighed before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

# A place in a value is looked at by so many parts of a schema at most. Honest ones have dozens.
HEAVIEST = 10_000
# Weighing is work as well.
MOST_STEPS = 200_000

# Schemas are anybody's. Longer ones are not held against anything, and nothing is followed deeper than this.
LONGEST_SCHEMA = 256 * 1024
DEEPEST = 64
# Nor is a value looked at more often than this, or read with more than so many values in it.
MOST_LOOKS = 20_000_000
LARGEST = 200_000
# The weight of a schema up to which anything may be done with it.
EASY = 500

_TOGETHER = ("allOf", "anyOf", "oneOf")
_ALONE = ("not", "if", "then", "else")
_OF_ARRAYS = ("items", "contains", "unevaluatedItems", "additionalItems")
_OF_OBJECTS = ("additionalProperties", "propertyNames", "unevaluatedProperties")


class TooHeavy(ValueError):
    """The schema is not to be used."""


class Weight(Struct, frozen=True):
    """How often one place in a value is looked at, at worst; and whether that goes on for each level of the value."""

    times: int
    recursive: bool


def weight(schema: dict[str, Any]) -> Weight:
    scales = _Scales(schema)
    try:
        return Weight(scales.weigh(schema), scales.recursive)
    except RecursionError:
        raise TooHeavy("it is nested too deeply") from None


def local(reference: str, root: dict[str, Any]) -> Any:
    """What a reference refers to, if it stands in the same schema; nothing is fetched."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return {}
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


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


class _Scales:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._steps = 0
        self._begun: set[int] = set()
        self.recursive = False

    def weigh(self, schema: Any) -> int:
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
        if total > HEAVIEST:
            raise TooHeavy("it refers to its parts too often")
        self._known[id(schema)] = total
        return total

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise TooHeavy("it has too many parts")

    def _here(self, schema: Any) -> Iterator[dict[str, Any]]:
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
            self._count(1)
            if count > HEAVIEST:
                raise TooHeavy("it refers to its parts too often")
            yield one
            above = above | {id(one)}
            waiting += [(part, above) for part in self._parts(one)]

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield local(reference, self._root)
        for name in _TOGETHER:
            yield from _list(schema.get(name))
        for name in _ALONE:
            yield schema.get(name)
        yield from _values(schema.get("dependentSchemas"))

    def _in_arrays(self, parts: list[dict[str, Any]]) -> int:
        total = sum(self.weigh(part[name]) for part in parts for name in _OF_ARRAYS if name in part)
        for part in parts:
            places = _list(part.get("prefixItems"))
            self._count(len(places))
            total += max(map(self.weigh, places), default=0)
        return total

    def _in_objects(self, parts: list[dict[str, Any]]) -> int:
        common = sum(self.weigh(part[name]) for part in parts for name in _OF_OBJECTS if name in part)
        common += sum(self.weigh(one) for part in parts for one in _values(part.get("patternProperties")))
        named: dict[str, int] = {}
        for part in parts:
            known = part.get("properties")
            known = known if isinstance(known, dict) else {}
            self._count(len(known))
            for name, one in known.items():
                named[name] = named.get(name, 0) + self.weigh(one)
        return common + max(named.values(), default=0)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
