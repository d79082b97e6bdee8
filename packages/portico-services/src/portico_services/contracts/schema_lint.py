"""What the schema of a specification leaves unsaid, and whether a table tells the types that the schema has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from portico.jsonschema import (
    Schema,
    Unfit,
    complaints,
    fields,
    kind_of,
    options_of,
    properties_of,
    resolved,
    type_words,
    types_of,
    values_of,
    with_all_of,
)

DEEPEST = 16
MOST_PLACES = 2000
# Of alternatives: how many are looked at, and how many of them one in the other. An alternative may be the whole again.
MOST_OPTIONS, MOST_NESTED = 16, 2

# Any of these says what a value is, each in its way.
_TYPED = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "not", "if")
# What people call the types, by the word that a cell begins with.
_NAMES = {
    **dict.fromkeys(("string", "strings", "str", "text"), "string"),
    **dict.fromkeys(("integer", "integers", "int"), "integer"),
    **dict.fromkeys(("number", "numbers", "float", "double", "decimal"), "number"),
    **dict.fromkeys(("boolean", "booleans", "bool"), "boolean"),
    **dict.fromkeys(("null", "none"), "null"),
    **dict.fromkeys(("array", "list", "sequence", "tuple", "set"), "array"),
    **dict.fromkeys(("object", "dict", "dictionary", "map", "mapping", "record"), "object"),
    "any": "any",
}
# Who names all of these means anything that JSON can say.
_ANYTHING = {"string", "number", "boolean", "object", "array"}
_WORD = re.compile(r"[a-z]+")


def unsaid(schema: Schema) -> Iterator[str]:
    """What is missing of the least that a schema says: a description and a type for each property, `items` for each
    array."""
    for one in fields(schema):
        if not one.schema.get("description"):
            yield f"{one.name!r} has no description in the schema"
        if not any(keyword in one.schema for keyword in _TYPED):
            yield f"{one.name!r} has no type in the schema"
    yield from (f"{path!r} is an array, and its items are not said" for path in islice(_bare(schema), MOST_PLACES))


def without_examples(schema: Schema) -> Iterator[str]:
    """Yield the names of properties without `examples` whose values the schema does not already list."""
    for name, one in properties_of(schema).items():
        found = resolved(one, schema)
        is_listed = any(keyword in found for keyword in ("examples", "enum", "const")) or "boolean" in types_of(found)
        if not is_listed and "examples" not in schema:
            yield name


def unfit_defaults(schema: Schema) -> Iterator[str]:
    """Properties whose default is none of the values that they may have."""
    known = properties_of(schema).items()
    defaults = {name: one["default"] for name, one in known if isinstance(one, dict) and "default" in one}
    parts: Schema = {part: schema[part] for part in ("properties", "$defs", "definitions") if part in schema}
    try:
        wrong = complaints(parts, defaults) if defaults else []
    except Unfit:
        return
    yield from (f"the default of {one.path!r} does not fit the schema: {one.message}" for one in wrong)


def _bare(root: Schema) -> Iterator[str]:
    """The places of arrays that do not say what their items are."""
    met: set[int] = set()
    level = [(name, resolved(one, root)) for name, one in properties_of(root).items()]
    for _ in range(DEEPEST):
        below: list[tuple[str, Schema]] = []
        for path, schema in level[:MOST_PLACES]:
            # A definition that is used in several places is looked at in the first.
            if id(schema.get("properties")) in met:
                continue
            met |= {id(schema["properties"])} if "properties" in schema else set()
            said = schema.get("items") or schema.get("prefixItems")
            if "array" in types_of(schema) and not said and not set(types_of(schema)) >= _ANYTHING:
                yield path
            inside = islice(_inside(path, schema), max(MOST_PLACES - len(below), 0))
            below += [(where, resolved(one, root)) for where, one in inside]
        level = below


def _inside(path: str, schema: Schema) -> Iterator[tuple[str, Any]]:
    yield from ((f"{path}.{name}", one) for name, one in properties_of(schema).items())
    yield from ((path, one) for one in options_of(schema))
    yield from ((f"{path}[]", one) for one in (schema.get("items"),) if isinstance(one, dict))
    yield from ((f"{path}.*", one) for one in (schema.get("additionalProperties"),) if isinstance(one, dict))


def contradicts(said: str, schema: Schema, root: Schema) -> bool:
    """Whether a cell for the type says another one than the schema. What cannot be read in it says nothing wrong."""
    said = " ".join(said.replace("`", "").replace("*", "").split())
    if said == type_words(schema, root) or "…" in said:
        return False
    told, known = _told(said), _kinds(schema, root, MOST_NESTED)
    if not told or not known:
        return False
    if "integer" in known and "number" in told:
        # By the standard's own table an `int` is a number.
        told = told - {"number"} | known & {"integer", "number"}
    return bool(told - known) or bool(known - told - {"null"})


def _told(said: str) -> set[str]:
    """The types that a cell names; none where one of its words is not understood."""
    lowered = said.lower()
    # What an array or an object consists of is told in too many ways.
    if re.search(r"\bof\b|[\[<{]", lowered):
        head = _WORD.match(lowered)
        kind = "array" if lowered.endswith("[]") else _NAMES.get(head[0] if head else "", "")
        return {kind} if kind in ("array", "object") else set()
    parts = [_kind(part) for part in re.split(r"\||/|,|\bor\b", re.sub(r"\([^)]*\)", "", lowered)) if part.strip()]
    return set(parts) if all(parts) else set()


def _kind(part: str) -> str:
    part = re.sub(r"\b(?:optional|required|nullable)\b", "", part).strip()
    if part in _NAMES:
        return _NAMES[part]
    try:
        return kind_of(json.loads(part)) if part else ""
    except (ValueError, RecursionError):
        return ""


def _kinds(schema: Any, root: Schema, depth: int) -> set[str]:
    """The types that a value may have; none where the schema does not say."""
    found = with_all_of(resolved(schema, root), root)
    values = values_of(found)
    if values:
        return {kind_of(value) for value in values}
    options = options_of(found)
    if options:
        if not depth or len(options) > MOST_OPTIONS:
            return set()
        inner = [_kinds(one, root, depth - 1) for one in options]
        return set().union(*inner) if all(inner) else set()
    return set(types_of(found)) or ({"object"} if properties_of(found) else set())
