"""Tool signatures on one line: `create_issue(repo: str, labels: list[str] = …) -> {number: int, url: str}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portico.jsonschema import Schema
from portico.jsonschema.codegen import ModelBuilder, ModelField, ObjectModel, PythonTypeFormatter, python_literal
from portico.jsonschema.reader import get_definitions, get_properties, resolve_references
from portico.protocol.tools import WRAP_RESULT_KEY
from portico.text import one_line

# Limits for nested objects and lists of values.
# A signature has to stay readable for a model on one line; `detail="schema"` returns the rest.
MAX_DEPTH = 2
MAX_MEMBERS = 12
MAX_ENUM_VALUES = 12
MAX_DEFAULT_CHARS = 40
MAX_RESULT_CHARS = 200
MAX_SIGNATURE_CHARS = 2000


def format_signature(name: str, input_schema: Schema, output_schema: Schema | None = None) -> str:
    """Format the parameters and the result of a tool with Python types."""
    models: list[ObjectModel] = []
    arguments = ModelBuilder(input_schema, "", set(), models).build_arguments()
    writer = InlineTypeWriter({item.name: item for item in models})
    defaults = _defaults(input_schema)
    # Python requires parameters without a default first.
    members = sorted(arguments.members, key=lambda member: not member.required)
    parameters = ", ".join(_parameter(item, writer, defaults) for item in members)
    more = ", **more" if arguments.is_open and "additionalProperties" in input_schema else ""
    signature = one_line(f"{name}({parameters}{more if parameters else more[2:]})")
    if len(signature) > MAX_SIGNATURE_CHARS:
        signature = f"{signature[:MAX_SIGNATURE_CHARS]}…)"
    return f"{signature}{_result(output_schema)}"


def _result(schema: Schema | None) -> str:
    if schema is None:
        return ""
    models: list[ObjectModel] = []
    result = ModelBuilder(_unwrap_result(schema), "", set(), models).build_result()
    formatted = one_line(InlineTypeWriter({model.name: model for model in models}).format(result))
    return f" -> {formatted if len(formatted) <= MAX_RESULT_CHARS else f'{formatted[:MAX_RESULT_CHARS]}…'}"


def _unwrap_result(output: Schema) -> Schema:
    inner = get_properties(output).get("result")
    if not output.get(WRAP_RESULT_KEY) or not isinstance(inner, dict):
        return output
    return {**inner, **get_definitions(output)}


def _defaults(schema: Schema) -> dict[str, Any]:
    resolved = ((name, resolve_references(subschema, schema)) for name, subschema in get_properties(schema).items())
    return {name: subschema["default"] for name, subschema in resolved if "default" in subschema}


def _parameter(member: ModelField, writer: InlineTypeWriter, defaults: Mapping[str, Any]) -> str:
    text = f"{member.name}: {writer.format(member.type)}"
    if member.required:
        return text
    default = python_literal(defaults[member.name]) if _is_short(defaults.get(member.name, [])) else "…"
    return f"{text} = {default if len(default) <= MAX_DEFAULT_CHARS else '…'}"


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


class InlineTypeWriter(PythonTypeFormatter):
    """Formats types on one line: objects as `{name: str, age?: int}`, and literals without `Literal`."""

    basic = {**PythonTypeFormatter.basic, "object": "dict"}

    def __init__(self, models: Mapping[str, ObjectModel], depth: int = MAX_DEPTH) -> None:
        super().__init__()
        self._models, self._depth = models, depth

    def literals(self, values: tuple[Any, ...]) -> str:
        return " | ".join(_first([python_literal(value) for value in values[: MAX_ENUM_VALUES + 1]], MAX_ENUM_VALUES))

    def model(self, name: str) -> str:
        if self._depth <= 0:
            return "dict"
        inner, members = InlineTypeWriter(self._models, self._depth - 1), self._models[name].members[: MAX_MEMBERS + 1]
        fields = [f"{member.name}{'' if member.required else '?'}: {inner.format(member.type)}" for member in members]
        return f"{{{', '.join(_first(fields, MAX_MEMBERS))}}}"


def _first(parts: list[str], limit: int) -> list[str]:
    return parts if len(parts) <= limit else [*parts[:limit], "…"]
