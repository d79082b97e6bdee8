"""Generator of typed Python clients: one method per tool, TypedDicts for structured values."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable

from portico.definitions import visible
from portico.jsonschema import codegen
from portico_services.contracts.codegen.client_model import ClientMethod, ClientModel
from portico_services.contracts.markdown import escape_paragraphs

MAX_LINE_CHARS = 100

# Modules of the names that the generated code uses.
_IMPORTS = {
    "typing": ("Any", "Literal", "NotRequired", "TypedDict", "cast"),
    "msgspec": ("UNSET", "UnsetType"),
    "portico": ("Client",),
    "portico.client.results": ("CallToolResult",),
    "portico.client.versions": ("ToolVersions",),
}
_RESERVED_NAMES = {"False", "None", "True", "VERSIONS", *(name for names in _IMPORTS.values() for name in names)}


def generate_python(surface: ClientModel) -> str:
    """Return the source of a module."""
    models = _rename_models(surface.models)
    contract = surface.contract
    name = codegen.unique_name(codegen.pascal_case(contract.server or "server"), set(models.values()) | _RESERVED_NAMES)
    versions = {item.tool.name: str(contract.version_of(item.tool)) for item in surface.methods}
    header = f"Typed calls of the tools of {contract.server or 'a server'} {contract.version}. Generated: do not edit."
    # Arguments become keyword parameters of the methods, so their models are not written as classes.
    arguments = {id(item.arguments) for item in surface.methods}
    written = [_model(item, models) for item in surface.models if id(item) not in arguments]
    body = "\n\n\n".join([*written, _class(name, surface, models)])
    return (
        f"{_docstring(header, 0)}\n\nfrom __future__ import annotations\n\n{_imports(body)}\n"
        "# The version of each tool that this was written for.\n"
        f"VERSIONS: dict[str, str] = {codegen.python_literal(versions)}\n\n\n{body}\n"
    )


def _imports(body: str) -> str:
    """Return the import block: standard library, third-party and Portico, separated by blank lines."""
    used = {home: [name for name in names if re.search(rf"\b{name}\b", body)] for home, names in _IMPORTS.items()}
    lines = {home: f"from {home} import {', '.join(names)}\n" for home, names in used.items() if names}
    groups = (("typing",), ("msgspec",), ("portico", "portico.client.results", "portico.client.versions"))
    return "\n".join(block for group in groups if (block := "".join(lines.get(home, "") for home in group)))


def _rename_models(models: Iterable[codegen.ObjectModel]) -> dict[str, str]:
    used_names = set(_RESERVED_NAMES)
    return {model.name: codegen.unique_name(model.name, used_names) for model in models}


def _docstring(words: str, depth: int) -> str:
    indent = "    " * depth
    paragraphs = escape_paragraphs(words).split("\n\n")
    lines = [
        textwrap.fill(" ".join(paragraph.split()), MAX_LINE_CHARS - len(indent))
        for paragraph in paragraphs
        if paragraph.strip()
    ]
    # The text comes from the server: it must not be able to end the docstring.
    body = "\n\n".join(lines).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    body = f'{body[:-1]}\\"' if body.endswith('"') else body
    body = body.replace("\n", f"\n{indent}").replace(f"\n{indent}\n", "\n\n")
    return f'{indent}"""{body}"""' if "\n" not in body else f'{indent}"""{body}\n{indent}"""'


def _comment(member: codegen.ModelField, indent: str) -> str:
    text = "; ".join(
        item for item in (" ".join(visible(member.description).split()), *map(visible, member.notes)) if item
    )
    return "".join(f"{indent}# {line}\n" for line in textwrap.wrap(text, MAX_LINE_CHARS - len(indent) - 2))


# Types


def _is_plain(name: str) -> bool:
    # Python mangles names with two leading underscores inside a class.
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name) and not name.startswith("__")


def _model(model: codegen.ObjectModel, models: dict[str, str]) -> str:
    name = models[model.name]
    # A TypedDict with keys that are not identifiers needs the functional syntax.
    if not all(_is_plain(member.name) for member in model.members):
        members = "".join(
            f"        {codegen.python_string(member.name)}: {codegen.python_string(_member(member, models))},\n"
            for member in model.members
        )
        return f"{name} = TypedDict(\n    {codegen.python_string(name)},\n    {{\n{members}    }},\n)"
    docstring = _docstring(model.description, 1) + "\n\n" if model.description.strip() else ""
    members = "".join(
        f"{_comment(member, '    ')}    {member.name}: {_member(member, models)}\n" for member in model.members
    )
    return f"class {name}(TypedDict):\n{docstring}{members or '    pass'}".rstrip()


def _member(member: codegen.ModelField, models: dict[str, str]) -> str:
    kind = codegen.format_annotation(member.type, models)
    return kind if member.required else f"NotRequired[{kind}]"


# Methods


def _class(name: str, surface: ClientModel, models: dict[str, str]) -> str:
    used_names = {"__init__"}
    methods = [
        _method(method, models, codegen.unique_name(_safe(codegen.snake_case(method.tool.name)), used_names))
        for method in surface.methods
    ]
    docstring = f"The tools of {surface.contract.server or 'a server'}. The client has to be open."
    head = (
        f"class {name}:\n{_docstring(docstring, 1)}\n\n"
        "    def __init__(self, client: Client) -> None:\n        self._client = client\n"
        f"        self._versions = ToolVersions(client, VERSIONS{_by_server(surface)})"
    )
    return "\n\n".join([head, *methods])


def _by_server(surface: ClientModel) -> str:
    """Return the argument that names the tools without a version: the server's version applies to them."""
    names = ", ".join(
        codegen.python_string(method.tool.name) for method in surface.methods if not method.declares_version
    )
    return f", by_server=({names},)" if names else ""


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _method(method: ClientMethod, models: dict[str, str], name: str) -> str:
    # The local variables of the generated body must not be shadowed by parameters of the same name.
    used_names = {"self", "arguments", "result", "more", *models.values(), *_RESERVED_NAMES}
    members = sorted(method.arguments.members, key=lambda member: not member.required)
    names = {item.name: codegen.unique_name(_safe(codegen.snake_case(item.name)), used_names) for item in members}
    lines = [f"        {names[item.name]}: {_parameter(item, models)},\n" for item in members]
    if method.arguments.is_open:
        lines.append("        **more: Any,\n")
    parameters = (
        f"\n        self,\n{'' if not members else '        *,' + chr(10)}{''.join(lines)}    " if lines else "self"
    )
    result = "CallToolResult" if method.result is None else codegen.format_annotation(method.result, models)
    result = f"{result} | None" if method.in_envelope else result
    head = f"    async def {name}({parameters}) -> {result}:\n{_docstring(_method_docstring(method, names), 2)}\n"
    return head + _body(method, names, result)


def _parameter(member: codegen.ModelField, models: dict[str, str]) -> str:
    kind = codegen.format_annotation(member.type, models)
    return kind if member.required else f"{kind} | UnsetType = UNSET"


def _method_docstring(method: ClientMethod, names: dict[str, str]) -> str:
    paragraphs = [method.tool.description.strip() or method.tool.title or method.tool.name]
    for member in method.arguments.members:
        words = "; ".join(item for item in (member.description, *member.notes) if item)
        if words:
            paragraphs.append(f"{names[member.name]}: {words}")
    return "\n\n".join(paragraphs)


def _body(method: ClientMethod, names: dict[str, str], result: str) -> str:
    pairs = "".join(f"            {codegen.python_string(name)}: {variable},\n" for name, variable in names.items())
    more = "            **more,\n" if method.arguments.is_open else ""
    variable = f"{{\n{pairs}{more}        }}" if pairs or more else "{}"
    name = codegen.python_string(method.tool.name)
    lines = [f"await self._versions.require({name})", f"arguments: dict[str, Any] = {variable}"]
    if any(not member.required for member in method.arguments.members):
        lines.append("arguments = {name: value for name, value in arguments.items() if value is not UNSET}")
    if method.result is None:
        lines.append(f"return await self._client.call_tool({name}, arguments)")
    else:
        lines.append(f"result = await self._client.call_tool({name}, arguments, result_type=Any)")
        data = 'result.data["data"]' if method.in_envelope else "result.data"
        lines.append(f"return cast({codegen.python_string(result)}, {data})")
    return "".join(f"        {line}\n" for line in lines).rstrip()
