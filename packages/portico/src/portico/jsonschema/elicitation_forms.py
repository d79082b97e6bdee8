"""Elicitation forms: the restricted schemas that every client can render (client/elicitation, Requested Schema)."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from portico.jsonschema.generation import PRIMITIVE_SCHEMAS
from portico.jsonschema.reader import (
    drop_invalid_keywords,
    get_alternatives,
    get_enum_values,
    get_list,
    get_properties,
    get_required,
    get_types,
    json_type,
    resolve_references,
)
from portico.jsonschema.schema import Schema, SchemaError

# Allowed keywords for each type of field.
_COMMON_KEYWORDS = ("type", "title", "description", "default")
_FIELD_KEYWORDS = {
    "string": (*_COMMON_KEYWORDS, "enum", "enumNames", "oneOf", "format", "minLength", "maxLength"),
    "number": (*_COMMON_KEYWORDS, "enum", "minimum", "maximum"),
    "integer": (*_COMMON_KEYWORDS, "enum", "minimum", "maximum"),
    "boolean": _COMMON_KEYWORDS,
    "array": (*_COMMON_KEYWORDS, "items", "minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")
_TYPES = {body["format"]: tp for tp, body in PRIMITIVE_SCHEMAS.items() if body.get("format") in _FORMATS}
# A minimal check: whether an address exists cannot be determined from its text.
_TEXTS = {"email": r"[^@\s]+@[^@\s]+", "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S+"}
# Keywords that would restrict fields in ways that a form cannot show.
_COMPOSITION_KEYWORDS = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")


def to_form_schema(schema: Schema, context: str) -> Schema:
    """Convert the schema of an object into a form with flat fields.

    Raises `SchemaError` for other schemas; `context` names the type in the message.
    """
    fields = get_properties(schema)
    if get_types(schema) not in ([], ["object"]) or (schema.get("additionalProperties") and not fields):
        raise SchemaError(f"a form needs named fields, but {context} has none")
    # 2025-11-25, client/elicitation: the schema is restricted to flat objects with primitive properties.
    if composing := [word for word in _COMPOSITION_KEYWORDS if word in schema]:
        raise SchemaError(f"a form declares its fields in 'properties', but {context} also has {composing[0]!r}")
    # A user could never submit such a form.
    if unknown := [name for name in get_required(schema) if name not in fields]:
        raise SchemaError(f"{context} requires {unknown[0]!r}, which is not one of its fields")
    required = {"required": names} if (names := get_required(schema)) else {}
    return {
        "type": "object",
        "properties": {name: _field(name, field_schema, schema, context) for name, field_schema in fields.items()},
        **required,
    }


def _field(name: str, schema: Any, root: Schema, context: str) -> Schema:
    """Return one field with the keywords that forms support."""
    field = drop_invalid_keywords(resolve_references(schema, root), keep=("anyOf", "oneOf"))
    if "const" in field:
        field = {**field, "enum": [field["const"]]}
    # An optional field is one that is not required: forms have no null.
    options = [
        alternative
        for alternative in get_alternatives(field)
        if not isinstance(alternative, dict) or get_types(alternative) != ["null"]
    ]
    # `X | None` is X in a form.
    if "anyOf" in field and len(options) == 1:
        field = {**field, **drop_invalid_keywords(options[0])}
    elif choices := _titled_options(options):
        field = {"type": "string", **field, "oneOf": choices}
    kinds = [kind for kind in get_types(field) if kind != "null"]
    if not kinds and get_enum_values(field) and all(isinstance(value, str) for value in get_enum_values(field)):
        kinds = ["string"]
    result = dict(field, type=kinds[0]) if len(kinds) == 1 else {}
    if result.get("type") == "array":
        result = dict(result, items=_to_choice_schema(resolve_references(result.get("items"), root)))
    if result.get("type") not in _FIELD_KEYWORDS or result.get("items", "") is None or not _is_valid_choice(result):
        raise SchemaError(
            f"a form has flat fields of text, numbers, booleans and choices; {name!r} of {context} is none of these"
        )
    form_field = {
        keyword: result[keyword]
        for keyword in _FIELD_KEYWORDS[result["type"]]
        if _is_supported_keyword(keyword, result)
    }
    # A default that is not a valid answer would be rejected by the client.
    if "default" in form_field and not _matches_field(form_field, form_field["default"]):
        del form_field["default"]
    return form_field


def _is_supported_keyword(keyword: str, field: Schema) -> bool:
    """Return whether a keyword has a value that a client can use."""
    value = field.get(keyword)
    if keyword == "format":
        return value in _FORMATS
    if keyword == "enumNames":
        names, choices = get_list(field, keyword), get_list(field, "enum")
        return bool(names) and len(names) == len(choices) and all(isinstance(name, str) for name in names)
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _titled_options(options: list[Any]) -> list[Schema]:
    """Return the choices with titles, or an empty list if the options are not choices."""
    if not all(isinstance(option, dict) and isinstance(option.get("const"), str) for option in options):
        return []
    return [{"const": option["const"], "title": str(option.get("title", option["const"]))} for option in options]


def _to_choice_schema(items: Schema) -> Schema | None:
    """Return the item schema of a multiple-choice field, or None if its items are not choices."""
    if choices := _titled_options(get_alternatives(items)):
        return {"anyOf": choices}
    values = get_enum_values(items)
    return {"type": "string", "enum": values} if values and all(isinstance(value, str) for value in values) else None


def _is_valid_choice(field: Schema) -> bool:
    """Return whether the choices of a field are valid."""
    # An empty list of choices would be a field that no answer can satisfy.
    if field["type"] == "string" and "enum" in field:
        choices = get_list(field, "enum")
        return bool(choices) and all(isinstance(choice, str) for choice in choices)
    return "oneOf" not in field or bool(_titled_options(get_list(field, "oneOf")))


def find_invalid_field(form: Schema, content: dict[str, Any]) -> str | None:
    """Return the name of the first field that does not match the form, or None."""
    fields = get_properties(form)
    for name in form.get("required", ()):
        if name not in content:
            return str(name)
    fit = (
        (name, _matches_field(fields[name], value) if name in fields else _is_flat_value(value))
        for name, value in content.items()
    )
    return next((name for name, fits in fit if not fits), None)


def _is_flat_value(value: Any) -> bool:
    """Return whether an additional value in a response is acceptable: it must be flat, too."""
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str | int | float)


def _matches_field(field: Schema, value: Any) -> bool:
    kind, expected = json_type(value), field["type"]
    if kind == "number" and value.is_integer():
        kind = "integer"  # JSON Schema treats 5.0 as an integer
    if kind != expected and not (expected == "number" and kind == "integer"):
        return False
    if kind == "array":
        minimum, maximum = field.get("minItems", 0), field.get("maxItems", len(value))
        return minimum <= len(value) <= maximum and all(item in _values(field["items"]) for item in value)
    if (values := _values(field)) and value not in values:
        return False
    if kind == "string":
        minimum, maximum = field.get("minLength", 0), field.get("maxLength", len(value))
        return minimum <= len(value) <= maximum and _is_of_format(value, field.get("format", ""))
    return kind == "boolean" or bool(field.get("minimum", value) <= value <= field.get("maximum", value))


def _values(field: Schema) -> list[Any]:
    return [item["const"] for item in field.get("oneOf") or field.get("anyOf") or ()] or field.get("enum", [])


def _is_of_format(text: str, format: str) -> bool:
    if format in _TEXTS:
        return re.fullmatch(_TEXTS[format], text) is not None
    try:
        return format not in _TYPES or msgspec.convert(text, _TYPES[format]) is not None
    except ValueError:
        return False
