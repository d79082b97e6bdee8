"""A tool in one line: `create_issue(repo: str, title: str, labels: list[str] = …) -> {number: int, url: str}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from portico.schema import Schema
from portico.schema.reader import definitions_of, properties_of, resolved
from portico.schema.shapes import (
    Array,
    Basic,
    Literals,
    Member,
    Model,
    ModelWriter,
    Reference,
    Tuple,
    Type,
    literal,
)
from portico.schema.shapes import Mapping as MappingType
from portico.wire.tools import WRAPPED

# How much of a nested object is written, and of a list of values.
DEEPEST = 2
MOST_MEMBERS = 12
MOST_VALUES = 12
LONGEST_DEFAULT = 40
LONGEST_RESULT = 200
LONGEST = 2000

_BASIC = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict",
    "any": "Any",
}


def signature(name: str, input_schema: Schema, output_schema: Schema | None = None) -> str:
    """What a tool takes and gives, in the types of Python."""
    models: list[Model] = []
    arguments = ModelWriter(input_schema, "", set(), models).arguments()
    by_name = {one.name: one for one in models}
    defaults = _defaults(input_schema)
    members = sorted(arguments.members, key=lambda member: not member.required)
    taken = ", ".join(_parameter(one, by_name, defaults) for one in members)
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
    said = written(found, {one.name: one for one in models})
    said = printable(said)
    return f" -> {said if len(said) <= LONGEST_RESULT else f'{said[:LONGEST_RESULT]}…'}"


def _unwrapped(output: Schema) -> Schema:
    inner = properties_of(output).get("result")
    if not output.get(WRAPPED) or not isinstance(inner, dict):
        return output
    return {**inner, **definitions_of(output)}


def _defaults(schema: Schema) -> dict[str, Any]:
    known = ((name, resolved(one, schema)) for name, one in properties_of(schema).items())
    return {name: one["default"] for name, one in known if "default" in one}


def _parameter(member: Member, models: Mapping[str, Model], defaults: Mapping[str, Any]) -> str:
    said = f"{member.name}: {written(member.type, models)}"
    if member.required:
        return said
    default = literal(defaults[member.name]) if _is_short(defaults.get(member.name, [])) else "…"
    return f"{said} = {default if len(default) <= LONGEST_DEFAULT else '…'}"


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def written(kind: Type, models: Mapping[str, Model], depth: int = DEEPEST) -> str:
    """A type as Python has it; objects as their members: `{name: str, age?: int}`."""
    if isinstance(kind, Basic):
        return _BASIC[kind.kind]
    if isinstance(kind, Literals):
        values = [literal(value) for value in kind.values[:MOST_VALUES]]
        return " | ".join([*values, "…"] if len(kind.values) > MOST_VALUES else values)
    if isinstance(kind, Array):
        return f"list[{written(kind.item, models, depth)}]"
    if isinstance(kind, Tuple):
        return f"list[{_either(kind.items, models, depth)}]"
    if isinstance(kind, MappingType):
        return f"dict[str, {written(kind.value, models, depth)}]"
    return (
        _object(models[kind.name], models, depth)
        if isinstance(kind, Reference)
        else _either(kind.options, models, depth)
    )


def _either(kinds: Iterable[Type], models: Mapping[str, Model], depth: int) -> str:
    found = list(dict.fromkeys(written(one, models, depth) for one in kinds))
    return "Any" if "Any" in found else " | ".join(found)


def _object(model: Model, models: Mapping[str, Model], depth: int) -> str:
    if depth <= 0:
        return "dict"
    shown = model.members[:MOST_MEMBERS]
    parts = [f"{one.name}{'' if one.required else '?'}: {written(one.type, models, depth - 1)}" for one in shown]
    return f"{{{', '.join([*parts, '…'] if len(model.members) > MOST_MEMBERS else parts)}}}"
