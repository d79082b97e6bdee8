"""What is written for a server: a method for each of its tools, and the types that they have in common."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from portico.jsonschema import codegen
from portico_services.contracts.definitions import Contract, Definition, parse
from portico_services.contracts.outcomes import is_declared, unwrapped
from portico_services.contracts.result_schema import data_of_result, is_result_schema


class ToolMethod(Struct, frozen=True):
    """One tool: its arguments, and its result; None where the tool declares no output.

    `in_envelope`: the tool returns an MCPToolResult, and `result` is the type of its data, which may be null.
    """

    tool: Definition
    arguments: codegen.Model
    result: codegen.Type | None
    in_envelope: bool = False
    declares_version: bool = False


class Surface(Struct, frozen=True):
    """All that is written for one server."""

    contract: Contract
    models: list[codegen.Model]
    methods: list[ToolMethod]


def surface(contract: Contract, tools: Iterable[Definition]) -> Surface:
    taken: set[str] = set()
    models: list[codegen.Model] = []
    methods = []
    for tool in tools:
        stem = codegen.unique(codegen.pascal(tool.name), taken)
        arguments = codegen.ModelWriter(tool.input_schema, stem, taken, models).arguments()
        output, result = tool.output_schema, None
        in_envelope = output is not None and is_result_schema(output)
        if output is not None:
            # The value itself: what older revisions wrap it in is taken off by the caller.
            inner = data_of_result(output) if in_envelope else unwrapped(output)
            if in_envelope and not is_declared(output):
                inner = {"type": "object", "additionalProperties": True}
            result = codegen.ModelWriter(inner, stem, taken, models).result()
        declares_version = parse(tool.version) is not None
        methods.append(ToolMethod(tool, arguments, result, in_envelope, declares_version))
    return Surface(contract, models, methods)
