"""A typed client in TypeScript: interfaces with JSDoc, and one method for each tool.

It needs nothing but an object with `callTool`, which the official clients have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from portico.definitions import visible
from portico.jsonschema import codegen
from portico_services.contracts.codegen.client_model import Surface, ToolMethod

_BASIC = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "Record<string, unknown>",
    "any": "unknown",
}
_TAKEN = {
    *("Array", "Caller", "Error", "IncompatibleVersion", "JSON", "Object", "Promise", "Record", "ToolContent"),
    *("ToolFailure", "VERSIONS"),
}
# Names that a method cannot have.
_RESERVED = {"constructor", "prototype", "caller"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

_RUNTIME = Path(__file__).parent / "runtime"
# How results are read, by what is promised about them; each is written where it is used.
_READERS = ("structured", "unwrapped", "enveloped", "content")


def typescript(surface: Surface) -> str:
    """The text of a module."""
    taken = set(_TAKEN)
    models = {one.name: codegen.unique(one.name, taken) for one in surface.models}
    contract = surface.contract
    said = f"Typed calls of the tools of {contract.server or 'a server'} {contract.version}. Generated: do not edit."
    versions = "".join(
        f"  {_text(one.tool.name)}: {_text(str(contract.version_of(one.tool)))},\n" for one in surface.methods
    )
    return "\n".join(
        [
            _doc([said], ""),
            "/** The version of each tool that this was written for. */",
            f"export const VERSIONS: Record<string, string> = {{\n{versions}}};\n",
            *([_runtime("received")] if surface.methods else []),
            *(_runtime(name) for name in _READERS if any(_reader(one) == name for one in surface.methods)),
            *(_model(one, models) for one in surface.models if one.members),
            *(
                [_class(codegen.unique(codegen.pascal(contract.server or "server"), taken), surface, models)]
                if surface.methods
                else []
            ),
        ]
    )


def _runtime(name: str) -> str:
    return (_RUNTIME / f"{name}.ts").read_text(encoding="utf-8")


def _text(text: str) -> str:
    return json.dumps(text)


def _doc(lines: Iterable[str], indent: str) -> str:
    """A JSDoc comment. Nothing in the text can end it."""
    said = [line for text in lines for line in visible(text).replace("*/", "*\\/").strip().splitlines()]
    said = [line.strip() for line in said] or [""]
    if len(said) == 1:
        return f"{indent}/** {said[0]} */\n"
    return f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in said) + f"{indent} */\n"


# Types


def _type(kind: codegen.Type, models: dict[str, str]) -> str:
    if isinstance(kind, codegen.Basic):
        return _BASIC[kind.kind]
    if isinstance(kind, codegen.Literals):
        return " | ".join(json.dumps(value) for value in kind.values)
    if isinstance(kind, codegen.Array):
        return f"Array<{_type(kind.item, models)}>"
    if isinstance(kind, codegen.Tuple):
        return f"[{', '.join(_type(one, models) for one in kind.items)}]"
    if isinstance(kind, codegen.Mapping):
        return f"Record<string, {_type(kind.value, models)}>"
    if isinstance(kind, codegen.Reference):
        return models[kind.name]
    return " | ".join(dict.fromkeys(_type(one, models) for one in kind.options))


def _key(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _text(name)


def _model(model: codegen.Model, models: dict[str, str]) -> str:
    members = "".join(_member(one, models) for one in model.members)
    rest = "  [key: string]: unknown;\n" if model.is_open else ""
    said = _doc([model.description], "") if model.description.strip() else ""
    return f"{said}export interface {models[model.name]} {{\n{members}{rest}}}\n"


def _member(member: codegen.Member, models: dict[str, str]) -> str:
    notes = [
        f"@{one}" if one == "deprecated" else f"@{one.partition(' ')[0]} {one.partition(' ')[2]}"
        for one in member.notes
    ]
    lines = [one for one in (member.description, *notes) if one.strip()]
    mark = "" if member.required else "?"
    return f"{_doc(lines, '  ') if lines else ''}  {_key(member.name)}{mark}: {_type(member.type, models)};\n"


# Methods


def _class(name: str, surface: Surface, models: dict[str, str]) -> str:
    taken = set(_RESERVED)
    methods = [_method(one, models, codegen.unique(codegen.camel(one.tool.name), taken)) for one in surface.methods]
    said = f"The tools of {surface.contract.server or 'a server'}."
    head = (
        f"{_doc([said], '')}"
        f"export class {name} {{\n"
        "  readonly #caller: Caller;\n"
        "  #versions?: Promise<Record<string, string>>;\n\n"
        "  constructor(caller: Caller) {\n    this.#caller = caller;\n  }\n\n"
        "  async #call(name: string, args: Record<string, unknown>): Promise<unknown> {\n"
        "    this.#versions ??= listedVersions(this.#caller);\n"
        '    requireVersion(name, VERSIONS[name] ?? "", (await this.#versions)[name]);\n'
        "    return this.#caller.callTool({ name, arguments: args });\n"
        "  }\n"
    )
    return "\n".join([head, *methods]) + "}\n"


def _method(method: ToolMethod, models: dict[str, str], name: str) -> str:
    tool, takes = method.tool, method.arguments
    needed = any(member.required for member in takes.members)
    kind = models[takes.name] if takes.members else "Record<string, unknown>"
    parameter = f"args: {kind}" if needed else f"args: {kind} = {{}}" if takes.members or takes.is_open else ""
    given = "{ ...args }" if parameter else "{}"
    result = "ToolContent" if method.result is None else _type(method.result, models)
    read = "content" if method.result is None else f"{_reader(method)}<{result}>"
    result = f"{result} | null" if method.in_envelope else result
    lines = [tool.description.strip() or tool.title or tool.name]
    lines += [
        f"@param args.{_param(one.name)} {' '.join(one.description.split())}"
        for one in takes.members
        if one.description
    ]
    return (
        f"{_doc(lines, '  ')}"
        f"  async {name}({parameter}): Promise<{result}> {{\n"
        f"    return {read}(await this.#call({_text(tool.name)}, {given}));\n"
        "  }\n"
    )


def _param(name: str) -> str:
    return " ".join(visible(name).split())


def _reader(method: ToolMethod) -> str:
    kind = method.result
    if kind is None:
        return "content"
    if method.in_envelope:
        return "enveloped"
    is_object = isinstance(kind, codegen.Reference | codegen.Mapping) or kind == codegen.Basic("object")
    return "structured" if is_object else "unwrapped"
