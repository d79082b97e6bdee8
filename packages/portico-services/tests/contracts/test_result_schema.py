"""Tools that return MCPToolResult and declare the schema of its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from portico import Client, Server
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.contracts import definitions, invoker, lockfile
from portico_services.contracts.api import MCPErrorDetail, MCPToolCall, MCPToolResult, call
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.python import generate_python
from portico_services.contracts.codegen.typescript import generate_typescript
from portico_services.contracts.diff import diff_contracts
from portico_services.contracts.lint import lint_tools
from portico_services.contracts.outcomes import data_schema
from portico_services.contracts.result_schema import is_result_schema
from portico_services.contracts.spec_writer import render_specification

ERROR = MCPErrorDetail(error_type="ValidationError", error_message="The prompt is empty.")
SCHEMA = {
    "type": "object",
    "properties": {
        "generated_code": {"type": "string", "description": "The code", "examples": ["pass"]},
        "part": {"$ref": "#"},
    },
    "required": ["generated_code"],
}
NOTES = {"portico/spec": {"use_cases": ["Write code."]}}


class Model(pydantic.BaseModel):
    generated_code: str = pydantic.Field(description="The code", examples=["pass"])


class Typed(TypedDict):
    generated_code: Annotated[str, "The code"]


class Record(msgspec.Struct):
    generated_code: Annotated[str, "The code"]


@dataclass
class Plain:
    generated_code: Annotated[str, "The code"]


class Own(MCPToolResult):
    data: Model | None = None


Make = Callable[[], Any]


def by_annotation(returns: Any, make: Make) -> Server:
    server = Server("ai", version="1.0.0")

    async def generate_code(prompt: str) -> Any:
        return make() if prompt else MCPToolResult(status="failure", error=ERROR, explanation="Nothing to do.")

    generate_code.__annotations__["return"] = returns
    server.tool(meta=NOTES)(generate_code)
    return server


def by_schema(returns: Any, schema: dict[str, Any] = SCHEMA) -> Server:
    server = Server("ai", version="1.0.0")

    async def generate_code(prompt: str) -> Any:
        if not prompt:
            return MCPToolResult(status="failure", error=ERROR, explanation="Nothing to do.")
        return MCPToolResult(data={"generated_code": "pass"}, explanation="Done.")

    if returns is not None:
        generate_code.__annotations__["return"] = returns
    server.tool(output_schema=schema, meta=NOTES)(generate_code)
    return server


SERVERS: dict[str, Callable[[], Server]] = {
    "pydantic": lambda: by_annotation(
        MCPToolResult[Model], lambda: MCPToolResult[Model](data=Model(generated_code="pass"), explanation="Done.")
    ),
    "typed dict": lambda: by_annotation(
        MCPToolResult[Typed], lambda: MCPToolResult[Typed](data={"generated_code": "pass"}, explanation="Done.")
    ),
    "struct": lambda: by_annotation(
        MCPToolResult[Record], lambda: MCPToolResult[Record](data=Record("pass"), explanation="Done.")
    ),
    "dataclass": lambda: by_annotation(
        MCPToolResult[Plain], lambda: MCPToolResult[Plain](data=Plain("pass"), explanation="Done.")
    ),
    "subclass": lambda: by_annotation(Own, lambda: Own(data=Model(generated_code="pass"), explanation="Done.")),
    "untyped value": lambda: by_annotation(
        MCPToolResult[Model], lambda: MCPToolResult(data={"generated_code": "pass"}, explanation="Done.")
    ),
    "schema": lambda: by_schema(MCPToolResult),
    "schema, no annotation": lambda: by_schema(None),
    "composed schema": lambda: by_schema(MCPToolResult, {"anyOf": [SCHEMA]}),
    "schema of the whole result": lambda: by_schema(MCPToolResult, MCPToolResult[Model].model_json_schema()),
}


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Server:
    return SERVERS[request.param]()


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_data_arrives_and_is_checked(server: Server, revision: str) -> None:
    async with Client(server, protocol_version=revision) as client:
        good = await call(client, MCPToolCall(tool_name="ai.generate_code", arguments={"prompt": "x"}))
        bad = await call(client, MCPToolCall(tool_name="ai.generate_code", arguments={"prompt": ""}))
    assert (good.status, good.explanation) == ("success", "Done.")
    assert good.data is not None and good.data["generated_code"] == "pass"
    assert (bad.status, bad.error, bad.explanation) == ("failure", ERROR, "Nothing to do.")


async def test_data_is_specified(server: Server) -> None:
    contract = await invoker.fetch_contract(server)
    [tool] = contract.tools
    schema = data_schema(tool.output_schema)
    text = render_specification(contract)
    assert "status" not in str(schema) and "generated_code" in str(schema)
    assert "| `status` |" not in text and "`error.error_type`" not in text
    assert '"data": {\n    "generated_code"' in text
    assert "undeclared" not in [finding.rule for finding in lint_tools(contract, contract.tools)]
    assert lockfile.check_drift(lockfile.load_lockfile(lockfile.dump_lockfile(contract)), contract).changes == []


async def test_tool_that_declares_no_data_is_reported() -> None:
    contract = await invoker.fetch_contract(by_annotation(MCPToolResult, MCPToolResult))
    assert "undeclared" in [
        finding.rule for finding in lint_tools(contract, contract.tools) if finding.severity == "error"
    ]
    assert (
        "error_type" not in render_specification(contract).partition("JSON Schema of `data`")[2].partition("### 5")[0]
    )


async def test_field_of_the_data_that_is_removed_is_breaking() -> None:
    old = await invoker.fetch_contract(by_schema(MCPToolResult))
    new = await invoker.fetch_contract(
        by_schema(MCPToolResult, {"type": "object", "properties": {"x": {"type": "null"}}})
    )
    result = diff_contracts(old, new)
    assert result.level == "breaking"
    assert "generated_code" in [change.path for change in result.changes]
    same = await invoker.fetch_contract(SERVERS["pydantic"]())
    plain = definitions.contract_from_tools(
        [{"name": "generate_code", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}]
    )
    assert is_result_schema(same.tools[0].output_schema or {})
    assert not is_result_schema(plain.tools[0].output_schema or {})


async def test_generated_clients_give_the_data(server: Server) -> None:
    contract = await invoker.fetch_contract(server)
    names: dict[str, Any] = {}
    exec(compile(generate_python(build_client_model(contract, contract.tools)), "ai", "exec"), names)
    async with Client(server) as client:
        data = await names["Ai"](client).generate_code(prompt="x")
    assert (data.get("data") or data)["generated_code"] == "pass"
    assert "generated_code" in generate_typescript(build_client_model(contract, contract.tools))


@pytest.mark.parametrize("kind", [int, str, list[int]])
def test_data_is_an_object(kind: Any) -> None:
    with pytest.raises(TypeError, match="must be an object"):
        MCPToolResult[kind]


async def test_data_that_does_not_fit_is_rejected_by_call() -> None:
    """A server that does not check itself."""
    entry = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": MCPToolResult[Model].model_json_schema()}
    tool = definitions.definition_from_tool(entry, "ai")
    from portico_services.contracts import outcomes

    message = {"status": "success", "data": {"other": 1}, "error": None, "explanation": None}
    with pytest.raises(outcomes.ContractOutputViolation):
        outcomes.outcome_from_result({"content": [], "structuredContent": message}, tool)
