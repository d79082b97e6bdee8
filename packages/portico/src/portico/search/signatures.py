"""A tool in one line: `create_issue(repo: str, title: str, labels: list[str] = …) -> {number: int, url: str}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portico.jsonschema import Schema
from portico.jsonschema.codegen import Member, Model, ModelWriter, TypeWriter, literal
from portico.jsonschema.reader import definitions_of, properties_of, resolved
from portico.protocol.tools import WRAPPED

# How much of a nested object is written, and of a list of values.
DEEPEST = 2
MOST_MEMBERS = 12
MOST_VALUES = 12
LONGEST_DEFAULT = 40
LONGEST_RESULT = 200
LONGEST = 2000


def signature(name: str, input_schema: Schema, output_schema: Schema | None = None) -> str:
    """What a tool takes and gives, in the types of Python."""
    models: list[Model] = []
    arguments = ModelWriter(input_schema, "", set(), models).arguments()
    writer = LineWriter({one.name: one for one in models})
    defaults = _defaults(input_schema)
    members = sorted(arguments.members, key=lambda member: not member.required)
    taken = ", ".join(_parameter(one, writer, defaults) for one in members)
    more = ", **more" if arguments.is_open and "additionalProperties" in input_schema else ""
    said = printable(f"{name}({taken}{more if taken else more[2:]})")
    return f"{said if len(said) <= LONGEST else f'{said[:LONGEST]}…)'}{_result(output_schema)}"


def printable(text: str) -> str:
    """On one line, whatever the names in it: one that breaks it could pass for another tool."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _result(schema: Schema | None) -> str:
    if schema is None:
        return ""
    models: list[Model] = []
    found = ModelWriter(_unwrapped(schema), "", set(), models).result()
    said = printable(LineWriter({one.name: one for one in models}).write(found))
    return f" -> {said if len(said) <= LONGEST_RESULT else f'{said[:LONGEST_RESULT]}…'}"


def _unwrapped(output: Schema) -> Schema:
    inner = properties_of(output).get("result")
    if not output.get(WRAPPED) or not isinstance(inner, dict):
        return output
    return {**inner, **definitions_of(output)}


def _defaults(schema: Schema) -> dict[str, Any]:
    known = ((name, resolved(one, schema)) for name, one in properties_of(schema).items())
    return {name: one["default"] for name, one in known if "default" in one}


def _parameter(member: Member, writer: LineWriter, defaults: Mapping[str, Any]) -> str:
    said = f"{member.name}: {writer.write(member.type)}"
    if member.required:
        return said
    default = literal(defaults[member.name]) if _is_short(defaults.get(member.name, [])) else "…"
    return f"{said} = {default if len(default) <= LONGEST_DEFAULT else '…'}"


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


class LineWriter(TypeWriter):
    """Types on one line: objects as their members, `{name: str, age?: int}`, and values without more ado."""

    basic = {**TypeWriter.basic, "object": "dict"}

    def __init__(self, models: Mapping[str, Model], depth: int = DEEPEST) -> None:
        super().__init__()
        self._models, self._depth = models, depth

    def literals(self, values: tuple[Any, ...]) -> str:
        return " | ".join(_first([literal(value) for value in values[: MOST_VALUES + 1]], MOST_VALUES))

    def model(self, name: str) -> str:
        if self._depth <= 0:
            return "dict"
        inner, members = LineWriter(self._models, self._depth - 1), self._models[name].members[: MOST_MEMBERS + 1]
        shown = [f"{one.name}{'' if one.required else '?'}: {inner.write(one.type)}" for one in members]
        return f"{{{', '.join(_first(shown, MOST_MEMBERS))}}}"


def _first(parts: list[str], most: int) -> list[str]:
    return parts if len(parts) <= most else [*parts[:most], "…"]
