"""The eight error types are the same in every service."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import portico
from portico import Client, Server, ToolError
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico_services.contracts.api import ERROR_TYPES, MCPErrorDetail, MCPToolResult
from portico_services.livepython import LivePython
from portico_services.memory import errors

SOURCE = Path(portico.__file__).parent
# Scripts of code mode switch over these two, which say what is known about an interrupted run.
_SCRIPTS = {"OutcomeUnknown", "RunEnded"}


def kinds() -> Iterator[tuple[str, str]]:
    """Yield each `kind="…"` of an error in the source, with its file."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("Error", "Refusal")):
                continue
            for keyword in node.keywords:
                if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant):
                    yield path.name, str(keyword.value.value)


def refusals(kind: type[ToolError]) -> Iterator[type[ToolError]]:
    yield kind
    for item in kind.__subclasses__():
        yield from refusals(item)


def test_errors_of_the_services_have_one_of_the_eight_types() -> None:
    wrong = [(file, kind) for file, kind in kinds() if kind not in ERROR_TYPES and kind not in _SCRIPTS]
    assert wrong == []
    assert {refusal.error_type for refusal in refusals(errors.MemoryToolError)} <= ERROR_TYPES.keys()


async def test_class_that_does_not_exist_is_not_found() -> None:
    server = Server("s")
    server.add(LivePython())
    async with Client(server) as client:
        for tool, arguments in (("class_details", {"class_name": "Nobody"}), ("list_classes", {"package": "nobody"})):
            known_names = {one.name: one for one in await client.list_tools()}[tool].input_schema["properties"]
            result = dict(zip(known_names, arguments.values(), strict=False))
            with pytest.raises(ToolError) as failure:
                await client.call_tool(tool, result)
            assert failure.value.error_type == "ResourceNotFound"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_error_of_a_client_has_kind_and_details(revision: str) -> None:
    server = Server("s")

    @server.tool
    async def raises() -> str:
        raise ToolError("no", error_type="ApiLimitExceeded", details={"retry_after": 3}, retryable=True)

    @server.tool
    async def returns() -> MCPToolResult:
        error = MCPErrorDetail(error_type="ApiLimitExceeded", error_message="no", error_details={"retry_after": 3})
        return MCPToolResult(status="failure", error=error)

    async with Client(server, protocol_version=revision) as client:
        for name, retryable in (("raises", True), ("returns", False)):
            with pytest.raises(ToolError) as failure:
                await client.call_tool(name)
            result = failure.value
            assert (result.error_type, result.details, result.retryable) == (
                "ApiLimitExceeded",
                {"retry_after": 3},
                retryable,
            )
