"""A Reply ends with its request: no messages after the response or the cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from portico import Context, Server
from portico.protocol.errors import ConnectionClosed
from portico.protocol.notifications import PROGRESS, ProgressParams, normalize_progress
from portico.protocol.versions import FIRST_MODERN_VERSION, SUPPORTED_PROTOCOL_VERSIONS
from portico.rpc.call import CallbackReply, Reply

TIMEOUT_SECONDS = 10.0


class Late:
    """A server whose bodies go on after their call is over."""

    def __init__(self) -> None:
        self.server = Server("late")
        self.go_on = asyncio.Event()
        self.go_on_in_thread = threading.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.refusals: list[str] = []
        self._errands: set[asyncio.Task[None]] = set()
        self.server.tool(self.leaves_a_task)
        self.server.tool(self.swallows_its_cancellation)
        self.server.tool(timeout=0.01)(self.outlives_its_time)

    async def leaves_a_task(self, ctx: Context) -> str:
        self._errands.add(asyncio.get_running_loop().create_task(self._later(ctx)))
        return "done"

    async def _later(self, ctx: Context) -> None:
        await self.go_on.wait()
        await self._speak(ctx)
        self.ended.set()

    async def _speak(self, ctx: Context) -> None:
        await ctx.error("late")
        await ctx.report_progress(5)
        try:
            await ctx.list_roots()
        except ConnectionClosed as refusal:
            self.refusals.append(str(refusal))

    async def swallows_its_cancellation(self, ctx: Context) -> str:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await ctx.error("late")
            await ctx.report_progress(5)
            self.ended.set()
        return "nobody waits for this"

    def outlives_its_time(self, ctx: Context) -> str:
        self.go_on_in_thread.wait(TIMEOUT_SECONDS)
        ctx.error("late")
        ctx.report_progress(5)
        return str(ctx.is_cancelled)


def asked(tool: str, revision: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"progressToken": "p"}
    if revision == FIRST_MODERN_VERSION:
        meta |= {
            "io.modelcontextprotocol/protocolVersion": FIRST_MODERN_VERSION,
            "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
            "io.modelcontextprotocol/logLevel": "debug",
        }
    return {"name": tool, "arguments": {}, "_meta": meta}


async def opened(connect: Callable[..., Any], server: Server, revision: str) -> Any:
    wire = connect(server)
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision, {"roots": {}})
        wire.notify("notifications/initialized")
    return wire


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.requirement("cancellation.silence", "progress.stops")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_background_task_sends_nothing_after_its_call(revision: str, connect: Callable[..., Any]) -> None:
    """basic/utilities/progress: progress "MUST stop after completion"."""
    late = Late()
    wire = await opened(connect, late.server, revision)
    wire.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": asked("leaves_a_task", revision)})
    assert (await wire.receive())["id"] == 9
    late.go_on.set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await late.ended.wait()
    await turns()
    assert wire.is_silent
    assert late.refusals == ["the request has ended"]


@pytest.mark.requirement("cancellation.silence")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_function_that_suppresses_cancellation_sends_nothing(revision: str, connect: Callable[..., Any]) -> None:
    """2026-07-28, basic/patterns/cancellation: no further messages for a cancelled request."""
    late = Late()
    wire = await opened(connect, late.server, revision)
    params = asked("swallows_its_cancellation", revision)
    wire.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await late.begun.wait()
    wire.notify("notifications/cancelled", {"requestId": 9})
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await late.ended.wait()
    await turns()
    assert wire.is_silent


@pytest.mark.requirement("cancellation.silence")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_thread_after_its_timeout_sends_nothing(revision: str, connect: Callable[..., Any]) -> None:
    late = Late()
    wire = await opened(connect, late.server, revision)
    wire.send({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": asked("outlives_its_time", revision)})
    assert (await wire.receive())["id"] == 9
    late.go_on_in_thread.set()
    await turns(200)
    assert wire.is_silent


async def test_closed_reply_does_not_ask() -> None:
    reply = Reply()
    reply.close()
    with pytest.raises(ConnectionClosed):
        await reply.request("roots/list", None)


def as_json(params: ProgressParams) -> Raw:
    return Raw(msgspec.json.encode(params))


@pytest.mark.parametrize("form", [lambda params: params, msgspec.to_builtins, as_json], ids=["struct", "dict", "raw"])
def test_progress_only_grows(form: Callable[[ProgressParams], Any]) -> None:
    """basic/utilities/progress: "The progress value MUST increase with each notification"; of every Handler's."""
    heard: list[float] = []
    reply = CallbackReply(lambda _, params: heard.append(normalize_progress(params)[0] or 0))
    for progress in (1, 2, 2, 1, 3):
        reply.notify(PROGRESS, form(ProgressParams(progress_token="p", progress=progress)))
    assert heard == [1, 2, 3]


@pytest.mark.requirement("progress.number")
@pytest.mark.parametrize("form", [lambda params: params, msgspec.to_builtins], ids=["struct", "dict"])
@pytest.mark.parametrize("progress", [float("inf"), float("-inf"), float("nan"), 10**400, "5", None, True])
def test_non_numeric_progress_is_not_sent(progress: Any, form: Callable[[ProgressParams], Any]) -> None:
    heard: list[Any] = []
    reply = CallbackReply(lambda _, params: heard.append(params))
    reply.notify(PROGRESS, form(ProgressParams(progress_token="p", progress=progress)))
    assert heard == []


@pytest.mark.requirement("progress.number")
@pytest.mark.parametrize("total", [float("inf"), float("nan"), 10**400, True, "9"])
def test_non_numeric_progress_total_is_omitted(total: Any) -> None:
    heard: list[Any] = []
    reply = CallbackReply(lambda _, params: heard.append(params))
    reply.notify(PROGRESS, ProgressParams(progress_token="p", progress=1, total=total))
    assert [item.total for item in heard] == [None]


@pytest.mark.parametrize("params", [{}, {"progress": "far"}, 5, None, Raw(b"[]"), Raw(b'{"progressToken":1}')])
def test_malformed_progress_is_not_sent(params: Any) -> None:
    heard: list[Any] = []
    CallbackReply(lambda _, params: heard.append(params)).notify(PROGRESS, params)
    assert heard == []


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_progress_that_is_not_json_is_rejected(revision: str, value: float, connect: Callable[..., Any]) -> None:
    server = Server("s")

    @server.tool
    async def report(ctx: Context) -> str:
        await ctx.report_progress(value)
        await ctx.report_progress(1, total=value)
        return "done"

    wire = await opened(connect, server, revision)
    await wire.request("tools/call", asked("report", revision))
    assert [
        other_message["params"] for other_message in wire.other_messages if other_message["method"] == PROGRESS
    ] == [{"progressToken": "p", "progress": 1}]


@pytest.mark.requirement("progress.token-in-use")
@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
async def test_progress_token_is_in_use_once(connect: Callable[..., Any], revision: str) -> None:
    """basic, Progress: tokens MUST be unique across active requests. One that is not active any more is free."""
    server, go_on = Server("s"), asyncio.Event()

    @server.tool
    async def wait(ctx: Context) -> str:
        await ctx.report_progress(1)
        await go_on.wait()
        return "done"

    wire = connect(server)
    if revision != FIRST_MODERN_VERSION:
        await wire.initialize(revision)
    meta: dict[str, Any] = {"progressToken": "token"}
    meta = wire.envelope(**meta) if revision == FIRST_MODERN_VERSION else meta
    params = {"name": "wait", "arguments": {}, "_meta": meta}
    wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    assert (await wire.receive())["method"] == PROGRESS
    refused = await wire.request("tools/call", params, id=2)
    assert refused["error"]["code"] == -32602
    assert "progressToken" in refused["error"]["message"]
    # The same digits as a number are another token.
    other = await wire.request("tools/list", {"_meta": meta | {"progressToken": 5}}, id=3)
    assert "result" in other
    go_on.set()
    assert (await wire.response(1))["result"]["content"][0]["text"] == "done"
    assert "result" in await wire.request("tools/call", params, id=4)
    # A call that is cancelled lets go of it, too.
    go_on.clear()
    wire.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
    assert (await wire.receive())["method"] == PROGRESS
    wire.notify("notifications/cancelled", {"requestId": 5})
    go_on.set()
    assert "result" in await wire.request("tools/call", params, id=6)
    assert wire.channel.progress_tokens == set()
