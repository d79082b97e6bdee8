"""Forms: the few kinds of fields that every client can draw (client/elicitation, Requested Schema)."""

from __future__ import annotations

from typing import Any

import msgspec

from portico.schema import Schema, SchemaError
from portico.schema.describe import SIMPLE
from portico.schema.reader import (
    cleaned,
    kind_of,
    list_of,
    options_of,
    properties_of,
    required_of,
    resolved,
    types_of,
    values_of,
)

# What may be said of a field of each kind.
_WORDS = ("type", "title", "description", "default")
_FIELDS = {
    "string": (*_WORDS, "enum", "enumNames", "oneOf", "format", "minLength", "maxLength"),
    "number": (*_WORDS, "enum", "minimum", "maximum"),
    "integer": (*_WORDS, "enum", "minimum", "maximum"),
    "boolean": _WORDS,
    "array": (*_WORDS, "items", "minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")
_TYPES = {body["format"]: tp for tp, body in SIMPLE.items() if body.get("format") in _FORMATS}


def as_form(schema: Schema, of: str) -> Schema:
    """The schema of an object as that of a form, which has flat fields. Raises SchemaError where it has others; `of` is
    the type that it was made from."""
    fields = properties_of(schema)
    if types_of(schema) not in ([], ["object"]) or (schema.get("additionalProperties") and not fields):
        raise SchemaError(f"a form has fields with names; {of} has none")
    required = {"required": names} if (names := required_of(schema)) else {}
    return {
        "type": "object",
        "properties": {name: _field(name, resolved(one, schema), of) for name, one in fields.items()},
        **required,
    }


def _field(name: str, field: Schema, of: str) -> Schema:
    """One field, with the keywords a form knows and no others."""
    field = cleaned(field, keep=("anyOf", "oneOf"))
    if "const" in field:
        field = {**field, "enum": [field["const"]]}
    # An optional field is one that is not required; a form has no null.
    options = [one for one in options_of(field) if not isinstance(one, dict) or types_of(one) != ["null"]]
    if "anyOf" in field and len(options) == 1:
        field = {**field, **cleaned(options[0])}
    elif choices := _titled(options):
        field = {"type": "string", **field, "oneOf": choices}
    kinds = [kind for kind in types_of(field) if kind != "null"]
    if not kinds and values_of(field) and all(isinstance(value, str) for value in values_of(field)):
        kinds = ["string"]
    found = dict(field, type=kinds[0]) if len(kinds) == 1 else {}
    if found.get("type") == "array":
        found = dict(found, items=_choice(found.get("items")))
    if found.get("type") not in _FIELDS or found.get("items", "") is None or not _is_choosable(found):
        raise SchemaError(f"a form has flat fields of text, numbers, yes/no and choices; {name!r} of {of} is neither")
    if found.get("format") not in _FORMATS:
        found.pop("format", None)
    return {keyword: found[keyword] for keyword in _FIELDS[found["type"]] if found.get(keyword) is not None}


def _titled(options: list[Any]) -> list[Schema]:
    """Choices that have titles; none, if the options are something else."""
    if not all(isinstance(one, dict) and isinstance(one.get("const"), str) for one in options):
        return []
    return [{"const": one["const"], "title": str(one.get("title", one["const"]))} for one in options]


def _choice(items: Any) -> Schema | None:
    """What a field with several answers chooses from."""
    if not isinstance(items, dict):
        return None
    if choices := _titled(options_of(items)):
        return {"anyOf": choices}
    values = values_of(items)
    return {"type": "string", "enum": values} if values and all(isinstance(one, str) for one in values) else None


def _is_choosable(field: Schema) -> bool:
    """Whether what looks like choices is."""
    if field["type"] == "string" and "enum" in field:
        return all(isinstance(one, str) for one in list_of(field, "enum"))
    return "oneOf" not in field or bool(_titled(list_of(field, "oneOf")))


def misfit(form: Schema, content: dict[str, Any]) -> str | None:
    """The name of the first field that was not filled in as the form says; None if all were."""
    fields = properties_of(form)
    for name in form.get("required", ()):
        if name not in content:
            return str(name)
    return next((name for name, one in content.items() if name in fields and not _fits(fields[name], one)), None)


def _fits(field: Schema, value: Any) -> bool:
    kind, wanted = kind_of(value), field["type"]
    if kind != wanted and not (wanted == "number" and kind == "integer"):
        return False
    if kind == "array":
        least, most = field.get("minItems", 0), field.get("maxItems", len(value))
        return least <= len(value) <= most and all(one in _values(field["items"]) for one in value)
    if (values := _values(field)) and value not in values:
        return False
    if kind == "string":
        least, most = field.get("minLength", 0), field.get("maxLength", len(value))
        return least <= len(value) <= most and _is_of_format(value, field.get("format", ""))
    return kind == "boolean" or bool(field.get("minimum", value) <= value <= field.get("maximum", value))


def _values(field: Schema) -> list[Any]:
    return [one["const"] for one in field.get("oneOf") or field.get("anyOf") or ()] or field.get("enum", [])


def _is_of_format(text: str, format: str) -> bool:
    try:
        return format not in _TYPES or msgspec.convert(text, _TYPES[format]) is not None
    except ValueError:
        return False
