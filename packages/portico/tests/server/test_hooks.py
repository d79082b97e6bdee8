"""Middleware classes with a method for each kind of request."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from portico import Client, Middleware, MiddlewareContext, Server, ToolError
from portico.protocol.errors import InternalError
from portico.server.middleware import (
    ErrorHandlingMiddleware,
    LoggingMiddleware,
    ResponseCachingMiddleware,
    ResponseLimitingMiddleware,
    RetryMiddleware,
)
from portico.types import SUPPORTED_PROTOCOL_VERSIONS


def made(*middleware: Any) -> tuple[Server, list[int]]:
    server, ran = Server("hooked", middleware=middleware), []

    @server.tool
    async def count(n: int = 1) -> int:
        ran.append(n)
        return len(ran)

    @server.tool
    async def long() -> str:
        return "x" * 1000

    @server.tool
    async def flaky() -> str:
        ran.append(0)
        if len(ran) < 3:
            raise ConnectionError("gone")
        return "there"

    return server, ran


async def test_hook_that_forgets_to_return_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(Middleware):
        async def on_list_tools(self, context: MiddlewareContext, call_next: Any) -> Any:
            await call_next(context)

    server, _ = made(Forgetful())
    async with Client(server) as client:
        with pytest.raises(InternalError, match="error id"):
            await client.list_tools()
        assert (await client.call_tool("count")).data == 1
    assert "Forgetful returned no result for tools/list" in caplog.text


async def test_hanging_hook_blocks_only_its_request() -> None:
    cancelled: list[str] = []

    class Hanging(Middleware):
        async def on_call_tool(self, context: MiddlewareContext, call_next: Any) -> Any:
            try:
                return await (asyncio.Event().wait() if context.name == "long" else call_next(context))
            except asyncio.CancelledError:
                cancelled.append(context.name)
                raise

    server, _ = made(Hanging())
    async with Client(server) as client, asyncio.timeout(20):
        hangs = asyncio.create_task(client.call_tool("long"))
        assert (await client.call_tool("count")).data == 1
        hangs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hangs
        assert (await client.call_tool("count")).data == 2
    assert cancelled == ["long"]


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_each_hook_receives_its_method_and_may_change_it(revision: str) -> None:
    seen = []

    class Watching(Middleware):
        async def on_message(self, context: MiddlewareContext, call_next: Any) -> Any:
            seen.append(context.method)
            return await call_next(context)

        async def on_call_tool(self, context: MiddlewareContext, call_next: Any) -> Any:
            assert context.name == "count"
            changed = msgspec.structs.replace(context.message, arguments=msgspec.Raw(b'{"n": 5}'))
            return await call_next(context.copy(message=changed))

        async def on_list_tools(self, context: MiddlewareContext, call_next: Any) -> Any:
            listed = await call_next(context)
            listed.tools = [tool for tool in listed.tools if tool.name == "count"]
            return listed

    server, ran = made(Watching())
    async with Client(server, protocol_version=revision) as client:
        assert [tool.name for tool in await client.list_tools()] == ["count"]
        assert (await client.call_tool("count", {"n": 1})).content[0].text == "1"
    assert ran == [5]
    assert {"tools/list", "tools/call"} <= set(seen)


async def test_results_are_kept_for_a_principal() -> None:
    server, ran = made(ResponseCachingMiddleware(["count"]))
    async with Client(server) as client:
        for _ in range(3):
            assert (await client.call_tool("count", {"n": 1})).data == 1
        assert (await client.call_tool("count", {"n": 2})).data == 2
    assert ran == [1, 2]


async def test_long_result_is_cut_off() -> None:
    server, _ = made(ResponseLimitingMiddleware(10))
    async with Client(server) as client:
        result = await client.call_tool("long")
        assert result.content[0].text == "x" * 10
        assert "1,000 characters" in result.content[1].text


async def test_retry_middleware_retries_connection_errors() -> None:
    server, _ = made(RetryMiddleware(base_delay=0.001))
    async with Client(server) as client:
        assert (await client.call_tool("flaky")).data == "there"


async def test_errors_are_reported_and_requests_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    notifications: list[Any] = []
    server, _ = made(
        ErrorHandlingMiddleware(lambda error, context: notifications.append(context.name)), LoggingMiddleware()
    )
    with caplog.at_level(logging.INFO, "portico.requests"):
        async with Client(server) as client:
            with pytest.raises(ToolError):
                await client.call_tool("flaky")
            await client.call_tool("count")
    assert notifications == ["flaky"]
    assert any("tools/call count: ok in" in record.getMessage() for record in caplog.records)
