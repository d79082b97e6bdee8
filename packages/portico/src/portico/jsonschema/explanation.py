"""Schemas and values in words: plain English for errors that a language model reads, and tables for people, with a row
for each property and its type in a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from portico.jsonschema import Schema
from portico.jsonschema.reader import (
    MOST_FIELDS,
    MOST_OPTIONS,
    options_of,
    properties_of,
    required_of,
    resolved,
    types_of,
)

LONGEST_QUOTE = 80
MOST_LISTED = 20
# Of tables: how deep objects are looked into, and alternatives; how many of these are named, and the length of all.
DEEPEST = 4
MOST_ALTERNATIVES = 8
LONGEST_TYPE = 120
_NOTED = (
    *("format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "multipleOf", "default"),
)

FORMATS = {
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
NOUNS = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
PLURALS = {
    "string": "strings",
    "integer": "integers",
    "number": "numbers",
    "boolean": "booleans",
    "array": "arrays",
    "object": "objects",
}


def described(options: list[Schema], resolve: Callable[[Schema], Schema]) -> str:
    """What is accepted where any of these schemas is."""
    words = list(dict.fromkeys(_one(option, resolve) for option in options))
    if len(words) > 1 and words[-1] == "null":
        return f"{_either(words[:-1])}, or null"
    return _either(words)


def _either(words: list[str]) -> str:
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def _one(schema: Schema, resolve: Callable[[Schema], Schema]) -> str:
    if "const" in schema:
        return _constant(schema["const"])
    if "enum" in schema:
        return f"one of {listed(schema['enum'])}"
    kind = schema.get("type")
    if kind == "string":
        return _text(schema)
    if kind in ("integer", "number"):
        return NOUNS[kind] + _range(schema)
    if kind == "array":
        return _array(schema, resolve)
    if kind == "object":
        return _object(schema)
    if isinstance(kind, list):
        return _either([NOUNS.get(name, "a value") for name in kind])
    return NOUNS.get(kind or "", "a value")


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        words = [f"between {least} and {most}"]
    else:
        bounds = {
            "of at least": least,
            "greater than": schema.get("exclusiveMinimum"),
            "of at most": most,
            "less than": schema.get("exclusiveMaximum"),
        }
        words = [f"{text} {value}" for text, value in bounds.items() if value is not None]
    if "multipleOf" in schema:
        words.append(f"a multiple of {schema['multipleOf']}")
    return f" {' and '.join(words)}" if words else ""


def _text(schema: Schema) -> str:
    if schema.get("contentEncoding") == "base64":
        return "a base64 string"
    noun = FORMATS.get(schema.get("format", ""), "a string")
    size = _size(schema.get("minLength"), schema.get("maxLength"), "character")
    pattern = f" matching the pattern {schema['pattern']}" if "pattern" in schema else ""
    return noun + (f" of {size}" if size else "") + pattern


def _array(schema: Schema, resolve: Callable[[Schema], Schema]) -> str:
    items = schema.get("items")
    item = resolve(items) if isinstance(items, dict) else {}
    size = _size(schema.get("minItems"), schema.get("maxItems"), "item")
    plural = PLURALS.get(item["type"]) if isinstance(item.get("type"), str) else None
    if plural:
        return f"an array of {plural}" + (f" with {size}" if size else "")
    return "an array" + (f" of {size}" if size else "")


def _object(schema: Schema) -> str:
    names = schema.get("required") or list(schema.get("properties", ()))
    return f"an object with {listed(names)}" if names else "an object"


def _size(least: int | None, most: int | None, noun: str) -> str:
    if least is None and most is None:
        return ""
    if least == most or least is None or most is None:
        head = "" if least == most else "at most " if least is None else "at least "
        count = most if least is None else least
        return f"{head}{count} {noun}{'' if count == 1 else 's'}"
    return f"{least} to {most} {noun}s"


def _constant(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else _json(value)


def listed(values: list[Any]) -> str:
    """`'a', 'b', 'c'`, and how many more there are."""
    words = [cut(_constant(value)) for value in values[:MOST_LISTED]]
    more = len(values) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")


def received(value: Any) -> str:
    """What arrived, short enough to repeat."""
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, list):
        return "an empty array" if not value else f"an array of {_size(len(value), len(value), 'item')}"
    if isinstance(value, dict):
        return "an empty object" if not value else f"an object with {', '.join(_keys(value))}"
    if value is None or isinstance(value, bool):
        return _json(value)
    return f"the number {cut(_json(value))}"


def _keys(value: dict[Any, Any]) -> list[str]:
    shown = [quoted(str(name), "'") for name in list(value)[:5]]
    return [*shown, f"and {len(value) - 5} more"] if len(value) > 5 else shown


def quoted(text: str, mark: str = '"') -> str:
    """A string of the caller in quotes: one line, and not longer than can be read."""
    return f"{mark}{_json(cut(text))[1:-1]}{mark}"


def cut(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# As tables


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


def field_notes(schema: Schema) -> list[str]:
    """What a type does not say: bounds, formats, the default."""
    found = [f"{key} {as_json(schema[key])}" for key in _NOTED if key in schema]
    return [*found, "deprecated"] if schema.get("deprecated") is True else found


def as_json(value: Any) -> str:
    """JSON with a space between its parts, as people write it."""
    # A server that starts explains nothing yet.
    import json

    return json.dumps(value, ensure_ascii=False)
