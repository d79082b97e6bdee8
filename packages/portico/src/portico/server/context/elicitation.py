"""The form that a question needs: flat fields of simple types, and back from the answers to a value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from portico.jsonschema import SchemaError
from portico.jsonschema.dialects import as_property
from portico.jsonschema.elicitation_forms import as_form
from portico.jsonschema.generation import schema
from portico.jsonschema.reader import types_of
from portico.protocol.errors import ToolError, UsageError


class Form(Struct):
    schema: dict[str, Any]
    read: Callable[[dict[str, Any]], Any]


def form(response_type: Any) -> Form:
    """The form for a type. A single value becomes a form with one field, called `value`."""
    if response_type is None or response_type is NoneType:
        return Form({"type": "object", "properties": {}}, lambda content: None)
    if isinstance(response_type, list | tuple):
        response_type = Literal[tuple(response_type)]
    try:
        if isinstance(response_type, dict):
            return Form(as_form(response_type, "the schema"), lambda content: content)
        described = schema(response_type)
        if types_of(described) == ["object"]:
            return Form(as_form(described, repr(response_type)), partial(_read, response_type))
        flat = as_form(as_property(described, "value"), repr(response_type))
    except SchemaError as error:
        raise UsageError(str(error)) from error
    return Form(flat, partial(_read_value, response_type))


def _read(response_type: Any, content: dict[str, Any]) -> Any:
    validate = getattr(response_type, "model_validate", None)
    try:
        return validate(content) if validate is not None else msgspec.convert(content, response_type)
    except ValueError:
        raise ToolError("The answer to the question did not have the fields that were asked for.") from None


def _read_value(response_type: Any, content: dict[str, Any]) -> Any:
    try:
        return msgspec.convert(content.get("value"), response_type)
    except ValueError:
        raise ToolError("The answer to the question was not of the kind that was asked for.") from None
