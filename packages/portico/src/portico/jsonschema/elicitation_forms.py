"""Forms: the few kinds of fields that every client can draw (client/elicitation, Requested Schema)."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from portico.jsonschema import Schema, SchemaError
from portico.jsonschema.generation import SIMPLE
from portico.jsonschema.reader import (
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
# No more than what every such text has: whether an address is in use cannot be told from it.
_TEXTS = {"email": r"[^@\s]+@[^@\s]+", "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S+"}
# What would say more of the fields than the fields do.
_COMPOSING = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties")


def as_form(schema: Schema, of: str) -> Schema:
    """The schema of an object as that of a form, which has flat fields. Raises SchemaError where it has others; `of` is
    the type that it was made from."""
    fields = properties_of(schema)
    if types_of(schema) not in ([], ["object"]) or (schema.get("additionalProperties") and not fields):
        raise SchemaError(f"a form has fields with names; {of} has none")
    if composing := [word for word in _COMPOSING if word in schema]:
        raise SchemaError(f"a form has its fields in 'properties'; {of} has {composing[0]!r} beside them")
    if unknown := [name for name in required_of(schema) if name not in fields]:
        raise SchemaError(f"{of} requires {unknown[0]!r}, which is no field of it")
    required = {"required": names} if (names := required_of(schema)) else {}
    return {
        "type": "object",
        "properties": {name: _field(name, one, schema, of) for name, one in fields.items()},
        **required,
    }


def _field(name: str, schema: Any, root: Schema, of: str) -> Schema:
    """One field, with the keywords a form knows and no others."""
    field = cleaned(resolved(schema, root), keep=("anyOf", "oneOf"))
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
        found = dict(found, items=_choice(resolved(found.get("items"), root)))
    if found.get("type") not in _FIELDS or found.get("items", "") is None or not _is_choosable(found):
        raise SchemaError(f"a form has flat fields of text, numbers, yes/no and choices; {name!r} of {of} is neither")
    drawn = {keyword: found[keyword] for keyword in _FIELDS[found["type"]] if _can_be_drawn(keyword, found)}
    if "default" in drawn and not _fits(drawn, drawn["default"]):
        del drawn["default"]
    return drawn


def _can_be_drawn(keyword: str, field: Schema) -> bool:
    """Whether a keyword of a field says something that a client can go by."""
    value = field.get(keyword)
    if keyword == "format":
        return value in _FORMATS
    if keyword == "enumNames":
        names, choices = list_of(field, keyword), list_of(field, "enum")
        return bool(names) and len(names) == len(choices) and all(isinstance(one, str) for one in names)
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _titled(options: list[Any]) -> list[Schema]:
    """Choices that have titles; none, if the options are something else."""
    if not all(isinstance(one, dict) and isinstance(one.get("const"), str) for one in options):
        return []
    return [{"const": one["const"], "title": str(one.get("title", one["const"]))} for one in options]


def _choice(items: Schema) -> Schema | None:
    """What a field with several answers chooses from."""
    if choices := _titled(options_of(items)):
        return {"anyOf": choices}
    values = values_of(items)
    return {"type": "string", "enum": values} if values and all(isinstance(one, str) for one in values) else None


def _is_choosable(field: Schema) -> bool:
    """Whether what looks like choices is."""
    if field["type"] == "string" and "enum" in field:
        choices = list_of(field, "enum")
        return bool(choices) and all(isinstance(one, str) for one in choices)
    return "oneOf" not in field or bool(_titled(list_of(field, "oneOf")))


def misfit(form: Schema, content: dict[str, Any]) -> str | None:
    """The name of the first field that was not filled in as the form says; None if all were."""
    fields = properties_of(form)
    for name in form.get("required", ()):
        if name not in content:
            return str(name)
    fit = ((name, _fits(fields[name], one) if name in fields else _can_be_said(one)) for name, one in content.items())
    return next((name for name, fits in fit if not fits), None)


def _can_be_said(value: Any) -> bool:
    """Whether an answer may have this beside what was asked for: it is flat, too."""
    if isinstance(value, list):
        return all(isinstance(one, str) for one in value)
    return isinstance(value, str | int | float)


def _fits(field: Schema, value: Any) -> bool:
    kind, wanted = kind_of(value), field["type"]
    if kind == "number" and value.is_integer():
        kind = "integer"  # to JSON Schema, which does not look at how a number is written
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
    if format in _TEXTS:
        return re.fullmatch(_TEXTS[format], text) is not None
    try:
        return format not in _TYPES or msgspec.convert(text, _TYPES[format]) is not None
    except ValueError:
        return False
