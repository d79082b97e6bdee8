"""Schema rewriting for clients with limited support: draft-07, simplified, and wrapped as a property."""

from __future__ import annotations

import re
from typing import Any

from portico.jsonschema.reader import SCHEMA_MAP_KEYWORDS, VALUE_KEYWORDS
from portico.jsonschema.schema import Schema

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

# Keywords without an equivalent in draft-07. Dropping them accepts more and rejects nothing valid.
_UNSUPPORTED_IN_DRAFT_07 = (
    *("unevaluatedProperties", "unevaluatedItems", "dependentSchemas", "minContains", "maxContains"),
    *("$dynamicRef", "$dynamicAnchor", "$anchor", "$vocabulary"),
)
_VALUES = frozenset({*VALUE_KEYWORDS, "required"})


def to_draft_07(schema: Schema) -> Schema:
    """Convert a schema to draft-07."""
    result = _schema(schema)
    result.pop("$schema", None)
    return {"$schema": DRAFT_07, **result}


def _schema(schema: Schema) -> Schema:
    result: Schema = {}
    for key, value in schema.items():
        if key in _VALUES:
            result[key] = value
        elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
            inner = {name: _value(subschema) for name, subschema in value.items()}
            # A schema may have both, for example after merging documents; neither may overwrite the other.
            key = "definitions" if key == "$defs" else key
            result[key] = {**result.get(key, {}), **inner}
        # Draft-07 has `definitions`; `$defs` was introduced with 2019-09.
        elif key == "$ref" and isinstance(value, str):
            result[key] = value.replace("/$defs/", "/definitions/")
        # Split off from `dependencies` in 2019-09. With lists of names the meaning is the same.
        elif key == "dependentRequired":
            result["dependencies"] = value
        elif key not in _UNSUPPORTED_IN_DRAFT_07:
            result[key] = _value(value)
    return _convert_references(_convert_tuples(result))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _schema(value)
    return [_value(item) for item in value] if isinstance(value, list) else value


def _convert_tuples(schema: Schema) -> Schema:
    """Convert `prefixItems` to a list of `items`, and `items` to `additionalItems`."""
    if "prefixItems" in schema:
        # In 2020-12 `items` applies to the items after the prefix, which draft-07 calls `additionalItems`.
        if "items" in schema:
            schema["additionalItems"] = schema.pop("items")
        schema["items"] = schema.pop("prefixItems")
    return schema


def _convert_references(schema: Schema) -> Schema:
    """Move a `$ref` with siblings into `allOf`: draft-07 ignores keywords next to `$ref`."""
    if "$ref" not in schema or len(schema) == 1:
        return schema
    # References point to `#/definitions/…` and `$id` sets their base, so both stay at the level where they were.
    hoisted: Schema = {key: schema.pop(key) for key in ("definitions", "$schema", "$id") if key in schema}
    return {"allOf": [{"$ref": schema.pop("$ref")}], **schema, **hoisted}


def simplify(schema: Schema) -> Schema:
    """Simplify nullable optional values to plain optional ones, and integers to numbers with `multipleOf` 1."""
    options = schema.get("anyOf")
    if isinstance(options, list) and len(options) == 2 and {"type": "null"} in options and "default" in schema:
        (other,) = (option for option in options if option != {"type": "null"})
        rest = {name: part for name, part in schema.items() if name != "anyOf" and (name != "default" or part)}
        schema = {**other, **rest}
    # `multipleOf` keeps fractions invalid, although the type is wider.
    if schema.get("type") == "integer":
        schema = {**schema, "type": "number", "multipleOf": schema.get("multipleOf", 1)}
    return schema


# Wrapping


def wrap_as_property(schema: Schema, name: str, **keywords: Any) -> Schema:
    """Return the schema of an object that holds the value under a name, with additional keywords for it.

    Definitions move to the root, where references expect them; other local references are adjusted.
    """
    inner = _rebase_references(schema, f"#/properties/{name}")
    # `$schema` is allowed only at the root of a schema resource (JSON Schema 2020-12, Core, section 8.1.1).
    outer = {key: inner.pop(key) for key in ("$schema", "$defs", "definitions") if key in inner}
    return {**outer, "type": "object", "properties": {name: {**keywords, **inner}}, "required": [name]}


def _rebase_references(value: Any, pointer: str) -> Any:
    if isinstance(value, list):
        return [_rebase_references(item, pointer) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: item if key in _VALUES else _rebase_references(item, pointer) for key, item in value.items()}
    reference = result.get("$ref")
    if isinstance(reference, str) and re.match(r"#(/(?!\$defs/|definitions/)|$)", reference):
        result["$ref"] = f"{pointer}{reference[1:]}"
    return result
