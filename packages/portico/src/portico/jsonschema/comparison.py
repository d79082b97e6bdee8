"""Comparison of two versions of a schema: for each location, whether it accepts more, less or something else.

If the effect cannot be determined, it counts as a change. The schemas come from other parties, so the work is limited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from msgspec import Struct

from portico.jsonschema.explanation import format_type
from portico.jsonschema.reader import (
    ANNOTATION_KEYWORDS,
    DEPENDENCY_KEYWORDS,
    JSON_TYPE_NAMES,
    LOWER_BOUND_KEYWORDS,
    SUBSCHEMA_KEYWORDS,
    UPPER_BOUND_KEYWORDS,
    get_alternatives,
    get_enum_values,
    get_list,
    get_properties,
    get_required,
    get_types,
    json_type,
    omit_keywords,
    resolve_references,
)
from portico.jsonschema.schema import Schema

MAX_DEPTH = 32
# Enough for the largest catalogs that we have seen, and about a tenth of a second.
MAX_COMPARISON_STEPS = 5000
MAX_ALTERNATIVES = 32
MAX_CHANGES = 500

# Replaces a schema that is too long or too deep to compare; the value is its fingerprint.
UNREADABLE_KEYWORD = "x-unreadable"

# `added`, `added required`, `removed`: a property. `open`, `closed`: whether additional properties are allowed.
# `words`: descriptions only. `form`: neither text nor meaning. `default`: the default value.
ChangeEffect = Literal[
    "wider", "narrower", "changed", "added", "added required", "removed", "open", "closed", "default", "words", "form"
]

_FORMAT_KEYWORDS = ("pattern", "format", "contentEncoding", "contentMediaType")
# Compared as a whole: the effect of a change in them cannot be determined.
_OPAQUE_KEYWORDS = (
    *(*SUBSCHEMA_KEYWORDS, "contains", "patternProperties", "propertyNames", "dependentRequired", *DEPENDENCY_KEYWORDS),
    *("unevaluatedProperties", "unevaluatedItems", "additionalItems"),
)
# All other keywords have no meaning for validation, but models read them.
_COMPARED_KEYWORDS = frozenset(
    (
        *LOWER_BOUND_KEYWORDS,
        *UPPER_BOUND_KEYWORDS,
        *ANNOTATION_KEYWORDS,
        *_FORMAT_KEYWORDS,
        *_OPAQUE_KEYWORDS,
        "uniqueItems",
        "multipleOf",
        "default",
        "type",
        "enum",
        "const",
        "anyOf",
    )
) | {
    "oneOf",
    "allOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "definitions",
    UNREADABLE_KEYWORD,
}
_BREAKING_EFFECTS = ("narrower", "changed", "added required", "removed", "closed")
_WIDENING_EFFECTS = ("wider", "changed", "added", "added required", "open")


class SchemaChange(Struct, frozen=True):
    """One change of a schema. `description` is a phrase that follows the name of the location."""

    path: str
    effect: ChangeEffect
    description: str


def compare_schemas(old: Schema, new: Schema) -> list[SchemaChange]:
    """Return all differences between two schemas."""
    return list(_SchemaComparison(old, new).run())


class _SchemaComparison:
    """One comparison with its step budget and memoized pairs."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._steps = MAX_COMPARISON_STEPS
        self._in_progress: set[tuple[str, str]] = set()
        self._results: dict[tuple[str, str], list[SchemaChange]] = {}

    def run(self) -> Iterator[SchemaChange]:
        if _is_json_equal(self._old, self._new):
            return
        result = list(dict.fromkeys(self._schema(self._old, self._new, "", MAX_DEPTH)))
        # They are not the same text, so a caller that pins schemas must see some change.
        if not result:
            effect: ChangeEffect = "form" if _texts(self._new) <= _texts(self._old) else "words"
            yield SchemaChange("", effect, "is written differently, with the same meaning")
        yield from result

    def _schema(self, old: Any, new: Any, path: str, depth: int) -> Iterator[SchemaChange]:
        pair = (_json(old), _json(new))
        result = self._results.get(pair)
        if result is None:
            result = self._compare_pair(old, new, pair, depth)
        for shift in result:
            yield SchemaChange(_join_path(path, shift.path), shift.effect, shift.description) if path else shift

    def _compare_pair(self, old: Any, new: Any, pair: tuple[str, str], depth: int) -> list[SchemaChange]:
        """Compare a pair of subschemas, once however often they are referenced."""
        if pair in self._in_progress:
            # A recursive schema whose comparison is already in progress.
            return []
        self._steps -= 1
        if depth < 0 or self._steps < 0:
            return [SchemaChange("", "changed", "is too complex to be compared")] if pair[0] != pair[1] else []
        self._in_progress.add(pair)
        before, after = (
            _expand_boolean(resolve_references(_expand_boolean(old), self._old)),
            _expand_boolean(resolve_references(_expand_boolean(new), self._new)),
        )
        result = list(islice(dict.fromkeys(self._compare_resolved(before, after, "", depth)), MAX_CHANGES))
        self._in_progress.discard(pair)
        self._results[pair] = result
        return result

    def _compare_resolved(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[SchemaChange]:
        # First and for every schema: models read descriptions, so a change of words alone can be an attack.
        yield from self._annotations(old, new, path)
        options = get_alternatives(old), get_alternatives(new)
        if options[0] or options[1]:
            yield from self._options(old, new, path, depth)
            yield from self._one_of_overlap(old, new, path)
            old, new = omit_keywords(old, "anyOf", "oneOf"), omit_keywords(new, "anyOf", "oneOf")
            if not options[0] or not options[1]:
                # The side without alternatives was compared as an alternative of the other.
                return
        yield from self._values(old, new, path)
        yield from self._bounds(old, new, path)
        yield from self._object(old, new, path, depth)
        yield from self._array(old, new, path, depth)
        yield from self._all_of(old, new, path, depth)
        for key in _OPAQUE_KEYWORDS:
            if not _is_json_equal(old.get(key), new.get(key)):
                yield SchemaChange(path, "changed", f"has another {key}")

    # Annotations

    def _annotations(self, old: Schema, new: Schema, path: str) -> Iterator[SchemaChange]:
        if not _is_json_equal(old.get(UNREADABLE_KEYWORD), new.get(UNREADABLE_KEYWORD)):
            yield SchemaChange(path, "changed", "has another schema that is too large to be compared")
            return
        changed = [key for key in ANNOTATION_KEYWORDS if not _is_json_equal(old.get(key), new.get(key))]
        # Unknown keywords have no effect on validation, so a change of one is a change of words.
        unknown = (key for key in {**old, **new} if key not in _COMPARED_KEYWORDS and not key.startswith("$"))
        changed += [key for key in unknown if not _is_json_equal(old.get(key), new.get(key))]
        if changed:
            yield SchemaChange(path, "words", f"has another {' and '.join(changed)}")
        if not _is_json_equal(old.get("default"), new.get("default")):
            now = f"is {_json(new['default'])} by default now" if "default" in new else "no longer has a default"
            yield SchemaChange(path, "default", now)

    # Values

    def _values(self, old: Schema, new: Schema, path: str) -> Iterator[SchemaChange]:
        before, after = _enum_values(old), _enum_values(new)
        # Before the comparison of values: an empty list would look like a mere narrowing.
        if after == [] and before != []:
            yield SchemaChange(path, "changed", "accepts no value: no listed value has an accepted type")
            return
        if before is not None and after is not None:
            removed = [value for value in before if value not in after]
            added = [value for value in after if value not in before]
            if removed:
                yield SchemaChange(path, "narrower", f"can no longer be {', '.join(removed)}")
            if added:
                yield SchemaChange(path, "wider", f"can also be {', '.join(added)}")
            return
        if after is not None:
            yield SchemaChange(
                path, "narrower" if _is_preserved(new, old) else "changed", f"can only be {', '.join(after)}"
            )
        # Wider only if the listed values stay valid; a change of type at the same time may exclude them.
        elif before is not None:
            yield SchemaChange(
                path, "wider" if _is_preserved(old, new) else "changed", "is no longer limited to listed values"
            )
        else:
            yield from self._types(old, new, path)

    def _types(self, old: Schema, new: Schema, path: str) -> Iterator[SchemaChange]:
        before, after = _types(old), _types(new)
        if before == after:
            return
        message = f"is {_format_types(new)} now, and was {_format_types(old)}"
        effect: ChangeEffect = "wider" if before <= after else "narrower" if after <= before else "changed"
        yield SchemaChange(path, effect, message)

    def _bounds(self, old: Schema, new: Schema, path: str) -> Iterator[SchemaChange]:
        for key in (*LOWER_BOUND_KEYWORDS, *UPPER_BOUND_KEYWORDS, *_FORMAT_KEYWORDS, "uniqueItems", "multipleOf"):
            before, after = old.get(key), new.get(key)
            effect = _bound_effect(key, before, after)
            if effect is not None:
                the = "the " if key in _FORMAT_KEYWORDS else ""
                now = f"has {the}{key} {_json(after)} now" if key in new else f"no longer has {key}"
                if key == "uniqueItems":
                    now = "must not repeat itself" if after else "may repeat itself"
                yield SchemaChange(path, effect, "has another step" if key == "multipleOf" else now)

    # Members and items

    def _object(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[SchemaChange]:
        before, after = get_properties(old), get_properties(new)
        needed = get_required(old), get_required(new)
        for name in before:
            if name not in after:
                yield SchemaChange(_join_property(path, name), "removed", "was removed")
        for name in after:
            if name not in before:
                effect: ChangeEffect = "added required" if name in needed[1] else "added"
                yield SchemaChange(_join_property(path, name), effect, f"is new: {format_type(after[name], self._new)}")
        for name in dict.fromkeys([*before, *needed[0], *needed[1]]):
            if (name in after or name not in before) and (name in before or name not in after):
                yield from self._required_change(name, needed, path)
            if name in before and name in after:
                yield from self._schema(before[name], after[name], _join_property(path, name), depth - 1)
        yield from self._additional_properties(
            old.get("additionalProperties", True), new.get("additionalProperties", True), path, depth
        )

    def _required_change(self, name: str, needed: tuple[list[str], list[str]], path: str) -> Iterator[SchemaChange]:
        if name in needed[1] and name not in needed[0]:
            yield SchemaChange(_join_property(path, name), "narrower", "is required now")
        elif name in needed[0] and name not in needed[1]:
            yield SchemaChange(_join_property(path, name), "wider", "is optional now")

    def _additional_properties(self, old: Any, new: Any, path: str, depth: int) -> Iterator[SchemaChange]:
        """Compare `additionalProperties`."""
        old, new = (True if item == {} else item for item in (old, new))
        if old == new:
            return
        if new is False:
            yield SchemaChange(path, "closed", "no longer accepts additional members")
        elif old is False:
            yield SchemaChange(path, "open", "accepts additional members")
        elif old is True:
            yield SchemaChange(_join_property(path, "*"), "narrower", f"can only be {format_type(new, self._new)}")
        elif new is True:
            yield SchemaChange(_join_property(path, "*"), "wider", "can be anything")
        else:
            yield from self._schema(old, new, _join_property(path, "*"), depth - 1)

    def _array(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[SchemaChange]:
        first = get_list(old, "prefixItems"), get_list(new, "prefixItems")
        # Whether more positions accept more or less depends on `items`, so it counts as a change.
        if len(first[0]) != len(first[1]):
            yield SchemaChange(path, "changed", f"has {len(first[1])} positional items now, had {len(first[0])}")
        for at, (before, after) in enumerate(zip(*first, strict=False)):
            yield from self._schema(before, after, f"{path}[{at}]", depth - 1)
        items = old.get("items", True), new.get("items", True)
        if not _is_json_equal(*items) or isinstance(items[0], dict):
            yield from self._schema(*items, f"{path}[]", depth - 1)

    def _all_of(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[SchemaChange]:
        before, after = get_list(old, "allOf"), get_list(new, "allOf")
        for old_part, other in zip(before, after, strict=False):
            yield from self._schema(old_part, other, path, depth - 1)
        if len(after) > len(before):
            yield SchemaChange(path, "narrower", "has to satisfy more than before")
        elif len(after) < len(before):
            yield SchemaChange(path, "wider", "has to satisfy less than before")

    # Alternatives

    def _options(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[SchemaChange]:
        """Compare alternatives: each old one must fit a new one, and the other way round."""
        before, after = _alternatives(old), _alternatives(new)
        if len(before) > MAX_ALTERNATIVES or len(after) > MAX_ALTERNATIVES:
            yield SchemaChange(path, "changed", "has too many alternatives to be compared")
            return
        removed = [item for item in before if not self._fits_any(item, after, path, depth, _BREAKING_EFFECTS)]
        added = [
            item for item in after if not self._fits_any(item, before, path, depth, _WIDENING_EFFECTS, turned=True)
        ]
        # One alternative that changed is more useful to report than one removed and one added.
        if len(removed) == len(added) == 1:
            yield from self._schema(removed[0], added[0], path, depth - 1)
            return
        if removed:
            yield SchemaChange(path, "narrower", f"can no longer be {self._format_options(removed, self._old)}")
        if added:
            yield SchemaChange(path, "wider", f"can also be {self._format_options(added, self._new)}")

    def _one_of_overlap(self, old: Schema, new: Schema, path: str) -> Iterator[SchemaChange]:
        """Report overlapping `oneOf` alternatives, because a value that matches two of them is rejected."""
        before, after = get_list(old, "oneOf"), get_list(new, "oneOf")
        if after and not _is_json_equal(before, after) and not self._are_disjoint(after):
            yield SchemaChange(
                path,
                "changed",
                ("accepts only values that match exactly one alternative, and the alternatives overlap"),
            )
        elif before and not after and not self._are_disjoint(before):
            yield SchemaChange(path, "wider", "may match several of its alternatives")

    def _are_disjoint(self, options: list[Any]) -> bool:
        result = [_expand_boolean(resolve_references(_expand_boolean(option), self._new)) for option in options]
        return all(_is_disjoint(option, other) for at, option in enumerate(result) for other in result[at + 1 :])

    def _fits_any(
        self, item: Any, others: list[Any], path: str, depth: int, spoilt_by: tuple[str, ...], *, turned: bool = False
    ) -> bool:
        for other in others:
            pair = (other, item) if turned else (item, other)
            result = list(self._schema(*pair, path, depth - 1))
            if not any(shift.effect in spoilt_by for shift in result):
                return True
        return False

    def _format_options(self, options: list[Any], root: Schema) -> str:
        return ", ".join(dict.fromkeys(format_type(option, root) for option in options))


def _expand_boolean(schema: Any) -> Schema:
    """Expand a boolean schema: `true` accepts everything, `false` nothing."""
    return schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}


def _alternatives(schema: Schema) -> list[Any]:
    alternatives = get_alternatives(schema)
    if alternatives:
        return alternatives
    bare, kinds = omit_keywords(schema, *ANNOTATION_KEYWORDS, "default"), get_types(schema)
    return [{**bare, "type": kind} for kind in kinds] if len(kinds) > 1 else [bare]


def _json(value: Any) -> str:
    # The order of members has no meaning in JSON, so a server that reorders them has changed nothing.
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _is_json_equal(item: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON, where 1 and true differ."""
    return item is other or _json(item) == _json(other)


def _join_path(path: str, rest: str) -> str:
    return f"{path}{rest}" if not rest or rest.startswith("[") else _join_property(path, rest)


def _join_property(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _enum_values(schema: Schema) -> list[str] | None:
    """Return the enum or const values as JSON, or None if the schema has neither."""
    if "const" not in schema and not isinstance(schema.get("enum"), list):
        return None
    # Listed values of a type that the schema does not accept never match.
    kinds = _types(schema)
    values = (int(value) if type(value) is float and value.is_integer() else value for value in get_enum_values(schema))
    # 2.0 is an integer and equal to 2 (JSON Schema, 6.1.1).
    return [_json(value) for value in values if json_type(value) in kinds]


def _is_disjoint(item: Schema, other: Schema) -> bool:
    """Return whether no value can match both, judging by types and listed values."""
    if not _types(item) & _types(other):
        return True
    named = _enum_values(item), _enum_values(other)
    if named[0] is not None and named[1] is not None:
        return not set(named[0]) & set(named[1])
    # A required member with different constants, as in a tagged union, makes two objects disjoint.
    shared = set(get_required(item)) & set(get_required(other))
    parts = ((get_properties(item).get(name), get_properties(other).get(name)) for name in shared)
    tags = ((_enum_values(a), _enum_values(b)) for a, b in parts if isinstance(a, dict) and isinstance(b, dict))
    return any(a is not None and b is not None and not set(a) & set(b) for a, b in tags)


def _is_preserved(named: Schema, open_one: Schema) -> bool:
    """Return whether the other side accepts the types of all listed values."""
    return {json_type(value) for value in get_enum_values(named)} <= _types(open_one)


def _types(schema: Schema) -> set[str]:
    result = set(get_types(schema)) or set(JSON_TYPE_NAMES)
    # Every integer is a number, so `number` to `integer` is a narrowing and not a different type.
    return result | {"integer"} if "number" in result else result


def _format_types(schema: Schema) -> str:
    return " or ".join(get_types(schema)) or "anything"


def _bound_effect(key: str, old: Any, new: Any) -> ChangeEffect | None:
    """Return the effect of a limit that was added, removed or changed, or None."""
    if key in LOWER_BOUND_KEYWORDS or key in UPPER_BOUND_KEYWORDS:
        old, new = (item if type(item) in (int, float) else None for item in (old, new))
    elif key == "uniqueItems":
        old, new = bool(old) or None, bool(new) or None
    if old == new or _is_json_equal(old, new):
        return None
    if old is None or new is None:
        return "wider" if new is None else "narrower"
    if key in LOWER_BOUND_KEYWORDS or key in UPPER_BOUND_KEYWORDS:
        return "narrower" if (new > old) is (key in LOWER_BOUND_KEYWORDS) else "wider"
    # Multiples of 6 are multiples of 3. Not for floats, where the remainder is subject to rounding.
    if key == "multipleOf" and type(old) is int and type(new) is int and old > 0 and new > 0:
        return "narrower" if new % old == 0 else "wider" if old % new == 0 else "changed"
    return "changed"


def _texts(value: Any) -> set[str]:
    """Return all strings in a schema, names included."""
    result: set[str] = set()
    # Level by level instead of recursively, because the depth is up to the author of the schema.
    level = [value]
    while level:
        result |= {item for item in level if isinstance(item, str)}
        inside = [item for item in level if isinstance(item, dict | list)]
        level = [part for item in inside for part in ((*item, *item.values()) if isinstance(item, dict) else item)]
    return result
