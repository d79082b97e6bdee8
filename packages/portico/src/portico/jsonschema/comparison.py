"""What has become of a schema: for each place, whether it accepts more than before, less, or something else.

Where that cannot be told, it is something else. Others wrote the schemas, so the work is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from msgspec import Struct

from portico.jsonschema import Schema
from portico.jsonschema.explanation import type_words
from portico.jsonschema.reader import (
    ALONE,
    BY_MEMBER,
    LEAST,
    MOST,
    TYPES,
    WORDS,
    kind_of,
    list_of,
    options_of,
    properties_of,
    required_of,
    resolved,
    types_of,
    values_of,
    without,
)

DEEPEST = 32
MOST_STEPS = 5000
MOST_OPTIONS = 32
MOST_SHIFTS = 500

# Stands in for a schema that is too long or too deep to be gone through, with its fingerprint.
UNREADABLE = "x-unreadable"

# `added`, `added required`, `removed`: a property. `open`, `closed`: whether unnamed properties are welcome.
# `words`: only what is read. `form`: neither that nor what is meant. `default`: what is assumed where nothing is said.
Effect = Literal[
    "wider", "narrower", "changed", "added", "added required", "removed", "open", "closed", "default", "words", "form"
]

_SHAPES = ("pattern", "format", "contentEncoding", "contentMediaType")
# Compared as wholes: what follows from a change in them cannot be told.
_WHOLE = (
    *(*ALONE, "contains", "patternProperties", "propertyNames", "dependentRequired", *BY_MEMBER),
    *("unevaluatedProperties", "unevaluatedItems", "additionalItems"),
)
# Whatever else stands in a schema means nothing, and is read by models all the same.
_COMPARED = frozenset(
    (*LEAST, *MOST, *WORDS, *_SHAPES, *_WHOLE, "uniqueItems", "multipleOf", "default", "type", "enum", "const", "anyOf")
) | {
    "oneOf",
    "allOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "prefixItems",
    "definitions",
    UNREADABLE,
}
_BAD = ("narrower", "changed", "added required", "removed", "closed")
_GOOD = ("wider", "changed", "added", "added required", "open")


class Shift(Struct, frozen=True):
    """One change of a schema. `said`: what it is now, in words that follow the name of the place."""

    path: str
    effect: Effect
    said: str


def shifts(old: Schema, new: Schema) -> list[Shift]:
    """Everything in which two schemas differ."""
    return list(_Comparison(old, new).all())


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._steps = MOST_STEPS
        self._begun: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str], list[Shift]] = {}

    def all(self) -> Iterator[Shift]:
        if _same(self._old, self._new):
            return
        found = list(dict.fromkeys(self._schema(self._old, self._new, "", DEEPEST)))
        if not found:
            effect: Effect = "form" if _texts(self._new) <= _texts(self._old) else "words"
            yield Shift("", effect, "is written otherwise, and means the same")
        yield from found

    def _schema(self, old: Any, new: Any, path: str, depth: int) -> Iterator[Shift]:
        pair = (_json(old), _json(new))
        found = self._found.get(pair)
        if found is None:
            found = self._compared(old, new, pair, depth)
        for shift in found:
            yield Shift(_joined(path, shift.path), shift.effect, shift.said) if path else shift

    def _compared(self, old: Any, new: Any, pair: tuple[str, str], depth: int) -> list[Shift]:
        """Each pair once, however often the schemas refer to it."""
        if pair in self._begun:
            # It contains itself, and is being compared further up.
            return []
        self._steps -= 1
        if depth < 0 or self._steps < 0:
            return [Shift("", "changed", "is too intricate to be compared")] if pair[0] != pair[1] else []
        self._begun.add(pair)
        before, after = _plain(resolved(_plain(old), self._old)), _plain(resolved(_plain(new), self._new))
        found = list(islice(dict.fromkeys(self._resolved(before, after, "", depth)), MOST_SHIFTS))
        self._begun.discard(pair)
        self._found[pair] = found
        return found

    def _resolved(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[Shift]:
        yield from self._words(old, new, path)
        options = options_of(old), options_of(new)
        if options[0] or options[1]:
            yield from self._options(old, new, path, depth)
            yield from self._only_one(old, new, path)
            old, new = without(old, "anyOf", "oneOf"), without(new, "anyOf", "oneOf")
            if not options[0] or not options[1]:
                # What one side says at once was compared as an option of the other.
                return
        yield from self._values(old, new, path)
        yield from self._bounds(old, new, path)
        yield from self._object(old, new, path, depth)
        yield from self._array(old, new, path, depth)
        yield from self._all_of(old, new, path, depth)
        for key in _WHOLE:
            if not _same(old.get(key), new.get(key)):
                yield Shift(path, "changed", f"has another {key}")

    # What people read

    def _words(self, old: Schema, new: Schema, path: str) -> Iterator[Shift]:
        if not _same(old.get(UNREADABLE), new.get(UNREADABLE)):
            yield Shift(path, "changed", "has a schema that cannot be gone through, and is another")
            return
        changed = [key for key in WORDS if not _same(old.get(key), new.get(key))]
        unknown = (key for key in {**old, **new} if key not in _COMPARED and not key.startswith("$"))
        changed += [key for key in unknown if not _same(old.get(key), new.get(key))]
        if changed:
            yield Shift(path, "words", f"has another {' and '.join(changed)}")
        if not _same(old.get("default"), new.get("default")):
            now = f"is {_json(new['default'])} by default now" if "default" in new else "has no default any more"
            yield Shift(path, "default", now)

    # Which values

    def _values(self, old: Schema, new: Schema, path: str) -> Iterator[Shift]:
        before, after = _choices(old), _choices(new)
        if after == [] and before != []:
            yield Shift(path, "changed", "can be nothing at all: no value that is named is of its type")
            return
        if before is not None and after is not None:
            gone = [value for value in before if value not in after]
            come = [value for value in after if value not in before]
            if gone:
                yield Shift(path, "narrower", f"can no longer be {', '.join(gone)}")
            if come:
                yield Shift(path, "wider", f"can also be {', '.join(come)}")
            return
        if after is not None:
            yield Shift(path, "narrower" if _kept(new, old) else "changed", f"can only be {', '.join(after)}")
        elif before is not None:
            yield Shift(path, "wider" if _kept(old, new) else "changed", "is no longer one of a few values")
        else:
            yield from self._types(old, new, path)

    def _types(self, old: Schema, new: Schema, path: str) -> Iterator[Shift]:
        before, after = _types(old), _types(new)
        if before == after:
            return
        said = f"is {_type_words(new)} now, and was {_type_words(old)}"
        effect: Effect = "wider" if before <= after else "narrower" if after <= before else "changed"
        yield Shift(path, effect, said)

    def _bounds(self, old: Schema, new: Schema, path: str) -> Iterator[Shift]:
        for key in (*LEAST, *MOST, *_SHAPES, "uniqueItems", "multipleOf"):
            before, after = old.get(key), new.get(key)
            effect = _effect(key, before, after)
            if effect is not None:
                the = "the " if key in _SHAPES else ""
                now = f"has {the}{key} {_json(after)} now" if key in new else f"has no {key} any more"
                if key == "uniqueItems":
                    now = "must not repeat itself" if after else "may repeat itself"
                yield Shift(path, effect, "goes in other steps" if key == "multipleOf" else now)

    # Inside

    def _object(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[Shift]:
        before, after = properties_of(old), properties_of(new)
        needed = required_of(old), required_of(new)
        for name in before:
            if name not in after:
                yield Shift(_inside(path, name), "removed", "was removed")
        for name in after:
            if name not in before:
                effect: Effect = "added required" if name in needed[1] else "added"
                yield Shift(_inside(path, name), effect, f"is new: {type_words(after[name], self._new)}")
        for name in dict.fromkeys([*before, *needed[0], *needed[1]]):
            if (name in after or name not in before) and (name in before or name not in after):
                yield from self._need(name, needed, path)
            if name in before and name in after:
                yield from self._schema(before[name], after[name], _inside(path, name), depth - 1)
        yield from self._rest(old.get("additionalProperties", True), new.get("additionalProperties", True), path, depth)

    def _need(self, name: str, needed: tuple[list[str], list[str]], path: str) -> Iterator[Shift]:
        if name in needed[1] and name not in needed[0]:
            yield Shift(_inside(path, name), "narrower", "is required now")
        elif name in needed[0] and name not in needed[1]:
            yield Shift(_inside(path, name), "wider", "is optional now")

    def _rest(self, old: Any, new: Any, path: str, depth: int) -> Iterator[Shift]:
        """The properties that have no name in the schema."""
        old, new = (True if one == {} else one for one in (old, new))
        if old == new:
            return
        if new is False:
            yield Shift(path, "closed", "takes no other members any more")
        elif old is False:
            yield Shift(path, "open", "takes other members too")
        elif old is True:
            yield Shift(_inside(path, "*"), "narrower", f"can only be {type_words(new, self._new)}")
        elif new is True:
            yield Shift(_inside(path, "*"), "wider", "can be anything")
        else:
            yield from self._schema(old, new, _inside(path, "*"), depth - 1)

    def _array(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[Shift]:
        first = list_of(old, "prefixItems"), list_of(new, "prefixItems")
        if len(first[0]) != len(first[1]):
            yield Shift(path, "changed", f"has {len(first[1])} places of its own now, and had {len(first[0])}")
        for at, (before, after) in enumerate(zip(*first, strict=False)):
            yield from self._schema(before, after, f"{path}[{at}]", depth - 1)
        items = old.get("items", True), new.get("items", True)
        if not _same(*items) or isinstance(items[0], dict):
            yield from self._schema(*items, f"{path}[]", depth - 1)

    def _all_of(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[Shift]:
        before, after = list_of(old, "allOf"), list_of(new, "allOf")
        for one, other in zip(before, after, strict=False):
            yield from self._schema(one, other, path, depth - 1)
        if len(after) > len(before):
            yield Shift(path, "narrower", "has to satisfy more than before")
        elif len(after) < len(before):
            yield Shift(path, "wider", "has to satisfy less than before")

    # Alternatives

    def _options(self, old: Schema, new: Schema, path: str, depth: int) -> Iterator[Shift]:
        """Every alternative of before has to fit into one of now, and the other way round."""
        before, after = _alternatives(old), _alternatives(new)
        if len(before) > MOST_OPTIONS or len(after) > MOST_OPTIONS:
            yield Shift(path, "changed", "has too many alternatives to be compared")
            return
        gone = [one for one in before if not self._has_room(one, after, path, depth, _BAD)]
        come = [one for one in after if not self._has_room(one, before, path, depth, _GOOD, turned=True)]
        if len(gone) == len(come) == 1:
            yield from self._schema(gone[0], come[0], path, depth - 1)
            return
        if gone:
            yield Shift(path, "narrower", f"can no longer be {self._listed(gone, self._old)}")
        if come:
            yield Shift(path, "wider", f"can also be {self._listed(come, self._new)}")

    def _only_one(self, old: Schema, new: Schema, path: str) -> Iterator[Shift]:
        """`oneOf` refuses what fits two of its alternatives."""
        before, after = list_of(old, "oneOf"), list_of(new, "oneOf")
        if after and not _same(before, after) and not self._are_apart(after):
            yield Shift(path, "changed", "takes only what fits one of its alternatives, and they overlap")
        elif before and not after and not self._are_apart(before):
            yield Shift(path, "wider", "may fit several of its alternatives")

    def _are_apart(self, options: list[Any]) -> bool:
        found = [_plain(resolved(_plain(one), self._new)) for one in options]
        return all(_differ(one, other) for at, one in enumerate(found) for other in found[at + 1 :])

    def _has_room(
        self, one: Any, others: list[Any], path: str, depth: int, spoilt_by: tuple[str, ...], *, turned: bool = False
    ) -> bool:
        for other in others:
            pair = (other, one) if turned else (one, other)
            found = list(self._schema(*pair, path, depth - 1))
            if not any(shift.effect in spoilt_by for shift in found):
                return True
        return False

    def _listed(self, options: list[Any], root: Schema) -> str:
        return ", ".join(dict.fromkeys(type_words(one, root) for one in options))


# The parts of it


def _plain(schema: Any) -> Schema:
    """`true` accepts everything, and `false` nothing."""
    return schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}


def _alternatives(schema: Schema) -> list[Any]:
    found = options_of(schema)
    if found:
        return found
    bare, kinds = without(schema, *WORDS, "default"), types_of(schema)
    return [{**bare, "type": kind} for kind in kinds] if len(kinds) > 1 else [bare]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _same(one: Any, other: Any) -> bool:
    """As JSON: 1 and true are not the same."""
    return one is other or _json(one) == _json(other)


def _joined(path: str, rest: str) -> str:
    return f"{path}{rest}" if not rest or rest.startswith("[") else _inside(path, rest)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _choices(schema: Schema) -> list[str] | None:
    """The values that a schema names, as JSON; None if it names none."""
    if "const" not in schema and not isinstance(schema.get("enum"), list):
        return None
    # A value of another type than the schema's fits it no more than one that is not named.
    kinds = _types(schema)
    values = (int(value) if type(value) is float and value.is_integer() else value for value in values_of(schema))
    # 2.0 is an integer, and the same as 2 (JSON Schema, 6.1.1).
    return [_json(value) for value in values if kind_of(value) in kinds]


def _differ(one: Schema, other: Schema) -> bool:
    """Whether no value fits both, as far as types and named values tell."""
    if not _types(one) & _types(other):
        return True
    named = _choices(one), _choices(other)
    if named[0] is not None and named[1] is not None:
        return not set(named[0]) & set(named[1])
    shared = set(required_of(one)) & set(required_of(other))
    parts = ((properties_of(one).get(name), properties_of(other).get(name)) for name in shared)
    tags = ((_choices(a), _choices(b)) for a, b in parts if isinstance(a, dict) and isinstance(b, dict))
    return any(a is not None and b is not None and not set(a) & set(b) for a, b in tags)


def _kept(named: Schema, open_one: Schema) -> bool:
    """Whether all values that one side names have a type that the other takes."""
    return {kind_of(value) for value in values_of(named)} <= _types(open_one)


def _types(schema: Schema) -> set[str]:
    found = set(types_of(schema)) or set(TYPES)
    return found | {"integer"} if "number" in found else found


def _type_words(schema: Schema) -> str:
    return " or ".join(types_of(schema)) or "anything"


def _effect(key: str, old: Any, new: Any) -> Effect | None:
    """What it means that a limit has come, gone or changed; None if it has not."""
    if key in LEAST or key in MOST:
        old, new = (one if type(one) in (int, float) else None for one in (old, new))
    elif key == "uniqueItems":
        old, new = bool(old) or None, bool(new) or None
    if old == new or _same(old, new):
        return None
    if old is None or new is None:
        return "wider" if new is None else "narrower"
    if key in LEAST or key in MOST:
        return "narrower" if (new > old) is (key in LEAST) else "wider"
    if key == "multipleOf" and type(old) is int and type(new) is int and old > 0 and new > 0:
        return "narrower" if new % old == 0 else "wider" if old % new == 0 else "changed"
    return "changed"


def _texts(value: Any) -> set[str]:
    """All texts in a schema, names included."""
    found: set[str] = set()
    level = [value]
    while level:
        found |= {one for one in level if isinstance(one, str)}
        inside = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inside for part in ((*one, *one.values()) if isinstance(one, dict) else one)]
    return found
