"""`call(target, MCPToolCall)` on every kind of target; every failure has a type."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Client, Context, Server, SyncClient, ToolResult
from portico.auth.principal import Principal
from portico.protocol.content import TextContent
from portico.protocol.errors import ConnectionClosed, HttpStatusError, InternalError, MethodNotFound, RequestTimeout
from portico.protocol.tools import CallToolResult
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import Call, Handler
from portico_services.contracts.api import ContractContext, MCPToolCall, MCPToolResult, call
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.python import generate_python
from portico_services.contracts.invoker import fetch_contract


def request(name: str, /, **arguments: Any) -> MCPToolCall:
    return MCPToolCall(tool_name=name, arguments=arguments)


async def error_of(target: Any, name: str, /, **arguments: Any) -> tuple[str, Any]:
    result = await call(target, request(name, **arguments))
    assert result.status == "failure"
    assert result.data is None
    assert result.error is not None
    return result.error.error_type, result.error.error_details


# What succeeds


async def test_object_is_the_data(shop: Server) -> None:
    result = await call(shop, request("shop.buy", product="shirt", quantity=2))
    assert result == MCPToolResult(data={"number": 1, "total": 5.0, "to": None})


async def test_non_object_result_is_wrapped_in_an_object(shop: Server) -> None:
    assert (await call(shop, request("shop.count"))).data == {"result": 3}


async def test_text_is_the_data_of_a_tool_without_output_schema(shop: Server) -> None:
    assert (await call(shop, request("shop.advice", about="less"))).data == {"text": "Buy less."}


async def test_binary_data_comes_as_blocks_of_content(shop: Server) -> None:
    data = (await call(shop, request("shop.picture"))).data
    assert data is not None
    assert data["text"] == "A picture:"
    assert data["content"][1] == {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_it_works_over_a_client_of_every_revision(shop: Server, revision: str) -> None:
    async with Client(shop, protocol_version=revision) as client:
        result = await call(client, request("shop.buy", product="shirt"))
        assert result.data == {"number": 1, "total": 2.5, "to": None}
        assert await error_of(client, "shop.buy", product="sock") == (
            "ResourceNotFound",
            {"product": "sock", "retryable": True},
        )
        kind, details = await error_of(client, "shop.buy", product=3)
        assert (kind, details["parameter"]) == ("ValidationError", "product")


def test_it_works_without_asyncio(shop: Server) -> None:
    with SyncClient(shop) as client:
        result = call(client, request("shop.buy", product="shirt"))
        assert result.data == {"number": 1, "total": 2.5, "to": None}
        assert call(client, request("shop.nothing")).error.error_type == "ResourceNotFound"  # type: ignore[union-attr]


async def test_tool_can_be_called_by_its_alias(shop: Server) -> None:
    assert (await call(shop, request("shop.purchase", product="shirt"))).status == "success"


async def test_server_that_is_not_running_is_started_for_the_call() -> None:
    opened: list[str] = []
    server = Server("late", lifespan=lambda _: _Noting(opened))

    @server.tool
    async def look() -> str:
        return ",".join(opened)

    assert (await call(server, request("late.look"))).data == {"result": "in"}
    assert opened == ["in", "out"]


class _Noting:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    async def __aenter__(self) -> None:
        self._notes.append("in")

    async def __aexit__(self, *_: object) -> None:
        self._notes.append("out")


async def test_result_in_contract_form_is_accepted() -> None:
    server = Server("words")

    @server.tool
    async def nothing_to_do() -> dict[str, Any]:
        return {"status": "no_change_needed", "data": {"a": 1}, "explanation": "It was so already."}

    @server.tool
    async def refuse() -> dict[str, Any]:
        return {
            "status": "failure",
            "data": {"a": 1},
            "error": {"error_type": "ApiLimitExceeded", "error_message": "no"},
        }

    result = await call(server, request("words.nothing_to_do"))
    assert (result.status, result.data, result.explanation) == ("no_change_needed", {"a": 1}, "It was so already.")
    assert await error_of(server, "words.refuse") == ("ApiLimitExceeded", None)


async def test_text_content_becomes_the_explanation() -> None:
    server = Server("s")

    @server.tool
    async def look() -> ToolResult:
        return ToolResult(content="It took 12 ms.", structured={"milliseconds": 12})

    result = await call(server, request("s.look"))
    assert (result.data, result.explanation) == ({"milliseconds": 12}, "It took 12 ms.")


# What fails


async def test_arguments_are_checked_before_anything_is_done(shop: Server) -> None:
    kind, details = await error_of(shop, "shop.buy", product="shirt", quantity="two", colour="red")
    assert kind == "ValidationError"
    assert details["parameter"] == "quantity"
    assert details["provided_value"] == "two"
    assert {problem["parameter"] for problem in details["problems"]} == {"quantity", "colour"}


async def test_missing_argument_is_named(shop: Server) -> None:
    kind, details = await error_of(shop, "shop.buy")
    assert (kind, details) == ("ValidationError", {"parameter": "product", "constraint": "is required"})


async def test_unknown_tool_error_names_the_nearest(shop: Server) -> None:
    kind, details = await error_of(shop, "shop.buyy")
    assert kind == "ResourceNotFound"
    assert details["code"] == "MCP-ToolNotFound"
    assert "shop.buy" in details["suggestions"]


async def test_tool_error_preserves_type_and_details(shop: Server) -> None:
    assert await error_of(shop, "shop.read_file", path="/x") == ("FileNotFoundError", {"path": "/x"})
    async with Client(shop) as client:
        assert await error_of(client, "shop.read_file", path="/x") == ("FileNotFoundError", {"path": "/x"})


async def test_unexpected_exception_shows_nothing_of_itself(shop: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "portico")
    result = await call(shop, request("shop.crash"))
    assert result.error is not None
    assert result.error.error_type == "ToolExecutionError"
    assert "secret" not in result.model_dump_json()
    assert "error id" in result.error.error_message


async def test_eliciting_tool_fails_without_an_elicitation_handler(shop: Server) -> None:
    assert (await error_of(shop, "shop.ask"))[0] == "ToolExecutionError"
    async with Client(shop, elicitation_handler=lambda question: {"value": True}) as client:
        assert (await call(client, request("shop.ask"))).data == {"result": "True"}


async def test_time_is_up(shop: Server) -> None:
    assert (await call(shop, request("shop.hang"), timeout=0.01)).error.error_type == "TimeoutError"  # type: ignore[union-attr]
    async with Client(shop) as client:
        result = await call(client, request("shop.hang"), timeout=0.01)
        assert result.error is not None
        assert result.error.error_type == "TimeoutError"


async def test_tool_timeout_is_a_timeout_error() -> None:
    server = Server("s")

    @server.tool(timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    assert (await error_of(server, "s.hang"))[0] == "TimeoutError"


async def test_missing_scope_is_a_matter_of_permission(shop: Server) -> None:
    server = Server("s")

    @server.tool(scopes=["admin"])
    async def reign() -> str:
        return "ok"

    async with Client(server, principal=Principal("ada", frozenset())) as client:
        assert (await error_of(client, "s.reign"))[0] == "PermissionError"


async def test_tool_that_breaks_its_promise_has_failed() -> None:
    handler = _Handler(
        {"structuredContent": {"n": "three"}, "content": []},
        output={"type": "object", "properties": {"n": {"type": "integer"}}},
    )
    kind, details = await error_of(handler, "server.t")
    assert (kind, details) == ("ToolExecutionError", {"field": "n", "constraint": "type"})
    assert (await error_of(_Handler({"content": []}, output={"type": "object"}), "server.t"))[0] == "ToolExecutionError"


class _Handler:
    """Answers `tools/list` with one tool, and `tools/call` with whatever it was given."""

    def __init__(self, answer: Any, output: Any = None, input: Any = None) -> None:
        self.answer, self.output, self.input = answer, output, input

    async def __call__(self, asked: Call) -> Any:
        if asked.method == "tools/list":
            tool = {"name": "t", "inputSchema": self.input or {"type": "object"}}
            return Raw(msgspec.json.encode({"tools": [tool | ({"outputSchema": self.output} if self.output else {})]}))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Raw(msgspec.json.encode(self.answer))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"content": None},
        {"content": [1, "x", None, {"type": "text"}]},
        {"content": [], "isError": True},
        {"content": [], "structuredContent": {"status": "failure", "error": {"error_type": 3}}},
        {"content": [], "structuredContent": {"status": "success", "data": [1], "error": {"a": 1}, "explanation": 3}},
        {"content": [], "isError": True, "_meta": {"portico/error": {"error_type": "", "error_details": [1]}}},
        {"content": [], "isError": True, "_meta": []},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": 3},
    ],
)
async def test_nonsense_is_still_answered_with_a_result(answer: Any) -> None:
    result = await call(_Handler(answer), request("server.t"))
    assert MCPToolResult.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    "failure, kind",
    [
        (InternalError("no"), "ToolExecutionError"),
        (MethodNotFound("no"), "ToolExecutionError"),
        (HttpStatusError("no", 401), "ToolExecutionError"),
        (RuntimeError("no"), "ToolExecutionError"),
    ],
)
async def test_any_exception_of_a_handler_is_a_failure(
    failure: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "portico")
    assert (await error_of(_Handler(failure), "server.t"))[0] == kind


@pytest.mark.parametrize(
    "failure, kind",
    [
        (HttpStatusError("no", 401), "AuthenticationError"),
        (HttpStatusError("no", 403), "PermissionError"),
        (HttpStatusError("no", 429), "ApiLimitExceeded"),
        (HttpStatusError("no", 500), "ToolExecutionError"),
        (RequestTimeout("no"), "TimeoutError"),
        (ConnectionClosed("no"), "ToolExecutionError"),
    ],
)
async def test_transport_failures_have_an_error_type(
    shop: Server, failure: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(shop) as client:

        async def fail(*_: Any, **__: Any) -> None:
            raise failure

        monkeypatch.setattr(client, "request", fail)
        assert (await error_of(client, "shop.count"))[0] == kind


# What is known of a server may be out of date


async def test_tool_added_later_is_found() -> None:
    server = Server("s")
    server.tool(_one)
    async with Client(server) as client:
        assert (await call(client, request("s.one"))).status == "success"
        server.tool("two")(_one)
        assert (await call(client, request("s.two"))).status == "success"


async def _one() -> int:
    return 1


_one.__name__ = "one"


async def test_parameter_that_has_come_since_is_not_rejected() -> None:
    server = Server("s")

    @server.tool
    async def greet(name: str) -> str:
        return name

    async with Client(server) as client:
        assert (await call(client, request("s.greet", name="Ada"))).status == "success"
        server.remove("greet")

        @server.tool("greet")
        async def greet_warmly(name: str, warmly: bool = False) -> str:
            return f"{name}{'!' if warmly else ''}"

        assert (await call(client, request("s.greet", name="Ada", warmly=True))).data == {"result": "Ada!"}


async def test_tools_are_listed_once_for_a_client(shop: Server) -> None:
    seen: list[str] = []

    def noting(handler: Handler) -> Handler:
        async def handle(asked: Call) -> Any:
            seen.append(asked.method)
            return await handler(asked)

        return handle

    shop.add_middleware(noting)
    async with Client(shop) as client:
        for _ in range(3):
            await call(client, request("shop.count"))
    assert seen.count("tools/list") == 1


# The context


async def test_context_reaches_the_tool() -> None:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        result = ContractContext.from_meta(ctx.meta)
        assert result is not None
        return f"{result.caller} {result.dry_run}"

    context = ContractContext(caller="planner", dry_run=True)
    assert (await call(server, request("s.look"), context=context)).data == {"result": "planner True"}
    async with Client(server) as client:
        assert (await call(client, request("s.look"), context=context)).data == {"result": "planner True"}


async def test_deadline_ends_a_call(shop: Server) -> None:
    soon = ContractContext(deadline=datetime.now(UTC) + timedelta(milliseconds=10))
    result = await call(shop, request("shop.hang"), context=soon)
    assert result.error is not None
    assert result.error.error_type == "TimeoutError"


async def test_calls_are_logged_without_their_arguments(shop: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "portico.contracts")
    await call(shop, request("shop.advice", about="my secret"), context=ContractContext(correlation_id="c-1"))
    await call(shop, request("shop.advice", about=3))
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("shop.advice: success in ")
    assert first.endswith("correlation 'c-1'")
    assert "shop.advice: failure ('ValidationError')" in second
    assert "secret" not in caplog.text


async def test_handler_that_is_a_function_will_do() -> None:
    async def answer(asked: Call) -> Any:
        if asked.method == "tools/call":
            return CallToolResult(content=[TextContent(text="hello")], is_error=False)
        raise MethodNotFound("no")

    assert (await call(answer, request("any.tool"))).data == {"text": "hello"}


# Tools that run as a task only


def slow() -> Server:
    server = Server("s", version="1.0.0")

    @server.tool(task="required")
    async def research(topic: str) -> dict[str, str]:
        """Takes its time."""
        return {"report": topic.upper()}

    return server


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_tool_that_runs_as_a_task_only_is_waited_for(revision: str) -> None:
    async with Client(slow(), protocol_version=revision) as client:
        assert (await call(client, request("s.research", topic="ants"))).data == {"report": "ANTS"}
        assert (await client.call_tool("research", {"topic": "ants"})).data == {"report": "ANTS"}


async def test_such_a_tool_of_a_server_in_this_process_is_waited_for() -> None:
    assert (await call(slow(), request("s.research", topic="ants"))).data == {"report": "ANTS"}


async def test_generated_client_waits_for_such_a_tool() -> None:
    contract = await fetch_contract(slow())
    code: dict[str, Any] = {}
    exec(generate_python(build_client_model(contract, contract.tools)), code)
    async with Client(slow()) as client:
        assert (await code["S"](client).research(topic="ants"))["report"] == "ANTS"


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("value", [3.0, 0.5, 7, True, [1, 2], -1e300])
async def test_value_is_the_same_on_every_revision(revision: str, value: Any) -> None:
    server = Server("s", version="1.0.0")

    @server.tool(output_schema={"type": ["number", "boolean", "array"]})
    async def give() -> Any:
        return value

    async with Client(server, protocol_version=revision) as client:
        assert (await call(client, request("s.give"))).data == {"result": value}
