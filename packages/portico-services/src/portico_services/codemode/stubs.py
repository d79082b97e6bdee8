"""Tools as Python would write them: functions with types, from the schemas of what goes in and comes out."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence

from portico.jsonschema import Schema, codegen, definitions_of, properties_of
from portico_services.codemode.tool_catalog import ScriptTool

LONGEST_STUBS = 32_000
LONGEST_WORDS = 400
LONGEST_COMMENT = 160

_OPEN = codegen.Model("", "", [], True)


def written(tools: Sequence[ScriptTool]) -> str:
    """The stubs of these tools, each with where it is imported from; at most so much."""
    parts: list[str] = []
    taken: set[str] = set(codegen.PYTHON_TYPES.values())
    left = LONGEST_STUBS
    for tool in tools:
        try:
            said = _stub(tool, taken)
        except (RecursionError, TypeError, ValueError, AttributeError):
            # What its server calls a schema is none; it may still be called.
            said = f"# from tools import {tool.owner or tool.python_name}\n{_function(tool, _OPEN, 'Any')}"
        left -= len(said)
        if left < 0:
            parts.append("# cut off: ask for fewer tools at once")
            break
        parts.append(said)
    return "\n\n".join(parts)


def _stub(tool: ScriptTool, taken: set[str]) -> str:
    models: list[codegen.Model] = []
    stem = codegen.unique(codegen.pascal(tool.python_name), taken)
    arguments = codegen.ModelWriter(tool.inputSchema or {"type": "object"}, stem, taken, models).arguments()
    result = "Any"
    if tool.outputSchema is not None:
        result = codegen.annotation(codegen.ModelWriter(_value(tool.outputSchema), stem, taken, models).result())
    types = "\n\n".join(_model(one) for one in models if one is not arguments)
    head = f"# from tools import {tool.owner or tool.python_name}"
    return "\n".join(one for one in (head, types, _function(tool, arguments, result)) if one)


def _value(output: Schema) -> Schema:
    """The schema of the value itself, out of the object that older revisions put around it."""
    inner = properties_of(output).get("result")
    wrapped = output.get("x-fastmcp-wrap-result") and isinstance(inner, dict)
    return {**inner, **definitions_of(output)} if wrapped and isinstance(inner, dict) else output


def _function(tool: ScriptTool, arguments: codegen.Model, result: str) -> str:
    members = sorted(arguments.members, key=lambda member: not member.required)
    plain = all(_is_name(one.name) for one in members)
    given = ", ".join(_parameter(one) for one in members) if plain and arguments is not _OPEN else "**arguments: Any"
    lines = [f"async def {tool.path}({given}) -> {result}:", f'    """{_docstring(tool)}"""']
    lines += [f"    # {name}: {said}" for name, said in _comments(members, plain)]
    return "\n".join([*lines, "    ..."])


def _docstring(tool: ScriptTool) -> str:
    said = _short(tool.description or tool.name, LONGEST_WORDS)
    # One at the end would be taken for the first of those that end the text.
    said = f"{said[:-1]}'" if said.endswith('"') else said
    return said if tool.reads else f"{said} [changes something]"


def _parameter(member: codegen.Member) -> str:
    said = f"{member.name}: {codegen.annotation(member.type)}"
    return said if member.required else f"{said} = ..."


def _comments(members: Iterable[codegen.Member], plain: bool) -> Iterable[tuple[str, str]]:
    for one in members:
        words = "; ".join(part for part in (one.description, *one.notes) if part)
        if not plain:
            left_out = "" if one.required else ", may be left out"
            words = f"{codegen.annotation(one.type)}{left_out}{'; ' if words else ''}{words}"
        if words:
            yield _short(one.name, LONGEST_COMMENT), _short(words, LONGEST_COMMENT)


def _model(model: codegen.Model) -> str:
    if not all(_is_name(one.name) for one in model.members):
        members = ", ".join(f"{codegen.text(one.name)}: {codegen.text(_member(one))}" for one in model.members)
        return f'{model.name} = TypedDict("{model.name}", {{{members}}})'
    lines = [f"class {model.name}(TypedDict):", *(f"    {one.name}: {_member(one)}" for one in model.members)]
    return "\n".join(lines if model.members else [*lines, "    pass"])


def _member(member: codegen.Member) -> str:
    return codegen.annotation(member.type) if member.required else f"NotRequired[{codegen.annotation(member.type)}]"


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _short(text: str, most: int) -> str:
    """On one line, and nothing in it that would end a text or a comment."""
    said = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * most]).split())
    said = said.replace("\\", "/").replace('"""', "'''")
    return said if len(said) <= most else f"{said[: most - 1]}…"
