"""Schemas and values in plain English, for error messages that a language model reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from portico.schema import Schema

LONGEST_QUOTE = 80
MOST_LISTED = 20

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
