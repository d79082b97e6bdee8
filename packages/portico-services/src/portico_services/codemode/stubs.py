"""Python stubs of tools: typed function signatures generated from input and output schemas."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence

from portico.jsonschema import Schema, codegen, get_definitions, get_properties
from portico.text import one_line
from portico_services.codemode.tool_catalog import ScriptTool

MAX_STUBS_CHARS = 32_000
MAX_DOCSTRING_CHARS = 400
MAX_COMMENT_CHARS = 160

_OPEN = codegen.ObjectModel("", "", [], True)


def render_stubs(tools: Sequence[ScriptTool]) -> str:
    """Return the stubs of these tools, each with its import, up to MAX_STUBS_CHARS."""
    parts: list[str] = []
    used_names: set[str] = set(codegen.PYTHON_TYPES.values())
    left = MAX_STUBS_CHARS
    for tool in tools:
        try:
            stub = _stub(tool, used_names)
        except (RecursionError, TypeError, ValueError, AttributeError):
            # The schema is invalid, but the tool can still be called.
            stub = f"# from tools import {tool.owner or tool.python_name}\n{_function(tool, _OPEN, 'Any')}"
        left -= len(stub)
        if left < 0:
            parts.append("# truncated: request fewer tools at once")
            break
        parts.append(stub)
    return "\n\n".join(parts)


def _stub(tool: ScriptTool, used_names: set[str]) -> str:
    models: list[codegen.ObjectModel] = []
    stem = codegen.unique_name(codegen.pascal_case(tool.python_name), used_names)
    arguments = codegen.ModelBuilder(tool.inputSchema or {"type": "object"}, stem, used_names, models).build_arguments()
    result = "Any"
    if tool.outputSchema is not None:
        result = codegen.format_annotation(
            codegen.ModelBuilder(_value(tool.outputSchema), stem, used_names, models).build_result()
        )
    types = "\n\n".join(_model(model) for model in models if model is not arguments)
    head = f"# from tools import {tool.owner or tool.python_name}"
    return "\n".join(model for model in (head, types, _function(tool, arguments, result)) if model)


def _value(output: Schema) -> Schema:
    """Return the schema of the value itself, without the wrapper object of older protocol versions."""
    inner = get_properties(output).get("result")
    wrapped = output.get("x-fastmcp-wrap-result") and isinstance(inner, dict)
    return {**inner, **get_definitions(output)} if wrapped and isinstance(inner, dict) else output


def _function(tool: ScriptTool, arguments: codegen.ObjectModel, result: str) -> str:
    # Python requires parameters without default first.
    members = sorted(arguments.members, key=lambda member: not member.required)
    # One name that is not an identifier makes the whole signature invalid, so the stub falls back to **arguments.
    plain = all(_is_name(item.name) for item in members)
    parameters = (
        ", ".join(_parameter(item) for item in members) if plain and arguments is not _OPEN else "**arguments: Any"
    )
    lines = [f"async def {tool.path}({parameters}) -> {result}:", f'    """{_docstring(tool)}"""']
    lines += [f"    # {name}: {text}" for name, text in _comments(members, plain)]
    return "\n".join([*lines, "    ..."])


def _docstring(tool: ScriptTool) -> str:
    text = _one_line(tool.description or tool.name, MAX_DOCSTRING_CHARS)
    # A quote at the end would merge with the closing quotes.
    text = f"{text[:-1]}'" if text.endswith('"') else text
    return text if tool.is_read_only else f"{text} [may change data]"


def _parameter(member: codegen.ModelField) -> str:
    parameter = f"{member.name}: {codegen.format_annotation(member.type)}"
    return parameter if member.required else f"{parameter} = ..."


def _comments(members: Iterable[codegen.ModelField], plain: bool) -> Iterable[tuple[str, str]]:
    for member in members:
        words = "; ".join(part for part in (member.description, *member.notes) if part)
        if not plain:
            left_out = "" if member.required else ", optional"
            words = f"{codegen.format_annotation(member.type)}{left_out}{'; ' if words else ''}{words}"
        if words:
            yield _one_line(member.name, MAX_COMMENT_CHARS), _one_line(words, MAX_COMMENT_CHARS)


def _model(model: codegen.ObjectModel) -> str:
    if not all(_is_name(member.name) for member in model.members):
        members = ", ".join(
            f"{codegen.python_string(member.name)}: {codegen.python_string(_member(member))}"
            for member in model.members
        )
        return f'{model.name} = TypedDict("{model.name}", {{{members}}})'
    lines = [f"class {model.name}(TypedDict):", *(f"    {member.name}: {_member(member)}" for member in model.members)]
    return "\n".join(lines if model.members else [*lines, "    pass"])


def _member(member: codegen.ModelField) -> str:
    return (
        codegen.format_annotation(member.type)
        if member.required
        else f"NotRequired[{codegen.format_annotation(member.type)}]"
    )


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _one_line(text: str, max_chars: int) -> str:
    """Return the text on one line, without characters that would end a docstring or comment."""
    return one_line(text, max_chars).replace("\\", "/").replace('"""', "'''")
