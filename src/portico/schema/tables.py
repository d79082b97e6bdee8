"""Schemas as tables for people: a row for each property, and its type in a few words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from portico.schema import Schema
from portico.schema.reader import (
    MOST_FIELDS,
    MOST_OPTIONS,
    options_of,
    properties_of,
    required_of,
    resolved,
    types_of,
)

# How deep objects are looked into, and alternatives; how many of these are named, and the length of all.
DEEPEST = 4
MOST_ALTERNATIVES = 8
LONGEST_TYPE = 120


class TableField(Struct, frozen=True):
    """One property of an object, for a table: `address.city` where it is inside another."""

    name: str
    schema: Schema
    required: bool


def fields(schema: Schema) -> list[TableField]:
    """The properties of an object and of the objects in it, for a table."""
    return list(islice(_fields(schema, schema, "", DEEPEST), MOST_FIELDS))


def _fields(schema: Schema, root: Schema, before: str, depth: int) -> Iterator[TableField]:
    required = required_of(schema)
    for name, one in properties_of(schema).items():
        path = f"{before}{name}"
        found = resolved(one, root)
        yield TableField(path, found, name in required)
        inside = _only_object(found, root)
        if types_of(found) == ["array"] and isinstance(found.get("items"), dict):
            path, inside = f"{path}[]", resolved(found["items"], root)
        if depth > 1 and properties_of(inside):
            yield from _fields(inside, root, f"{path}.", depth - 1)


def _only_object(schema: Schema, root: Schema) -> Schema:
    """The one alternative that has members of its own: `Address | None` is an Address for a table."""
    options = [resolved(option, root) for option in options_of(schema)[:MOST_OPTIONS]]
    found = [one for one in options if properties_of(one)]
    return found[0] if len(found) == 1 and not properties_of(schema) else schema


def type_words(schema: Any, root: Schema, depth: int = DEEPEST) -> str:
    """The type of a value, as a table shows it: `string`, `array of integer`, `"a" or "b"`, `object or null`."""
    found = resolved(schema, root)
    if "const" in found:
        return as_json(found["const"])
    if isinstance(found.get("enum"), list) and found["enum"]:
        return _shortened([as_json(value) for value in found["enum"]])
    options = options_of(found)
    if options and depth:
        said = [type_words(one, root, depth - 1) for one in options[:MOST_ALTERNATIVES]]
        return _shortened(list(dict.fromkeys([*said, "…"] if len(options) > MOST_ALTERNATIVES else said)))
    kinds = types_of(found) or (["object"] if properties_of(found) else [])
    return _shortened([_type(kind, found, root, depth) for kind in kinds]) or "any"


def _type(kind: str, schema: Schema, root: Schema, depth: int) -> str:
    if kind == "array" and isinstance(schema.get("items"), dict) and depth:
        inner = type_words(schema["items"], root, depth - 1)
        return "array" if inner == "any" else f"array of {inner}"
    if kind == "string" and isinstance(schema.get("format"), str):
        return f"string ({schema['format']})"
    return kind


def _shortened(parts: list[str]) -> str:
    text = " or ".join(parts)
    if len(text) <= LONGEST_TYPE:
        return text
    kept: list[str] = []
    while parts and len(" or ".join([*kept, parts[0]])) < LONGEST_TYPE:
        kept.append(parts.pop(0))
    return f"{' or '.join(kept) or 'any'} …"


def as_json(value: Any) -> str:
    """JSON with a space between its parts, as people write it."""
    return json.dumps(value, ensure_ascii=False)
