"""Schemas of 2020-12 in the words of draft-07, for tools that know no other."""

from __future__ import annotations

from typing import Any

from portico.schema import Schema

DRAFT_07 = "http://json-schema.org/draft-07/schema#"

# What draft-07 has no word for. To leave it out accepts more, and refuses nothing that was meant to be accepted.
_UNSAYABLE = frozenset(
    {
        "unevaluatedProperties",
        "unevaluatedItems",
        "dependentSchemas",
        "minContains",
        "maxContains",
        "$dynamicRef",
        "$dynamicAnchor",
        "$anchor",
        "$vocabulary",
    }
)
# Their members are schemas by name, and not keywords.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
# Their values are values, whatever they look like.
_VALUES = frozenset({"const", "enum", "default", "examples", "required"})


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
        elif key in _NAMED and isinstance(value, dict):
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
