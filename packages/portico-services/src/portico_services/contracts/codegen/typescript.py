"""Generator of typed TypeScript clients: interfaces with JSDoc and one method per tool.

The code only needs an object with `callTool`, which the official clients have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from portico.definitions import visible
from portico.jsonschema import codegen
from portico_services.contracts.codegen.client_model import ClientMethod, ClientModel

_PRIMITIVE_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "Record<string, unknown>",
    "any": "unknown",
}
_RESERVED_TYPES = {
    *("Array", "Caller", "Error", "IncompatibleVersion", "JSON", "Object", "Promise", "Record", "ToolContent"),
    *("ToolFailure", "ToolResponse", "VERSIONS"),
}
# Names that a method must not have.
_RESERVED = {"constructor", "prototype", "caller"}
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

_RUNTIME = Path(__file__).parent / "runtime"
# Functions that read results, by the declared kind of result; only those in use are generated.
_RESULT_READERS = ("structured", "unwrapped", "enveloped", "content")


def generate_typescript(surface: ClientModel) -> str:
    """Return the source of a module."""
    used_names = set(_RESERVED_TYPES)
    models = {item.name: codegen.unique_name(item.name, used_names) for item in surface.models}
    contract = surface.contract
    header = f"Typed calls of the tools of {contract.server or 'a server'} {contract.version}. Generated: do not edit."
    versions = "".join(
        f"  {_text(item.tool.name)}: {_text(str(contract.version_of(item.tool)))},\n" for item in surface.methods
    )
    return "\n".join(
        [
            _jsdoc([header], ""),
            "/** The version of each tool that this was written for. */",
            f"export const VERSIONS: Record<string, string> = {{\n{versions}}};\n",
            *([_runtime("received")] if surface.methods else []),
            *(_runtime(name) for name in _RESULT_READERS if any(_reader(item) == name for item in surface.methods)),
            *(_model(item, models) for item in surface.models if item.members),
            *(
                [
                    _class(
                        codegen.unique_name(codegen.pascal_case(contract.server or "server"), used_names),
                        surface,
                        models,
                    )
                ]
                if surface.methods
                else []
            ),
        ]
    )


def _runtime(name: str) -> str:
    return (_RUNTIME / f"{name}.ts").read_text(encoding="utf-8")


def _text(text: str) -> str:
    return json.dumps(text)


def _jsdoc(lines: Iterable[str], indent: str) -> str:
    """Return a JSDoc comment. The text cannot end it."""
    doc_lines = [line for text in lines for line in visible(text).replace("*/", "*\\/").strip().splitlines()]
    doc_lines = [line.strip() for line in doc_lines] or [""]
    if len(doc_lines) == 1:
        return f"{indent}/** {doc_lines[0]} */\n"
    return f"{indent}/**\n" + "".join(f"{indent} * {line}".rstrip() + "\n" for line in doc_lines) + f"{indent} */\n"


# Types


def _type(kind: codegen.TypeExpression, models: dict[str, str]) -> str:
    if isinstance(kind, codegen.PrimitiveType):
        return _PRIMITIVE_TYPES[kind.kind]
    if isinstance(kind, codegen.LiteralType):
        return " | ".join(json.dumps(value) for value in kind.values)
    if isinstance(kind, codegen.ArrayType):
        return f"Array<{_type(kind.item, models)}>"
    if isinstance(kind, codegen.TupleType):
        return f"[{', '.join(_type(item, models) for item in kind.items)}]"
    if isinstance(kind, codegen.MappingType):
        return f"Record<string, {_type(kind.value, models)}>"
    if isinstance(kind, codegen.ModelReference):
        return models[kind.name]
    return " | ".join(dict.fromkeys(_type(item, models) for item in kind.options))


def _key(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else _text(name)


def _model(model: codegen.ObjectModel, models: dict[str, str]) -> str:
    members = "".join(_member(member, models) for member in model.members)
    rest = "  [key: string]: unknown;\n" if model.is_open else ""
    jsdoc = _jsdoc([model.description], "") if model.description.strip() else ""
    return f"{jsdoc}export interface {models[model.name]} {{\n{members}{rest}}}\n"


def _member(member: codegen.ModelField, models: dict[str, str]) -> str:
    notes = [
        f"@{note}" if note == "deprecated" else f"@{note.partition(' ')[0]} {note.partition(' ')[2]}"
        for note in member.notes
    ]
    lines = [note for note in (member.description, *notes) if note.strip()]
    mark = "" if member.required else "?"
    return f"{_jsdoc(lines, '  ') if lines else ''}  {_key(member.name)}{mark}: {_type(member.type, models)};\n"


# Methods


def _class(name: str, surface: ClientModel, models: dict[str, str]) -> str:
    used_names = set(_RESERVED)
    methods = [
        _method(method, models, codegen.unique_name(codegen.camel_case(method.tool.name), used_names))
        for method in surface.methods
    ]
    jsdoc = f"The tools of {surface.contract.server or 'a server'}."
    head = (
        f"{_jsdoc([jsdoc], '')}"
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


def _method(method: ClientMethod, models: dict[str, str], name: str) -> str:
    tool, takes = method.tool, method.arguments
    needed = any(member.required for member in takes.members)
    kind = models[takes.name] if takes.members else "Record<string, unknown>"
    parameter = f"args: {kind}" if needed else f"args: {kind} = {{}}" if takes.members or takes.is_open else ""
    arguments = "{ ...args }" if parameter else "{}"
    result = "ToolContent" if method.result is None else _type(method.result, models)
    read = "content" if method.result is None else f"{_reader(method)}<{result}>"
    result = f"{result} | null" if method.in_envelope else result
    lines = [tool.description.strip() or tool.title or tool.name]
    lines += [
        f"@param args.{_param(item.name)} {' '.join(item.description.split())}"
        for item in takes.members
        if item.description
    ]
    return (
        f"{_jsdoc(lines, '  ')}"
        f"  async {name}({parameter}): Promise<{result}> {{\n"
        f"    return {read}(await this.#call({_text(tool.name)}, {arguments}));\n"
        "  }\n"
    )


def _param(name: str) -> str:
    return " ".join(visible(name).split())


def _reader(method: ClientMethod) -> str:
    kind = method.result
    if kind is None:
        return "content"
    if method.in_envelope:
        return "enveloped"
    is_object = isinstance(kind, codegen.ModelReference | codegen.MappingType) or kind == codegen.PrimitiveType(
        "object"
    )
    return "structured" if is_object else "unwrapped"
