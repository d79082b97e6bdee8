"""Elicitation forms: flat fields of simple types, and conversion of responses to values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.jsonschema import SchemaError
from portico.jsonschema.dialects import wrap_as_property
from portico.jsonschema.elicitation_forms import to_form_schema
from portico.jsonschema.generation import schema_for_type
from portico.jsonschema.reader import get_types
from portico.protocol.errors import ToolError, UsageError


class ElicitationForm(Struct):
    """A form schema, and the function that converts a response to a value."""

    schema: dict[str, Any]
    parse: Callable[[dict[str, Any]], Any]


def build_form(response_type: Any) -> ElicitationForm:
    """Return the form for a type. A single value becomes a form with one field, `value`. Raises UsageError."""
    if response_type is None or response_type is NoneType:
        return ElicitationForm({"type": "object", "properties": {}}, lambda content: None)
    if isinstance(response_type, list | tuple):
        response_type = Literal[tuple(response_type)]
    try:
        if isinstance(response_type, dict):
            return ElicitationForm(to_form_schema(response_type, "the schema"), lambda content: content)
        # Elicitation allows flat objects with primitive properties only (2026-07-28, Elicitation,
        # Requested Schema). `to_form_schema` raises for everything else while the server is tested,
        # not when a user is asked.
        described = schema_for_type(response_type)
        if get_types(described) == ["object"]:
            return ElicitationForm(to_form_schema(described, repr(response_type)), partial(_read, response_type))
        flat = to_form_schema(wrap_as_property(described, "value"), repr(response_type))
    except SchemaError as error:
        raise UsageError(str(error)) from error
    return ElicitationForm(flat, partial(_read_value, response_type))


def _read(response_type: Any, content: dict[str, Any]) -> Any:
    validate = getattr(response_type, "model_validate", None)
    try:
        return validate(content) if validate is not None else msgspec.convert(content, response_type)
    except ValueError:
        # Without the value: it may be confidential, and the model reads this text.
        raise ToolError("The elicitation response does not match the requested fields.") from None


def _read_value(response_type: Any, content: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(content.get("value"), response_type)
    except ValueError:
        raise ToolError("The elicitation response does not match the requested type.") from None
