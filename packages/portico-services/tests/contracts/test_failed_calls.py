"""Failed contract calls return a typed result with details."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portico import Client, Server, SyncClient, ToolError
from portico.protocol.errors import InvalidParams
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.server.server import Server as Base
from portico_services.contracts.api import ContractContext, Contracts, MCPToolCall, MCPToolResult, call
from portico_services.workitems import Tasks


def request(name: str, /, **arguments: Any) -> MCPToolCall:
    # Past the checks of the model, which refuses some of these itself.
    return MCPToolCall.model_construct(tool_name=name, arguments=arguments)


def error(result: MCPToolResult) -> tuple[str, Any]:
    assert result.error is not None
    return result.error.error_type, result.error.error_details


def plain() -> Server:
    server = Server("s")

    @server.tool
    async def take(x: Any) -> str:
        return "taken"

    return server


_circle: list[Any] = []
_circle.append(_circle)


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"text",
        [{"deep": bytearray(b"text")}],
        {1, 2},
        complex(1),
        {("a", "b"): 1},
        {1: "a"},
        object(),
        "\ud800",
        {"a": {"\udfff": 1}},
        [{1: object()}],
        _circle,
        float("nan"),
        [float("inf")],
        (1 // one for one in [0]),
    ],
)
async def test_argument_that_json_cannot_represent_is_a_validation_error(value: Any) -> None:
    result = await call(plain(), request("s.take", x=value))
    kind, details = error(result)
    assert kind == "ValidationError"
    assert details["parameter"] in ("x", "request")
    assert MCPToolResult.model_validate_json(result.model_dump_json()) == result


async def test_argument_name_that_json_cannot_represent_is_rejected() -> None:
    assert error(await call(plain(), request("s.take", **{"\ud800": 1})))[0] == "ValidationError"


async def test_context_that_json_cannot_represent_is_rejected() -> None:
    context = ContractContext(metadata={"x": object()})
    kind, details = error(await call(plain(), request("s.take", x=1), context=context))
    assert (kind, details["parameter"]) == ("ValidationError", "context")


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        (None, "request"),
        ("s.take", "request"),
        ({}, "request.tool_name"),
        ({"tool_name": "s.take", "arguments": {}, "more": 1}, "request.more"),
        ({"tool_name": "take", "arguments": {}}, "request.tool_name"),
        (MCPToolCall.model_construct(tool_name="s.take", arguments=5), "request.arguments"),
        (MCPToolCall.model_construct(tool_name=None, arguments={}), "request.tool_name"),
    ],
)
async def test_malformed_call_is_a_validation_error(given: Any, parameter: str) -> None:
    kind, details = error(await call(plain(), given))
    assert (kind, details["parameter"]) == ("ValidationError", parameter)


async def test_call_accepts_json_input() -> None:
    values: Any = {"tool_name": "s.take", "arguments": {"x": 1}}
    assert (await call(plain(), values)).status == "success"


async def test_malformed_context_is_a_validation_error() -> None:
    values: Any = {"deadline": "tomorrow"}
    kind, details = error(await call(plain(), request("s.take", x=1), context=values))
    assert (kind, details["parameter"]) == ("ValidationError", "context.deadline")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("spec_lint", {}), ("spec_diff", {"old": "{}"}), ("spec_diff", {"old": {"a": 1}})],
)
async def test_invalid_spec_tool_arguments_are_a_validation_error(tool: str, arguments: Any) -> None:
    server = plain()
    server.add(Contracts())
    assert error(await call(server, request(f"contracts.{tool}", **arguments)))[0] == "ValidationError"


async def test_specification_is_found_by_a_unique_name_suffix() -> None:
    server = Server("s")
    server.add(Contracts())
    for name in ("mine.first", "mine.twice", "yours.twice"):
        server.tool(name=name)(lambda: "x")
    response = await call(server, request("contracts.spec_get", tool="first", format="json"))
    assert response.data is not None and response.data["tool"] == "mine.first"
    assert error(await call(server, request("contracts.spec_get", tool="twice")))[0] == "ResourceNotFound"


@pytest.mark.parametrize("target", [None, 5, "http://127.0.0.1:9"])
async def test_invalid_target_is_a_validation_error(target: Any) -> None:
    kind, details = error(await call(target, request("s.take", x=1)))
    assert (kind, details["parameter"]) == ("ValidationError", "target")


def test_client_that_is_not_open_is_a_failure() -> None:
    result = call(SyncClient(plain()), request("s.take", x=1))
    assert result.error is not None
    assert "not open" in result.error.error_message


async def test_result_that_cannot_be_described_has_a_type_of_the_contract() -> None:
    server = Server("s")

    @server.tool
    async def odd() -> Any:
        return object()

    assert error(await call(server, request("s.odd")))[0] == "ToolExecutionError"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unknown_tool_or_job_is_not_found(revision: str) -> None:
    server = Server("s")
    server.add(Contracts())
    async with Client(server, protocol_version=revision) as client:
        kind, details = error(await call(client, request("contracts.spec_get", tool="contracts.spec_gett")))
        assert (kind, details["suggestions"][0]) == ("ResourceNotFound", "contracts.spec_get")
        for name, arguments in (
            ("tool_start", {"tool_name": "nobody.knows_it"}),
            ("tool_status", {"job_id": "job_x"}),
            ("tool_result", {"job_id": "job_x"}),
            ("tool_cancel", {"job_id": "job_x"}),
        ):
            assert error(await call(client, request(f"contracts.{name}", **arguments)))[0] == "ResourceNotFound"


class Foreign(Base):
    """A server that says in words what it does not know, in the ways that others do."""

    def __init__(self, answer: Any) -> None:
        super().__init__("everything")
        self.answer = answer
        self.tool("get_sum")(plain)

    def start(self, call: Any) -> Any:
        if call.method == "tools/call":
            return self._answered()
        return super().start(call)

    async def _answered(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_unknown_tool_of_another_server_has_suggestions(revision: str) -> None:
    said = "MCP error -32602: Tool everything.get_summ not found"
    for answer in (ToolError(said), InvalidParams(said)):
        async with Client(Foreign(answer), protocol_version=revision) as client:
            kind, details = error(await call(client, request("everything.get_summ")))
            assert (kind, details["suggestions"]) == ("ResourceNotFound", ["everything.get_sum"])
            assert error(await call(client, request("everything.get_sum")))[0] != "ResourceNotFound"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_details_of_a_rejection_arrive(tmp_path: Path, revision: str) -> None:
    server = Server("s")
    server.add(Tasks(store=str(tmp_path / "tasks.db")))
    async with Client(server, protocol_version=revision) as client:
        kind, details = error(await call(client, request("s.get_task", id="task_x")))
        assert kind == "ResourceNotFound"
        assert (details["code"], details["id"], details["retryable"]) == ("task_not_found", "task_x", False)


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError, TimeoutError])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_exception_type_of_a_tool_is_reported_without_its_message(
    revision: str, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "portico")
    server = Server("s")

    @server.tool
    async def fails() -> str:
        raise kind("/secret/path")

    async with Client(server, protocol_version=revision) as client:
        result = await call(client, request("s.fails"))
        assert error(result)[0] == kind.__name__
        assert "secret" not in result.model_dump_json()


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_exception_type_of_a_task_is_reported_without_its_message(
    revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "portico")
    server = Server("s")

    @server.tool(task="required")
    async def fails() -> str:
        raise FileNotFoundError("/secret/path")

    async with Client(server, protocol_version=revision) as client:
        answer = await call(client, request("s.fails"))
    assert error(answer)[0] == "FileNotFoundError"
    assert "secret" not in answer.model_dump_json()
