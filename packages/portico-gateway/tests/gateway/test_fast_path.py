"""The fast path for repeated calls to stateless upstreams behaves like the normal path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from portico import Client, Context, Server, ToolError
from portico.protocol.client_features import ElicitResult
from portico.server.http import serve_http
from portico_gateway import Gateway
from portico_gateway.gateway.upstream import UpstreamProvider

TIMEOUT_SECONDS = 20.0
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


def make() -> Server:
    server = Server("behind")
    server.cancelled = asyncio.Event()  # type: ignore[attr-defined]
    server.begun = asyncio.Event()  # type: ignore[attr-defined]
    server.ran = 0  # type: ignore[attr-defined]

    @server.tool
    async def work(ctx: Context, how: str = "") -> str:
        server.ran += 1  # type: ignore[attr-defined]
        if how == "log":
            await ctx.info("on the way")
        elif how == "refuse":
            raise ToolError("no")
        elif how == "ask":
            return f"Hello, {(await ctx.elicit('Who?', FORM)).data['name']}!"
        elif how == "wait":
            server.begun.set()  # type: ignore[attr-defined]
            try:
                await asyncio.Event().wait()
            finally:
                server.cancelled.set()  # type: ignore[attr-defined]
        elif how == "long":
            return "x" * 600_000
        return "done"

    return server


@asynccontextmanager
async def running(server: Server, port: int = 0) -> AsyncIterator[str]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_http(server, on_ready=ready.set_result, stop=stop, host="127.0.0.1", port=port, shutdown_timeout=0.1)
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield await ready
    finally:
        stop.set()
        await task


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call whether it went the shortest way."""
    results: list[bool] = []

    begin = UpstreamProvider.begin

    def noted(*given: Any) -> Any:
        begun = begin(*given)
        results.append(begun is not None)
        return begun

    monkeypatch.setattr(UpstreamProvider, "begin", noted)
    return results


async def say_ada(params: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


async def called(client: Client, how: str = "", **options: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await client.call_tool("one_work", {"how": how}, **options)


async def test_second_call_uses_the_fast_path_with_equal_result(ways: list[bool]) -> None:
    async with running(make()) as url, Client(Gateway({"one": url}, max_result_tokens=0)) as client:
        assert [(await called(client)).text for _ in range(3)] == ["done"] * 3
        assert len((await called(client, "long")).text) == 600_000
        results = await asyncio.gather(*(called(client) for _ in range(100)))
        assert {result.text for result in results} == {"done"}
    assert ways[:4] == [False, True, True, True]


async def test_notifications_and_elicitations_are_forwarded(ways: list[bool]) -> None:
    logs: list[Any] = []
    async with running(make()) as url:
        client = Client(
            Gateway({"one": url}, max_result_tokens=0),
            elicitation_handler=say_ada,
            log_handler=lambda message: logs.append(message.data),
        )
        async with client:
            await client.set_log_level("info")
            for _ in range(2):
                assert (await called(client)).text == "done"
                assert (await called(client, "log")).text == "done"
                assert (await called(client, "ask")).text == "Hello, Ada!"
                with pytest.raises(ToolError, match="no"):
                    await called(client, "refuse")
    assert logs == ["on the way", "on the way"]
    assert sum(ways) >= 6


async def test_cancelled_call_is_cancelled_upstream(ways: list[bool]) -> None:
    server = make()
    async with running(server) as url, Client(Gateway({"one": url}, max_result_tokens=0)) as client:
        await called(client)
        waiting = asyncio.create_task(called(client, "wait"))
        await server.begun.wait()  # type: ignore[attr-defined]
        waiting.cancel()
        await server.cancelled.wait()  # type: ignore[attr-defined]
        assert (await called(client)).text == "done"
    assert ways[1]


async def test_upstream_timeout_cancels_the_call(ways: list[bool]) -> None:
    server, gateway = make(), Gateway(max_result_tokens=0)
    async with running(server) as url:
        gateway.add_upstream("one", url, timeout=0.5)
        async with Client(gateway) as client:
            await called(client)
            with pytest.raises(ToolError, match=r"one: the request timed out \(error id \w+\)"):
                await called(client, "wait")
            await server.cancelled.wait()  # type: ignore[attr-defined]
            assert (await called(client)).text == "done"
    assert ways[1]


async def test_unavailable_upstream_is_named_in_the_error(ways: list[bool]) -> None:
    gateway = Gateway(max_result_tokens=0)
    async with Client(gateway) as client:
        async with running(make()) as url:
            gateway.add_upstream("one", url)
            for _ in range(2):
                assert (await called(client)).text == "done"
        refused = await called(client, raise_on_error=False)
        assert refused.is_error
        assert "one" in refused.text
    assert ways[:2] == [False, True]
