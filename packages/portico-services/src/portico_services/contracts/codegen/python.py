"""A typed client in Python: one method for each tool, TypedDicts for what goes in and comes out."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable

from portico.definitions import visible
from portico.jsonschema import codegen
from portico_services.contracts.codegen.client_model import Surface, ToolMethod
from portico_services.contracts.markdown import prose

WIDTH = 100

# Where the names come from that the generated module uses.
_IMPORTS = {
    "typing": ("Any", "Literal", "NotRequired", "TypedDict", "cast"),
    "msgspec": ("UNSET", "UnsetType"),
    "portico": ("Client",),
    "portico.client.results": ("CallToolResult",),
    "portico.client.versions": ("ToolVersions",),
}
_TAKEN = {"False", "None", "True", "VERSIONS", *(name for names in _IMPORTS.values() for name in names)}


def python(surface: Surface) -> str:
    """The text of a module."""
    models = _renamed(surface.models)
    contract = surface.contract
    name = codegen.unique(codegen.pascal(contract.server or "server"), set(models.values()) | _TAKEN)
    versions = {one.tool.name: str(contract.version_of(one.tool)) for one in surface.methods}
    said = f"Typed calls of the tools of {contract.server or 'a server'} {contract.version}. Generated: do not edit."
    arguments = {id(one.arguments) for one in surface.methods}
    written = [_model(one, models) for one in surface.models if id(one) not in arguments]
    body = "\n\n\n".join([*written, _class(name, surface, models)])
    return (
        f"{_docstring(said, 0)}\n\nfrom __future__ import annotations\n\n{_imports(body)}\n"
        "# The version of each tool that this was written for.\n"
        f"VERSIONS: dict[str, str] = {codegen.literal(versions)}\n\n\n{body}\n"
    )


def _imports(body: str) -> str:
    """Standard library, others, ours: with a line between them."""
    used = {home: [name for name in names if re.search(rf"\b{name}\b", body)] for home, names in _IMPORTS.items()}
    lines = {home: f"from {home} import {', '.join(names)}\n" for home, names in used.items() if names}
    groups = (("typing",), ("msgspec",), ("portico", "portico.client.results", "portico.client.versions"))
    return "\n".join(said for group in groups if (said := "".join(lines.get(home, "") for home in group)))


def _renamed(models: Iterable[codegen.Model]) -> dict[str, str]:
    taken = set(_TAKEN)
    return {one.name: codegen.unique(one.name, taken) for one in models}


def _docstring(words: str, depth: int) -> str:
    indent = "    " * depth
    paragraphs = prose(words).split("\n\n")
    lines = [textwrap.fill(" ".join(one.split()), WIDTH - len(indent)) for one in paragraphs if one.strip()]
    body = "\n\n".join(lines).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    body = f'{body[:-1]}\\"' if body.endswith('"') else body
    body = body.replace("\n", f"\n{indent}").replace(f"\n{indent}\n", "\n\n")
    return f'{indent}"""{body}"""' if "\n" not in body else f'{indent}"""{body}\n{indent}"""'


def _comment(member: codegen.Member, indent: str) -> str:
    said = "; ".join(one for one in (" ".join(visible(member.description).split()), *map(visible, member.notes)) if one)
    return "".join(f"{indent}# {line}\n" for line in textwrap.wrap(said, WIDTH - len(indent) - 2))


# Types


def _is_plain(name: str) -> bool:
    # Names with two underscores in front become others inside a class.
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name) and not name.startswith("__")


def _model(model: codegen.Model, models: dict[str, str]) -> str:
    name = models[model.name]
    if not all(_is_plain(one.name) for one in model.members):
        members = "".join(
            f"        {codegen.text(one.name)}: {codegen.text(_member(one, models))},\n" for one in model.members
        )
        return f"{name} = TypedDict(\n    {codegen.text(name)},\n    {{\n{members}    }},\n)"
    said = _docstring(model.description, 1) + "\n\n" if model.description.strip() else ""
    members = "".join(f"{_comment(one, '    ')}    {one.name}: {_member(one, models)}\n" for one in model.members)
    return f"class {name}(TypedDict):\n{said}{members or '    pass'}".rstrip()


def _member(member: codegen.Member, models: dict[str, str]) -> str:
    kind = codegen.annotation(member.type, models)
    return kind if member.required else f"NotRequired[{kind}]"


# Methods


def _class(name: str, surface: Surface, models: dict[str, str]) -> str:
    taken = {"__init__"}
    methods = [
        _method(one, models, codegen.unique(_safe(codegen.snake(one.tool.name)), taken)) for one in surface.methods
    ]
    said = f"The tools of {surface.contract.server or 'a server'}. The client has to be open."
    head = (
        f"class {name}:\n{_docstring(said, 1)}\n\n"
        "    def __init__(self, client: Client) -> None:\n        self._client = client\n"
        f"        self._versions = ToolVersions(client, VERSIONS{_by_server(surface)})"
    )
    return "\n\n".join([head, *methods])


def _by_server(surface: Surface) -> str:
    """Return the argument that names the tools without a version of their own: the server's counts for them."""
    names = ", ".join(codegen.text(one.tool.name) for one in surface.methods if not one.declares_version)
    return f", by_server=({names},)" if names else ""


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _method(method: ToolMethod, models: dict[str, str], name: str) -> str:
    taken = {"self", "given", "said", "more", *models.values(), *_TAKEN}
    members = sorted(method.arguments.members, key=lambda member: not member.required)
    names = {one.name: codegen.unique(_safe(codegen.snake(one.name)), taken) for one in members}
    lines = [f"        {names[one.name]}: {_parameter(one, models)},\n" for one in members]
    if method.arguments.is_open:
        lines.append("        **more: Any,\n")
    parameters = (
        f"\n        self,\n{'' if not members else '        *,' + chr(10)}{''.join(lines)}    " if lines else "self"
    )
    result = "CallToolResult" if method.result is None else codegen.annotation(method.result, models)
    result = f"{result} | None" if method.in_envelope else result
    head = f"    async def {name}({parameters}) -> {result}:\n{_docstring(_about(method, names), 2)}\n"
    return head + _body(method, names, result)


def _parameter(member: codegen.Member, models: dict[str, str]) -> str:
    kind = codegen.annotation(member.type, models)
    return kind if member.required else f"{kind} | UnsetType = UNSET"


def _about(method: ToolMethod, names: dict[str, str]) -> str:
    said = [method.tool.description.strip() or method.tool.title or method.tool.name]
    for member in method.arguments.members:
        words = "; ".join(one for one in (member.description, *member.notes) if one)
        if words:
            said.append(f"{names[member.name]}: {words}")
    return "\n\n".join(said)


def _body(method: ToolMethod, names: dict[str, str], result: str) -> str:
    pairs = "".join(f"            {codegen.text(name)}: {given},\n" for name, given in names.items())
    more = "            **more,\n" if method.arguments.is_open else ""
    given = f"{{\n{pairs}{more}        }}" if pairs or more else "{}"
    name = codegen.text(method.tool.name)
    lines = [f"await self._versions.require({name})", f"given: dict[str, Any] = {given}"]
    if any(not member.required for member in method.arguments.members):
        lines.append("given = {name: value for name, value in given.items() if value is not UNSET}")
    if method.result is None:
        lines.append(f"return await self._client.call_tool({name}, given)")
    else:
        lines.append(f"said = await self._client.call_tool({name}, given, returns=Any)")
        data = 'said.data["data"]' if method.in_envelope else "said.data"
        lines.append(f"return cast({codegen.text(result)}, {data})")
    return "".join(f"        {one}\n" for one in lines).rstrip()
