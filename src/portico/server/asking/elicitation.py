"""The form that a question needs: flat fields of simple types, and back from the answers to a value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.schema import SchemaError
from portico.schema.describe import schema
from portico.schema.dialects import as_property
from portico.schema.reader import options_of, properties_of, resolved, types_of, values_of
from portico.wire.errors import ToolError, UsageError

# client/elicitation, Requested Schema: what a form's field may be.
_SIMPLE = ("string", "number", "integer", "boolean")
_KEPT = (
    "type",
    "title",
    "description",
    "default",
    "enum",
    "enumNames",
    "oneOf",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "items",
    "minItems",
    "maxItems",
)


class Form(Struct):
    schema: dict[str, Any]
    read: Callable[[dict[str, Any]], Any]


def form(response_type: Any) -> Form:
    """The form for a type. A single value becomes a form with one field, called `value`."""
    if response_type is None or response_type is NoneType:
        return Form({"type": "object", "properties": {}}, lambda content: None)
    if isinstance(response_type, dict):
        return Form(response_type, lambda content: content)
    if isinstance(response_type, list | tuple):
        response_type = Literal[tuple(response_type)]
    try:
        described = schema(response_type)
    except SchemaError as error:
        raise UsageError(str(error)) from error
    if described.get("type") == "object":
        return Form(_flat(described, response_type), partial(_read, response_type))
    return Form(_flat(as_property(described, "value"), response_type), partial(_read_value, response_type))


def _flat(described: dict[str, Any], response_type: Any) -> dict[str, Any]:
    if described.get("additionalProperties"):
        raise UsageError(f"a form has fields with names; {response_type!r} has none")
    fields = {
        name: _field(name, resolved(one, described), response_type) for name, one in properties_of(described).items()
    }
    required = {"required": described["required"]} if described.get("required") else {}
    return {"type": "object", "properties": fields, **required}


def _field(name: str, field: dict[str, Any], response_type: Any) -> dict[str, Any]:
    """One field, with the keywords a form knows and no others."""
    if "const" in field:
        field = {**field, "enum": [field["const"]]}
    # An optional field is one that is not required; a form has no null.
    options = [one for one in options_of(field) if types_of(one) != ["null"]]
    if "anyOf" in field and len(options) == 1:
        field = {**field, **options[0]}
    kinds = [kind for kind in types_of(field) if kind != "null"]
    if len(kinds) == 1:
        field = {**field, "type": kinds[0]}
    elif not kinds and values_of(field) and all(isinstance(value, str) for value in values_of(field)):
        field = {**field, "type": "string"}
    if field.get("type") not in _SIMPLE and not _is_choice(field):
        raise UsageError(
            f"a form has flat fields of text, numbers, yes/no and choices; {name!r} of {response_type!r} is neither"
        )
    return {keyword: field[keyword] for keyword in _KEPT if keyword in field and field[keyword] is not None}


def _is_choice(field: dict[str, Any]) -> bool:
    items = field.get("items")
    return field.get("type") == "array" and isinstance(items, dict) and ("enum" in items or "anyOf" in items)


def _read(response_type: Any, content: dict[str, Any]) -> Any:
    validate = getattr(response_type, "model_validate", None)
    try:
        return validate(content) if validate is not None else msgspec.convert(content, response_type, strict=False)
    except ValueError:
        raise ToolError("The answer to the question did not have the fields that were asked for.") from None


def _read_value(response_type: Any, content: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(content.get("value"), response_type, strict=False)
    except ValueError:
        raise ToolError("The answer to the question was not of the kind that was asked for.") from None
