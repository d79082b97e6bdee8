"""Language-independent model of a generated client: a method for each tool, and the types they share."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from portico.jsonschema import codegen
from portico_services.contracts.definitions import ServerContract, ToolDefinitionSnapshot, parse_version
from portico_services.contracts.outcomes import is_declared, unwrap_result_schema
from portico_services.contracts.result_schema import data_of_result, is_result_schema


class ClientMethod(Struct, frozen=True):
    """One tool: its arguments and its result type, or None if the tool declares no output.

    With `in_envelope` the tool returns an MCPToolResult, and `result` is the type of its data, which may be null.
    """

    tool: ToolDefinitionSnapshot
    arguments: codegen.ObjectModel
    result: codegen.TypeExpression | None
    in_envelope: bool = False
    declares_version: bool = False


class ClientModel(Struct, frozen=True):
    """Everything that is generated for one server."""

    contract: ServerContract
    models: list[codegen.ObjectModel]
    methods: list[ClientMethod]


def build_client_model(contract: ServerContract, tools: Iterable[ToolDefinitionSnapshot]) -> ClientModel:
    """Build the model of a client for these tools."""
    used_names: set[str] = set()
    models: list[codegen.ObjectModel] = []
    methods = []
    for tool in tools:
        stem = codegen.unique_name(codegen.pascal_case(tool.name), used_names)
        arguments = codegen.ModelBuilder(tool.input_schema, stem, used_names, models).build_arguments()
        output, result = tool.output_schema, None
        in_envelope = output is not None and is_result_schema(output)
        if output is not None:
            # Use the schema of the value itself: the caller removes the wrapper of older protocol versions.
            inner = data_of_result(output) if in_envelope else unwrap_result_schema(output)
            if in_envelope and not is_declared(output):
                inner = {"type": "object", "additionalProperties": True}
            result = codegen.ModelBuilder(inner, stem, used_names, models).build_result()
        declares_version = parse_version(tool.version) is not None
        methods.append(ClientMethod(tool, arguments, result, in_envelope, declares_version))
    return ClientModel(contract, models, methods)
