"""Schemas rewritten: in the words of draft-07, in fewer words, and as a part of another schema.

Each is for clients that know no other.
"""

from __future__ import annotations

import re
from typing import Any

from portico.jsonschema import Schema
from portico.jsonschema.reader import NAMED, VALUES

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

# What draft-07 has no word for. To leave it out accepts more, and refuses nothing that was meant to be accepted.
_UNSAYABLE = (
    *("unevaluatedProperties", "unevaluatedItems", "dependentSchemas", "minContains", "maxContains"),
    *("$dynamicRef", "$dynamicAnchor", "$anchor", "$vocabulary"),
)
_VALUES = frozenset({*VALUES, "required"})


def draft07(schema: Schema) -> Schema:
    """The same schema as draft-07."""
    found = _schema(schema)
    found.pop("$schema", None)
    return {"$schema": DRAFT_07, **found}


def _schema(schema: Schema) -> Schema:
    found: Schema = {}
    for key, value in schema.items():
        if key in _VALUES:
            found[key] = value
        elif key in NAMED and isinstance(value, dict):
            inner = {name: _value(one) for name, one in value.items()}
            key = "definitions" if key == "$defs" else key
            found[key] = {**found.get(key, {}), **inner}
        elif key == "$ref" and isinstance(value, str):
            found[key] = value.replace("/$defs/", "/definitions/")
        elif key == "dependentRequired":
            found["dependencies"] = value
        elif key not in _UNSAYABLE:
            found[key] = _value(value)
    return _referring(_tuples(found))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return _schema(value)
    return [_value(one) for one in value] if isinstance(value, list) else value


def _tuples(found: Schema) -> Schema:
    """What stands at each place of an array is a list of `items` there, and the rest is `additionalItems`."""
    if "prefixItems" in found:
        if "items" in found:
            found["additionalItems"] = found.pop("items")
        found["items"] = found.pop("prefixItems")
    return found


def _referring(found: Schema) -> Schema:
    """Beside `$ref` draft-07 sees nothing, so what stands there moves."""
    if "$ref" not in found or len(found) == 1:
        return found
    kept: Schema = {key: found.pop(key) for key in ("definitions", "$schema", "$id") if key in found}
    return {"allOf": [{"$ref": found.pop("$ref")}], **found, **kept}


def simplified(schema: Schema) -> Schema:
    """`["x", null]` with null as its default is x that may be left out; an integer is a number without a fraction."""
    options = schema.get("anyOf")
    if isinstance(options, list) and len(options) == 2 and {"type": "null"} in options and "default" in schema:
        (other,) = (one for one in options if one != {"type": "null"})
        rest = {name: part for name, part in schema.items() if name != "anyOf" and (name != "default" or part)}
        schema = {**other, **rest}
    if schema.get("type") == "integer":
        schema = {**schema, "type": "number", "multipleOf": schema.get("multipleOf", 1)}
    return schema


# As a part of another


def as_property(schema: Schema, name: str, **beside: Any) -> Schema:
    """The schema of an object that holds the value under a name, with `beside` said about the value.

    The definitions move to the root, where references look for them; references to other parts follow these.
    """
    inner = _moved(schema, f"#/properties/{name}")
    outer = {key: inner.pop(key) for key in ("$schema", "$defs", "definitions") if key in inner}
    return {**outer, "type": "object", "properties": {name: {**beside, **inner}}, "required": [name]}


def _moved(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_moved(one, place) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: one if key in _VALUES else _moved(one, place) for key, one in value.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and re.match(r"#(/(?!\$defs/|definitions/)|$)", reference):
        found["$ref"] = f"{place}{reference[1:]}"
    return found
