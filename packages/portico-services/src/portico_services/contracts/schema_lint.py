"""Lint rules for the schemas of a specification, and for tables whose types contradict the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from portico.jsonschema import (
    InvalidSchema,
    Schema,
    format_type,
    get_alternatives,
    get_enum_values,
    get_properties,
    get_types,
    json_type,
    list_fields,
    merge_all_of,
    resolve_references,
    validate,
)

MAX_SCHEMA_DEPTH = 16
MAX_VISITED_NODES = 2000
# Number of alternatives that are checked, and their nesting. An alternative may refer back to the whole schema.
MAX_ALTERNATIVES, MAX_NESTED_ALTERNATIVES = 16, 2

# Any of these keywords declares the type of a value.
_TYPED = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "not", "if")
# Common names of types, by the word that a cell starts with.
_TYPE_NAMES = {
    **dict.fromkeys(("string", "strings", "str", "text"), "string"),
    **dict.fromkeys(("integer", "integers", "int"), "integer"),
    **dict.fromkeys(("number", "numbers", "float", "double", "decimal"), "number"),
    **dict.fromkeys(("boolean", "booleans", "bool"), "boolean"),
    **dict.fromkeys(("null", "none"), "null"),
    **dict.fromkeys(("array", "list", "sequence", "tuple", "set"), "array"),
    **dict.fromkeys(("object", "dict", "dictionary", "map", "mapping", "record"), "object"),
    "any": "any",
}
# A cell that names all of these means any JSON value.
_ALL_TYPES = {"string", "number", "boolean", "object", "array"}
_WORD = re.compile(r"[a-z]+")


def missing_keywords(schema: Schema) -> Iterator[str]:
    """Yield messages for missing required keywords: a description and a type for each property, `items` for
    each array.
    """
    for field in list_fields(schema):
        if not field.schema.get("description"):
            yield f"{field.name!r} has no description in the schema"
        if not any(keyword in field.schema for keyword in _TYPED):
            yield f"{field.name!r} has no type in the schema"
    yield from (
        f"array {path!r} does not declare its items"
        for path in islice(_arrays_without_items(schema), MAX_VISITED_NODES)
    )


def without_examples(schema: Schema) -> Iterator[str]:
    """Yield the names of properties without `examples` whose values the schema does not already enumerate."""
    for name, member in get_properties(schema).items():
        # Examples of a definition count for every property that refers to it.
        references = resolve_references(member, schema)
        is_listed = any(keyword in references for keyword in ("examples", "enum", "const")) or "boolean" in get_types(
            references
        )
        if not is_listed and "examples" not in schema:
            yield name


def invalid_defaults(schema: Schema) -> Iterator[str]:
    """Yield messages for properties whose default does not match their schema."""
    properties = get_properties(schema).items()
    defaults = {name: item["default"] for name, item in properties if isinstance(item, dict) and "default" in item}
    # Without `required`: a set of defaults is not a complete call.
    parts: Schema = {part: schema[part] for part in ("properties", "$defs", "definitions") if part in schema}
    try:
        wrong = validate(parts, defaults) if defaults else []
    except InvalidSchema:
        return
    yield from (f"the default of {item.path!r} does not match the schema: {item.message}" for item in wrong)


def _arrays_without_items(root: Schema) -> Iterator[str]:
    """Yield the paths of arrays that do not declare their items."""
    met: set[int] = set()
    level = [(name, resolve_references(member, root)) for name, member in get_properties(root).items()]
    for _ in range(MAX_SCHEMA_DEPTH):
        below: list[tuple[str, Schema]] = []
        for path, schema in level[:MAX_VISITED_NODES]:
            # A definition that is used in several places is checked only once.
            # By identity: resolve_references returns the definition's own `properties` object.
            if id(schema.get("properties")) in met:
                continue
            met |= {id(schema["properties"])} if "properties" in schema else set()
            items = schema.get("items") or schema.get("prefixItems")
            if "array" in get_types(schema) and not items and not set(get_types(schema)) >= _ALL_TYPES:
                yield path
            inside = islice(_subschemas(path, schema), max(MAX_VISITED_NODES - len(below), 0))
            below += [(where, resolve_references(member, root)) for where, member in inside]
        level = below


def _subschemas(path: str, schema: Schema) -> Iterator[tuple[str, Any]]:
    yield from ((f"{path}.{name}", alternative) for name, alternative in get_properties(schema).items())
    yield from ((path, alternative) for alternative in get_alternatives(schema))
    yield from ((f"{path}[]", alternative) for alternative in (schema.get("items"),) if isinstance(alternative, dict))
    yield from (
        (f"{path}.*", alternative)
        for alternative in (schema.get("additionalProperties"),)
        if isinstance(alternative, dict)
    )


def contradicts_schema(cell: str, schema: Schema, root: Schema) -> bool:
    """Return whether a type cell contradicts the schema. Text that cannot be parsed does not."""
    cell = " ".join(cell.replace("`", "").replace("*", "").split())
    # Cells that the generator wrote always fit, even where the parser below would not understand them.
    if cell == format_type(schema, root) or "…" in cell:
        return False
    documented, possible = _types_in_cell(cell), _possible_types(schema, root, MAX_NESTED_ALTERNATIVES)
    if not documented or not possible:
        return False
    if "integer" in possible and "number" in documented:
        # The standard's own table calls an `int` a number.
        documented = documented - {"number"} | possible & {"integer", "number"}
    # Null may be left out of a cell: tables often state that in the column `Required`.
    return bool(documented - possible) or bool(possible - documented - {"null"})


def _types_in_cell(cell: str) -> set[str]:
    """Return the types that a cell names; empty if one of its words is unknown."""
    lowered = cell.lower()
    # Element types of arrays and objects have too many notations to parse.
    if re.search(r"\bof\b|[\[<{]", lowered):
        head = _WORD.match(lowered)
        kind = "array" if lowered.endswith("[]") else _TYPE_NAMES.get(head[0] if head else "", "")
        return {kind} if kind in ("array", "object") else set()
    parts = [_kind(part) for part in re.split(r"\||/|,|\bor\b", re.sub(r"\([^)]*\)", "", lowered)) if part.strip()]
    return set(parts) if all(parts) else set()


def _kind(part: str) -> str:
    part = re.sub(r"\b(?:optional|required|nullable)\b", "", part).strip()
    if part in _TYPE_NAMES:
        return _TYPE_NAMES[part]
    try:
        return json_type(json.loads(part)) if part else ""
    except (ValueError, RecursionError):
        return ""


def _possible_types(schema: Any, root: Schema, depth: int) -> set[str]:
    """Return the types that a value may have; empty if the schema does not restrict them."""
    result = merge_all_of(resolve_references(schema, root), root)
    values = get_enum_values(result)
    if values:
        return {json_type(value) for value in values}
    options = get_alternatives(result)
    if options:
        if not depth or len(options) > MAX_ALTERNATIVES:
            return set()
        inner = [_possible_types(option, root, depth - 1) for option in options]
        return set().union(*inner) if all(inner) else set()
    return set(get_types(result)) or ({"object"} if get_properties(result) else set())
