"""Schemas and values in words: sentences for error messages that models read, and tables for users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from portico.jsonschema.reader import (
    MAX_ALTERNATIVES,
    MAX_PROPERTIES,
    get_alternatives,
    get_properties,
    get_required,
    get_types,
    resolve_references,
)
from portico.jsonschema.schema import Schema
from portico.text import truncate

MAX_QUOTE_CHARS = 80
MAX_LISTED_VALUES = 20
# Limits of tables: depth, number of listed alternatives, and length of a type.
MAX_TABLE_DEPTH = 4
MAX_LISTED_ALTERNATIVES = 8
MAX_TYPE_CHARS = 120
_CONSTRAINT_KEYWORDS = (
    *("format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "multipleOf", "default"),
)

FORMAT_DESCRIPTIONS = {
    "date-time": 'a date and time such as "2026-01-31T12:00:00Z"',
    "date": 'a date such as "2026-01-31"',
    "time": 'a time such as "12:00:00Z"',
    "duration": 'a duration such as "PT90S"',
    "uuid": "a UUID",
    "decimal": 'a decimal number in a string such as "12.50"',
    "path": "a path",
    "ipv4": "an IPv4 address",
    "ipv6": "an IPv6 address",
    "email": "an email address",
    "uri": "a URL",
}
TYPE_NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
TYPE_PLURALS = {
    "string": "strings",
    "integer": "integers",
    "number": "numbers",
    "boolean": "booleans",
    "array": "arrays",
    "object": "objects",
}


def describe_alternatives(alternatives: list[Schema], resolve: Callable[[Schema], Schema]) -> str:
    """Describe the values that any of these schemas accepts."""
    words = list(dict.fromkeys(_describe_schema(option, resolve) for option in alternatives))
    if len(words) > 1 and words[-1] == "null":
        return f"{_join_with_or(words[:-1])}, or null"
    return _join_with_or(words)


def _join_with_or(words: list[str]) -> str:
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def _describe_schema(schema: Schema, resolve: Callable[[Schema], Schema]) -> str:
    if "const" in schema:
        return _describe_constant(schema["const"])
    if "enum" in schema:
        return f"one of {format_values(schema['enum'])}"
    kind = schema.get("type")
    if kind == "string":
        return _text(schema)
    if kind in ("integer", "number"):
        return TYPE_NOUNS[kind] + _range(schema)
    if kind == "array":
        return _array(schema, resolve)
    if kind == "object":
        return _object(schema)
    if isinstance(kind, list):
        return _join_with_or([TYPE_NOUNS.get(name, "a value") for name in kind])
    return TYPE_NOUNS.get(kind or "", "a value")


def _range(schema: Schema) -> str:
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if minimum is not None and maximum is not None:
        words = [f"between {minimum} and {maximum}"]
    else:
        bounds = {
            "of at least": minimum,
            "greater than": schema.get("exclusiveMinimum"),
            "of at most": maximum,
            "less than": schema.get("exclusiveMaximum"),
        }
        words = [f"{text} {value}" for text, value in bounds.items() if value is not None]
    if "multipleOf" in schema:
        words.append(f"a multiple of {schema['multipleOf']}")
    return f" {' and '.join(words)}" if words else ""


def _text(schema: Schema) -> str:
    if schema.get("contentEncoding") == "base64":
        return "a base64 string"
    noun = FORMAT_DESCRIPTIONS.get(schema.get("format", ""), "a string")
    size = _size(schema.get("minLength"), schema.get("maxLength"), "character")
    pattern = f" matching the pattern {schema['pattern']}" if "pattern" in schema else ""
    return noun + (f" of {size}" if size else "") + pattern


def _array(schema: Schema, resolve: Callable[[Schema], Schema]) -> str:
    items = schema.get("items")
    item = resolve(items) if isinstance(items, dict) else {}
    size = _size(schema.get("minItems"), schema.get("maxItems"), "item")
    plural = TYPE_PLURALS.get(item["type"]) if isinstance(item.get("type"), str) else None
    if plural:
        return f"an array of {plural}" + (f" with {size}" if size else "")
    return "an array" + (f" of {size}" if size else "")


def _object(schema: Schema) -> str:
    names = schema.get("required") or list(schema.get("properties", ()))
    return f"an object with {format_values(names)}" if names else "an object"


def _size(minimum: int | None, maximum: int | None, noun: str) -> str:
    if minimum is None and maximum is None:
        return ""
    if minimum == maximum or minimum is None or maximum is None:
        head = "" if minimum == maximum else "at most " if minimum is None else "at least "
        count = maximum if minimum is None else minimum
        return f"{head}{count} {noun}{'' if count == 1 else 's'}"
    return f"{minimum} to {maximum} {noun}s"


def _describe_constant(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else _json(value)


def format_values(values: list[Any]) -> str:
    """Format values as `'a', 'b', 'c'`, with the number of omitted ones."""
    words = [truncate(_describe_constant(value), MAX_QUOTE_CHARS) for value in values[:MAX_LISTED_VALUES]]
    more = len(values) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def describe_value(value: Any) -> str:
    """Describe a received value in a few words."""
    if isinstance(value, str):
        return f"the string {quote(value)}"
    if isinstance(value, list):
        return "an empty array" if not value else f"an array of {_size(len(value), len(value), 'item')}"
    if isinstance(value, dict):
        return "an empty object" if not value else f"an object with {', '.join(_keys(value))}"
    if value is None or isinstance(value, bool):
        return _json(value)
    return f"the number {truncate(_json(value), MAX_QUOTE_CHARS)}"


def _keys(value: dict[Any, Any]) -> list[str]:
    quoted_names = [quote(str(name), "'") for name in list(value)[:5]]
    return [*quoted_names, f"and {len(value) - 5} more"] if len(value) > 5 else quoted_names


def quote(text: str, mark: str = '"') -> str:
    """Quote a string of the caller on one line, truncated."""
    return f"{mark}{_json(truncate(text, MAX_QUOTE_CHARS))[1:-1]}{mark}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Tables


class TableField(Struct, frozen=True):
    """Row of a table: one property, such as `address.city` for a nested one."""

    name: str
    schema: Schema
    required: bool


def list_fields(schema: Schema) -> list[TableField]:
    """Return the properties of an object and of its nested objects."""
    return list(islice(_fields(schema, schema, "", MAX_TABLE_DEPTH), MAX_PROPERTIES))


def _fields(schema: Schema, root: Schema, before: str, depth: int) -> Iterator[TableField]:
    required = get_required(schema)
    for name, field_schema in get_properties(schema).items():
        path = f"{before}{name}"
        references = resolve_references(field_schema, root)
        yield TableField(path, references, name in required)
        inside = _only_object(references, root)
        if get_types(references) == ["array"] and isinstance(references.get("items"), dict):
            path, inside = f"{path}[]", resolve_references(references["items"], root)
        if depth > 1 and get_properties(inside):
            yield from _fields(inside, root, f"{path}.", depth - 1)


def _only_object(schema: Schema, root: Schema) -> Schema:
    """Return the only alternative with properties: `Address | None` is shown as Address."""
    options = [resolve_references(option, root) for option in get_alternatives(schema)[:MAX_ALTERNATIVES]]
    result = [item for item in options if get_properties(item)]
    return result[0] if len(result) == 1 and not get_properties(schema) else schema


def format_type(schema: Any, root: Schema, depth: int = MAX_TABLE_DEPTH) -> str:
    """Format a type for a table: `string`, `array of integer`, `"a" or "b"`, `object or null`."""
    references = resolve_references(schema, root)
    if "const" in references:
        return format_json(references["const"])
    if isinstance(references.get("enum"), list) and references["enum"]:
        return _shorten_list([format_json(value) for value in references["enum"]])
    options = get_alternatives(references)
    if options and depth:
        formatted = [format_type(option, root, depth - 1) for option in options[:MAX_LISTED_ALTERNATIVES]]
        return _shorten_list(
            list(dict.fromkeys([*formatted, "…"] if len(options) > MAX_LISTED_ALTERNATIVES else formatted))
        )
    kinds = get_types(references) or (["object"] if get_properties(references) else [])
    return _shorten_list([_type(kind, references, root, depth) for kind in kinds]) or "any"


def _type(kind: str, schema: Schema, root: Schema, depth: int) -> str:
    if kind == "array" and isinstance(schema.get("items"), dict) and depth:
        inner = format_type(schema["items"], root, depth - 1)
        return "array" if inner == "any" else f"array of {inner}"
    if kind == "string" and isinstance(schema.get("format"), str):
        return f"string ({schema['format']})"
    return kind


def _shorten_list(parts: list[str]) -> str:
    text = " or ".join(parts)
    if len(text) <= MAX_TYPE_CHARS:
        return text
    remaining: list[str] = []
    while parts and len(" or ".join([*remaining, parts[0]])) < MAX_TYPE_CHARS:
        remaining.append(parts.pop(0))
    return f"{' or '.join(remaining) or 'any'} …"


def describe_constraints(schema: Schema) -> list[str]:
    """Return the constraints that a type does not show: bounds, formats, the default."""
    constraint_keywords = [f"{key} {format_json(schema[key])}" for key in _CONSTRAINT_KEYWORDS if key in schema]
    return [*constraint_keywords, "deprecated"] if schema.get("deprecated") is True else constraint_keywords


def format_json(value: Any) -> str:
    """Format JSON with spaces between its parts."""
    # Imported lazily: not needed when a server starts.
    import json

    return json.dumps(value, ensure_ascii=False)
