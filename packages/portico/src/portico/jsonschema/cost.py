"""Cost analysis of schemas: how often validation can evaluate a value.

A schema of a few kilobytes can require more evaluations than there are atoms, if each part refers to the previous one
twice. Such a schema is valid, so its cost is computed before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from portico.jsonschema.reader import (
    COMBINATOR_KEYWORDS,
    DEPENDENCY_KEYWORDS,
    SUBSCHEMA_KEYWORDS,
    VALUE_KEYWORDS,
    get_list,
    get_properties,
    resolve_pointer,
    unquote_reference,
)
from portico.jsonschema.schema import Schema

# Evaluations of one location of a value. Legitimate schemas need dozens.
MAX_EVALUATIONS_PER_LOCATION = 10_000
# The analysis itself is limited, too.
MAX_ANALYSIS_STEPS = 200_000

# Larger schemas are not used for validation.
MAX_SCHEMA_BYTES = 256 * 1024
# Limits for one validation: evaluations, and nodes of the value.
MAX_EVALUATIONS = 20_000_000
MAX_VALUE_NODES = 200_000
# Schemas up to this cost need no further precautions.
CHEAP_EVALUATIONS = 500

_ARRAY_KEYWORDS = ("items", "contains", "unevaluatedItems", "additionalItems")
_OBJECT_KEYWORDS = ("additionalProperties", "propertyNames", "unevaluatedProperties")


class SchemaCost(Struct, frozen=True):
    """Maximum number of evaluations of one location, and whether it applies to each level of the value."""

    evaluations: int
    recursive: bool


def estimate_cost(schema: Schema) -> SchemaCost:
    """Return the cost of a schema. Raises ValueError if it exceeds the limits."""
    counter = _EvaluationCounter(schema)
    try:
        return SchemaCost(counter.count(schema), counter.recursive)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def count_nodes(value: Any, limit: int) -> int:
    """Count the nodes of a value, up to `limit`."""
    # A stack instead of recursion: a value may be nested more deeply than Python's call stack allows.
    pending, count = [value], 0
    while pending and count < limit:
        node = pending.pop()
        count += 1
        if isinstance(node, dict):
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return count


class _EvaluationCounter:
    """Counts the evaluations of one schema, with memoization by identity."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        # By identity: a schema object is shared by all references to it, and comparing contents would be expensive.
        self._totals: dict[int, int] = {}
        self._steps = 0
        self._in_progress: set[int] = set()
        self._documents: dict[str, list[Schema]] = {}
        self._anchors: dict[str, list[Schema]] = {}
        self.recursive = False

    def count(self, schema: Any) -> int:
        """Return the evaluations of a value and the maximum of those of anything inside it."""
        if not isinstance(schema, dict):
            return 1
        cached = self._totals.get(id(schema))
        if cached is not None:
            return cached
        if id(schema) in self._in_progress:
            # Evaluated once per level of the value: validators detect the repetition.
            self.recursive = True
            return 1
        self._in_progress.add(id(schema))
        parts = list(self._applied_subschemas(schema))
        # A value is an array or an object, never both, so only the more expensive side counts.
        total = len(parts) + max(self._in_arrays(parts), self._in_objects(parts))
        if total > MAX_EVALUATIONS_PER_LOCATION:
            raise ValueError("it refers to its parts too often")
        self._totals[id(schema)] = total
        return total

    def _step(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_ANALYSIS_STEPS:
            raise ValueError("it has too many parts")

    def _applied_subschemas(self, schema: Any) -> Iterator[Schema]:
        """Yield every subschema that applies to the same value, as often as it applies."""
        pending = [(schema, frozenset[int]())]
        count = 0
        while pending:
            node, above = pending.pop()
            # Only its own ancestors: the same schema reached on another path is evaluated again and counts again.
            if id(node) in above:
                self.recursive = True
                continue
            if not isinstance(node, dict):
                continue
            count += 1
            self._step(1)
            # Stops within the loop: the number of combinations may be astronomical.
            if count > MAX_EVALUATIONS_PER_LOCATION:
                raise ValueError("it refers to its parts too often")
            yield node
            above = above | {id(node)}
            pending += [(part, above) for part in self._iterate_subschemas(node)]

    def _iterate_subschemas(self, schema: Schema) -> Iterator[Any]:
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = schema.get(name)
            if isinstance(reference, str):
                yield from self._targets(reference)
        for name in COMBINATOR_KEYWORDS:
            yield from get_list(schema, name)
        for name in SUBSCHEMA_KEYWORDS:
            yield schema.get(name)
        for name in DEPENDENCY_KEYWORDS:
            yield from _values(schema.get(name))

    def _targets(self, reference: str) -> Iterator[Any]:
        """Yield all possible targets of a reference: validators resolve by pointer, `$id` and anchor."""
        if not self._documents:
            self._find_names()
        # Pointers in references are percent-encoded (RFC 6901, section 6).
        base, _, fragment = unquote_reference(reference).partition("#")
        # An unknown base may be any document; the most expensive target counts.
        documents = self._documents.get(base) or [item for schemas in self._documents.values() for item in schemas]
        if not fragment or fragment.startswith("/"):
            yield from (resolve_pointer(f"#{fragment}", document) for document in documents)
        else:
            yield from self._anchors.get(fragment, ())

    def _find_names(self) -> None:
        """Index embedded schemas with an `$id`, which are documents themselves, and anchors."""
        self._documents[""] = [self._root]
        pending: list[Any] = [self._root]
        while pending:
            node = pending.pop()
            self._step(1)
            if isinstance(node, list):
                pending += node
            elif isinstance(node, dict):
                # An `$id` inside of an `enum` or a `default` is data and does not name a schema.
                pending += [value for key, value in node.items() if key not in VALUE_KEYWORDS]
                if isinstance(node.get("$id"), str):
                    self._documents.setdefault(node["$id"].rstrip("#"), []).append(node)
                for key in ("$anchor", "$dynamicAnchor"):
                    if isinstance(node.get(key), str):
                        self._anchors.setdefault(node[key], []).append(node)

    def _in_arrays(self, parts: list[Schema]) -> int:
        total = sum(self.count(part[name]) for part in parts for name in _ARRAY_KEYWORDS if name in part)
        for part in parts:
            # An array of `items` is draft-07 or older.
            for schemas in (get_list(part, "prefixItems"), get_list(part, "items")):
                self._step(len(schemas))
                total += max(map(self.count, schemas), default=0)
        return total

    def _in_objects(self, parts: list[Schema]) -> int:
        common = sum(self.count(part[name]) for part in parts for name in _OBJECT_KEYWORDS if name in part)
        common += sum(self.count(value) for part in parts for value in _values(part.get("patternProperties")))
        named: dict[str, int] = {}
        for part in parts:
            properties = get_properties(part)
            self._step(len(properties))
            for name, value in properties.items():
                named[name] = named.get(name, 0) + self.count(value)
        # A value has each property once, so only the most expensive one counts.
        return common + max(named.values(), default=0)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
