"""JSON Schemas that may be anybody's: read, put into words, and held against values, all within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from portico.schema import Schema, SchemaError
from portico.schema.cost import EASY, LONGEST_SCHEMA, MOST_LOOKS, Weight, local, size_of, weight
from portico.schema.validators import compiled

MOST_COMPLAINTS = 20
MOST_WAYS = 1_000_000
MOST_REFERENCES = 32
MOST_FIELDS = 200
# How many alternatives are put into words, how many parts of an `allOf` are put together, and how deep that goes.
MOST_WORDS = 8
MOST_PARTS = 64
DEEPEST = 4
LONGEST_WORDS = 120
# Stands in for a schema that is too long or too deep to be gone through, with its fingerprint.
UNREADABLE = "x-unreadable"
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


class Unfit(SchemaError, ValueError):
    """A schema that cannot be used; its text says why."""


class Complaint(Struct, frozen=True):
    """What is wrong with a value: where, which keyword of the schema says so, and in words."""

    path: str
    keyword: str
    message: str
    received: Any = None


class Field(Struct, frozen=True):
    """One property of an object, for a table: `address.city` where it is inside another."""

    name: str
    schema: Schema
    required: bool


# Holding values against them


def complaints(schema: Schema, value: Any) -> list[Complaint]:
    """What is wrong with a value; nothing, if all is well. Raises Unfit where the schema cannot be used."""
    validator, weighed = _validator(_encoded(schema))
    if weighed.times > EASY // 10 and size_of(value, MOST_LOOKS) * weighed.times > MOST_LOOKS:
        raise Unfit("it makes too much work of this value")
    if validator.is_valid(value):
        return []
    if _takes_long(weighed, value):
        return list(_roughly(schema, value)) or [Complaint("", "", "it does not fit")]
    return [_complaint(error) for error in islice(validator.iter_errors(value), MOST_COMPLAINTS)]


def _takes_long(weighed: Weight, value: Any) -> bool:
    """To say why, all ways to be valid are gone through. Where a schema contains itself, each level multiplies them."""
    if not weighed.recursive:
        return weighed.times > EASY
    return float(weighed.times) ** (_depth(value) + 1) > MOST_WAYS


def _depth(value: Any, most: int = 16) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 0 if not inside or not most else 1 + max(_depth(one, most - 1) for one in inside)


def _roughly(schema: Schema, value: Any) -> Iterator[Complaint]:
    """Which members do not fit, without why."""
    known = properties_of(schema)
    if not isinstance(value, dict) or not known:
        return
    for name in required_of(schema):
        if name not in value:
            yield Complaint(name, "required", "it is required")
    for name, one in islice(value.items(), MOST_FIELDS):
        if name in known:
            part = {"properties": {name: known[name]}, **definitions_of(schema)}
            if not _validator(_encoded(part))[0].is_valid({name: one}):
                yield Complaint(name, "", "it does not fit", one)
        elif schema.get("additionalProperties") is False:
            yield Complaint(name, "additionalProperties", "there is no such member", one)


def definitions_of(schema: Schema) -> Schema:
    return {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}


def check(schema: Schema) -> None:
    """Raises Unfit if this is no schema that could be used."""
    _validator(_encoded(schema))


def _encoded(schema: Schema) -> bytes:
    try:
        said = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError) as failure:
        raise Unfit(f"it is no JSON: {failure}") from None
    if len(said) > LONGEST_SCHEMA:
        raise Unfit(f"it is longer than {LONGEST_SCHEMA} bytes")
    return said


@lru_cache(maxsize=256)
def _validator(encoded: bytes) -> tuple[Any, Weight]:
    try:
        schema = msgspec.json.decode(encoded)
        weighed = weight(schema)
        found = compiled(schema)
    except (ValueError, RecursionError) as failure:
        raise Unfit(str(failure)[:300]) from None
    if found is None:
        raise SchemaError("JSON Schemas are checked by the package jsonschema-rs: install portico[schema]")
    return found, weighed


def _complaint(error: Any) -> Complaint:
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    steps, received, message = list(error.instance_path), error.instance, str(error.message)[:300]
    if keyword == "required":
        return Complaint(path_of([*steps, error.kind.property]), keyword, "it is required", None)
    if keyword == "additionalProperties" and getattr(error.kind, "unexpected", None):
        name = error.kind.unexpected[0]
        return Complaint(path_of([*steps, name]), keyword, "there is no such member", received.get(name))
    return Complaint(path_of(steps), keyword, message, received)


def path_of(steps: list[str | int]) -> str:
    """`address.lines[0]`"""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


# Reading them


def resolved(schema: Any, root: Schema) -> Schema:
    """What a schema stands for once references into the same document are followed. Nothing is fetched."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        found = local(schema["$ref"], root)
        schema = {**found, **beside} if isinstance(found, dict) else {}
    return schema if isinstance(schema, dict) else {}


def properties_of(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return {name: one for name, one in found.items() if isinstance(name, str)} if isinstance(found, dict) else {}


def required_of(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def types_of(schema: Schema) -> list[str]:
    """The JSON types that a schema names itself."""
    kind = schema.get("type")
    found = kind if isinstance(kind, list) else [kind]
    return [one for one in found if one in TYPES]


def options_of(schema: Schema) -> list[Any]:
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, list) and found:
            return found
    return []


def fields(schema: Schema) -> list[Field]:
    """The properties of an object and of the objects in it, for a table."""
    return list(islice(_fields(schema, schema, "", DEEPEST), MOST_FIELDS))


def _fields(schema: Schema, root: Schema, before: str, depth: int) -> Iterator[Field]:
    required = required_of(schema)
    for name, one in properties_of(schema).items():
        path = f"{before}{name}"
        found = resolved(one, root)
        yield Field(path, found, name in required)
        inside = _only_object(found, root)
        if types_of(found) == ["array"] and isinstance(found.get("items"), dict):
            path, inside = f"{path}[]", resolved(found["items"], root)
        if depth > 1 and properties_of(inside):
            yield from _fields(inside, root, f"{path}.", depth - 1)


def _only_object(schema: Schema, root: Schema) -> Schema:
    """The one alternative that has members of its own: `Address | None` is an Address for a table."""
    options = [resolved(option, root) for option in options_of(schema)[:MOST_PARTS]]
    found = [one for one in options if properties_of(one)]
    return found[0] if len(found) == 1 and not properties_of(schema) else schema


def words(schema: Any, root: Schema, depth: int = DEEPEST) -> str:
    """The type of a value, as a table shows it: `string`, `array of integer`, `"a" or "b"`, `object or null`."""
    found = resolved(schema, root)
    if "const" in found:
        return quoted(found["const"])
    if isinstance(found.get("enum"), list) and found["enum"]:
        return _either([quoted(value) for value in found["enum"]])
    options = options_of(found)
    if options and depth:
        said = [words(one, root, depth - 1) for one in options[:MOST_WORDS]]
        return _either(list(dict.fromkeys([*said, "…"] if len(options) > MOST_WORDS else said)))
    kinds = types_of(found) or (["object"] if properties_of(found) else [])
    return _either([_kind(kind, found, root, depth) for kind in kinds]) or "any"


def _kind(kind: str, schema: Schema, root: Schema, depth: int) -> str:
    if kind == "array" and isinstance(schema.get("items"), dict) and depth:
        inner = words(schema["items"], root, depth - 1)
        return "array" if inner == "any" else f"array of {inner}"
    if kind == "string" and isinstance(schema.get("format"), str):
        return f"string ({schema['format']})"
    return kind


def _either(parts: list[str]) -> str:
    text = " or ".join(parts)
    if len(text) <= LONGEST_WORDS:
        return text
    kept: list[str] = []
    while parts and len(" or ".join([*kept, parts[0]])) < LONGEST_WORDS:
        kept.append(parts.pop(0))
    return f"{' or '.join(kept) or 'any'} …"


def quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
